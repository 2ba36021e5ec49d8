"""Time single operators side by side with PyTorch: ``python -m benchmarks.operators``.

Measured as in `benchmarks.cpu`; a complete run is written to benchmarks/results/operators.md.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.cpu import compare
from benchmarks.operator_cases import OPERATORS

RESULTS = Path(__file__).parent / "results" / "operators.md"

if __name__ == "__main__":
    compare(OPERATORS, RESULTS, "Operator results", __doc__)
