"""Branches and loops whose contents decide: as programs, against onnxruntime."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from genesis.onnx import InferenceSession

ort = pytest.importorskip("onnxruntime")
F, N, B = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
info = helper.make_tensor_value_info
node = helper.make_node


def constant(name, value):
    return numpy_helper.from_array(np.array(value), name)


def agrees(graph, *feeds, programs=None):
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    contents = model.SerializeToString()
    theirs = ort.InferenceSession(contents, providers=["CPUExecutionProvider"])
    session = InferenceSession(contents)
    for feed in (*feeds, *feeds):
        for got, want in zip(session.run(None, feed), theirs.run(None, feed), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    assert programs is None or len(session._program.pieces) == programs


def branches(width):
    """One of two products with a matrix, by whether the input's sum is positive."""
    weights = np.random.default_rng(0).standard_normal((2, 4, width)).astype(np.float32)

    def branch(k):
        steps = [node("MatMul", ["x", f"w{k}"], [f"p{k}"]), node("Tanh", [f"p{k}"], [f"y{k}"])]
        given = [constant(f"w{k}", weights[k])]
        return helper.make_graph(steps, f"b{k}", [], [info(f"y{k}", F, None)], given)

    steps = [
        node("ReduceSum", ["x"], ["s"], keepdims=0),
        node("Greater", ["s", "zero"], ["c"]),
        node("If", ["c"], ["z"], then_branch=branch(0), else_branch=branch(1)),
        node("Neg", ["z"], ["y"]),
    ]
    given = [constant("zero", np.float32(0))]
    return helper.make_graph(steps, "g", [info("x", F, [3, 4])], [info("y", F, None)], given)


@pytest.mark.parametrize("width, programs", [(5, 1), (70_000, 3)])
def test_small_branches_are_one_program_and_large_ones_run_alone(width, programs):
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    agrees(branches(width), {"x": x}, {"x": -x}, programs=programs)


def rounds(scale):
    """Rows of a table set one by one, by the number of the round, until a sum is large enough."""
    body = [
        node("Mul", ["state", "two"], ["doubled"]),
        node("Add", ["at", "one"], ["next"]),
        node("Slice", ["table", "at", "next", "zero"], ["old"]),
        node("Shape", ["old"], ["size"]),
        node("Expand", ["doubled", "size"], ["row"]),
        node("Reshape", ["at", "column"], ["place"]),
        node("ScatterND", ["table", "place", "row"], ["table_out"]),
        node("ReduceSum", ["doubled"], ["total"], keepdims=0),
        node("Less", ["total", "limit"], ["going"]),
        node("Identity", ["doubled"], ["state_out"]),
        node("Identity", ["next"], ["at_out"]),
    ]
    graph = helper.make_graph(
        body, "body",
        [info("k", N, []), info("c", B, []), info("state", F, [3]), info("table", F, [40, 3]),
         info("at", N, [1])],
        [info("going", B, []), info("state_out", F, None), info("table_out", F, None),
         info("at_out", N, None)],
    )  # fmt: skip
    given = [
        constant("two", np.float32(scale)), constant("one", [1]), constant("zero", [0]),
        constant("column", [1, 1]), constant("limit", np.float32(1e4)), constant("count", 40),
        constant("yes", True), constant("first", [0]),
        constant("start", np.zeros((40, 3), np.float32)),
    ]  # fmt: skip
    loop = node("Loop", ["count", "yes", "x", "start", "first"], ["s", "t", "n"], body=graph)
    return helper.make_graph(
        [loop], "g", [info("x", F, [3])], [info("s", F, None), info("t", F, None)], given
    )


@pytest.mark.parametrize("scale", [2.0, 1.1])
def test_a_loop_that_goes_on_while_something_holds(scale):
    x = np.array([1, 2, 3], np.float32)
    agrees(rounds(scale), {"x": x}, {"x": 100 * x})


