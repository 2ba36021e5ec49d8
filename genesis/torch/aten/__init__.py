"""PyTorch's operators as functions of arrays, one file per subject.

Importing this package fills the table `implementations`.
"""

from genesis.torch.aten import (  # noqa: F401 (they register themselves)
    activation, arithmetic, attention, comparison, complexes, contraction, convolution, creation,
    ctc, cumulative, detection, distance, fake_quantization, foreach, fourier, grouped_products,
    histogram, indexing, interpolation, linalg, loss, movement, normalization, optimizer, pooling,
    random, recurrent, reduction, scattering, sorting, special, transformer,
)  # fmt: skip
from genesis.torch.aten.registry import (
    FallbackWarning, Implementation, Unsupported, implementations, implements, name_of,
)  # fmt: skip

__all__ = [
    "FallbackWarning", "Implementation", "Unsupported", "implementations", "implements", "name_of",
]  # fmt: skip
