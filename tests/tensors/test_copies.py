"""`copy` and `pickle` of arrays, tensors, modules, optimizers and schedules: what was shared stays
shared, what was apart stays apart, and a copy goes on as the original does.
"""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import genesis
from genesis import ndarray as nd
from genesis import nn, optim

Copy = Callable[[Any], Any]
COPIES: list[Copy] = [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
every_copy = pytest.mark.parametrize("copied", COPIES, ids=["deepcopy", "pickle"])

DTYPES = "bool_ int8 uint8 int64 uint64 float8_e4m3fn float16 bfloat16 float32 float64 complex64"


@every_copy
@pytest.mark.parametrize("name", DTYPES.split())
def test_arrays_and_tensors_keep_type_and_contents(copied: Copy, name: str) -> None:
    dtype = getattr(genesis, name)
    array = nd.array([[0, 1, 2], [1, 0, 1]]).astype(dtype)
    view = array.T[1:]
    for x in (array, view, nd.flip(view, 0)):
        again = copied(x)
        assert again.dtype is dtype
        np.testing.assert_array_equal(again.numpy(), x.numpy())
    tensor = copied(genesis.Tensor(array))
    assert tensor.dtype is dtype and tensor.tolist() == array.tolist()


@every_copy
def test_copies_own_their_memory(copied: Copy) -> None:
    """A copy that shared bytes would see them overwritten, or free them a second time."""
    for _ in range(20):
        array = nd.array(np.arange(1000.0)).realize()
        again = copied(array)
        del array
        noise = [nd.array(np.full(1000, float(k))).realize() for k in range(5)]
        assert again.tolist() == list(range(1000))
        again += 1
        assert [x.tolist()[7] for x in noise] == list(range(5))


def test_a_shallow_copy_of_a_tensor_shares_its_memory() -> None:
    x = nn.Parameter(genesis.zeros(2))
    x.tag = "mine"
    y = copy.copy(x)
    y.data[0] = 3
    assert (type(y), y.requires_grad, y.tag, x.tolist()) == (nn.Parameter, True, "mine", [3, 0])


@every_copy
def test_buffers_stay_buffers(copied: Copy) -> None:
    buffer = copied(nn.Buffer(genesis.ones(2), persistent=False))
    assert type(buffer) is nn.Buffer and buffer.persistent is False
    layer = copied(nn.BatchNorm1d(2))
    assert dict(layer.named_buffers()).keys() == dict(nn.BatchNorm1d(2).named_buffers()).keys()


@every_copy
def test_a_generator_goes_on_alike(copied: Copy) -> None:
    generator = genesis.Generator(3)
    genesis.rand(5, generator=generator)
    again = copied(generator)
    mine = [genesis.rand(4, generator=g).tolist() for g in (generator, again, generator, again)]
    assert mine[0] == mine[1] != mine[2] == mine[3]


class Net(nn.Module):
    """With a weight that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 3)
        self.tied = self.first.weight

    def forward(self, x: Any) -> Any:
        return self.last(genesis.tanh(self.first(x))) @ self.tied.T


OPTIMIZERS: dict[str, Callable[[Any], optim.Optimizer]] = {
    "SGD": lambda p: optim.SGD(p, 0.1, momentum=0.9, nesterov=True),
    "Adam": lambda p: optim.Adam(p, 0.01, amsgrad=True),
    "AdamW": lambda p: optim.AdamW(p, 0.01),
    "Adagrad": lambda p: optim.Adagrad(p, 0.1),
    "Adadelta": lambda p: optim.Adadelta(p),
    "Adamax": lambda p: optim.Adamax(p),
    "Adafactor": lambda p: optim.Adafactor(p),
    "ASGD": lambda p: optim.ASGD(p, 0.1),
    "LBFGS": lambda p: optim.LBFGS(p, 0.1, max_iter=2),
    "NAdam": lambda p: optim.NAdam(p),
    "RAdam": lambda p: optim.RAdam(p),
    "RMSprop": lambda p: optim.RMSprop(p, 0.01, centered=True, momentum=0.5),
    "Rprop": lambda p: optim.Rprop(p),
}


def _train(model: Net, optimizer: optim.Optimizer, schedule: Any, steps: int) -> list[Any]:
    x = genesis.tensor(np.random.default_rng(0).standard_normal((5, 3)), dtype=genesis.float32)
    for _ in range(steps):

        def closure() -> Any:
            optimizer.zero_grad()
            loss = (model(x) ** 2).mean()
            loss.backward()
            return loss

        optimizer.step(closure)
        schedule.step()
    return [p.tolist() for p in model.parameters()]


@every_copy
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_goes_on_from_a_copy(copied: Copy, name: str) -> None:
    """Model, optimizer and schedule are copied together, and so stay about the same parameters."""
    genesis.manual_seed(0)
    model = Net()
    groups = [{"params": model.first.parameters(), "lr": 0.02}, {"params": model.last.parameters()}]
    if name == "LBFGS":
        groups = list(model.parameters())  # type: ignore[arg-type]
    optimizer = OPTIMIZERS[name](groups)
    optimizer.register_step_pre_hook(lambda *_: None)  # which pickle could not keep
    schedule = optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    before = _train(model, optimizer, schedule, 3)
    again, other, later = copied((model, optimizer, schedule))
    assert again.tied is again.first.weight
    assert later.optimizer is other
    assert {id(p) for g in other.param_groups for p in g["params"]} == {
        id(p) for p in again.parameters()
    }
    for ours, theirs in zip(other.param_groups, optimizer.param_groups, strict=True):
        assert {k: v for k, v in ours.items() if k != "params"} == {
            k: v for k, v in theirs.items() if k != "params"
        }
    mine = _train(again, other, later, 4)
    assert [p.tolist() for p in model.parameters()] == before  # they share nothing
    assert mine == _train(model, optimizer, schedule, 4)


def test_an_optimizer_alone_is_copied_with_its_parameters() -> None:
    x = genesis.ones(2, requires_grad=True)
    optimizer = optim.Adam([x], lr=0.5)
    again = copy.deepcopy(optimizer)
    (mine,) = again.param_groups[0]["params"]
    mine.grad = genesis.ones(2)
    again.param_groups[0]["lr"] = 0.25
    again.step()
    assert x.tolist() == [1, 1] and mine.tolist() == pytest.approx([0.75, 0.75])
    assert optimizer.param_groups[0]["lr"] == 0.5


SCHEDULES: dict[str, Callable[[optim.Optimizer], Any]] = {
    "StepLR": lambda o: optim.lr_scheduler.StepLR(o, 2),
    "OneCycleLR": lambda o: optim.lr_scheduler.OneCycleLR(o, 0.3, total_steps=20),
    "CyclicLR": lambda o: optim.lr_scheduler.CyclicLR(o, 0.1, 0.5, cycle_momentum=False),
    "CosineAnnealingWarmRestarts": lambda o: optim.lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
    "SequentialLR": lambda o: optim.lr_scheduler.SequentialLR(
        o,
        [optim.lr_scheduler.ConstantLR(o), optim.lr_scheduler.ExponentialLR(o, 0.9)],
        milestones=[3],
    ),
    "ChainedScheduler": lambda o: optim.lr_scheduler.ChainedScheduler(
        [optim.lr_scheduler.ConstantLR(o), optim.lr_scheduler.ExponentialLR(o, 0.9)]
    ),
    "SWALR": lambda o: optim.SWALR(o, 0.01),
}


@every_copy
@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_go_on_from_a_copy(copied: Copy, name: str) -> None:
    optimizer = optim.SGD([genesis.ones(2, requires_grad=True)], lr=0.2)
    schedule = SCHEDULES[name](optimizer)
    schedule.step()
    again = copied(schedule)
    for _ in range(6):
        schedule.step()
        again.step()
        assert again.get_last_lr() == schedule.get_last_lr()
        assert again.optimizer.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"]


@every_copy
def test_an_averaged_model_is_copied(copied: Copy) -> None:
    model = nn.Linear(2, 2)
    average = optim.AveragedModel(model)
    average.update_parameters(model)
    again = copied(average)
    for one in (average, again):
        with genesis.no_grad():
            model.weight.mul_(2)  # which can be undone exactly
        one.update_parameters(model)
        with genesis.no_grad():
            model.weight.div_(2)
    np.testing.assert_array_equal(
        again.module.weight.detach().numpy(), average.module.weight.detach().numpy()
    )
