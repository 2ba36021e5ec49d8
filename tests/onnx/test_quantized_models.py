"""Products of bytes, quantised models and what sessions do with them, against other definitions."""

from itertools import pairwise

import numpy as np
import pytest
from onnx import helper, numpy_helper

import genesis
from genesis.onnx import InferenceSession, from_proto, optimize
from genesis.onnx.graph import GraphBuilder

ort = pytest.importorskip("onnxruntime")


def model(nodes, inputs, outputs, constants):
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "g", [info(n, *rest) for n, *rest in inputs], [info(*o, None) for o in outputs],
        [numpy_helper.from_array(v, n) for n, v in constants.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def other(proto, feed, plain=False):
    options = ort.SessionOptions()
    if plain:  # its optimiser makes models of signed bytes that it does not load
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    contents = proto.SerializeToString()
    session = ort.InferenceSession(contents, options, providers=["CPUExecutionProvider"])
    return session.run(None, feed)


def bytes_of(rng, shape, kind):
    limits = np.iinfo(kind)
    return rng.integers(limits.min, limits.max, shape, endpoint=True).astype(kind)


@pytest.mark.parametrize(("m", "k", "n"), [(1, 8, 32), (5, 12, 33), (3, 6, 16), (9, 64, 1)])
@pytest.mark.parametrize(("left", "right"), [("u1", "i1"), ("i1", "i1"), ("u1", "u1")])
def test_products_of_bytes(m, k, n, left, right):
    rng = np.random.default_rng(m * n)
    a, b = bytes_of(rng, (m, k), left), bytes_of(rng, (k, n), right)
    zeros = bytes_of(rng, (m,), left), bytes_of(rng, (n,), right)
    node = helper.make_node("MatMulInteger", ["a", "b", "za", "zb"], ["y"])
    codes = {"u1": 2, "i1": 3}
    proto = model(
        [node], [("a", codes[left], [m, k]), ("za", codes[left], [m])], [("y", 6)],
        {"b": b, "zb": zeros[1]},
    )  # fmt: skip
    expected = (a.astype(int) - zeros[0][:, None].astype(int)) @ (b.astype(int) - zeros[1])
    (found,) = InferenceSession(proto.SerializeToString()).run(None, {"a": a, "za": zeros[0]})
    np.testing.assert_array_equal(found, expected)
    with genesis.no_grad():
        (plain,) = from_proto(proto)(a, zeros[0])
    np.testing.assert_array_equal(plain.numpy(), expected)


@pytest.mark.parametrize("turned", [0, 1])
@pytest.mark.parametrize("quantised", [False, True])
@pytest.mark.parametrize(("left", "right"), [("u1", "i1"), ("i1", "i1"), ("u1", "u1")])
@pytest.mark.parametrize(("m", "k", "n"), [(2, 64, 40), (3, 6, 5)])
def test_gemms_of_bytes(m, k, n, left, right, quantised, turned):
    """Constant weights, one or a zero point for each column, the bias of whole numbers."""
    rng = np.random.default_rng(k)
    a, b = bytes_of(rng, (m, k), left), bytes_of(rng, (k, n), right)
    zero = bytes_of(rng, (n,), right) if quantised else np.array(3, right)
    scale = rng.random(n if quantised else ()).astype(np.float32) + np.float32(0.5)
    bias = rng.integers(-5000, 5000, (n,)).astype(np.int32)
    total = (a.astype(int) - 7) @ (b.astype(int) - zero.astype(int)) + bias
    expected = total * (np.float32(0.01) * scale).astype(np.float64)
    names = ["a", "sa", "za", "b", "sb", "zb", "c", *["sy", "zy"] * quantised]
    node = helper.make_node("QGemm", names, ["y"], domain="com.microsoft", transB=turned)
    constants = {
        "sa": np.float32(0.01), "za": np.array(7, left), "b": b.T.copy() if turned else b,
        "sb": scale, "zb": zero, "c": bias, "sy": np.float32(4), "zy": np.array(9, left),
    }  # fmt: skip
    constants = {n: v for n, v in constants.items() if n in names}
    codes = {"u1": 2, "i1": 3}
    proto = model([node], [("a", codes[left], [m, k])], [("y", codes[left] if quantised else 1)],
                  {n: np.asarray(v) for n, v in constants.items()})  # fmt: skip
    (found,) = InferenceSession(proto.SerializeToString()).run(None, {"a": a})
    if quantised:
        limits = np.iinfo(left)
        expected = np.clip(np.round(expected / 4) + 9, limits.min, limits.max)
        assert np.abs(found.astype(int) - expected).max() <= 1  # halves of rounded scales
    else:
        np.testing.assert_allclose(found, expected, 1e-6)


CONVS = [
    ((1, 4, 6, 7), (16, 4, 3, 3), {"pads": [1, 1, 1, 1]}),
    ((2, 4, 5, 5), (17, 4, 1, 1), {}),
    ((2, 4, 9, 8), (16, 4, 3, 2), {"pads": [2, 0, 1, 1], "strides": [2, 1], "dilations": [1, 2]}),
    ((1, 3, 6, 6), (4, 3, 3, 3), {"pads": [1, 1, 1, 1]}),
]


@pytest.mark.parametrize(("image", "filters", "options"), CONVS)
@pytest.mark.parametrize("kind", ["i1", "u1"])
def test_convolutions_of_bytes(image, filters, options, kind):
    rng = np.random.default_rng(3)
    x, w = bytes_of(rng, image, "u1"), bytes_of(rng, filters, kind)
    node = helper.make_node("ConvInteger", ["x", "w", "z", "zw"], ["y"], **options)
    inputs = [("x", 2, list(image)), ("z", 2, [])]
    proto = model([node], inputs, [("y", 6)], {"w": w, "zw": np.array(7, kind)})
    feed = {"x": x, "z": np.array(9, np.uint8)}
    (found,) = InferenceSession(proto.SerializeToString()).run(None, feed)
    np.testing.assert_array_equal(found, other(proto, feed)[0])


#: Constant filters: of all channels, one each, groups and too few; along one to three axes.
LAID = [
    ((2, 5, 6, 7), (33, 5, 3, 2), {"pads": [1, 0, 2, 1], "strides": [2, 1]}),
    ((1, 20, 7, 6), (20, 1, 3, 3), {"group": 20, "pads": [1, 1, 1, 1], "dilations": [1, 2]}),
    ((1, 16, 8, 8), (32, 4, 3, 3), {"group": 4}),
    ((1, 20, 7, 6), (40, 1, 3, 3), {"group": 20}),
    ((1, 3, 5, 5), (7, 3, 1, 1), {}),
    ((2, 6, 12), (18, 6, 3), {"pads": [2, 1], "strides": [2]}),
    ((1, 16, 9), (16, 1, 3), {"group": 16, "auto_pad": "SAME_UPPER", "strides": [2]}),
    ((1, 4, 3, 4, 5), (16, 4, 2, 2, 2), {"pads": [0, 1, 0, 1, 0, 1]}),
]


@pytest.mark.parametrize(("image", "filters", "options"), LAID)
@pytest.mark.parametrize(("left", "right"), [("u1", "i1"), ("u1", "u1"), ("i1", "i1")])
@pytest.mark.parametrize("each", [False, True])
def test_convolutions_with_filters_laid_are_exact(image, filters, options, left, right, each):
    rng = np.random.default_rng(len(filters) + filters[0])
    x, w = bytes_of(rng, image, left), bytes_of(rng, filters, right)
    constants = {
        "w": w, "xs": np.float32(0.02), "xz": bytes_of(rng, (), left), "ys": np.float32(1.7),
        "ws": rng.uniform(0.01, 0.03, filters[:1] if each else ()).astype("f"),
        "wz": bytes_of(rng, filters[:1] if each else (), right), "yz": bytes_of(rng, (), left),
        "b": rng.integers(-1000, 1000, filters[:1]).astype("i4"),
    }  # fmt: skip
    names = ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz", "b"]
    nodes = [
        helper.make_node("QLinearConv", names, ["y"], **options),
        helper.make_node("ConvInteger", ["x", "w", "xz", "wz"], ["s"], **options),
    ]
    code = {"u1": 2, "i1": 3}[left]
    proto = model(nodes, [("x", code, list(image))], [("y", code), ("s", 6)], constants)
    y, s = InferenceSession(proto.SerializeToString()).run(None, {"x": x})
    with genesis.no_grad():
        plain = [t.numpy() for t in from_proto(proto)(x)]  # as the standard says, of integers
    np.testing.assert_array_equal(s, plain[1])
    np.testing.assert_array_equal(y, plain[0])


def quantised(rng, channels, kernel, zero):
    """Two convolutions and a product between pairs of QuantizeLinear and DequantizeLinear."""
    nodes, constants, last = [], {}, "x"

    def through_bytes(name, scale, shift):
        constants[f"{name}.s"], constants[f"{name}.z"] = np.float32(scale), np.uint8(shift)
        for kind, a, b in (("QuantizeLinear", name, f"{name}.q"),
                           ("DequantizeLinear", f"{name}.q", f"{name}.d")):  # fmt: skip
            nodes.append(helper.make_node(kind, [a, f"{name}.s", f"{name}.z"], [b]))
        return f"{name}.d"

    def weights(name, shape, axis):
        constants[f"{name}.q"] = bytes_of(rng, shape, "i1")
        constants[f"{name}.s"] = rng.uniform(0.001, 0.01, shape[axis]).astype("f")
        constants[f"{name}.z"] = np.full(shape[axis], zero, np.int8)
        inputs = [f"{name}.q", f"{name}.s", f"{name}.z"]
        nodes.append(helper.make_node("DequantizeLinear", inputs, [f"{name}.d"], axis=axis))
        return f"{name}.d"

    for k, (a, b) in enumerate(pairwise(channels)):
        constants[f"b{k}"] = rng.standard_normal(b).astype("f")
        inputs = [through_bytes(last, 0.05, 120), weights(f"w{k}", (b, a, kernel, kernel), 0)]
        nodes.append(helper.make_node("Conv", [*inputs, f"b{k}"], [f"c{k}"], strides=[2, 2]))
        nodes.append(helper.make_node("Relu", [f"c{k}"], [f"r{k}"]))
        last = f"r{k}"
    nodes.append(helper.make_node("GlobalAveragePool", [last], ["p"]))
    nodes.append(helper.make_node("Flatten", ["p"], ["f"]))
    inputs = [through_bytes("f", 0.03, 1), weights("m", (channels[-1], 10), 1)]
    nodes.append(helper.make_node("MatMul", inputs, ["y"]))
    return model(nodes, [("x", 1, [1, channels[0], 11, 11])], [("y", 1)], constants)


@pytest.mark.parametrize(("kernel", "zero"), [(1, 0), (3, 3)])
def test_pairs_become_products_of_bytes(kernel, zero):
    rng = np.random.default_rng(5)
    proto = quantised(rng, (4, 16, 32), kernel, zero)
    session = InferenceSession(proto.SerializeToString())
    kinds = [step.kind for step in session._model.graph.steps]
    assert kinds.count("LaidQuantizedConv") == 2 and kinds.count("QuantizedMatMul") == 1
    feed = {"x": rng.standard_normal((1, 4, 11, 11)).astype("f")}
    (found,), (expected,) = session.run(None, feed), other(proto, feed)
    step = 0.05 * 0.01 * 32  # one number quantised the other way, at a tie
    np.testing.assert_allclose(found, expected, atol=step * np.abs(expected).max())
    with genesis.no_grad():
        (plain,) = from_proto(proto)(**feed)  # nothing fused
    np.testing.assert_allclose(found, plain.numpy(), atol=step * np.abs(expected).max())


@pytest.mark.parametrize("turned", [0, 1])
@pytest.mark.parametrize(("options", "fused"), [({}, True), ({"alpha": 0.5}, False)])
@pytest.mark.parametrize("biased", [False, True])
def test_pairs_become_gemms_of_bytes(turned, options, fused, biased):
    rng = np.random.default_rng(turned)
    m, k, n = 3, 64, 40
    w, shift = bytes_of(rng, (k, n), "i1"), bytes_of(rng, (n,), "i1")
    scale = rng.uniform(0.001, 0.01, n).astype("f")
    constants = {
        "s": np.float32(0.02), "z": np.uint8(120), "c": rng.standard_normal(n).astype("f"),
        "w": w.T.copy() if turned else w, "ws": scale, "wz": shift,
    }  # fmt: skip
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["wd"], axis=1 - turned),
        helper.make_node("Gemm", ["d", "wd", *["c"] * biased], ["y"], transB=turned, **options),
    ]
    proto = model(nodes, [("x", 1, [m, k])], [("y", 1)], constants)
    session = InferenceSession(proto.SerializeToString())
    assert ("QuantizedGemm" in [step.kind for step in session._model.graph.steps]) is fused
    x = rng.standard_normal((m, k)).astype("f")
    near = (np.clip(np.round(x / np.float32(0.02)) + 120, 0, 255) - 120) * 0.02
    expected = near @ ((w.astype(float) - shift) * scale) * options.get("alpha", 1)
    expected = expected + constants["c"] if biased else expected
    np.testing.assert_allclose(session.run(None, {"x": x})[0], expected, 1e-4, 1e-4)


