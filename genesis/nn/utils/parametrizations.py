"""Parameters computed from others: weight norm and spectral norm.

A parametrised module keeps what is trained under ``parametrizations.<name>``; the attribute itself
becomes an expression of it, computed where it is used. State dicts have PyTorch's names.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, TypeVar

from genesis import functional
from genesis import ndarray as nd
from genesis.autograd.mode import no_grad
from genesis.nn.container import ModuleDict
from genesis.nn.module import Module, Parameter
from genesis.tensor import creation
from genesis.tensor.tensor import Tensor

M = TypeVar("M", bound=Module)


def register_parametrization(module: M, tensor_name: str, parametrization: Module) -> M:
    """Have a parameter be what a module makes of the one that is trained.

    Registered again, another module goes on with what the modules before it have made.
    """
    if is_parametrized(module, tensor_name):
        module.parametrizations[tensor_name].append(parametrization)
        return module
    weight = _parameter(module, tensor_name)
    return _parametrise(module, tensor_name, ParametrizationList(weight, parametrization))


def orthogonal(module: M, name: str = "weight") -> M:
    """Keep a matrix orthogonal: the one it is next to now, turned by what is trained.

    Columns, or rows where there are fewer of them, stay of length 1 and at right angles.
    """
    return register_parametrization(module, name, _Orthogonal(_parameter(module, name)))


def weight_norm(module: M, name: str = "weight", dim: int | None = 0) -> M:
    """Train the length and the direction of a parameter apart (Salimans and Kingma 2016).

    There is one length for each position of `dim`, or one in all for None.
    """
    return register_parametrization(module, name, _WeightNorm(dim))


def spectral_norm(
    module: M,
    name: str = "weight",
    n_power_iterations: int = 1,
    eps: float = 1e-12,
    dim: int | None = None,
) -> M:
    """Divide a parameter by its greatest singular value (Miyato et al. 2018).

    The parameter counts as a matrix with `dim` as rows (1 for transposed convolutions, else 0).
    The value is found by power iteration, which goes on a little whenever the module is used in
    training.
    """
    if n_power_iterations < 1:
        raise ValueError(f"spectral_norm: needs at least 1 iteration, not {n_power_iterations}")
    weight = _parameter(module, name)
    rows = int(bool(getattr(type(module), "transposed", False))) if dim is None else dim
    made = _SpectralNorm(weight, rows % max(len(weight.shape), 1), n_power_iterations, eps)
    return register_parametrization(module, name, made)


def remove_parametrizations(module: M, tensor_name: str) -> M:
    """Make a parameter of the expression that a parametrised attribute is now."""
    name = tensor_name
    if not is_parametrized(module, name):
        raise ValueError(f"{type(module).__name__} has no parametrised attribute {name!r}")
    value = getattr(module, name).detach().array.copy()
    del module.parametrizations[name]
    kind = type(module)
    module.__class__ = kind.__mro__[1]
    for other in module.parametrizations:
        module.__class__ = _with_property(type(module), other)
    if not len(module.parametrizations):
        del module.parametrizations
    module.register_parameter(name, Parameter(value))
    return module


def is_parametrized(module: Module, tensor_name: str | None = None) -> bool:
    """Whether a module has parametrised attributes, or one of that name."""
    known = module._modules.get("parametrizations")
    return isinstance(known, ModuleDict) and (tensor_name is None or tensor_name in known)


class ParametrizationList(Module):
    """What a parametrised attribute is made of: what is trained, and the modules it goes through.

    What is trained is `original`, or `original0`, `original1`, .. where the first module's
    `right_inverse` gives several tensors.
    """

    def __init__(self, weight: Parameter, first: Module) -> None:
        super().__init__()
        value = _inverted(first, weight.detach())
        self._count = len(value) if isinstance(value, tuple) else 0
        if value is None:
            self.original = weight
        for name, x in zip(self._names, self._listed(value), strict=value is not None):
            # An optimizer that has the parameter goes on with it where its shape is the same.
            same = x.shape == weight.shape and not any(p is weight for p in self.parameters())
            self.register_parameter(name, weight if same else Parameter(x.array.copy()))
            if same:
                weight.array.assign(x.array)
        self.append(first)

    @property
    def _names(self) -> list[str]:
        return [f"original{k}" for k in range(self._count)] if self._count else ["original"]

    @staticmethod
    def _listed(value: Any) -> tuple[Any, ...]:
        return value if isinstance(value, tuple) else () if value is None else (value,)

    def append(self, part: Module) -> None:
        """Go through another module, after those there are."""
        self.add_module(str(len(self)), part)
        part.train(self.training)

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Module]:
        return iter(self._modules.values())

    def __getitem__(self, index: int) -> Module:
        return list(self)[index]

    def assign(self, value: Any) -> None:
        """Train on from what gives a value."""
        for part in reversed(list(self)):
            given = value[0] if isinstance(value, tuple) else value
            value = _inverted(part, given)
            if value is None:
                kind = type(part).__name__
                raise NotImplementedError(f"{kind} has no right_inverse: it cannot be assigned to")
        for name, x in zip(self._names, self._listed(value), strict=True):
            getattr(self, name).array.assign(x.array)

    def forward(self) -> Any:
        """The attribute."""
        first, *others = self
        found = first(*(getattr(self, name) for name in self._names))
        for part in others:
            found = part(found)
        return found


def _inverted(part: Module, value: Any) -> Any:
    """What a module makes a value of; None if it does not say."""
    inverse = getattr(part, "right_inverse", None)
    if inverse is None:
        return None
    with no_grad():
        return inverse(value)


class _Orthogonal(Module):
    def __init__(self, weight: Parameter) -> None:
        super().__init__()
        rows, columns = weight.shape[-2:]
        self.wide = rows < columns
        self.register_buffer("base", self._next_to(weight.detach()))

    def _next_to(self, weight: Tensor) -> Tensor:
        """An orthogonal matrix, tall; of one that is orthogonal, itself."""
        tall = functional.transpose(weight, -2, -1) if self.wide else weight
        q, r = functional.linalg.qr(tall)
        signs = functional.sign(functional.diagonal(r, 0, -2, -1))
        found: Tensor = q * functional.unsqueeze(signs, -2)
        return found

    def right_inverse(self, weight: Tensor) -> Tensor:
        """What is trained when nothing is turned yet, from a weight on."""
        self.base.array.assign(self._next_to(weight).array)
        size = min(weight.shape[-2:])
        return creation.zeros(*weight.shape[:-2], size, size, dtype=weight.dtype)

    def forward(self, x: Any) -> Any:
        below = functional.tril(x, -1)
        turned = functional.matmul(
            self.base, functional.matrix_exp(below - functional.transpose(below, -2, -1))
        )
        return functional.transpose(turned, -2, -1) if self.wide else turned


class _WeightNorm(Module):
    def __init__(self, dim: int | None) -> None:
        super().__init__()
        self.dim = dim

    def _lengths(self, x: Tensor) -> Tensor:
        rank = len(x.shape)
        dim = None if self.dim is None else self.dim % rank
        others = tuple(d for d in range(rank) if d != dim)
        found: Tensor = functional.vector_norm(x, 2, others, dim is not None)
        return found

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """The lengths and the direction of a weight."""
        return self._lengths(weight), weight

    def forward(self, length: Any, direction: Any) -> Any:
        return direction * (length / self._lengths(direction))


class _SpectralNorm(Module):
    """The singular vectors of the greatest singular value, as far as they are known."""

    def __init__(self, weight: Parameter, dim: int, iterations: int, eps: float) -> None:
        super().__init__()
        self.dim, self.iterations, self.eps = dim, iterations, eps
        if len(weight.shape) > 1:
            rows, columns = self._matrix(weight.detach()).shape
            for name, size in (("_u", rows), ("_v", columns)):
                drawn = creation.randn(size, dtype=weight.dtype, device=weight.device)
                self.register_buffer(name, functional.normalize(drawn, dim=0, eps=eps))
            self._iterate(self._matrix(weight.detach()).array, 15)

    def _matrix(self, x: Any) -> Any:
        first = functional.movedim(x, self.dim, 0)
        return functional.reshape(first, (first.shape[0], -1))

    def _iterate(self, matrix: nd.NDArray, count: int) -> None:
        u, v = self._u.array, self._v.array
        for _ in range(count):
            new = functional.normalize(matrix @ v, dim=0, eps=self.eps)
            u.assign(new)
            v.assign(functional.normalize(matrix.T @ new, dim=0, eps=self.eps))

    def right_inverse(self, weight: Tensor) -> Tensor:
        """Trained on as it is, until it is divided again."""
        return weight

    def forward(self, weight: Any) -> Any:
        if len(weight.shape) == 1:
            return functional.normalize(weight, dim=0, eps=self.eps)
        matrix = self._matrix(weight)
        if self.training:
            self._iterate(matrix.detach().array, self.iterations)
        # As they are now: they may be written again before the gradient is computed.
        u, v = (Tensor(x.array.copy()) for x in (self._u, self._v))
        return weight / functional.sum(u * functional.matmul(matrix, v))


#: What classes made here have that others do not.
_MADE = "_has_parametrised_attribute"


class _Cache:
    """Values of parametrised attributes, while somebody wants them computed once."""

    values: ClassVar[dict[tuple[int, str], Any] | None] = None


@contextmanager
def cached() -> Iterator[None]:
    """Compute every parametrised attribute once inside of the ``with`` block."""
    before = _Cache.values
    _Cache.values = {} if before is None else before
    try:
        yield
    finally:
        _Cache.values = before


def type_before_parametrizations(module: Module) -> type:
    """The class that a module was made of."""
    return next(kind for kind in type(module).__mro__ if _MADE not in vars(kind))


def _parameter(module: Module, name: str) -> Parameter:
    found = module._parameters.get(name)
    if found is None:
        raise ValueError(f"{type(module).__name__} has no parameter {name!r} to parametrise")
    return found  # type: ignore[no-any-return]


def _parametrise(module: M, name: str, expression: Module) -> M:
    delattr(module, name)
    if not is_parametrized(module):
        module.parametrizations = ModuleDict()
    module.parametrizations[name] = expression
    expression.train(module.training)
    module.__class__ = _with_property(type(module), name)
    return module


def _with_property(kind: type, name: str) -> Any:
    """A class like another, where an attribute is what its parametrisation gives."""

    def computed(self: Any) -> Any:
        known = _Cache.values
        if known is None:
            return self.parametrizations[name]()
        found = known.get((id(self), name))
        if found is None:
            found = known[id(self), name] = self.parametrizations[name]()
        return found

    def assigned(self: Any, value: Tensor) -> None:
        self.parametrizations[name].assign(value.detach())

    attributes = {name: property(computed, assigned), "__doc__": kind.__doc__, _MADE: True}
    return type(kind.__name__, (kind,), attributes)


__all__ = [
    "ParametrizationList", "cached", "is_parametrized", "orthogonal", "register_parametrization",
    "remove_parametrizations", "spectral_norm", "type_before_parametrizations", "weight_norm",
]  # fmt: skip
