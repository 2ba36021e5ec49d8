"""Movement against PyTorch: values, gradients, second gradients, aliasing and errors."""

from typing import Any

import numpy as np
import pytest
import torch
from against_torch import Comparison
from hypothesis import given, settings
from hypothesis import strategies as st

import genesis

ONE: dict[str, Any] = {
    "view": lambda m, x: x.view(6, -1),
    "view of one": lambda m, x: x[0].view(-1),
    "reshape of a transpose": lambda m, x: x.transpose(0, 2).reshape(8, 3),
    "reshape_as": lambda m, x: x.reshape_as(m.zeros(24)),
    "view_as": lambda m, x: x.view_as(m.zeros(4, 6)),
    "flatten": lambda m, x: m.flatten(x, 1),
    "flatten all": lambda m, x: x.flatten(),
    "flatten scalar": lambda m, x: x[0, 0, 0].flatten(),
    "unflatten": lambda m, x: x.unflatten(2, (2, -1)),
    "ravel": lambda m, x: m.ravel(x.permute(2, 0, 1)),
    "permute": lambda m, x: x.permute(2, 0, 1),
    "transpose": lambda m, x: m.transpose(x, 0, -1),
    "swapaxes": lambda m, x: x.swapaxes(1, 2),
    "t": lambda m, x: x[0].t() + x[1].T,
    "mT": lambda m, x: x.mT,
    "movedim": lambda m, x: m.movedim(x, (0, 1), (2, 0)),
    "moveaxis": lambda m, x: m.moveaxis(x, 2, 0),
    "squeeze": lambda m, x: x[:1].squeeze() * x[:, :1].squeeze(1).sum(),
    "squeeze several": lambda m, x: x[:1, :1].squeeze((0, 1, 2)),
    "squeeze none": lambda m, x: x.squeeze(1),
    "unsqueeze": lambda m, x: x.unsqueeze(-1) * x.unsqueeze(1).sum(),
    "expand": lambda m, x: x[:, :1].expand(5, -1, 3, -1),
    "expand_as": lambda m, x: x[:, :1].expand_as(m.zeros(2, 7, 4)),
    "broadcast_to": lambda m, x: m.broadcast_to(x[0], (2, 3, 4)),
    "repeat": lambda m, x: x.repeat(2, 1, 3, 1),
    "repeat as a list": lambda m, x: x[0].repeat([2, 2]),
    "tile": lambda m, x: m.tile(x, (2, 2)) + x.tile(2, 1, 1, 1, 1)[0, 0].repeat(1, 2, 2),
    "repeat_interleave": lambda m, x: m.repeat_interleave(x, 3, dim=1),
    "repeat_interleave flat": lambda m, x: x.repeat_interleave(2),
    "repeat_interleave counts": lambda m, x: m.repeat_interleave(x, m.tensor([2, 0, 3]), dim=1),
    "cat": lambda m, x: m.cat([x, x[:, :1], x[:, :2] * 2], 1),
    "cat with empty": lambda m, x: m.cat([m.zeros(0, dtype=m.float64), x], -1),
    "cat of nothing much": lambda m, x: m.cat([x[:, :0], x], 1),
    "stack": lambda m, x: m.stack([x, x * 2, x * 3], -1),
    "hstack": lambda m, x: m.hstack([x, x]) + m.hstack([x[0, 0, :2], x[0, 0, :2]]),
    "vstack": lambda m, x: m.vstack([x[0, 0], x[0]]),
    "dstack": lambda m, x: m.dstack([x[0, 0], x[0, 1], x[1, 1]]),
    "column_stack": lambda m, x: m.column_stack([x[0], x[0, :, 0]]),
    "split": lambda m, x: x.split(2, 2) + x.split([1, 2], 1) + m.split(x, 3, dim=2),
    "chunk": lambda m, x: x.chunk(2, 1) + m.chunk(x, 5, 2),
    "tensor_split": lambda m, x: m.tensor_split(x, 3, 2) + m.tensor_split(x, (1, -1), 2),
    "hsplit": lambda m, x: m.hsplit(x, 3) + m.vsplit(x, 2) + m.dsplit(x, [1, 3]),
    "unbind": lambda m, x: x.unbind(1),
    "roll": lambda m, x: m.roll(x, 5) + m.roll(x, (1, -2), (0, 2)) + x.roll(4, 1),
    "flip": lambda m, x: x.flip(0) + m.flip(x, (1, 2)) + x.flip([-1]),
    "fliplr": lambda m, x: m.fliplr(x) + m.flipud(x),
    "rot90": lambda m, x: m.rot90(x[0, :3, :3]) + m.rot90(x[0, :3, :3], 2),
    "rot90 back": lambda m, x: m.rot90(x, -1, (0, 2)),
    "rot90 none": lambda m, x: m.rot90(x, 4),
    "narrow": lambda m, x: x.narrow(2, 1, 2) + x.narrow(-1, -3, 2),
    "select": lambda m, x: x.select(1, -1) + m.select(x, 1, 0),
    "diagonal": lambda m, x: m.diagonal(x, 1, 1, 2),
    "diagonal below": lambda m, x: x.diagonal(-2, 1, 2),
    "diagonal of others": lambda m, x: x.diagonal(0, 2, 0),
    "diagonal of nothing": lambda m, x: x.diagonal(9, 1, 2),
    "diag": lambda m, x: m.diag(x[0], 1) * x[1, 0].diag(-1).sum(),
    "diag matrix": lambda m, x: m.diag(x[0, 0], 2),
    "diag_embed": lambda m, x: m.diag_embed(x, -1, 0, 2),
    "diagflat": lambda m, x: m.diagflat(x[0, :2], 1),
    "diagonal_scatter": lambda m, x: m.diagonal_scatter(x, x[:, :, 0] * 3, 0, 1, 2),
    "select_scatter": lambda m, x: m.select_scatter(x, x[:, 0] * 3, 1, 2),
    "slice_scatter": lambda m, x: m.slice_scatter(x, x[:, :, :2] * 3, 2, 0, 4, 2),
    "tril": lambda m, x: m.tril(x, -1) + x.tril() * 2,
    "triu": lambda m, x: m.triu(x, 1) + x.triu() * 2,
    "unfold": lambda m, x: x.unfold(2, 3, 1),
    "unfold apart": lambda m, x: x.unfold(1, 1, 2),
    "as_strided": lambda m, x: m.as_strided(x.clone(), (3, 2), (4, 1), 5),
    "as_strided apart": lambda m, x: m.as_strided(x.clone(), (2, 3, 2), (12, 4, 2), 1),
    "as_strided permuted": lambda m, x: m.as_strided(x.clone(), (4, 2, 3), (1, 12, 4)),
    "as_strided overlapping": lambda m, x: m.as_strided(x.clone(), (5, 4), (2, 1), 3),
    "as_strided repeated": lambda m, x: m.as_strided(x.clone(), (3, 1, 4), (0, 7, 1), 20),
    "as_strided of a view": lambda m, x: x.clone()[1].as_strided((3,), (4,)),
    "meshgrid": lambda m, x: m.meshgrid(x[0, 0], x[0, 1, :2], x[0, 0, :3], indexing="ij"),
    "meshgrid xy": lambda m, x: m.meshgrid(x[0, 0], x[0, 1, :2], indexing="xy"),
    "atleast": lambda m, x: (
        m.atleast_1d(x[0, 0, 0]),
        m.atleast_2d(x[0, 0]),
        m.atleast_3d(x[0, 0]),
        *m.atleast_3d(x[0], x[0, 0, 0]),
    ),
    "block_diag": lambda m, x: m.block_diag(x[0], x[0, 1, 1], x[1, 0, :2], x[1]),
    "broadcast_tensors": lambda m, x: m.broadcast_tensors(x[0], x[:, :1]),
    "cartesian_prod": lambda m, x: m.cartesian_prod(x[0, 0], x[0, 1, :2], x[0, 0, 1:]),
    "combinations": lambda m, x: m.combinations(x[0, 0], 3),
    "combinations again": lambda m, x: m.combinations(x[0, 0], with_replacement=True),
    "clone": lambda m, x: x.clone() * m.clone(x),
    "contiguous": lambda m, x: x.transpose(0, 1).contiguous(),
    "view of a broadcast": lambda m, x: x[:, None].expand(2, 5, 3, 4)[:, 1].reshape(-1, 4),
    "steps": lambda m, x: x[:, ::2][:, 1:, None].transpose(0, 2)[..., 1::2],
}  # fmt: skip


