"""Parameters computed from others: weight norm and spectral norm.

A parametrised module keeps what is trained under ``parametrizations.<name>``; the attribute itself
becomes an expression of it, computed where it is used. State dicts have PyTorch's names.
"""

from __future__ import annotations

from typing import Any, TypeVar

from genesis import functional
from genesis import ndarray as nd
from genesis.nn.container import ModuleDict
from genesis.nn.module import Module, Parameter
from genesis.tensor import creation
from genesis.tensor.tensor import Tensor

M = TypeVar("M", bound=Module)


def register_parametrization(module: M, tensor_name: str, parametrization: Module) -> M:
    """Have a parameter be what a module makes of the one that is trained."""
    weight = _parameter(module, tensor_name)
    return _parametrise(module, tensor_name, _Registered(weight, parametrization))


def orthogonal(module: M, name: str = "weight") -> M:
    """Keep a matrix orthogonal: the one it is next to now, turned by what is trained.

    Columns, or rows where there are fewer of them, stay of length 1 and at right angles.
    """
    return register_parametrization(module, name, _Orthogonal(_parameter(module, name)))


def weight_norm(module: M, name: str = "weight", dim: int | None = 0) -> M:
    """Train the length and the direction of a parameter apart (Salimans and Kingma 2016).

    There is one length for each position of `dim`, or one in all for None.
    """
    weight = _parameter(module, name)
    return _parametrise(module, name, _WeightNorm(weight, dim))


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
    return _parametrise(module, name, _SpectralNorm(weight, rows, n_power_iterations, eps))


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


class _Registered(Module):
    def __init__(self, weight: Parameter, parametrization: Module) -> None:
        super().__init__()
        start = getattr(parametrization, "right_inverse", lambda x: x)(weight.detach())
        self.original = Parameter(start.array.copy())
        self.add_module("0", parametrization)

    def assign(self, value: Any) -> None:
        """Train on from what gives a value."""
        inverse = getattr(self._modules["0"], "right_inverse", None)
        if inverse is None:
            kind = type(self._modules["0"]).__name__
            raise NotImplementedError(f"{kind} has no right_inverse: it cannot be assigned to")
        self.original.array.assign(inverse(value).array)

    def forward(self) -> Any:
        return self._modules["0"](self.original)


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
    def __init__(self, weight: Parameter, dim: int | None) -> None:
        super().__init__()
        self.dim = dim
        self.original0 = Parameter(self._lengths(weight.detach()).array.copy())
        self.original1 = weight

    def _lengths(self, x: Tensor) -> Tensor:
        rank = len(x.shape)
        dim = None if self.dim is None else self.dim % rank
        others = tuple(d for d in range(rank) if d != dim)
        found: Tensor = functional.vector_norm(x, 2, others, dim is not None)
        return found

    def assign(self, value: Any) -> None:
        """Train on from the length and the direction of a value."""
        self.original0.array.assign(self._lengths(value).array)
        self.original1.array.assign(value.array)

    def forward(self) -> Any:
        return self.original1 * (self.original0 / self._lengths(self.original1))


class _SpectralNorm(Module):
    def __init__(self, weight: Parameter, dim: int, iterations: int, eps: float) -> None:
        super().__init__()
        self.original = weight
        inner = _Direction(weight, dim % max(len(weight.shape), 1), iterations, eps)
        self.add_module("0", inner)

    def assign(self, value: Any) -> None:
        """Train on from a value."""
        self.original.array.assign(value.array)

    def forward(self) -> Any:
        return self._modules["0"](self.original)


class _Direction(Module):
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

    def forward(self, weight: Any) -> Any:
        if len(weight.shape) == 1:
            return functional.normalize(weight, dim=0, eps=self.eps)
        matrix = self._matrix(weight)
        if self.training:
            self._iterate(matrix.detach().array, self.iterations)
        # As they are now: they may be written again before the gradient is computed.
        u, v = (Tensor(x.array.copy()) for x in (self._u, self._v))
        return weight / functional.sum(u * functional.matmul(matrix, v))


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
        return self.parametrizations[name]()

    def assigned(self: Any, value: Tensor) -> None:
        self.parametrizations[name].assign(value.detach())

    attributes = {name: property(computed, assigned), "__doc__": kind.__doc__}
    return type(kind.__name__, (kind,), attributes)


__all__ = [
    "is_parametrized", "orthogonal", "register_parametrization", "remove_parametrizations",
    "spectral_norm", "weight_norm",
]  # fmt: skip
