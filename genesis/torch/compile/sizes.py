"""PyTorch's symbolic integers as sizes of ours.

PyTorch describes a dynamic extent by a SymPy expression over symbols with a value range. Ours are
polynomials over symbols with bounds. What is no polynomial, and no quotient by a number, raises
`UndecidableSize`; then the graph is compiled for the numbers at hand (`Sizes` with values).
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Mapping
from typing import Any, cast

import sympy
import torch
from torch.utils._sympy import functions as symbolic

from genesis import ndarray as nd
from genesis.ir.dtype import float64
from genesis.ir.size import UNBOUNDED, Dim, Size, UndecidableSize
from genesis.ndarray import NDArray
from genesis.ndarray.core import primitive
from genesis.ndarray.core.layout import Shape
from genesis.ndarray.core.ndarray import wrap


class Sizes:
    """Integers of one graph, symbolic or, where `values` has all symbols, as numbers.

    Symbols that `same` has are taken for the ones it names, which have the same values.
    """

    def __init__(
        self, values: Mapping[str, int] | None = None, same: Mapping[str, str] | None = None
    ) -> None:
        self.values = values
        self._same = same or {}
        self._symbols: dict[str, Size] = {}

    def dim(self, x: int | torch.SymInt) -> Dim:
        """One extent."""
        if isinstance(x, int):
            return x
        expression = x.node.expr
        if self.values is not None:
            return _value(expression, self.values)
        return self._converted(expression, x.node.shape_env)

    def shape(self, extents: Iterable[int | torch.SymInt]) -> Shape:
        """Several extents, or strides."""
        return tuple(self.dim(x) for x in extents)

    def real(self, x: torch.SymFloat) -> float | NDArray:
        """A real number made of sizes: known, or computed by the program."""
        expression = x.node.expr
        if self.values is not None:
            return float(_replaced(expression, self.values))
        return cast(NDArray, self._real(expression, x.node.shape_env))

    def _real(self, e: Any, env: Any) -> Any:
        if e.is_number:
            return float(e)
        if isinstance(e, symbolic.ToFloat):
            return wrap(primitive.extent(self._converted(e.args[0], env), float64, "cpu"))
        if isinstance(e, symbolic.IntTrueDiv):
            over, under = (self._real(symbolic.ToFloat(a), env) for a in e.args)
            return over / under
        parts = [self._real(a, env) for a in e.args]
        if isinstance(e, sympy.Add | sympy.Mul):
            return functools.reduce(operator.add if e.is_Add else operator.mul, parts)
        if isinstance(e, symbolic.FloatTrueDiv):
            return parts[0] / parts[1]
        if isinstance(e, symbolic.OpaqueUnaryFn_sqrt):
            return nd.sqrt(parts[0])
        if isinstance(e, symbolic.FloatPow):
            return parts[0] ** parts[1]
        raise UndecidableSize(f"{e} is not known before the program runs")

    def _converted(self, e: Any, env: Any) -> Dim:
        if e.is_Integer:
            return int(e)
        if e.is_Symbol:
            return self._symbol(e, env)
        parts: list[Any] = [self._converted(a, env) for a in e.args]
        if isinstance(e, sympy.Add | sympy.Mul):
            return cast(Dim, functools.reduce(operator.add if e.is_Add else operator.mul, parts))
        if isinstance(e, sympy.Pow) and isinstance(parts[1], int) and 0 < parts[1] < 5:
            return cast(Dim, functools.reduce(operator.mul, parts[:1] * parts[1]))
        if isinstance(e, symbolic.FloorDiv | symbolic.CleanDiv):
            return cast(Dim, parts[0] // parts[1])
        if isinstance(e, symbolic.Mod | symbolic.PythonMod):
            return cast(Dim, parts[0] % parts[1])
        raise UndecidableSize(f"the size {e} is no polynomial")

    def _symbol(self, symbol: Any, env: Any) -> Size:
        name = self._same.get(str(symbol), str(symbol))
        found = self._symbols.get(name)
        if found is None:
            known = env.var_to_range[symbol]
            low, high = _bounded(known.lower, 0), _bounded(known.upper, UNBOUNDED)
            found = self._symbols[name] = Size.symbol(name, low, high)
        return found


def symbol_name(x: Any) -> str | None:
    """The name of the symbol that a symbolic integer is, if it is just that."""
    if isinstance(x, torch.SymInt) and x.node.expr.is_Symbol:
        return str(x.node.expr)
    return None


def number(x: Any, values: Mapping[str, int]) -> int:
    """A symbolic integer as a number, where its symbols have these values."""
    return x if isinstance(x, int) else _value(x.node.expr, values)


def _value(expression: Any, values: Mapping[str, int]) -> int:
    return int(_replaced(expression, values))


def _replaced(expression: Any, values: Mapping[str, int]) -> Any:
    return expression.xreplace({s: sympy.Integer(values[str(s)]) for s in expression.free_symbols})


def _bounded(x: Any, otherwise: int) -> int:
    """A bound of PyTorch's, which may be infinite, as one of ours."""
    return min(max(int(x), 0), UNBOUNDED) if x.is_Integer else otherwise
