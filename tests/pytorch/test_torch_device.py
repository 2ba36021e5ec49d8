"""``torch.device("genesis")`` behaves as PyTorch's CPU device does, and computes nothing early."""

import contextvars
import copy
import gc
import io
import os
import pickle
import random
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from processes import run
from torch import nn
from torch.testing import assert_close

from genesis import ndarray as nd
from genesis.torch.aten import FallbackWarning, Unsupported, implementations
from genesis.torch.device import (
    cpu_fallback,
    device_names,
    fallback,
    fallbacks,
    graph_cache,
    register,
)
from genesis.torch.device.operator_variants import operator
from genesis.torch.device.storage_contents import contents, runtime

register()

D = "genesis"


def same(device: torch.Tensor, cpu: torch.Tensor, **tolerance: Any) -> None:
    """Equal in device, dtype, shape and contents."""
    assert device.device.type == D
    assert device.dtype == cpu.dtype
    assert_close(device.cpu(), cpu, equal_nan=True, check_stride=False, **tolerance)


def both(function: Callable[..., Any], *tensors: torch.Tensor, **tolerance: Any) -> None:
    """The same call on either device gives the same tensors."""
    want = function(*(t.clone() for t in tensors))
    got = function(*(t.to(D) for t in tensors))
    wants, gots = (x if isinstance(x, tuple | list) else [x] for x in (want, got))
    for g, w in zip(gots, wants, strict=True):
        same(g, w, **tolerance)


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    torch.manual_seed(0)
    fallback("error")
    yield
    fallback("warn")


# ---- laziness


def test_nothing_is_computed_before_it_is_asked_for() -> None:
    x = torch.randn(4, 4).to(D)
    before = nd.statistics()
    y = ((x @ x).relu() * 2 + x.t()).sum(0)
    y[1:3] += 1
    z = y.clone()
    assert nd.statistics() == before
    z.cpu()
    assert nd.statistics().runs == before.runs + 1


def test_a_training_step_is_found_again() -> None:
    model = nn.Linear(4, 3).to(D)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        loss = model(torch.randn(8, 4).to(D)).square().mean()
        loss.backward()
        optimizer.step()
        loss.item()

    for _ in range(3):
        step()
    compiled = nd.statistics().compiled
    for _ in range(5):
        step()
    assert nd.statistics().compiled == compiled


def test_a_loop_that_asks_for_nothing_meets_the_same_programs() -> None:
    x = torch.zeros(3, device=D)

    def turn() -> None:
        x.mul_(0.5).add_(torch.ones(3, device=D).sqrt_())

    for _ in range(3000):
        turn()
    before = nd.statistics()
    for _ in range(3000):
        turn()
    after = nd.statistics()
    assert after.compiled == before.compiled
    assert after.runs > before.runs
    same(x, torch.full((3,), 2.0))


# ---- views and writes


def test_views_share_their_storage() -> None:
    x = torch.randn(4, 4).to(D)
    view = x[1:, 1]
    assert view._base is x
    assert (view.storage_offset(), view.stride()) == (5, (4,))
    assert view.untyped_storage()._cdata == x.untyped_storage()._cdata
    version = x._version
    view.add_(1.0)
    assert x._version == version + 1


def _views(x: torch.Tensor) -> None:
    x.t()[1:3].mul_(2.0)
    x.view(24)[::3].add_(1.0)
    row = x[0]
    x.add_(1.0)
    row.mul_(3.0)
    x.unfold(0, 2, 2)[1, :, 0].neg_()
    x.diagonal().fill_(7.0)
    x.as_strided((3, 2), (7, 2), 1).sub_(0.5)
    x[:, [0, 2]] = x[:, [2, 0]]
    x.view(2, 2, 6).transpose(0, 1)[..., 5].copy_(torch.arange(4.0).view(2, 2))


