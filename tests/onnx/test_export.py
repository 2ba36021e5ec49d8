"""Modules written to ONNX files: accepted by the checker, equal under onnxruntime and read back."""

import logging

import numpy as np
import pytest

import genesis
from genesis import nn
from genesis.onnx import CannotExport, from_proto, save, to_proto

ort = pytest.importorskip("onnxruntime")


def run(proto, *inputs):
    options = ort.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    session = ort.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [i.name for i in session.get_inputs()]
    return session.run(None, {n: x.numpy() for n, x in zip(names, inputs, strict=True)})


def same(found, expected, tolerance=1e-5):
    assert found.shape == expected.shape and found.dtype == expected.dtype
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


CNN = (
    nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(8, 8, 3, stride=2, padding=1, groups=2), nn.SiLU(), nn.AdaptiveAvgPool2d(1),
    nn.Flatten(), nn.Linear(8, 5),
)  # fmt: skip
MODULES = [
    (nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8), nn.Softmax(-1)), (2, 6), {0: "b"}),
    (nn.Sequential(*CNN), (2, 3, 12, 12), {0: "b"}),
    (nn.ConvTranspose2d(2, 3, 3, stride=2, padding=1, output_padding=1), (1, 2, 4, 4), {}),
    (nn.LSTM(3, 4, bidirectional=True), (5, 2, 3), {}),
    (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), (2, 5, 8), {0: "b", 1: "t"}),
    (nn.Sequential(nn.Softplus(), nn.ELU(), nn.Mish()), (3, 4), {0: "b"}),
]


@pytest.mark.parametrize(("module", "shape", "axes"), MODULES, ids=lambda x: type(x).__name__)
def test_modules(module, shape, axes):
    module.eval()
    proto = to_proto(module, genesis.randn(*shape), dynamic_axes={"input": axes} if axes else None)
    others = [tuple(n + 3 if k in axes else n for k, n in enumerate(shape)), shape]
    for x in (genesis.randn(*s) for s in others):
        with genesis.no_grad():
            result = module(x)
            expected = (result[0] if isinstance(result, tuple) else result).numpy()
            back = from_proto(proto)(x)[0].numpy()
        same(run(proto, x)[0], expected)
        same(back, expected)


@pytest.mark.parametrize("opset", [13, 15, 17, 18, 21])
def test_opsets(opset):
    module = nn.Sequential(*CNN[:4], nn.Flatten(), nn.LayerNorm(288), nn.Softmax(-1)).eval()

    def several(x):
        return module(x), x.amax(1), x.argmin(-1), x.cumsum(2), x.scatter(1, (x > 0).long(), x)

    x = genesis.randn(2, 3, 12, 12)
    proto = to_proto(several, x, opset=opset, dynamic_axes={"input": {0: "b"}})
    assert proto.opset_import[0].version == opset
    with genesis.no_grad():
        expected = several(x)
    for found, wanted in zip(run(proto, x), expected, strict=True):
        same(found, wanted.numpy())


def test_opsets_that_lack_something():
    with pytest.raises(CannotExport, match=r"opset 17 lacks BitwiseAnd .* take 18"):
        to_proto(lambda x: x & 3, genesis.tensor([1, 2]), opset=17)
    with pytest.raises(CannotExport, match="opset 9 lacks"):
        to_proto(nn.Linear(2, 3), genesis.ones(1, 2), opset=9)


def test_what_depends_on_contents_cannot_be_written():
    for function in (lambda x: x[x > 0], lambda x: x.unique(), lambda x: x if x.sum() > 0 else -x):
        with pytest.raises(CannotExport, match="contents of its inputs"):
            to_proto(function, genesis.ones(3))


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Conv2d(4, 3, 1, stride=4), (2, 4, 4, 3)),  # one window, and room for half of a second
        (nn.Conv2d(2, 3, 3, stride=3, padding=1, dilation=2), (1, 2, 5, 8)),
        (nn.Conv1d(2, 3, 2, stride=5), (1, 2, 6)),
        (nn.Conv2d(6, 6, 3, stride=2, padding=1, groups=6), (1, 6, 7, 2)),
        (nn.Conv2d(6, 12, 5, padding=2, groups=6), (2, 6, 4, 4)),
    ],
    ids=str,
)
def test_convolutions_are_written_as_such(layer, shape):
    x = genesis.randn(*shape)
    proto = to_proto(layer, x)
    assert [node.op_type for node in proto.graph.node].count("Conv") == 1
    assert not {"Mul", "Einsum"} & {node.op_type for node in proto.graph.node}
    with genesis.no_grad():
        same(run(proto, x)[0], layer(x).numpy())