def test_movement(rng: np.random.Generator) -> None:
    comparison = Comparison()
    x = rng.standard_normal((2, 3, 4))
    for name, function in ONE.items():
        comparison.function(name, function, x)
    comparison.check()


def test_movement_of_other_types(rng: np.random.Generator) -> None:
    comparison = Comparison()
    chosen = ("reshape of a transpose", "repeat", "cat", "roll", "flip", "diag_embed", "tril",
              "diagonal", "as_strided", "steps", "expand")  # fmt: skip
    real = rng.standard_normal((2, 3, 4))
    complex_ = real + 1j * rng.standard_normal((2, 3, 4))
    for name in chosen:
        comparison.function(name, ONE[name], complex_, order=1)
        if name != "cat":
            comparison.function(name, ONE[name], rng.integers(0, 9, (2, 3, 4)), order=1)
            comparison.function(name, ONE[name], real > 0, order=1)
        comparison.function(name, ONE[name], real.astype(np.float32), order=1)
    comparison.check(rtol=1e-5, atol=1e-6)


def test_empty_and_scalar_shapes() -> None:
    comparison = Comparison()
    functions: dict[str, Any] = {
        "flatten": lambda m, x: x.flatten(),
        "reshape": lambda m, x: x.reshape(5, 0),
        "cat": lambda m, x: m.cat([x, x], 1),
        "split": lambda m, x: x.split(2, 1),
        "chunk": lambda m, x: x.chunk(2, 0),
        "flip": lambda m, x: x.flip(0),
        "roll": lambda m, x: x.roll(3, 0),
        "tril": lambda m, x: x.tril(),
        "diagonal": lambda m, x: x.diagonal(),
        "repeat": lambda m, x: x.repeat(2, 3),
        "sum of an expansion": lambda m, x: x[:, :1].expand(0, 7),
    }
    for name, function in functions.items():
        comparison.function(name, function, np.zeros((0, 3)), order=1)
    scalars: dict[str, Any] = {
        "unsqueeze": lambda m, x: x.unsqueeze(0),
        "squeeze": lambda m, x: x.squeeze(),
        "expand": lambda m, x: x.expand(2, 3),
        "repeat": lambda m, x: x.repeat(3),
        "stack": lambda m, x: m.stack([x, x]),
        "transpose": lambda m, x: x.transpose(0, -1),
        "ravel": lambda m, x: x.ravel(),
    }
    for name, function in scalars.items():
        comparison.function(name, function, np.array(1.5))
    comparison.check()


