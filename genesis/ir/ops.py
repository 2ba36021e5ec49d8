"""The vocabulary: every operation a `Node` can have, in one table.

Three groups share it. *Tensor* operations make up the graph a user builds (leaves, movement,
reductions, contraction, indexing). *Scalar* operations are elementwise: on whole arrays in the
graph, on single values and tiles in kernels. *Kernel* operations exist only in the kernel IR.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, eq=False)
class Op:
    """One operation. Compared by identity; `cost` is in units of one float multiply-add.

    `group` is one of leaf, movement, unary, binary, compare, ternary, reduce, contract, index,
    prefix, complex, boundary, kernel; a pass asks for the group where it does not care for the
    member.
    """

    name: str
    group: str
    cost: int = 1

    def __repr__(self) -> str:
        return self.name

    @property
    def is_elementwise(self) -> bool:
        """Whether output element i depends only on elements i of the inputs."""
        return self.group in ("unary", "binary", "compare", "ternary")

    @property
    def is_movement(self) -> bool:
        """Whether the operation only says where an element is read from."""
        return self.group == "movement"


# ---- leaves of the tensor graph
BUFFER = Op("buffer", "leaf", 0)  # attr Leaf(slot, strides, offset): a realised array
SCALAR = Op("scalar", "leaf", 0)  # attr slot: a Python scalar passed at run time, shape ()
CONST = Op("const", "leaf", 0)  # attr value: known when compiling, shape ()
IOTA = Op("iota", "leaf", 0)  # shape (n,): 0, 1, .. n-1
SIZE = Op("size", "leaf", 0)  # attr Size: a symbolic size as a value, shape (), int64
PARAMETER = Op("parameter", "leaf", 0)  # attr position: an input, inside a body or a merge

# ---- movement: output element -> where it is read
RESHAPE = Op("reshape", "movement", 0)  # same elements in row-major order
PERMUTE = Op("permute", "movement", 0)  # attr axes: output axis d is input axis axes[d]
EXPAND = Op("expand", "movement", 0)  # same rank; input extents of 1 repeat
SLICE = Op("slice", "movement", 0)  # attr ((start, step), ..): reads start + step*i, step != 0
PAD = Op("pad", "movement", 0)  # attr ((low, step), ..): places i at low + step*i; input 1: fill
WINDOW = Op("window", "movement", 0)  # attr (axis, stride, dilation): appends the window axis

# ---- unary
NEG = Op("neg", "unary")
ABS = Op("abs", "unary")
NOT = Op("not", "unary")  # bitwise; logical for bool
SQRT = Op("sqrt", "unary", 4)
EXP = Op("exp", "unary", 10)
EXP2 = Op("exp2", "unary", 10)
LOG = Op("log", "unary", 12)
LOG2 = Op("log2", "unary", 12)
SIN = Op("sin", "unary", 14)
COS = Op("cos", "unary", 14)
TAN = Op("tan", "unary", 20)
TANH = Op("tanh", "unary", 14)
ERF = Op("erf", "unary", 14)
FLOOR = Op("floor", "unary")
CEIL = Op("ceil", "unary")
ROUND = Op("round", "unary")  # halves to even
TRUNC = Op("trunc", "unary")
CAST = Op("cast", "unary")  # to node.dtype; float to integer truncates, saturating; NaN gives 0
BITCAST = Op("bitcast", "unary", 0)  # same width

# ---- binary
ADD = Op("add", "binary")
SUB = Op("sub", "binary")
MUL = Op("mul", "binary")
DIV = Op("div", "binary", 4)  # floats
FLOORDIV = Op("floordiv", "binary", 8)  # integers, rounds down; x // 0 gives 0 (tests divide first)
MOD = Op("mod", "binary", 8)  # integers, sign of the divisor; x % 0 gives 0
FMOD = Op("fmod", "binary", 16)  # floats, exact, sign of the dividend
POW = Op("pow", "binary", 24)
ATAN2 = Op("atan2", "binary", 24)
MAX = Op("max", "binary")  # NaN propagates
MIN = Op("min", "binary")
AND = Op("and", "binary")
OR = Op("or", "binary")
XOR = Op("xor", "binary")
SHL = Op("shl", "binary")  # shift counts at or above the width give 0 (-1 for negative SHR)
SHR = Op("shr", "binary")
PAIRS = Op("pairs", "binary", 2)  # uint32 of two bfloat16 each: both products, added, in float32
RANDOM = Op("random", "binary", 80)  # (key, counter) uint64 -> uint64: threefry-2x32, 20 rounds

# ---- comparisons, to bool
LT = Op("lt", "compare")
LE = Op("le", "compare")
EQ = Op("eq", "compare")
NE = Op("ne", "compare")

WHERE = Op("where", "ternary")  # (condition, then, else)
FMA = Op("fma", "ternary")  # a*b + c in one rounding
LOOKUP = Op("lookup", "ternary")  # (code, low, high): one of the 16 bytes of two constant uint64

# ---- reductions and contraction
SUM = Op("sum", "reduce")  # attr axes: dropped from the shape
PROD = Op("prod", "reduce")
AMAX = Op("amax", "reduce")
AMIN = Op("amin", "reduce")
CONTRACT = Op("contract", "contract")  # attr (lhs, rhs, out) label tuples: sum of products

# ---- indexing by data and functional update
# Indices have one shape, which in the result (in the updates) is where the first of the axes was.
GATHER = Op("gather", "index")  # (x, *indices) attr axes: x[.., index, ..]; clamped to range
SCATTER = Op("scatter", "index")  # (x, *indices, updates) attr (axes, mode): outside is dropped
UPDATE = Op("update", "index")  # (x, value) attr ((start, step), ..): x[start + step*i] = value[i]

# ---- prefixes: element i of the result combines the elements up to i
PREFIX = Op("prefix", "prefix")  # (*xs) attr Prefix

# ---- complex numbers; the compiler splits them into parts first (`compiler/graph/complex.py`)
COMPLEX = Op("complex", "complex", 0)  # (real, imaginary): inputs of one shape, or ()
REAL = Op("real", "complex", 0)
IMAG = Op("imag", "complex", 0)
AS_REAL = Op("as_real", "complex", 0)  # both parts along a new last axis
AS_COMPLEX = Op("as_complex", "complex", 0)  # the inverse

# ---- boundaries: what they read and give lies in memory
SCAN = Op("scan", "boundary")  # (*carries, *xs, *constants) attr Recurrence; read by ITEM only
CALL = Op("call", "boundary")  # attr Call: an operation of the library; read by ITEM only
ITEM = Op("item", "boundary", 0)  # (scan or call) attr k: result k; of a scan carries, then ys

# ---- kernel IR only
AXIS = Op("axis", "kernel", 0)  # attr Axis
LOCAL = Op("local", "kernel", 0)  # attr Local: a block-local value
LOAD = Op("load", "kernel", 1)  # attr Buffer; inputs (*index, mask, other)
SYMBOL = Op("symbol", "kernel", 0)  # attr Symbol: an integer known at launch
PARAM = Op("param", "kernel", 0)  # attr Param: a scalar argument of the kernel

ALL: dict[str, Op] = {v.name: v for v in dict(globals()).values() if isinstance(v, Op)}
REDUCTIONS = (SUM, PROD, AMAX, AMIN)
#: How a SCATTER combines what is there with its updates, which come in row-major order of the
#: indices; None: the last one stays.
MODES: dict[str, Op | None] = {"set": None, "add": ADD, "mul": MUL, "max": MAX, "min": MIN}
#: The binary operation each reduction folds with.
FOLD: dict[Op, Op] = {SUM: ADD, PROD: MUL, AMAX: MAX, AMIN: MIN}
COMMUTATIVE = frozenset({ADD, MUL, MAX, MIN, AND, OR, XOR, EQ, NE})
