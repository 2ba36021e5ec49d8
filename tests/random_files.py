"""Damaged and malicious files of models and weights: one clear exception each, or a result.

    python -m tests.random_files --seed S --count N [--minutes M] [--kind KIND]

draws the files of the seeds from S on: models of the operators' tests of the `onnx` package, and of
the operators that it does not test (`tests/rare_operators.py`), with flipped bits, exchanged nodes,
other types, giant numbers, subgraphs and loops in each other and functions that call themselves,
pickles that call whatever there is to call, and archives and tables that say they are larger than
they are. A child process reads and computes them one after the other, with limits on its memory and
on its processor time; what ends it, hangs or raises anything else than a clear exception is printed
with its seed, and counted.
"""

from __future__ import annotations

import argparse
import faulthandler
import io
import json
import multiprocessing
import os
import pickle
import random
import resource
import signal
import struct
import sys
import tempfile
import time
import traceback
import warnings
import zipfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tests import rare_operators
from tests.hostile import damaged

#: Processor seconds that a file may take, and bytes that a child may have on top of its own.
LIMIT, MEMORY = 60, 3 << 30
_NUMBERS = (0, 1, -1, 2, 7, 255, 1 << 16, 1 << 31, 1 << 40, -(1 << 62), (1 << 63) - 1)
#: What must not happen while a file is read.
_FORBIDDEN = ("os.system", "subprocess.Popen", "os.exec", "os.posix_spawn", "pickle.find_class")


class Executed(BaseException):
    """A file had something called."""


# ---- models


@cache
def _models() -> list[Any]:
    """Models that are good: those of the operators' tests, as long as they are small."""
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = [case.model for case in load_model_tests(kind="node") if case.model is not None]
    return [m for m in found if m.ByteSize() < 100_000]


def _model(draw: random.Random) -> bytes:
    import onnx

    model = onnx.ModelProto()
    model.CopyFrom(draw.choice(_models()))
    for _ in range(draw.choice((0, 1, 1, 1, 2, 4))):
        _changed(model, draw)
    contents = model.SerializeToString()
    if draw.randrange(3) == 0:
        contents = next(iter(damaged(contents, 1, draw.randrange(1 << 30))))
    return contents


def _controlled(draw: random.Random) -> bytes:
    """A model that is the body of a loop, or has functions, and may be wrong besides."""
    import onnx

    model = onnx.ModelProto()
    model.CopyFrom(draw.choice(_models()))
    draw.choice((_rounds, _calls))(model, draw)
    if draw.randrange(2):
        _changed(model, draw)
    return model.SerializeToString()


@cache
def _rare_models() -> list[Any]:
    return [model for _, model, _ in rare_operators.models()]


def _rare(draw: random.Random) -> bytes:
    """Operators that `onnx` does not test, one fed by another, or by one that it tests."""
    import onnx

    model = onnx.ModelProto()
    model.CopyFrom(draw.choice(_rare_models()))
    for k in range(draw.choice((0, 0, 1, 3))):
        _graft(model, draw.choice((_rare_models(), _models())[draw.randrange(2)]), f"?{k}", draw)
    for _ in range(draw.choice((0, 1, 1, 2, 4))):
        draw.choice((_changed, _rare_kind))(model, draw)
    contents = model.SerializeToString()
    if draw.randrange(4) == 0:
        contents = next(iter(damaged(contents, 1, draw.randrange(1 << 30))))
    return contents


def _rare_kind(model: Any, draw: random.Random) -> None:
    other = draw.choice(draw.choice(_rare_models()).graph.node)
    node = draw.choice(model.graph.node)
    node.op_type, node.domain = other.op_type, other.domain
    if draw.randrange(2):
        del node.attribute[:]
        node.attribute.extend(other.attribute)


def _graft(model: Any, other: Any, prefix: str, draw: random.Random) -> None:
    """The nodes of another model, whose inputs may be results of this one."""
    from onnx import compose

    copy = compose.add_prefix(other, prefix)
    made = [name for node in model.graph.node for name in node.output if name]
    graph = copy.graph
    for given in graph.input:
        if made and draw.randrange(3):
            name = draw.choice(made)
            for node in graph.node:
                node.input[:] = [name if n == given.name else n for n in node.input]
        else:
            model.graph.input.append(given)
    model.graph.node.extend(graph.node)
    model.graph.initializer.extend(graph.initializer)
    model.graph.output.extend(graph.output)


