"""Neural networks: layers, losses and what they are made of."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from genesis.functional.registry import public as _public
from genesis.nn import functional as functional, init as init, utils as utils
from genesis.nn.utils import parametrizations as parametrizations
from genesis.nn.activation import *
from genesis.nn.attention import *
from genesis.nn.container import *
from genesis.nn.conv import *
from genesis.nn.dropout import *
from genesis.nn.flatten import *
from genesis.nn.lazy import *
from genesis.nn.linear import *
from genesis.nn.module import *
from genesis.nn.normalization import *
from genesis.nn.adaptive_softmax import *
from genesis.nn.padding import *
from genesis.nn.recurrent import *
from genesis.nn.rotary import *
from genesis.nn.embedding import *
from genesis.nn.parameterless_layers import *
from genesis.nn.transformer import *
from genesis.nn.upsampling import *

if not _TYPE_CHECKING:  # checkers follow the wildcards themselves
    __all__ = [*_public(globals()), "functional", "init", "parametrizations", "utils"]