#: What a round does with its number ``at`` (integers of shape [1]) to get where it writes, ``to``.
COUNTED = {
    "floats": [
        node("Cast", ["at"], ["f"], to=F), node("Add", ["f", "half"], ["g"]),
        node("Sub", ["g", "half"], ["h"]), node("Cast", ["h"], ["to"], to=N),
    ],
    "whole floats": [
        node("Cast", ["at"], ["f"], to=F), node("Mul", ["f", "fone"], ["g"]),
        node("Max", ["g", "fone"], ["h"]), node("Cast", ["h"], ["to"], to=N),
    ],
    "remainders": [node("Mod", ["at", "three"], ["to"])],
    "quotients": [node("Div", ["at", "three"], ["to"])],
    "comparisons": [
        node("Equal", ["at", "three"], ["same"]), node("Where", ["same", "one", "at"], ["to"])
    ],
    "ends": [node("Min", ["eleven", "at"], ["to"])],
    "less": [node("Less", ["at", "three"], ["b"]), node("Where", ["b", "at", "three"], ["to"])],
    "sizes": [
        node("Slice", ["table", "zero", "at", "zero"], ["part"]), node("Shape", ["part"], ["p"]),
        node("Slice", ["p", "zero", "one"], ["to"]),
    ],
    "ranges": [
        node("Squeeze", ["at"], ["last"]), node("Range", ["none", "last", "uno"], ["r"]),
        node("ReduceSum", ["r"], ["t"], keepdims=1), node("Mod", ["t", "three"], ["to"]),
    ],
}  # fmt: skip


def counted(how):
    """Rounds that add to a row of a table, found by the round's number."""
    body = [
        node("Add", ["at", "one"], ["next"]), *COUNTED[how],
        node("Add", ["to", "one"], ["end"]),
        node("Slice", ["table", "to", "end", "zero"], ["old"]),
        node("MatMul", ["old", "w"], ["turned"]), node("Add", ["turned", "x"], ["new"]),
        node("Reshape", ["to", "column"], ["place"]),
        node("ScatterND", ["table", "place", "new"], ["table_out"]),
        node("Identity", ["next"], ["at_out"]), node("ReduceSum", ["new"], ["sum"], keepdims=0),
        node("Less", ["sum", "limit"], ["going"]),
    ]  # fmt: skip
    graph = helper.make_graph(
        body, "body",
        [info("k", N, []), info("c", B, []), info("w", F, [3, 3]), info("table", F, [40, 3]),
         info("at", N, [1])],
        [info("going", B, []), info("w", F, [3, 3]), info("table_out", F, None),
         info("at_out", N, None)],
    )  # fmt: skip
    rng = np.random.default_rng(1)
    given = [
        constant("one", [1]), constant("zero", [0]), constant("three", [3]), constant("uno", 1),
        constant("eleven", [11]), constant("none", 0), constant("half", np.float32([0.5])),
        constant("fone", np.float32([1])), constant("column", [1, 1]), constant("count", 12),
        constant("first", [0]),
        constant("weight", rng.standard_normal((3, 3)).astype(np.float32)),
        constant("limit", np.float32(1e30)),
        constant("start", rng.standard_normal((40, 3)).astype(np.float32)),
    ]  # fmt: skip
    loop = node("Loop", ["count", "", "weight", "start", "first"], ["v", "t", "n"], body=graph)
    steps = [node("Neg", ["input"], ["x"]), loop]
    return helper.make_graph(
        steps, "g", [info("input", F, [1, 3])], [info(n, F, None) for n in "tv"], given
    )


@pytest.mark.parametrize("how", COUNTED)
def test_loops_that_decide_sizes_by_their_number(how):
    x = np.array([[1, 2, 3]], np.float32)
    agrees(counted(how), {"input": x}, {"input": 100 * x})


