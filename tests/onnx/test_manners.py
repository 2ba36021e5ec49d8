"""A program written for onnxruntime, run with onnxruntime and with its import swapped."""

import re
from threading import Event

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import genesis.onnx

onnxruntime = pytest.importorskip("onnxruntime")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    x, y, z = (
        helper.make_tensor_value_info(n, TensorProto.FLOAT, s)
        for n, s in (("x", ["batch", 4]), ("y", ["batch", 3]), ("z", ["batch", 4]))
    )
    w = numpy_helper.from_array(np.arange(12, dtype=np.float32).reshape(4, 3), "w")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"]), helper.make_node("Neg", ["x"], ["z"])]
    graph = helper.make_graph(nodes, "g", [x], [y, z], [w])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    file = tmp_path_factory.mktemp("manners") / "model.onnx"
    file.write_bytes(model.SerializeToString())
    return str(file)


X = np.arange(8, dtype=np.float32).reshape(2, 4)


def options(ort):
    chosen = ort.SessionOptions()
    chosen.intra_op_num_threads = 2
    chosen.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    chosen.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    chosen.enable_mem_pattern = False
    chosen.add_session_config_entry("session.intra_op.allow_spinning", "0")
    chosen.add_free_dimension_override_by_name("batch", 2)
    return chosen


def described(ort, path):
    session = ort.InferenceSession(path, options(ort), providers=[("CPUExecutionProvider", {})])
    yield [(i.name, i.type, list(i.shape)) for i in session.get_inputs()]
    yield [(o.name, o.type) for o in session.get_outputs()]
    yield session.get_session_options().get_session_config_entry("session.intra_op.allow_spinning")
    yield session.get_providers(), sorted(session.get_provider_options())
    yield session.get_modelmeta().graph_name, session.get_modelmeta().domain
    yield "CPUExecutionProvider" in ort.get_available_providers(), ort.get_device()


def runs(ort, path):
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    yield session.run(None, {"x": X})
    yield session.run(["z"], {"x": X}, ort.RunOptions())
    value = ort.OrtValue.ortvalue_from_numpy(X)
    yield value.shape(), value.data_type(), value.element_type(), value.device_name()
    yield [v.numpy() for v in session.run_with_ort_values(["y"], {"x": value})]
    done, found = Event(), []
    session.run_async(["y"], {"x": X}, lambda *got: (found.append(got), done.set()), "mine")
    assert done.wait(60)
    yield found[0][0], found[0][1], found[0][2]


def bound(ort, path):
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    binding.bind_cpu_input("x", X)
    binding.bind_output("y")
    session.run_with_iobinding(binding)
    yield binding.copy_outputs_to_cpu(), [v.shape() for v in binding.get_outputs()]
    binding.clear_binding_inputs()
    binding.clear_binding_outputs()
    memory = np.zeros((2, 3), np.float32)
    binding.bind_input("x", "cpu", 0, np.float32, X.shape, X.ctypes.data)
    binding.bind_output("y", "cpu", 0, np.float32, memory.shape, memory.ctypes.data)
    mine = ort.OrtValue.ortvalue_from_shape_and_type([2, 4], np.float32)
    binding.bind_ortvalue_output("z", mine)
    session.run_with_iobinding(binding)
    yield memory, mine.numpy()
    mine.update_inplace(X)
    yield mine.numpy()


def flat(value):
    if isinstance(value, list | tuple):
        return [x for item in value for x in flat(item)]
    return [np.asarray(value).tolist()]


@pytest.mark.parametrize("program", [described, runs, bound])
def test_a_program_with_its_import_swapped(program, path):
    theirs, ours = ([flat(v) for v in program(m, path)] for m in (onnxruntime, genesis.onnx))
    assert ours == theirs


def test_what_does_not_fit_is_said(path):
    session = genesis.onnx.InferenceSession(path)
    binding = session.io_binding()
    binding.bind_cpu_input("x", X)
    binding.bind_ortvalue_output("y", genesis.onnx.OrtValue.ortvalue_from_numpy(X))
    with pytest.raises(ValueError, match=r"'y' is float32\[2, 3\], but was bound to"):
        session.run_with_iobinding(binding)
    with pytest.raises(ValueError, match="sessions compute on 'cpu'"):
        genesis.onnx.OrtValue.ortvalue_from_numpy(X, "cuda")
    with pytest.raises(ValueError, match="update_inplace"):
        genesis.onnx.OrtValue.ortvalue_from_numpy(X).update_inplace(X[:1])
    got, done = [], Event()
    session.run_async(None, {}, lambda *found: (got.append(found), done.set()), 1)
    assert done.wait(60) and got[0][0] is None and "'x'" in got[0][2]


