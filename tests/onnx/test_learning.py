"""Classical learning (ai.onnx.ml) against onnxruntime."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from genesis.onnx import InferenceSession

ort = pytest.importorskip("onnxruntime")
F, N, S = TensorProto.FLOAT, TensorProto.INT64, TensorProto.STRING
#: Two trees over three features: node, feature, threshold, yes, no.
NODES = [
    (0, 0, 0, 0.1, 1, 2), (0, 1, 2, -0.3, 3, 4), (0, 2, -1, 0, 0, 0), (0, 3, -1, 0, 0, 0),
    (0, 4, -1, 0, 0, 0), (1, 0, 1, 0.5, 1, 2), (1, 1, -1, 0, 0, 0), (1, 2, -1, 0, 0, 0),
]  # fmt: skip
LEAVES = [(0, 2), (0, 3), (0, 4), (1, 1), (1, 2)]


def forest(kind, mode="BRANCH_LEQ"):
    modes = ["LEAF" if feature < 0 else mode for _, _, feature, *_ in NODES]
    columns = list(zip(*NODES, strict=True))
    rng = np.random.default_rng(1)
    places = [leaf for leaf in LEAVES for _ in range(3 if kind == "class" else 2)]
    width = len(places) // len(LEAVES)
    return {
        "nodes_treeids": columns[0], "nodes_nodeids": columns[1], "nodes_modes": modes,
        "nodes_featureids": [max(f, 0) for f in columns[2]], "nodes_values": columns[3],
        "nodes_truenodeids": columns[4], "nodes_falsenodeids": columns[5],
        f"{kind}_treeids": [t for t, _ in places], f"{kind}_nodeids": [n for _, n in places],
        f"{kind}_ids": [k % width for k in range(len(places))],
        f"{kind}_weights": rng.standard_normal(len(places)).tolist(),
    }  # fmt: skip


def of_one_class():
    found = forest("class")
    keep = [k for k, c in enumerate(found["class_ids"]) if c == 0]
    return found | {
        name: [found[name][k] for k in keep]
        for name in ("class_treeids", "class_nodeids", "class_ids", "class_weights")
    }


X = np.random.default_rng(0).standard_normal((7, 3)).astype(np.float32)
HOLES = np.where(X > 1, np.float32(np.nan), X)
TEXTS = np.array([["a"], ["c"], ["b"]], object)
THREE = [float(v) for v in range(-4, 5)]
CASES = [
    ("TreeEnsembleRegressor", {**forest("target"), "n_targets": 2}, [X], [F]),
    ("TreeEnsembleRegressor", {**forest("target"), "n_targets": 2, "aggregate_function": "MAX"},
     [X], [F]),
    ("TreeEnsembleRegressor", {**forest("target", "BRANCH_GT"), "n_targets": 2,
      "base_values": [1.0, 2.0], "aggregate_function": "AVERAGE"}, [X], [F]),
    ("TreeEnsembleClassifier", {**forest("class"), "classlabels_int64s": [5, 6, 7]}, [X], [N, F]),
    ("TreeEnsembleClassifier", {**forest("class"), "classlabels_strings": ["u", "v", "w"],
      "post_transform": "SOFTMAX"}, [X], [S, F]),
    ("TreeEnsembleClassifier", {**of_one_class(), "classlabels_int64s": [0, 1],
      "post_transform": "LOGISTIC"}, [X], [N, F]),
    ("LinearRegressor", {"coefficients": THREE, "intercepts": [1.0, 2.0, 3.0], "targets": 3}, [X],
     [F]),
    ("LinearClassifier", {"coefficients": THREE, "intercepts": [1.0, 0.0, -1.0],
      "classlabels_ints": [3, 4, 5], "post_transform": "SOFTMAX"}, [X], [N, F]),
    ("LinearClassifier", {"coefficients": [1.0, -2.0, 0.5], "intercepts": [0.25],
      "classlabels_ints": [0, 1], "post_transform": "LOGISTIC"}, [X], [N, F]),
    ("LinearClassifier", {"coefficients": THREE, "intercepts": [1.0, 0.0, -1.0],
      "classlabels_strings": ["a", "b", "c"]}, [X], [S, F]),
    ("Imputer", {"imputed_value_floats": [9.0, 8.0, 7.0], "replaced_value_float": float("nan")},
     [HOLES], [F]),
    ("FeatureVectorizer", {"inputdimensions": [3, 1]}, [X, X[:, :1]], [F]),
    ("OneHotEncoder", {"cats_strings": ["a", "b"], "zeros": 1}, [TEXTS], [F]),
    ("OneHotEncoder", {"cats_int64s": [1, 5], "zeros": 1}, [np.array([[5], [1], [3]], np.int64)],
     [F]),
]  # fmt: skip


def model(kind, options, given, results):
    types = {np.dtype(np.float32): F, np.dtype(np.int64): N, np.dtype(object): S}
    inputs = [
        helper.make_tensor_value_info(f"x{k}", types[x.dtype], [None, *x.shape[1:]])
        for k, x in enumerate(given)
    ]
    outputs = [helper.make_tensor_value_info(f"y{k}", t, None) for k, t in enumerate(results)]
    names = [i.name for i in inputs], [o.name for o in outputs]
    node = helper.make_node(kind, *names, domain="ai.onnx.ml", **options)
    graph = helper.make_graph([node], "g", inputs, outputs)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


@pytest.mark.parametrize("number", range(len(CASES)))
def test_against_onnxruntime(number):
    kind, options, given, results = CASES[number]
    contents = model(kind, options, given, results)
    feed = {f"x{k}": x for k, x in enumerate(given)}
    expected = ort.InferenceSession(contents, providers=["CPUExecutionProvider"]).run(None, feed)
    session = InferenceSession(contents)
    for _ in range(2):
        for got, want in zip(session.run(None, feed), expected, strict=True):
            if want.dtype == object:
                assert got.tolist() == want.tolist()
            else:
                assert got.dtype == want.dtype
                np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_trees_that_lead_in_circles_are_refused():
    wrong = forest("target") | {"nodes_truenodeids": [0] * len(NODES), "n_targets": 2}
    session = InferenceSession(model("TreeEnsembleRegressor", wrong, [X], [F]))
    with pytest.raises(ValueError, match=r"lead to themselves|nodes"):
        session.run(None, {"x0": X})


def test_texts_are_no_other_program():
    nodes = [
        helper.make_node("Gather", ["x", "first"], ["a"], axis=1),
        helper.make_node(
            "OneHotEncoder", ["a"], ["b"], domain="ai.onnx.ml", cats_strings=["p", "q", "r"]
        ),
        helper.make_node("MatMul", ["b", "w"], ["y"]),
    ]
    weight = np.arange(6, dtype=np.float32).reshape(3, 2)
    given = [
        numpy_helper.from_array(np.array([1]), "first"), numpy_helper.from_array(weight, "w")
    ]  # fmt: skip
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.STRING, [None, 2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)], given,
    )  # fmt: skip
    versions = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 1)]
    model = helper.make_model(graph, opset_imports=versions, ir_version=8)
    session = InferenceSession(model.SerializeToString())
    for text, k in (("p", 0), ("r", 2), ("q", 1), ("p", 0)):
        (y,) = session.run(None, {"x": np.array([["z", text]], object)})
        np.testing.assert_array_equal(y.reshape(2), weight[k])
    programs = [piece for piece in session._program.pieces if hasattr(piece, "_compiled")]
    assert [len(piece._compiled) for piece in programs] == [1]