@pytest.mark.parametrize(("how", "most"), [("remainders", 2), ("whole floats", 2), ("ends", 1)])
def test_the_number_of_a_round_is_no_other_program(how, most):
    model = helper.make_model(
        counted(how), opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    session = InferenceSession(model.SerializeToString())
    session.run(None, {"input": np.ones((1, 3), np.float32)})
    (loop,) = [piece for piece in session._program.pieces if piece.steps[0].kind == "Loop"]
    (step,), (body,) = loop.steps, loop._bodies.values()
    assert len(step.inputs) == 4  # the weight is read where it comes from
    (piece,) = body.pieces
    assert sum(function.captures for function in piece._compiled.values()) <= most


def test_a_long_loop_is_no_long_program():
    body = [
        node("Cast", ["k"], ["f"], to=F),
        *(node("Add", [f"a{n}" if n else "state", "f"], [f"a{n + 1}"]) for n in range(8)),
        node("Identity", ["c"], ["going"]),
    ]
    graph = helper.make_graph(
        body, "body", [info("k", N, []), info("c", B, []), info("state", F, [2])],
        [info("going", B, []), info("a8", F, None)],
    )  # fmt: skip
    steps = [node("Loop", ["count", "", "x"], ["y"], body=graph)]
    for count, programs in ((20, 1), (90, 1)):
        whole = helper.make_graph(
            steps, "g", [info("x", F, [2])], [info("y", F, None)], [constant("count", count)]
        )
        agrees(whole, {"x": np.ones(2, np.float32)}, programs=programs)


def recurrent(changes):
    """A recurrence that counts in what it carries, as Keras writes it, to the length of the input.

    Its rounds also carry the sum of the numbers so far; where it `changes`, a tensor that grows.
    """
    body = [
        node("Add", ["t", "one"], ["t_out"]), node("Add", ["sum", "t_out"], ["sum_out"]),
        node("Gather", ["x", "t"], ["now"]), node("MatMul", ["h", "w"], ["turned"]),
        node("Add", ["now", "turned"], ["a"]), node("Cast", ["sum"], ["f"], to=F),
        node("Div", ["a", "f"], ["b"]), node("Tanh", ["b"], ["h_out"]),
        node("Identity", ["h_out"], ["y"]),
        node("Concat", ["rest", "h_out"], ["rest_out"], axis=0) if changes
        else node("Add", ["rest", "h_out"], ["rest_out"]),
        node("Less", ["t_out", "n"], ["going"]),
    ]  # fmt: skip
    graph = helper.make_graph(
        body, "body",
        [info("k", N, []), info("c", B, []), info("t", N, []), info("sum", N, []),
         info("n", N, []), info("h", F, [1, 3]), info("rest", F, ["r", 3])],
        [info("going", B, []), info("t_out", N, None), info("sum_out", N, None),
         info("n", N, []), info("h_out", F, None), info("rest_out", F, None),
         info("y", F, None)],
    )  # fmt: skip
    steps = [
        node("Shape", ["x"], ["shape"]), node("Gather", ["shape", "none"], ["n0"]),
        node("Less", ["none", "n0"], ["any"]),
        node("Loop", ["", "any", "none", "one", "n0", "start", "start"],
             ["t9", "sum9", "n9", "h9", "rest9", "ys"], body=graph),
    ]  # fmt: skip
    given = [
        constant("one", 1), constant("none", 0), constant("start", np.ones((1, 3), np.float32)),
        constant("w", np.random.default_rng(3).standard_normal((3, 3)).astype(np.float32)),
    ]  # fmt: skip
    outputs = [info(n, N, None) for n in ("t9", "sum9")]
    outputs += [info(n, F, None) for n in ("h9", "rest9", "ys")]
    return helper.make_graph(steps, "g", [info("x", F, ["n", 1, 3])], outputs, given)


@pytest.mark.parametrize("changes, programs", [(False, 1), (True, None)])
def test_loops_that_count_in_what_they_carry_are_part_of_the_program(changes, programs):
    xs = [np.random.default_rng(n).standard_normal((n, 1, 3)).astype(np.float32) for n in (70, 90)]
    agrees(recurrent(changes), *({"x": x} for x in xs), programs=programs)


def test_models_of_16_bits_are_computed_in_32():
    rng = np.random.default_rng(2)
    half = TensorProto.FLOAT16
    w = (rng.standard_normal((64, 64)) * 0.1).astype(np.float16)
    steps = [
        node("MatMul", ["x", "w"], ["a"]), node("Cast", ["a"], ["b"], to=F),
        node("Exp", ["b"], ["c"]), node("Cast", ["c"], ["d"], to=half),
        node("Add", ["d", "x"], ["y"]),
    ]  # fmt: skip
    graph = helper.make_graph(
        steps, "g", [info("x", half, [None, 64])], [info("y", half, None)], [constant("w", w)]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = InferenceSession(model.SerializeToString())
    x = rng.standard_normal((5, 64)).astype(np.float16)
    (y,) = session.run(None, {"x": x})
    wide = np.exp(x.astype(np.float64) @ w) + x
    assert y.dtype == np.float16 and session.get_inputs()[0].type == "tensor(float16)"
    np.testing.assert_allclose(y.astype(np.float64), wide, rtol=1e-3, atol=1e-3)


def test_inputs_that_nothing_reads_keep_their_constants():
    given = [constant("unused", np.ones(3, np.float32))]
    inputs = [info("x", F, [2]), info("unused", F, [3])]
    graph = helper.make_graph([node("Neg", ["x"], ["y"])], "g", inputs, [info("y", F, [2])], given)
    agrees(graph, {"x": np.ones(2, np.float32)})


def test_a_node_without_an_input_it_needs_is_refused():
    graph = helper.make_graph(
        [node("Equal", ["", "x"], ["y"])], "g", [info("x", F, [2])], [info("y", B, [2])]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with pytest.raises(ValueError, match="Equal needs its input 0"):
        InferenceSession(model.SerializeToString())


def decoder(seen):
    """A loop whose weights go in and out under their own names, as converters of Paddle write it.

    Whether it ends is a scalar on one way and a list on the other; with `seen` that is a result.
    """
    then = helper.make_graph([], "t", [], [info("yes", B, [])], [constant("yes", True)])
    other = [
        node("Cast", ["ended"], ["n"], to=N),
        node("Add", ["n", "list"], ["m"]),
        node("Cast", ["m"], ["no"], to=B),
    ]
    other = helper.make_graph(other, "o", [], [info("no", B, None)], [constant("list", [0])])
    body = [
        node("MatMul", ["x", "w"], ["keys"]),
        node("Add", ["state", "keys"], ["moved"]),
        node("Tanh", ["moved"], ["state_out"]),
        node("ReduceMax", ["state_out"], ["most"], keepdims=0),
        node("Greater", ["most", "limit"], ["far"]),
        node("If", ["far"], ["either"], then_branch=then, else_branch=other),
        node("Cast", ["either"], ["whole"], to=N),
        node("Add", ["whole", "list0"], ["sum"]),
        node("Cast", ["sum"], ["ended_out"], to=B),
        node("Size" if not seen else "Shape", ["either"], ["rank"]),
        node("ReduceSum", ["state_out"], ["row"], keepdims=0),
        node("Not", ["ended_out"], ["again"]),
        node("Reshape", ["again", "scalar"], ["going"]),
    ]
    if not seen:  # nothing but elements is asked for
        body = [step for step in body if step.op_type != "Size"]
    body = helper.make_graph(
        body, "body",
        [info("k", N, []), info("c", B, []), info("w", F, [3, 3]), info("state", F, [3, 3]),
         info("ended", B, None)],
        [info("going", B, []), info("w", F, [3, 3]), info("state_out", F, [3, 3]),
         info("ended_out", B, None), info("row", F, []),
         *([info("rank", N, None)] if seen else [])],
        [constant("list0", [0]), constant("limit", np.float32(0.99)),
         constant("scalar", np.zeros(0, np.int64))],
    )  # fmt: skip
    outs = ["w_end", "state_end", "ended_end", "rows", *(["ranks"] if seen else [])]
    step = node("Loop", ["most_rounds", "", "w", "start", "ended0"], outs, body=body)
    weights = np.random.default_rng(0).standard_normal((3, 3)).astype(np.float32)
    given = [
        constant("most_rounds", 60), constant("w", weights * 0.1), constant("ended0", [False]),
        constant("start", np.zeros((3, 3), np.float32)),
    ]  # fmt: skip
    results = [info(n, F, None) for n in ("state_end", "rows")]
    return helper.make_graph([step], "g", [info("x", F, [3, 3])], results, given)


@pytest.mark.parametrize("seen", [False, True])
def test_what_is_the_same_in_all_rounds_is_computed_once_and_branches_of_one_element_meet(seen):
    x = np.random.default_rng(1).standard_normal((3, 3)).astype(np.float32)
    graph = decoder(seen)
    agrees(graph, {"x": x}, {"x": x * 5})
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = InferenceSession(model.SerializeToString())
    session.run(None, {"x": x})
    (loop,) = (s for s in session._model.graph.steps if s.kind == "Loop")
    body = loop.options["body"]
    assert "w" not in body.inputs
    assert "MatMul" not in {step.kind for step in body.steps}
    (alone,) = (p for p in session._program.pieces if hasattr(p, "_bodies"))
    kinds = [type(p).__name__ for p in alone._bodies[body].pieces]
    assert ("Alone" in kinds) == seen
