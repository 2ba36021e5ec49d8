"""Operations and shapes as models have them, drawn at random: what `benchmarks.gpu --sweep` times.

A case is written once, for both libraries: its function is given one of them and the arrays. Shapes
come from public architectures, with batches of 1 to 256 and lengths that people have; some are odd.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import prod
from random import Random
from typing import Any, NamedTuple

#: Elements that the arrays of a case have together at most, and its operations.
MOST_ELEMENTS = 3 << 27
MOST_FLOPS = 3e12


class Transformer(NamedTuple):
    """The sizes of a transformer: `inner` is what its feed-forward layers have inside."""

    name: str
    width: int
    heads: int
    groups: int  # heads of keys and values
    head: int
    inner: int
    vocabulary: int


class Layer(NamedTuple):
    """A convolution of a network for images, on square images, padded by half of its window."""

    name: str
    channels: int
    out: int
    pixels: int
    window: int
    stride: int = 1
    groups: int = 1


TRANSFORMERS = (
    Transformer("GPT-2", 768, 12, 12, 64, 3072, 50257),
    Transformer("GPT-2 XL", 1600, 25, 25, 64, 6400, 50257),
    Transformer("BERT-base", 768, 12, 12, 64, 3072, 30522),
    Transformer("BERT-large", 1024, 16, 16, 64, 4096, 30522),
    Transformer("RoBERTa-large", 1024, 16, 16, 64, 4096, 50265),
    Transformer("T5-base", 768, 12, 12, 64, 3072, 32128),
    Transformer("T5-3B", 1024, 32, 32, 128, 16384, 32128),
    Transformer("BART-large", 1024, 16, 16, 64, 4096, 50265),
    Transformer("OPT-1.3B", 2048, 32, 32, 64, 8192, 50272),
    Transformer("Pythia-410M", 1024, 16, 16, 64, 4096, 50304),
    Transformer("Falcon-7B", 4544, 71, 1, 64, 18176, 65024),
    Transformer("Phi-2", 2560, 32, 32, 80, 10240, 51200),
    Transformer("Phi-3-mini", 3072, 32, 32, 96, 8192, 32064),
    Transformer("StableLM-3B", 2560, 32, 32, 80, 6912, 50304),
    Transformer("TinyLlama", 2048, 32, 4, 64, 5632, 32000),
    Transformer("Llama-2-7B", 4096, 32, 32, 128, 11008, 32000),
    Transformer("Llama-3-8B", 4096, 32, 8, 128, 14336, 128256),
    Transformer("Llama-3.2-1B", 2048, 32, 8, 64, 8192, 128256),
    Transformer("Llama-3.2-3B", 3072, 24, 8, 128, 8192, 128256),
    Transformer("Mistral-7B", 4096, 32, 8, 128, 14336, 32000),
    Transformer("Qwen2.5-0.5B", 896, 14, 2, 64, 4864, 151936),
    Transformer("Qwen2.5-1.5B", 1536, 12, 2, 128, 8960, 151936),
    Transformer("Qwen2.5-7B", 3584, 28, 4, 128, 18944, 152064),
    Transformer("Gemma-2B", 2048, 8, 1, 256, 16384, 256000),
    Transformer("Gemma-2-2B", 2304, 8, 4, 256, 9216, 256000),
    Transformer("Gemma-7B", 3072, 16, 16, 256, 24576, 256000),
    Transformer("SmolLM-135M", 576, 9, 3, 64, 1536, 49152),
    Transformer("Whisper-small", 768, 12, 12, 64, 3072, 51865),
    Transformer("Stable Diffusion's", 640, 8, 8, 80, 2560, 49408),
    Transformer("DeiT-Ti", 192, 3, 3, 64, 768, 1000),
    Transformer("ViT-S/16", 384, 6, 6, 64, 1536, 1000),
    Transformer("ViT-L/16", 1024, 16, 16, 64, 4096, 21843),
    Transformer("ViT-H/14", 1280, 16, 16, 80, 5120, 1000),
    Transformer("SigLIP so400m", 1152, 16, 16, 72, 4304, 32000),
    Transformer("CLIP's text", 512, 8, 8, 64, 2048, 49408),
    Transformer("DINOv2-g", 1536, 24, 24, 64, 4096, 1000),
)
LAYERS = (
    Layer("ResNet", 3, 64, 224, 7, 2),
    Layer("ResNet-18", 64, 64, 56, 3),
    Layer("ResNet-18", 128, 256, 28, 3, 2),
    Layer("ResNet-50", 256, 64, 56, 1),
    Layer("ResNet-50", 512, 1024, 28, 1, 2),
    Layer("ResNet-50", 256, 256, 14, 3),
    Layer("ResNet-50", 512, 512, 7, 3),
    Layer("ResNeXt-50", 128, 128, 56, 3, 1, 32),
    Layer("RegNetY-4GF", 192, 192, 28, 3, 1, 8),
    Layer("VGG-16", 64, 128, 112, 3),
    Layer("VGG-16", 512, 512, 14, 3),
    Layer("Inception-v3", 192, 320, 35, 3),
    Layer("Inception-v3", 48, 64, 35, 5),
    Layer("DenseNet-121", 128, 32, 28, 3),
    Layer("DenseNet-121", 256, 128, 56, 1),
    Layer("U-Net", 64, 64, 284, 3),
    Layer("U-Net", 512, 256, 64, 3),
    Layer("Stable Diffusion's", 320, 320, 64, 3),
    Layer("Stable Diffusion's", 1280, 640, 32, 3),
    Layer("YOLOv5s", 32, 64, 160, 3, 2),
    Layer("MobileNetV2", 32, 192, 28, 1),
    Layer("EfficientNet-B0", 112, 672, 14, 1),
    Layer("ConvNeXt-T", 3, 96, 224, 4, 4),
    Layer("ConvNeXt-B", 256, 512, 28, 2, 2),
)
DEPTHWISE = (
    Layer("MobileNetV2", 96, 96, 112, 3, 2, 96),
    Layer("MobileNetV2", 192, 192, 28, 3, 1, 192),
    Layer("MobileNetV2", 960, 960, 7, 3, 1, 960),
    Layer("MobileNetV3", 72, 72, 56, 5, 2, 72),
    Layer("EfficientNet-B0", 240, 240, 28, 3, 2, 240),
    Layer("EfficientNet-B0", 672, 672, 14, 5, 1, 672),
    Layer("EfficientNet-B4", 336, 336, 28, 5, 1, 336),
    Layer("ConvNeXt-T", 96, 96, 56, 7, 1, 96),
    Layer("ConvNeXt-T", 384, 384, 14, 7, 1, 384),
    Layer("ConvNeXt-B", 256, 256, 28, 7, 1, 256),
)


@dataclass(frozen=True)
class Models:
    """What shapes are drawn from."""

    transformers: tuple[Transformer, ...] = TRANSFORMERS
    layers: tuple[Layer, ...] = LAYERS
    depthwise: tuple[Layer, ...] = DEPTHWISE
    batches: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256)
    lengths: tuple[int, ...] = (
        1, 17, 77, 128, 197, 257, 384, 512, 577, 1000, 1024, 1500, 2048, 4096,
    )  # fmt: skip
    signals: tuple[int, ...] = (400, 512, 1000, 1024, 4096, 48000)
    matrices: tuple[tuple[int, int], ...] = ((64, 64), (256, 8), (512, 1), (1024, 1), (2048, 1))


@dataclass(frozen=True)
class Input:
    """An array: normal numbers, integers below `below`, or matrices that are positive definite."""

    shape: tuple[int, ...]
    dtype: str
    below: int = 0
    definite: bool = False


@dataclass(frozen=True)
class Case:
    """A computation for both libraries, and how many operations it has at least.

    Where it is about gradients, the last input is that of the result, and gradients are those of
    all others that are floats.
    """

    family: str
    name: str
    function: Callable[..., Any]
    inputs: tuple[Input, ...]
    flops: float = 0
    gradients: bool = False
    values: int = 0  # of the results, how many are compared; 0: all
    kink: bool = False  # a sum is compared with 0

    @property
    def dtype(self) -> str:
        """The type of what is computed with."""
        return next(x.dtype for x in self.inputs if not x.below)

    @property
    def elements(self) -> int:
        """Those of all inputs."""
        return sum(prod(x.shape) for x in self.inputs)

    def __str__(self) -> str:
        return f"{self.name} {self.dtype}{', gradients' if self.gradients else ''}"


def with_gradients(lib: Any, function: Callable[..., Any], arrays: list[Any]) -> tuple[Any, ...]:
    """The gradients of a function, given that of its result as the last array."""
    *arrays, grad = arrays
    known = [x.detach().requires_grad_() if x.is_floating_point() else x for x in arrays]
    function(lib, *known).backward(grad)
    return tuple(x.grad for x in known if x.requires_grad)


# ---- what is drawn


class Draw:
    """A source of cases."""

    def __init__(self, seed: int, models: Models | None = None) -> None:
        self.random = Random(seed)
        self.models = models or Models()

    def case(self, family: str) -> Case:
        """A case of a family that is neither too large nor too long."""
        while True:
            case = FAMILIES[family](self)
            if case.elements <= MOST_ELEMENTS and case.flops <= MOST_FLOPS:
                return case

    # What families ask for.
    def dtype(self, *kinds: str) -> str:
        """A type to compute with."""
        return self.random.choice(kinds or ("bfloat16", "bfloat16", "float16", "float32"))

    def one(self, *choices: Any) -> Any:
        """One of several."""
        return self.random.choice(choices)

    def often(self, share: float) -> bool:
        """Whether to, in such a share of cases."""
        return self.random.random() < share

    def transformer(self) -> Transformer:
        """The sizes of one."""
        return self.random.choice(self.models.transformers)

    def batch(self) -> int:
        """How many examples."""
        return self.random.choice(self.models.batches)

    def length(self) -> int:
        """How long a sequence."""
        return self.random.choice(self.models.lengths)

    def tokens(self) -> int:
        """How many rows a batch of sequences has."""
        return self.batch() * self.length()

    def odd(self, size: int, share: float = 0.25) -> int:
        """The size, or one nearby that is no multiple of anything."""
        return max(1, size + self.one(-3, -1, 1, 5)) if self.often(share) else size

    def made(self, family: str, name: str, function: Callable[..., Any], shapes: list[Any],
             dtype: str, result: tuple[int, ...] | None = None, flops: float = 0,
             values: int = 0) -> Case:  # fmt: skip
        """A case, with gradients half of the time if the shape of its result is known."""
        inputs = [x if isinstance(x, Input) else Input(tuple(x), dtype) for x in shapes]
        name = f"{name} {' '.join('x'.join(map(str, x.shape)) for x in inputs)}"
        if result is not None and self.often(0.5):
            inputs.append(Input(result, dtype))
            return Case(family, name, function, tuple(inputs), 3 * flops, True)
        return Case(family, name, function, tuple(inputs), flops, values=values)


def linear(draw: Draw) -> Case:
    t = draw.transformer()
    sizes = [(t.heads * t.head, t.width), (t.groups * t.head, t.width), (t.inner, t.width),
             (t.width, t.inner), (t.vocabulary, t.width)]  # fmt: skip
    out, into = draw.one(*sizes)
    rows = draw.tokens()
    act = draw.one("", "", "gelu", "silu", "relu")
    bias = draw.often(0.5)

    def function(lib: Any, x: Any, w: Any, *b: Any) -> Any:
        y = lib.nn.functional.linear(x, w, *b)
        return getattr(lib.nn.functional, act)(y) if act else y

    shapes = [(rows, into), (out, into), *([(out,)] * bias)]
    flops = 2 * rows * out * into
    made = draw.made("linear", f"linear {act}".strip(), function, shapes, draw.dtype(),
                     (rows, out), flops)  # fmt: skip
    return replace(made, kink=act == "relu")


def product(draw: Draw) -> Case:
    t = draw.transformer()
    m, k, n = (draw.odd(draw.one(t.width, t.inner, t.heads * t.head, 1024, 2048)) for _ in range(3))
    left, right = draw.often(0.5), draw.often(0.5)
    name = f"matmul{' AT' * left}{' BT' * right}"

    def function(lib: Any, a: Any, b: Any) -> Any:
        return lib.matmul(a.mT if left else a, b.mT if right else b)

    shapes = [(k, m) if left else (m, k), (n, k) if right else (k, n)]
    return draw.made("product", name, function, shapes, draw.dtype(), None, 2 * m * n * k)


def batched(draw: Draw) -> Case:
    t = draw.transformer()
    batch, rows, columns = draw.batch() * t.heads, draw.odd(draw.length()), draw.length()
    right = draw.often(0.5)
    k, n = (t.head, columns) if right else (columns, t.head)

    def function(lib: Any, a: Any, b: Any) -> Any:
        return lib.matmul(a, b.mT if right else b)

    shapes = [(batch, rows, k), (batch, n, k) if right else (batch, k, n)]
    return draw.made("product", "batched matmul", function, shapes, draw.dtype(), None,
                     2 * batch * rows * n * k)  # fmt: skip


def gated(draw: Draw) -> Case:
    t, rows = draw.transformer(), draw.tokens()
    act = draw.one("silu", "gelu")

    def function(lib: Any, x: Any, w: Any, v: Any) -> Any:
        linear = lib.nn.functional.linear
        return getattr(lib.nn.functional, act)(linear(x, w)) * linear(x, v)

    shapes = [(rows, t.width), (t.inner, t.width), (t.inner, t.width)]
    return draw.made("gated", f"{act}(xW)*xV", function, shapes, draw.dtype("bfloat16", "float16"),
                     (rows, t.inner), 4 * rows * t.inner * t.width)  # fmt: skip


def _convolution(draw: Draw, family: str, layer: Layer) -> Case:
    batch, pixels = draw.batch(), draw.odd(layer.pixels, 0.2)
    edge = 0 if layer.window == layer.stride else layer.window // 2
    after = (pixels + 2 * edge - layer.window) // layer.stride + 1
    per_group = layer.channels // layer.groups

    def function(lib: Any, x: Any, w: Any) -> Any:
        return lib.nn.functional.conv2d(x, w, None, layer.stride, edge, 1, layer.groups)

    x = (batch, layer.channels, pixels, pixels)
    w = (layer.out, per_group, layer.window, layer.window)
    flops = 2 * batch * layer.out * after**2 * per_group * layer.window**2
    name = f"conv {layer.window}x{layer.window}/{layer.stride}"
    name += f" groups {layer.groups}" if layer.groups > 1 else ""
    return draw.made(family, name, function, [x, w], draw.dtype(),
                     (batch, layer.out, after, after), flops)  # fmt: skip


def convolution(draw: Draw) -> Case:
    return _convolution(draw, "convolution", draw.one(*draw.models.layers))


def depthwise(draw: Draw) -> Case:
    return _convolution(draw, "depthwise", draw.one(*draw.models.depthwise))


def _image(draw: Draw) -> tuple[int, int, int]:
    layer = draw.one(*draw.models.layers, *draw.models.depthwise)
    return draw.batch(), layer.out, max(7, draw.odd(layer.pixels // layer.stride, 0.2))


def pooling(draw: Draw) -> Case:
    batch, channels, pixels = _image(draw)
    kind, window, stride = draw.one(("max", 3, 2), ("max", 2, 2), ("max", 3, 1), ("avg", 2, 2),
                                    ("avg", 3, 1), ("global", 0, 0))  # fmt: skip
    edge = 1 if window == 3 else 0

    def function(lib: Any, x: Any) -> Any:
        if kind == "global":
            return lib.nn.functional.adaptive_avg_pool2d(x, 1)
        return getattr(lib.nn.functional, f"{kind}_pool2d")(x, window, stride, edge)

    after = 1 if kind == "global" else (pixels + 2 * edge - window) // stride + 1
    name = f"{kind} pool" + (f" {window}x{window}/{stride}" if window else "")
    return draw.made("pooling", name, function, [(batch, channels, pixels, pixels)], draw.dtype(),
                     (batch, channels, after, after))  # fmt: skip


def batch_norm(draw: Draw) -> Case:
    batch, channels, pixels = _image(draw)
    relu = draw.often(0.6)

    def function(lib: Any, x: Any, w: Any, b: Any) -> Any:
        y = lib.nn.functional.batch_norm(x, None, None, w, b, True)
        return lib.nn.functional.relu(y) if relu else y

    x = (batch, channels, pixels, pixels)
    made = draw.made("batch norm", f"batch norm{' + relu' * relu}", function,
                     [x, (channels,), (channels,)], draw.dtype(), x)  # fmt: skip
    return replace(made, kink=relu)


def norm(draw: Draw) -> Case:
    t, rows = draw.transformer(), draw.tokens()
    kind = draw.one("layer", "rms")
    residual = draw.often(0.3)

    def function(lib: Any, x: Any, w: Any, *others: Any) -> Any:
        x = x + others[-1] if residual else x
        if kind == "rms":
            return lib.nn.functional.rms_norm(x, (t.width,), w, 1e-6)
        return lib.nn.functional.layer_norm(x, (t.width,), w, others[0])

    shapes = [(rows, t.width), (t.width,), *([(t.width,)] * (kind == "layer")),
              *([(rows, t.width)] * residual)]  # fmt: skip
    return draw.made("norm", f"{kind} norm{' of a sum' * residual}", function, shapes, draw.dtype(),
                     (rows, t.width))  # fmt: skip


def group_norm(draw: Draw) -> Case:
    batch, channels, pixels = _image(draw)
    groups = 32 if channels % 32 == 0 else 1

    def function(lib: Any, x: Any, w: Any, b: Any) -> Any:
        return lib.nn.functional.silu(lib.nn.functional.group_norm(x, groups, w, b))

    x = (batch, channels, pixels, pixels)
    return draw.made("norm", f"group norm {groups} + silu", function, [x, (channels,), (channels,)],
                     draw.dtype(), x)  # fmt: skip


def softmax(draw: Draw) -> Case:
    t = draw.transformer()
    kind = draw.one("softmax", "log_softmax")
    shape = draw.one(
        (draw.tokens(), t.vocabulary), (draw.batch() * t.heads, draw.length(), draw.length())
    )

    def function(lib: Any, x: Any) -> Any:
        return getattr(lib.nn.functional, kind)(x, -1)

    return draw.made("softmax", kind, function, [shape], draw.dtype(), shape)


def cross_entropy(draw: Draw) -> Case:
    t, rows = draw.transformer(), draw.tokens()

    def function(lib: Any, x: Any, target: Any) -> Any:
        return lib.nn.functional.cross_entropy(x.float(), target)

    shapes = [(rows, t.vocabulary), Input((rows,), "int64", t.vocabulary)]
    return draw.made("loss", "cross entropy", function, shapes, draw.dtype(), None)


def cross_entropy_gradients(draw: Draw) -> Case:
    t, rows = draw.transformer(), draw.tokens()

    def function(lib: Any, x: Any, target: Any) -> Any:
        return lib.nn.functional.cross_entropy(x.float(), target)

    inputs = (Input((rows, t.vocabulary), draw.dtype()), Input((rows,), "int64", t.vocabulary),
              Input((), "float32"))  # fmt: skip
    return Case("loss", f"cross entropy {rows}x{t.vocabulary}", function, inputs, gradients=True)


def attention(draw: Draw) -> Case:
    t, batch, length = draw.transformer(), draw.one(1, 2, 4, 8, 16, 32), draw.odd(draw.length())
    causal = draw.often(0.5)
    few = draw.often(0.2)  # a step of a decoder
    queries = 1 if few else length
    grouped = t.groups != t.heads

    def function(lib: Any, q: Any, k: Any, v: Any) -> Any:
        attend = lib.nn.functional.scaled_dot_product_attention
        return attend(q, k, v, is_causal=causal and not few, enable_gqa=grouped)

    q, kv = (batch, t.heads, queries, t.head), (batch, t.groups, length, t.head)
    flops = 4 * batch * t.heads * queries * length * t.head / (2 if causal and not few else 1)
    name = "decode" if few else f"{'causal ' * causal}attention"
    return draw.made("attention", name, function, [q, kv, kv], draw.dtype("bfloat16", "float16"),
                     None if few else q, flops)  # fmt: skip


def embedding(draw: Draw) -> Case:
    t, rows = draw.transformer(), draw.tokens()

    def function(lib: Any, i: Any, w: Any) -> Any:
        return lib.nn.functional.embedding(i, w)

    shapes = [Input((rows,), "int64", t.vocabulary), (t.vocabulary, t.width)]
    return draw.made("embedding", "embedding", function, shapes, draw.dtype(), (rows, t.width))


def elementwise(draw: Draw) -> Case:
    t, rows = draw.transformer(), draw.tokens()
    kind = draw.one("gelu", "silu", "tanh", "sigmoid", "relu", "softplus")

    def function(lib: Any, x: Any, y: Any, b: Any) -> Any:
        return getattr(lib.nn.functional, kind)(x + b) * y

    x = (rows, t.inner)
    return draw.made("elementwise", f"{kind}(x+b)*y", function, [x, x, (t.inner,)], draw.dtype(), x)


def rotary(draw: Draw) -> Case:
    t, batch, length = draw.transformer(), draw.one(1, 4, 16), draw.length()

    def function(lib: Any, x: Any, cos: Any, sin: Any) -> Any:
        a, b = x.chunk(2, -1)
        return x * cos + lib.cat((-b, a), -1) * sin

    x = (batch, t.heads, length, t.head)
    return draw.made("elementwise", "rotary", function, [x, x[2:], x[2:]], draw.dtype(), x)


def adam(draw: Draw) -> Case:
    t = draw.transformer()

    def function(lib: Any, p: Any, grad: Any, mean: Any, square: Any) -> Any:
        mean = mean * 0.9 + grad * 0.1
        square = square * 0.999 + grad * grad * 0.001
        return p - 1e-3 * mean / ((square * square + 0.01).sqrt() + 1e-8), mean, square

    return draw.made("elementwise", "Adam", function, [(t.inner, t.width)] * 4, "float32")


def reduction(draw: Draw) -> Case:
    t, rows = draw.transformer(), draw.tokens()
    kind = draw.one("sum", "mean", "amax", "var", "logsumexp", "argmax")
    shape = draw.one(
        (rows, t.width),
        (t.width, draw.odd(t.inner)),
        (draw.batch(), t.heads, draw.length(), t.head),
    )
    axis = draw.random.randrange(len(shape))
    dtype = "float32" if kind == "argmax" else draw.dtype()

    def function(lib: Any, x: Any) -> Any:
        return getattr(lib, kind)(x, axis)

    return draw.made("reduction", f"{kind} axis {axis}", function, [shape], dtype)


def cumulative(draw: Draw) -> Case:
    t, rows = draw.transformer(), draw.tokens()
    shape = draw.one((rows, t.width), (draw.batch(), t.vocabulary))
    axis = draw.one(0, 1)

    def function(lib: Any, x: Any) -> Any:
        return lib.cumsum(x, axis)

    return draw.made("scan", f"cumsum axis {axis}", function, [shape], "float32")


def sorting(draw: Draw) -> Case:
    t = draw.transformer()
    shape = draw.one(
        (draw.batch(), t.vocabulary),
        (draw.tokens(), 1024),
        (draw.tokens(), 64),
        (t.vocabulary * 8,),
    )
    kind, k = draw.one("sort", "topk"), draw.one(1, 8, 50)

    def function(lib: Any, x: Any) -> Any:
        if kind == "sort":
            return tuple(lib.sort(x, dim=-1, stable=True))
        return tuple(lib.topk(x, k))

    return draw.made("sorting", kind if kind == "sort" else f"top {k}", function, [shape],
                     draw.dtype("float32", "float32", "bfloat16"),
                     values=2 if kind == "sort" else 1)  # fmt: skip


def movement(draw: Draw) -> Case:
    t, batch, length = draw.transformer(), draw.one(1, 4, 16, 64), draw.length()
    kind = draw.one("heads", "transpose", "cat", "pad", "roll", "repeat")
    x = (batch, length, t.heads * t.head)

    def function(lib: Any, x: Any, y: Any) -> Any:
        if kind == "heads":
            return x.reshape(batch, length, t.heads, t.head).transpose(1, 2).contiguous()
        if kind == "transpose":
            return x.transpose(1, 2).contiguous()
        if kind == "cat":
            return lib.cat((x, y), -1)
        if kind == "pad":
            return lib.nn.functional.pad(x, (1, 2, 3, 0))
        if kind == "roll":
            return lib.roll(x, 1, 1)
        return x.repeat_interleave(2, 1)

    return draw.made("movement", kind, function, [x, x], draw.dtype())


def interpolation(draw: Draw) -> Case:
    batch, channels, pixels = _image(draw)
    mode = draw.one("nearest", "bilinear")

    def function(lib: Any, x: Any) -> Any:
        return lib.nn.functional.interpolate(x, scale_factor=2.0, mode=mode)

    x = (min(batch, 32), channels, pixels, pixels)
    return draw.made("movement", f"{mode} interpolation", function, [x], draw.dtype(),
                     (*x[:2], 2 * pixels, 2 * pixels))  # fmt: skip


def gathering(draw: Draw) -> Case:
    t, rows = draw.transformer(), draw.tokens()
    kind = draw.one("index_select", "gather")
    count = draw.odd(rows)

    def function(lib: Any, x: Any, i: Any) -> Any:
        if kind == "gather":
            return lib.gather(x, 0, i[:, None].expand(-1, x.shape[1]))
        return lib.index_select(x, 0, i)

    shapes = [(rows, t.width), Input((count,), "int64", rows)]
    return draw.made("indexing", kind, function, shapes, draw.dtype(), (count, t.width))


def scattering(draw: Draw) -> Case:
    t, rows = draw.transformer(), draw.tokens()
    count = draw.one(64, 1000, rows)

    def function(lib: Any, x: Any, i: Any, y: Any) -> Any:
        return lib.index_add(x, 0, i, y)

    shapes = [(count, t.width), Input((rows,), "int64", count), (rows, t.width)]
    return draw.made("indexing", "index_add", function, shapes, draw.dtype("float32", "bfloat16"))


def fourier(draw: Draw) -> Case:
    n = draw.one(*draw.models.signals)
    rows = min(draw.tokens(), (1 << 26) // n)
    kind = draw.one("rfft", "round trip", "fft2")

    def function(lib: Any, x: Any) -> Any:
        if kind == "round trip":
            return lib.fft.irfft(lib.fft.rfft(x), x.shape[-1])
        found = lib.fft.rfft(x) if kind == "rfft" else lib.fft.fft2(x)
        return lib.view_as_real(found)

    shape = (draw.one(1, 8, 32), 3, 224, 224) if kind == "fft2" else (rows, n)
    return draw.made("library", kind, function, [shape], "float32")


def factorisation(draw: Draw) -> Case:
    n, batch = draw.one(*draw.models.matrices)
    kind = draw.one("cholesky", "solve", "qr", "svdvals", "eigvalsh", "inv", "solve_triangular")
    definite = Input((batch, n, n), "float32", definite=True)
    several = kind in ("solve", "solve_triangular")

    def function(lib: Any, a: Any, *b: Any) -> Any:
        if kind == "solve_triangular":
            return lib.linalg.solve_triangular(lib.tril(a), *b, upper=False)
        if kind == "qr":
            return lib.abs(lib.linalg.qr(a)[1])
        return getattr(lib.linalg, kind)(a, *b)

    shapes = [definite, *([(batch, n, 16)] * several)]
    return draw.made("library", kind, function, shapes, "float32")


#: Families by name, and how often each is drawn.
FAMILIES: dict[str, Callable[[Draw], Case]] = {
    f.__name__: f
    for f in (
        linear, product, batched, gated, convolution, depthwise, pooling, batch_norm, norm,
        group_norm, softmax, cross_entropy, cross_entropy_gradients, attention, embedding,
        elementwise, rotary, adam, reduction, cumulative, sorting, movement, interpolation,
        gathering, scattering, fourier, factorisation,
    )
}  # fmt: skip
WEIGHTS = {
    "linear": 4, "product": 3, "convolution": 3, "attention": 4, "depthwise": 2, "norm": 2,
    "elementwise": 2, "reduction": 2, "embedding": 2, "pooling": 2, "sorting": 2,
}  # fmt: skip


def drawn(seed: int, count: int, models: Models | None = None) -> list[Case]:
    """So many cases; every family has its share of them, whatever the seed."""
    draw = Draw(seed, models)
    return [draw.case(family) for family, _ in zip(_families(), range(count), strict=False)]


def _families() -> Iterator[str]:
    """All families, over and over, by their weights."""
    turns = max(WEIGHTS.values())
    while True:
        for turn in range(turns):
            for family in FAMILIES:
                weight = WEIGHTS.get(family, 1)
                if turn * weight // turns != (turn + 1) * weight // turns:
                    yield family
