"""NVIDIA and AMD chips: kernels as Triton source, compiled for an explicit target."""
