"""Wrong operands: a function either builds something or raises one clear error at the call.

A valid call of every function is taken from the sweep's table, and one argument at a time is
spoiled: its number of axes, its sizes, its dtype, the axis, an option, an index. Indices are looked
at when a result is computed; nothing else may fail only there.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import genesis
from genesis import functional, nn, optim
from genesis import ndarray as nd
from genesis.ndarray.core.ndarray import NDArray
from tests.operator_draw import Draw
from tests.operator_table import CASES, ELEMENTWISE

NAMES = sorted([*CASES, *ELEMENTWISE])
Call = tuple[tuple[Any, ...], dict[str, Any]]
#: An error begins with the operation: the function, or one that it is composed of.
NAMED = re.compile(r"[a-z_0-9.]+: .|.* is not a Genesis dtype")
FAR = 1000  # beyond every axis


class Recorded(Exception):
    """Ends a case at its first call."""


def takes_dim(function: Any) -> bool:
    """Whether a tensor and a dim are all that a function needs."""
    if not inspect.isfunction(function):
        return False
    (first, *others) = inspect.signature(function).parameters.values()
    needed = {p.name for p in others if p.default is p.empty and p.kind is not p.VAR_POSITIONAL}
    known = {p.name for p in others}
    return "dim" in known and "repeats" not in known and needed <= {"dim"} and first.name == "input"


def home(name: str) -> Any:
    """The namespace of a function."""
    space, _, _ = name.rpartition(".")
    return getattr(nd, space) if space else nd


def valid_call(name: str, monkeypatch: pytest.MonkeyPatch, seed: int = 3) -> Call:
    """The arguments of the first call that the table makes."""
    d = Draw(seed)
    if name in ELEMENTWISE:
        entry = ELEMENTWISE[name]
        dtype = "float32" if "float32" in entry.types else "int32"
        return tuple(d.array((3, 4), dtype).a for _ in range(entry.arity)), {}
    calls: list[Call] = []

    def record(*args: Any, **kwargs: Any) -> None:
        calls.append((args, kwargs))
        raise Recorded

    with monkeypatch.context() as patched:
        patched.setattr(home(name), name.rpartition(".")[2], record)
        with pytest.raises(Recorded):
            CASES[name](d)
    return calls[0]


def spoiled(value: Any) -> Iterator[Any]:
    """What could be given by mistake instead of an argument."""
    if isinstance(value, NDArray):
        yield nd.zeros((), value.dtype)
        yield nd.zeros((0,) * max(value.ndim, 1), value.dtype)
        yield nd.zeros((2,) * 7, value.dtype)
        yield nd.zeros([int(n) + 1 for n in value.shape], value.dtype)
        for dtype in ("bool", "int8", "float32", "complex64"):
            yield value.astype("bool").astype(dtype)
    elif isinstance(value, int) and not isinstance(value, bool):
        yield from (99, -99, 0)
    elif isinstance(value, str):
        yield "no such thing"
    elif isinstance(value, tuple | list) and value and all(isinstance(n, int) for n in value):
        yield from ((), (*value, value[-1]), (99,) * len(value), (-1,) * len(value))


def outside(value: Any) -> Iterator[Any]:
    """An index, if this may be one, beyond either end of every axis."""
    if isinstance(value, NDArray) and value.dtype.is_integer and value.dtype.bits >= 32:
        yield from (value + FAR, value - FAR)


def with_one_changed(call: Call, change: Any) -> Iterator[Call]:
    args, kwargs = call
    for k, value in enumerate(args):
        for wrong in change(value):
            yield (*args[:k], wrong, *args[k + 1 :]), kwargs
    for key, value in kwargs.items():
        for wrong in change(value):
            yield args, {**kwargs, key: wrong}


def results(found: Any) -> list[NDArray]:
    if isinstance(found, NDArray):
        return [found]
    return [x for part in found for x in results(part)] if isinstance(found, tuple | list) else []


def described(name: str, call: Call) -> str:
    def one(x: Any) -> str:
        return f"{x.dtype}{x.shape}" if isinstance(x, NDArray) else repr(x)

    args, kwargs = call
    listed = [*map(one, args), *(f"{k}={one(v)}" for k, v in kwargs.items())]
    return f"{name}({', '.join(listed)})"


@pytest.mark.parametrize("name", NAMES)
def test_wrong_operands(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    call = valid_call(name, monkeypatch)
    function = getattr(home(name), name.rpartition(".")[2])
    for change in (spoiled, outside):
        for args, kwargs in with_one_changed(call, change):
            try:
                found = function(*args, **kwargs)
                if change is outside:
                    nd.realize(*results(found))
            except (TypeError, ValueError, IndexError) as error:
                text = f"{described(name, (args, kwargs))}: {type(error).__name__}: {error}"
                assert NAMED.match(str(error)), text
            except Exception as error:
                text = f"{described(name, (args, kwargs))}: {type(error).__name__}: {error}"
                raise AssertionError(text) from error


#: Functions and an argument that is a position on an axis, by its place.
INDEXED = {
    "gather": 1, "take": 1, "take_along_axis": 1, "index_select": 1, "embedding": 1,
    "embedding_gradient": 1, "scatter": 1, "scatter_add": 1, "scatter_reduce": 1, "index_add": 1,
    "index_copy": 1, "index_fill": 1, "index_reduce": 1, "put": 1, "one_hot": 0, "segment_sum": 1,
    "segment_mean": 1, "segment_max": 1, "segment_min": 1, "unravel_index": 0,
    "ravel_multi_index": 0, "max_unpool2d": 1,
}  # fmt: skip


@pytest.mark.parametrize("name", INDEXED)
def test_index_out_of_range(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is an IndexError, on both sides, whatever else the operation does."""
    k = INDEXED[name]
    drawn = (valid_call(name, monkeypatch, seed) for seed in range(99))
    args, kwargs = next(call for call in drawn if all(x.size for x in results(call[0][k])))
    for side in (FAR, -FAR):
        index = args[k]
        wrong = [x + side for x in index] if isinstance(index, list) else index + side
        with pytest.raises(IndexError, match=r": index -?\d+ is out of range for axis \d of size"):
            nd.realize(*results(getattr(nd, name)(*args[:k], wrong, *args[k + 1 :], **kwargs)))


