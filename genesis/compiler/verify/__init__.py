"""Proofs: kernels and programs touch only what they may, in a defined order."""