#: Views: writing to the result is seen by the tensor it came from.
VIEWS: dict[str, Any] = {
    "view": lambda x: x.view(12, 2),
    "permute": lambda x: x.permute(2, 0, 1),
    "slice": lambda x: x[:, ::2, 1:3],
    "select": lambda x: x.select(1, 2),
    "diagonal": lambda x: x.diagonal(1, 1, 2),
    "diagonal of an inner": lambda x: x[:, 1:, :3].diagonal(-1, 2, 1),
    "split": lambda x: x.split(2, 2)[1],
    "unbind": lambda x: x.unbind(1)[1],
    "unsqueeze": lambda x: x.unsqueeze(1)[:, 0, 1],
    "narrow": lambda x: x.narrow(1, 1, 2),
    "movedim": lambda x: x.movedim(0, 2)[0],
    "as_strided": lambda x: x.as_strided((2, 3, 2), (12, 4, 2), 1),
    "a view of a view": lambda x: x[1].t()[1:3].unflatten(1, (3, 1)).squeeze(-1),
}


def test_views_alias_and_the_tape_follows(rng: np.random.Generator) -> None:
    data, new = rng.standard_normal((2, 3, 4)), rng.standard_normal(100)
    comparison = Comparison()
    for name, view in VIEWS.items():

        def written(m: Any, x: Any, view: Any = view) -> Any:
            base = x * 2
            seen = view(base)
            other = base[0]
            seen.mul_(3)
            seen += m.tensor(new[: seen.numel()]).reshape(seen.shape) * x.sum()
            return base * base, seen * 2, other

        if name not in ("split", "unbind"):  # PyTorch refuses to differentiate such writes
            comparison.function(name, written, data)
        plain = [m.tensor(data) for m in (genesis, torch)]
        for x in plain:
            view(x)[...] = 7
        comparison.add(name, plain[0], plain[1])
    comparison.check()


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_as_strided_is_a_view_whatever_the_strides(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(0, 4), max_size=4))
    strides = data.draw(st.lists(st.integers(0, 5), min_size=len(sizes), max_size=len(sizes)))
    offset = data.draw(st.integers(0, 4))
    reach = offset + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))
    found = []
    for m in (genesis, torch):
        leaf = m.arange(reach + 3.0 if 0 not in sizes else 8.0).requires_grad_()
        x = leaf * 1
        seen = x.as_strided(sizes, strides, offset)
        weights = m.arange(float(seen.numel())).reshape(sizes)
        (seen * seen * weights).sum().backward()
        with m.no_grad():
            x.mul_(2)
        found.append((seen.tolist(), leaf.grad.tolist()))
        written = leaf.detach().clone()
        try:
            written.as_strided(sizes, strides, offset).add_(1)
        except (RuntimeError, TypeError, ValueError):
            found[-1] += (None,)
        else:
            found[-1] += (written.tolist(),)
    assert found[0][:2] == found[1][:2]
    assert found[0][2] in (None, found[1][2])


