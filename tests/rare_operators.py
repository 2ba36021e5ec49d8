"""Small models of the operators that the `onnx` package has no tests of: those of classical
learning, of quantised models and transformers outside of the standard, and of sequences.

Each takes what `inputs` says by name and holds the rest as constants: the fuzzer damages them, and
`tests/onnx/test_rare_operators.py` compares them with onnxruntime.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np

_MS, _ML = "com.microsoft", "ai.onnx.ml"


def _type(x: Any) -> int:
    from onnx import helper

    return int(helper.np_dtype_to_tensor_dtype(x.dtype))


def _built(name: str, inputs: Any, nodes: Any, outputs: Any, constants: Any) -> Any:
    from onnx import helper, numpy_helper

    given = [
        helper.make_tensor_value_info(n, _type(x), x.shape)
        if isinstance(x, np.ndarray)
        else helper.make_value_info(n, x)
        for n, x in inputs.items()
    ]
    graph = helper.make_graph(
        nodes, name, given, [helper.make_empty_tensor_value_info(n) for n in outputs],
        [numpy_helper.from_array(np.asarray(x), n) for n, x in constants.items()],
    )  # fmt: skip
    opsets = [("", 17), (_MS, 1), (_ML, 3)]
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid(*pair) for pair in opsets], ir_version=8
    )


def _one(
    kind: str, domain: str, given: dict[str, Any], constants: dict[str, Any] | None = None,
    outputs: int = 1, order: str = "", **attributes: Any,
) -> tuple[str, Any, dict[str, Any]]:  # fmt: skip
    """A model of one node: inputs and constants in their order, or that of `order`."""
    from onnx import helper

    constants = constants or {}
    names = order.split(",") if order else [*given, *constants]
    results = [f"y{k}" for k in range(outputs)]
    node = helper.make_node(kind, names, results, domain=domain, **attributes)
    return kind, _built(kind, given, [node], results, constants), given


def _floats(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def _bytes(*shape: int, kind: Any = np.uint8, seed: int = 0) -> Any:
    low = -100 if kind == np.int8 else 0
    return np.random.default_rng(seed).integers(low, 100, shape).astype(kind)


_SCALE, _ZERO = np.float32(0.05), np.uint8(128)


def _learning() -> Iterator[Any]:
    x, texts = _floats(5, 3), np.array([["a", "b"], ["c", "?"]], object)
    lines = {"coefficients": _floats(6).tolist(), "intercepts": [0.1, -0.2]}
    tree = {
        "nodes_treeids": [0] * 5, "nodes_nodeids": [0, 1, 2, 3, 4],
        "nodes_featureids": [0, 1, 0, 0, 0], "nodes_values": [0.1, -0.3, 0.0, 0.0, 0.0],
        "nodes_modes": ["BRANCH_LEQ", "BRANCH_GT", "LEAF", "LEAF", "LEAF"],
        "nodes_truenodeids": [1, 3, 0, 0, 0], "nodes_falsenodeids": [2, 4, 0, 0, 0],
    }  # fmt: skip
    leaves = {"treeids": [0] * 3, "nodeids": [2, 3, 4], "ids": [0, 1, 2], "weights": [0.5, 1, 2.0]}
    vectors = {
        "kernel_type": "RBF", "kernel_params": [0.5, 0.3, 2.0],
        "support_vectors": _floats(12, seed=1).tolist(),
    }  # fmt: skip
    yield _one("LinearClassifier", _ML, {"x": x}, outputs=2, classlabels_ints=[4, 5],
               post_transform="SOFTMAX", **lines)  # fmt: skip
    yield _one("LinearRegressor", _ML, {"x": x}, targets=2, **lines)
    yield _one("Normalizer", _ML, {"x": x}, norm="L2")
    yield _one("Scaler", _ML, {"x": x}, offset=[1.0, 2.0, 3.0], scale=[2.0, 1.0, 0.5])
    yield _one("Imputer", _ML, {"x": x}, imputed_value_floats=[1.0, 2.0, 3.0],
               replaced_value_float=float("nan"))  # fmt: skip
    yield _one("FeatureVectorizer", _ML, {"x": x, "z": x[:, :2]}, inputdimensions=[3, 2])
    yield _one("OneHotEncoder", _ML, {"x": texts}, cats_strings=["a", "b", "c"])
    yield _one("CategoryMapper", _ML, {"x": texts}, cats_strings=["a", "b"], cats_int64s=[3, 4])
    yield _one("TreeEnsembleRegressor", _ML, {"x": x}, n_targets=3, **tree,
               **{f"target_{k}": v for k, v in leaves.items()})  # fmt: skip
    yield _one("TreeEnsembleClassifier", _ML, {"x": x}, outputs=2, **tree,
               classlabels_strings=["u", "v", "w"], post_transform="SOFTMAX",
               **{f"class_{k}": v for k, v in leaves.items()})  # fmt: skip
    yield _one("SVMRegressor", _ML, {"x": x}, coefficients=_floats(4).tolist(), rho=[0.2],
               n_supports=4, **vectors)  # fmt: skip
    yield _one("SVMClassifier", _ML, {"x": x}, outputs=2, coefficients=_floats(4).tolist(),
               rho=[0.2], vectors_per_class=[2, 2], classlabels_ints=[0, 1], **vectors)  # fmt: skip
    yield from _maps()


def _maps() -> Iterator[Any]:
    from onnx import helper

    of_texts = helper.make_map_type_proto(8, helper.make_tensor_type_proto(1, []))
    of_numbers = helper.make_map_type_proto(7, helper.make_tensor_type_proto(1, []))
    for name, kind, attributes in (
        ("DictVectorizer", of_texts, {"string_vocabulary": ["a", "b", "c"]}),
        ("CastMap", of_numbers, {"cast_to": "TO_FLOAT", "map_form": "SPARSE", "max_map": 5}),
    ):
        node = helper.make_node(name, ["x"], ["y"], domain=_ML, **attributes)
        given = {"a": 1.5, "c": 2.0} if kind is of_texts else {3: 1.5, 1: 2.0}
        yield name, _built(name, {"x": kind}, [node], ["y"], {}), {"x": given}
    yield _one("ZipMap", _ML, {"x": _floats(3, 2)}, classlabels_strings=["a", "b"])


def _transformers() -> Iterator[Any]:
    x, row = _floats(2, 5, 8), _floats(8, seed=1)
    for name in ("Gelu", "QuickGelu", "FastGelu"):
        yield _one(name, _MS, {"x": x})
    yield _one("BiasGelu", _MS, {"x": x}, {"b": row})
    yield _one("SkipLayerNormalization", _MS, {"x": x, "z": _floats(2, 5, 8, seed=2)},
               {"g": row, "b": row})  # fmt: skip
    yield _one("SkipSimplifiedLayerNormalization", _MS, {"x": x, "z": x}, {"g": row})
    half, halves = x.astype(np.float16), row.astype(np.float16)
    yield _one("SkipLayerNormalization", _MS, {"x": half, "z": half}, {"g": halves, "b": halves})
    yield _one("SimplifiedLayerNormalization", "", {"x": x}, {"g": row}, axis=-1)
    ids = np.array([[1, 0, 3], [2, 2, 1]], np.int32)
    tables = {"w": _floats(4, 8), "p": _floats(6, 8), "s": _floats(2, 8), "g": row, "b": row}
    yield _one("EmbedLayerNormalization", _MS, {"x": ids, "k": ids % 2}, tables, outputs=2)
    yield _one("Attention", _MS, {"x": x}, {"w": _floats(8, 24), "b": _floats(24)}, num_heads=2)
    yield _one("MultiHeadAttention", _MS, {"q": x, "k": x, "v": x}, num_heads=2)
    yield from _grouped()
    places = np.arange(5).reshape(1, 5).repeat(2, 0)
    angles = {"c": np.cos(_floats(6, 2)), "s": np.sin(_floats(6, 2))}
    yield _one("RotaryEmbedding", _MS, {"x": _floats(2, 2, 5, 4), "n": places}, angles)
    yield _one("FusedMatMul", _MS, {"x": x}, {"w": _floats(6, 8)}, transB=1, alpha=0.5)
    yield _one("FusedConv", _MS, {"x": _floats(1, 2, 6, 6)}, {"w": _floats(3, 2, 3, 3)},
               activation="Relu", pads=[1, 1, 1, 1])  # fmt: skip
    yield _one("FusedGemm", _MS, {"x": _floats(4, 8)}, {"w": _floats(8, 3), "b": _floats(3)},
               activation="Relu")  # fmt: skip


def _grouped() -> Iterator[Any]:
    """Queries in groups that share keys: at the beginning, and with what is kept of others."""
    angles = {"c": np.cos(_floats(9, 8)), "s": np.sin(_floats(9, 8))}
    names = {n: _floats(2, 3, w, seed=w) for n, w in {"q": 64, "k": 32, "v": 33}.items()}
    names["v"] = names["v"][..., 1:]
    heads = {"num_heads": 4, "kv_num_heads": 2}
    ends, begun = np.array([2, 2], np.int32), np.array([3], np.int32)
    plain = {**names, "n": ends, "t": begun}
    yield _one("GroupQueryAttention", _MS, plain, order="q,k,v,,,n,t", outputs=3, **heads)
    wide = {"q": _floats(2, 3, 128), "n": ends, "t": begun}
    yield _one("GroupQueryAttention", _MS, wide, angles, order="q,,,,,n,t,c,s", outputs=3,
               do_rotary=1, softcap=2.0, **heads)  # fmt: skip
    for old, attributes in ((5, {"smooth_softmax": 1}), (8, {"local_window_size": 3})):
        kept = {"a": _floats(2, 2, old, 16, seed=3), "b": _floats(2, 2, old, 16, seed=4)}
        last = {n: x[:, :1] for n, x in names.items()}
        given = {**last, **kept, "n": np.array([5, 3], np.int32), "t": np.array([6], np.int32)}
        yield _one("GroupQueryAttention", _MS, given, angles, order="q,k,v,a,b,n,t,c,s",
                   outputs=3, do_rotary=1, **heads, **attributes)  # fmt: skip


def _quantized() -> Iterator[Any]:
    a, b = {"x": _bytes(2, 3, 4, 4)}, {"z": _bytes(2, 3, 4, 4, seed=1)}
    pair = {"s": _SCALE, "o": _ZERO}
    yield _one("QuantizeLinear", _MS, {"x": _floats(4, 4)}, pair)
    yield _one("DequantizeLinear", _MS, a, pair)
    for name in ("QLinearAdd", "QLinearMul"):
        yield _one(name, _MS, {**a, **b}, pair, order="x,s,o,z,s,o,s,o")
    for name, attributes in (
        ("QLinearSigmoid", {}), ("QLinearLeakyRelu", {"alpha": 0.2}),
        ("QLinearGlobalAveragePool", {}), ("QLinearGlobalAveragePool", {"channels_last": 1}),
        ("QLinearAveragePool", {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [2, 2]}),
        ("QLinearSoftmax", {"axis": 1, "opset": 13}), ("QLinearSoftmax", {"axis": 1, "opset": 12}),
    ):  # fmt: skip
        yield _one(name, _MS, a, pair, order="x,s,o,s,o", **attributes)
    flags = {"k": np.array([True, False, True, False])}
    yield _one("QLinearWhere", _MS, {**flags, **a, **b}, pair, order="k,x,s,o,z,s,o,s,o")
    given = {"x": _bytes(4, 8)}
    held = {"w": _bytes(6, 8), "c": np.arange(6, dtype=np.int32) * 99, **pair}
    yield _one("QGemm", _MS, given, held, order="x,s,o,w,s,o,c,s,o", transB=1, alpha=0.05)
    yield _one("QGemm", _MS, given, held, order="x,s,o,w,s,o,c", transB=1, alpha=0.05)
    held = {"w": _bytes(8, 24, kind=np.int8), "b": _floats(24), "s": np.float32(0.01), "o": _ZERO}
    yield _one("QAttention", _MS, {"x": _bytes(2, 5, 8)}, held, order="x,w,b,s,s,,o", num_heads=2)
    table = {"w": _bytes(7, 16), "s": np.abs(_floats(7, 2))}
    rows = {"x": np.array([[1, 0, 6], [2, 2, 3]])}
    yield _one("GatherBlockQuantized", _MS, rows, table, order="w,x,s", block_size=16, bits=4)
    yield _one("QLinearConcat", _MS, {**a, **b}, pair, order="s,o,x,s,o,z,s,o", axis=1)
    weights = {"w": _bytes(8, 6, kind=np.int8), "s": _SCALE}
    yield _one("DynamicQuantizeMatMul", _MS, {"x": _floats(4, 8)}, weights)
    yield _one("MatMulIntegerToFloat", _MS, {"x": _bytes(4, 8)}, weights, order="x,w,s,s")
    for bits, width in ((4, 16), (8, 32)):
        packed = {"w": _bytes(6, 2, width), "s": np.abs(_floats(12))}
        yield _one("MatMulNBits", _MS, {"x": _floats(3, 64)}, packed, K=64, N=6, bits=bits,
                   block_size=32)  # fmt: skip
    cell = {
        "w": _bytes(1, 3, 16, kind=np.int8), "r": _bytes(1, 4, 16, kind=np.int8),
        "b": _floats(1, 32), "s": np.full(1, 0.01, np.float32), "o": np.zeros(1, np.int8),
    }  # fmt: skip
    yield _one("DynamicQuantizeLSTM", _MS, {"x": _floats(5, 2, 3)}, cell, outputs=3,
               order="x,w,r,b,,,,,s,o,s,o", hidden_size=4)  # fmt: skip


def _others() -> Iterator[Any]:
    from onnx import helper

    x = _floats(1, 2, 6, 6)
    yield _one("GlobalLpPool", "", {"x": x}, p=2)
    boxes = np.array([[0, 0, 0, 4, 4], [0, 1, 1, 5, 5]], np.float32)
    yield _one("MaxRoiPool", "", {"x": x}, {"r": boxes}, pooled_shape=[2, 2])
    yield _one("Tokenizer", _MS, {"x": np.array(["one two", "three"], object)}, mark=1,
               pad_value="#", mincharnum=1, separators=[" "])  # fmt: skip
    nodes = [
        helper.make_node("SplitToSequence", ["x", "two"], ["a"], axis=2),
        helper.make_node("SequenceErase", ["a", "one"], ["b"]),
        helper.make_node("SequenceInsert", ["b", "x"], ["c"]),
        helper.make_node("ConcatFromSequence", ["c"], ["y"], axis=2),
        helper.make_node("SequenceLength", ["c"], ["n"]),
    ]
    constants = {"one": np.array(1), "two": np.array(2)}
    yield "Sequences", _built("Sequences", {"x": x}, nodes, ["y", "n"], constants), {"x": x}


@cache
def models() -> list[tuple[str, Any, dict[str, Any]]]:
    """Each with its name and what it may be given."""
    return [*_learning(), *_transformers(), *_quantized(), *_others()]
