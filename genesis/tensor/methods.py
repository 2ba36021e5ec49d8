"""The methods of tensors that are functions: one line for each, so that tools see them.

A method ``x.f(..)`` is ``genesis.f(x, ..)``, and ``x.f_(..)`` writes the result into `x`. What a
function means, and what its gradient is, is said where it is defined, in `genesis.functional`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from genesis import functional
from genesis.functional import strided


def in_place(function: Callable[..., Any]) -> Callable[..., Any]:
    """The method that writes what a function gives into its first argument."""
    name = f"{function.__name__}_"

    def write(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self._replace(name, function(self, *args, **kwargs))

    write.__name__ = write.__qualname__ = name
    write.__doc__ = f"`{function.__name__}`, written into the tensor."
    return write


def view_in_place(function: Callable[..., Any]) -> Callable[..., Any]:
    """The method that turns a tensor into the view of it that a function gives."""
    name = f"{function.__name__}_"

    def become(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self._become(name, lambda x: function(x, *args, **kwargs))

    become.__name__ = become.__qualname__ = name
    become.__doc__ = f"`{function.__name__}`: from now on the tensor is that view of itself."
    return become


class Methods:
    """What a tensor can do by the name of a function."""

    __slots__ = ()

    # ---- functions whose arguments come in another order
    def where(self, condition: Any, other: Any) -> Any:
        """This tensor where the condition holds, `other` elsewhere."""
        return functional.where(condition, self, other)

    def sum_to_size(self, *size: Any) -> Any:
        """The sum over whatever broadcasting from a shape would repeat."""
        listed = len(size) == 1 and not isinstance(size[0], int)
        shape = tuple(size[0]) if listed else size
        return functional.sum_to(self, shape) if shape else functional.sum(self)

    def polygamma(self, n: int) -> Any:
        """The `n`-th derivative of `digamma`."""
        return functional.polygamma(n, self)

    # ---- functions
    abs = functional.abs
    absolute = functional.absolute
    acos = functional.acos
    acosh = functional.acosh
    add = functional.add
    addbmm = functional.addbmm
    addcdiv = functional.addcdiv
    addcmul = functional.addcmul
    addmm = functional.addmm
    addmv = functional.addmv
    addr = functional.addr
    adjoint = functional.adjoint
    all = functional.all
    allclose = functional.allclose
    amax = functional.amax
    amin = functional.amin
    aminmax = functional.aminmax
    angle = functional.angle
    any = functional.any
    arccos = functional.arccos
    arccosh = functional.arccosh
    arcsin = functional.arcsin
    arcsinh = functional.arcsinh
    arctan = functional.arctan
    arctan2 = functional.arctan2
    arctanh = functional.arctanh
    argmax = functional.argmax
    argmin = functional.argmin
    argsort = functional.argsort
    argwhere = functional.argwhere
    as_strided = functional.as_strided
    asin = functional.asin
    asinh = functional.asinh
    atan = functional.atan
    atan2 = functional.atan2
    atanh = functional.atanh
    baddbmm = functional.baddbmm
    bincount = functional.bincount
    bitwise_and = functional.bitwise_and
    bitwise_left_shift = functional.bitwise_left_shift
    bitwise_not = functional.bitwise_not
    bitwise_or = functional.bitwise_or
    bitwise_right_shift = functional.bitwise_right_shift
    bitwise_xor = functional.bitwise_xor
    bmm = functional.bmm
    broadcast_to = functional.broadcast_to
    ceil = functional.ceil
    cholesky = functional.cholesky
    cholesky_inverse = functional.cholesky_inverse
    cholesky_solve = functional.cholesky_solve
    chunk = functional.chunk
    clamp = functional.clamp
    clamp_max = functional.clamp_max
    clamp_min = functional.clamp_min
    clip = functional.clip
    clone = functional.clone
    conj = functional.conj
    conj_physical = functional.conj_physical
    contiguous = functional.contiguous
    copysign = functional.copysign
    corrcoef = functional.corrcoef
    cos = functional.cos
    cosh = functional.cosh
    count_nonzero = functional.count_nonzero
    cov = functional.cov
    cross = functional.cross
    cummax = functional.cummax
    cummin = functional.cummin
    cumprod = functional.cumprod
    cumsum = functional.cumsum
    deg2rad = functional.deg2rad
    det = functional.det
    diag = functional.diag
    diag_embed = functional.diag_embed
    diagflat = functional.diagflat
    diagonal = functional.diagonal
    diagonal_scatter = functional.diagonal_scatter
    diff = functional.diff
    digamma = functional.digamma
    dist = functional.dist
    div = functional.div
    divide = functional.divide
    dot = functional.dot
    dsplit = functional.dsplit
    eq = functional.eq
    erf = functional.erf
    erfc = functional.erfc
    erfinv = functional.erfinv
    exp = functional.exp
    exp2 = functional.exp2
    expand = functional.expand
    expand_as = functional.expand_as
    expm1 = functional.expm1
    fix = functional.fix
    flatten = functional.flatten
    flip = functional.flip
    fliplr = functional.fliplr
    flipud = functional.flipud
    float_power = functional.float_power
    floor = functional.floor
    floor_divide = functional.floor_divide
    fmax = functional.fmax
    fmin = functional.fmin
    fmod = functional.fmod
    frac = functional.frac
    frexp = functional.frexp
    gather = functional.gather
    gcd = functional.gcd
    ge = functional.ge
    ger = functional.ger
    greater = functional.greater
    greater_equal = functional.greater_equal
    gt = functional.gt
    hardshrink = functional.hardshrink
    heaviside = functional.heaviside
    histc = functional.histc
    histogram = functional.histogram
    hsplit = functional.hsplit
    hypot = functional.hypot
    i0 = functional.i0
    imag = property(functional.imag)
    index_add = functional.index_add
    index_copy = functional.index_copy
    index_fill = functional.index_fill
    index_put = functional.index_put
    index_reduce = functional.index_reduce
    index_select = functional.index_select
    inner = functional.inner
    inverse = functional.inverse
    is_contiguous = functional.is_contiguous
    isclose = functional.isclose
    isfinite = functional.isfinite
    isinf = functional.isinf
    isnan = functional.isnan
    isneginf = functional.isneginf
    isposinf = functional.isposinf
    isreal = functional.isreal
    istft = functional.istft
    kron = functional.kron
    kthvalue = functional.kthvalue
    lcm = functional.lcm
    ldexp = functional.ldexp
    le = functional.le
    lerp = functional.lerp
    less = functional.less
    less_equal = functional.less_equal
    lgamma = functional.lgamma
    log = functional.log
    log10 = functional.log10
    log1p = functional.log1p
    log2 = functional.log2
    log_softmax = functional.log_softmax
    logaddexp = functional.logaddexp
    logaddexp2 = functional.logaddexp2
    logcumsumexp = functional.logcumsumexp
    logdet = functional.logdet
    logical_and = functional.logical_and
    logical_not = functional.logical_not
    logical_or = functional.logical_or
    logical_xor = functional.logical_xor
    logit = functional.logit
    logsumexp = functional.logsumexp
    lt = functional.lt
    masked_fill = functional.masked_fill
    masked_scatter = functional.masked_scatter
    masked_select = functional.masked_select
    matmul = functional.matmul
    matrix_exp = functional.matrix_exp
    matrix_power = functional.matrix_power
    max = functional.max
    maximum = functional.maximum
    mean = functional.mean
    median = functional.median
    min = functional.min
    minimum = functional.minimum
    mm = functional.mm
    mode = functional.mode
    moveaxis = functional.moveaxis
    movedim = functional.movedim
    msort = functional.msort
    mul = functional.mul
    multiply = functional.multiply
    mv = functional.mv
    mvlgamma = functional.mvlgamma
    nan_to_num = functional.nan_to_num
    nanmean = functional.nanmean
    nanmedian = functional.nanmedian
    nanquantile = functional.nanquantile
    nansum = functional.nansum
    narrow = functional.narrow
    ne = functional.ne
    neg = functional.neg
    negative = functional.negative
    nextafter = functional.nextafter
    nonzero = functional.nonzero
    nonzero_static = functional.nonzero_static
    norm = functional.norm
    not_equal = functional.not_equal
    outer = functional.outer
    permute = functional.permute
    pinverse = functional.pinverse
    positive = functional.positive
    pow = functional.pow
    prelu = functional.prelu
    prod = functional.prod
    put = functional.put
    quantile = functional.quantile
    rad2deg = functional.rad2deg
    ravel = functional.ravel
    real = property(functional.real)
    reciprocal = functional.reciprocal
    relu = functional.relu
    remainder = functional.remainder
    renorm = functional.renorm
    repeat = functional.repeat
    repeat_interleave = functional.repeat_interleave
    reshape = functional.reshape
    reshape_as = functional.reshape_as
    roll = functional.roll
    rot90 = functional.rot90
    round = functional.round
    rsqrt = functional.rsqrt
    scatter = functional.scatter
    scatter_add = functional.scatter_add
    scatter_reduce = functional.scatter_reduce
    select = functional.select
    select_scatter = functional.select_scatter
    sgn = functional.sgn
    sigmoid = functional.sigmoid
    sign = functional.sign
    signbit = functional.signbit
    sin = functional.sin
    sinc = functional.sinc
    sinh = functional.sinh
    slice_scatter = functional.slice_scatter
    slogdet = functional.slogdet
    softmax = functional.softmax
    sort = functional.sort
    split = functional.split
    split_with_sizes = functional.split_with_sizes
    sqrt = functional.sqrt
    square = functional.square
    squeeze = functional.squeeze
    std = functional.std
    stft = functional.stft
    sub = functional.sub
    subtract = functional.subtract
    sum = functional.sum
    swapaxes = functional.swapaxes
    swapdims = functional.swapdims
    t = functional.t
    take = functional.take
    take_along_dim = functional.take_along_dim
    tan = functional.tan
    tanh = functional.tanh
    tensor_split = functional.tensor_split
    tile = functional.tile
    topk = functional.topk
    trace = functional.trace
    transpose = functional.transpose
    tril = functional.tril
    triu = functional.triu
    true_divide = functional.true_divide
    trunc = functional.trunc
    unbind = functional.unbind
    unflatten = functional.unflatten
    unfold = strided.unfold
    unique = functional.unique
    unique_consecutive = functional.unique_consecutive
    unsqueeze = functional.unsqueeze
    var = functional.var
    vdot = functional.vdot
    view = functional.view
    view_as = functional.view_as
    vsplit = functional.vsplit
    xlogy = functional.xlogy

    # ---- views in place
    as_strided_ = view_in_place(functional.as_strided)
    squeeze_ = view_in_place(functional.squeeze)
    swapaxes_ = view_in_place(functional.swapaxes)
    swapdims_ = view_in_place(functional.swapdims)
    t_ = view_in_place(functional.t)
    transpose_ = view_in_place(functional.transpose)
    unsqueeze_ = view_in_place(functional.unsqueeze)

    # ---- functions in place
    abs_ = in_place(functional.abs)
    absolute_ = in_place(functional.absolute)
    acos_ = in_place(functional.acos)
    acosh_ = in_place(functional.acosh)
    add_ = in_place(functional.add)
    addbmm_ = in_place(functional.addbmm)
    addcdiv_ = in_place(functional.addcdiv)
    addcmul_ = in_place(functional.addcmul)
    addmm_ = in_place(functional.addmm)
    addmv_ = in_place(functional.addmv)
    addr_ = in_place(functional.addr)
    arccos_ = in_place(functional.arccos)
    arccosh_ = in_place(functional.arccosh)
    arcsin_ = in_place(functional.arcsin)
    arcsinh_ = in_place(functional.arcsinh)
    arctan2_ = in_place(functional.arctan2)
    arctan_ = in_place(functional.arctan)
    arctanh_ = in_place(functional.arctanh)
    asin_ = in_place(functional.asin)
    asinh_ = in_place(functional.asinh)
    atan2_ = in_place(functional.atan2)
    atan_ = in_place(functional.atan)
    atanh_ = in_place(functional.atanh)
    baddbmm_ = in_place(functional.baddbmm)
    bitwise_and_ = in_place(functional.bitwise_and)
    bitwise_left_shift_ = in_place(functional.bitwise_left_shift)
    bitwise_not_ = in_place(functional.bitwise_not)
    bitwise_or_ = in_place(functional.bitwise_or)
    bitwise_right_shift_ = in_place(functional.bitwise_right_shift)
    bitwise_xor_ = in_place(functional.bitwise_xor)
    ceil_ = in_place(functional.ceil)
    clamp_ = in_place(functional.clamp)
    clamp_max_ = in_place(functional.clamp_max)
    clamp_min_ = in_place(functional.clamp_min)
    clip_ = in_place(functional.clip)
    conj_physical_ = in_place(functional.conj_physical)
    copysign_ = in_place(functional.copysign)
    cos_ = in_place(functional.cos)
    cosh_ = in_place(functional.cosh)
    cumprod_ = in_place(functional.cumprod)
    cumsum_ = in_place(functional.cumsum)
    deg2rad_ = in_place(functional.deg2rad)
    digamma_ = in_place(functional.digamma)
    div_ = in_place(functional.div)
    divide_ = in_place(functional.divide)
    eq_ = in_place(functional.eq)
    erf_ = in_place(functional.erf)
    erfc_ = in_place(functional.erfc)
    erfinv_ = in_place(functional.erfinv)
    exp2_ = in_place(functional.exp2)
    exp_ = in_place(functional.exp)
    expm1_ = in_place(functional.expm1)
    fix_ = in_place(functional.fix)
    float_power_ = in_place(functional.float_power)
    floor_ = in_place(functional.floor)
    floor_divide_ = in_place(functional.floor_divide)
    fmod_ = in_place(functional.fmod)
    frac_ = in_place(functional.frac)
    gcd_ = in_place(functional.gcd)
    ge_ = in_place(functional.ge)
    greater_ = in_place(functional.greater)
    greater_equal_ = in_place(functional.greater_equal)
    gt_ = in_place(functional.gt)
    heaviside_ = in_place(functional.heaviside)
    hypot_ = in_place(functional.hypot)
    i0_ = in_place(functional.i0)
    index_add_ = in_place(functional.index_add)
    index_copy_ = in_place(functional.index_copy)
    index_fill_ = in_place(functional.index_fill)
    index_put_ = in_place(functional.index_put)
    index_reduce_ = in_place(functional.index_reduce)
    lcm_ = in_place(functional.lcm)
    ldexp_ = in_place(functional.ldexp)
    le_ = in_place(functional.le)
    lerp_ = in_place(functional.lerp)
    less_ = in_place(functional.less)
    less_equal_ = in_place(functional.less_equal)
    lgamma_ = in_place(functional.lgamma)
    log10_ = in_place(functional.log10)
    log1p_ = in_place(functional.log1p)
    log2_ = in_place(functional.log2)
    log_ = in_place(functional.log)
    logical_and_ = in_place(functional.logical_and)
    logical_not_ = in_place(functional.logical_not)
    logical_or_ = in_place(functional.logical_or)
    logical_xor_ = in_place(functional.logical_xor)
    logit_ = in_place(functional.logit)
    lt_ = in_place(functional.lt)
    masked_fill_ = in_place(functional.masked_fill)
    masked_scatter_ = in_place(functional.masked_scatter)
    mul_ = in_place(functional.mul)
    multiply_ = in_place(functional.multiply)
    mvlgamma_ = in_place(functional.mvlgamma)
    nan_to_num_ = in_place(functional.nan_to_num)
    ne_ = in_place(functional.ne)
    neg_ = in_place(functional.neg)
    negative_ = in_place(functional.negative)
    nextafter_ = in_place(functional.nextafter)
    not_equal_ = in_place(functional.not_equal)
    polygamma_ = in_place(polygamma)
    pow_ = in_place(functional.pow)
    put_ = in_place(functional.put)
    rad2deg_ = in_place(functional.rad2deg)
    reciprocal_ = in_place(functional.reciprocal)
    relu_ = in_place(functional.relu)
    remainder_ = in_place(functional.remainder)
    renorm_ = in_place(functional.renorm)
    round_ = in_place(functional.round)
    rsqrt_ = in_place(functional.rsqrt)
    scatter_ = in_place(functional.scatter)
    scatter_add_ = in_place(functional.scatter_add)
    scatter_reduce_ = in_place(functional.scatter_reduce)
    sgn_ = in_place(functional.sgn)
    sigmoid_ = in_place(functional.sigmoid)
    sign_ = in_place(functional.sign)
    sin_ = in_place(functional.sin)
    sinc_ = in_place(functional.sinc)
    sinh_ = in_place(functional.sinh)
    sqrt_ = in_place(functional.sqrt)
    square_ = in_place(functional.square)
    sub_ = in_place(functional.sub)
    subtract_ = in_place(functional.subtract)
    tan_ = in_place(functional.tan)
    tanh_ = in_place(functional.tanh)
    tril_ = in_place(functional.tril)
    triu_ = in_place(functional.triu)
    true_divide_ = in_place(functional.true_divide)
    trunc_ = in_place(functional.trunc)
    xlogy_ = in_place(functional.xlogy)


__all__ = ["Methods", "in_place", "view_in_place"]