def test_writes_through_views() -> None:
    x = torch.randn(4, 6)
    y = x.to(D)
    _views(x)
    _views(y)
    same(y, x)


def test_views_in_place() -> None:
    x = torch.arange(6.0).view(1, 2, 3)
    y = x.to(D)
    part = y[:, 1]
    y.squeeze_(0).t_().unsqueeze_(1)
    assert y.shape == (3, 1, 2)
    part.zero_()
    same(y, torch.tensor([[[0.0, 0]], [[1, 0]], [[2, 0]]]))


def test_random_chains_of_views() -> None:
    chooser = random.Random(0)
    for _ in range(60):
        shape = [chooser.randint(1, 5) for _ in range(chooser.randint(1, 4))]
        x = torch.randn(shape)
        y = x.to(D)
        seen = [x, y]
        for _ in range(chooser.randint(1, 5)):
            seen = _another_view(seen, chooser)
        a, b = seen
        assert (a.shape, a.stride(), a.storage_offset()) == (
            b.shape, b.stride(), b.storage_offset(),
        )  # fmt: skip
        same(b, a)
        if 0 not in a.stride():
            a.mul_(2)
            b.mul_(2)
            same(y, x)


def _another_view(seen: list[torch.Tensor], chooser: random.Random) -> list[torch.Tensor]:
    shape = seen[0].shape
    if not shape:
        return [t.unsqueeze(0) for t in seen]
    d = chooser.randrange(len(shape))
    kind = chooser.randrange(6)
    if kind == 0:
        start = chooser.randrange(shape[d])
        length = chooser.randint(1, shape[d] - start)
        return [t.narrow(d, start, length) for t in seen]
    if kind == 1:
        return [t.movedim(d, 0) for t in seen]
    if kind == 2:
        index = chooser.randrange(shape[d])
        return [t.select(d, index) for t in seen]
    if kind == 3 and shape[d] > 1:
        return [t.movedim(d, 0)[1::2] for t in seen]
    if kind == 4 and len(shape) > 1:
        return [t.diagonal(0, d, d - 1) for t in seen]
    return [t.unsqueeze(d).expand(*shape[:d], 2, *shape[d:]) for t in seen]


