"""Codecs: what is sent and what is kept are the gradient, and training goes on as without them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import genesis.distributed as gd
from genesis import nn, optim
from genesis.distributed import codecs
from tests.distributed.test_training import launched


class Alone:
    """A group whose other members send the same."""

    name, size = "dp", 2

    def start(self, name: str, options: Any, xs: Sequence[Any]) -> Any:
        combine = {"sum": lambda x: 2 * x, "max": lambda x: x}
        if name == "all_gather":
            return lambda: [np.concatenate([x, x]) for x in xs]
        return lambda: [combine[options[2]](x) for x in xs]


LINK: Any = Alone()
EVERY: list[tuple[codecs.Codec, float, float]] = [  # bytes for each, and the error that is allowed
    (codecs.Plain(), 1.0, 0.0),
    (codecs.Half(), 0.51, 1e-3),
    (codecs.Int8(), 0.27, 8e-3),
    (codecs.Sign(), 0.04, 1.2),
    (codecs.TopK(0.1), 0.21, 1.0),
    (codecs.PowerSGD(2), 0.2, 1.2),
]


@pytest.mark.parametrize(("codec", "share", "error"), EVERY, ids=lambda x: type(x).__name__)
def test_nothing_is_lost(codec: codecs.Codec, share: float, error: float) -> None:
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((60, 50)) * np.exp(rng.standard_normal((60, 50)))).astype(np.float32)
    feedback = codecs.Feedback(codec)
    total = feedback.reduce("w", x, LINK)
    kept = feedback.residuals["w"]
    assert feedback.sent <= share * x.nbytes + 64
    assert np.abs(kept).max() <= error * np.abs(x).max()
    sent = x - kept
    assert np.allclose(total, 2 * sent, rtol=1e-5, atol=1e-4)
    if isinstance(codec, codecs.TopK):  # a selection: to the bit
        assert np.array_equal(sent + kept, x) and np.count_nonzero(total) == 300
    # The same gradient again and again: in the mean, all of it arrives.
    sums = sum(feedback.reduce("w", x, LINK) for _ in range(99)) + total
    assert np.linalg.norm(sums / 200 - x) <= 0.25 * np.linalg.norm(x)


@pytest.mark.parametrize("codec", [c for c, _, _ in EVERY], ids=lambda x: type(x).__name__)
def test_odd_arrays(codec: codecs.Codec) -> None:
    for shape in ((), (0,), (1,), (3, 1), (7, 5, 3)):
        x = np.ones(shape, np.float32)
        total, _, _ = codec.exchange(x, LINK)
        assert total.shape == shape and total.dtype == np.float32
        assert np.allclose(total, 2, atol=2)
    zero = codec.exchange(np.zeros((4, 300), np.float32), LINK)[0]
    assert not zero.any()


@pytest.mark.parametrize("codec", [c for c, _, _ in EVERY[:5]], ids=lambda x: type(x).__name__)
def test_what_is_not_finite_is_seen_once(codec: codecs.Codec) -> None:
    x = np.ones(300, np.float32)
    x[7] = np.nan
    feedback = codecs.Feedback(codec)
    with np.errstate(invalid="ignore"):
        assert not np.isfinite(feedback.reduce("w", x, LINK)).all()
    assert np.isfinite(feedback.reduce("w", np.ones(300, np.float32), LINK)).all()


def test_what_is_left_is_shared_by_those_who_go_on() -> None:
    rng = np.random.default_rng(0)
    old = [rng.standard_normal((3, 2)) for _ in range(4)]
    for count in (1, 2, 3, 4, 6):
        new = [codecs.Feedback(codecs.TopK()) for _ in range(count)]
        for k, feedback in enumerate(new):
            feedback.take_over({"w": old}, k, count)
        assert np.allclose(sum(f.residuals["w"] for f in new), sum(old))
    assert np.array_equal(new[1].residuals["w"], old[1])


def test_matrices_of_one_shape_have_factors_of_their_own() -> None:
    """Two gradients of rank one that take turns: each goes on from its own factors."""
    rng = np.random.default_rng(0)
    first, second = (np.outer(*rng.standard_normal((2, 40))).astype(np.float32) for _ in range(2))
    codec = codecs.PowerSGD(1)
    for _ in range(3):
        got = [codec.exchange(x, LINK, n)[0] for n, x in (("a", first), ("b", second))]
    assert np.allclose(got[0], 2 * first, atol=1e-4) and np.allclose(got[1], 2 * second, atol=1e-4)
    assert codec.state.keys() == {"a", "b"}
    assert not np.allclose(codec.state["a"], codec.state["b"])


def test_a_checkpoint_has_what_was_not_sent(tmp_path: Path) -> None:
    def made() -> tuple[gd.Pipeline, optim.Optimizer]:
        layers = [nn.Linear(4, 8), nn.Linear(8, 2)]
        codec = codecs.PowerSGD(1)
        loss = nn.functional.mse_loss
        pipeline = gd.Pipeline(layers, loss, gd.mesh(dp=1), microbatches=1, codec=codec)
        return pipeline, optim.SGD(pipeline.parameters(), lr=0.1)

    model, optimizer = made()
    assert model.codec is not None
    model.codec.residuals = {"dp/layers.0.weight": np.arange(32, dtype="f4").reshape(8, 4)}
    model.codec.state["dp/layers.1.weight"] = np.ones((8, 1), np.float32)
    gd.save(tmp_path, 1, model, optimizer)
    other, optimizer = made()
    assert gd.restore(tmp_path, other, optimizer) == 1 and other.codec is not None
    for name in ("residuals", "state"):
        a, b = getattr(model.codec, name), getattr(other.codec, name)
        assert a.keys() == b.keys() and all(np.array_equal(a[k], b[k]) for k in a)


def test_a_slower_network_is_followed_and_a_flicker_is_not() -> None:
    codec = codecs.Adaptive()

    def run(rate: float, count: int) -> None:
        for k in range(count):
            now = rate * (0.6 if k % 3 else 1.5)  # it is never quite the same
            sent = int([4e6, 1.04e6, 8e4][codec.chosen])
            working = [0.0, 4e-3, 20e-3][codec.chosen]
            codec.note(4_000_000, sent, working, sent / now)

    run(1e9 / 8, 60)
    assert codec.chosen == 1 and codec.switches == 0
    run(50e6 / 8, 60)
    assert codec.chosen == 2
    run(1e9 / 8, 60)
    assert codec.chosen == 1 and codec.switches == 2


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_training_ends_as_without() -> None:
    script = str(Path(__file__).with_name("codec_train.py"))
    done = launched(2, script)
    assert done.returncode == 0, done.stderr
    found: dict[str, float] = json.loads(done.stdout)
    for name, loss in found.items():
        assert loss == pytest.approx(found["Plain"], rel=0.02), name
