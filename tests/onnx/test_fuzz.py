"""Damaged model files: one clear exception each, whatever is wrong with them."""

from itertools import pairwise

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from genesis import no_grad
from genesis.onnx import InferenceSession, OperatorError, UnsupportedModel, from_proto, load
from genesis.onnx.values import as_host
from genesis.serialization import BadFile

CLEAR = (BadFile, OperatorError, UnsupportedModel, ValueError, MemoryError)


def sound():
    """A model with most of what files can hold: a loop, a branch, constants, strings, sizes."""
    info = helper.make_tensor_value_info
    weights = np.random.default_rng(0).standard_normal((4, 2, 3, 3)).astype(np.float32)
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["on"]), helper.make_node("Add", ["s", "s"], ["t"])],
        "body", [info("k", 7, []), info("go", 9, []), info("s", 1, None)],
        [info("on", 9, []), info("t", 1, None)],
    )  # fmt: skip
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Shape", ["c"], ["shape"]),
        helper.make_node("Gather", ["shape", "one"], ["n"]),
        helper.make_node("Concat", ["n", "rest"], ["to"], axis=0),
        helper.make_node("Reshape", ["c", "to"], ["r"]),
        helper.make_node("Loop", ["two", "", "r"], ["l"], body=body),
        helper.make_node("Softmax", ["l"], ["p"], axis=-1),
        helper.make_node("TopK", ["p", "top"], ["v", "i"]),
        helper.make_node("Pad", ["v", "pads"], ["y"]),
    ]
    constants = {
        "w": weights, "one": np.array([1]), "rest": np.array([-1]), "two": np.array(2),
        "top": np.array([2]), "pads": np.array([0, 1, 0, 1]),
    }  # fmt: skip
    graph = helper.make_graph(
        nodes, "g", [info("x", TensorProto.FLOAT, [1, 2, 4, 4])],
        [info("y", 1, None), info("i", 7, None)],
        [numpy_helper.from_array(v, n) for n, v in constants.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def shuffled(rng, model):
    """A model that is wrong in one of the ways that parse."""
    graph = model.graph
    node = graph.node[rng.integers(len(graph.node))]
    tensor = graph.initializer[rng.integers(len(graph.initializer))]
    match rng.integers(8):
        case 0:
            order = rng.permutation(len(graph.node))
            nodes = [onnx.NodeProto.FromString(graph.node[k].SerializeToString()) for k in order]
            del graph.node[:]
            graph.node.extend(nodes)
        case 1:
            node.op_type = str(rng.choice([n.op_type for n in graph.node] + ["Relu", "Odd"]))
        case 2:
            node.input[rng.integers(len(node.input))] = str(rng.choice(["x", "w", "top", "y", "?"]))
        case 3:
            tensor.dims[:] = [int(n) for n in rng.choice([0, -1, 1, 3, 1 << 40], rng.integers(4))]
        case 4:
            tensor.data_type = int(rng.integers(0, 30))
        case 5:
            values = rng.choice([0, -1, 7, 1 << 20, 1 << 40, -(1 << 62)], 4)
            new = numpy_helper.from_array(values[: max(1, len(tensor.dims))].astype(np.int64))
            tensor.raw_data, tensor.data_type = new.raw_data, 7
            tensor.dims[:] = new.dims
        case 6:
            model.opset_import[0].version = int(rng.choice([-1, 0, 1, 5, 9, 11, 13, 99]))
        case 7:
            extra = node.attribute.add()
            extra.name, extra.type, extra.i = str(rng.choice(["axis", "odd", "pads"])), 2, -100
    return model


def tried(contents, compute):
    """Load and run, at least as far as the graph goes; whether it went through."""
    try:
        model = load(contents)
        with no_grad():
            results = model(np.ones((1, 2, 4, 4), np.float32))
            if compute:
                as_host(results)
    except CLEAR:
        return False
    return True


def bits(rng, contents):
    damaged = bytearray(contents)
    for place in rng.integers(0, len(damaged), rng.integers(1, 8)):
        damaged[place] ^= 1 << int(rng.integers(8))
    return bytes(damaged[: int(rng.integers(1, len(damaged)))] if rng.integers(4) == 0 else damaged)


def fuzz(seed, count, compute=False):
    rng = np.random.default_rng(seed)
    good = sound().SerializeToString()
    assert tried(good, True)
    for _ in range(count):
        tried(bits(rng, good), compute)
        tried(shuffled(rng, sound()).SerializeToString(), compute)


def test_damaged_files():
    fuzz(0, 60)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_many_damaged_files():
    for seed in range(1, 21):
        fuzz(seed, 300, compute=True)


def test_subgraphs_in_each_other():
    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"])], "g", [],
        [helper.make_tensor_value_info("y", 1, [])],
    )  # fmt: skip
    for _ in range(10):
        node = helper.make_node("If", ["c"], ["y"], then_branch=graph, else_branch=graph)
        graph = helper.make_graph([node], "g", [], [helper.make_tensor_value_info("y", 1, [])])
    inputs = [helper.make_tensor_value_info("c", 9, []), helper.make_tensor_value_info("x", 1, [])]
    graph.input.extend(inputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
    assert from_proto(model)(np.array(True), np.float32(3))[0].item() == 3


def test_copies_of_a_constant_in_each_other():
    """Twice as many graphs with each If around them, all with a constant of one name."""
    constant = numpy_helper.from_array(np.float32([1, 2]), "w")
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Add", ["w", "w"], ["y"])], "g", [], [info("y", 1, [2])], [constant]
    )
    for _ in range(13):
        node = helper.make_node("If", ["c"], ["y"], then_branch=graph, else_branch=graph)
        graph = helper.make_graph([node], "g", [], [info("y", 1, [2])])
    graph.input.append(info("c", 9, []))
    model = from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]))
    names = [name for name, _ in model.named_parameters()]
    assert len({*names}) == 1 << 13 and max(map(len, names)) < 9


