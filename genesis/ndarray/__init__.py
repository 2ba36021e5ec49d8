"""Lazy arrays: the public namespace for building, writing and realising them.

>>> from genesis import ndarray as nd
>>> x = nd.arange(6).reshape(2, 3)
>>> (x * 2).sum(axis=1).tolist()
[6, 24]

Operations only build a graph; asking for a value (`item`, `numpy`, printing, `realize`) turns it
into few fused kernels and runs them.
"""

from types import ModuleType

from genesis.ndarray import fft as fft
from genesis.ndarray import linalg as linalg
from genesis.ndarray import random as random
from genesis.ndarray.core.device import *
from genesis.ndarray.core.interop import *
from genesis.ndarray.core.ndarray import *
from genesis.ndarray.core.realisation import *
from genesis.ndarray.core.value import *
from genesis.ndarray.core.value_checks import *
from genesis.ndarray.linalg import trace as trace
from genesis.ndarray.ops.activation import *
from genesis.ndarray.ops.adaptive_pooling import *
from genesis.ndarray.ops.bitcast import *
from genesis.ndarray.ops.channel_shuffle import *
from genesis.ndarray.ops.complexes import *
from genesis.ndarray.ops.contraction import *
from genesis.ndarray.ops.convolution import *
from genesis.ndarray.ops.creation import *
from genesis.ndarray.ops.cumulative import *
from genesis.ndarray.ops.elementary import *
from genesis.ndarray.ops.elementwise import *
from genesis.ndarray.ops.float_bits import *
from genesis.ndarray.ops.gather_scatter import *
from genesis.ndarray.ops.grid_sampling import *
from genesis.ndarray.ops.grids import *
from genesis.ndarray.ops.gcd_lcm import *
from genesis.ndarray.ops.interpolation import *
from genesis.ndarray.ops.masks import *
from genesis.ndarray.ops.movement import *
from genesis.ndarray.ops.order_statistics import *
from genesis.ndarray.ops.padding import *
from genesis.ndarray.ops.pooling import *
from genesis.ndarray.ops.reduction import *
from genesis.ndarray.ops.scan import *
from genesis.ndarray.ops.segment_reductions import *
from genesis.ndarray.ops.sliding_windows import *
from genesis.ndarray.ops.sorting import *
from genesis.ndarray.ops.special.bessel import *
from genesis.ndarray.ops.special.error_functions import *
from genesis.ndarray.ops.special.gamma import *
from genesis.ndarray.ops.special.incomplete_gamma import *
from genesis.ndarray.ops.variance_and_distance import *

#: What is imported above is public: functions, classes, and the modules of further functions.
_MODULES = ("fft", "linalg", "random")
__all__ = sorted(
    name
    for name, x in globals().items()
    if name in _MODULES or not (name[0] == "_" or isinstance(x, ModuleType) or x is ModuleType)
)
