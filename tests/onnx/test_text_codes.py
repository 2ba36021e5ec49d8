"""Texts as numbers: models that look them up, against onnxruntime."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from genesis.onnx import InferenceSession
from tests.onnx.test_learning import X, forest, machine, of_one_class

ort = pytest.importorskip("onnxruntime")
F, N, S = TensorProto.FLOAT, TensorProto.INT64, TensorProto.STRING
WORDS = np.array([["p", "new", "r"], ["", "q", "q"], ["r", "p", "unknown"]], object)
node = helper.make_node


def made(steps, inputs, outputs, given=()):
    inputs, outputs = (
        [helper.make_tensor_value_info(n, t, shape) for n, t, shape in values]
        for values in (inputs, outputs)
    )
    given = [numpy_helper.from_array(np.array(v), n) for n, v in given]
    graph = helper.make_graph(steps, "g", inputs, outputs, given)
    versions = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=versions, ir_version=8).SerializeToString()


def agrees(contents, *feeds):
    theirs = ort.InferenceSession(contents, providers=["CPUExecutionProvider"])
    session = InferenceSession(contents)
    for feed in (*feeds, *feeds, *feeds):
        for got, want in zip(session.run(None, feed), theirs.run(None, feed), strict=True):
            assert got.dtype == want.dtype and got.shape == want.shape
            if want.dtype == object:
                assert got.tolist() == want.tolist()
            else:
                np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    return session


def tables(extra=()):
    ml = {"domain": "ai.onnx.ml"}
    steps = [
        node("Gather", ["x", "first"], ["a"], axis=1),
        node("Concat", ["a", "x"], ["b"], axis=1),
        node("OneHotEncoder", ["b"], ["hot"], cats_strings=["p", "q", "r"], **ml),
        node("LabelEncoder", ["x"], ["value"], keys_strings=["q", "new", "p"],
             values_floats=[1.5, -2.0, 0.25], default_float=9.0, **ml),
        node("ReduceSum", ["hot"], ["sums"], keepdims=0),
        node("Mul", ["value", "sums"], ["y"]),
        *extra,
    ]  # fmt: skip
    outputs = [("y", F, None), *[(n, S, None) for step in extra for n in step.output]]
    return made(steps, [("x", S, [None, 3])], outputs, [("first", [2])])


def test_texts_that_are_moved_and_looked_up_are_one_program():
    session = agrees(tables(), {"x": WORDS}, {"x": WORDS[::-1].copy()}, {"x": WORDS[:1]})
    kinds = [[step.kind for step in piece.steps] for piece in session._program.pieces]
    assert kinds[0] == ["TextCodes"] and len(kinds) == 2
    assert session._quick[session._form({"x": WORDS})] is not None


def test_texts_that_are_results_stay_texts():
    agrees(tables([node("Identity", ["b"], ["z"])]), {"x": WORDS}, {"x": WORDS[:1]})


@pytest.mark.parametrize(
    "kind, options",
    [
        ("TreeEnsembleClassifier", forest("class") | {"classlabels_strings": ["u", "v", "w"]}),
        ("TreeEnsembleClassifier", of_one_class() | {"classlabels_strings": ["no", "yes"]}),
        ("SVMClassifier", machine(3, "RBF", texts=True)),
        ("LinearClassifier", {"coefficients": [float(k) for k in range(-4, 5)],
                              "intercepts": [0.5, 0.0, -1.0],
                              "classlabels_strings": ["a", "b", "c"]}),
    ],
)  # fmt: skip
def test_names_of_classes_are_given_at_the_end(kind, options):
    step = node(kind, ["x"], ["label", "scores"], domain="ai.onnx.ml", **options)
    outputs = [("label", S, None), ("scores", F, None)]
    contents = made([step], [("x", F, [None, 3])], outputs)
    session = agrees(contents, {"x": X}, {"x": X * 2})
    assert session._quick[session._form({"x": X})] is not None


def test_maps_of_rows_are_made_after_the_program():
    steps = [
        node("LinearClassifier", ["x"], ["label", "scores"], domain="ai.onnx.ml",
             coefficients=[0.1] * 9, intercepts=[0.5, 0.0, -1.0],
             classlabels_strings=["a", "b", "c"]),
        node("ZipMap", ["scores"], ["z"], domain="ai.onnx.ml",
             classlabels_strings=["a", "b", "c"]),
    ]  # fmt: skip
    contents = made(steps, [("x", F, [None, 3])], [("label", S, None)])
    proto = onnx.load_from_string(contents)
    held = helper.make_tensor_type_proto(F, [])
    maps = helper.make_sequence_type_proto(helper.make_map_type_proto(S, held))
    proto.graph.output.append(helper.make_value_info("z", maps))
    contents = proto.SerializeToString()
    theirs = ort.InferenceSession(contents, providers=["CPUExecutionProvider"])
    session = InferenceSession(contents)
    assert [a.type for a in session.get_outputs()] == [a.type for a in theirs.get_outputs()]
    for _ in range(3):
        (label, rows), (wanted, others) = (s.run(None, {"x": X}) for s in (session, theirs))
        assert label.tolist() == wanted.tolist()
        for row, other in zip(rows, others, strict=True):
            assert row == pytest.approx(other, rel=1e-5)
