"""Random numbers: the n-th draw of a generator is a function of its key and n.

A `Generator` is a state (key, offset) that every draw reads and advances, like any other storage:
no two draws are ever the same expression, and running a program again draws anew. Element i of a
draw uses counter ``offset + i``, so devices, threads and shards all give the same numbers.
"""

from __future__ import annotations

import builtins
import math
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, SupportsIndex

import numpy as np

from genesis.ir import ops
from genesis.ir.dtype import DType, Number, Scalar, as_dtype, float32, float64, int32, int64, uint64
from genesis.ir.size import Dim, Size, product
from genesis.ndarray.core import primitive
from genesis.ndarray.core.device import chosen
from genesis.ndarray.core.interop import copied
from genesis.ndarray.core.layout import Shape
from genesis.ndarray.core.ndarray import NDArray, wrap
from genesis.ndarray.core.primitive import cast, elementwise
from genesis.ndarray.core.storage import State
from genesis.ndarray.core.subgraph_copies import Subgraph
from genesis.ndarray.core.value import Value, thread, unrecorded
from genesis.ndarray.ops.complexes import complex
from genesis.ndarray.ops.movement import as_shape
from genesis.ndarray.ops.special.formula import Term

_OFFSET = ((1, 1),)  # the slice of the state that is its offset
_DIGITS = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}  # of a significand


class Generator:
    """A source of random numbers on one device.

    >>> first, second = (uniform(3, generator=Generator().manual_seed(7)).tolist() for _ in "ab")
    >>> first == second
    True
    """

    def __init__(self, seed: int | str = 0, device: str | None = None) -> None:
        # ``Generator("cpu")``: the first argument may be PyTorch's.
        self.device = chosen(seed if isinstance(seed, str) else device)
        self._seed = 0 if isinstance(seed, str) else seed
        self._state = State(self._initial(self._seed))

    def _initial(self, seed: int) -> Value:
        state = np.array([seed & ((1 << 64) - 1), 0], np.uint64)
        return copied(state, self.device).value

    def manual_seed(self, seed: int) -> Generator:
        """Start afresh from a seed; gives the generator."""
        thread.listener.writing(self, "_seed", seed)
        self._seed = seed
        with self._state.lock:
            self._state.write(self._initial(seed))
        return self

    def initial_seed(self) -> int:
        """The seed it began from."""
        thread.listener.reading(self, "_seed", self._seed)
        return self._seed

    def seed(self) -> int:
        """Start afresh from a seed that nobody knows, which it gives."""
        self.manual_seed(_any_seed())
        return self._seed

    def get_state(self) -> NDArray:
        """What `set_state` goes on from."""
        return self.state

    def set_state(self, state: NDArray) -> Generator:
        """Go on from where a generator was."""
        self.state = getattr(state, "array", state)
        return self

    @property
    def state(self) -> NDArray:
        """The key and the number of words drawn."""
        return wrap(self._state.value)

    @state.setter
    def state(self, state: NDArray) -> None:
        if state.shape != (2,) or state.dtype is not uint64:
            raise ValueError(f"a state is uint64 of shape (2,), not {state.dtype} {state.shape}")
        with self._state.lock:
            self._state.write(state.value)

    def __reduce__(self) -> tuple[Any, ...]:
        # A state is found by the recordings that draw from it, so a copy has one of its own.
        return _restored, (self.state.numpy(), self.device)

    def words(self, count: Dim) -> Value:
        """The next `count` random 64-bit words."""
        with self._state.lock:
            words = RandomWords(self._state.value)
            found = words.words(count)
            self._state.write(words.state)
        return found

    def draw(self, graph: Subgraph) -> Value:
        """What a graph makes of the state, besides the state that follows."""
        with self._state.lock:
            made = graph.copy([self._state.value], self.device)
            drawn, after = graph.places
            self._state.write(made[after])
        return made[drawn]


class RandomWords:
    """Random words from a state on."""

    def __init__(self, state: Value) -> None:
        self.state = state

    def words(self, count: Dim) -> Value:
        """The next `count` random 64-bit words."""
        state, device = self.state, self.state.device
        key = primitive.reshape(primitive.slice_(state, ((0, 1),), (1,)), ())
        offset = primitive.slice_(state, _OFFSET, (1,))
        advance = primitive.extent(count, uint64, device)
        advanced = elementwise(ops.ADD, offset, advance)
        self.state = primitive.update(state, advanced, _OFFSET)
        index = cast(primitive.iota(count, device), uint64)
        counter = elementwise(ops.ADD, primitive.reshape(offset, ()), index)
        return elementwise(ops.RANDOM, key, counter)


