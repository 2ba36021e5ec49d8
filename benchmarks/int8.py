"""Products of bytes: layers, ResNet-50 and an encoder in int8, beside float32 and onnxruntime.

    python -m benchmarks.int8 [--rounds N]

All contenders of a case take turns in one process with one thread, and processor time counts.
onnxruntime runs the same weights in a file of its own, quantised by its own tools: dynamically for
products and the encoder, statically (QDQ, a scale for every filter) for ResNet-50. PyTorch's are
`quantize_dynamic` and, where it is installed, torchao compiled.
"""

from __future__ import annotations

import argparse
import copy
import math
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

import genesis
from genesis import functional, nn
from genesis.compress.fold_norms import fold_
from genesis.compress.static import quantize_dynamic_, quantize_static_

RESULTS = Path(__file__).parent / "results" / "int8.md"
HEADER = """# Products of bytes

`python -m benchmarks.int8`: weights in signed bytes with a scale for every row, activations in
unsigned ones. *Dynamic* scales are those of every row of activations, *static* ones come from data
beforehand. All contenders take turns in one process with one thread; times are processor time, the
least of the rounds. *Of float32* is Genesis' float32 over its faster int8, *of onnxruntime* and *of
PyTorch* theirs in int8 over it: above 1, Genesis is ahead.
"""
Call = Callable[[], Any]


def best(calls: dict[str, Call], rounds: int) -> dict[str, float]:
    """The least milliseconds of processor time of each call, in turns."""
    found = dict.fromkeys(calls, math.inf)
    for number in range(rounds + 2):
        for name, call in calls.items():
            begin = time.process_time()
            call()
            if number > 1:
                found[name] = min(found[name], (time.process_time() - begin) * 1e3)
    return found


# ---- models


class Bottleneck(nn.Module):
    """A block of ResNet-50, with the stride in its 3x3 convolution."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2, self.relu = nn.BatchNorm2d(width), nn.ReLU()
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.down = None
        if stride > 1 or channels != 4 * width:
            self.down = nn.Sequential(
                nn.Conv2d(channels, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width)
            )

    def forward(self, x: Any) -> Any:
        """The block of an image."""
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return self.relu(y + (x if self.down is None else self.down(x)))


def resnet50() -> nn.Sequential:
    """ResNet-50, with first values that are random."""
    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    layers.append(nn.MaxPool2d(3, 2, 1))
    channels = 64
    for stage, depth in enumerate((3, 4, 6, 3)):
        for block in range(depth):
            width, stride = 64 << stage, 2 if stage and not block else 1
            layers.append(Bottleneck(channels, width, stride))
            channels = 4 * width
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000)
    ).eval()


class EncoderLayer(nn.Module):
    """A layer of BERT, as MiniLM has it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Any) -> Any:
        """Attention and a feed-forward net, each with a norm behind it."""
        n, length, width = x.shape
        q, k, v = (
            layer(x).reshape(n, length, self.heads, -1).permute(0, 2, 1, 3)
            for layer in (self.query, self.key, self.value)
        )
        y = functional.scaled_dot_product_attention(q, k, v)
        x = self.norm1(x + self.out(y.permute(0, 2, 1, 3).reshape(n, length, width)))
        return self.norm2(x + self.down(functional.gelu(self.up(x))))


def encoder() -> nn.Sequential:
    """Six layers of 384 numbers and 12 heads."""
    return nn.Sequential(*(EncoderLayer(384, 12) for _ in range(6))).eval()


# ---- the same as files of ONNX


class File:
    """A graph of ONNX that is put together step by step."""

    def __init__(self, shape: Sequence[int]) -> None:
        from onnx import TensorProto, helper

        self.helper, self.nodes, self.constants = helper, [], []
        self.input = helper.make_tensor_value_info("x", TensorProto.FLOAT, list(shape))

    def constant(self, x: Any) -> str:
        """The name of an array."""
        from onnx import numpy_helper

        array = x.detach().numpy() if isinstance(x, genesis.Tensor) else np.asarray(x)
        self.constants.append(numpy_helper.from_array(array.copy(), f"c{len(self.constants)}"))
        return f"c{len(self.constants) - 1}"

    def add(self, kind: str, *inputs: str, **options: Any) -> str:
        """The name of what an operator gives."""
        name = f"v{len(self.nodes)}"
        self.nodes.append(self.helper.make_node(kind, list(inputs), [name], name, **options))
        return name

    def linear(self, x: str, layer: Any) -> str:
        """A linear layer."""
        product = self.add("MatMul", x, self.constant(layer.weight.detach().numpy().T))
        return self.add("Add", product, self.constant(layer.bias))

    def save(self, path: str, result: str) -> None:
        """Write the graph."""
        import onnx
        from onnx import TensorProto

        made = self.helper.make_tensor_value_info(result, TensorProto.FLOAT, None)
        graph = self.helper.make_graph(self.nodes, "g", [self.input], [made], self.constants)
        opset = [self.helper.make_opsetid("", 17)]
        onnx.save(self.helper.make_model(graph, opset_imports=opset, ir_version=8), path)


