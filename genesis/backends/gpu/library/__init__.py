"""Hand-written code for operations of the library, each listed here with its contract.

What these kernels compute is what the function of the same name in `genesis.ir.numpy_library` does,
for any contents of their operands; they access their operands, results and scratch memory only
within the extents they are given. `tests/backends/test_gpu_library.py` holds them to that. They are
not proven, so nothing but the entries of this table may take a call.

========================  ===========================  =============================================
operation                 code                         limits
========================  ===========================  =============================================
``indexing.summed_rows``  `segment_sums_triton`        floats of 16 to 64 bits; sizes that are known
``sorting.select``        `sort_radix_triton`          real types; rows of less than 2 ** 31
``sorting.sort``          `sort_radix_triton`; short   real types; rows of less than 2 ** 31
                          rows: `sort_triton`
``sorting.topk``          `sort_select_triton`; of     real types; rows of less than 2 ** 31
                          short rows or many: a sort
========================  ===========================  =============================================

NVIDIA's own libraries compute some others (`nvidia_math`).
"""

from __future__ import annotations

from collections.abc import Callable

from genesis.backends.base import NativeCall
from genesis.backends.gpu.library.sort import native_select, native_sort
from genesis.backends.gpu.library.segment_sums import native_rows
from genesis.ir.node import LibraryCall

NATIVE_CALLS: dict[str, Callable[[LibraryCall, str], NativeCall | None]] = {
    "indexing.summed_rows": native_rows,
    "sorting.select": native_select,
    "sorting.sort": native_sort,
    "sorting.topk": native_sort,
}


def native_call(call: LibraryCall, target: str) -> NativeCall | None:
    """Code for a call, for a target like ``sm_90``; None where there is none."""
    found = NATIVE_CALLS.get(call.name)
    return None if found is None else found(call, target)
