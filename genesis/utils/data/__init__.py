"""`genesis.data` under PyTorch's name for it."""

from genesis.data import *
from genesis.data import __all__ as __all__
