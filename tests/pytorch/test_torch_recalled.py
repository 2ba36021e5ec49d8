"""Operators that were called before, whose graphs are copied: the same numbers in any order."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from processes import run

import genesis.torch  # noqa: F401
from genesis.ndarray.core import pending_graph

ROUNDS = 5  # the second is recorded, those after it are copied

Pool = list[torch.Tensor]


def _write(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x[0] = y[-1]
    return x


def _again(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.data = y.data.clone()
    return x


#: Of two matrices of 4 x 4; some write to the first.
OPERATIONS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "add": lambda x, y: x + y,
    "mul": lambda x, y: x * y,
    "matmul": lambda x, y: x @ y / 4,
    "transposed": lambda x, y: x.t() @ y / 4,
    "linear": lambda x, y: torch.nn.functional.linear(x, y, y[0]) / 4,
    "softmax": lambda x, y: torch.softmax(x, -1) * y,
    "sum": lambda x, y: x.sum(0, keepdim=True) + y,
    "tanh": lambda x, y: torch.tanh(x),
    "t": lambda x, y: x.t(),
    "row": lambda x, y: x[1].expand(4, 4),
    "rows": lambda x, y: torch.cat([x[2:], y[:2]]),
    "steps": lambda x, y: x[::2, ::2].repeat(2, 2),
    "flat": lambda x, y: x.reshape(2, 8).t().reshape(4, 4),
    "overlapping": lambda x, y: x.contiguous().as_strided((4, 4), (1, 1)).clone(),
    "number": lambda x, y: x + float(y.mean()),
    "where": lambda x, y: torch.where(x > y, x, -y),
    "chunk": lambda x, y: torch.cat(x.chunk(2, 1)[::-1], 1),
    "norm": lambda x, y: torch.nn.functional.layer_norm(x, (4,), y[0], y[1]),
    "double": lambda x, y: (x.double() * 2).float(),
    "detached": lambda x, y: x.detach() + 1,
    "write": _write,
    "again": _again,
    "add_": lambda x, y: x.add_(y),
    "t add_": lambda x, y: x.t().add_(y),
    "mul_": lambda x, y: x.mul_(0.5),
    "copy_": lambda x, y: x.copy_(y.flip(0)),
    "row add_": lambda x, y: x[1].add_(y[0]),
    "zero_": lambda x, y: x[:, 1].zero_(),
}

WRITING = ("write", "again", "add_", "t add_", "mul_", "copy_", "row add_", "zero_")


def _run(program: list[tuple[str, int, int, int]], pool: Pool) -> Pool:
    for name, a, b, into in program:
        if name in WRITING:  # to what nobody else sees twice, from what is not written
            pool[a] = pool[a].contiguous() if 0 in pool[a].stride() else pool[a]
            OPERATIONS[name](pool[a], pool[b].clone())
        else:
            pool[into] = OPERATIONS[name](pool[a], pool[b])
    return pool


def _program(rng: np.random.Generator) -> list[tuple[str, int, int, int]]:
    names = list(OPERATIONS)
    return [
        (names[int(rng.integers(len(names)))], *map(int, rng.integers(0, 4, 3)))
        for _ in range(int(rng.integers(3, 12)))
    ]


@pytest.mark.parametrize("seed", range(12))
def test_random_programs_again_and_again(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(5):
        program = _program(rng)
        other = [(name, a, b, into) for name, a, b, into in program[::-1]]
        kept: list[tuple[Pool, Pool]] = []
        for turn in range(ROUNDS):
            start = rng.standard_normal((4, 4, 4)).astype(np.float32)
            pools = [[torch.tensor(x, device=d) for x in start] for d in ("cpu", "genesis")]
            if turn == ROUNDS - 2:  # a sequence that diverges
                program = program[: len(program) // 2] + other
            expected, found = (_run(program, pool) for pool in pools)
            kept.append((expected, found))
            if turn % 2:  # every other turn nothing is asked for until the end
                _compare(expected, found, program)
        for expected, found in kept:
            _compare(expected, found, program)


def _compare(expected: Pool, found: Pool, program: Any) -> None:
    for a, b in zip(expected, found, strict=True):
        torch.testing.assert_close(
            b.cpu(), a, rtol=1e-4, atol=1e-4, equal_nan=True, msg=lambda m: f"{program}\n{m}"
        )


def test_a_number_asked_for_in_between() -> None:
    w = torch.eye(3, device="genesis")
    for turn in range(6):
        y = (w @ w).tanh()
        if turn == 4:
            assert y.sum().item() == pytest.approx(3 * np.tanh(1.0), rel=1e-5)
        kept = y[1]
        w.add_(1e-9)
        del y
        assert kept[1].item() == pytest.approx(np.tanh(1.0), rel=1e-5)


def test_the_default_dtype_is_seen() -> None:
    x = torch.tensor([1, 2], device="genesis")
    before = torch.get_default_dtype()
    try:
        for dtype in (torch.float32,) * 4 + (torch.float64,) * 4 + (torch.float32,):
            torch.set_default_dtype(dtype)
            assert (x / x).dtype is dtype
            assert x.sqrt().dtype is dtype
            assert x.float().mean().dtype is torch.float32
    finally:
        torch.set_default_dtype(before)


def test_errors_in_between_leave_the_rest_right() -> None:
    x, w = torch.ones(2, 3, device="genesis"), torch.ones(3, 3, device="genesis")
    for turn in range(6):
        y = x @ w
        with pytest.raises(RuntimeError):
            torch.nn.functional.linear(x, w[:, :2])
        with pytest.raises(RuntimeError):
            _ = y + torch.ones(4, device="genesis")
        y += turn
        assert y.tolist() == [[3.0 + turn] * 3] * 2


def test_gradients_of_repeated_steps() -> None:
    torch.manual_seed(0)
    there = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 2))
    here = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 2))
    here.load_state_dict(there.state_dict())
    here.to("genesis")
    sgd = [torch.optim.SGD(m.parameters(), 0.1, momentum=0.9) for m in (there, here)]
    for turn in range(8):
        x = torch.randn(3, 4)
        for model, update, inputs in zip((there, here), sgd, (x, x.to("genesis")), strict=True):
            if turn % 3 != 2:
                update.zero_grad()
            with torch.autocast(inputs.device.type, torch.bfloat16, enabled=turn == 5):
                loss = model(inputs).float().square().mean()
            loss.backward(create_graph=turn == 6)
            if turn == 4:
                model[0].weight.requires_grad_(False)
            update.step()
            model[0].weight.requires_grad_(True)
        tolerance = 1e-4 if turn < 5 else 2e-2
        for a, b in zip(there.parameters(), here.parameters(), strict=True):
            torch.testing.assert_close(b.cpu(), a, rtol=tolerance, atol=tolerance)


def test_two_threads() -> None:
    failures: list[str] = []

    def work(number: int) -> None:
        w = torch.full((4, 4), float(number), device="genesis")
        for turn in range(60):
            y = torch.relu(w @ w.t() + turn)
            w.add_(0)
            if turn % 7 == 0 and y.cpu().unique().tolist() != [4.0 * number**2 + turn]:
                failures.append(f"{number}: turn {turn}")

    threads = [threading.Thread(target=work, args=(n,)) for n in (1, 2, 3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures


def test_lists_that_are_written() -> None:
    """Whole tensors, views and another dtype; their versions are counted as well."""
    start = [np.float32(np.arange(6).reshape(2, 3) + k) for k in range(4)]
    found = []
    for device in ("cpu", "genesis"):
        whole, seen, short, other = (torch.tensor(x, device=device) for x in start)
        short = short.bfloat16()
        for turn in range(ROUNDS + 1):
            torch._foreach_mul_([whole, seen.t()[1:], short, seen[:, 0]], 0.5)
            torch._foreach_add_([whole, seen], [other, whole + turn], alpha=0.5)
            torch._foreach_add_([short], [other])
            torch._foreach_lerp_([whole, seen], [other, other], 0.25)
            assert whole.add_(1) is whole and torch.add(whole, 1, out=other) is other
        tensors = whole, seen, short, other
        found.append([(x.float().cpu(), x._version) for x in tensors])
    for (a, before), (b, version) in zip(*found, strict=True):
        torch.testing.assert_close(b, a, rtol=1e-5, atol=1e-5)
        assert version == before


def _same_matrix_twice(x: torch.Tensor) -> Pool:
    return [x, x]


def _its_rows_overlapping(x: torch.Tensor) -> Pool:
    return [x[:3], x[1:]]


def _its_columns_apart(x: torch.Tensor) -> Pool:
    return [x[:, :3], x[:, 3:6]]


#: Every operator that updates a list, for two tensors, two of the same shape, and numbers.
LISTS: dict[str, Callable[[Pool, Pool, Pool], None]] = {
    "add_.Scalar": lambda xs, ys, zs: torch._foreach_add_(xs, 1.0),
    "mul_.ScalarList": lambda xs, ys, zs: torch._foreach_mul_(xs, [2.0, 0.75]),
    "sub_.List": lambda xs, ys, zs: torch._foreach_sub_(xs, ys, alpha=0.5),
    "add_.Tensor": lambda xs, ys, zs: torch._foreach_add_(xs, xs[0][0, 0]),
    "addcmul_.Scalar": lambda xs, ys, zs: torch._foreach_addcmul_(xs, ys, zs, 0.5),
    "lerp_.Scalar": lambda xs, ys, zs: torch._foreach_lerp_(xs, ys, 0.25),
    "lerp_.List": lambda xs, ys, zs: torch._foreach_lerp_(xs, ys, zs),
    "sigmoid_": lambda xs, ys, zs: torch._foreach_sigmoid_(xs),
    "copy_": lambda xs, ys, zs: torch._foreach_copy_(xs, xs[::-1]),
    "maximum_": lambda xs, ys, zs: torch._foreach_maximum_(xs, ys),
    "swapped": lambda xs, ys, zs: torch._foreach_add_(xs, xs[::-1]),
    "squared": lambda xs, ys, zs: torch._foreach_mul_(xs, xs),
    "sgd": lambda xs, ys, zs: torch._fused_sgd_(
        xs, ys, zs, weight_decay=0.1, momentum=0.5, lr=0.1, dampening=0.0, nesterov=False,
        maximize=False, is_first_step=False,
    ),
    "unscale": lambda xs, ys, zs: torch._amp_foreach_non_finite_check_and_unscale_(
        xs, torch.zeros(1, device=xs[0].device), torch.full((1,), 0.5, device=xs[0].device)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LISTS)
def test_lists_of_tensors_that_share_memory(name: str) -> None:
    """Places of a list are computed in turn; whatever form was remembered for others before."""
    forms: list[Callable[[torch.Tensor], Pool]]
    forms = [lambda x: [x, x + 1], _same_matrix_twice, lambda x: [x, x * 2]]
    if name not in ("copy_", "swapped"):  # of which PyTorch wants one place to write all it reads
        forms += [_its_rows_overlapping, lambda x: [x, x.t()]]
    if name != "sgd":  # which takes strides for those of rows on the CPU
        forms += [_its_columns_apart]
    start = np.random.default_rng(0).random((3, 6, 6))
    found = []
    for device in ("cpu", "genesis"):
        seen = []
        for form in forms * ROUNDS:
            x, y, z = (torch.tensor(s, device=device) for s in start)
            xs = form(x)
            for _ in range(2):
                LISTS[name](xs, form(y)[:2], [s.clone() for s in form(z)])
            seen.append([(t.cpu(), t._version) for t in (x, *xs)])
        found.append(seen)
    for theirs, ours in zip(*found, strict=True):
        for (a, before), (b, version) in zip(theirs, ours, strict=True):
            torch.testing.assert_close(b, a, rtol=1e-12, atol=1e-12)
            assert version == before or name in ("sgd", "unscale")  # the CPU does not count those


def test_what_is_remembered_outlives_python() -> None:
    code = """
