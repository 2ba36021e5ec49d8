"""What every public function of arrays is compared with.

`ELEMENTWISE` has the functions of each element, which the sweep applies to operands of all types
they take; `CASES` has everything else: a function that draws operands and compares. `EXEMPT` says
why a name is in neither.
"""

from __future__ import annotations

from tests import (  # noqa: F401  (each registers its cases)
    operator_indexing,
    operator_library,
    operator_shapes,
    operator_windows,
)
from tests.operator_cases import CASES
from tests.operator_elementwise import ELEMENTWISE, Elementwise

#: What is not compared here, and why.
EXEMPT: dict[str, str] = {
    **dict.fromkeys(
        ("ComplexWarning", "HistogramDD", "NDArray", "Statistics"),
        "a class; used by every other test",
    ),
    **dict.fromkeys(
        ("default_device", "eager", "on_device", "realize", "set_default_device", "statistics"),
        "about execution, not numbers: test_ndarray_lazy, test_cpu_runtime",
    ),
    **dict.fromkeys(("allclose", "array_equal", "is_complex"), "give a bool: test_elementwise"),
    **dict.fromkeys(
        ("airy_ai", "gammainc", "gammaincc"), "PyTorch knows them to 7 digits only: test_special"
    ),
    **dict.fromkeys(
        ("histogramdd", "histogramdd_edges", "linalg.cholesky_ex"),
        "by PyTorch's own samples: test_opinfo",
    ),
    "lookup": "by a table that is no array: test_lookup",
    "demand": "gives its argument, or raises: test_value_checks",
    "ratio": "of sizes, not of arrays: test_size_assumptions",
    "random": "drawn by a generator: test_ndarray_operations",
    "fft": "a namespace, whose functions are in the table",
    "linalg": "a namespace, whose functions are in the table",
}

__all__ = ["CASES", "ELEMENTWISE", "EXEMPT", "Elementwise"]
