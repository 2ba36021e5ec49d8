"""Rules about elementwise arithmetic: constants, identities, choices, conversions.

Most identities of algebra fail for some float. Those here hold for all of them, NaN, infinities
and signed zeros included, or they are for integers, which wrap.
"""

from __future__ import annotations

from math import frexp

import numpy as np

from genesis.compiler.graph.simplify.movement import everywhere, expanded
from genesis.ir import ops
from genesis.ir.dtype import DType
from genesis.ir.node import FALSE, TRUE, Node, const, elementwise, is_const, node
from genesis.ir.rewrite import Rules
from genesis.ir.scalar_semantics import apply

RULES = Rules("scalars")

_ELEMENTWISE = [o for o in ops.ALL.values() if o.is_elementwise]


def _is_exact(dtype: DType) -> bool:
    """Whether arithmetic of this type does not round, and no value differs from itself."""
    return dtype.is_integer or dtype.kind == "bool"


# ---- repetition


def _is_uniform(n: Node) -> Node | None:
    """The scalar a movement chain repeats everywhere, if it does."""
    while n.shape and n.op in (ops.RESHAPE, ops.EXPAND, ops.PERMUTE, ops.SLICE):
        n = n.inputs[0]
    return None if n.shape else n


@RULES.on(_ELEMENTWISE)
def _uniform_operands(n: Node) -> Node | None:
    """An expanded scalar stands for every shape anyway; what is uniform is computed once."""
    if not n.shape:
        return None
    inputs = tuple(_is_uniform(i) or i for i in n.inputs)
    if not any(i.shape for i in inputs):
        return everywhere(node(n.op, inputs, n.attr, n.dtype), n.shape)
    return n.with_inputs(inputs)


@RULES.on(_ELEMENTWISE)
def _repeated_operands(n: Node) -> Node | None:
    """Along an axis where every operand is a repetition the result is one, too."""
    arrays = [i for i in n.inputs if i.shape]
    if not arrays or any(i.op is not ops.EXPAND for i in arrays):
        return None
    sources = [i.inputs[0].shape for i in arrays]
    shape = tuple(
        1 if all(s[d] == 1 for s in sources) else extent for d, extent in enumerate(n.shape)
    )
    if shape == n.shape:
        return None
    inputs = tuple(expanded(i.inputs[0], shape) if i.shape else i for i in n.inputs)
    return expanded(node(n.op, inputs, n.attr, n.dtype, shape), n.shape)


# ---- constants


@RULES.on(_ELEMENTWISE)
def _fold(n: Node) -> Node | None:
    """Operations on constants, computed with the oracle's own definition."""
    if n.shape or not all(i.op is ops.CONST for i in n.inputs):
        return None
    values = [np.asarray(i.attr, i.dtype.numpy) for i in n.inputs]
    return const(apply(n.op, n.dtype, *values).item(), n.dtype)


@RULES.on((ops.ADD, ops.SUB), None, ops.CONST)
def _add_zero(n: Node) -> Node | None:
    """``x - 0`` is x; ``x + 0`` turns -0.0 into 0.0, so only ``x + -0.0`` is for floats."""
    zero = n.inputs[1]
    if not is_const(zero, 0) or n.shape != n.inputs[0].shape:
        return None
    neutral = (repr(zero.attr) == "-0.0") == (n.op is ops.ADD)
    return n.inputs[0] if _is_exact(n.dtype) or (n.dtype.is_float and neutral) else None


@RULES.on((ops.MUL, ops.DIV, ops.FLOORDIV, ops.POW), None, ops.CONST)
def _times_one(n: Node) -> Node | None:
    return n.inputs[0] if is_const(n.inputs[1], 1) and n.shape == n.inputs[0].shape else None


@RULES.on(ops.MUL, ops.CONST)
def _one_times(n: Node) -> Node | None:
    return n.inputs[1] if is_const(n.inputs[0], 1) and n.shape == n.inputs[1].shape else None