def _changed(model: Any, draw: random.Random) -> None:
    """Make a model wrong in one of the ways that parse."""
    changes = (_order, _kind, _wire, _attribute, _input_type, _constant, _version, _nest)
    draw.choice(changes)(model, draw)


def _order(model: Any, draw: random.Random) -> None:
    nodes = list(model.graph.node)
    draw.shuffle(nodes)
    copies = [type(n).FromString(n.SerializeToString()) for n in nodes]
    del model.graph.node[:]
    model.graph.node.extend(copies)


def _kind(model: Any, draw: random.Random) -> None:
    other = draw.choice(draw.choice(_models()).graph.node)
    draw.choice(model.graph.node).op_type = other.op_type


def _wire(model: Any, draw: random.Random) -> None:
    node = draw.choice(model.graph.node)
    names = [i.name for i in model.graph.input] + [o for n in model.graph.node for o in n.output]
    target = node.output if node.output and draw.randrange(4) == 0 else node.input
    if target:
        target[draw.randrange(len(target))] = draw.choice([*names, "", "?"])
    else:
        node.input.append(draw.choice([*names, "?"]))


def _attribute(model: Any, draw: random.Random) -> None:
    node = draw.choice(model.graph.node)
    if not node.attribute:
        others = [a for n in draw.choice(_models()).graph.node for a in n.attribute]
        node.attribute.extend(others[:1])
        return
    found = draw.choice(node.attribute)
    if found.type == 2:
        found.i = draw.choice(_NUMBERS)
    elif found.type == 7 and found.ints:
        found.ints[draw.randrange(len(found.ints))] = draw.choice(_NUMBERS)
    elif found.type == 1:
        found.f = draw.choice((0.0, -1.0, float("nan"), float("inf"), 1e38))
    elif found.type == 3:
        found.s = bytes(draw.randrange(256) for _ in range(draw.randrange(8)))
    else:
        found.type = draw.randrange(15)


def _input_type(model: Any, draw: random.Random) -> None:
    if not model.graph.input:
        return
    kind = draw.choice(model.graph.input).type.tensor_type
    if draw.randrange(2):
        kind.elem_type = draw.randrange(1, 24)
    elif kind.shape.dim:
        kind.shape.dim[draw.randrange(len(kind.shape.dim))].dim_value = draw.choice((0, 1, 2, 5))
    else:
        kind.shape.dim.add().dim_value = draw.choice((0, 1, 3))


def _constant(model: Any, draw: random.Random) -> None:
    """An input that becomes a constant, of strange sizes and numbers."""
    from onnx import numpy_helper

    if not model.graph.input:
        return
    name = draw.choice(model.graph.input).name
    shape = [draw.randrange(4) for _ in range(draw.randrange(3))]
    values = np.array(draw.choices(_NUMBERS, k=int(np.prod(shape, dtype=int))), np.int64)
    tensor = numpy_helper.from_array(values.reshape(shape), name)
    if draw.randrange(4) == 0 and tensor.dims:
        tensor.dims[0] = draw.choice(_NUMBERS)
    model.graph.initializer.append(tensor)


def _version(model: Any, draw: random.Random) -> None:
    draw.choice(model.opset_import).version = draw.choice((-1, 0, 1, 5, 9, 11, 13, 17, 99, 1 << 40))


def _nest(model: Any, draw: random.Random) -> None:
    """The graph as the branch of a condition, again and again."""
    from onnx import helper

    graph = model.graph
    inputs = [type(i).FromString(i.SerializeToString()) for i in graph.input]
    for _ in range(draw.choice((1, 2, 30, 150))):
        inner = type(graph).FromString(graph.SerializeToString())
        del inner.input[:]
        other = type(graph).FromString(inner.SerializeToString()) if draw.randrange(2) else inner
        if graph.ByteSize() > 1 << 20:
            break
        names = [o.name for o in inner.output]
        node = helper.make_node("If", ["?go"], names, then_branch=inner, else_branch=other)
        outputs = [type(o).FromString(o.SerializeToString()) for o in graph.output]
        graph.Clear()
        graph.name = "nested"
        graph.node.append(node)
        graph.output.extend(outputs)
    graph.input.extend(inputs)
    graph.input.append(helper.make_tensor_value_info("?go", 9, []))


