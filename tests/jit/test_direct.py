"""Recordings run on NumPy arrays alone: the numbers of the function, and nothing else."""

import threading

import numpy as np
import pytest

import genesis
from genesis import nn


def made(function, *arrays):
    """A function recorded, and what runs it on pointers."""
    jitted = genesis.jit(function)
    tensors = [genesis.from_numpy(x) for x in arrays]
    for _ in range(2):
        jitted(*tensors)
    return jitted.direct(*tensors)


@genesis.no_grad()
def test_results_are_those_of_the_function():
    layer = nn.Linear(4, 300)
    rng = np.random.default_rng(0)
    direct = made(lambda x: (layer(x), x + 1), rng.standard_normal((100, 4)).astype("f"))
    kept = []
    for _ in range(3):
        x = rng.standard_normal((100, 4)).astype("f")
        kept.append((x, direct([x])))
    for x, (y, z) in kept:  # large and small results, none in the memory of another
        np.testing.assert_allclose(y, layer(genesis.from_numpy(x)).numpy(), rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(z, x + 1)


@genesis.no_grad()
def test_a_weight_that_changes_is_seen():
    layer = nn.Linear(2, 2)
    x = np.ones((1, 2), np.float32)
    direct = made(lambda x: (layer(x),), x)
    assert direct([x]) is not None
    layer.weight.mul_(2)
    assert direct([x]) is None  # the function itself has to be called
    layer.bias.data = genesis.zeros(2)
    assert direct([x]) is None


def test_another_mode_is_another_program():
    layer = nn.Linear(2, 2)
    x = np.ones((1, 2), np.float32)
    with genesis.no_grad():
        direct = made(lambda x: (layer(x),), x)
        assert direct([x]) is not None
    assert direct([x]) is None


@genesis.no_grad()
@pytest.mark.parametrize("which", ["writes", "passes", "views"])
def test_functions_that_do_more_are_called(which):
    total = genesis.zeros(3)
    functions = {
        "writes": lambda x: (total.add_(x),),
        "passes": lambda x: (x, x + 1),
        "views": lambda x: ((x + 1)[1:],),
    }
    assert made(functions[which], np.zeros(3, np.float32)) is None


@genesis.no_grad()
def test_indices_are_checked():
    table = genesis.arange(3.0)
    direct = made(lambda i: (table[i] * 2,), np.array([0, 1]))
    assert direct([np.array([2, -3])])[0].tolist() == [4.0, 0.0]
    for wrong in ([0, 3], [-4, 0]):
        assert direct([np.array(wrong)]) is None  # the function itself says what is wrong
    assert direct([np.array([1, 1])])[0].tolist() == [2.0, 2.0]


@genesis.no_grad()
def test_temporaries_lie_where_nothing_else_does():
    """Some lie in results that are not written yet, some are kept because they are of weights."""
    first, second = nn.Linear(4, 5, bias=False), nn.Linear(4, 5, bias=False)

    def function(x):
        return (-genesis.where(x.sum() > 0, first(x).tanh(), second(x).tanh()),)

    x = np.random.default_rng(0).standard_normal((3, 4)).astype("f")
    direct = made(function, x)
    for scale in (1, -2, 3, -1):
        expected = function(genesis.from_numpy(x * scale))[0].numpy()
        np.testing.assert_allclose(direct([x * np.float32(scale)])[0], expected, rtol=1e-5)


@genesis.no_grad()
def test_threads_share_nothing():
    layer = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 8))
    rng = np.random.default_rng(1)
    inputs = [rng.standard_normal((5, 16)).astype("f") for _ in range(4)]
    direct = made(lambda x: (layer(x),), inputs[0])
    expected = [layer(genesis.from_numpy(x)).numpy() for x in inputs]
    wrong = []

    @genesis.no_grad()
    def work(k):
        results = [direct([inputs[k]])[0] for _ in range(50)]
        wrong.extend(y for y in results if not np.allclose(y, expected[k], atol=1e-5))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


@genesis.no_grad()
def test_what_is_made_of_a_weight_is_kept_once():
    """A loop that was written out packs its matrix once, however often it is multiplied by."""
    weight = nn.Parameter(genesis.randn(64, 256))
    back = nn.Parameter(genesis.randn(256, 64) / 256)

    def loop(x):
        for _ in range(8):
            x = genesis.tanh(genesis.tanh(x @ weight) @ back)
        return (x,)

    x = np.ones((1, 64), np.float32)
    direct = made(loop, x)
    memory = [m for _, m in direct._prepared.memory]
    assert len(memory) >= 16 and len({m.pointer for m in memory}) == 2
    (y,) = loop(genesis.from_numpy(x))
    np.testing.assert_allclose(direct([x])[0], y.numpy(), atol=1e-5)
