"""What several processes do besides training; each part prints what it has seen."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from typing import Any

import numpy as np
from train import train

import genesis
import genesis.distributed as gd
from genesis import ndarray as nd
from genesis import nn


def collectives(mesh: gd.Mesh) -> None:
    """Every collective in every type, against its definition."""
    from genesis.ir.numpy_library.collectives import DEFINITIONS

    size, rank = mesh.size, mesh.rank
    for kind in ("f4", "f8", "f2", "i8", "i4", "i1", "u1", "u2", "u8", "?"):
        given = [
            [np.random.default_rng(9 * r + k).integers(0, 2, (2 * size, 3 + k)).astype(kind)
             for k in range(2)]
            for r in range(size)
        ]  # fmt: skip
        for name, definition in DEFINITIONS.items():
            hows = {"all_reduce": ("sum", "max", "min", "prod"), "permute": ((*range(1, size), 0),)}
            for how in hows.get(name, ("sum",)):
                options = (mesh.form.name, "dp", how)
                got = mesh.exchange(name, options, given[rank])
                for k, x in enumerate(got):
                    want = definition(options, [g[k] for g in given])[rank]
                    np.testing.assert_array_equal(x, want, err_msg=f"{name} {kind} {how}")


def errors(mesh: gd.Mesh) -> None:
    """Blocks are refused by name where all of an array is needed."""
    x = mesh.batch(nd.arange(6).reshape(3, 2))
    assert x.shape == (3 * mesh.size, 2)
    labels = genesis.Tensor(mesh.batch(nd.zeros(3, dtype="int64")))
    eager = nn.functional.cross_entropy
    for use in (
        x.numpy,
        (x + 1).numpy,
        lambda: genesis.jit(lambda y: y * 2)(x[1:]),
        lambda: eager(genesis.zeros(3 * mesh.size, 2), labels).item(),
        lambda: genesis.zeros(4)[labels].tolist(),
    ):
        try:
            use()
        except ValueError as error:
            assert "lies in blocks on several processes (dp: split 0)" in str(error), error
        else:
            raise AssertionError("a block passed for the whole")
    whole = gd.gather(x).numpy()
    np.testing.assert_array_equal(whole, np.tile(np.arange(6).reshape(3, 2), (mesh.size, 1)))
    doubled = genesis.jit(lambda y: y * y)(x)
    np.testing.assert_array_equal(gd.gather(doubled).numpy(), whole**2)
    turned = genesis.jit(lambda y: (y.swapaxes(0, 1).sum(0), y[1:]))(x)
    np.testing.assert_array_equal(gd.gather(turned[0]).numpy(), whole.sum(1))
    np.testing.assert_array_equal(gd.gather(turned[1]).numpy(), whole[1:])


def constraints(mesh: gd.Mesh) -> None:
    """Arrays lie as they are wished to, in jitted functions and outside, and so do gradients."""
    size = mesh.size
    draw = np.random.default_rng(1)
    x, w = (genesis.tensor(draw.random(s).astype("f4")) for s in ((2 * size, 4), (4, 3 * size)))

    def placement(y: genesis.Tensor) -> str:
        return repr(y.array.storage.actual.placement)

    @genesis.jit
    def function(x, w):
        w = w.detach().requires_grad_()
        hidden = gd.constrain(x @ w, dp=0).tanh()
        gd.constrain(hidden, dp=1).square().sum().backward()
        return hidden, w.grad, gd.constrain(x, dp=None)

    want = w.clone().requires_grad_()
    hidden = (x @ want).tanh()
    hidden.square().sum().backward()
    got = function(x, w)
    assert placement(got[0]) == "dp: split 0", placement(got[0])
    for a, b in zip(got, (hidden, want.grad, x), strict=True):
        np.testing.assert_allclose(gd.gather(a).numpy(), b.detach().numpy(), rtol=1e-5, atol=1e-5)

    y = gd.constrain(w, dp=1)
    assert placement(y) == "dp: split 1"
    again = gd.constrain(gd.constrain(y, dp=None), dp=None)
    assert placement(again) == "None"
    np.testing.assert_array_equal(again.numpy(), w.numpy())
    part = gd.constrain(y[:, 1:][1:3], dp=0)  # a view of a view of blocks
    np.testing.assert_array_equal(gd.gather(part).numpy(), w.numpy()[:, 1:][1:3])
    for wrong, text in (
        ({"tp": 0}, "there is no axis 'tp'"), ({"dp": 2}, "no dimension of an array of"),
        ({"dp": 0}, "does not divide into"),
    ):  # fmt: skip
        try:
            gd.constrain(genesis.ones(2 * size + 1, 2), **wrong)
        except ValueError as error:
            assert text in str(error), error
        else:
            raise AssertionError(text)


def meshes(mesh: gd.Mesh) -> None:
    """A second mesh of the same processes; arrays of both do not meet in one program."""
    x = mesh.batch(nd.ones((2, 4)))
    other = gd.mesh(tp=mesh.size)
    layer = nn.Linear(4, 2 * mesh.size, bias=False)
    nn.init.ones_(layer.weight)
    gd.place(layer, mesh=other, tp=gd.Rules({"weight": 0}))
    product = genesis.jit(genesis.no_grad()(lambda y: layer(y).sum()))
    assert product(genesis.ones(3, 4)).item() == 3 * 4 * 2 * mesh.size
    assert genesis.jit(lambda y: y.sum())(x).item() == 8 * mesh.size
    both = genesis.jit(genesis.no_grad()(lambda y: layer(y).sum()))
    try:
        both(genesis.Tensor(x))
    except RuntimeError as error:
        assert "lie on one mesh, not on ['dp2', 'tp2']" in str(error), error
    else:
        raise AssertionError("arrays of two meshes met")
    gd.mesh(**mesh.shape)  # the current one again


def training(mesh: gd.Mesh) -> None:
    """A few steps of ZeRO-3."""
    losses = train("mlp", "zero3", 4)
    if mesh.rank == 0:
        print(json.dumps(losses), flush=True)


def traces(mesh: gd.Mesh) -> None:
    """One trace of all processes, with collectives that others run beside."""
    f = genesis.jit(lambda y: (y * 2).sum())
    x = mesh.batch(nd.ones((2, 2)))
    f(x)
    with genesis.profiling.profile() as profile:
        f(x).item()
    with tempfile.TemporaryDirectory() as folder:
        gd.save_trace(profile, f"{folder}/trace.json")
        mesh.barrier()
        if mesh.rank == 0:
            with open(f"{folder}/trace.json") as file:
                events = json.load(file)["traceEvents"]
            found = {(e["pid"], e["name"]) for e in events if e["ph"] == "X"}
            assert {(k, "collectives.all_reduce") for k in range(mesh.size)} <= found, found
            assert min(e["ts"] for e in events if "ts" in e) == 0


def disagree(mesh: gd.Mesh) -> None:
    """Processes that run different programs learn where they differ."""
    x = mesh.batch(nd.ones((2, 2)))
    if mesh.rank:
        f = genesis.jit(lambda y: y + y)
    else:
        f = genesis.jit(lambda y: y * y)
    try:
        f(x)
    except RuntimeError as error:
        text = str(error)
    assert "mul float32" in text and "add float32" in text, text
    assert text.count("manners.py:") == 2, text


def refused(text: str, function: Any, *args: Any) -> None:
    try:
        function(*args)
    except RuntimeError as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"nobody said {text!r}")


def swapped(mesh: gd.Mesh) -> None:
    """Programs in another order, and other sizes: what is added up does not belong together."""
    x, more = (mesh.batch(nd.ones((rows, 2))) for rows in (2, 3))
    f, g = genesis.jit(lambda y: y.sum(0)), genesis.jit(lambda y: (y * 10).sum(0))
    for h in (f, g):
        h(x), h(more)
    for ours, theirs in (((f, x), (g, x)), ((f, x), (f, more))):
        function, given = theirs if mesh.rank else ours
        refused("is another one in one of the processes", function, given)
    link = mesh._groups["dp"]
    for name in ("all_gather", "reduce_scatter", "permute", "all_reduce"):
        for kind in ("f4", "f8", "f2", "i8", "i4", "i1", "u1"):
            how = (1, 0) if name == "permute" else "sum"
            options = (mesh.form.name, "dp", how, mesh.rank)
            refused("is another one", link.start(name, options, [np.zeros((2, 3), kind)]))


def alone(mesh: gd.Mesh) -> None:
    """One process gathers what the others do not: both would wait for ever."""
    from genesis.distributed import process_groups

    process_groups.PATIENCE = 0.2  # to be told sooner; it decides nothing
    x = mesh.batch(nd.ones((2, 2)))
    f = genesis.jit(lambda y: y.sum())
    f(x)
    refused("waits for all in all_", f if mesh.rank else gd.gather, x)


def different(mesh: gd.Mesh) -> None:
    """What all processes have all of has to be the same: numbers, arrays, settings, seeds."""
    x, own = mesh.batch(nd.ones((2, 2))), mesh.rank + 2.0
    w = genesis.ones(2) * own
    forgotten = nn.Linear(2, 2)
    nn.init.constant_(forgotten.weight, own)
    refused(f"the number {own}", genesis.jit(lambda y: (y * own).sum()), x)
    refused("not the same:", genesis.jit(lambda y, w: (y * w.array).sum()), x, w)
    refused("not the same:", genesis.jit(lambda y: forgotten(genesis.Tensor(y)).sum().detach()), x)

    def step(y: Any) -> None:
        loss = layer(genesis.Tensor(y)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    layer = nn.Linear(2, 2)
    optimizer: Any = genesis.optim.SGD(layer.parameters(), lr=0.1 * own)
    gd.place(layer, optimizer)
    refused("not the same:", genesis.jit(step), x)
    kind = (genesis.optim.Adam, genesis.optim.SGD)[mesh.rank]
    optimizer = kind(layer.parameters(), lr=0.1)
    refused("the optimizer", gd.place, layer, optimizer)
    genesis.manual_seed(mesh.rank)
    gd.place(layer)
    draws = genesis.jit(lambda y: y + genesis.rand(4, 2).array)(x)
    np.testing.assert_array_equal(gd.gather(draws).numpy() - 1 < 1, True)
    seeds = gd.gather(mesh.batch(genesis.rand(1, 3))).numpy()
    np.testing.assert_array_equal(seeds[0], seeds[1])


def sizes(mesh: gd.Mesh) -> None:
    """Rows that all processes have, of a number that changes, meet weights in blocks."""
    layer = nn.Linear(4, 2 * mesh.size)
    gd.place(layer, dp=gd.Rules({"weight": 0}))
    whole = gd.gather(layer.state_dict())
    function = genesis.jit(genesis.no_grad()(lambda y: layer(y).sum(0)))
    for rows in (3, 5, 4, 7):
        x = genesis.arange(4.0 * rows).reshape(rows, 4)
        want = (x @ whole["weight"].T + whole["bias"]).sum(0).numpy()
        np.testing.assert_allclose(gd.gather(function(x)).numpy(), want, rtol=1e-5)


def stray(mesh: gd.Mesh) -> None:
    """One process runs what it has run before, the other begins something new."""
    from genesis.distributed import process_groups

    process_groups.PATIENCE = 0.2  # to be told sooner; it decides nothing
    f = genesis.jit(lambda y: y.sum())
    f(mesh.batch(nd.ones((2, 2))))
    f(mesh.batch(nd.ones((2 if mesh.rank else 3, 2))))  # the process ends by its error


def fail(mesh: gd.Mesh) -> None:
    """One process has a mistake of its own."""
    f = genesis.jit(lambda y: y.sum())
    x = mesh.batch(nd.ones((2, 2)))
    f(x)
    if mesh.rank == 1:
        raise KeyError("no such file")
    f(x)


def models(mesh: gd.Mesh) -> None:
    """Processes that have made different models cannot share the first one's weights."""
    for layer in (nn.Linear(4, 4 + mesh.rank), nn.Linear(4, 4, bias=bool(mesh.rank))):
        for use in (
            lambda layer=layer: gd.place(layer),
            lambda layer=layer: gd.Pipeline([layer], nn.functional.mse_loss, mesh),
        ):
            try:
                use()
            except RuntimeError as error:
                assert "'place'" in str(error) and "float32 (4," in str(error), error
            else:
                raise AssertionError("different models were taken for one")


def lose(mesh: gd.Mesh) -> None:
    """A process that is killed ends all."""
    f = genesis.jit(lambda y: y.sum())
    x = mesh.batch(nd.ones((2, 2)))
    assert f(x).item() == 4 * mesh.size
    if mesh.rank:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        f(x)
    except gd.RankLost as error:
        print("lost", str(error).splitlines()[0][:40], flush=True)
    signal.pause()  # the launcher ends this one


if __name__ == "__main__":
    made = gd.mesh(dp=-1)
    for part in sys.argv[1:]:
        globals()[part](made)
        if made.rank == 0:
            print("done", part, flush=True)