def test_other_dtypes_of_the_same_storage() -> None:
    def bits(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x.view(torch.int32)[0] += 1
        x.view(torch.uint8)[7] = 0x41
        pairs = torch.view_as_complex(x.view(-1, 2))
        pairs[1] *= 2j
        return x, x.view(torch.int16), pairs.conj(), pairs.conj().imag, pairs.conj() + 1

    both(bits, torch.randn(8))


def test_resizing_keeps_what_fits() -> None:
    x = torch.arange(6.0)
    y = x.to(D)
    for t in (x, y):
        t.resize_(2, 2)
        t.resize_(9)
        t[6:] = 0
    same(y, x)
    out = torch.empty(0, device=D)
    torch.add(torch.ones(3, device=D), 1, out=out)
    same(out, torch.full((3,), 2.0))


def test_layouts_are_kept() -> None:
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    y = x.to(D)
    assert y.stride() == x.stride()
    assert (y * 2 + 1).stride() == (x * 2 + 1).stride()
    assert y.clone().stride() == x.stride()
    same(y.relu_().contiguous(), x.relu())
    assert torch.zeros_like(y).is_contiguous(memory_format=torch.channels_last)


def test_devices_do_not_mix() -> None:
    x = torch.ones(2, device=D)
    same(x + torch.tensor(2.0), torch.full((2,), 3.0))
    with pytest.raises(RuntimeError, match="same device"):
        x + torch.ones(2)
    with pytest.raises(TypeError, match="can't convert genesis"):
        x.numpy()
    with pytest.raises(RuntimeError, match="can't be cast"):
        torch.ones(2, dtype=torch.int64, device=D).add_(0.5)
    with pytest.raises(RuntimeError, match="does not exist"):
        torch.ones(2, device="genesis:7")


# ---- operators


def test_data_dependent_operators_stay_on_the_device() -> None:
    x = torch.randn(6, 5)
    before = fallbacks()
    both(lambda t: torch.topk(t, 3, dim=0), x)
    both(lambda t: torch.sort(t, dim=1, descending=True), x)
    both(lambda t: t[t > 0], x)
    both(lambda t: torch.masked_select(t, t < 0), x)
    both(lambda t: torch.nonzero(t > 0.5), x)
    both(lambda t: torch.unique((t * 2).long(), return_counts=True), x)
    both(lambda t: t[torch.tensor([1, 0, 3]).to(t.device)], x)
    both(lambda t: t.index_put((torch.tensor([1, 1]).to(t.device),), t[:2], accumulate=True), x)
    assert sorted(torch.randperm(9, device=D).tolist()) == list(range(9))
    assert torch.equal(x.to(D), x.to(D)) and not torch.equal(x.to(D), x.to(D) + 1)
    assert fallbacks() == before


def test_integers_are_counted() -> None:
    """As on devices other than the CPU: models with experts rely on it there."""
    x = torch.tensor([0, 3, 3, 7, 1, 3], dtype=torch.int32)
    got = torch.histc(x.to(D), bins=8, min=0, max=7)
    assert got.dtype is torch.int32 and got.tolist() == torch.bincount(x, minlength=8).tolist()


def test_what_has_no_kernel_is_decomposed_or_computed_on_the_cpu() -> None:
    x = torch.rand(3) + 1
    both(torch.nn.functional.hardsigmoid, x)
    both(lambda t: torch.special.entr(t), x)
    torch.library.define("genesis_tests::halved", "(Tensor x) -> Tensor")
    torch.library.impl("genesis_tests::halved", "CPU", lambda t: t / 2)
    name, halved = "genesis_tests::halved", torch.ops.genesis_tests.halved
    with pytest.raises(NotImplementedError, match=name):
        halved(x.to(D))
    fallback("warn")
    with pytest.warns(FallbackWarning, match=name):
        both(halved, x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        both(halved, x)  # once is enough
    assert fallbacks()[name] == 2
    with pytest.raises(ValueError, match="fallback"):
        fallback("perhaps")  # type: ignore[arg-type]


def test_a_kernel_may_leave_arguments_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def picky(*args: Any, **kwargs: Any) -> Any:
        raise Unsupported("today")

    op = operator("aten::xlogy.Tensor")
    monkeypatch.setattr(cpu_fallback, "_functions", {})
    monkeypatch.setitem(implementations, "aten::xlogy.Tensor", picky)
    x, y = torch.rand(3), torch.rand(3)
    same(cpu_fallback.boxed(op, x.to(D), y.to(D)), torch.xlogy(x, y))  # PyTorch decomposes it


def test_dtypes_that_arrays_do_not_have() -> None:
    fallback("allow")
    x = torch.tensor([1.0, -2.5]).to(torch.float8_e4m3fn)
    y = x.to(D)
    assert y.dtype == torch.float8_e4m3fn
    assert torch.equal(y.cpu().view(torch.uint8), x.view(torch.uint8))
    same(y.to(torch.float32), x.float())


def test_batch_norm_writes_its_statistics() -> None:
    cpu = nn.BatchNorm2d(3)
    device = copy.deepcopy(cpu).to(D)
    x = torch.randn(4, 3, 5, 5)
    for mode in (True, True, False):
        cpu.train(mode)
        device.train(mode)
        same(device(x.to(D)), cpu(x), atol=1e-5, rtol=1e-5)
    assert device.running_mean is not None and cpu.running_mean is not None
    same(device.running_mean, cpu.running_mean)
    assert device.num_batches_tracked is not None
    assert device.num_batches_tracked.item() == 2


# ---- autograd and training


def test_gradients_through_views_written_in_place() -> None:
    def gradient(x: torch.Tensor) -> torch.Tensor:
        x.requires_grad_()
        w = x * 1.0
        w[1:3].mul_(2.0)
        w.t()[0] = w[:, 1].clone() ** 2
        (found,) = torch.autograd.grad((w * w).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(found.square().sum(), x)
        return second

    both(gradient, torch.randn(4, 4))


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=False),
    "fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_as_on_the_cpu(name: str) -> None:
    cpu = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3))
    device = copy.deepcopy(cpu).to(D)
    optimizers = [OPTIMIZERS[name](m.parameters()) for m in (cpu, device)]
    x, y = torch.randn(16, 4), torch.randint(0, 3, (16,))
    losses = []
    for _ in range(3):
        for model, optimizer in zip((cpu, device), optimizers, strict=True):
            place = next(model.parameters()).device
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x.to(place)), y.to(place))
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.item())
    assert losses[::2] == pytest.approx(losses[1::2], rel=1e-4)
    for p, q in zip(cpu.parameters(), device.parameters(), strict=True):
        assert isinstance(q, nn.Parameter)
        same(q.detach(), p.detach(), atol=1e-5, rtol=1e-4)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(7, 4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.words.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.words(x))  # type: ignore[no-any-return]


