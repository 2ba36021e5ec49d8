"""`genesis onnx`: look at model files, run them, measure them, compare them with onnxruntime."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from genesis.onnx.reader import load
from genesis.onnx.session import InferenceSession, NodeArg

_SIZES = {"batch": 1, "height": 224, "width": 224}  # of open sizes, unless told otherwise
_TYPES = {"float": "float32", "double": "float64"}


def info(path: str) -> Iterator[str]:
    """Inputs, outputs, operators and weights of a model."""
    session, model = InferenceSession(path), load(path)
    for what, found in (("input", session.get_inputs()), ("output", session.get_outputs())):
        for arg in found:
            yield f"{what:<11}{arg.name}  {arg.type} {arg.shape}"
    count = sum(p.numel() for p in model.parameters())
    yield f"{'parameters':<11}{count} in {len(list(model.parameters()))} tensors"
    kinds = Counter(step.kind for step in model.graph.every_step())
    yield f"{'nodes':<11}{kinds.total()}: " + ", ".join(f"{n} {k}" for k, n in kinds.most_common())


def run(path: str, inputs: str | None, output: str | None, sizes: dict[str, int]) -> Iterator[str]:
    """The results for inputs of an .npz file, or for random ones."""
    session = InferenceSession(path)
    given = feed(session, inputs, sizes)
    names = [o.name for o in session.get_outputs()]
    results = dict(zip(names, session.run(None, given), strict=True))
    for name, x in results.items():
        yield f"{name}  {_summary(x)}"
    if output is not None:
        arrays: dict[str, Any] = {n: x for n, x in results.items() if isinstance(x, np.ndarray)}
        np.savez(output, **arrays)


def _summary(x: Any) -> str:
    if not isinstance(x, np.ndarray) or not x.size or x.dtype.kind not in "fiu":
        return str(x)[:200]
    return f"{x.dtype}{list(x.shape)}  from {x.min():.4g} to {x.max():.4g}, mean {x.mean():.4g}"


def bench(path: str, inputs: str | None, sizes: dict[str, int], seconds: float) -> Iterator[str]:
    """How long a call takes, beside onnxruntime where it is installed."""
    begun = time.perf_counter()
    session = InferenceSession(path)
    given = feed(session, inputs, sizes)
    session.run(None, given)
    yield f"first result after {time.perf_counter() - begun:.2f} s"
    contenders: dict[str, Any] = {"genesis": session}
    try:
        contenders["onnxruntime"] = _onnxruntime(path)
    except (ImportError, ValueError) as error:
        yield str(error)
    times: dict[str, list[float]] = {name: [] for name in contenders}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times["genesis"]) < 3:
        for name, contender in contenders.items():
            start = time.perf_counter()
            contender.run(None, given)
            times[name].append(time.perf_counter() - start)
    for name, found in times.items():
        p99 = sorted(found)[int(0.99 * (len(found) - 1))]
        yield f"{name:<12}{1e3 * median(found):8.3f} ms   99 % below {1e3 * p99:.3f} ms"
    if "onnxruntime" in times:
        ratio = median(times["onnxruntime"]) / median(times["genesis"])
        yield f"onnxruntime takes {ratio:.2f} times as long"


def check(path: str, inputs: str | None, sizes: dict[str, int], tolerance: float) -> Iterator[str]:
    """How far results are from onnxruntime's; a difference is raised."""
    session = InferenceSession(path)
    given = feed(session, inputs, sizes)
    expected = _onnxruntime(path).run(None, given)
    for arg, a, b in zip(session.get_outputs(), session.run(None, given), expected, strict=True):
        worst = difference(a, b)
        yield f"{arg.name}  {_summary(a)}  differs by {worst:.1e}"
        if not worst <= tolerance:
            raise ValueError(f"{arg.name} differs from onnxruntime's by {worst:.1e} of its range")


def difference(a: Any, b: Any) -> float:
    """The greatest difference, relative to the greatest number where that is above 1."""
    if isinstance(a, list):
        return max((difference(x, y) for x, y in zip(a, b, strict=True)), default=0.0)
    if a.shape != b.shape or a.dtype != b.dtype:
        raise ValueError(f"{a.dtype}{list(a.shape)} is not {b.dtype}{list(b.shape)}")
    if a.dtype.kind not in "fiu" or not a.size:
        return float(not np.array_equal(a, b))
    same = (a == b) | ((a != a) & (b != b))  # infinite, or no numbers, both of them
    if same.all():
        return 0.0
    x, y = a[~same].astype(np.float64), b[~same].astype(np.float64)
    finite = np.abs(b[np.isfinite(b)]).max(initial=0)
    return float(np.abs(x - y).max() / max(1.0, float(finite)))


def _onnxruntime(path: str) -> Any:
    """A session of onnxruntime's."""
    try:
        import onnxruntime
    except ImportError:
        raise ImportError("to compare with onnxruntime: pip install onnxruntime") from None
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its own classes, of which each has a reason
        raise ValueError(f"onnxruntime cannot load it: {error}") from None


def feed(session: InferenceSession, inputs: str | None, sizes: dict[str, int]) -> dict[str, Any]:
    """Inputs from an .npz file, or random ones."""
    if inputs is not None:
        return _from_file(Path(inputs))
    named = {n for arg in session.get_inputs() for n in arg.shape if isinstance(n, str)}
    unknown = sorted(sizes.keys() - named)
    if unknown:
        raise ValueError(f"there is no open size {unknown}; there are {sorted(named)}")
    rng = np.random.default_rng(0)
    return {arg.name: _random(arg, sizes, rng) for arg in session.get_inputs()}


def _from_file(path: Path) -> dict[str, Any]:
    """The arrays of an .npz file by name; fixed texts are texts of any length."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            found = {name: archive[name] for name in archive.files}
    except OSError:
        raise
    except Exception as error:  # what damaged archives raise is no short list
        raise ValueError(f"{path} is no .npz file of arrays: {error}") from None
    return {n: x.astype(object) if x.dtype.kind in "US" else x for n, x in found.items()}


def _random(arg: NodeArg, sizes: dict[str, int], rng: np.random.Generator) -> Any:
    text = arg.type.removeprefix("tensor(").removesuffix(")")
    if text == "string" or "(" in text:
        raise ValueError(f"the input {arg.name!r} is {arg.type}: give inputs in an .npz file")
    shape = [_size(n, sizes) for n in arg.shape]
    dtype = np.dtype(_TYPES.get(text, text))
    if dtype.kind == "f":
        return rng.standard_normal(shape).astype(dtype)
    return rng.integers(0, 2, shape).astype(dtype)


def _size(extent: int | str | None, sizes: dict[str, int]) -> int:
    if isinstance(extent, int) and extent > 0:
        return extent
    return sizes.get(str(extent), _SIZES.get(str(extent), 1))
