"""Models from files: what they are as modules, and what is refused."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import genesis
from genesis.onnx import InferenceSession, UnsupportedModel, from_proto, load
from genesis.serialization import BadFile

FLOAT, INT = TensorProto.FLOAT, TensorProto.INT64


def info(name, shape, kind=FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def model(nodes, inputs, outputs, constants=(), opset=20, **more):
    tensors = [numpy_helper.from_array(np.asarray(v), n) for n, v in dict(constants).items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, tensors)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], **more)
    made.ir_version = 10
    return made


def linear():
    weight = np.arange(6, dtype=np.float32).reshape(2, 3)
    node = helper.make_node("Gemm", ["x", "layer.weight"], ["y"], transB=1)
    return model([node], [info("x", ["n", 3])], [info("y", ["n", 2])], {"layer.weight": weight})


def test_constants_are_parameters_and_train():
    m = from_proto(linear())
    assert [n for n, _ in m.named_parameters()] == ["layer.weight"]
    x = genesis.randn(4, 3)
    (y,) = m(x=x)
    y.square().sum().backward()
    weight = dict(m.named_parameters())["layer.weight"]
    expected = 2 * (x.numpy() @ weight.detach().numpy().T).T @ x.numpy()
    np.testing.assert_allclose(weight.grad.numpy(), expected, rtol=1e-4, atol=1e-4)
    m.load_state_dict({"layer.weight": genesis.zeros(2, 3)})
    assert not genesis.jit(m)(x)[0].detach().numpy().any()


def test_sizes_are_open_and_one_program_serves_them():
    flat = helper.make_node("Reshape", ["x", "shape"], ["f"])
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["n"]),
        helper.make_node("Concat", ["n", "rest"], ["shape"], axis=0),
        flat,
        helper.make_node("Relu", ["f"], ["y"]),
    ]
    constants = {"zero": np.array([0]), "rest": np.array([-1])}
    made = model(nodes, [info("x", ["n", 2, 3])], [info("y", ["n", "m"])], constants)
    session = InferenceSession(made.SerializeToString())
    for n in (4, 5, 6, 9):
        x = np.random.default_rng(n).standard_normal((n, 2, 3)).astype(np.float32)
        (y,) = session.run(None, {"x": x})
        np.testing.assert_array_equal(y, np.maximum(x, 0).reshape(n, 6))


def test_contents_decide_between_programs():
    """The rows that are left are known only when the first part has run."""
    nodes = [
        helper.make_node("Mul", ["x", "x"], ["q"]),
        helper.make_node("Greater", ["q", "one"], ["m"]),
        helper.make_node("NonZero", ["m"], ["z"]),
        helper.make_node("Squeeze", ["z", "first"], ["i"]),
        helper.make_node("Gather", ["q", "i"], ["r"]),
        helper.make_node("Sqrt", ["r"], ["y"]),
    ]
    constants = {"one": np.float32(1), "first": np.array([0])}
    made = model(nodes, [info("x", ["n"])], [info("y", ["k"])], constants)
    session = InferenceSession(made.SerializeToString())
    for seed in range(3):
        x = np.random.default_rng(seed).standard_normal(8).astype(np.float32)
        (y,) = session.run(["y"], {"x": x})
        kept = (x * x)[x * x > 1]
        np.testing.assert_allclose(y, np.sqrt(kept), rtol=1e-6)


def test_branches_follow_inputs_of_each_call():
    then = helper.make_graph([helper.make_node("Neg", ["x"], ["a"])], "t", [], [info("a", ["n"])])
    other = helper.make_graph([helper.make_node("Abs", ["x"], ["b"])], "e", [], [info("b", ["n"])])
    nodes = [helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other)]
    boolean = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
    made = model(nodes, [boolean, info("x", ["n"])], [info("y", ["n"])])
    session, x = InferenceSession(made.SerializeToString()), np.array([1, -2], np.float32)
    for c in (True, False, True):
        (y,) = session.run(None, {"c": np.array(c), "x": x})
        np.testing.assert_array_equal(y, -x if c else abs(x))


def test_folding_keeps_results():
    rng = np.random.default_rng(0)
    constants = {
        "w": rng.standard_normal((4, 3, 3, 3)).astype(np.float32),
        **{n: rng.uniform(0.5, 2, 4).astype(np.float32) for n in ("s", "b", "m", "v")},
    }
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["c", "s", "b", "m", "v"], ["n"]),
        helper.make_node("Identity", ["n"], ["i"]),
        helper.make_node("Relu", ["i"], ["y"]),
    ]
    made = model(nodes, [info("x", [1, 3, 5, 5])], [info("y", None)], constants)
    plain, folded = from_proto(made), from_proto(made, optimize=True)
    assert [s.kind for s in folded.graph.steps] == ["Conv", "Relu"]
    x = genesis.randn(1, 3, 5, 5)
    np.testing.assert_allclose(
        folded(x)[0].detach().numpy(), plain(x)[0].detach().numpy(), rtol=1e-4, atol=1e-5
    )


def test_functions_of_the_model():
    body = [helper.make_node("Mul", ["a", "a"], ["q"]), helper.make_node("Elu", ["q"], ["r"])]
    body[1].attribute.append(onnx.AttributeProto(name="alpha", ref_attr_name="alpha", type=1))
    function = helper.make_function(
        "own", "Odd", ["a"], ["r"], body, [helper.make_opsetid("", 20)], ["alpha"]
    )
    node = helper.make_node("Odd", ["x"], ["y"], domain="own", alpha=2.0)
    made = model([node], [info("x", [2])], [info("y", [2])], functions=[function])
    made.opset_import.append(helper.make_opsetid("own", 1))
    (y,) = from_proto(made)(np.array([1, 3], np.float32))
    np.testing.assert_allclose(y.numpy(), [1, 9])


def test_unsupported_operators_are_named_together():
    nodes = [
        helper.make_node("Riddle", ["x"], ["a"], name="first", domain="odd"),
        helper.make_node("Puzzle", ["a"], ["y"], name="second", domain="odd"),
    ]
    made = model(nodes, [info("x", [2])], [info("y", [2])])
    with pytest.raises(UnsupportedModel, match=r"(?s)2 nodes.*odd.Riddle.*first.*Puzzle.*second"):
        from_proto(made)


@pytest.mark.parametrize(
    ("nodes", "text"),
    [
        ([("Relu", "a", "b"), ("Relu", "b", "a")], "cycle"),
        ([("Relu", "nowhere", "y")], "nowhere"),
        ([("Relu", "x", "y"), ("Abs", "x", "y")], "twice"),
        ([("Relu", "x", "other")], "never computed"),
    ],
)
def test_graphs_that_are_none(nodes, text):
    made = model(
        [helper.make_node(k, [i], [o]) for k, i, o in nodes], [info("x", [2])], [info("y", [2])]
    )
    with pytest.raises(BadFile, match=text):
        from_proto(made)


def test_names_that_are_no_text():
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [2]) for n in ("xxxx", "y"))
    graph = helper.make_graph([helper.make_node("Relu", ["xxxx"], ["y"])], "g", [x], [y])
    contents = helper.make_model(graph).SerializeToString()
    with pytest.raises(BadFile, match="named b'"):
        genesis.onnx.load(contents.replace(b"xxxx", b"\xff\xfe\xfd\xfc"))


def test_nodes_in_any_order():
    nodes = [helper.make_node("Neg", ["a"], ["y"]), helper.make_node("Abs", ["x"], ["a"])]
    (y,) = from_proto(model(nodes, [info("x", [2])], [info("y", [2])]))(
        np.array([1, -2], np.float32)
    )
    assert y.tolist() == [-1, -2]


def test_files_that_are_none(tmp_path):
    path = tmp_path / "x.onnx"
    path.write_bytes(b"\x00garbage" * 100)
    with pytest.raises(BadFile):
        load(path)
    with pytest.raises(OSError):
        load(tmp_path / "missing.onnx")


@pytest.mark.parametrize("place", ["../outside.bin", "/etc/passwd", "missing.bin"])
def test_other_files_stay_in_the_folder(tmp_path, place):
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "outside.bin").write_bytes(bytes(24))
    made = linear()
    tensor = made.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", place
    (folder / "x.onnx").write_bytes(made.SerializeToString())
    with pytest.raises(BadFile, match="cannot be read"):
        load(folder / "x.onnx")


def test_weights_in_another_file(tmp_path):
    made = linear()
    weight = numpy_helper.to_array(made.graph.initializer[0])
    onnx.save_model(
        made, str(tmp_path / "x.onnx"), save_as_external_data=True, location="w.bin",
        size_threshold=0,
    )  # fmt: skip
    x = np.ones((1, 3), np.float32)
    np.testing.assert_array_equal(load(tmp_path / "x.onnx")(x)[0].detach().numpy(), x @ weight.T)


def test_sessions_say_what_is_wrong():
    session = InferenceSession(linear().SerializeToString())
    assert [(i.name, i.type, i.shape) for i in session.get_inputs()] == [
        ("x", "tensor(float)", ["n", 3])
    ]
    good = np.ones((2, 3), np.float32)
    for feed, text in (
        ({"x": good.astype(np.float64)}, "tensor\\(double\\)"),
        ({"x": good[:, :2]}, "shape"),
        ({"z": good}, "no input 'z'"),
        ({}, "missing"),
    ):
        with pytest.raises(ValueError, match=text):
            session.run(None, feed)
    with pytest.raises(ValueError, match="no output"):
        session.run(["q"], {"x": good})


def test_binding_of_other_libraries_arrays():
    torch = pytest.importorskip("torch")
    session = InferenceSession(linear().SerializeToString())
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", torch.ones(2, 3))
    binding.bind_output("y")
    session.run_with_iobinding(binding)
    assert binding.copy_outputs_to_cpu()[0].tolist() == [[3, 12], [3, 12]]
    assert torch.from_dlpack(binding.get_outputs()[0]).shape == (2, 2)


def test_spectra_of_speech_are_those_of_64_bits():
    """The logarithm of what is nearly nothing shows how exactly a transform was computed."""
    rng = np.random.default_rng(0)
    samples = rng.standard_normal((1, 4000)).astype(np.float32) * 0.5
    window = np.hanning(400).astype(np.float32)
    nodes = [
        helper.make_node("STFT", ["x", "step", "window"], ["z"]),
        helper.make_node("ReduceSumSquare", ["z", "last"], ["power"], keepdims=0),
        helper.make_node("Log", ["power"], ["y"]),
    ]
    constants = {"step": np.int64(160), "window": window, "last": np.array([-1])}
    proto = model(nodes, [info("x", [1, 4000])], [info("y", None)], constants)
    (found,) = InferenceSession(proto.SerializeToString()).run(None, {"x": samples})
    frames = np.lib.stride_tricks.sliding_window_view(samples[0].astype(np.float64), 400)[::160]
    expected = np.log(np.abs(np.fft.rfft(frames * window)) ** 2)
    assert np.abs(found[0] - expected).max() < 2e-5