def test_tied_weights_stay_tied() -> None:
    model = Tied().to(D)
    assert model.head.weight is model.words.weight
    assert sum(1 for _ in model.parameters()) == 1
    model(torch.tensor([1, 2]).to(D)).sum().backward()
    assert model.words.weight.grad is not None
    assert model.to("cpu").head.weight is model.words.weight


def test_modules_on_the_cpu_are_as_without_the_device() -> None:
    """PyTorch's way of swapping parameters, which moving needs, cannot load an LSTM's state."""
    model = nn.LSTM(3, 4)
    state = {name: torch.ones_like(x) for name, x in model.state_dict().items()}
    model.load_state_dict(state)
    weight = model.weight_ih_l0
    assert model.double().weight_ih_l0 is weight
    moved = model.to(D)
    assert moved.weight_ih_l0 is weight
    assert weight.is_genesis  # type: ignore[attr-defined]
    same(weight.detach(), torch.ones_like(state["weight_ih_l0"], dtype=torch.float64))
    moved.load_state_dict(state)


def test_parameters_follow_their_data() -> None:
    parameter = nn.Parameter(torch.zeros(2, 2, device=D))
    parameter.data = torch.ones(2, 2, device=D)
    same(parameter.detach(), torch.ones(2, 2))
    assert next(nn.Linear(2, 2).genesis().parameters()).is_genesis  # type: ignore[operator,attr-defined]
    with torch.device(D):
        assert nn.Linear(2, 2).weight.device.type == D