@pytest.mark.parametrize(("bits", "shifted"), [(4, False), (4, True), (8, False)])
def test_matrices_of_a_few_bits_in_bytes(bits, shifted):
    rng = np.random.default_rng(bits)
    n, k, block = 24, 96, 32
    packed = bytes_of(rng, (n, k // block, block * bits // 8), "u1")
    constants = {"w": packed, "s": rng.uniform(0.01, 0.1, n * k // block).astype("f")}
    if shifted:
        constants["z"] = bytes_of(rng, (n * -(-(k // block) * bits // 8),), "u1")
    node = helper.make_node(
        "MatMulNBits", ["x", *constants], ["y"], domain="com.microsoft", K=k, N=n, bits=bits,
        block_size=block, accuracy_level=4,
    )  # fmt: skip
    proto = model([node], [("x", 1, [3, k])], [("y", 1)], constants)
    session = InferenceSession(proto.SerializeToString())
    assert [step.kind for step in session._model.graph.steps] == ["PackedMatMul"]
    feed = {"x": rng.standard_normal((3, k)).astype("f")}
    (found,) = session.run(None, feed)
    with genesis.no_grad():
        (exact,) = from_proto(proto)(**feed)
    scale = np.abs(exact.numpy()).max()
    np.testing.assert_allclose(found, exact.numpy(), atol=0.02 * scale)
    np.testing.assert_allclose(exact.numpy(), other(proto, feed)[0], atol=0.02 * scale)


def test_passes_can_be_chosen():
    proto = quantised(np.random.default_rng(5), (4, 16), 1, 0)
    builder = GraphBuilder(proto, "model", lambda tensor: None)
    graph = builder.graph(proto.graph)
    optimize.optimize(graph, builder, ["drop_copies"])
    assert "LaidQuantizedConv" not in [step.kind for step in graph.steps]
    with pytest.raises(ValueError, match="no pass"):
        optimize.optimize(graph, builder, ["odd"])


def test_constants_are_computed_once_and_random_numbers_each_time():
    nodes = [
        helper.make_node("Sin", ["c"], ["s"]),
        helper.make_node("Mul", ["x", "s"], ["y"]),
        helper.make_node("RandomNormalLike", ["c"], ["r"]),
    ]
    constants = {"c": np.arange(6, dtype=np.float32)}
    proto = model(nodes, [("x", 1, [6])], [("y", 1), ("r", 1)], constants)
    session = InferenceSession(proto.SerializeToString())
    assert [step.kind for step in session._model.graph.steps] == ["Mul", "RandomNormalLike"]
    x = np.ones(6, np.float32)
    (y, first), (_, second) = (session.run(None, {"x": x}) for _ in range(2))
    np.testing.assert_allclose(y, np.sin(constants["c"]), atol=1e-6)
    assert not np.array_equal(first, second)


#: What lies between a tensor that is dequantised and one that is quantised: movements, in turns.
MOVEMENTS = {
    "one after the other": [
        ("Transpose", ["f"], ["t"], {"perm": [1, 0]}), ("Reshape", ["t", "to"], ["r"], {}),
        ("Split", ["r", "parts"], ["a", "b"], {"axis": 0}),
        ("Concat", ["b", "a"], ["m"], {"axis": 1}),
    ],
    "two of one scale": [("Concat", ["f", "g"], ["m"], {"axis": 1})],
    "also computed with": [("Transpose", ["f"], ["m"], {}), ("Relu", ["f"], ["z"], {})],
}  # fmt: skip


@pytest.mark.parametrize("how", MOVEMENTS)
@pytest.mark.parametrize("again", [0.03, 0.07])
@pytest.mark.parametrize("kind", ["u1", "i1", "u2"])
def test_what_is_only_moved_is_not_rounded_again(how, again, kind):
    limits = np.iinfo(kind)
    constants = {
        "s": np.float32(0.03), "z": np.array((limits.min + limits.max) // 2 + 5, kind),
        "v": np.float32(again), "to": np.array([2, -1]), "parts": np.array([1, 1]),
    }  # fmt: skip
    steps = [
        ("QuantizeLinear", ["x", "s", "z"], ["q"], {}),
        ("DequantizeLinear", ["q", "s", "z"], ["f"], {}),
        ("QuantizeLinear", ["w", "s", "z"], ["p"], {}),
        ("DequantizeLinear", ["p", "s", "z"], ["g"], {}), *MOVEMENTS[how],
        ("QuantizeLinear", ["m", "v", "z"], ["k"], {}),
        ("DequantizeLinear", ["k", "v", "z"], ["l"], {}), ("Transpose", ["l"], ["y"], {}),
    ]  # fmt: skip
    outputs = ["y", *(["z"] if how == "also computed with" else [])]
    if "z" in outputs:
        steps = [(a, ["z0" if n == "z" else n for n in b], *rest) for a, b, *rest in steps]
        constants["z0"] = constants.pop("z")
    nodes = [helper.make_node(a, b, c, **d) for a, b, c, d in steps]
    inputs = [("x", 1, [4, 6]), ("w", 1, [4, 6])]
    proto = model(nodes, inputs, [(n, 1) for n in outputs], constants)
    proto.opset_import[0].version = 21
    rng = np.random.default_rng(0)
    feed = {n: (rng.standard_normal((4, 6)) * 3).astype(np.float32) for n in "xw"}
    found = InferenceSession(proto.SerializeToString()).run(None, feed)
    for mine, wanted in zip(found, other(proto, feed, plain=True), strict=True):
        np.testing.assert_array_equal(mine, wanted)
    builder = GraphBuilder(proto, "model", lambda tensor: None)
    graph = builder.graph(proto.graph)
    optimize.optimize(graph, builder)
    rounded = sum(step.kind == "QuantizeLinear" for step in graph.steps)
    assert rounded == (2 if how == "two of one scale" else 1) + (again != 0.03)
