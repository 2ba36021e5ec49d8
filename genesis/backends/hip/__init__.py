"""AMD's chips: the runtime of `genesis.backends.cuda` with HIP as its driver."""