def write_resnet(model: Any, path: str) -> None:
    """ResNet-50, whose norms are folded."""
    file = File((1, 3, 224, 224))

    def convolved(x: str, layer: Any) -> str:
        ends = [*layer.padding, *layer.padding]
        options = {"pads": ends, "strides": list(layer.stride), "kernel_shape": layer.kernel_size}
        return file.add(
            "Conv", x, file.constant(layer.weight), file.constant(layer.bias), **options
        )

    x = file.add("Relu", convolved("x", model[0]))
    x = file.add("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    for block in model:
        if isinstance(block, Bottleneck):
            y = file.add("Relu", convolved(x, block.conv1))
            y = convolved(file.add("Relu", convolved(y, block.conv2)), block.conv3)
            x = file.add("Add", y, x if block.down is None else convolved(x, block.down[0]))
            x = file.add("Relu", x)
    x = file.add("Flatten", file.add("GlobalAveragePool", x))
    file.save(path, file.linear(x, model[-1]))


def write_encoder(model: Any, path: str, n: int, length: int) -> None:
    """The encoder."""
    file, x = File((n, length, 384)), "x"

    def norm(x: str, layer: Any) -> str:
        weights = file.constant(layer.weight), file.constant(layer.bias)
        return file.add("LayerNormalization", x, *weights, epsilon=layer.eps)

    for layer in model:
        heads = file.constant(np.array([n, length, layer.heads, -1]))
        q, k, v = (
            file.add("Transpose", file.add("Reshape", file.linear(x, m), heads), perm=perm)
            for m, perm in zip(
                (layer.query, layer.key, layer.value),
                ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]),
                strict=True,
            )
        )
        size = file.constant(np.float32(math.sqrt(384 / layer.heads)))
        scores = file.add("Softmax", file.add("Div", file.add("MatMul", q, k), size), axis=-1)
        y = file.add("Transpose", file.add("MatMul", scores, v), perm=[0, 2, 1, 3])
        y = file.add("Reshape", y, file.constant(np.array([n, length, -1])))
        x = norm(file.add("Add", x, file.linear(y, layer.out)), layer.norm1)
        up = file.linear(x, layer.up)
        root = file.add("Div", up, file.constant(np.float32(math.sqrt(2))))
        more = file.add("Add", file.add("Erf", root), file.constant(np.float32(1)))
        up = file.add("Mul", file.add("Mul", up, more), file.constant(np.float32(0.5)))
        x = norm(file.add("Add", x, file.linear(up, layer.down)), layer.norm2)
    file.save(path, x)


def write_linear(layer: Any, path: str, rows: int) -> None:
    """One linear layer."""
    file = File((rows, layer.weight.shape[1]))
    file.save(path, file.linear("x", layer))


# ---- contenders


def session(path: str, x: Any) -> Call:
    """A file in onnxruntime, with one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    made = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda: made.run(None, {"x": x})[0]


def quantised_dynamically(path: str, x: Any) -> Call:
    """The same, after onnxruntime's dynamic quantisation."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(path, path + ".q", weight_type=QuantType.QInt8, per_channel=True)
    return session(path + ".q", x)


def quantised_statically(path: str, x: Any) -> Call:
    """The same, after onnxruntime's static quantisation."""
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        given = iter([{"x": x}])

        def get_next(self) -> Any:
            return next(self.given, None)

    quantize_static(
        path, path + ".q", Reader(), per_channel=True,
        activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8,
    )  # fmt: skip
    return session(path + ".q", x)


def torch_linear(layer: Any, x: Any) -> Call:
    """A linear layer by PyTorch's dynamic quantisation."""
    import torch

    torch.set_num_threads(1)
    rows, k = layer.weight.shape
    plain = torch.nn.Linear(k, rows)
    plain.load_state_dict({n: torch.from_numpy(v.numpy()) for n, v in layer.state_dict().items()})
    made = torch.ao.quantization.quantize_dynamic(torch.nn.Sequential(plain), {torch.nn.Linear})
    tensor = torch.from_numpy(x)

    def call() -> Any:
        with torch.no_grad():
            return made(tensor).numpy()

    return call


