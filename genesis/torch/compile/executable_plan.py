"""Plans: a compiled graph as data.

A plan says, in numbers, where the inputs of each program come from, what is made for its results
and how the graph's results are put together from them. Values are in numbered registers; the first
are the graph's arguments. Programs are named by their keys, so a plan can be kept in PyTorch's
cache, and a process that finds it there neither traces nor compiles anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import torch

from genesis.compiler.compile import kept_program
from genesis.compiler.program.program import Program
from genesis.ir.dtype import Scalar
from genesis.ir.node import Form
from genesis.ir.size import Dim
from genesis.ndarray.core.layout import Shape, Strides
from genesis.ndarray.core.realisation import backend_of


class Missing(LookupError):
    """A program that a plan names is no longer on disk."""


@dataclass
class Named:
    """A program, by what finds it on disk."""

    key: str
    outputs: tuple[Form, ...]
    device: str

    @staticmethod
    def of(program: Program, device: str) -> Named:
        """The name of a program that is at hand."""
        forms = tuple((output.dtype, output.shape) for output in program.outputs)
        named = Named(program.key, forms, device)
        named.__dict__["program"] = program
        return named

    @cached_property
    def program(self) -> Program:
        """The program."""
        found = kept_program(self.key, self.outputs, backend_of(self.device))
        if found is None:
            raise Missing(f"the program {self.key} is not on disk any more")
        return found

    def __getstate__(self) -> dict[str, Any]:
        return {"key": self.key, "outputs": self.outputs, "device": self.device}


class InputRead(NamedTuple):
    """An input of a program: its slot, the register, and the strides it is compiled for.

    PyTorch may pass one that is `marked`: its elements are meant to be conjugated, or negated. What
    is on the CPU comes from `elsewhere`, if the program runs on another device.
    """

    slot: int
    register: int
    strides: Strides
    marked: bool
    elsewhere: bool = False


class Made(NamedTuple):
    """A result of a program, and how it becomes the tensor that PyTorch expects.

    It is made with `size` and `stride`. PyTorch may want another `shape` with `strides`: "seen",
    where several elements are one in memory, "copied", where there are gaps between elements; or it
    wants it on the CPU, "moved" there.
    """

    register: int
    dtype: torch.dtype
    size: Shape
    stride: Strides
    becomes: str = "same"
    shape: Shape = ()
    strides: Strides = ()


class Written(NamedTuple):
    """An input that gets new contents: its register, and its slot if the program reads it."""

    register: int
    slot: int | None


class Check(NamedTuple):
    """An index that must exist, see `genesis.ndarray.core.index_checks`."""

    name: str
    extent: Dim
    axis: int


class Reported(NamedTuple):
    """A word that a program writes if an index does not exist, by the slot of the input it is.

    See `genesis.ndarray.core.index_checks`.
    """

    slot: int
    checks: tuple[Check, ...]


class Constant(NamedTuple):
    """An input of a program that is always the same: the bytes of its memory."""

    slot: int
    memory: torch.Tensor


class Foreign(NamedTuple):
    """An operator that PyTorch computes: fills a register from others, may tell unknown sizes."""

    register: int
    run: Callable[[list[Any], dict[str, int]], Any]


class ArgumentView(NamedTuple):
    """A view of an argument; `offset` counts from where that begins."""

    register: int
    shape: Shape
    strides: Strides
    offset: Dim


class SharedResult(NamedTuple):
    """A result in the memory of another, maybe as elements of another kind.

    `offset` counts from where that memory begins.
    """

    register: int
    shape: Shape
    strides: Strides
    offset: Dim
    dtype: torch.dtype
    conjugate: bool
    negative: bool


@dataclass
class PartPlan:
    """One program and what PyTorch computes after it.

    The program's outputs are, of `made`, `written` and `checks` in this order, those in `computed`:
    what has no elements is not computed. Where the device has words, these come in place of checks.
    """

    named: Named | None
    seen: list[tuple[int, ArgumentView]] = field(
        default_factory=list
    )  # registers that views go to first
    reads: list[InputRead] = field(default_factory=list)
    random: int | None = None  # the slot of a generator's state
    constants: list[Constant] = field(default_factory=list)
    scalars: list[Scalar] = field(default_factory=list)
    made: list[Made] = field(default_factory=list)
    written: list[Written] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    words: list[Reported] = field(default_factory=list)
    computed: list[int] = field(default_factory=list)
    foreign: list[Foreign] = field(default_factory=list)


class Register(NamedTuple):
    """A result that is in a register."""

    register: int


class KnownResult(NamedTuple):
    """A result that is known: a number, a size, or nothing."""

    value: Any


Result = ArgumentView | SharedResult | Register | KnownResult


class SizeSource(NamedTuple):
    """Where the value of a symbolic size is read: an integer argument, or an axis of a tensor."""

    name: str
    register: int
    axis: int | None


@dataclass
class ExecutablePlan:
    """All of a graph, on a device. `reasons` says why PyTorch computes some operators."""

    device: str
    registers: int
    parts: list[PartPlan]
    results: list[Result]
    reasons: Mapping[str, str]
