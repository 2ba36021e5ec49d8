"""PyTorch's operators as functions of arrays, one file per subject.

Importing this package fills the table `kernels`.
"""

from genesis.torch.kernels import activation, arithmetic, comparison  # noqa: F401
from genesis.torch.kernels import complexes, foreach, optimizer, quantization, special  # noqa: F401
from genesis.torch.kernels import ctc, cumulative, distance, histogram  # noqa: F401
from genesis.torch.kernels import loss, margin_loss  # noqa: F401
from genesis.torch.kernels import normalization, reduction, sorting  # noqa: F401
from genesis.torch.kernels import attention, contraction, convolution  # noqa: F401
from genesis.torch.kernels import fourier, interpolation, linalg, pooling, recurrent  # noqa: F401
from genesis.torch.kernels import creation, indexing, movement, random, scattering  # noqa: F401
from genesis.torch.kernels.registry import Kernel, Unsupported, kernel, kernels, name_of

__all__ = ["Kernel", "Unsupported", "kernel", "kernels", "name_of"]
