"""Hand-written code for operations of the library, each listed here with its contract.

What these kernels compute is what the function of the same name in `genesis.ir.numpy_library` does,
for any contents of their operands; they access their operands, results and scratch memory only
within the extents they are given. `tests/backends/test_gpu_library.py` holds them to that. They are
not proven, so nothing but the entries of this table may take a call.

==================  ========================  ====================================================
operation           code                      limits
==================  ========================  ====================================================
``sorting.select``  `rows`: all are sorted    real types; rows of less than 2 ** 31 elements
``sorting.sort``    `rows`: runs are merged   real types; rows of less than 2 ** 31 elements
``sorting.topk``    `rows`: runs keep k each  real types; rows of less than 2 ** 31 elements
==================  ========================  ====================================================
"""

from __future__ import annotations

from collections.abc import Callable

from genesis.backends.base import NativeCall
from genesis.backends.gpu.library.sort import claim_select, claim_sort
from genesis.ir.node import Call

NATIVE_CALLS: dict[str, Callable[[Call, str], NativeCall | None]] = {
    "sorting.select": claim_select,
    "sorting.sort": claim_sort,
    "sorting.topk": claim_sort,
}


def native_call(call: Call, target: str) -> NativeCall | None:
    """Code for a call, for a target like ``sm_90``; None where there is none."""
    found = NATIVE_CALLS.get(call.name)
    return None if found is None else found(call, target)