@pytest.mark.parametrize(("module", "shape", "axes"), MODULES, ids=lambda x: type(x).__name__)
def test_nested_modules_as_functions(module, shape, axes):
    whole = nn.Sequential(module, nn.Identity()).eval()
    dynamic = {"input": axes} if axes else None
    proto = to_proto(whole, genesis.randn(*shape), dynamic_axes=dynamic, functions=True)
    assert type(module).__name__ in {f.name for f in proto.functions}
    x = genesis.randn(*[n + 3 if k in axes else n for k, n in enumerate(shape)])
    with genesis.no_grad():
        result = module(x)
        expected = (result[0] if isinstance(result, tuple) else result).numpy()
        back = from_proto(proto)(x)[0].numpy()
    same(run(proto, x)[0], expected)
    same(back, expected)


class Block(nn.Module):
    def __init__(self, power=1):
        super().__init__()
        self.up, self.down, self.power = nn.Linear(4, 8), nn.Linear(8, 4), power
        self.size_b = nn.Parameter(genesis.rand(4))  # as an open size might be called

    def forward(self, x, scale=None):
        y = self.down(nn.functional.relu(self.up(x), inplace=True)) * self.size_b
        return {"result": x + y**self.power if scale is None else x + y * scale}


class Block_2(Block):  # noqa: N801
    """Named as the second of its base class would be."""


class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(3)])
        self.others = nn.ModuleList([Block(3), Block_2()])

    def forward(self, x):
        scale = x.mean(-1, keepdim=True)
        for block in self.blocks:
            x = block(x)["result"]
        x = self.others[0](x, scale=scale)["result"]  # what the first block saw, too
        x = self.others[1](x.transpose(0, 1))["result"].transpose(0, 1)
        return self.others[0](x)["result"], scale


def test_layers_of_a_stack_are_one_function():
    stack = Stack().eval()
    axes = {"input": {0: "b"}}
    proto = to_proto(stack, genesis.randn(2, 5, 4), dynamic_axes=axes, functions=[Block])
    names = [f.name for f in proto.functions]
    assert len(set(names)) == len(names) == 4
    called = [n.op_type for n in proto.graph.node if n.domain == "genesis"]
    assert called[:3] == ["Block"] * 3 and len(called) == 6
    weights = {w.name for w in proto.graph.initializer}
    assert weights >= {n for n, _ in stack.named_parameters()}
    x = genesis.randn(7, 5, 4)
    with genesis.no_grad():
        expected = [y.numpy() for y in stack(x)]
        for found, y in zip(run(proto, x), expected, strict=True):
            same(found, y)
        for found, y in zip(from_proto(proto)(x), expected, strict=True):
            same(found.numpy(), y)
    assert not to_proto(stack, x).functions
    assert "forward" not in stack.blocks[0].__dict__
    with pytest.raises(TypeError, match="functions is True or classes of modules"):
        to_proto(stack, x, functions=["Block"])


def test_parameters_keep_their_names(tmp_path):
    module = nn.Sequential(nn.Linear(2, 3), nn.Tanh())
    save(module, genesis.ones(1, 2), tmp_path / "x.onnx", input_names=["a"], output_names=["b"])
    back = genesis.onnx.load(tmp_path / "x.onnx")
    assert (back.inputs, back.outputs) == (["a"], ["b"])
    assert {"0.weight", "0.bias"} <= {n for n, _ in back.named_parameters()}


@pytest.mark.parametrize(
    ("module", "shapes"),
    [
        (nn.GroupNorm(2, 6), [(2, 6, 5)]),
        (nn.Bilinear(3, 4, 5), [(6, 3), (6, 4)]),
        (lambda x, y: genesis.einsum("bi,bj,kj->bk", x, y, genesis.ones(2, 4)), [(6, 3), (6, 4)]),
    ],
)
def test_choices_of_speed_leave_sizes_open(module, shapes):
    names = ["x", "y"][: len(shapes)]
    given = tuple(genesis.randn(*shape) for shape in shapes)
    axes = {n: {0: "batch"} for n in names}
    proto = to_proto(module, given, input_names=names, dynamic_axes=axes)
    more = [genesis.cat([x, x]) for x in given]
    with genesis.no_grad():
        same(run(proto, *more)[0], module(*more).numpy())