@RULES.on((ops.MUL, ops.AND), None, ops.CONST)
def _times_zero(n: Node) -> Node | None:
    """Integers times 0 are 0. Floats are not: NaN and infinity give NaN, negatives -0.0."""
    zero = n.inputs[1]
    return everywhere(zero, n.shape) if _is_exact(n.dtype) and is_const(zero, 0) else None


@RULES.on((ops.ADD, ops.MUL, ops.AND, ops.OR, ops.XOR), None, ops.CONST)
def _constants_meet(n: Node) -> Node | None:
    """``(x + 2) + 3`` is ``x + 5`` for integers; floats would round differently."""
    inner = n.inputs[0]
    if inner.op is not n.op or inner.inputs[1].op is not ops.CONST or not _is_exact(n.dtype):
        return None
    both = elementwise(n.op, inner.inputs[1], n.inputs[1])
    return elementwise(n.op, inner.inputs[0], both)


@RULES.on(ops.DIV, None, ops.CONST)
def _divide_by_power_of_two(n: Node) -> Node | None:
    """A multiplication by ``1 / c`` gives the same bits where that is exact, and costs a quarter.

    Up to 2**14 both are normal numbers of every float type.
    """
    divisor = n.inputs[1].attr
    if not n.dtype.is_float or not 2**-14 <= abs(divisor) <= 2**14:
        return None
    if abs(frexp(divisor)[0]) != 0.5:
        return None
    return elementwise(ops.MUL, n.inputs[0], const(1 / divisor, n.dtype))


@RULES.on(ops.POW, None, ops.CONST)
def _square(n: Node) -> Node | None:
    """A square is a product. A square root is no power: ``(-inf)**0.5`` is infinity, not NaN."""
    x, exponent = n.inputs
    return elementwise(ops.MUL, x, x) if exponent.attr == 2 else None


# ---- an operand twice


@RULES.on((ops.MAX, ops.MIN, ops.AND, ops.OR))
def _idempotent(n: Node) -> Node | None:
    """``max(x, x)`` is x, and so is a second ``max(.., y)`` with the same y: relu of relu."""
    x, y = n.inputs
    if x is y or (x.op is n.op and x.inputs[1] is y):
        return x
    return None


@RULES.on((ops.SUB, ops.XOR))
def _minus_itself(n: Node) -> Node | None:
    """0 for integers; for floats ``x - x`` may be NaN."""
    if n.inputs[0] is not n.inputs[1] or not _is_exact(n.dtype):
        return None
    return everywhere(const(0, n.dtype), n.shape)


@RULES.on((ops.EQ, ops.NE, ops.LT, ops.LE))
def _with_itself(n: Node) -> Node | None:
    """Nothing is less than itself, and what is no float equals itself."""
    x = n.inputs[0]
    if x is not n.inputs[1] or (n.op is not ops.LT and not _is_exact(x.dtype)):
        return None
    return everywhere(TRUE if n.op in (ops.EQ, ops.LE) else FALSE, n.shape)


# ---- signs


@RULES.on((ops.NEG, ops.NOT))
def _twice_negated(n: Node) -> Node | None:
    return n.inputs[0].inputs[0] if n.inputs[0].op is n.op else None


@RULES.on((ops.ADD, ops.SUB), None, ops.NEG)
def _add_negative(n: Node) -> Node:
    """``x + -y`` is ``x - y`` by IEEE's definition, and the other way around."""
    x, y = n.inputs
    return elementwise(ops.SUB if n.op is ops.ADD else ops.ADD, x, y.inputs[0])


@RULES.on(ops.ADD, ops.NEG)
def _negative_plus(n: Node) -> Node:
    x, y = n.inputs
    return elementwise(ops.SUB, y, x.inputs[0])


@RULES.on((ops.MUL, ops.DIV), ops.NEG, ops.NEG)
def _signs_cancel(n: Node) -> Node:
    x, y = n.inputs
    return elementwise(n.op, x.inputs[0], y.inputs[0])