#: Graphs of draws that came before, by what was asked for; None: it came once.
_draws: dict[Any, Subgraph | None] = {}
_MOST_DRAWS = 1 << 10
_KNOWN = (bool, int, float, type(None))


def _drawn(
    make: Callable[[RandomWords, Shape, DType, Any, Any], Value],
    generator: Generator | None,
    sizes: Shape,
    dtype: DType,
    *numbers: Any,
) -> NDArray:
    """An array of what is made of the next words: its graph is built once, and then copied."""
    source = generator or default_generator()
    known = all(type(n) is int for n in sizes) and all(type(n) in _KNOWN for n in numbers)
    if known and thread.recorder is None:
        key = make, sizes, dtype, repr(numbers), source.device
        graph = _draws.get(key)
        if graph is not None:
            return wrap(source.draw(graph))
        if key in _draws:
            before = primitive.parameter(uint64, (2,), source.device)
            words = RandomWords(before)
            value = make(words, sizes, dtype, *numbers)
            graph = Subgraph([before], [value, words.state])
            _draws[key] = graph
            return wrap(source.draw(graph))
        if len(_draws) >= _MOST_DRAWS:
            _draws.clear()
        _draws[key] = None
    with source._state.lock:
        words = RandomWords(source._state.value)
        value = make(words, sizes, dtype, *numbers)
        source._state.write(words.state)
    return wrap(value)


def _restored(state: Any, device: str) -> Generator:
    generator = Generator(0, device)
    generator.state = copied(state, device)
    return generator


class _Default:
    """The generators used where none is given, one per device, and the seed for new ones."""

    def __init__(self) -> None:
        self.seed = 0
        self.generators: dict[str, Generator] = {}
        self.lock = threading.Lock()


_default = _Default()


def default_generator(device: str | None = None) -> Generator:
    """The generator a device uses where none is given."""
    where = chosen(device)
    found = _default.generators.get(where)
    if found is None:
        # Made once and kept: no part of a function that happens to draw first.
        with _default.lock, unrecorded():
            found = _default.generators.setdefault(where, Generator(_default.seed, where))
    return found


def default_generators() -> list[Generator]:
    """The generators of all devices that are used where none is given."""
    return list(_default.generators.values())


def manual_seed(seed: int) -> Generator:
    """Start the default generators of all devices afresh from a seed; gives the CPU's."""
    if not isinstance(seed, SupportsIndex):
        raise TypeError(f"manual_seed: the seed is an integer, not {seed!r}")
    thread.listener.writing(_default, "seed", seed)
    _default.seed = seed
    for generator in default_generators():
        generator.manual_seed(seed)
    return default_generator("cpu")


def initial_seed() -> int:
    """The seed that the default generators began from."""
    return default_generator("cpu").initial_seed()


def seed() -> int:
    """Start the default generators afresh from a seed that nobody knows, which it gives."""
    chosen_seed = _any_seed()
    manual_seed(chosen_seed)
    return chosen_seed


def default_states() -> tuple[int, dict[str, NDArray]]:
    """Where the default generators are: the seed for new ones, and the state of each device's."""
    return _default.seed, {name: g.state for name, g in list(_default.generators.items())}


def restore_default_states(states: tuple[int, Mapping[str, NDArray]]) -> None:
    """Put the default generators where `default_states` found them."""
    _default.seed, found = states
    for name in list(_default.generators):
        if name not in found:
            _default.generators[name].manual_seed(_default.seed)
    for name, state in found.items():
        default_generator(name).state = state


def uniform(
    shape: Dim | Sequence[Dim] = (),
    low: Scalar = 0.0,
    high: Scalar = 1.0,
    dtype: Any = float32,
    generator: Generator | None = None,
) -> NDArray:
    """Numbers equally likely anywhere from low to below high; so are both parts of complex ones."""
    sizes, target = _request("uniform", shape, dtype)
    if target.is_complex:
        re, im = (uniform(shape, low, high, target.real, generator) for _ in range(2))
        return complex(re, im)
    return _drawn(_uniform, generator, sizes, target, low, high)


def _uniform(source: RandomWords, sizes: Shape, dtype: DType, low: Scalar, high: Scalar) -> Value:
    part = _fraction(Term(source.words(product(sizes))), dtype)
    if (low, high) != (0, 1):
        part = part * part.argument(high - low) + part.argument(low)
    return primitive.reshape(part.value, sizes)


