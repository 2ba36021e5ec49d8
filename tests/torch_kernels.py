"""Compare kernels with PyTorch, operator by operator, on PyTorch's own sample inputs.

``python -m tests.torch_kernels --only "softmax|norm" --backward`` runs OpInfo samples on the CPU
and looks at every functional operator below autograd: if there is a kernel for it, the kernel
computes the same call, and the results are compared. What has no kernel is listed by how often it
is met.
"""

from __future__ import annotations

import argparse
import itertools
import re
import signal
import warnings
from collections import Counter
from typing import Any

import torch
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from genesis.torch.aten import Unsupported, implementations, name_of
from genesis.torch.convert import arguments, from_torch, to_torch

#: Operators whose results nobody can foresee.
RANDOM = re.compile(
    r"rand|normal|uniform|bernoulli|dropout|multinomial|poisson|empty|exponential"
    r"|cauchy|geometric|log_normal|binomial|gamma|dirichlet|rrelu|fractional"
)


class Compared(TorchDispatchMode):
    """Computes every operator that has a kernel a second time, and compares."""

    def __init__(self) -> None:
        super().__init__()
        self.agreed: Counter[str] = Counter()
        self.missing: Counter[str] = Counter()
        self.unsupported: dict[str, str] = {}
        self.wrong: dict[str, str] = {}

    def __torch_dispatch__(
        self, operator: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = name_of(operator)
        function = implementations.get(name)
        if function is None or operator._schema.is_mutable:
            self.missing[name] += not operator._schema.is_mutable
            return operator(*args, **kwargs)
        before = [
            x.clone() if isinstance(x, torch.Tensor) else x for x in tree_leaves((args, kwargs))
        ]
        want = operator(*args, **kwargs)
        try:
            given, named = arguments(args, kwargs, _leaf)
            got = function(*given, **named)
            self._compare(name, got, want)
            self.agreed[name] += 1
        except Unsupported as error:
            self.unsupported[name] = str(error)
        except Exception as error:  # whatever goes wrong is what is looked for
            shown = [tuple(x.shape) if isinstance(x, torch.Tensor) else x for x in before]
            self.wrong.setdefault(
                name, f"{type(error).__name__}: {str(error)[:400]} for {shown}"[:900]
            )
        return want

    def _compare(self, name: str, got: Any, want: Any) -> None:
        ours = list(got) if isinstance(got, list | tuple) else [got]
        theirs = list(want) if isinstance(want, list | tuple) else [want]
        assert len(ours) == len(theirs), f"{len(ours)} results, expected {len(theirs)}"
        for ours_, theirs_ in zip(ours, theirs, strict=True):
            if not isinstance(theirs_, torch.Tensor):
                if theirs_ is not None:
                    assert ours_ == theirs_
                continue
            if ours_ is None:
                continue
            tensor = to_torch(ours_)
            assert tensor.dtype == theirs_.dtype, f"{tensor.dtype}, expected {theirs_.dtype}"
            assert tensor.shape == theirs_.shape, f"{tensor.shape}, expected {theirs_.shape}"
            if not RANDOM.search(name):
                assert_close(tensor, _resolved(theirs_), equal_nan=True, check_stride=False)


def _resolved(x: torch.Tensor) -> torch.Tensor:
    """The tensor without marks, which PyTorch's own operators would ignore below autograd."""
    x = x.clone() if x._is_zerotensor() else x
    x = x.conj().conj_physical() if x.is_conj() else x
    return x._neg_view().neg() if x.is_neg() else x


def _leaf(x: Any) -> Any:
    if isinstance(x, torch.Tensor):
        return from_torch(_resolved(x))
    if isinstance(x, torch.Generator | torch.device | torch.layout | torch.memory_format):
        return None
    raise Unsupported(f"an argument of type {type(x).__name__}")


def _alarm(*_: Any) -> None:
    raise TimeoutError


def main() -> None:
    """Run the comparison on the operators asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="regular expression on OpInfo names")
    parser.add_argument("--aten", default="", help="regular expression on operators to report")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--backward", action="store_true")
    parser.add_argument("--samples", type=int, default=5)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    from torch.testing._internal.common_methods_invocations import op_db

    dtype = getattr(torch, options.dtype)
    mode = Compared()
    signal.signal(signal.SIGALRM, _alarm)
    for op in op_db:
        name = op.name + ("." + op.variant_test_name if op.variant_test_name else "")
        if not re.search(options.only, name) or dtype not in op.supported_dtypes("cpu"):
            continue
        grad = (
            options.backward
            and op.supports_autograd
            and dtype in op.supported_backward_dtypes("cpu")
        )
        signal.alarm(60)
        try:
            samples = op.sample_inputs("cpu", dtype, requires_grad=grad)
            for s in itertools.islice(samples, options.samples):
                with mode:
                    out = s.output_process_fn_grad(op.op(s.input, *s.args, **s.kwargs))
                    outs = [
                        x
                        for x in tree_leaves(out)
                        if isinstance(x, torch.Tensor) and x.requires_grad
                    ]
                    if grad and outs:
                        torch.autograd.backward(outs, [torch.ones_like(x) for x in outs])
        except TimeoutError:
            mode.wrong.setdefault(name, "timeout")
        except Exception as error:
            print(f"  ({name}: {type(error).__name__} {str(error)[:100]})")
        finally:
            signal.alarm(0)
    shown = [(k, v) for k, v in mode.wrong.items() if re.search(options.aten, k)]
    print(f"{len(mode.agreed)} operators agree, {len(mode.wrong)} do not")
    for name, why in sorted(shown):
        print(f"WRONG {name}: {why}")
    for name, why in sorted(mode.unsupported.items()):
        print(f"UNSUPPORTED {name}: {why}")
    listed = [f"{n} {c}" for n, c in mode.missing.most_common() if re.search(options.aten, n) and c]
    print("MISSING " + ", ".join(listed))


if __name__ == "__main__":
    main()
