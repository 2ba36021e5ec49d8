"""Hand-written code for operations of the library, each listed here with its contract.

What these kernels compute is what the function of the same name in `genesis.ir.numpy_library` does,
for any contents of their operands; they access their operands, results and scratch memory only
within the extents they are given, and give the same bits on any number of threads.
`tests/backends/test_library.py` holds them to that. They are not proven, so nothing but the entries
of this table may take a call.

==================  ===========================  =============================================
operation           code                         limits
==================  ===========================  =============================================
``sorting.select``  `select`: radix selection    real types; rows of up to `sort.LONGEST` elements
``sorting.sort``    `merge`; `sort`: LSD radix   real types; rows of up to `sort.LONGEST` elements
``sorting.topk``    `topk`: filter and sort      real types; rows of up to `sort.LONGEST` elements
==================  ===========================  =============================================
"""

from __future__ import annotations

from collections.abc import Callable

from genesis.backends.base import NativeCall
from genesis.backends.cpu.library.select import native_select
from genesis.backends.cpu.library.sort import native_sort
from genesis.backends.cpu.library.topk import native_topk
from genesis.ir.node import LibraryCall

NATIVE_CALLS: dict[str, Callable[[LibraryCall], NativeCall | None]] = {
    "sorting.select": native_select,
    "sorting.sort": native_sort,
    "sorting.topk": native_topk,
}


def native_call(call: LibraryCall) -> NativeCall | None:
    """Native code for a call; None where there is none."""
    found = NATIVE_CALLS.get(call.name)
    return None if found is None else found(call)