def test_copies_do_not_alias() -> None:
    x = genesis.arange(6.0).reshape(2, 3)
    copies = [x.t().reshape(6), x.flip(0), x.repeat(1, 1), x[:1].repeat(2, 1), x.clone(), x.diag()]
    copies += [x.roll(1, 0), x.repeat_interleave(1, 0), genesis.cat([x]), x.tril(1)]
    for y in copies:
        y.zero_()
    assert x.tolist() == [[0, 1, 2], [3, 4, 5]]


def test_memory_layout() -> None:
    x, y = genesis.zeros(2, 3, 4), torch.zeros(2, 3, 4)
    for a, b in ((x, y), (x.transpose(0, 2), y.transpose(0, 2)), (x[:, 1:, ::2], y[:, 1:, ::2])):
        assert a.stride() == b.stride() and a.stride(1) == b.stride(1)
        assert a.is_contiguous() == b.is_contiguous()
        assert a.storage_offset() == b.storage_offset()
    assert x.contiguous() is x
    assert x[:, :1].expand(2, 5, 4).stride() == y[:, :1].expand(2, 5, 4).stride()


ERRORS: dict[str, Any] = {
    "view of a transpose": lambda m, x: x.t().view(-1),
    "view that does not fit": lambda m, x: x.view(5),
    "two unknown sizes": lambda m, x: x.reshape(-1, -1),
    "expand": lambda m, x: x.expand(5, 3),
    "expand to fewer": lambda m, x: x.expand(3),
    "permute twice": lambda m, x: x.permute(0, 0),
    "permute too few": lambda m, x: x.permute(0),
    "unsqueeze": lambda m, x: x.unsqueeze(4),
    "cat of different shapes": lambda m, x: m.cat([x, x[:, :1]], 0),
    "cat of nothing": lambda m, x: m.cat([]),
    "cat of scalars": lambda m, x: m.cat([x[0, 0], x[0, 1]]),
    "stack of different shapes": lambda m, x: m.stack([x, x[0]]),
    "split": lambda m, x: x.split([1, 1], 1),
    "narrow": lambda m, x: x.narrow(1, 2, 2),
    "select": lambda m, x: x.select(1, 3),
    "flatten": lambda m, x: x.flatten(1, 0),
    "unflatten": lambda m, x: x.unflatten(1, (2, 2)),
    "repeat": lambda m, x: x.repeat(2),
    "diagonal of one": lambda m, x: x.diagonal(0, 1, 1),
    "tril of a vector": lambda m, x: x[0].tril(),
    "unfold": lambda m, x: x.unfold(0, 5, 1),
    "as_strided beyond": lambda m, x: x.as_strided((7,), (1,)),
    "flip twice": lambda m, x: x.flip(0, 0),
    "meshgrid": lambda m, x: m.meshgrid(x, indexing="ij"),
    "t": lambda m, x: x[None].t(),
    "movedim": lambda m, x: x.movedim((0, 0), (0, 1)),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name: str) -> None:
    for module in (genesis, torch):
        x = module.zeros(2, 3)
        with pytest.raises((RuntimeError, ValueError, IndexError, TypeError)):
            ERRORS[name](module, x)


