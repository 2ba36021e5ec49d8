"""Lowering: fused groups become kernels in their plainest form."""
