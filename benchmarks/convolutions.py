"""Time convolutions and matrix products side by side: ``python -m benchmarks.convolutions``.

Measured as in `benchmarks.cpu`; a complete run is written to benchmarks/results/convolutions.md.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.convolution_cases import CONTRACTIONS
from benchmarks.cpu import compare

RESULTS = Path(__file__).parent / "results" / "convolutions.md"
GROUPS = ("forward", "input gradient", "weight gradient", "matmul")

if __name__ == "__main__":
    compare(CONTRACTIONS, RESULTS, "Convolutions and matrix products", __doc__, GROUPS)
