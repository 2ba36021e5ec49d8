"""Random programs of views, writes and values that wait, against NumPy and PyTorch.

A program is a few lines of Python that mean the same to both sides: arrays are made, seen through
views, written in place, cloned, kept, read and dropped, in an order that nobody would think of. It
is drawn while the reference runs it, so that shapes fit; then Genesis runs it, and every read must
give the same numbers. All numbers are small integers or halves, hence exact.

    python -m tests.random_programs --seed 0 --count 1000 --kind arrays

Kinds: ``arrays`` (against NumPy), ``tensors`` (PyTorch), ``gradients`` (PyTorch, with backward),
and ``jit``, ``jit_tensors``: a function that updates arrays from outside, called several times. A
program that fails is made shorter as long as it still fails, and printed.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np

Names = dict[str, Any]

KINDS = ("arrays", "tensors", "gradients", "jit", "jit_tensors")
SHAPES = [(2,), (3,), (4,), (2, 3), (3, 2), (2, 2), (1, 3), (2, 1, 2), (2, 2, 2), ()]


@dataclass(frozen=True)
class Program:
    """Lines that run on both sides. `body` is what a jitted function does."""

    kind: str
    seed: int
    lines: tuple[str, ...]
    body: tuple[str, ...] = ()
    results: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()

    @property
    def source(self) -> str:
        """The program as text."""
        if not self.body:
            return "\n".join(self.lines) + "\n"
        inside = "\n".join(f"    {line}" for line in self.body)
        results = f"({', '.join(self.results)}{',' * bool(self.results)})"
        head = f"def step({', '.join(self.arguments)}):\n{inside}\n    return {results}\n"
        at = self.lines.index("@")
        before, after = "\n".join(self.lines[:at]), "\n".join(self.lines[at + 1 :])
        return f"{before}\n{head}step = jit(step)\n{after}\n"


# ---- what lines may call, on either side


def _numpy() -> Names:
    def own(x: Any) -> Any:
        return np.array(x, dtype=np.float32, order="C")

    return {
        "new": lambda shape, first: own(_numbers(shape, first)),
        "lazy": lambda shape, first: own(_numbers(shape, first)),
        "own": own,
        "apart": np.copy,
        "ints": np.array,
        "permute": lambda x, *axes: x.transpose(axes),
        "reshape": lambda x, *shape: x.reshape(shape),
        "expand": lambda x, *shape: np.broadcast_to(x, shape),
        "flip": lambda x, axis: own(np.flip(x, axis)),
        "diagonal": lambda x: own(np.diagonal(x)),
        "part": lambda x, axis, k, n: np.split(x, [k, n], axis)[1],
        "cat": lambda x, y, axis: np.concatenate([x, y], axis),
        "total": lambda x, axis: x.sum(axis),
        "where": np.where,
        "realize": lambda *x: None,
        "jit": lambda f: f,
    }


def _arrays() -> Names:
    import genesis
    from genesis import ndarray as nd

    def total(x: Any, axis: int) -> Any:
        return x.sum(axis)

    return {
        "new": lambda shape, first: nd.array(_numbers(shape, first)),
        "lazy": lambda shape, first: nd.array(_numbers(shape, first)) + 0.0,
        "own": lambda x: x,
        "apart": lambda x: x,
        "ints": nd.array,
        "permute": lambda x, *axes: x.permute(*axes),
        "reshape": lambda x, *shape: x.reshape(shape),
        "expand": lambda x, *shape: x.expand(*shape),
        "flip": lambda x, axis: x.flip(axis),
        "diagonal": nd.diagonal,
        "part": lambda x, axis, k, n: nd.split(x, [k, n - k, x.shape[axis] - n], axis)[1],
        "cat": lambda x, y, axis: nd.concat([x, y], axis),
        "total": total,
        "where": nd.where,
        "realize": lambda *x: [y.realize() for y in x],
        "jit": genesis.jit,
    }


def _torch(m: Any, ours: bool) -> Names:
    def own(x: Any) -> Any:
        return x if ours else x.clone(memory_format=m.contiguous_format)

    def realize(*tensors: Any) -> None:
        for x in tensors if ours else ():
            x.array.realize()

    def new(shape: Sequence[int], first: int) -> Any:
        return m.tensor(_numbers(shape, first))

    def flip(x: Any, axis: int) -> Any:
        return own(x.flip(axis))

    def leaf(shape: Sequence[int], first: int) -> Any:
        return new(shape, first).requires_grad_()

    return {
        "new": new,
        "lazy": lambda shape, first: new(shape, first) * 1.0,
        "leaf": leaf,
        "own": own,
        "apart": lambda x: x if ours or not hasattr(x, "clone") else x.clone(),
        "ints": m.tensor,
        "permute": lambda x, *axes: x.permute(*axes),
        "reshape": lambda x, *shape: x.reshape(shape),
        "expand": lambda x, *shape: x.expand(*shape),
        "flip": flip,
        "diagonal": lambda x: x.diagonal(),
        "part": lambda x, axis, k, n: x.split([k, n - k, x.shape[axis] - n], axis)[1],
        "cat": lambda x, y, axis: m.cat([x, y], axis),
        "total": lambda x, axis: x.sum(axis),
        "where": m.where,
        "realize": realize,
        "complex": lambda shape, first: new(shape, first) * (1 + 2j),
        "as_real": m.view_as_real,
        "as_complex": lambda x: m.view_as_complex(x[..., :2]),
        "bits": lambda x: x.imag if x.is_complex() else x.view(m.int32).view(m.float32),
        "jit": getattr(m, "jit", None) if ours else lambda f: f,
        "no_grad": m.no_grad,
        "backward": lambda *x: sum((y * y).sum() for y in x).backward(),  # type: ignore[misc]
        "detach": lambda x: x.detach(),
        "keep": lambda x: x.retain_grad() if x.requires_grad else None,
    }


def _numbers(shape: Sequence[int], first: int) -> Any:
    count = int(np.prod(shape))
    return ((np.arange(count) * 3 + first) % 7).astype(np.float32).reshape(shape)


def sides(kind: str) -> tuple[Callable[[], Names], Callable[[], Names]]:
    """What makes the names of the reference, and those of Genesis."""
    if kind in ("arrays", "jit"):
        return _numpy, _arrays
    import torch

    import genesis

    return lambda: _torch(torch, False), lambda: _torch(genesis, True)


# ---- running


def run(source: str, names: Names) -> list[Any]:
    """What a program reads, in order."""
    seen: list[Any] = []

    def read(*arrays: Any) -> None:
        for x in arrays:
            x = x.detach() if hasattr(x, "detach") else x
            held = np.asarray(x.numpy() if hasattr(x, "numpy") else x)
            seen.append((held.shape, held.tolist()))

    names["read"] = read

    def read_grad(*tensors: Any) -> None:
        for x in tensors:  # without a gradient it is zero
            read(x.detach() * 0 if x.grad is None else x.grad)

    names["read_grad"] = read_grad
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # imaginary parts may be dropped
        exec(compile(source, "<program>", "exec"), names)
    return seen


def _expected(program: Program) -> list[Any] | None:
    """What the reference reads; None: it refuses the program."""
    reference, _ = sides(program.kind)
    try:
        with _mutable(program.kind), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return run(program.source, reference())
    except Exception:
        return None


def failure(program: Program) -> str | None:
    """What Genesis does otherwise than the reference; None: nothing."""
    expected = _expected(program)
    if expected is None:
        return None
    _, subject = sides(program.kind)
    try:
        found = run(program.source, subject())
    except Exception as error:
        if _refused(program, error):
            return None
        return f"{type(error).__name__}: {error}"
    for k, (want, got) in enumerate(zip(expected, found, strict=True)):
        if want != got:
            return f"read {k}: {got} instead of {want}"
    return None


def _refused(program: Program, error: Exception) -> bool:
    """Errors that say what is not possible: under jit, or with elements that share memory."""
    from genesis.ndarray.core.value import CaptureError

    several = ("several of its elements are one element in memory", "they may overlap")
    return any(words in str(error) for words in several) or (
        bool(program.body) and isinstance(error, CaptureError)
    )


def _mutable(kind: str) -> Any:
    """PyTorch keeps saved tensors that are overwritten, as Genesis does."""
    from contextlib import nullcontext

    if kind != "gradients":
        return nullcontext()
    from torch.autograd.graph import allow_mutation_on_saved_tensors

    return allow_mutation_on_saved_tensors()


def shortest(program: Program) -> Program:
    """The program without lines that its failure does not need."""
    from dataclasses import replace

    found = program
    for field in ("lines", "body", "results"):
        k = len(getattr(found, field)) - 1
        while k >= 0:
            lines = getattr(found, field)
            shorter = replace(found, **{field: (*lines[:k], *lines[k + 1 :])})
            if lines[k] != "@" and (shorter.body or not found.body) and failure(shorter):
                found = shorter
            k -= 1
    return found


# ---- drawing


class Draw:
    """A program as it comes about: lines that the reference has run."""

    def __init__(self, kind: str, seed: int) -> None:
        self.kind, self.seed = kind, seed
        self.rng = Random(seed)
        self.names = sides(kind)[0]()
        self.torch = kind not in ("arrays", "jit")
        self.arrays: list[str] = []
        self.lines: list[str] = []
        self.count = 0

    def program(self) -> Program:
        """A program of the kind."""
        with _mutable(self.kind), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if self.kind.startswith("jit"):
                return self.jitted()
            if self.kind == "gradients":
                return self.gradients()
            for _ in range(self.rng.randint(1, 2)):
                self.make()
            for _ in range(self.rng.randint(3, 12)):
                self.step(reads=True)
            order = self.arrays[:]
            self.rng.shuffle(order)
            for name in order:
                self.lines.append(f"read({name})")
            return Program(self.kind, self.seed, tuple(self.lines))

    def gradients(self) -> Program:
        leaves = [self.made("leaf") for _ in range(self.rng.randint(1, 2))]
        for leaf in leaves:
            self.assign(f"own({leaf} * 2)")
        for _ in range(self.rng.randint(2, 8)):
            self.step(reads=self.rng.random() < 0.3, without=leaves)
            if self.rng.random() < 0.3:
                self.keep(self.pick(leaves))
        rest = [x for x in self.arrays if x not in leaves]
        if rest:
            chosen = self.rng.sample(rest, self.rng.randint(1, min(2, len(rest))))
            self.lines.append(f"backward({', '.join(chosen)})")
        self.lines += [f"read({x})" for x in rest]
        self.lines += [f"read_grad({x})" for x in self.arrays]
        return Program(self.kind, self.seed, tuple(self.lines))

    def keep(self, x: str) -> None:
        """Keep a gradient, but not of a view: of one that is written, PyTorch's passes it by.

        Here what has become a view of itself (``x.t_()``) is one, too.
        """
        turned = any(line.startswith(f"{x}.") and "_(" in line for line in self.lines)
        if self.names[x]._base is None and not turned:
            self.attempt(f"keep({x})")

    def jitted(self) -> Program:
        for _ in range(self.rng.randint(1, 3)):
            self.make()
        if self.rng.random() < 0.3:
            self.view()
        before, outside = self.lines, self.arrays[:]
        arguments = tuple(x for x in outside if self.rng.random() < 0.5)
        self.lines = []
        for _ in range(self.rng.randint(3, 12)):
            self.step(reads=False, without=[], drops=False)
        body = tuple(self.lines) or ("pass",)
        inner = [x for x in self.arrays if x not in outside]
        results = tuple(x for x in self.arrays if self.rng.random() < (0.4 if x in inner else 0.1))
        lines = [*before, "@"]
        call = f"step({', '.join(arguments)})"
        given = ", ".join(f"r{k}" for k in range(len(results)))
        for turn in range(self.rng.randint(2, 4)):
            kept = "" if not results else f"{', '.join(f'r{k}' for k in range(len(results)))}, = "
            kept = kept if self.rng.random() < 0.8 else ""
            lines.append(kept + call)
            if self.rng.random() < 0.3 and kept:
                lines.append(f"k{turn} = r{self.rng.randrange(len(results))}")
            choice = self.rng.random()
            if choice < 0.5:
                order = outside[:]
                self.rng.shuffle(order)
                lines.append(f"read({', '.join(order)})")
            if choice < 0.3 and kept:
                lines.append(f"read({given})")
            if self.rng.random() < 0.3:
                target = self.rng.choice(outside)
                lines.append(f"{target}[...] = {target} * {self.rng.choice([-1, 0.5])}")
        lines += [f"read({x})" for x in outside]
        if any(x.startswith("r0") for x in lines):
            lines.append(f"read({given})")
        return Program(self.kind, self.seed, tuple(lines), body, results, arguments)

    # ---- lines
    def attempt(self, line: str) -> bool:
        """Add a line, if the reference can run it and its numbers stay small."""
        try:
            exec(line, self.names)
        except Exception:
            return False
        self.lines.append(line)
        return True

    def assign(self, expression: str) -> str | None:
        """A new variable."""
        name = f"v{self.count}"
        if not self.attempt(f"{name} = {expression}"):
            return None
        shape = self.names[name].shape
        if (0 in shape or len(shape) > 3) and self.rng.random() < 0.9:
            self.lines.pop()
            return None
        self.count += 1
        self.arrays.append(name)
        return name

    def made(self, kind: str) -> str:
        name = self.assign(f"{kind}({self.rng.choice(SHAPES)}, {self.rng.randint(0, 6)})")
        assert name is not None
        return name

    def make(self) -> None:
        self.made(self.rng.choice(["new", "lazy"] + ["complex"] * self.torch))

    def pick(self, without: Sequence[str] = ()) -> str:
        return self.rng.choice([x for x in self.arrays if x not in without] or self.arrays)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.names[name].shape)

    def number(self) -> str:
        return self.rng.choice(["1", "2", "3", "-1", "0.5", "0"])

    def step(self, reads: bool, without: Sequence[str] = (), drops: bool = True) -> None:
        """One more line, or none if what was drawn does not fit."""
        choice = self.rng.random()
        if choice < 0.2:
            self.view(without)
        elif choice < 0.67:
            self.write(without)
        elif choice < 0.8:
            self.compute(without)
        elif not reads:
            return
        elif choice < 0.83:
            self.make()
        elif choice < 0.9:
            self.lines.append(f"read({self.pick(without)})")
        elif choice < 0.95:
            names = {self.pick(without) for _ in range(self.rng.randint(1, 2))}
            self.lines.append(f"realize({', '.join(sorted(names))})")
        elif len(self.arrays) > 1 and drops:
            name = self.pick(without)
            if name not in without:
                self.arrays.remove(name)
                self.lines.append(f"del {name}")

    def view(self, without: Sequence[str] = ()) -> None:
        x = self.pick(without)
        shape = self.shape(x)
        rank, rng = len(shape), self.rng
        if self.torch and rng.random() < 0.4:
            self.seen_by_method(x)
            return
        others = ["permute", "reshape", "expand", "flip", "part", "unsqueeze", "diag"]
        kind = rng.choice(["index"] * 5 + others)
        if kind == "index":
            self.assign(f"{x}[{self.key(x)}]")
        elif kind == "permute" and rank > 1:
            axes = list(range(rank))
            rng.shuffle(axes)
            self.assign(f"permute({x}, {', '.join(map(str, axes))})")
        elif kind == "reshape":
            size = int(np.prod(shape))
            found = [(size,), (-1, 1), (1, size), (2, -1), (-1, 2), (1, -1, 1), (size // 2, 2)]
            self.assign(f"reshape({x}, {', '.join(map(str, rng.choice(found)))})")
        elif kind == "expand":
            wide = [n if n != 1 or rng.random() < 0.3 else rng.randint(2, 3) for n in shape]
            if rng.random() < 0.4:
                wide = [rng.randint(1, 2), *wide]
            self.assign(f"expand({x}, {', '.join(map(str, wide))})" if wide else f"{x}[...]")
        elif kind == "flip" and rank:
            self.assign(f"flip({x}, {rng.randrange(rank)})")
        elif kind == "part" and rank:
            axis = rng.randrange(rank)
            low = rng.randint(0, shape[axis])
            self.assign(f"part({x}, {axis}, {low}, {rng.randint(low, shape[axis])})")
        elif kind == "unsqueeze":
            self.assign(f"{x}[{rng.choice(['None', '..., None', 'None, ..., None'])}]")
        elif kind == "diag" and rank == 2 and shape[0] == shape[1]:
            self.assign(f"diagonal({x})")

    def seen_by_method(self, x: str) -> None:
        """A view that only tensors have."""
        shape, rng = self.shape(x), self.rng
        rank = len(shape)
        d, e = (rng.randrange(-rank, rank) for _ in "de") if rank else (0, 0)
        extent = shape[d] if rank else 1
        found = [
            f"{x}.narrow({d}, {rng.randint(0, extent)}, {rng.randint(0, extent)})",
            f"{x}.select({d}, {rng.randint(-extent, max(extent - 1, 0))})",
            f"{x}.unfold({d}, {rng.randint(1, 2)}, {rng.randint(1, 2)})",
            f"{x}.movedim({d}, {e})", f"{x}.swapaxes({d}, {e})", f"{x}.transpose({d}, {e})",
            f"{x}.squeeze()", f"{x}.squeeze({d})", f"{x}.unsqueeze({d})", f"{x}.mT",
            f"{x}.diagonal({rng.randint(-1, 1)}, {d}, {e})", f"{x}.view(-1)", f"{x}.flatten()",
            f"{x}.unbind({d})[{rng.randint(0, 1)}]", f"{x}.chunk(2, {d})[{rng.randint(0, 1)}]",
            f"{x}.tensor_split(2, {d})[{rng.randint(0, 1)}]", f"{x}.detach()",
            f"{x}.expand_as({self.pick()})", f"{x}.unflatten({d}, (-1, 2))", f"own({x}.rot90())",
            f"own({x}.roll(1, {d}))", f"own({x}.repeat(2, {', '.join('1' * max(rank - 1, 0))}))",
        ]  # fmt: skip
        if self.kind != "gradients":
            found += [f"{x}.real", f"{x}.imag", f"as_real({x})", f"bits({x})", f"as_complex({x})"]
            found += [f"{x}.as_strided((2,), ({rng.randint(1, 2)},), {rng.randint(0, 1)})"]
        self.assign(rng.choice(found))

    def written_by_method(self, x: str) -> str:
        """A call that writes in a way that only tensors have."""
        shape, rng = self.shape(x), self.rng
        rank = len(shape)
        d, e = (rng.randrange(-rank, rank) for _ in "de") if rank else (0, 0)
        extent = shape[d] if rank else 1
        places = [rng.randrange(max(extent, 1)) for _ in range(rng.randint(1, 2))]
        apart = rng.sample(range(extent), rng.randint(0, extent))
        y, number = self.pick(), self.number()
        part = f"apart({x}).index_select({d}, ints({places}))"
        own_part = f"apart({x}).index_select({d}, ints({apart}))"
        return rng.choice(
            [
                f"{x}.masked_fill_({x} > {rng.randint(0, 4)}, {number})",
                f"{x}.index_fill_({d}, ints({places}), {number})",
                f"{x}.index_add_({d}, ints({places}), {part})",
                f"{x}.index_copy_({d}, ints({apart}), {own_part} + 1)",
                f"{x}.scatter_({d}, {x}.long() * 0 + {places[0]}, {number})",
                f"{x}.scatter_add_({d}, {x}.long() * 0 + {places[0]}, apart({x}))",
                f"{x}.index_put_((ints({places}),), new((), 2), accumulate=True)",
                f"{x}.masked_scatter_({x} > {rng.randint(0, 4)}, apart({y}))",
                f"{x}.put_(ints({apart}), new(({len(apart)},), 3), accumulate=True)",
                f"{x}.clamp_(0, {rng.randint(1, 4)})", f"{x}.neg_()", f"{x}.abs_()",
                f"{x}.sub_({y}, alpha=2)", f"{x}.addcmul_(apart({y}), apart({y}))",
                f"{x}.lerp_(apart({y}), 0.5)", f"{x}.transpose_({d}, {e})", f"{x}.squeeze_()",
                f"{x}.unsqueeze_({d})", f"{x}.t_()", f"{x}.tril_()", f"{x}.cumsum_({d})",
                f"{x}.fill_diagonal_({number})", f"{x}.copy_(own({y}.transpose({d}, {e})))",
                f"{x}.detach()[{self.key(x)}] += 1", f"{x}.data[{self.key(x)}] = {number}",
                f"with no_grad(): {x}.mul_({number})", f"{x}.copy_({y} > 1)",
                f"{x}.fill_(new((), 4))",
            ]
        )  # fmt: skip

    def compute(self, without: Sequence[str] = ()) -> None:
        x, y = self.pick(without), self.pick(without)
        rng = self.rng
        shape = self.shape(x)
        kind = rng.randrange(9)
        if kind < 2:
            copied = f"{x}.clone()" if self.torch else f"{x}.copy()"
            self.assign(f"own({copied})")
        elif kind == 2:
            self.assign(f"own({x} * {self.number()})")
        elif kind < 5:
            self.assign(f"own({x} {rng.choice('+-')} {y})")
        elif kind == 5 and shape:
            self.assign(f"own(total({x}, {rng.randrange(len(shape))}))")
        elif kind == 6 and shape and len(shape) == len(self.shape(y)):
            self.assign(f"own(cat({x}, {y}, {rng.randrange(len(shape))}))")
        elif kind == 7:
            self.assign(f"own(where({x} > {rng.randint(0, 4)}, {x}, {y}))")
        elif kind == 8:
            self.assign(f"own({x}[{self.picking(x)}])")

    def value(self, without: Sequence[str]) -> str:
        if self.rng.random() < 0.4:
            return self.number()
        y = self.pick(without)
        return self.rng.choice([f"apart({y})", f"apart({y}) * {self.number()}", f"({y} + 1)"])

    def write(self, without: Sequence[str] = ()) -> None:
        x, rng = self.pick(without), self.rng
        if x in without:
            return
        value = self.value(())
        operator = rng.choice(["+=", "*=", "-="])
        if operator == "*=":
            value = self.number()
        kind = rng.randrange(14 if self.torch else 12)
        if kind < 3:
            self.attempt(f"{x} {operator} {value}")
        elif kind < 6:
            self.attempt(f"{x}[{self.key(x)}] {operator} {value}")
        elif kind < 9:
            self.attempt(f"{x}[{self.key(x)}] = {value}")
        elif kind == 9:
            self.attempt(f"{x}[{self.picking(x)}] = {self.number()}")
        elif kind == 10:
            self.attempt(f"{x}[{self.picking(x)}] {operator} {self.number()}")
        elif self.torch and rng.random() < 0.5:
            self.attempt(self.written_by_method(x))
        elif self.torch:
            self.attempt(
                rng.choice(
                    [
                        f"{x}.copy_({value})", f"{x}.fill_({self.number()})", f"{x}.zero_()",
                        f"{x}.add_({value})", f"{x}.mul_({self.number()})",
                    ]
                )
            )  # fmt: skip
        else:
            self.attempt(f"{x}[...] = {value}")

    def picking(self, name: str) -> str:
        """An index of a variable that picks elements: what it gives is a copy."""
        shape, rng = self.shape(name), self.rng
        kind = rng.randrange(4)
        if shape and kind == 0:
            places = rng.sample(range(shape[0]), rng.randint(0, shape[0])) or [0]
            return f"ints({places})" if rng.random() < 0.5 else f"{places}"
        if len(shape) > 1 and shape[1] and kind == 1:
            places = rng.sample(range(shape[1]), rng.randint(1, shape[1]))
            return f"{rng.choice([':', '0:1', '0'])}, {places}"
        if kind == 2:
            return rng.choice(["True", "False", "ints(True)", "ints(False)"])
        return f"{name} > {rng.randint(-1, 5)}"

    def key(self, name: str) -> str:
        """An index of a variable that gives a view."""
        shape, rng = self.shape(name), self.rng
        parts: list[str] = []
        for extent in shape[: rng.randint(0, len(shape))]:
            kind = rng.randrange(8)
            if kind < 3 and extent:
                parts.append(str(rng.randrange(-extent, extent)))
            elif kind < 6:
                low, high = rng.randint(0, extent), rng.randint(-1, extent)
                parts.append(f"{low}:{high}" if rng.random() < 0.7 else f"{low}:")
            elif kind == 6:
                step = rng.choice([2, -1, -2]) if not self.torch else 2
                parts.append(f"::{step}")
            else:
                parts.append(":")
        if rng.random() < 0.15:
            parts.insert(rng.randint(0, len(parts)), "None")
        # To NumPy an element is a view only with an Ellipsis.
        element = not self.torch and all(p.lstrip("-").isdigit() for p in parts)
        if rng.random() < 0.1 or not parts or element:
            parts.insert(rng.randint(0, len(parts)), "...")
        return ", ".join(parts)


def programs(kind: str, seed: int, count: int) -> Iterator[Program]:
    """So many programs, each from a seed of its own."""
    for k in range(seed, seed + count):
        yield Draw(kind, k).program()


def check(kind: str, seed: int, count: int, most: int = 1) -> list[tuple[Program, str]]:
    """Programs that fail, made shorter; no more than `most`."""
    found: list[tuple[Program, str]] = []
    for program in programs(kind, seed, count):
        wrong = failure(program)
        if wrong is not None:
            short = shortest(program)
            found.append((short, failure(short) or wrong))
            if len(found) >= most:
                break
    return found


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--kind", choices=KINDS, action="append", help="all, if none is given")
    parser.add_argument("--most", type=int, default=5, help="stop after so many failures")
    parser.add_argument("--device", default="cpu", help="where Genesis runs them")
    parser.add_argument(
        "--interpreted", action="store_true", help="pretend a GPU (set TRITON_INTERPRET=1)"
    )
    options = parser.parse_args()
    if options.interpreted:
        import pytest

        from tests.interpreted_cuda import install

        install(pytest.MonkeyPatch())
    from genesis.ndarray import on_device

    with on_device("cuda" if options.interpreted else options.device):
        return fuzz(options)


def fuzz(options: argparse.Namespace) -> int:
    """Run what was asked for, and say what failed."""
    failed = 0
    for kind in options.kind or KINDS:
        start = time.perf_counter()
        found = check(kind, options.seed, options.count, options.most)
        took = time.perf_counter() - start
        print(f"{kind}: seeds {options.seed} to {options.seed + options.count - 1}, {took:.0f} s")
        for program, wrong in found:
            print(f"\n# seed {program.seed}: {wrong}\n{program.source}")
        failed += len(found)
        sys.stdout.flush()
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
