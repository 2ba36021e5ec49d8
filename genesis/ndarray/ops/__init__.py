"""Operations on arrays, one file per subject; their gradients are in `genesis.functional`."""