# ---- functions of tensors: the name that was called, and its words


@pytest.mark.parametrize(
    "name",
    [n for n in functional.__all__ if takes_dim(getattr(functional, n))],
)
def test_a_dim_that_does_not_exist(name: str) -> None:
    """The error names the function, its argument and what a tensor has, whatever computes it."""
    function = getattr(functional, name)
    own = function.__name__  # an alias speaks by the name of what it is
    with pytest.raises(IndexError, match=rf"^{own}: dim 9 does not exist in a tensor of \d dim"):
        function(genesis.ones(3, 3), dim=9)


WRONG_CALLS: dict[str, Any] = {
    "cat: shapes .* may differ only at dim 0": lambda x: genesis.cat([x, x[:, :2]]),
    "hstack: shapes .* dim 1": lambda x: genesis.hstack([x, x[:2]]),
    "sum: dim 5 does not exist in a tensor of 2 dimensions": lambda x: x.sum(dim=5),
    "mul: shapes .* differ at dim -1": lambda x: x * x[:, :2],
    "addmm: shapes .* inner sizes 3 and 2": lambda x: genesis.addmm(x, x, x[:2]),
    "addmm: needs a matrix": lambda x: genesis.addmm(x, x, x[0]),
    "embedding: positions must be integers": lambda x: nn.functional.embedding(x, x),
    "conv2d: needs an input": lambda x: nn.Conv2d(1, 1, 2)(x[0]),
    "conv2d: .*channels": lambda x: nn.Conv2d(2, 1, 2)(genesis.ones(1, 3, 4, 4)),
    "max_pool2d: needs 4 dimensions": lambda x: nn.MaxPool2d(2)(x[0]),
    "lp_pool2d: kernel_size .* is for 3 dimensions": lambda x: nn.LPPool2d(2, (1, 2, 3))(x),
    "mish: not defined for complex64": lambda x: nn.Mish()(x * 1j),
    "transpose: dim 4": lambda x: x.transpose(0, 4),
    "select: dim 3": lambda x: x.select(3, 0),
    "cosine_similarity: dim 4": lambda x: nn.CosineSimilarity(4)(x, x),
    "linalg.solve: ": lambda x: functional.linalg.solve(x[:2], x),
    "abs: not defined for bool; cast with .to first": lambda x: abs(x > 0),
    "Threshold: missing a required argument: 'threshold'": lambda x: nn.Threshold(),
    "ReLU: got an unexpected keyword argument 'p'": lambda x: nn.ReLU(p=1),
    "zeros: sizes must not be negative": lambda x: genesis.zeros(-1),
    "ones: sizes are integers": lambda x: genesis.ones("x"),
    "full: fill_value is one number, not a str": lambda x: genesis.full((2,), "x"),
    "zeros_like: expected a tensor, got int": lambda x: genesis.zeros_like(3),
    "randint: there are none from 5 to below 2": lambda x: genesis.randint(5, 2, (3,)),
    "randperm: sizes must not be negative": lambda x: genesis.randperm(-1),
    "view: 9 elements": lambda x: x.view(7),
    "index 9 is out of range for dim 0 of size 3": lambda x: x[9],
    "3 indices for a tensor of shape": lambda x: x[0, 0, 0],
    "assignment: shapes .* differ at dim -1": lambda x: x.__setitem__(0, genesis.ones(5)),
    "quantile: q is a fraction from 0 to 1, not 2.0": lambda x: x.quantile(2.0),
    "gumbel_softmax: dim 9 does not": lambda x: nn.functional.gumbel_softmax(x, dim=9),
    "init: a tensor of shape .3,. has no fan_in": lambda x: nn.init.xavier_uniform_(x[0]),
    "parameters are a tensor or several, not int": lambda x: nn.utils.clip_grad_norm_(3, 1.0),
    "Adam: a group needs 'params', and has .'lr'": lambda x: optim.Adam([{"lr": 1}]),
    "RMSprop: alpha is -1; it must not be": lambda x: optim.RMSprop([x], alpha=-1),
    "load_state_dict: needs 'param_groups' and 'state'": lambda x: optim.SGD(
        [x], lr=0.1
    ).load_state_dict({"x": 1}),
    "LambdaLR: lr_lambda has 2 values": lambda x: optim.lr_scheduler.LambdaLR(
        optim.SGD([x], lr=0.1), [abs, abs]
    ),
    "MultiStepLR: milestones are several": lambda x: optim.lr_scheduler.MultiStepLR(
        optim.SGD([x], lr=0.1), 3
    ),  # type: ignore[arg-type]
    "genesis.jit: 3 is no function": lambda x: genesis.jit(3),  # type: ignore[call-overload]
    "manual_seed: the seed is an integer, not 'x'": lambda x: genesis.manual_seed("x"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("text", WRONG_CALLS)
def test_errors_name_what_was_called(text: str) -> None:
    with pytest.raises((IndexError, TypeError, ValueError), match=f"^{text}"):
        WRONG_CALLS[text](genesis.ones(3, 3))


@pytest.mark.parametrize(
    ("layer", "text"),
    [
        (nn.Linear(5, 6), r"in Linear\(in_features=5, out_features=6"),
        (nn.Sequential(nn.ReLU(), nn.Conv2d(1, 1, 2)), r"in Conv2d\(1, 1"),
        (nn.Softmax(dim=9), r"in Softmax\(dim=9\)"),
    ],
)
def test_errors_say_which_layer_they_are_from(layer: nn.Module, text: str) -> None:
    with pytest.raises((IndexError, ValueError)) as caught:
        layer(genesis.ones(3, 3))
    (note,) = caught.value.__notes__
    assert re.match(text, note), note


def test_a_module_of_the_user_adds_nothing() -> None:
    class Mine(nn.Module):
        def forward(self, x: Any) -> Any:
            raise ValueError("mine: along an axis")

    with pytest.raises(ValueError, match=r"^mine: along an axis$"):
        Mine()(genesis.ones(3))


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no such folder: '.*nowhere'"):
        genesis.save({"x": genesis.ones(2)}, tmp_path / "nowhere" / "x.safetensors")


def test_arrays_have_axes() -> None:
    """What is worded for tensors is left alone where arrays are meant."""
    with pytest.raises(IndexError, match="sum: axis 5 does not exist in an array of 2 axes"):
        nd.sum(nd.ones((3, 3)), 5)
