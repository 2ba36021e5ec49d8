"""Optimizers, learning rate schedules and averages of weights."""

from genesis.optim import lr_scheduler, swa_utils
from genesis.optim.adam import LAMB, Adam, Adamax, AdamW, NAdam, RAdam
from genesis.optim.adaptive import Adadelta, Adafactor, Adagrad, RMSprop
from genesis.optim.swa_utils import (
    SWALR, AveragedModel, get_ema_avg_fn, get_swa_avg_fn, update_bn,
)  # fmt: skip
from genesis.optim.sgd import ASGD, LARS, SGD, Lion, Rprop
from genesis.optim.lbfgs import LBFGS
from genesis.optim.muon import Muon
from genesis.optim.optimizer import Optimizer
from genesis.optim.optimizer import ParameterGroup as Group  # short for annotations

__all__ = [
    "ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "AveragedModel",
    "Group", "LAMB", "LARS", "LBFGS", "Lion", "Muon", "NAdam", "Optimizer", "RAdam", "RMSprop",
    "Rprop", "SGD", "SWALR", "get_ema_avg_fn", "get_swa_avg_fn", "lr_scheduler", "swa_utils",
    "update_bn",
]  # fmt: skip