def test_what_a_model_takes(path):
    model = genesis.onnx.load(path)
    expected = model(X)[0].detach().numpy()
    for given in (model(X.tolist()), model({"x": X}), model(x=X), model(X.astype(">f4"))):
        np.testing.assert_array_equal(given[0].detach().numpy(), expected)
    for wrong, args, named in (
        ("2 were given", (X, X), {}), ("'x'] is given twice", (X,), {"x": X}),
        ("no \\['q'\\]; \\['x'\\] is missing", (), {"q": X}),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=wrong):
            model(*args, **named)
    with pytest.raises(TypeError, match="from_proto"):
        genesis.onnx.load(helper.make_model(helper.make_graph([], "g", [], [])))


def test_what_a_session_takes(path):
    with pytest.warns(UserWarning, match="'CUDAExecutionProvider' is not available"):
        session = genesis.onnx.InferenceSession(path, providers=["CUDAExecutionProvider"])
    (expected,) = session.run(["y"], {"x": X})
    for given in (X.tolist(), X.astype(">f4"), np.asfortranarray(X)):
        np.testing.assert_array_equal(session.run(None, {"x": given})[0], expected)
    for wrong in ([X], None):
        with pytest.raises(TypeError, match="inputs by name"):
            session.run(None, wrong)


def test_commands(path, tmp_path, capsys):
    from genesis.cli import main

    np.savez(tmp_path / "x.npz", x=X)
    found = str(tmp_path / "y.npz")
    assert main(["onnx", "run", path, "--inputs", str(tmp_path / "x.npz"), "--output", found]) == 0
    np.testing.assert_array_equal(np.load(found)["z"], -X)
    assert main(["onnx", "check", path, "--size", "batch=3"]) == 0
    capsys.readouterr()
    (tmp_path / "bad.npz").write_text("no archive")
    (tmp_path / "bad.onnx").write_bytes(b"")
    for said, *words in (
        ("no open size \\['q'\\]; there are \\['batch'\\]", "run", path, "--size", "q=1"),
        (r"bad\.npz is no \.npz file", "run", path, "--inputs", str(tmp_path / "bad.npz")),
        (r"bad\.onnx has no graph", "check", str(tmp_path / "bad.onnx")),
    ):
        assert main(["onnx", *words]) == 1
        assert re.search(said, capsys.readouterr().err)


def test_values_in_the_file_that_are_inputs_may_be_given():
    from onnx import numpy_helper

    info = helper.make_tensor_value_info
    inside = helper.make_graph(
        [helper.make_node("Add", ["x", "b"], ["t"])], "then", [], [info("t", 1, None)]
    )
    outside = helper.make_graph(
        [helper.make_node("Sub", ["x", "b"], ["t"])], "else", [], [info("t", 1, None)]
    )
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["m"], keepdims=0),
        helper.make_node("Cast", ["m"], ["c"], to=9),
        helper.make_node("If", ["c"], ["h"], then_branch=inside, else_branch=outside),
        helper.make_node("MatMul", ["h", "w"], ["p"]),
        helper.make_node("Reshape", ["p", "to"], ["y"]),
    ]  # fmt: skip
    held = {
        "b": np.float32([1, 2, 3, 4]), "w": np.ones((4, 2), np.float32), "to": np.array([-1]),
    }  # fmt: skip
    given = [info("b", 1, [4]), info("w", 1, [4, 2]), info("to", 7, [None])]
    graph = helper.make_graph(
        nodes, "g", [info("x", 1, ["n", 4]), *given], [info("y", 1, None)],
        [numpy_helper.from_array(v, n) for n, v in held.items()],
    )  # fmt: skip
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    contents = proto.SerializeToString()
    mine, theirs = (m.InferenceSession(contents) for m in (genesis.onnx, onnxruntime))
    w = np.arange(8, dtype=np.float32).reshape(4, 2)
    for more in ({}, {"w": w}, {"b": -w[:, 1]}, {"w": w, "to": np.array([2, -1])}, {"w": -w}, {}):
        for x in (X, X * 0, X):
            (expected,) = theirs.run(None, {"x": x, **more})
            (found,) = mine.run(None, {"x": x, **more})
            np.testing.assert_allclose(found, expected, 1e-5)


def test_no_rows(path):
    session = genesis.onnx.InferenceSession(path)
    (full,) = session.run(["y"], {"x": X})
    (empty,) = session.run(["y"], {"x": X[:0]})
    assert empty.shape == (0, *full.shape[1:]) and empty.dtype == full.dtype
    weights = genesis.ones(4, 2)
    assert genesis.jit(lambda x: x @ weights)(genesis.zeros(0, 4)).shape == (0, 2)
