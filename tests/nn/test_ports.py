"""What ports of PyTorch programs use beyond tensors and layers, beside PyTorch."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.utils.prune

import genesis

LIBRARIES: tuple[Any, Any] = (genesis, torch)


def drawn(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def filled(lib: Any, model: Any) -> Any:
    """A model with parameters that do not depend on the library."""
    with lib.no_grad():
        for seed, p in enumerate(model.parameters()):
            p.copy_(lib.tensor(drawn(seed, *p.shape) * 0.3))
    return model


def alike(run: Any, tolerance: float = 1e-5) -> None:
    ours, theirs = (list(run(lib)) for lib in LIBRARIES)
    np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)


def test_an_optimizer_of_ones_own() -> None:
    """State of a parameter is an empty dictionary where there is none yet."""

    def run(lib: Any) -> Iterator[float]:
        class Lion(lib.optim.Optimizer):  # type: ignore[misc]
            def __init__(self, params: Any, lr: float) -> None:
                super().__init__(params, {"lr": lr})

            @lib.no_grad()  # type: ignore[misc]
            def step(self, closure: Any = None) -> None:
                for group in self.param_groups:
                    for p in group["params"]:
                        state = self.state[p]
                        if len(state) == 0:
                            state["m"] = lib.zeros_like(p)
                        m = state["m"]
                        p.add_((m * 0.9 + p.grad * 0.1).sign_(), alpha=-group["lr"])
                        m.mul_(0.99).add_(p.grad, alpha=0.01)

        model = filled(lib, lib.nn.Linear(4, 3))
        optimizer = Lion(model.parameters(), 0.01)
        schedule = lib.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        average = lib.optim.swa_utils.AveragedModel(
            model, multi_avg_fn=lib.optim.swa_utils.get_ema_multi_avg_fn(0.8)
        )
        equal = lib.optim.swa_utils.AveragedModel(
            model, multi_avg_fn=lib.optim.swa_utils.get_swa_multi_avg_fn()
        )
        for k in range(6):
            loss = model(lib.tensor(drawn(k, 5, 4))).square().sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            for each in (average, equal):
                each.update_parameters(model)
            if k == 3:
                optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
            yield loss.item()
        yield from (x.module.weight.sum().item() for x in (average, equal))
        yield optimizer.state[model.weight]["m"].sum().item()

    alike(run)


def test_parametrisations_are_lists() -> None:
    """Several on top of each other, found by their number, assigned to, computed once."""

    def run(lib: Any) -> Iterator[float]:
        nn, P = lib.nn, lib.nn.utils.parametrize
        calls = []

        class Skew(nn.Module):  # type: ignore[misc]
            def forward(self, x: Any) -> Any:
                calls.append(1)
                return x.triu(1) - x.triu(1).transpose(-1, -2)

            def right_inverse(self, x: Any) -> Any:
                return x.triu(1)

        class Double(nn.Module):  # type: ignore[misc]
            def forward(self, x: Any) -> Any:
                return 2 * x

            def right_inverse(self, x: Any) -> Any:
                return x / 2

        layer = filled(lib, nn.Linear(3, 3))
        kind, original = type(layer), layer.weight
        P.register_parametrization(layer, "weight", Skew())
        P.register_parametrization(layer, "weight", Double())
        parts = layer.parametrizations.weight
        assert [type(x) for x in parts] == [Skew, Double] and len(parts) == 2
        assert isinstance(parts[0], Skew) and isinstance(parts, P.ParametrizationList)
        assert parts.original is original and P.type_before_parametrizations(layer) is kind
        optimizer = lib.optim.SGD(layer.parameters(), 0.1)
        for k in range(3):
            count = len(calls)
            with P.cached():
                loss = (layer(lib.tensor(drawn(k, 2, 3))) + layer.weight.sum()).square().sum()
            assert len(calls) == count + 1
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            yield loss.item()
        new = lib.tensor(drawn(9, 3, 3))
        layer.weight = new - new.transpose(0, 1)
        yield (layer.weight - (new - new.transpose(0, 1))).abs().max().item()
        for module in (lib.nn.utils.parametrizations.weight_norm(filled(lib, nn.Linear(3, 2))),):
            yield len(module.parametrizations.weight)
            yield from module.parametrizations.weight.original0.flatten().tolist()
            yield from sorted(map(len, module.state_dict()))
        P.remove_parametrizations(layer, "weight")
        assert type(layer) is kind

    alike(run)


def test_pruning() -> None:
    def run(lib: Any) -> Iterator[float]:
        nn, prune = lib.nn, lib.nn.utils.prune
        layer = filled(lib, nn.Linear(6, 5))
        prune.l1_unstructured(layer, "weight", amount=0.3)
        assert {*layer.state_dict()} == {"bias", "weight_orig", "weight_mask"}
        optimizer = lib.optim.SGD(layer.parameters(), 0.1)
        for k in range(3):
            loss = layer(lib.tensor(drawn(k, 4, 6))).square().sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            yield loss.item()
        prune.ln_structured(layer, "weight", amount=2, n=2, dim=0)
        yield from layer.weight_mask.flatten().tolist()
        copied = copy.deepcopy(nn.Sequential(nn.ReLU(), filled(lib, nn.Linear(6, 5))))
        assert not prune.is_pruned(copied)
        other = filled(lib, nn.Linear(6, 2))
        prune.global_unstructured(
            [(layer, "weight"), (other, "weight"), (other, "bias")],
            pruning_method=prune.L1Unstructured,
            amount=9,
        )
        yield from other.weight_mask.flatten().tolist()
        yield from layer.weight_mask.flatten().tolist()
        prune.custom_from_mask(other, "weight", lib.tensor([[1.0] * 6, [0.0] * 6]))
        assert prune.is_pruned(nn.Sequential(other))
        yield other(lib.ones(1, 6)).sum().item()
        prune.remove(other, "weight")
        assert "weight" in dict(other.named_parameters())
        yield other(lib.ones(1, 6)).sum().item()
        for wrong in (1.5, 100):
            with pytest.raises(ValueError):
                prune.l1_unstructured(other, "weight", amount=wrong)

    alike(run)


def test_pruning_by_a_method_of_ones_own() -> None:
    def run(lib: Any) -> Iterator[float]:
        nn, prune = lib.nn, lib.nn.utils.prune

        class Every(prune.BasePruningMethod):  # type: ignore[misc, name-defined]
            PRUNING_TYPE = "unstructured"

            def __init__(self, step: int) -> None:
                self.step = step

            def compute_mask(self, t: Any, default_mask: Any) -> Any:
                """Of one that was pruned before, what is left is given as a vector."""
                mask = default_mask.clone()
                mask.view(-1)[:: self.step] = 0
                return mask

        one, other = filled(lib, nn.Linear(6, 5)), filled(lib, nn.Linear(5, 3))
        Every.apply(one, "weight", 3)
        yield from one.weight_mask.flatten().tolist()
        Every.apply(one, "weight", step=2)
        yield from one.weight_mask.flatten().tolist()
        prune.global_unstructured([(one, "weight"), (other, "weight")], Every, step=4)
        yield from one.weight_mask.flatten().tolist()
        yield from other.weight_mask.flatten().tolist()
        prune.LnStructured.apply(other, "weight", 1, 2, 0)
        yield from other.weight_mask.flatten().tolist()
        prune.random_structured(other, "weight", amount=2, dim=1)
        columns = other.weight_mask.sum(0)
        assert (columns == 0).sum().item() == 2
        with pytest.raises((TypeError, ValueError)):
            prune.global_unstructured([(one, "weight")], prune.LnStructured, amount=1)

    alike(run)


def test_a_gradient_that_has_none() -> None:
    for lib in LIBRARIES:

        class Sign(lib.autograd.Function):  # type: ignore[misc]
            @staticmethod
            def forward(ctx: Any, x: Any) -> Any:
                ctx.save_for_backward(x)
                return x.sign()

            @staticmethod
            @lib.autograd.function.once_differentiable  # type: ignore[misc]
            def backward(ctx: Any, grad: Any) -> Any:
                (x,) = ctx.saved_tensors
                return grad * (x.abs() <= 1).to(grad.dtype)

        x = lib.tensor([0.5, 2.0], requires_grad=True)
        (first,) = lib.autograd.grad((Sign.apply(x) * x).sum(), x)
        assert first.tolist() == [1.5, 1.0]
        if lib is genesis:  # PyTorch leaves out a part of the second gradient
            (first,) = lib.autograd.grad((Sign.apply(x) * x).sum(), x, create_graph=True)
            with pytest.raises(RuntimeError, match="once_differentiable"):
                lib.autograd.grad(first.sum(), x)


def test_a_generator_is_left_as_it_was() -> None:
    for lib in LIBRARIES:
        lib.manual_seed(3)
        expected = lib.rand(4).tolist()
        lib.manual_seed(3)
        with lib.random.fork_rng():
            lib.rand(9).tolist()
            lib.manual_seed(5)
        assert lib.rand(4).tolist() == expected
        lib.cuda.manual_seed_all(7)  # nothing where there is no such device
        random.seed(0)


NEAR: tuple[tuple[Any, Any, dict[str, Any]], ...] = (
    ([1.0, 2.0], [1.0, 2.000001], {}),
    ([1.0, 2.0], [1.0, 2.1], {}),
    ([1.0, 2.0], [1.0, 2.1], {"rtol": 0.1, "atol": 0.0}),
    ([1.0, float("nan")], [1.0, float("nan")], {}),
    ([1.0, float("nan")], [1.0, float("nan")], {"equal_nan": True}),
    ([1.0, float("inf")], [1.0, float("inf")], {}),
    ([1.0], [1.0, 1.0], {}),
    ([True, False], [True, True], {}),
    ([1, 2], [1, 2], {}),
    ([1, 2], [1, 3], {}),
    ([1.0], [1], {}),
    ([1.0], [1], {"check_dtype": False}),
)


@pytest.mark.parametrize("case", range(len(NEAR)))
def test_comparisons(case: int) -> None:
    a, b, options = NEAR[case]
    verdicts = []
    for lib in LIBRARIES:
        for x, y in (
            (lib.tensor(a), lib.tensor(b)),
            ({"k": [lib.tensor(a)]}, {"k": [lib.tensor(b)]}),
        ):
            try:
                lib.testing.assert_close(x, y, **options)
                verdicts.append(True)
            except AssertionError:
                verdicts.append(False)
    assert len(set(verdicts)) == 1


@pytest.mark.parametrize(
    "path",
    [
        "nn.parameter.Parameter", "nn.utils.prune.l1_unstructured", "random.fork_rng",
        "utils.data.dataset.Dataset", "utils.data.dataloader.default_collate",
        "utils.data.sampler.Sampler", "utils.data.distributed.DistributedSampler",
        "backends.cudnn.benchmark", "backends.mps.is_available", "testing.assert_close",
        "distributions.transforms.StickBreakingTransform", "distributions.constraints.positive",
        "autograd.function.FunctionCtx", "amp.custom_fwd", "cuda.is_bf16_supported",
    ],
)  # fmt: skip
def test_modules_that_programs_import(path: str) -> None:
    module, _, name = path.rpartition(".")
    for lib in LIBRARIES:
        assert hasattr(import_module(f"{lib.__name__}.{module}"), name)


def test_switches_of_libraries_that_are_not_used() -> None:
    backends = genesis.backends  # type: ignore[attr-defined]
    before = genesis.get_float32_matmul_precision()
    try:
        backends.cuda.matmul.allow_tf32 = True
        assert genesis.get_float32_matmul_precision() == "high"
        backends.cuda.matmul.allow_tf32 = False
        assert genesis.get_float32_matmul_precision() == "highest"
    finally:
        genesis.set_float32_matmul_precision(before)


def test_functions_of_ones_own_in_mixed_precision() -> None:
    for lib in LIBRARIES:
        seen: list[str] = []

        class Twice(lib.autograd.Function):  # type: ignore[misc]
            @staticmethod
            @lib.amp.custom_fwd(device_type="cpu", cast_inputs=lib.float32)  # type: ignore[misc]
            def forward(ctx: Any, x: Any, seen: list[str] = seen) -> Any:
                seen.append(str(x.dtype).rpartition(".")[2])
                return 2 * x

            @staticmethod
            @lib.amp.custom_bwd(device_type="cpu")  # type: ignore[misc]
            def backward(ctx: Any, grad: Any) -> Any:
                return 2 * grad

        x = lib.ones(2, 2, requires_grad=True)
        with lib.autocast("cpu", dtype=lib.bfloat16):
            y = x @ x
            z = Twice.apply(y)
        z.sum().backward()
        assert seen == ["float32"] and x.grad.tolist() == [[8.0] * 2] * 2
        Twice.apply(y.detach())
        assert seen[1] == "bfloat16"
