"""Operators, by the tests that come with the `onnx` package."""

import sys
import warnings
from importlib import import_module, reload

import pytest

pytest.importorskip("onnx")
from onnx.backend.test.case import node as node_cases

from tests.onnx import node_tests

#: Modules of operators with many cases and few kernels; the rest is run by the slow test.
SAMPLE = (
    "and_", "argmax", "bitshift", "cast", "clip", "compress", "concat", "constant",
    "constantofshape", "conv", "convinteger", "cumsum", "depthtospace", "dynamicquantizelinear",
    "expand", "flatten", "gather", "gathernd", "gemm", "gru", "hardmax", "identity", "if_", "isinf",
    "loop", "lstm", "matmul", "maxpool", "mod", "nonmaxsuppression", "nonzero", "onehot",
    "optionalgetelement", "qlinearmatmul", "quantizelinear", "reshape", "roialign", "scan",
    "scatternd", "sequenceinsert", "shape", "slice", "split", "squeeze", "tfidfvectorizer", "tile",
    "topk", "transpose", "trilu", "unique", "unsqueeze", "where",
)  # fmt: skip


def _sample():
    before = len(node_cases._NodeTestCases)
    node_cases._existing_names.clear()  # another test of this process may have made them all
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in SAMPLE:
            full = f"onnx.backend.test.case.node.{name}"
            known = sys.modules.get(full)
            reload(known) if known is not None else import_module(full)
    return [c for c in node_cases._NodeTestCases[before:] if "expanded" not in c.name]


def test_sample_of_operators():
    cases = _sample()
    failed = node_tests.failures(cases[::3])
    assert len(cases) > 250 and not failed, failed


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_all_operators():
    cases = node_tests.cases(("node", "simple", "pytorch-operator", "pytorch-converted"))
    failed = node_tests.failures(cases)
    named = {name for names in failed.values() for name in names}
    random = {name for name in named if name.startswith(node_tests.RANDOM)}
    assert len(named - random) <= 0.02 * len(cases), failed