def _fraction(words: Term, dtype: DType) -> Term:
    """Words as numbers from 0 to below 1, all of them exact: as many bits as the type has."""
    digits = _DIGITS[dtype.name]
    bits = words >> (64 - digits)
    if digits < 32:
        bits = bits.cast(int32)  # converts to floating point faster than 64 bits do
    return bits.cast(dtype) * 2.0**-digits


def normal(
    shape: Dim | Sequence[Dim] = (),
    mean: Number = 0.0,
    std: Scalar = 1.0,
    dtype: Any = float32,
    generator: Generator | None = None,
) -> NDArray:
    """Numbers from the normal distribution, by Box and Muller's transformation.

    `std` is that of a complex number as a whole: the variance is shared by both parts.
    """
    sizes, target = _request("normal", shape, dtype)
    if target.is_complex:
        middle = builtins.complex(mean)
        each = std / math.sqrt(2)
        re, im = (
            normal(shape, part, each, target.real, generator) for part in (middle.real, middle.imag)
        )
        return complex(re, im)
    return _drawn(_normal, generator, sizes, target, mean, std)


def _normal(source: RandomWords, sizes: Shape, dtype: DType, mean: Scalar, std: Scalar) -> Value:
    count, wide = product(sizes), dtype.accumulator
    words = Term(source.words(count))
    # The radius takes the upper 40 bits, so that the tails reach past 7; the angle the lower 24,
    # or for float64 a word of its own.
    upper = (words >> (11 if wide is float64 else 24)).cast(wide)
    distance = ((upper + 0.5) * (2.0**-53 if wide is float64 else 2.0**-40)).min(1)
    angle = _fraction(Term(source.words(count)) if wide is float64 else words << 40, wide)
    radius = (distance.apply(ops.LOG) * -2).apply(ops.SQRT)
    value = radius * (angle * (2 * math.pi)).apply(ops.COS)
    if std != 1:
        value = value * value.argument(std)
    if mean != 0:
        value = value + value.argument(mean)
    return primitive.reshape(value.cast(dtype).value, sizes)


def integers(
    low: int,
    high: int,
    shape: Dim | Sequence[Dim] = (),
    dtype: Any = int64,
    generator: Generator | None = None,
) -> NDArray:
    """Integers from low to below high; the bias of the remainder is below (high - low) / 2**64."""
    if low >= high:
        raise ValueError(f"integers: there are none from {low} to below {high}")
    sizes, target = as_shape("integers", _sequence(shape)), as_dtype(dtype)
    return _drawn(_integers, generator, sizes, target, low, high)


def _integers(source: RandomWords, sizes: Shape, dtype: DType, low: int, high: int) -> Value:
    words = Term(source.words(product(sizes)))
    value = (words % words.argument(high - low)).cast(int64)
    value = value + value.argument(low)
    return primitive.reshape(value.cast(dtype).value, sizes)


def permutation(n: Dim, dtype: Any = int64, generator: Generator | None = None) -> NDArray:
    """The numbers from 0 to below n in random order: the one that sorts random words.

    Two of 64 bits are equal, and stay in order, about once in 2**65 / n**2 permutations.
    """
    from genesis.ndarray.ops.sorting import argsort

    if not isinstance(n, Size) and n < 0:
        raise ValueError(f"permutation: n must not be negative, got {n}")
    source = generator or default_generator()
    return argsort(wrap(source.words(n))).astype(dtype)


def bernoulli(
    probability: Scalar, shape: Dim | Sequence[Dim] = (), generator: Generator | None = None
) -> NDArray:
    """True with the given probability, else false."""
    sizes = as_shape("bernoulli", _sequence(shape))
    return _drawn(_bernoulli, generator, sizes, float32, probability, None)


def _bernoulli(
    source: RandomWords, sizes: Shape, dtype: DType, probability: Scalar, _: None
) -> Value:
    return (wrap(_uniform(source, sizes, dtype, 0.0, 1.0)) < probability).value


def _request(name: str, shape: Dim | Sequence[Dim], dtype: Any) -> tuple[Shape, DType]:
    target = as_dtype(dtype)
    if not (target.is_float or target.is_complex):
        raise TypeError(f"{name}: gives floating point, not {target}; see integers")
    return as_shape(name, _sequence(shape)), target


def _sequence(shape: Dim | Sequence[Dim]) -> Sequence[Dim]:
    return tuple(shape) if isinstance(shape, Sequence) else (shape,)


def _any_seed() -> int:
    return int.from_bytes(os.urandom(8), "little") >> 1
