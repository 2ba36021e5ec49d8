"""Low ranks: adapters trained beside a weight that stays, and weights cut into factors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple, TypeVar

import numpy as np

import genesis
from genesis import functional, nn
from genesis.autograd import no_grad
from genesis.compress.format import Format
from genesis.compress.plan import Choice, choose
from genesis.compress.quantized_layers import QuantizedLinear
from genesis.compress.quantized_tensor import QuantizedTensor, quantize
from genesis.compress.statistics import Statistics

M = TypeVar("M", bound=nn.Module)


class LoRA(nn.Module):
    """A linear layer whose weight stays, plus a product of two small matrices that learn.

    The layer is an `nn.Linear` or a `QuantizedLinear` (then this is QLoRA): gradients pass through
    its weight as floats. With `magnitude`, the norms of the sum's rows learn by themselves (DoRA).
    The product is scaled by ``alpha / rank``, or over the root of the rank with `rooted` (rsLoRA).

    >>> layer = LoRA(nn.Linear(8, 4), rank=2)
    >>> sorted(name for name, p in layer.named_parameters() if p.requires_grad)
    ['down', 'up']
    """

    def __init__(
        self, layer: Any, rank: int = 8, alpha: float | None = None, *,
        magnitude: bool = False, rooted: bool = False, principal: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        rows, k = map(int, layer.weight.shape)
        if not 1 <= rank <= min(rows, k):
            raise ValueError(f"LoRA: a rank of {rank} is not for a weight of {(rows, k)}")
        self.layer = layer.requires_grad_(False)
        self.rank, alpha = rank, float(rank) if alpha is None else alpha
        self.scale = alpha / (math.sqrt(rank) if rooted else rank)
        limit = 1 / math.sqrt(k)
        self.down = nn.Parameter(genesis.rand(rank, k) * (2 * limit) - limit)
        self.up = nn.Parameter(genesis.zeros(rows, rank))
        if principal:
            self._start()
        norms = _norms(self._whole()) if magnitude else None
        self.magnitude = None if norms is None else nn.Parameter(norms.detach())

    @no_grad()
    def _start(self) -> None:
        """Begin with the greatest singular values, and leave the layer the others (PiSSA)."""
        if not isinstance(self.layer, nn.Linear):
            raise ValueError("LoRA: a principal start changes the weight, which is quantised")
        weight = self.layer.weight
        u, s, v = np.linalg.svd(weight.detach().numpy(), full_matrices=False)
        root = np.sqrt(s[: self.rank] / self.scale)
        self.up.copy_(genesis.tensor(u[:, : self.rank] * root))
        self.down.copy_(genesis.tensor(root[:, None] * v[: self.rank]))
        weight.copy_(weight - self.scale * (self.up @ self.down))

    def _base(self) -> Any:
        weight = self.layer.weight
        return weight.dequantize() if isinstance(weight, QuantizedTensor) else weight.detach()

    def _whole(self) -> Any:
        return self._base() + self.scale * (self.up @ self.down)

    def forward(self, input: Any) -> Any:
        """The layer with what was learned."""
        y = functional.linear(input, self._base())
        y = y + self.scale * functional.linear(functional.linear(input, self.down), self.up)
        if self.magnitude is not None:
            y = y * (self.magnitude / _norms(self._whole()).detach())
        return y if self.layer.bias is None else y + self.layer.bias

    @no_grad()
    def merged(self, format: str | Format | None = None) -> tuple[nn.Module, float]:
        """The layer with what was learned as one weight, and how much of it rounding loses.

        As floats nothing is lost; in a format, the loss is the relative squared error.
        """
        weight = self._whole()
        if self.magnitude is not None:
            weight = weight * (self.magnitude / _norms(weight))[:, None]
        bias = self.layer.bias
        if format is None:
            made = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
            made.weight.copy_(weight)
            if bias is not None:
                made.bias.copy_(bias)
            return made, 0.0
        packed = quantize(weight, format)
        off = (packed.dequantize() - weight).numpy()
        lost = float(np.square(off).sum() / np.square(weight.numpy()).sum())
        return QuantizedLinear(packed, None if bias is None else bias.detach()), lost


def _norms(weight: Any) -> Any:
    return functional.sqrt((weight * weight).sum(1))


def adapt_(
    module: M, patterns: Iterable[str] = ("*",), rank: int | Mapping[str, int] = 8, **options: Any
) -> M:
    """Freeze a model and put a `LoRA` around linear layers whose names fit a pattern, in place."""
    kinds = (nn.Linear, QuantizedLinear)
    found = {n: x for n, x in module.named_modules() if type(x) in kinds}
    chosen = [n for n in found if any(fnmatchcase(n, p) for p in patterns)]
    if not chosen:
        raise ValueError(f"adapt_: no linear layer fits {list(patterns)}; there are {list(found)}")
    module.requires_grad_(False)
    for name in chosen:
        own = rank if isinstance(rank, int) else rank.get(name)
        if own is None:
            continue
        parent, _, last = name.rpartition(".")
        setattr(module.get_submodule(parent), last, LoRA(found[name], own, **options))
    return module


def merge_(module: M, format: str | Format | None = None) -> dict[str, float]:
    """Make one layer of every `LoRA` below a module, in place; what rounding lost of each."""
    lost = {}
    for name, layer in list(module.named_modules()):
        if isinstance(layer, LoRA):
            made, lost[name] = layer.merged(format)
            parent, _, last = name.rpartition(".")
            setattr(module.get_submodule(parent), last, made)
    if not lost:
        raise ValueError(f"merge_: {type(module).__name__} has no adapters")
    return lost


# ---- factors


class Factors(NamedTuple):
    """Two matrices whose product is near to a weight."""

    up: Any
    down: Any
    #: The share of the squared error, of the outputs where inputs were seen.
    error: float


def low_rank(weight: Any, rank: int, seen: Statistics | None = None) -> Factors:
    """The product of a rank that is nearest to a weight, or whose outputs are, for inputs seen."""
    w = np.asarray(weight, np.float64)
    root = np.eye(w.shape[1])
    if seen is not None:
        h = seen.second + 1e-6 * np.mean(seen.energy) * np.eye(w.shape[1])
        root = np.linalg.cholesky(h)
    u, s, v = np.linalg.svd(w @ root, full_matrices=False)
    down = np.linalg.solve(root.T, v[:rank].T).T
    error = float((s[rank:] ** 2).sum() / max((s**2).sum(), 1e-300))
    return Factors(u[:, :rank] * s[:rank], down, error)


@no_grad()
def factored(layer: Any, rank: int, seen: Statistics | None = None) -> nn.Sequential:
    """A linear layer as two, through so many channels."""
    up, down, _ = low_rank(layer.weight.detach().numpy(), rank, seen)
    first = nn.Linear(down.shape[1], rank, bias=False)
    second = nn.Linear(rank, up.shape[0], bias=layer.bias is not None)
    first.weight.copy_(genesis.tensor(down.astype(np.float32)))
    second.weight.copy_(genesis.tensor(up.astype(np.float32)))
    if layer.bias is not None:
        second.bias.copy_(layer.bias)
    return nn.Sequential(first, second)


def ranks(
    weights: Mapping[str, Any], numbers: int, seen: Mapping[str, Statistics] | None = None
) -> dict[str, int | None]:
    """The ranks of weights with which their factors have at most so many numbers and lose least.

    None keeps a weight as it is.
    """
    choices = {}
    for name, weight in weights.items():
        rows, k = np.shape(weight)
        own = None if seen is None else seen.get(name)
        scaled = np.asarray(weight, np.float64)
        if own is not None:
            scaled = scaled @ np.linalg.cholesky(own.second + 1e-9 * np.eye(k))
        energy = np.linalg.svd(scaled, compute_uv=False) ** 2
        left = energy[::-1].cumsum()[::-1]
        some = range(1, rows * k // (rows + k))
        own_choices = [Choice(str(r), r * (rows + k), float(left[r])) for r in some]
        choices[name] = [*own_choices, Choice("keep", rows * k, 0.0)]
    found = choose(choices, bytes=numbers)
    return {n: None if c.format == "keep" else int(c.format) for n, c in found.choices.items()}


def cp(tensor: Any, rank: int, rounds: int = 500, seed: int = 0) -> list[Any]:
    """Factors (size, rank) of each axis whose products' sum is near to a tensor, by ALS."""
    x, rng = np.asarray(tensor, np.float64), np.random.default_rng(seed)
    factors = [_first(x, axis, rank, rng) for axis in range(x.ndim)]
    letters = "abcdefgh"[: x.ndim]
    for _ in range(rounds):
        for axis in range(x.ndim):
            others = [i for i in range(x.ndim) if i != axis]
            equation = f"{letters},{','.join(letters[i] + 'r' for i in others)}->{letters[axis]}r"
            right = np.einsum(equation, x, *(factors[i] for i in others), optimize=True)
            gram = np.prod([factors[i].T @ factors[i] for i in others], 0)
            factors[axis] = np.linalg.solve(gram + 1e-12 * np.trace(gram) * np.eye(rank), right.T).T
    return factors