@st.composite
def _chains(draw: st.DrawFn) -> Any:
    """A shape, and movements that fit it one after the other."""
    shape = tuple(draw(st.lists(st.integers(0, 4), min_size=1, max_size=4)))
    x = torch.zeros(shape)
    chain: list[tuple[str, Any]] = []
    for _ in range(draw(st.integers(1, 5))):
        kind = draw(
            st.sampled_from(["permute", "slice", "unsqueeze", "squeeze", "expand", "flatten"])
        )
        argument: Any = None
        if kind == "permute":
            argument = tuple(draw(st.permutations(range(x.ndim))))
        elif kind == "slice":
            bound = st.integers(-4, 4) | st.none()
            one = st.builds(slice, bound, bound, st.integers(1, 3)) | st.just(slice(None))
            argument = tuple(draw(st.lists(one, min_size=x.ndim, max_size=x.ndim)))
        elif kind == "unsqueeze":
            argument = draw(st.integers(0, x.ndim))
        elif kind == "expand":
            argument = tuple(draw(st.integers(1, 3)) if n == 1 else n for n in x.shape)
        elif kind == "flatten":
            argument = (x.numel(),)
        chain.append((kind, argument))
        x = _moved(x, kind, argument)
        if x.ndim == 0:
            break
    return shape, chain


def _moved(x: Any, kind: str, argument: Any) -> Any:
    match kind:
        case "permute":
            return x.permute(argument)
        case "slice":
            return x[argument]
        case "unsqueeze":
            return x.unsqueeze(argument)
        case "squeeze":
            return x.squeeze()
        case "expand":
            return x.expand(argument)
        case _:
            return x.reshape(argument)


@settings(max_examples=300)
@given(_chains())
def test_layouts(case: Any) -> None:
    """Where elements lie, and what can be seen without a copy, is as in PyTorch."""
    shape, chain = case
    mine, theirs = genesis.zeros(shape), torch.zeros(shape)
    for kind, argument in chain:
        mine, theirs = _moved(mine, kind, argument), _moved(theirs, kind, argument)
        assert tuple(mine.shape) == tuple(theirs.shape)
        assert mine.is_contiguous() == theirs.is_contiguous()
        if theirs.numel():
            far = [d for d, n in enumerate(theirs.shape) if n > 1]
            assert [mine.stride(d) for d in far] == [theirs.stride(d) for d in far]
            assert mine.storage_offset() == theirs.storage_offset()
    shares = theirs.reshape(-1).data_ptr() == theirs.data_ptr() and theirs.numel() > 0
    if theirs.numel():
        assert (mine.reshape(-1).array.storage is mine.array.storage) == shares
