"""`fit` and its callbacks, against loops and formulas written out."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import genesis
from genesis import data, nn, optim, train

RNG = np.random.default_rng(0)
X = genesis.tensor(RNG.standard_normal((24, 3)).astype(np.float32))
Y = genesis.tensor(RNG.standard_normal((24, 1)).astype(np.float32))


class Stopped(Exception):
    """A training ends for a reason of its own."""


class StopAt(train.Callback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step(self, training: train.Training) -> None:
        if training.step == self.step:
            raise Stopped


def square(model: Any, batch: Any) -> Any:
    return (model(batch[0]) - batch[1]).square().mean()


def prepared(batch_size: int = 6, shuffle: bool = True) -> tuple[Any, Any, Any]:
    genesis.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    optimizer = optim.AdamW(model.parameters(), lr=0.01)
    return model, data.DataLoader(data.TensorDataset(X, Y), batch_size, shuffle=shuffle), optimizer


def weights(model: Any) -> Any:
    return np.concatenate([p.detach().numpy().ravel() for p in model.parameters()])


def run(**how: Any) -> tuple[Any, train.Training]:
    parts = prepared(how.pop("batch_size", 6), how.pop("shuffle", True))
    training = train.fit(*parts, loss=how.pop("loss", square), progress=False, **how)
    return weights(parts[0]), training


@pytest.fixture(scope="module")
def reference() -> Any:
    return run(epochs=3)


@pytest.mark.parametrize("jit", [False, True])
def test_it_is_the_loop_written_out(jit: bool, reference: Any) -> None:
    model, loader, optimizer = prepared()
    losses = []
    for _ in range(3):
        for batch in loader:
            loss = square(model, batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    found, training = reference if jit else run(epochs=3, jit=False)
    np.testing.assert_allclose(found, weights(model), rtol=1e-5, atol=1e-7)
    assert training.step == 12 and training.epoch == 3
    assert training.metrics["loss"] == pytest.approx(losses[-1], rel=1e-4)
    assert [h["epoch"] for h in training.history] == [1, 2, 3]


@pytest.mark.parametrize("stop", [3, 4, 7])
def test_a_training_goes_on_bit_for_bit(tmp_path: Path, stop: int, reference: Any) -> None:
    with pytest.raises(Stopped):
        run(epochs=3, folder=tmp_path, save_every=1, callbacks=[StopAt(stop)])
    found, training = run(epochs=3, folder=tmp_path, save_every=1)
    assert found.tobytes() == reference[0].tobytes()
    assert training.step == 12 and len(training.history) == 3
    again, _ = run(epochs=3, folder=tmp_path)  # it is over: nothing happens
    assert again.tobytes() == found.tobytes()


def test_accumulated_batches_are_one_large_batch() -> None:
    large, _ = run(batch_size=12, shuffle=False, epochs=2)
    small, training = run(batch_size=4, shuffle=False, epochs=2, accumulate=3)
    np.testing.assert_allclose(small, large, rtol=1e-4, atol=1e-6)
    assert training.step == 4


def test_clipping_schedule_and_validation() -> None:
    model, loader, _ = prepared()
    optimizer = optim.SGD(model.parameters(), lr=1.0)
    schedule = optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
    before = weights(model)
    training = train.fit(
        model, loader, optimizer, square, schedule=schedule, clip_norm=1e-3,
        validation=loader, progress=False,
    )  # fmt: skip
    moved = np.linalg.norm(weights(model) - before)
    assert 0 < moved <= 1e-3 * (1 + 1 + 0.5 + 0.5) * 1.001
    assert optimizer.param_groups[0]["lr"] == 0.25
    expected = np.mean([square(model, b).item() for b in data.DataLoader(loader.dataset, 6)])
    assert training.metrics["val_loss"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_mixed_precision_is_close(precision: str, reference: Any) -> None:
    found, training = run(epochs=3, precision=precision)
    # With float16 some first steps are left out, until the scale has been found.
    assert np.abs(found - reference[0]).max() < (0.02 if precision == "bfloat16" else 0.08)
    assert (training.scaler is not None) == (precision == "float16")


def test_the_average_is_the_formula() -> None:
    average = train.EMA(decay=0.5)
    seen = []

    class See(train.Callback):
        def on_step(self, training: train.Training) -> None:
            seen.append(weights(training.model))

    run(epochs=1, callbacks=[average, See()])
    expected = seen[0]
    for w in seen[1:]:
        expected = 0.5 * expected + 0.5 * w
    np.testing.assert_allclose(weights(average.averaged), expected, rtol=1e-5, atol=1e-7)


def test_early_end_and_growing_batches() -> None:
    def worse(model: Any, batch: Any) -> Any:
        return square(model, batch) * 0 + 1

    early = train.EarlyStop("loss", patience=2)
    _, training = run(epochs=9, callbacks=[early], loss=worse)
    assert training.epoch == 3  # one that is the best so far, and two that are not better
    growing = train.AdaptiveBatch("loss", patience=1, most=4)
    _, training = run(epochs=4, callbacks=[growing], loss=worse)
    assert training.accumulate == 4 and training.step == 4 + 4 + 2 + 1
    with pytest.raises(ValueError, match="EarlyStop: no 'val_loss' among"):
        run(callbacks=[train.EarlyStop()])


def test_easy_samples_first() -> None:
    lessons = train.Curriculum(list(range(24)), pace=lambda epoch: (epoch + 1) / 3)
    seen: list[set[int]] = [set()]

    class See(train.Callback):
        def on_batch(self, training: train.Training, batch: Any) -> Any:
            seen[-1] |= set(batch[2].tolist())
            return batch

        def on_epoch(self, training: train.Training) -> None:
            seen.append(set())

    model, _, optimizer = prepared()
    samples = data.TensorDataset(X, Y, genesis.arange(24))
    loader = data.DataLoader(samples, 8, sampler=lessons)
    callbacks = [lessons, See()]
    train.fit(model, loader, optimizer, square, epochs=3, callbacks=callbacks, progress=False)
    assert seen[:3] == [set(range(8)), set(range(16)), set(range(24))]


def test_curves_are_read_by_tensorboard(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    _, training = run(epochs=1, callbacks=[train.TensorBoard(str(tmp_path), every=1)])
    (file,) = tmp_path.iterdir()
    points = [
        (event.step, value.tag, value.tensor.float_val[0])
        for event in EventFileLoader(str(file)).Load()
        for value in event.summary.value
    ]
    assert [step for step, *_ in points] == [1, 2, 3, 4, 4]
    assert points[-1][1] == "loss"
    assert points[-1][2] == pytest.approx(training.metrics["loss"], rel=1e-6)


# ---- several losses


def two(model: Any, batch: Any) -> Any:
    out = model(batch[0])
    return {"loss_a": (out - batch[1]).square().mean(), "loss_b": 30 * (out + 1).square().mean()}


def gradients(model: Any, loss: Any) -> Any:
    found = genesis.autograd.grad(loss, list(model.parameters()), retain_graph=True)
    return np.concatenate([g.numpy().ravel() for g in found]).astype(np.float64)


def test_conflicts_are_projected_away() -> None:
    model, loader, _ = prepared(24, shuffle=False)
    optimizer = optim.SGD(model.parameters(), lr=1.0)
    (batch,) = loader
    losses = two(model, batch)
    a, b = (gradients(model, x) for x in losses.values())
    product = a @ b
    assert product < 0  # or there is nothing to see
    expected = (a - product / (b @ b) * b) + (b - product / (a @ a) * a)
    before = weights(model).astype(np.float64)
    train.fit(model, loader, optimizer, two, callbacks=[train.PCGrad()], progress=False)
    np.testing.assert_allclose(before - weights(model), expected, rtol=1e-3, atol=1e-4)


def test_uncertainty_is_learned() -> None:
    model, loader, _ = prepared(24, shuffle=False)
    optimizer = optim.SGD(model.parameters(), lr=0.0)  # losses that stay as they are
    weighting = train.UncertaintyWeighting(2, lr=0.1)
    train.fit(model, loader, optimizer, two, epochs=150, callbacks=[weighting], progress=False)
    final = [x.item() for x in two(model, next(iter(loader))).values()]
    s = weighting.weights.values.tolist()
    # Where exp(-s) * loss + s is smallest, s is the logarithm of the loss.
    np.testing.assert_allclose(s, np.log(final), atol=0.25)


def test_gradient_norms_become_alike() -> None:
    model, loader, _ = prepared(24, shuffle=False)
    optimizer = optim.SGD(model.parameters(), lr=0.0)
    last = model[0].weight
    weighting = train.GradNorm(last, 2, alpha=0.0, lr=0.05)
    losses = two(model, next(iter(loader)))
    norms = [
        np.linalg.norm(genesis.autograd.grad(x, last, retain_graph=True)[0].numpy())
        for x in losses.values()
    ]
    train.fit(model, loader, optimizer, two, epochs=120, callbacks=[weighting], progress=False)
    w = np.array(weighting.weights.values.tolist())
    assert w.sum() == pytest.approx(2, rel=1e-4)
    before, after = norms[1] / norms[0], (w[1] * norms[1]) / (w[0] * norms[0])
    assert abs(np.log(after)) < 0.5 * abs(np.log(before))


def test_losses_without_a_loss() -> None:
    with pytest.raises(ValueError, match=r"gave \['error'\]"):
        run(loss=lambda model, batch: {"error": square(model, batch)})