def _rounds(model: Any, draw: random.Random) -> None:
    """The graph as the body of a loop, with what goes round taken from anywhere."""
    from onnx import helper

    graph, limit = model.graph, draw.choice((0, 3, 40, 1 << 20, (1 << 63) - 1, -5))
    body = type(graph).FromString(graph.SerializeToString())
    results = [o.name for o in body.output]
    going = draw.choice(["?going", "?round", *results])
    count = helper.make_tensor_value_info("?round", 7, [])
    del body.input[:], body.output[:]
    body.input.extend([count, helper.make_tensor_value_info("?going", 9, [])])
    body.output.append(helper.make_tensor_value_info(going, 9, []))
    body.output.extend(helper.make_empty_tensor_value_info(n) for n in results)
    node = helper.make_node("Loop", ["?limit", draw.choice(["", "?go"])], results, body=body)
    del graph.node[:]
    graph.node.append(node)
    graph.initializer.append(helper.make_tensor("?limit", 7, [], [limit]))
    graph.input.append(helper.make_tensor_value_info("?go", 9, []))


def _calls(model: Any, draw: random.Random) -> None:
    """Functions that call themselves, each other, or twice as many again and again."""
    from onnx import helper

    depth = draw.choice((1, 3, 40, 200))
    opset = [*model.opset_import, helper.make_opsetid("?", 1)]
    for k in range(depth):
        inner = draw.choice([f"f{k + 1}", f"f{k + 1}", "f0"])
        nodes = [
            helper.make_node(inner, ["a"], ["b"], domain="?"),
            helper.make_node(inner, ["b"], ["c"], domain="?"),
        ]
        if k == depth - 1:
            nodes = [helper.make_node("Neg", ["a"], ["c"])]
        model.functions.append(helper.make_function("?", f"f{k}", ["a"], ["c"], nodes, opset))
    model.opset_import.append(helper.make_opsetid("?", 1))
    names = [n for node in model.graph.node for n in node.input if n]
    if names:
        model.graph.node.append(helper.make_node("f0", [draw.choice(names)], ["?f"], domain="?"))
        model.graph.output.append(helper.make_empty_tensor_value_info("?f"))


def _run_model(contents: bytes, draw: random.Random) -> None:
    from genesis.onnx import InferenceSession

    session = InferenceSession(contents)
    rng = np.random.default_rng(draw.randrange(1 << 30))
    feed = {arg.name: _value(arg, rng) for arg in session.get_inputs()}
    for _ in range(2):
        session.run(None, feed)


def _value(arg: Any, rng: Any) -> Any:
    kinds = {"float": "f4", "double": "f8", "float16": "f2", "bool": "?", "string": "O"}
    text = arg.type.removeprefix("tensor(").removesuffix(")")
    if text.startswith("map("):
        return {"a": 1.5, "c": -2.0} if "string" in text else {3: 1.5, 1: -2.0}
    shape = [n if isinstance(n, int) and 0 <= n < 1000 else 2 for n in arg.shape]
    try:
        dtype = np.dtype(kinds.get(text, text))
    except TypeError:
        dtype = np.dtype("f4")
    if dtype.kind == "O":
        return np.full(shape, "text", object)
    return rng.uniform(-3, 3, shape).astype(dtype)


# ---- pickles

_CALLS = ("os\nsystem", "builtins\neval", "builtins\nexec", "subprocess\nPopen", "posix\nsystem",
          "builtins\ngetattr", "torch._utils\n_rebuild_tensor_v2", "torch\nFloatStorage",
          "collections\nOrderedDict", "torch.serialization\nload", "_pickle\nloads")  # fmt: skip