import torch, genesis.torch
x = torch.ones(4, 4, device="genesis")
for _ in range(5):
    x.add_(x * 2).mul_(0.5)
print(x[0, 0].item())
"""
    assert run(code) == f"{1.5**5}\n"


def test_compiled_functions_find_what_those_in_python_find(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that a realisation asks about a graph: values, wiring, forms, kinds and references."""
    seen: dict[str, int] = dict.fromkeys(("walk", "survey", "of_kind"), 0)

    def compared(name: str) -> Callable[..., Any]:
        compiled, python = getattr(pending_graph, name), getattr(pending_graph, f"_{name}")

        def compare(*args: Any) -> Any:
            found = answer(python, args)
            assert answer(compiled, args) == found
            seen[name] = max(seen[name], len(found[1]))
            return compiled(*args)

        def answer(function: Callable[..., Any], args: Any) -> Any:
            """What a function says and writes, by addresses: it refers to none of the values."""
            lists = [x[:] if name == "walk" else x for x in args if isinstance(x, list | array)]
            rest = iter(lists)
            result = function(*[next(rest) if isinstance(x, list | array) else x for x in args])
            if name == "survey":
                return [id(x) for x in result[0]], *result[1:]
            wrote = [x if isinstance(x, int) else id(x) for part in lists for x in part]
            return {id(x) for x in result} if name == "walk" else [*map(id, result)], wrote

        assert compiled is not python
        return compare

    for name in seen:
        monkeypatch.setattr(pending_graph, name, compared(name))
    torch.manual_seed(0)
    layers = [torch.nn.Linear(4, 4), torch.nn.LayerNorm(4), torch.nn.Linear(4, 4)]
    model = torch.nn.Sequential(*layers * 8).to("genesis")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    kept = []
    for step in range(ROUNDS):
        optimizer.zero_grad()
        hidden = model[:12](torch.ones(3, 4, device="genesis") * step)
        kept.append(hidden.topk(2)[1])  # one of several results, which nobody asked for
        target = torch.tensor([0, 1, step % 4], device="genesis")
        loss = torch.nn.functional.cross_entropy(model[12:](hidden), target)
        loss.backward()
        optimizer.step()
        loss.item()
    assert min(seen.values()) > 300


def test_a_chain_deeper_than_graphs_may_be() -> None:
    x = torch.zeros(2, device="genesis")
    one = torch.ones(2, device="genesis")
    for _ in range(9000):
        x = x + one
    assert x.tolist() == [9000.0] * 2