@pytest.mark.parametrize("kind", ["CategoryMapper", "LabelEncoder", "OneHotEncoder"])
def test_tables_that_lack_a_half(kind):
    names = "keys_strings" if kind == "LabelEncoder" else "cats_strings"
    node = helper.make_node(kind, ["x"], ["y"], domain="ai.onnx.ml", **{names: ["a", "b"]})
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info("x", TensorProto.STRING, [2])],
        [helper.make_empty_tensor_value_info("y")],
    )  # fmt: skip
    opsets = [helper.make_opsetid("ai.onnx.ml", 3), helper.make_opsetid("", 20)]
    contents = helper.make_model(graph, opset_imports=opsets).SerializeToString()
    feed = {"x": np.array(["a", "c"], object)}
    if kind == "OneHotEncoder":
        assert InferenceSession(contents).run(None, feed)[0].tolist() == [[1, 0], [0, 0]]
    else:
        with pytest.raises(OperatorError, match=kind):
            InferenceSession(contents).run(None, feed)


def test_functions_that_multiply():
    """Each function calls the one before it ten times: refused before memory is gone."""
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("own", 1)]
    functions = []
    for k in range(9):
        kind, domain = (f"f{k - 1}", "own") if k else ("Neg", "")
        names = ["a", *(f"b{j}" for j in range(10))]
        nodes = [helper.make_node(kind, [a], [b], domain=domain) for a, b in pairwise(names)]
        functions.append(helper.make_function("own", f"f{k}", ["a"], ["b9"], nodes, opsets))
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("f8", ["x"], ["y"], domain="own")], "g", [info("x", 1, [2])],
        [info("y", 1, [2])],
    )  # fmt: skip
    with pytest.raises(BadFile, match="nodes"):
        from_proto(helper.make_model(graph, functions=functions, opset_imports=opsets))