def _instructions(draw: random.Random) -> bytes:
    """A program for the machine of pickles that wants something called."""
    text = b"X" + struct.pack("<I", 12) + b"touch hacked"
    parts = [
        lambda: b"c" + draw.choice(_CALLS).encode() + b"\n", lambda: text, lambda: b"(",
        lambda: b"t", lambda: b"R", lambda: b"\x85", lambda: b"\x86", lambda: b"o", lambda: b"b",
        lambda: b"\x81", lambda: b"\x93", lambda: b"i" + draw.choice(_CALLS).encode() + b"\n",
        lambda: b"K" + bytes([draw.randrange(256)]), lambda: b"}", lambda: b"]", lambda: b"s",
        lambda: b"a", lambda: b"u", lambda: b"e", lambda: b"0", lambda: b"2", lambda: b"Q",
        lambda: b"q" + bytes([draw.randrange(4)]), lambda: b"h" + bytes([draw.randrange(4)]),
        lambda: b"N", lambda: b"\x88", lambda: b"J" + struct.pack("<i", draw.randrange(1 << 31)),
        lambda: b"\x8a\x08" + struct.pack("<q", draw.choice(_NUMBERS)),
    ]  # fmt: skip
    body = b"".join(draw.choice(parts)() for _ in range(draw.randrange(1, 40)))
    return b"\x80\x02" + body + b"."


class _Calls:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch hacked",)


def _pickled(draw: random.Random) -> bytes:
    if draw.randrange(2):
        return _instructions(draw)
    good = pickle.dumps({"w": _Calls(), "n": [1, (2, "x")]}, draw.choice((0, 1, 2, 4, 5)))
    return next(iter(damaged(good, 1, draw.randrange(1 << 30))))


def _checkpoint(draw: random.Random) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("x/data.pkl", _pickled(draw))
        archive.writestr("x/data/0", bytes(64))
    contents = file.getvalue()
    if draw.randrange(4) == 0:
        contents = next(iter(damaged(contents, 1, draw.randrange(1 << 30))))
    return contents


def _read_checkpoint(contents: bytes, draw: random.Random) -> None:
    from genesis.weights import open_weights

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.pt"
        path.write_bytes(contents)
        weights = open_weights(path)
        for name in weights:
            weights.read(name)


# ---- archives and tables


def _array_file(draw: random.Random) -> bytes:
    """A file of NumPy's whose head says what it likes."""
    shape = tuple(draw.choice(_NUMBERS) for _ in range(draw.randrange(4)))
    kind = draw.choice(("<f4", "|O", "<f8", "<U9", "|V3", "[('a', '<f4')]", "__import__('os')"))
    order = draw.choice((True, False, None))
    head = f"{{'descr': {kind!r}, 'fortran_order': {order}, 'shape': {shape}, }}"
    if draw.randrange(8) == 0:
        head = "(" * draw.choice((10, 5000)) + head
    text = head.encode() + b"\n"
    length = draw.choice((len(text), 0, 65535))
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", min(length, 65535)) + text + bytes(64)


def _table_file(draw: random.Random) -> bytes:
    """A safetensors file whose table says what it likes."""
    entry = {
        "dtype": draw.choice(("F32", "I64", "BOOL", "F8_E4M3", "X", 3)),
        "shape": [draw.choice(_NUMBERS) for _ in range(draw.randrange(4))],
        "data_offsets": [draw.choice(_NUMBERS), draw.choice((0, 4, 64, *_NUMBERS))],
    }
    text = json.dumps({"w": entry, "v": draw.choice(([], entry, None, {}, "x"))})
    if draw.randrange(6) == 0:
        text = '{"w":' + "[" * draw.choice((50, 100_000)) + text
    length = draw.choice((len(text), len(text), 1 << 62, 0))
    return struct.pack("<Q", length) + text.encode() + bytes(64)


def _archive(draw: random.Random) -> bytes:
    """Weights in one of the other formats; the first byte says in which."""
    if draw.randrange(2):
        return b"s" + _table_file(draw)
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", draw.choice((0, 8))) as archive:
        for name in ("w.npy", draw.choice(("../v.npy", "w.npy", "/etc/v.npy", "v"))):
            archive.writestr(name, draw.choice((_array_file(draw), _pickled(draw))))
        if draw.randrange(8) == 0:  # little that becomes much
            archive.writestr("big.npy", bytes(1 << 26))
    contents = file.getvalue()
    if draw.randrange(3) == 0:
        contents = next(iter(damaged(contents, 1, draw.randrange(1 << 30))))
    return b"z" + contents