def test_a_module_in_training_stays_as_it_was():
    norm, x = nn.BatchNorm1d(4), genesis.randn(5, 4)
    proto = to_proto(norm, x)
    assert norm.running_mean.tolist() == [0] * 4 and norm.num_batches_tracked.item() == 0
    same(run(proto, x)[0], norm(x).detach().numpy())


def test_a_size_that_cannot_be_open_is_named():
    def odd(x):
        return x * float(int(x.shape[0]))

    with pytest.raises(CannotExport, match="rows"):
        to_proto(odd, genesis.ones(3, 2), dynamic_axes={"input": {0: "rows"}})


def test_what_cannot_be_written_is_named():
    with pytest.raises(CannotExport, match="complex"):
        to_proto(genesis.fft.fft, genesis.ones(4))
    with pytest.raises(CannotExport, match=r"linalg\.inverse"):
        to_proto(genesis.linalg.inv, genesis.ones(4, 4))


FUNCTIONS = {
    "sorted": lambda x: (*genesis.sort(x, -1, True), genesis.topk(x, 2, 0)[0], x.argsort(1)),
    "spectrum": lambda x: genesis.fft.fftn(x, dim=(0, 1), norm="ortho").real,
    "filtered": lambda x: genesis.fft.irfft(genesis.fft.rfft(x)[..., :3] * (1 + 2j), n=4),
    "there and back": lambda x: genesis.fft.ifft(genesis.fft.fft(x).T.reshape(-1)).real,
    "odd": lambda x: genesis.fft.irfft(genesis.fft.rfft(x), n=5, norm="forward"),
    "selected": lambda x: (*genesis.kthvalue(x, 2, 1), *genesis.median(x, 0)),
    "running": lambda x: (genesis.cumprod(x, 0), *genesis.cummax(x, 1), *genesis.cummin(x, 0)),
    "running backwards": lambda x: genesis.logcumsumexp(x.flip(1), 1).flip(1),
    # What lies outside is dropped, and does not come in at the other end.
    "counted": lambda x: (genesis.histc(x, 5, -0.5, 0.5), genesis.histc(x, 3, -1, 0)),
    "wide tangent": lambda x: x.double().tan(),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name):
    x = genesis.randn(3, 5)
    proto = to_proto(FUNCTIONS[name], x)
    expected = FUNCTIONS[name](x)
    listed = expected if isinstance(expected, tuple) else (expected,)
    with genesis.no_grad():
        read = from_proto(proto)(x)
    for found, back, want in zip(run(proto, x), read, listed, strict=True):
        same(found, want.numpy())
        same(back.numpy(), want.numpy())


