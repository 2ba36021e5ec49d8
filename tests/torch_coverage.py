"""The page of PyTorch operators without a kernel: ``python -m tests.torch_coverage`` writes it.

Two lists are compared with the table of kernels: core ATen, the operators that PyTorch promises to
break all others down to, and everything functional that it computes on the CPU without breaking it
down. What has no kernel must have a reason below. `test_torch_coverage` fails where an operator has
none, where a reason has lost its last operator, and where the page is not what would be written.
"""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch._decomp import core_aten_decompositions

from genesis.torch.aten import implementations, name_of

PAGE = Path(__file__).parents[1] / "docs" / "torch-fallback.md"

#: Why operators have no kernel, and which they are. Stars stand for any letters.
REASONS: dict[str, str] = {
    "Numbers for Python, and sizes: no tensor comes out of them.": (
        "_local_scalar_dense is_set_to sym_*"
    ),
    "Assertions and tests of PyTorch's own.": (
        "*_assert_async* _foobar _make_dep_token _test_* hash_tensor"
    ),
    "Sparse and nested layouts, and layouts of libraries: tensors are dense.": (
        "*_to_sparse* *_sparse_* *coo_to_csr *csr_to_coo *jagged* *_nested_* _spdiags to_mkldnn "
        "mkldnn_*"
    ),
    "Quantised types, and products with weights of a few bits.": (
        "*quant* *int4pack* *int8pack* _scaled_mm_v2"
    ),
    "Forms that only PyTorch's own CPU code asks for.": (
        "*slow_conv* _add_relu.* _addmm_activation _fused_sdp_choice _transform_bias_rescale_qkv"
    ),
    "Files.": "from_file",
    "Not written yet.": (
        "*_lanczos2d_* _aminmax* _compute_linear_combination _dirichlet_grad _linalg_det "
        "_linalg_slogdet _linalg_solve_ex _sample_dirichlet _standard_gamma* binomial "
        "linalg__powsum linalg_ldl_* poisson"
    ),
}


def overloads() -> Iterator[Any]:
    """Every overload of every operator of PyTorch's library."""
    for name in torch._C._dispatch_get_all_op_names():
        if name.startswith("aten::"):
            base, _, overload = name.removeprefix("aten::").partition(".")
            packet = getattr(torch.ops.aten, base, None)
            found = getattr(packet, overload or "default", None)
            if found is not None:
                yield found


@cache
def core() -> tuple[str, ...]:
    """The functional operators of core ATen."""
    return _names(op for op in overloads() if torch.Tag.core in op.tags)


@cache
def elementary() -> tuple[str, ...]:
    """The functional operators that PyTorch's CPU kernels compute, and that nothing breaks down."""
    rules = core_aten_decompositions()
    return _names(op for op in overloads() if op not in rules and _has_own_kernel(op))


def _has_own_kernel(op: Any) -> bool:
    name = op.name()
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    return has(name, "CPU") and not has(name, "CompositeImplicitAutograd")


def _names(ops: Iterator[Any]) -> tuple[str, ...]:
    return tuple(sorted({name_of(op) for op in ops if not op._schema.is_mutable}))


def without_kernel(names: tuple[str, ...]) -> tuple[str, ...]:
    """Those of some operators that have none."""
    return tuple(name for name in names if name not in implementations)


def matching(patterns: str, names: tuple[str, ...]) -> list[str]:
    """The operators whose names, without their overloads, one of some patterns describes."""
    return [
        name
        for name in names
        if any(fnmatchcase(name.removeprefix("aten::"), p) for p in patterns.split())
    ]


_HEAD = """\
# What falls back

The operators of PyTorch {version} that have no kernel. Compiled, such an operator divides its
graph: PyTorch computes it between two programs. On the device it is computed on the CPU. Either way
there is a `FallbackWarning`, see [Your PyTorch model on Genesis](torch.md#what-falls-back).
`python -m tests.torch_coverage` writes this page, and a test keeps it true.

| | operators | with a kernel |
| --- | ---: | ---: |"""

_MIDDLE = """
All in all there are {count} kernels: an operator that PyTorch would break down has one, too, where
it is better computed as a whole. Overloads count one by one, and only those that make new tensors:
forms in place and with `out=` are derived from them.

A kernel may leave some arguments to PyTorch; the warning then says why. `genesis.torch.explain`
lists what falls back in a model.

## Without a kernel"""


def page() -> str:
    """The page."""
    version = torch.__version__.split("+")[0]
    lines = [_HEAD.format(version=version)]
    lists = {
        "core ATen: what PyTorch breaks all others down to": core(),
        "what PyTorch computes on the CPU and does not break down": elementary(),
    }
    for described, names in lists.items():
        count = len(names) - len(without_kernel(names))
        lines.append(f"| {described} | {len(names)} | {count} |")
    lines.append(_MIDDLE.format(count=len(implementations)))
    absent = missing()
    for reason, patterns in REASONS.items():
        names = matching(patterns, absent)
        listed = ", ".join(f"`{name.removeprefix('aten::')}`" for name in names)
        lines += ["", f"{reason} {len(names)}: {listed}."]
    return "\n".join(lines) + "\n"


def missing() -> tuple[str, ...]:
    """All operators of both lists that have no kernel."""
    return without_kernel(tuple(sorted({*core(), *elementary()})))


if __name__ == "__main__":
    PAGE.write_text(page())