def _read_archive(contents: bytes, draw: random.Random) -> None:
    from genesis.weights import open_weights

    suffix = {b"s": "safetensors", b"z": "npz"}[contents[:1]]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"x.{suffix}"
        path.write_bytes(contents[1:])
        weights = open_weights(path)
        for name in weights:
            weights.read(name)


# ---- running them

KINDS: dict[str, tuple[Callable[..., bytes], Callable[..., None]]] = {
    "model": (_model, _run_model), "pickle": (_checkpoint, _read_checkpoint),
    "control": (_controlled, _run_model), "archive": (_archive, _read_archive),
    "rare": (_rare, _run_model),
}  # fmt: skip


def kind_of(seed: int) -> str:
    """The kind of the file of a seed."""
    if seed % 16 in (8, 12):
        return "control" if seed % 16 == 8 else "archive"
    if seed % 16 in (2, 13):
        return "rare"
    return "pickle" if seed % 4 == 3 else "model"


def tried(seed: int) -> str | None:
    """What is wrong about how the file of a seed is read; None: nothing."""
    from genesis.onnx import CannotExport, OperatorError, UnsupportedModel
    from genesis.serialization import BadFile

    draw = random.Random(seed)
    kind = kind_of(seed)
    make, use = KINDS[kind]
    contents = make(draw)
    clear = (BadFile, OperatorError, UnsupportedModel, CannotExport, ValueError, MemoryError)
    if kind in ("pickle", "archive"):
        clear = (BadFile,)
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            use(contents, draw)
    except clear:
        return None
    except BaseException as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__}: {error}"[:300]
        return f"{text} ({Path(place.filename).name}:{place.lineno})"
    return None


def _forbid(event: str, args: tuple[Any, ...]) -> None:
    if event in _FORBIDDEN and _forbid.on:  # type: ignore[attr-defined]
        raise Executed(f"{event} {args!r}"[:200])


def _work(seeds: Sequence[int], pipe: Any) -> None:
    """Try seeds one after the other; which one comes next is said before."""
    import genesis.onnx
    import genesis.weights  # noqa: F401

    os.environ["GENESIS_CACHE"] = "off"
    faulthandler.enable()
    _models(), _rare_models()
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    sys.addaudithook(_forbid)

    def hang(*_: Any) -> None:
        raise TimeoutError(f"more than {LIMIT} s")

    signal.signal(signal.SIGPROF, hang)
    for seed in seeds:
        pipe.send((seed, None, False))
        _forbid.on = kind_of(seed) in ("pickle", "archive")  # type: ignore[attr-defined]
        signal.setitimer(signal.ITIMER_PROF, LIMIT)
        found = tried(seed)
        signal.setitimer(signal.ITIMER_PROF, 0)
        pipe.send((seed, found, True))


def run(
    first: int, count: int, minutes: float | None = None, kind: str | None = None
) -> list[tuple[int, str]]:
    """What is wrong with the files of seeds, or those of a kind, each with its seed."""
    context = multiprocessing.get_context("spawn")
    end = time.monotonic() + 60 * (minutes or 1e9)
    found: list[tuple[int, str]] = []
    left = [seed for seed in range(first, first + count) if kind in (None, kind_of(seed))]
    done = 0
    while done < len(left) and time.monotonic() < end:
        ours, theirs = context.Pipe()
        child = context.Process(target=_work, args=(left[done:], theirs))
        child.start()
        theirs.close()
        at, ended = left[done], False
        try:
            while time.monotonic() < end:
                at, error, ended = ours.recv()
                if error:
                    found.append((at, error))
                    print(at, error, flush=True)
        except EOFError:
            child.join()
            if not ended or child.exitcode:
                found.append((at, f"the process ended with {child.exitcode}"))
                print(*found[-1], flush=True)
        child.kill()
        child.join()
        done = left.index(at) + 1
    print(f"{done} files, {len(found)} of them not refused as they should be", flush=True)
    return found


def main() -> None:
    """Run the files of the seeds that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--kind", choices=KINDS)
    chosen = parser.parse_args()
    sys.exit(bool(run(chosen.seed, chosen.count, chosen.minutes, chosen.kind)))


if __name__ == "__main__":
    main()
