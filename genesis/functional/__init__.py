"""Every operation with its gradient: the layer between tensors and arrays.

Functions here take tensors or arrays (`NDArray`) and give the same kind. A `Function` holds an
operation's forward and its gradient rule; everything else is composed of those.

The functions that a module lists in `__all__` are handed on from here to `genesis`. What else is
made of a function, a method or a layer, is said where it is defined; see `registry`.
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from genesis.functional import fft as fft, linalg as linalg, special as special
from genesis.functional.registry import public as _public
from genesis.functional.activation import *
from genesis.functional.arithmetic import *
from genesis.functional.attention import *
from genesis.functional.comparison import *
from genesis.functional.complexes import *
from genesis.functional.contraction import *
from genesis.functional.convolution import *
from genesis.functional.view_copies import *
from genesis.functional.ctc import *
from genesis.functional.cumulative import *
from genesis.functional.diagonals import *
from genesis.functional.dropout import *
from genesis.functional.elementary import *
from genesis.functional.embedding import *
from genesis.functional.indexing import *
from genesis.functional.interpolation import *
from genesis.functional.joining import *
from genesis.functional.linear import *
from genesis.functional.loss import *
from genesis.functional.margin_loss import *
from genesis.functional.masked_and_nonzero import *
from genesis.functional.movement import *
from genesis.functional.normalization import *
from genesis.functional.norms_and_distances import *
from genesis.functional.padding import *
from genesis.functional.pooling import *
from genesis.functional.reduction import *
from genesis.functional.rounding_and_remainders import *
from genesis.functional.scattering import *
from genesis.functional.aliases import *
from genesis.functional.stft import *
from genesis.functional.sorting import *
from genesis.functional.strided import *

# Of the names that have a namespace of their own, those that `genesis` has, too.
from genesis.functional.linalg import (
    cholesky as cholesky, cholesky_inverse as cholesky_inverse, cholesky_solve as cholesky_solve,
    det as det, inverse as inverse, logdet as logdet, matrix_exp as matrix_exp,
    matrix_power as matrix_power, pinverse as pinverse, slogdet as slogdet,
)  # fmt: skip
from genesis.functional.special import (
    digamma as digamma, erf as erf, erfc as erfc, erfinv as erfinv, i0 as i0, igamma as igamma,
    igammac as igammac, lgamma as lgamma, logit as logit, multigammaln as multigammaln,
    mvlgamma as mvlgamma, polygamma as polygamma, xlogy as xlogy,
)  # fmt: skip

if not _TYPE_CHECKING:  # checkers follow the wildcards themselves
    __all__ = [*_public(globals()), "fft", "linalg", "special"]

# Methods of tensors, and parts of operations: no functions of `genesis`.
from genesis.functional.arithmetic import cast as cast
from genesis.functional.function import Context as Context, Function as Function
from genesis.functional.indexing import getitem as getitem
from genesis.functional.linear import scaled_mm as scaled_mm
from genesis.functional.movement import (
    contiguous as contiguous, expand_as as expand_as, is_contiguous as is_contiguous,
    reshape_as as reshape_as, to_device as to_device, view as view, view_as as view_as,
)  # fmt: skip
from genesis.functional.reduction import fit as fit, sum_to as sum_to
from genesis.functional.strided import unfold as unfold
