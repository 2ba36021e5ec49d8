"""Optimizers, learning rate schedules and averages of weights."""

from genesis.optim import averaging as swa_utils
from genesis.optim import lr_scheduler
from genesis.optim.adadelta import Adadelta
from genesis.optim.adafactor import Adafactor
from genesis.optim.adagrad import Adagrad
from genesis.optim.adam import Adam, AdamW
from genesis.optim.adamax import Adamax
from genesis.optim.asgd import ASGD
from genesis.optim.averaging import (
    SWALR,
    AveragedModel,
    get_ema_avg_fn,
    get_swa_avg_fn,
    update_bn,
)
from genesis.optim.lamb import LAMB
from genesis.optim.lars import LARS
from genesis.optim.lbfgs import LBFGS
from genesis.optim.lion import Lion
from genesis.optim.muon import Muon
from genesis.optim.nadam import NAdam
from genesis.optim.optimizer import Group, Optimizer
from genesis.optim.radam import RAdam
from genesis.optim.rmsprop import RMSprop
from genesis.optim.rprop import Rprop
from genesis.optim.sgd import SGD

__all__ = [
    "ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "AveragedModel",
    "Group", "LAMB", "LARS", "LBFGS", "Lion", "Muon", "NAdam", "Optimizer", "RAdam", "RMSprop",
    "Rprop", "SGD", "SWALR", "get_ema_avg_fn", "get_swa_avg_fn", "lr_scheduler", "swa_utils",
    "update_bn",
]  # fmt: skip
