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


#: Of the domain, where the operator went with a later one.
_VERSIONS = {"CategoryMapper": 1}


def machine(classes, kernel, post="NONE", chances=False, vectors=True, texts=False):
    rng = np.random.default_rng(classes)
    sizes, pairs = [2, 3, 1][:classes], classes * (classes - 1) // 2
    count = sum(sizes)
    found = {
        "kernel_type": kernel, "kernel_params": [0.5, 0.3, 2.0], "post_transform": post,
        "coefficients": rng.standard_normal((classes - 1) * count if vectors else 3 * classes),
        "rho": rng.standard_normal(pairs if vectors else 1),
    }  # fmt: skip
    if vectors:
        found |= {"support_vectors": rng.standard_normal(3 * count), "vectors_per_class": sizes}
    if chances:
        found |= {"prob_a": -1 - rng.random(pairs), "prob_b": rng.random(pairs) / 9}
    labels = {"classlabels_strings": ["u", "v", "w"][:classes]}
    found |= labels if texts else {"classlabels_ints": [3, 4, 5][:classes]}
    return {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in found.items()}


def regression(kernel, one_class=0):
    found = machine(2, kernel)
    kept = ("kernel_type", "kernel_params", "coefficients", "rho", "support_vectors")
    return {k: found[k] for k in kept} | {"n_supports": 5, "one_class": one_class}


X = np.random.default_rng(0).standard_normal((7, 3)).astype(np.float32)
HOLES = np.where(X > 1, np.float32(np.nan), X)
TEXTS = np.array([["a"], ["c"], ["b"]], object)
LOW = np.concatenate([-np.abs(X), np.zeros((1, 3), np.float32)])
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
    ("SVMClassifier", machine(3, "RBF", chances=True), [X], [N, F]),
    ("SVMClassifier", machine(2, "POLY", "SOFTMAX", chances=True), [X], [N, F]),
    ("SVMClassifier", machine(3, "SIGMOID", "LOGISTIC", texts=True), [X], [S, F]),
    ("SVMClassifier", machine(2, "LINEAR"), [X], [N, F]),
    ("SVMClassifier", machine(2, "RBF", "LOGISTIC"), [X], [N, F]),
    ("SVMClassifier", machine(2, "LINEAR", vectors=False), [X], [N, F]),
    ("SVMClassifier", machine(3, "LINEAR", "SOFTMAX", vectors=False), [X], [N, F]),
    ("SVMRegressor", regression("RBF"), [X], [F]),
    ("SVMRegressor", regression("LINEAR"), [X], [F]),
    ("SVMRegressor", regression("POLY", 1), [X], [F]),
    ("LinearClassifier", {"coefficients": [1.0, -2.0, 0.5], "intercepts": [0.25],
      "classlabels_ints": [0, 1]}, [X], [N, F]),
    ("LinearRegressor", {"coefficients": [0.1, 0.0, 0.0], "intercepts": [0.5],
      "post_transform": "PROBIT"}, [X], [F]),
    *[("Normalizer", {"norm": norm}, [x], [F]) for norm in ("MAX", "L1", "L2") for x in (X, LOW)],
    ("CategoryMapper", {"cats_int64s": [5, 6], "cats_strings": ["a", "b"], "default_int64": -3},
     [TEXTS], [N]),
    ("CategoryMapper", {"cats_int64s": [5, 6], "cats_strings": ["a", "b"]},
     [np.array([[5], [7]], np.int64)], [S]),
    ("DictVectorizer", {"string_vocabulary": ["a", "b", "c"]}, [{"c": 2.0, "a": 1.5}], [F]),
    ("DictVectorizer", {"int64_vocabulary": [3, 1, 7]}, [{7: 2.0}], [F]),
    ("CastMap", {"cast_to": "TO_INT64"}, [{7: 2.5, 1: -1.0}], [N]),
    ("CastMap", {"cast_to": "TO_STRING"}, [{7: 2.5, 1: -1.0}], [S]),
    ("CastMap", {"map_form": "SPARSE", "max_map": 5}, [{3: 2.5, 1: -1.0}], [F]),
]  # fmt: skip


def model(kind, options, given, results, version=None):
    types = {np.dtype(np.float32): F, np.dtype(np.int64): N, np.dtype(object): S}
    number = helper.make_tensor_type_proto(F, [])
    inputs = [
        helper.make_value_info(
            f"x{k}", helper.make_map_type_proto(N if isinstance(min(x), int) else S, number)
        )
        if isinstance(x, dict)
        else helper.make_tensor_value_info(f"x{k}", types[x.dtype], [None, *x.shape[1:]])
        for k, x in enumerate(given)
    ]
    outputs = [helper.make_tensor_value_info(f"y{k}", t, None) for k, t in enumerate(results)]
    names = [i.name for i in inputs], [o.name for o in outputs]
    node = helper.make_node(kind, *names, domain="ai.onnx.ml", **options)
    graph = helper.make_graph([node], "g", inputs, outputs)
    opsets = [
        helper.make_opsetid("", 17),
        helper.make_opsetid("ai.onnx.ml", version or _VERSIONS.get(kind, 3)),
    ]
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
                np.testing.assert_allclose(got, want, rtol=1e-5, atol=2e-6)


def test_large_products_of_a_linear_kernel_do_not_cancel():
    x, options = X * 1000, machine(2, "LINEAR")
    options["support_vectors"] = [1000.0 * v + 3e4 for v in options["support_vectors"]]
    session = InferenceSession(model("SVMClassifier", options, [x], [N, F]))
    vectors = np.float32(options["support_vectors"]).reshape(5, 3).astype(float)
    weights, first = (np.float32(options[n]).astype(float) for n in ("coefficients", "rho"))
    expected = (x.astype(float) @ vectors.T) @ weights + first
    np.testing.assert_allclose(session.run(None, {"x0": x})[1][:, 1], expected, rtol=2e-6)


@pytest.mark.parametrize("version", [1, 4])
def test_old_and_new_tables_of_labels(version):
    old = {"classes_strings": ["a", "b"], "default_int64": -2}
    new = {"keys_strings": ["a", "b"], "values_int64s": [0, 1], "default_int64": -2}
    contents = model("LabelEncoder", old if version == 1 else new, [TEXTS], [N], version)
    feed = {"x0": TEXTS}
    (want,) = ort.InferenceSession(contents, providers=["CPUExecutionProvider"]).run(None, feed)
    np.testing.assert_array_equal(InferenceSession(contents).run(None, feed)[0], want)


@pytest.mark.parametrize("mark", [0, 1])
@pytest.mark.parametrize(
    "how", [{"tokenexp": "[a-z]+"}, {"separators": [" ", ","]}, {"separators": [""]}]
)
def test_texts_in_parts(mark, how):
    x = np.array([["the cat, sat", "a  dog"], ["", "On 12 b"]], object)
    options = {"mark": mark, "mincharnum": 1, "pad_value": "#", **how}
    node = helper.make_node("Tokenizer", ["x"], ["y"], domain="com.microsoft", **options)
    x_info, y_info = (helper.make_tensor_value_info(n, S, None) for n in "xy")
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph([node], "g", [x_info], [y_info])
    contents = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    (want,) = ort.InferenceSession(contents, providers=["CPUExecutionProvider"]).run(None, {"x": x})
    assert InferenceSession(contents).run(None, {"x": x})[0].tolist() == want.tolist()


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