def test_autocast_and_gradient_scaling() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)).to(D)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(D, init_scale=4.0)
    x = torch.randn(8, 4).to(D)
    for bad in (False, True):
        optimizer.zero_grad()
        with torch.autocast(D, dtype=torch.bfloat16):
            hidden = model[0](x)
            assert hidden.dtype == torch.bfloat16
            assert model[1](hidden).dtype == torch.float32
            assert (hidden.float() @ hidden.float().t()).dtype == torch.bfloat16
            loss = nn.functional.mse_loss(model(x), torch.zeros(8, 4, device=D))
        assert loss.dtype == torch.float32
        before = model[0].weight.detach().clone()
        scaler.scale(loss * (float("inf") if bad else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
        assert torch.equal(before, model[0].weight) == bad
    assert scaler.get_scale() == 2.0


def test_transforms() -> None:
    x = torch.randn(3, 4).to(D)
    both(torch.func.vmap(lambda row: row * row.sum()), x.cpu())
    same(torch.func.grad(lambda t: (t * t).sum())(x), 2 * x.cpu())
    same(torch.func.jacrev(torch.sin)(x[0]), torch.diag(x[0].cpu().cos()))
    from torch.utils.checkpoint import checkpoint

    y = x.clone().requires_grad_()
    checkpoint(
        lambda t: nn.functional.dropout(t.sin(), 0.5).sum(), y, use_reentrant=False
    ).backward()
    assert y.grad is not None
    with torch.profiler.profile() as profile:
        torch.mm(x, x.t()).cpu()
    assert "aten::mm" in {event.key for event in profile.key_averages()}


def test_fake_tensors() -> None:
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        assert (torch.empty(3, device=D) + 1).device.type == D


# ---- files, processes, threads


def test_saving_and_copying() -> None:
    x = torch.randn(4, 4)
    y = x.to(D)
    file = io.BytesIO()
    torch.save({"whole": y, "part": y[1:], "half": y.bfloat16()}, file)
    for place in (None, "cpu", D):
        file.seek(0)
        found = torch.load(file, map_location=place)
        assert found["whole"].device.type == (place or D)
        assert_close(found["whole"].cpu(), x)
        found["whole"].add_(1)  # the part shares its memory
        assert_close(found["part"].cpu(), x[1:] + 1)
        assert_close(found["half"].cpu(), x.bfloat16())
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    same(torch.load(file, map_location=D), x)
    same(pickle.loads(pickle.dumps(y)), x)
    twin = copy.deepcopy(y)
    twin.zero_()
    same(y, x)
    cpu, device = nn.Linear(3, 3), nn.Linear(3, 3).to(D)
    cpu.load_state_dict(device.state_dict())
    device.load_state_dict(cpu.state_dict())
    same(device.weight.detach(), cpu.weight.detach())


@pytest.mark.parametrize("workers", [0, 2])
def test_loading_data(workers: int) -> None:
    data = torch.utils.data.TensorDataset(torch.arange(8.0).reshape(8, 1))
    loader = torch.utils.data.DataLoader(data, batch_size=2, num_workers=workers, pin_memory=True)
    total = torch.zeros(1, device=D)
    for (x,) in loader:
        assert x.is_pinned()
        total += x.to(D, non_blocking=True).sum(0)
    assert total.item() == 28


def test_fork() -> None:
    x = torch.ones(3, device=D) * 2
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = int((x.sum() * 2).item() != 12)
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert x.sum().item() == 6


def test_threads() -> None:
    x = torch.randn(8, 8)
    want = (x @ x).sum().item()
    found: list[float] = []

    def work() -> None:
        y = x.to(D)
        found.extend((y @ y).sum().item() for _ in range(10))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == pytest.approx([want] * 30, rel=1e-4)


# ---- torch.genesis


def test_random_numbers() -> None:
    torch.manual_seed(3)
    first = torch.rand(4, device=D).cpu()
    state = torch.genesis.get_rng_state()  # type: ignore[attr-defined]
    second = torch.randn(4, device=D).cpu()
    torch.manual_seed(3)
    assert torch.equal(torch.rand(4, device=D).cpu(), first)
    torch.genesis.set_rng_state(state)  # type: ignore[attr-defined]
    assert torch.equal(torch.randn(4, device=D).cpu(), second)
    draws = [
        torch.rand(3, generator=torch.Generator(device=D).manual_seed(s), device=D).tolist()
        for s in (1, 1, 2)
    ]
    assert draws[0] == draws[1] != draws[2]
    generator = torch.Generator(device=D).manual_seed(5)
    torch.rand(3, generator=generator, device=D)
    twin = generator.clone_state()
    a, b = (torch.rand(3, generator=g, device=D).tolist() for g in (generator, twin))
    assert a == b
    kept = nn.functional.dropout(torch.ones(4000, device=D), 0.25).count_nonzero().item()
    assert 2800 < kept < 3200
    assert torch.randint(0, 5, (100,), device=D).max().item() == 4


def test_the_module() -> None:
    genesis = torch.genesis  # type: ignore[attr-defined]
    assert genesis.is_available() and genesis.device_count() == len(device_names())
    assert device_names()[0] == "cpu" == genesis.get_device_name()
    assert str(torch.accelerator.current_accelerator()) == D
    with genesis.device(0):
        assert genesis.current_device() == 0
    with pytest.raises(RuntimeError, match="does not exist"):
        genesis.set_device(9)
    start, end = (torch.Event(D, enable_timing=True) for _ in range(2))
    start.record()
    x = torch.ones(50, 50, device=D)
    y = x @ x
    end.record()
    end.synchronize()
    assert end.query() and start.elapsed_time(end) > 0
    pending = nd.statistics()
    y.sum().item()
    assert nd.statistics().operations - pending.operations <= 2  # the product was there
    z = y + 1
    genesis.synchronize()
    runs = nd.statistics().runs
    z.cpu()
    assert nd.statistics().runs == runs
    torch.Stream(D).synchronize()
    x.record_stream(genesis.current_stream())
    before = genesis.memory_allocated()
    w = torch.ones(256, 256, device=D)
    genesis.synchronize()
    assert genesis.memory_allocated() - before >= 256 * 256 * 4
    assert genesis.max_memory_allocated() >= genesis.memory_allocated()
    del w
    genesis.empty_cache()
    assert torch.bfloat16 in genesis.get_amp_supported_dtype()


def test_training_leaves_nothing_behind() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.1), nn.ReLU(), nn.Linear(8, 2)).to(D)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    x, y = torch.randn(8, 4), torch.randint(0, 2, (8,))

    def steps(count: int) -> tuple[int, int, int]:
        for _ in range(count):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x.to(D)), y.to(D))
            loss.backward()
            optimizer.step()
            loss.item()
        del loss
        runtime.collect()
        gc.collect()
        alive = torch.genesis.memory_allocated()  # type: ignore[attr-defined]
        return len(contents), alive, len(gc.get_objects())

    steps(5)
    handles, alive, objects = steps(20)
    assert (handles, alive) == steps(150)[:2]
    # Numbers of Adam's come to stand still, and whenever one is met again its operator is recorded.
    assert steps(150)[2] - objects < 250
    objects = steps(200)[2]
    assert steps(150)[2] - objects < 20