def _first(x: Any, axis: int, rank: int, rng: np.random.Generator) -> Any:
    unfolded = np.moveaxis(x, axis, 0).reshape(x.shape[axis], -1)
    u = np.linalg.svd(unfolded, full_matrices=False)[0][:, :rank]
    more = rng.standard_normal((len(u), rank - u.shape[1]))
    return np.concatenate([u, more], 1) + 0.1 * rng.standard_normal((len(u), rank))


def cp_sum(factors: Sequence[Any]) -> Any:
    """The tensor that CP factors stand for."""
    letters = "abcdefgh"[: len(factors)]
    return np.einsum(f"{','.join(c + 'r' for c in letters)}->{letters}", *factors, optimize=True)


def tucker(tensor: Any, sizes: Sequence[int], rounds: int = 20) -> tuple[Any, list[Any]]:
    """A core of given sizes and a matrix (size, core's size) for each axis, by ALS (HOOI)."""
    x = np.asarray(tensor, np.float64)
    factors = [_basis(x, axis, size) for axis, size in enumerate(sizes)]
    for _ in range(rounds):
        for axis, size in enumerate(sizes):
            others = [(i, f) for i, f in enumerate(factors) if i != axis]
            factors[axis] = _basis(_projected(x, others), axis, size)
    return _projected(x, list(enumerate(factors))), factors


def _basis(x: Any, axis: int, size: int) -> Any:
    unfolded = np.moveaxis(x, axis, 0).reshape(x.shape[axis], -1)
    return np.linalg.svd(unfolded, full_matrices=False)[0][:, :size]


def _projected(x: Any, factors: Iterable[tuple[int, Any]]) -> Any:
    for axis, factor in factors:
        x = np.moveaxis(np.tensordot(factor.T, x, (1, axis)), 0, axis)
    return x


def tucker_sum(core: Any, factors: Sequence[Any]) -> Any:
    """The tensor that a core and its factors stand for."""
    return _projected(core, [(axis, f.T) for axis, f in enumerate(factors)])


__all__ = [
    "Factors", "LoRA", "adapt_", "cp", "cp_sum", "factored", "low_rank", "merge_", "ranks",
    "tucker", "tucker_sum",
]  # fmt: skip
