"""The device does what other devices of PyTorch do, and leaves these as they are."""

from __future__ import annotations

import copy
import random
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from processes import run
from torch import nn
from torch._dynamo.utils import counters
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import genesis.torch
from genesis import ndarray as nd

D = "genesis"


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    torch.manual_seed(0)
    genesis.torch.fallback("error")
    yield
    genesis.torch.fallback("warn")


def same_on_both(f: Callable[[str], Any], **tolerance: Any) -> None:
    """What a function of a device gives is the same on CPU and device."""
    want, got = (
        torch.utils._pytree.tree_map_only(torch.Tensor, lambda x: x.detach().cpu(), f(place))
        for place in ("cpu", D)
    )
    assert_close(got, want, equal_nan=True, **tolerance)


# ---- random numbers and checkpoints


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpoint_draws_the_same_mask_again(reentrant: bool) -> None:
    def gradient_of(f: Callable[[torch.Tensor], torch.Tensor]) -> None:
        x = torch.ones(500, device=D, requires_grad=True)
        y = checkpoint(f, x, use_reentrant=reentrant)
        y.sum().backward()
        assert x.grad is not None
        assert torch.equal(y.detach(), x.grad)
        assert 0 < y.count_nonzero().item() < 500

    def inner(x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(x, 0.5)

    gradient_of(inner)
    gradient_of(lambda x: checkpoint(inner, nn.functional.dropout(x, 0.1), use_reentrant=reentrant))
    layers = nn.Sequential(nn.Dropout(0.2), nn.Dropout(0.3), nn.Dropout(0.4))
    gradient_of(lambda x: checkpoint_sequential(layers, 2, x, use_reentrant=reentrant))


def test_a_checkpoint_leaves_the_generator_as_it_would_be() -> None:
    def drawn(use: bool) -> list[float]:
        torch.manual_seed(3)
        x = torch.ones(8, device=D, requires_grad=True)
        f = nn.functional.dropout
        y = checkpoint(f, x, use_reentrant=False) if use else f(x)
        y.sum().backward()
        return [*y.tolist(), *torch.rand(4, device=D).tolist()]

    assert drawn(True) == drawn(False)


def test_states_of_generators() -> None:
    torch.manual_seed(5)
    want = torch.rand(3, device=D).tolist()
    torch.manual_seed(5)
    with torch.random.fork_rng(device_type=D):
        torch.rand(7, device=D)
        torch.manual_seed(9)
    assert torch.rand(3, device=D).tolist() == want
    genesis = torch.genesis  # type: ignore[attr-defined]
    states = genesis.get_rng_state_all()
    first = torch.rand(3, device=D).tolist()
    genesis.set_rng_state_all(states)
    assert torch.rand(3, device=D).tolist() == first
    genesis.seed_all()
    assert genesis.initial_seed() != 5


def test_asking_for_a_state_computes_nothing_else() -> None:
    allocated = torch.genesis.memory_allocated  # type: ignore[attr-defined]
    y = torch.ones(1 << 16, device=D) + torch.rand(4, device=D).sum()
    before = allocated()
    torch.genesis.get_rng_state()  # type: ignore[attr-defined]
    assert allocated() - before < (1 << 16) * 4
    assert y.shape == (1 << 16,)


# ---- indices from elsewhere


def _read(device: str) -> Any:
    x = torch.arange(20.0).view(5, 4).to(device)
    mask = torch.tensor([True, False, True, False, True])
    return [
        x[torch.tensor([0, 2])], x[mask], x[[1, 3]], x[np.array([0, 4])], x[mask.numpy()],
        x[:, torch.tensor([1, 1])], x[torch.tensor([0, 1]), torch.tensor([2, 3])], x[mask, 1:3],
        x[torch.tensor(2)], x[None, torch.tensor([[1, 0]])], x[torch.tensor([], dtype=torch.long)],
        x[torch.tensor([0, 1], dtype=torch.int32)],
    ]  # fmt: skip


def _written(device: str) -> Any:
    x = torch.arange(20.0).view(5, 4).to(device)
    mask = torch.tensor([True, False, True, False, True])
    x[torch.tensor([0, 2])] = 1.0
    x[mask] = torch.tensor(5.0)
    x[mask, 1] = 7.0
    x[[1, 3]] *= 2
    x[:, torch.tensor([0])] = -1
    x[np.array([4])] = 3.0
    one = torch.tensor(1.0, device=device)
    x.index_put_((torch.tensor([0, 0]), torch.tensor([3, 3])), one, accumulate=True)
    return [x, x.index_put((mask,), one)]


def _differentiated(device: str) -> Any:
    x = torch.arange(20.0).view(5, 4).to(device).requires_grad_()
    y = x * x
    y[torch.tensor([1])] = 0
    (y[torch.tensor([0, 0, 2])] * 2).sum().backward()
    return x.grad


@pytest.mark.parametrize("f", [_read, _written, _differentiated])
def test_indices_may_be_on_the_cpu(f: Callable[[str], Any]) -> None:
    same_on_both(f)
    with pytest.raises(RuntimeError, match="same device"):
        torch.ones(3, device=D).index_select(0, torch.tensor([0]))  # as on other devices


# ---- sizes that data decides


def _selected(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return (x[mask] * 2).softmax(0).sum(0)


def _put_back(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[mask] = x[mask] @ torch.ones(3, 3, device=x.device)
    return torch.cat([y[mask].mean(0), y[~mask].sum(0), torch.nonzero(mask).sum(0).float()])


def _differentiated_there(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    x = x.detach().requires_grad_()
    nn.functional.mse_loss(x[mask], x[mask].detach() + 1).backward()
    assert x.grad is not None
    return x.grad


@pytest.mark.parametrize("f", [_selected, _put_back, _differentiated_there])
def test_masks_that_select_another_number_need_no_other_program(f: Callable[..., Any]) -> None:
    counts = random.Random(0).sample(range(2, 39), 30)
    compiled = []
    for count in [*counts, 0, 1, 3, 40, 20]:  # 3 and 40 are other sizes of the tensor, too
        x = torch.randn(40, 3)
        mask = torch.zeros(40, dtype=torch.bool)
        mask[torch.randperm(40)[:count]] = True
        before = nd.statistics().compiled
        got = f(x.to(D), mask.to(D)).cpu()
        compiled.append(nd.statistics().compiled - before)
        assert_close(got, f(x, mask), rtol=1e-4, atol=1e-4, equal_nan=True)
    # A number that happens to be another size as well makes another graph.
    assert sum(compiled[3:30]) <= 6, compiled


# ---- parameters that move


def test_parameters_stay_what_they_are_wherever_they_go() -> None:
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    second.weight = first.weight
    model = nn.Sequential(first, second)
    weight, held = first.weight, weakref.ref(first.weight)
    model(torch.ones(1, 3)).sum().backward()
    gradient = weight.grad
    assert gradient is not None
    want = gradient.clone()
    alive = model(torch.ones(1, 3))  # a graph that refers to the parameters
    for place in (D, "cpu", D):
        model.to(place)
        assert first.weight is second.weight is weight is held()
        assert weight.device.type == place and isinstance(weight, nn.Parameter)
        assert weight.is_leaf and weight.requires_grad
        assert weight.grad is gradient and gradient.device.type == place
        assert_close(gradient.cpu(), want)
    weight.grad = None
    model(torch.ones(1, 3, device=D)).sum().backward()
    assert weight.grad is not None
    assert_close(weight.grad.cpu(), want)
    assert alive.grad_fn is not None


def test_an_optimizer_goes_on_after_conversions() -> None:
    def trained(place: str) -> list[torch.Tensor]:
        torch.manual_seed(1)
        model = nn.Linear(3, 3)
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        conversions: list[Callable[[], Any]] = [
            lambda: model.to(place), model.double, model.float, model.half, lambda: model.cpu()
        ]  # fmt: skip
        for convert in conversions:
            convert()
            like = model.weight
            for state in optimizer.state.values():
                state["momentum_buffer"] = state["momentum_buffer"].to(like.device, like.dtype)
            optimizer.zero_grad()
            x = torch.ones(2, 3, device=like.device, dtype=like.dtype)
            model(x).square().sum().backward()
            before = like.detach().clone()
            optimizer.step()
            assert not torch.equal(before, like)
        return [p.detach().float() for p in model.parameters()]

    assert_close(trained(D), trained("cpu"), rtol=2e-2, atol=2e-2)


def test_scripted_and_lazy_modules_move() -> None:
    scripted = torch.jit.script(nn.Linear(2, 2))
    x = torch.ones(1, 2)
    want = scripted(x)
    scripted.to(D)
    assert_close(scripted(x.to(D)).cpu(), want)
    assert_close(scripted.cpu()(x), want)
    lazy = nn.LazyLinear(4).to(D)
    assert isinstance(lazy.weight, nn.UninitializedParameter)
    assert lazy(torch.ones(2, 3, device=D)).shape == (2, 4)
    assert lazy.weight.shape == (4, 3) and lazy.weight.device.type == D


def test_other_conversions_are_as_without_the_device() -> None:
    seen: list[torch.Size] = []

    def convert(x: torch.Tensor) -> torch.Tensor:
        seen.append(x.shape)
        return x.double()

    model = nn.Linear(2, 3)
    weight = model.weight
    model._apply(convert)
    assert seen == [(3, 2), (3,)]  # called for each parameter, and for nothing else
    assert model.weight is weight and weight.dtype == torch.float64
    assert not torch.__future__.get_swap_module_params_on_conversion()
    assert not torch.__future__.get_overwrite_module_params_on_conversion()


# ---- encoders


def test_an_encoder_with_a_padding_mask() -> None:
    """In eval mode PyTorch computes it on nested tensors: what is padded is zero."""
    genesis.torch.fallback("allow")
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)
    encoder.eval()
    x = torch.randn(3, 5, 8)
    mask = torch.tensor([[0] * 5, [0, 0, 0, 1, 1], [0, 1, 1, 1, 1]]).bool()
    with torch.no_grad():
        want = encoder(x, src_key_padding_mask=mask)
        got = copy.deepcopy(encoder).to(D)(x.to(D), src_key_padding_mask=mask.to(D))
    assert_close(got.cpu(), want, rtol=1e-4, atol=1e-5)
    assert not want[2, 1:].any() and not got[2, 1:].any()


# ---- memory


def test_memory_that_is_freed_is_not_allocated() -> None:
    allocated = torch.genesis.memory_allocated  # type: ignore[attr-defined]
    before = allocated()
    x = torch.ones(1 << 18, device=D)
    torch.genesis.synchronize()  # type: ignore[attr-defined]
    assert allocated() - before >= 1 << 20
    del x
    assert allocated() - before < 1 << 20


def test_memory_counts_tensors_from_when_they_are_made() -> None:
    genesis = torch.genesis  # type: ignore[attr-defined]
    size = 64 << 20  # more than other tests may have left
    before = genesis.memory_allocated()
    x = torch.empty(size // 4, device=D)
    y = x + 1  # pending
    view = y[1:]
    assert genesis.memory_allocated() - before == 2 * size
    assert torch.accelerator.memory_allocated() == genesis.memory_allocated()
    del x, y
    assert genesis.memory_allocated() - before == size
    del view
    assert genesis.memory_allocated() == before
    assert genesis.max_memory_allocated() >= before + 2 * size
    genesis.reset_peak_memory_stats()
    assert torch.accelerator.max_memory_allocated() < before + 2 * size
    z = torch.ones(4, device=D)
    z.untyped_storage().resize_(size)
    assert genesis.memory_allocated() - before == size
    assert genesis.memory_reserved() >= genesis.memory_allocated()
    free, total = genesis.mem_get_info()
    assert 0 < free <= total == genesis.get_device_properties().total_memory


# ---- strides


def _strides(device: str) -> Any:
    f = nn.functional
    images = torch.randn(2, 4, 8, 8).to(device).to(memory_format=torch.channels_last)
    plain = torch.randn(2, 4, 8, 8).to(device)
    weight = torch.randn(3, 4, 3, 3).to(device)
    last = weight.to(memory_format=torch.channels_last)
    matrix = torch.randn(4, 6).to(device)
    square = matrix @ matrix.t() + 5 * torch.eye(4, device=device)
    norm = nn.BatchNorm2d(4).to(device)
    results = [
        f.conv2d(images, weight), f.conv2d(plain, last), f.conv2d(plain, weight),
        f.conv_transpose2d(images, last.transpose(0, 1)[:, :3]),
        norm(images), norm(plain), norm.eval()(images), f.max_pool2d(images, 2),
        f.avg_pool2d(images, 2), f.adaptive_avg_pool2d(images, 1), f.adaptive_max_pool2d(images, 2),
        f.interpolate(images, scale_factor=2), f.pad(images, (1, 1)), f.group_norm(images, 2),
        f.interpolate(images, scale_factor=2, mode="bilinear"),
        f.dropout(images), images.softmax(1), torch.cat([images, images], 1), images.mean((2, 3)),
        images + plain, plain + images, images.relu(), images.double(), images.flip(1),
        images.cumsum(1), images.clone(), images.contiguous(), torch.empty_like(images),
        matrix.t() + 1, matrix.t().softmax(0), matrix.t() @ matrix, matrix.t().cumsum(0),
        matrix.t().sort(0)[0], matrix.t().masked_fill(matrix.t() > 0, 0), matrix.t().sum(0),
        f.layer_norm(matrix.t(), (4,)), f.linear(matrix, matrix), torch.cat([matrix.t()] * 2),
        torch.linalg.inv(square), torch.linalg.cholesky(square), torch.linalg.qr(square)[0],
        torch.linalg.solve(square, matrix), torch.linalg.eigh(square)[1],
        torch.linalg.lstsq(square, matrix)[0], matrix.nonzero(), images.roll(1, 2),
        f.pad(images, (1, 1, 1, 1), mode="reflect"), f.pixel_shuffle(images, 2),
        matrix[:, :, None].expand(4, 6, 3).permute(2, 0, 1) + 1, matrix.t()[::2] * 2,
        torch.fft.fft(matrix, dim=0), torch.fft.rfft2(matrix), torch.fft.irfft(matrix, dim=0),
        matrix.new_empty_strided((2, 3), (1, 2)),
    ]  # fmt: skip
    return [x.stride() for x in results]


def test_results_have_the_strides_that_they_have_on_the_cpu() -> None:
    genesis.torch.fallback("allow")
    want = _strides("cpu")
    assert _strides(D) == want
    assert _strides(D) == want  # by graphs that are copied
    assert _strides(D) == want


def test_gradients_lie_as_what_they_are_of() -> None:
    x = torch.randn(4, 5, device=D).t().requires_grad_()
    x.cumsum(0).sum().backward()
    assert x.grad is not None
    assert x.grad.stride() == x.stride()


# ---- torch.compile of tensors on the device


def test_graph_breaks_leave_the_devices_own_code_alone() -> None:
    """Dynamo looks into all Python that runs between its graphs: kernels are Python."""

    def selected(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        y = x[mask] * 2  # breaks the graph
        return y[:, torch.tensor([True, False, True])] + torch.linalg.det(x[:, :3])

    x = torch.randn(3, 3)
    torch._dynamo.reset()
    counters.clear()
    genesis.torch.fallback("allow")
    compiled = torch.compile(selected, backend="genesis")
    for count in (1, 3):
        mask = torch.arange(3) < count
        assert_close(compiled(x.to(D), mask.to(D)).cpu(), selected(x, mask))
    assert counters["frames"]["total"] <= 6


def _trained_channels_last(device: str) -> Any:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 4, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    ).to(device, memory_format=torch.channels_last)  # fmt: skip
    x = torch.randn(2, 3, 8, 8).to(device, memory_format=torch.channels_last).requires_grad_()
    model(x).square().sum().backward()
    assert x.grad is not None
    assert x.grad.is_contiguous(memory_format=torch.channels_last)
    assert model[0].weight.grad.is_contiguous(memory_format=torch.channels_last)  # type: ignore[union-attr]
    return [x.grad, *(p.grad for p in model.parameters())]


def test_a_network_of_channels_last() -> None:
    same_on_both(_trained_channels_last, rtol=1e-3, atol=1e-4)


# ---- peace


TRAINED_BESIDE_ANOTHER = """
import threading, torch
threads = torch._C._is_multithreading_enabled()
before = torch.accelerator.current_accelerator()
import genesis.torch
assert torch.accelerator.current_accelerator() == before
assert torch._C._is_multithreading_enabled() == threads
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.0), nn.BatchNorm1d(8), nn.Linear(8, 2))
x = torch.randn(6, 4)
model(x).square().sum().backward()
want = [p.grad.clone() for p in model.parameters()]
assert torch._C._is_multithreading_enabled() == threads
model.zero_grad()
model.to("genesis")
def backward():
    model(x.to("genesis")).square().sum().cpu().backward()
backward()
for p, g in zip(model.parameters(), want):
    torch.testing.assert_close(p.grad.cpu(), g, rtol=1e-3, atol=1e-4)
thread = threading.Thread(target=backward)
thread.start()
thread.join()
w = torch.ones(3, requires_grad=True)
(w.to("genesis") * 3).cpu().mul(w).sum().backward()
assert w.grad.tolist() == [6.0] * 3
event = torch.Event("genesis")
event.record()
event.synchronize()
torch.rand(2, device="genesis", generator=torch.Generator("genesis"))
print("trained")
"""


def test_the_device_need_not_be_the_accelerator() -> None:
    """As where there is CUDA: the engine then knows the streams of that, and none of ours."""
    assert run(TRAINED_BESIDE_ANOTHER, GENESIS_TORCH_ACCELERATOR="0") == "trained\n"


def test_backward_passes_of_threads_without_the_device_are_as_they_were() -> None:
    found: list[bool] = []

    def work() -> None:
        w = torch.ones(3, requires_grad=True)
        (w * 2).sum().backward()
        found.append(torch._C._is_multithreading_enabled())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [True]


# ---- as on the CPU


def _data(device: str) -> Any:
    x = torch.arange(3.0).to(device).requires_grad_()
    y = x * 2
    y.data.mul_(5)
    x.data = x.data + 1
    z = y.detach()
    z.add_(1)
    y.sum().backward()
    return [x, y, x.grad]


def _storages(device: str) -> Any:
    x = torch.arange(6.0).to(device)
    part = x[2:4]
    seen = torch.empty(0, device=device).set_(x.untyped_storage(), 1, (2,), (2,))
    seen.mul_(10)
    x.as_strided((2, 2), (2, 1), 1).add_(1)
    x.resize_(2, 2).add_(1)
    return [x, part, seen, x.as_strided((3, 2), (1, 1))]


def _views_in_place(device: str) -> Any:
    x = torch.arange(16.0).view(4, 4).to(device).requires_grad_()
    w = x.clone()
    v = w.view(16)[2:10]
    v.view(4, 2).t()[0].mul_(3)
    w.diagonal().add_(v[:4].clone())
    w.transpose(0, 1)[1] = w[0].clone() ** 2
    (w * w.detach()).sum().backward()
    return [w, v, x.grad]


def _accumulated(device: str) -> Any:
    parameters = [
        nn.Parameter(torch.arange(4.0).to(device)),
        nn.Parameter(torch.ones(2).to(device)),
    ]
    for _ in range(3):
        sum((p * p).sum() for p in parameters).backward()  # type: ignore[union-attr]
    norm = nn.utils.clip_grad_norm_(parameters, 1.0)
    with torch.no_grad():
        for p in parameters:
            assert p.grad is not None
            p -= 0.1 * p.grad
    return [norm, *parameters, *(p.grad for p in parameters)]


def _averaged(device: str) -> Any:
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

    model = nn.BatchNorm1d(3).to(device)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
    for k in range(3):
        model(torch.arange(12.0).view(4, 3).to(device) * k)
        with torch.no_grad():
            for p in model.parameters():
                p.add_(1)
        average.update_parameters(model)
    return list(average.state_dict().values())


def _hooked(device: str) -> Any:
    seen: list[torch.Tensor] = []
    x = torch.arange(3.0).to(device).requires_grad_()
    x.register_hook(lambda g: g * 2)
    y = x * 3
    y.register_hook(seen.append)
    y.retain_grad()
    with torch.autograd.graph.save_on_cpu():
        z = (y * y).sum()
    z.backward()
    return [x.grad, y.grad, *seen]


@pytest.mark.parametrize("f", [_data, _storages, _views_in_place, _accumulated, _averaged, _hooked])
def test_tensors_behave_as_on_the_cpu(f: Callable[[str], Any]) -> None:
    same_on_both(f, rtol=1e-4, atol=1e-4)


def test_writes_to_expanded_views_are_refused() -> None:
    for place in ("cpu", D):
        with pytest.raises(RuntimeError):
            torch.zeros(3, device=place).expand(2, 3).add_(1)


def test_random_orders_of_draws_can_be_repeated() -> None:
    chooser = random.Random(0)
    draws: list[Callable[[Any], torch.Tensor]] = [
        lambda g: torch.rand(3, device=D, generator=g),
        lambda g: torch.randn(2, device=D, generator=g),
        lambda g: torch.randperm(5, device=D, generator=g),
        lambda g: torch.empty(3, device=D).uniform_(generator=g),
        lambda g: torch.bernoulli(torch.full((4,), 0.5, device=D), generator=g),
    ]
    order = [chooser.choice(draws) for _ in range(12)]
    for make in (lambda: None, lambda: torch.Generator(D).manual_seed(1)):
        found = []
        for _ in range(2):
            torch.manual_seed(1)
            generator = make()
            found.append([draw(generator).tolist() for draw in order])
        assert found[0] == found[1]