# ---- other ways to run it


def test_the_end_is_quiet_where_nothing_was_computed() -> None:
    assert run("import genesis.torch") == ""


def test_a_backward_pass_leaves_nothing_to_other_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    attached: list[weakref.ref[contextvars.Context]] = []

    def copy_context(copy: Any = contextvars.copy_context) -> contextvars.Context:
        context: contextvars.Context = copy()
        attached.append(weakref.ref(context))
        return context

    monkeypatch.setattr(contextvars, "copy_context", copy_context)
    x = torch.ones(4, device=D, requires_grad=True)
    for _ in range(20):
        (x * 2).sum().backward()
        assert attached and not any(context() for context in attached)


def test_a_device_that_comes_after_a_backward_pass() -> None:
    code = """
import torch
w = torch.ones(3, requires_grad=True)
(w * 2).sum().backward()
import genesis.torch
x = torch.ones(4, device="genesis", requires_grad=True)
(x * 3).sum().backward()
print(x.grad.tolist())
"""
    assert run(code) == "[3.0, 3.0, 3.0, 3.0]\n"


def test_without_a_compiler(tmp_path: Any) -> None:
    code = """
import copy, io, torch
from genesis.torch.device import register
register()
x = torch.randn(3, 4)
y = x.to("genesis")
y.t()[1:].mul_(2)
x.t()[1:].mul_(2)
torch.testing.assert_close(y.cpu(), x)
m = torch.nn.Linear(4, 2).to("genesis")
torch.optim.Adam(m.parameters()).step(lambda: m(y).sum().backward())
file = io.BytesIO()
torch.save(y, file)
file.seek(0)
torch.testing.assert_close(torch.load(file).cpu(), x)
torch.testing.assert_close(copy.deepcopy(y).resize_(2, 6).cpu(), x.view(2, 6))
torch.manual_seed(1)
a = torch.rand(3, device="genesis").tolist()
torch.manual_seed(1)
assert a == torch.rand(3, device="genesis").tolist()
from genesis.torch.device.storage_contents import contents, runtime
del y, m
runtime.collect()
print(runtime.__name__, len(contents))
"""
    tmp_path.chmod(0o700)
    out = run(code, TORCH_EXTENSIONS_DIR=str(tmp_path), CXX="no-such-compiler")
    assert out.split() == ["genesis.torch.device.python_runtime", "1"]  # the generator stays