def exported(case):
    """The greatest difference of a model of PyTorch's and its file, relative to its results."""
    import torch

    from tests.torch_models import build

    made, inputs = build(case)
    more = {"use_cache": False} if hasattr(made.config, "use_cache") else {}

    class First(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = made

        def forward(self, **given):
            return self.model(**given, **more)[0]

    with torch.no_grad():
        expected = made(**inputs, **more)[0].numpy()
    example = {name: genesis.from_numpy(x.numpy()) for name, x in inputs.items()}
    proto = to_proto(genesis.from_torch(First(), **inputs), example)
    (found,) = run(proto, *example.values())
    again = genesis.onnx.InferenceSession(proto.SerializeToString())
    (read,) = again.run(None, {name: x.numpy() for name, x in example.items()})
    return max(float(np.abs(x - expected).max()) for x in (found, read)) / max(
        1, np.abs(expected).max()
    )


def _case(name):
    from tests.torch_models import CASES

    return next(c for c in CASES if c[0] == name)


@pytest.mark.slow  # loading PyTorch's exporter takes seconds
def test_programs_with_open_sizes():
    torch = pytest.importorskip("torch")

    class Folded(torch.nn.Module):
        def forward(self, x, y):
            return x.reshape(x.shape[0] * 2, 2).sum(0) / x.shape[0] + y

    x, y = torch.arange(12.0).reshape(3, 4), torch.ones(2)
    rows = torch.export.Dim("rows")
    found = torch.export.export(Folded(), (x, y), dynamic_shapes=({0: rows}, None))
    module = genesis.from_torch(found)
    for given in (x, x[:2], torch.cat([x, x])):
        expected = Folded()(given, y)
        same(module(given, y).numpy(), expected.numpy())
        same(module(given.numpy(), genesis.ones(2)).numpy(), expected.numpy())
    with pytest.raises(ValueError, match=r"'y' of float32\[2\], not float32\[3\]"):
        module(x, torch.ones(3))
    with pytest.raises(ValueError, match=r"'x' of float32\[3, 4\], not float32\[2, 4\]"):
        genesis.from_torch(Folded(), x, y)(x[:2], y)
    for wrong in (3, torch.sin, Folded()):
        with pytest.raises(TypeError, match="from_torch"):
            genesis.from_torch(wrong)


@pytest.mark.slow  # loading PyTorch's exporter takes seconds
def test_a_program_of_pytorch():
    pytest.importorskip("transformers")
    logging.disable(logging.CRITICAL)
    assert exported(_case("ResNet")) < 1e-5


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_programs_of_pytorch():
    from tests.torch_models import CASES

    logging.disable(logging.CRITICAL)
    found = {}
    for case in CASES:
        try:
            found[case[0]] = exported(case)
        except Exception as error:
            found[case[0]] = f"{type(error).__name__}: {error}"[:200]
    bad = {n: error for n, error in found.items() if isinstance(error, str) or error >= 1e-5}
    assert not bad


@pytest.mark.parametrize("form", ["MatMulNBits", "QDQ"])
@pytest.mark.parametrize("format", ["int4", "int8", "Q4_0"])
def test_quantised_layers_keep_their_integers(form, format):
    from genesis.compress import quantize_

    genesis.manual_seed(0)
    module = nn.Sequential(nn.Embedding(10, 48), nn.Linear(48, 24), nn.ReLU(), nn.Linear(24, 5))
    quantize_(module, format, 16 if format != "Q4_0" else None)
    places = genesis.tensor([[1, 2, 3], [7, 8, 9]])
    proto = to_proto(module, places, quantized=form)
    kinds = [node.op_type for node in proto.graph.node]
    assert kinds.count("MatMulNBits") == (2 if form == "MatMulNBits" else 0)
    assert kinds.count("DequantizeLinear") == (1 if form == "MatMulNBits" else 3)
    weights = [layer.weight.dequantize() for layer in module.children() if hasattr(layer, "values")]
    table, first, second = weights
    bias = [layer.bias for layer in module.children() if hasattr(layer, "bias")]
    with genesis.no_grad():
        hidden = genesis.relu(table[places] @ first.T + bias[0])
        exact = (hidden @ second.T + bias[1]).numpy()
        scale = np.abs(exact).max()
        session = genesis.onnx.InferenceSession(proto.SerializeToString())
        mine, own = session.run(None, {"input": places.numpy()})[0], module(places).numpy()
    (found,) = run(proto, places)
    rounded = 0.02 * scale if form == "MatMulNBits" else 1e-5 * max(1, scale)
    np.testing.assert_allclose(found, exact, atol=rounded)
    np.testing.assert_allclose(mine, own if form == "MatMulNBits" else exact, atol=1e-5 * scale)


def test_quantised_layers_in_functions():
    from genesis.compress import quantize_

    module = nn.Sequential(nn.Sequential(nn.Linear(64, 32)), nn.ReLU()).eval()
    quantize_(module, "int4", 32)
    x, layer = genesis.randn(3, 64), module[0][0]
    proto = to_proto(module, x, quantized="QDQ", functions=True)
    assert "DequantizeLinear" in {n.op_type for f in proto.functions for n in f.node}
    with genesis.no_grad():
        expected = genesis.relu(x @ layer.weight.dequantize().T + layer.bias).numpy()
        same(from_proto(proto)(x)[0].numpy(), expected, 1e-4)
    same(run(proto, x)[0], expected, 1e-4)


def test_a_form_of_quantised_layers_that_is_none():
    with pytest.raises(ValueError, match="MatMulNBits"):
        to_proto(nn.Linear(2, 2), genesis.ones(1, 2), quantized="odd")
