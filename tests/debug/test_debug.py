"""Monitors, summaries and memory, against formulas and faults that are put in."""

import subprocess
import warnings
from dataclasses import replace
from mmap import mmap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import genesis
from genesis import debug, memory, nn, optim
from genesis.debug.perf_events import EVENTS


@pytest.mark.parametrize("jit", [False, True])
def test_the_numbers_are_right(jit: bool) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    optimizer = optim.SGD(model.parameters(), lr=0.1)

    def step(x: Any) -> Any:
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        return loss

    run = genesis.jit(step) if jit else step
    seen = []
    with debug.monitor(model, every=3) as watch:
        for k in range(7):
            x = genesis.randn(5, 3)
            run(x)
            report = watch.step()
            assert (report is not None) == (k % 3 == 0)
            if report is not None:
                seen.append(k)
                w, b = (p.detach().numpy() for p in model[0].parameters())
                hidden = x.numpy() @ w.T + b
                found = report.outputs["0"]
                assert found["mean"] == pytest.approx(hidden.mean(), abs=1e-5)
                assert found["std"] == pytest.approx(hidden.std(), rel=1e-4)
                assert found["largest"] == pytest.approx(np.abs(hidden).max(), rel=1e-5)
                gradient = model[2].weight.grad
                assert gradient is not None
                expected = np.linalg.norm(gradient.numpy())
                assert report.weights["2.weight"]["gradient"] == pytest.approx(expected, rel=1e-4)
                assert report.step == k and "0.weight" in str(report)
            optimizer.step()
    assert seen == [0, 3, 6]
    assert not any(m._forward_hooks for m in model.modules())


def looked_at(model: nn.Module, x: Any, backward: bool = False) -> list[debug.Finding]:
    with warnings.catch_warnings(), debug.monitor(model, every=1) as watch:
        warnings.simplefilter("ignore")
        result = model(x)
        if backward:
            result.sum().backward()
        report = watch.step()
    assert report is not None
    return report.findings


def test_what_is_wrong_is_named() -> None:
    x = genesis.randn(16, 4)

    def filled(layer: nn.Linear, weight: float, bias: float = 0.0) -> nn.Linear:
        with genesis.no_grad():
            layer.weight.fill_(weight)
            layer.bias.fill_(bias)
        return layer

    dead = nn.Sequential(filled(nn.Linear(4, 4), 0.0, -1.0), nn.ReLU())
    assert [(f.layer, "dead" in f.advice) for f in looked_at(dead, x)] == [("1", True)]
    saturated = nn.Sequential(filled(nn.Linear(4, 4), 0.0, 9.0), nn.Tanh())
    assert [(f.layer, "saturated" in f.advice) for f in looked_at(saturated, x)] == [("1", True)]
    large = nn.Sequential(nn.Linear(4, 4), filled(nn.Linear(4, 4), 1.0, 1e6))
    assert [(f.layer, "explodes" in f.advice) for f in looked_at(large, x)] == [("1", True)]
    vanishing = nn.Sequential(nn.Linear(4, 4), filled(nn.Linear(4, 4), 1e-12))
    found = looked_at(vanishing, x, backward=True)
    assert {f.layer for f in found if "vanishes" in f.advice} == {"0.weight", "0.bias"}
    healthy = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    assert not looked_at(healthy, x, backward=True)


class Log(nn.Module):
    """A layer that makes an infinity of a 0."""

    def forward(self, x: Any) -> Any:
        return x.log()


def test_where_nan_began() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), Log(), nn.Linear(2, 1))
    with genesis.no_grad():
        model[0].bias.fill_(-100)
    x = genesis.ones(3, 2)
    (finding,) = looked_at(model, x)
    assert finding.layer == "2"  # and not those after it
    with pytest.raises(debug.NotFinite, match=r"in layer 2: Log at .*test_debug\.py:\d+"):
        debug.detect(lambda: model(x).sum(), model=model)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    with pytest.raises(debug.NotFinite, match="the gradient of Sqrt"):
        debug.detect(lambda: (nn.Linear(2, 1)(x) * 0).sqrt().sum().backward(), model=model)
    with genesis.no_grad():
        model[0].bias.fill_(100)
    assert debug.detect(lambda: model(x).sum(), model=model).isfinite().item()
    with pytest.warns(debug.MonitorWarning, match="loss: it is nan"):
        debug.monitor(model).step(genesis.tensor(float("nan")))


def test_summary_counts() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 10, bias=False)
    )
    model[3].requires_grad_(False)
    found = debug.summary(model, genesis.ones(2, 3, 6, 6))
    conv, relu, flat, linear = found.layers[1:]
    assert conv.output == ((2, 8, 6, 6),) and linear.output == ((2, 10),)
    assert conv.parameters == 8 * 3 * 9 + 8 and linear.parameters == 2880
    assert found.parameters == sum(p.numel() for p in model.parameters())
    assert found.trainable == conv.parameters
    assert linear.flops == 2 * 2 * 288 * 10
    products = 2 * 2 * 8 * 36 * 27
    assert products <= conv.flops <= products + 3 * 2 * 8 * 36  # and the bias
    assert flat.flops == 0 and relu.flops >= 2 * 8 * 36
    assert found.flops == conv.flops + relu.flops + linear.flops
    assert found.parameter_bytes == 4 * found.parameters
    assert "not called" not in str(found) and "Conv2d" in str(found)