def test_several_devices() -> None:
    code = """
import torch
from genesis.torch.device import register, device_names
register()
assert device_names() == ("cpu", "cpu:1") and torch.genesis.device_count() == 2
x = torch.arange(4.0, device="genesis:1")
y = x * 2
assert y.device.index == 1 and torch.zeros(2, device="genesis").device.index == 0
torch.testing.assert_close((y.to("genesis:0") + 1).cpu(), torch.arange(4.0) * 2 + 1)
with torch.genesis.device(1):
    assert torch.rand(2, device="genesis").device.index == 1
m = torch.nn.Linear(4, 2).to("genesis:1")
m(x).sum().backward()
assert m.weight.grad.device.index == 1
try:
    x + torch.ones(4, device="genesis:0")
except (RuntimeError, ValueError) as error:
    print("refused")
"""
    assert run(code, GENESIS_TORCH_DEVICES="cpu,cpu:1") == "refused\n"


# ---- operators that were met before


def test_copied_operators_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2)]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(36, 5), nn.LayerNorm(5)).to(D)
    state = copy.deepcopy(model.state_dict())

    def training(turns: int) -> list[torch.Tensor]:
        model.load_state_dict(state)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for turn in range(turns):
            optimizer.zero_grad()
            x = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(turn))
            y = model(x.to(memory_format=torch.channels_last).to(D))
            (y.t()[1:] * 0.5 + torch.cat([y[:1], y[1:]])[:, :2].sum()).square().sum().backward()
            optimizer.step()
        return [p.cpu() for p in model.state_dict().values()]

    copied = training(4)
    monkeypatch.setattr(graph_cache.Copies, "find", lambda *_: None)
    for one, other in zip(copied, training(4), strict=True):
        assert torch.equal(one, other)


def test_numbers_and_options_are_part_of_what_is_met() -> None:
    x, there = torch.randn(4, 6), torch.randn(4, 6).to(D)
    there.copy_(x)
    for _ in range(3):
        for k in (0.0, -0.0, 1.0, 1, True, float("nan"), float("inf"), 2**40):
            for one, other in ((x * k, there * k), (x.clamp(max=k), there.clamp(max=k))):
                assert one.dtype == other.dtype
                assert_close(other.cpu(), one, equal_nan=True)
                assert torch.equal(other.cpu().signbit(), one.signbit())
        for form in ("none", "tanh"):
            one = nn.functional.gelu(x, approximate=form)
            assert_close(nn.functional.gelu(there, approximate=form).cpu(), one)
        for dtype in (torch.float64, None, torch.bfloat16):
            assert there.sum(1, dtype=dtype).dtype == x.sum(1, dtype=dtype).dtype
        for part, seen in ((x.t(), there.t()), (x[:, ::2], there[:, ::2]), (x[1:], there[1:])):
            assert_close(seen.exp().cpu(), part.exp())
            assert seen.exp().stride() == part.exp().stride()


