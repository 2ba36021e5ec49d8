"""Every public function of arrays against PyTorch or NumPy: types, layouts, odd shapes, extremes.

A name in the namespace that `operator_table` does not know fails the first test.
"""

from inspect import isfunction
from types import ModuleType

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from genesis import ndarray as nd
from tests.operator_draw import HALVES, Draw
from tests.operator_table import CASES, ELEMENTWISE, EXEMPT, Elementwise

SEEDS = st.integers(0, 1 << 32)
FEW = settings(max_examples=2, phases=[Phase.generate])  # a seed does not become simpler
#: Cases are run in groups, each realised at once.
GROUPS = [sorted(CASES)[k::8] for k in range(8)]
TYPES = sorted({dtype for e in ELEMENTWISE.values() for dtype in e.types})


def test_every_function_is_in_the_table() -> None:
    known = [*CASES, *ELEMENTWISE, *EXEMPT]
    assert len(known) == len(set(known))
    names = set(nd.__all__)
    names |= {f"fft.{name}" for name, f in vars(nd.fft).items() if is_public(f, nd.fft)}
    names |= {f"linalg.{n}" for n in nd.linalg.__all__ if isfunction(getattr(nd.linalg, n))}
    assert names == set(known)


def is_public(thing: object, module: ModuleType) -> bool:
    """Whether this is a public function that a module defines."""
    return isfunction(thing) and thing.__module__ == module.__name__ and thing.__name__[0] != "_"


def test_results_without_elements_beside_others() -> None:
    """What only an empty result reads is no input of the program that computes the rest."""
    x, nothing = np.arange(24.0).reshape(2, 3, 4), nd.array(np.zeros((3, 0)))
    taken = nd.take(nd.array(x), nd.array([2, 0]), axis=1) * 2
    empty = nothing * 2.5 + 1
    nd.realize(taken, empty)
    np.testing.assert_array_equal(taken.numpy(), x[:, [2, 0]] * 2)
    assert empty.numpy().shape == (3, 0)


def reference(entry: Elementwise, operands: list[torch.Tensor]) -> torch.Tensor:
    """PyTorch's result, in float64 where that is what rounding to fewer bits is compared with."""
    if entry.wide and operands[0].dtype.is_floating_point:
        operands = [x.double() for x in operands]
    return entry.reference(*operands)


@pytest.mark.parametrize("dtype", TYPES)
@FEW
@given(seed=SEEDS)
def test_elementwise(dtype: str, seed: int) -> None:
    d = Draw(seed)
    shape = d.shape(1)
    for special in (False, True):
        wide = [d.array(shape, dtype, special), d.array(shape[1:], dtype, special)]
        xs = [*wide, d.array((*shape[:-1], 1), dtype, special)]
        for name, entry in ELEMENTWISE.items():
            if dtype not in entry.types or special > entry.special:
                continue
            d.name = name
            mine, theirs = [x.a for x in xs], [x.t for x in xs]
            with np.errstate(all="ignore"):
                want = reference(entry, theirs[: entry.arity])
            half = dtype in HALVES and entry.wide
            got = getattr(nd, name)(*mine[: entry.arity])
            d.same(got, want, 1, cast=entry.wide or half)
    d.check()


@pytest.mark.parametrize("names", GROUPS, ids=lambda names: names[0])
@FEW
@given(seed=SEEDS)
def test_others(names: list[str], seed: int) -> None:
    d = Draw(seed)
    for name in names:
        d.name = name
        CASES[name](d)
    d.check()