def test_summary_of_nested_and_uncalled_modules() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
            self.unused = nn.Linear(9, 9)

        def forward(self, x: Any) -> Any:
            return self.inner(self.inner(x)) + x

    found = debug.summary(Twice(), genesis.ones(1, 4))
    layers = {layer.name: layer for layer in found.layers}
    assert layers["inner.0"].calls == 2 and layers["unused"].calls == 0
    assert layers["inner"].flops == layers["inner.0"].flops + layers["inner.1"].flops
    assert found.flops == layers["inner"].flops + 4  # the addition
    assert "not called" in str(found)


def test_memory_names_the_line() -> None:
    kept = [(genesis.ones(10_000) * k).array.realize() for k in range(5)]  # this line
    lines = [x for x in memory.alive() if "test_debug.py" in x.where and x.nbytes >= 200_000]
    assert len(lines) == 1 and lines[0].count == 5
    del kept
    assert not [x for x in memory.alive() if x.where == lines[0].where]


def test_growth_is_noticed_and_steadiness_is_not() -> None:
    kept = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        watch = memory.track(window=3, patience=3)
        for k in range(60):
            _ = (genesis.ones(1000 + 500 * (k % 3)) * k).sum().item()
            watch.step()
    with pytest.warns(memory.MemoryGrowthWarning, match=r"test_debug\.py:\d+: \d+ more arrays"):
        watch = memory.track(window=3, patience=3)
        for k in range(30):
            kept.append((genesis.ones(20_000) * k).array.realize())
            watch.step()


# ---- what chips say


def test_counters_count_or_say_that_they_cannot() -> None:
    with debug.counters() as found:
        room = mmap(-1, 16 << 20)
        room.write(b"x" * (16 << 20))
    assert found.counts.keys() == EVENTS.keys()
    faults = found.counts["page faults"]
    if faults is not None:
        assert faults >= 8  # large pages are 2 MiB
        assert "page faults" in str(found)
    for name, count in found.counts.items():
        assert (count is None) == (name in str(found).partition("not counted")[2])


def test_counters_advise() -> None:
    found = debug.counters()
    found.counts |= {"cycles": 1000, "instructions": 300, "branches": 100, "branch misses": 9}
    assert [line.split()[0] for line in found.advice] == ["0.30", "9%"]
    found.counts |= {"cycles": 1000, "instructions": 3000, "branches": 100, "branch misses": 1}
    assert found.advice == []


def test_occupancy_names_what_is_wrong() -> None:
    whole = debug.Occupancy("k", 128, 64, 1024, 0, 8, 0.5, "registers", 8 * 132, 132)
    assert whole.waves == 1 and whole.advice == ""
    assert "32 bytes" in replace(whole, stack=32).advice
    assert "122 of 132" in replace(whole, grid=10).advice
    assert "last of 2 waves is 10%" in replace(whole, grid=round(8 * 132 * 1.1)).advice
    assert "registers" in replace(whole, occupancy=0.1).advice
    assert replace(whole, processors=None, grid=1).advice == ""
    with pytest.raises(ValueError, match="occupancy: the function runs on cpu"):
        debug.occupancy(lambda x: x + 1, genesis.ones(3))


@pytest.mark.slow
def test_occupancy_is_that_of_the_vendors_tools(tmp_path: Path) -> None:
    triton = pytest.importorskip("triton")
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    if not tool.exists():
        pytest.skip("Triton brings no cuobjdump")
    from genesis.backends.gpu.binary import made, request
    from genesis.backends.gpu.launch_metadata import parsed
    from genesis.debug.occupancy import of_binary
    from tests.compiler.test_gpu_schedule import kernels_of

    (kernel,) = kernels_of(
        lambda a, b: genesis.relu(a @ b), ("float16", 512, 512), ("float16", 512, 512)
    )
    for target in ("sm_80", "sm_90"):
        binary = made(request(kernel, target))
        phases = parsed(binary).phases
        for phase, found in zip(phases, of_binary(binary, target, [], 100), strict=True):
            path = tmp_path / "code.cubin"
            path.write_bytes(binary.image[phase.code])
            said = subprocess.run(
                [tool, "-res-usage", path], capture_output=True, text=True, check=True
            ).stdout
            assert f"REG:{found.registers} STACK:{found.stack} " in said
            used = found.blocks * found.threads * found.registers
            assert 0 < used <= 1 << 16 and 0 < found.occupancy <= 1
            assert found.blocks * found.shared <= 228 << 10