# ---- sparse tensors


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.SparseAdam])
def test_sparse_gradients_of_embeddings(optimizer: Any) -> None:
    fallback("allow")
    here = nn.Embedding(10, 4, sparse=True)
    there = copy.deepcopy(here).to(D)
    for model, device in ((here, "cpu"), (there, D)):
        rule = optimizer(model.parameters(), 0.1)
        for words in ([1, 2, 2], [7, 1, 9]):
            rule.zero_grad()
            model(torch.tensor(words, device=device)).square().sum().backward()
            assert model.weight.grad.layout is torch.sparse_coo
            assert model.weight.grad.device.type == device
            rule.step()
    assert_close(there.weight.detach().cpu(), here.weight.detach())


def test_sparse_tensors() -> None:
    fallback("allow")
    dense = torch.tensor([[0.0, 2.0, 0.0], [1.0, 0.0, -3.0]])
    sparse = dense.to(D).to_sparse()
    assert sparse.device.type == D and sparse.is_coalesced() and sparse._nnz() == 3
    assert_close(sparse.to_dense().cpu(), dense)
    assert_close(sparse.cpu().to_dense(), dense)
    assert_close(dense.to_sparse().to(D).to_dense().cpu(), dense)
    assert_close((sparse @ torch.ones(3, 2, device=D)).cpu(), dense @ torch.ones(3, 2))
    assert_close((sparse + sparse).coalesce().values().cpu(), torch.tensor([4.0, 2.0, -6.0]))
    assert_close((torch.ones(2, 3, device=D) + sparse).cpu(), dense + 1)
    twice = torch.sparse_coo_tensor([[0, 0], [1, 1]], [1.0, 2.0], (2, 2), device=D)
    assert_close(copy.deepcopy(twice).coalesce().values().cpu(), torch.tensor([3.0]))
    assert not sparse.zero_().to_dense().any()


def test_sparse_gradients_accumulate() -> None:
    fallback("allow")
    found = []
    for device in ("cpu", D):
        torch.manual_seed(0)
        model = nn.Embedding(10, 3, sparse=True).to(device)
        for _ in range(2):
            model(torch.tensor([1, 1, 4], device=device)).square().sum().backward()
        assert model.weight.grad is not None
        found.append(model.weight.grad.to_dense().cpu())
    assert_close(found[1], found[0])


def test_compressed_tensors() -> None:
    fallback("allow")
    dense = torch.tensor([[0.0, 1.0, 0.0, 0.0], [2.0, 0.0, 3.0, 0.0]])
    for layout in (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc):
        blocks = (1, 2) if layout in (torch.sparse_bsr, torch.sparse_bsc) else None
        here = dense.to_sparse(layout=layout, blocksize=blocks)
        there = dense.to(D).to_sparse(layout=layout, blocksize=blocks)
        for x in (there, here.to(D)):
            assert x.device.type == D and x.layout is layout and x._nnz() == here._nnz()
            assert_close(x.values().cpu(), here.values())
            assert_close(x.to_dense().cpu(), dense)
            assert_close(x.cpu().to_dense(), dense)
    rows = dense.to(D).to_sparse_csr()
    matrix = torch.arange(8.0).view(4, 2)
    assert_close((rows @ matrix.to(D)).cpu(), dense @ matrix)
    assert_close((rows @ matrix[:, 0].to(D)).cpu(), dense @ matrix[:, 0])
    assert_close((rows * 2).to_dense().cpu(), dense * 2)
    for how in ("sum", "mean", "amax", "amin"):  # what it keeps for gradients depends on who asks
        found = []
        for place in ("cpu", D):
            a = dense.to_sparse_csr().to(place).requires_grad_()
            b = matrix.clone().to(place).requires_grad_()
            torch.sparse.mm(a, b, how).square().sum().backward()
            assert a.grad is not None and b.grad is not None
            found.append([a.grad.to_dense().cpu(), b.grad.cpu()])
        assert_close(found[1], found[0])
    assert "crow_indices" in repr(rows) and "genesis" in repr(rows)