@RULES.on(ops.ABS)
def _sign_is_lost(n: Node) -> Node | None:
    """Of unsigned integers NEG is no change of sign: it wraps."""
    (x,) = n.inputs
    if x.op is ops.ABS:
        return x
    negated = x.op is ops.NEG and n.dtype.kind != "uint"
    return elementwise(ops.ABS, x.inputs[0]) if negated else None


# ---- conversions


@RULES.on((ops.CAST, ops.BITCAST))
def _same_type(n: Node) -> Node | None:
    return n.inputs[0] if n.dtype is n.inputs[0].dtype else None


@RULES.on(ops.CAST, ops.CAST)
def _cast_twice(n: Node) -> Node | None:
    """The first conversion goes if it kept the value, or only bits that the second one drops."""
    source = n.inputs[0].inputs[0]
    first, middle, last = source.dtype, n.inputs[0].dtype, n.dtype
    one_kind = first.kind == "bool" or (first.is_integer == middle.is_integer)
    kept = _widens(first, middle) and (one_kind or last is first)
    wraps = first.is_integer and middle.is_integer and last.is_integer
    if kept or (wraps and middle.bits >= last.bits):
        return elementwise(ops.CAST, source, dtype=last)
    return None


#: The integers and exponents that float types hold: precision in bits, greatest exponent.
_FLOATS = {
    "float8_e4m3fn": (4, 8), "float8_e5m2": (3, 15), "float16": (11, 15), "bfloat16": (8, 127),
    "float32": (24, 127), "float64": (53, 1023),
}  # fmt: skip


def _widens(first: DType, second: DType) -> bool:
    """Whether every value of one type is a value of the other."""
    if first.kind == "bool" or first is second:
        return True
    if first.is_integer and second.is_integer:
        if first.kind == "int" and second.kind == "uint":
            return False
        return first.bits - (first.kind == "int") <= second.bits - (second.kind == "int")
    if second.name not in _FLOATS:
        return False
    precision, exponent = _FLOATS[second.name]
    if first.is_integer:
        return first.bits - (first.kind == "int") <= min(precision, exponent)
    if first.name not in _FLOATS:
        return False
    return _FLOATS[first.name][0] <= precision and _FLOATS[first.name][1] <= exponent


# ---- choices


@RULES.on(ops.WHERE, ops.CONST)
def _known_condition(n: Node) -> Node | None:
    chosen = n.inputs[1] if n.inputs[0].attr else n.inputs[2]
    return everywhere(chosen, n.shape)


@RULES.on(ops.WHERE)
def _no_choice(n: Node) -> Node | None:
    """The same on both sides, or again the same question."""
    condition, then, orelse = n.inputs
    if then is orelse:
        return everywhere(then, n.shape)
    if then.op is ops.WHERE and then.inputs[0] is condition:
        then = then.inputs[1]
    if orelse.op is ops.WHERE and orelse.inputs[0] is condition:
        orelse = orelse.inputs[2]
    return everywhere(elementwise(ops.WHERE, condition, then, orelse), n.shape)


@RULES.on(ops.WHERE, ops.NOT)
def _turned_around(n: Node) -> Node:
    condition, then, orelse = n.inputs
    return elementwise(ops.WHERE, condition.inputs[0], orelse, then)


@RULES.on(ops.WHERE, None, ops.CONST, ops.CONST)
def _condition_itself(n: Node) -> Node | None:
    """``where(c, True, False)`` is c."""
    condition, then, orelse = n.inputs
    if condition.shape != n.shape or {then, orelse} != {TRUE, FALSE}:
        return None
    return condition if then is TRUE else elementwise(ops.NOT, condition)


@RULES.on(ops.NOT)
def _opposite(n: Node) -> Node | None:
    """The opposite of a comparison is one; of an order only without NaN."""
    (x,) = n.inputs
    if x.op is ops.EQ or x.op is ops.NE:
        return elementwise(ops.NE if x.op is ops.EQ else ops.EQ, *x.inputs)
    if x.op in (ops.LT, ops.LE) and _is_exact(x.inputs[0].dtype):
        return elementwise(ops.LE if x.op is ops.LT else ops.LT, *reversed(x.inputs))
    return None