def ours(model: nn.Module, x: Any) -> Call:
    """A model of Genesis."""
    run, tensor = genesis.jit(lambda x: model(x)), genesis.tensor(x)

    def call() -> Any:
        with genesis.no_grad():
            return run(tensor).numpy()

    return call


# ---- cases: the calls by name


def linear_case(rows: int, k: int, columns: int, folder: str) -> dict[str, Call]:
    """A linear layer."""
    layer = nn.Linear(k, columns)
    x = np.random.default_rng(0).standard_normal((rows, k)).astype(np.float32)
    path = f"{folder}/linear.onnx"
    write_linear(layer, path, rows)
    model = nn.Sequential(layer).eval()
    static = quantize_static_(copy.deepcopy(model), [genesis.tensor(x)])
    return {
        "float32": ours(model, x),
        "int8": ours(quantize_dynamic_(copy.deepcopy(model)), x),
        "static": ours(static, x),
        "onnxruntime": quantised_dynamically(path, x),
        "onnxruntime, float32": session(path, x),
        "PyTorch": torch_linear(layer, x),
    }


def resnet_case(folder: str) -> dict[str, Call]:
    """ResNet-50, an image of 224 x 224."""
    x = np.random.default_rng(0).standard_normal((1, 3, 224, 224)).astype(np.float32)
    model = resnet50()
    fold_(model, genesis.tensor(x))
    path = f"{folder}/resnet.onnx"
    write_resnet(model, path)
    return {
        "float32": ours(model, x),
        "int8": ours(quantize_static_(copy.deepcopy(model), [genesis.tensor(x)]), x),
        "onnxruntime": quantised_statically(path, x),
        "onnxruntime, float32": session(path, x),
    }


def encoder_case(folder: str) -> dict[str, Call]:
    """The encoder, 8 texts of 128."""
    x = np.random.default_rng(0).standard_normal((8, 128, 384)).astype(np.float32)
    model, path = encoder(), f"{folder}/encoder.onnx"
    write_encoder(model, path, 8, 128)
    static = quantize_static_(copy.deepcopy(model), [genesis.tensor(x)])
    return {
        "float32": ours(model, x),
        "int8": ours(quantize_dynamic_(copy.deepcopy(model)), x),
        "static": ours(static, x),
        "onnxruntime": quantised_dynamically(path, x),
        "onnxruntime, float32": session(path, x),
    }


SHAPES = ((128, 4096, 4096), (128, 384, 1536), (100, 768, 3072), (1024, 1536, 384))
COLUMNS = ("float32", "int8", "static", "onnxruntime", "onnxruntime, float32", "PyTorch")


def row(name: str, calls: dict[str, Call], rounds: int) -> str:
    """A case as a line of the table; that all give about the same is checked first."""
    given = {n: call() for n, call in calls.items()}
    for other, y in given.items():
        off = np.abs(y - given["float32"]).max() / np.abs(given["float32"]).max()
        assert off < 0.2, f"{name}: {other} is off by {off:.3f}"
    times = best(calls, rounds)
    least = min(times["int8"], times.get("static", math.inf))
    cells = [f"{times[c]:.2f}" if c in times else "" for c in COLUMNS]
    ratios = [f"**{times[c] / least:.2f}**" if c in times else "" for c in
              ("float32", "onnxruntime", "PyTorch")]  # fmt: skip
    return f"| {name} | {' | '.join(cells + ratios)} |"


def main() -> None:
    """Measure, print, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    warnings.filterwarnings("ignore")
    genesis.set_num_threads(1)
    genesis.manual_seed(0)
    lines = [
        "| ms | float32 | int8 | int8, static | onnxruntime, int8 | onnxruntime, float32 | "
        "PyTorch, int8 | of float32 | of onnxruntime | of PyTorch |",
        "|---|" + "---:|" * 9,
    ]
    with tempfile.TemporaryDirectory() as folder:
        for shape in SHAPES:
            name = f"{shape[0]} rows x {shape[1]} x {shape[2]}"
            lines.append(row(name, linear_case(*shape, folder), rounds))
            print(lines[-1], flush=True)
        lines.append(row("encoder, 8 x 128", encoder_case(folder), rounds))
        print(lines[-1], flush=True)
        lines.append(row("ResNet-50, 224 x 224", resnet_case(folder), rounds))
        print(lines[-1], flush=True)
    text = f"{HEADER}\n{machine()}, {date.today()}.\n\n" + "\n".join(lines) + "\n"
    RESULTS.write_text(text)


def machine() -> str:
    """The name of the processor."""
    names = [
        x for x in Path("/proc/cpuinfo").read_text().splitlines() if x.startswith("model name")
    ]
    return names[0].partition(":")[2].strip() if names else "A machine"


if __name__ == "__main__":
    main()
