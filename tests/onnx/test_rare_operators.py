"""Operators outside of the `onnx` package's own tests, beside onnxruntime."""

import numpy as np
import pytest

from genesis.onnx import InferenceSession
from tests import rare_operators

onnxruntime = pytest.importorskip("onnxruntime")

#: What quantises on the way may round to the other byte, and goes on from there.
LOOSE = {"DynamicQuantizeLSTM": 5e-3, "float16": 5e-3}


@pytest.mark.parametrize("index", range(len(rare_operators.models())))
def test_beside_onnxruntime(index):
    name, model, given = rare_operators.models()[index]
    contents = model.SerializeToString()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    theirs = onnxruntime.InferenceSession(contents, options, ["CPUExecutionProvider"])
    expected = theirs.run(None, given)
    session = InferenceSession(contents)
    for _ in range(2):
        found = session.run(None, given)
        assert len(found) == len(expected), name
        for mine, wanted in zip(found, expected, strict=True):
            form = str(getattr(wanted, "dtype", ""))
            same(mine, wanted, LOOSE.get(name, LOOSE.get(form, 1e-4)))


def same(mine, wanted, tolerance):
    if not isinstance(wanted, np.ndarray):
        assert [{k: pytest.approx(v) for k, v in row.items()} for row in wanted] == mine
        return
    assert (mine.dtype, mine.shape) == (wanted.dtype, wanted.shape)
    if wanted.dtype == object:
        assert mine.tolist() == wanted.tolist()
    elif wanted.dtype.kind == "f":
        np.testing.assert_allclose(mine, wanted, tolerance, tolerance / 10)
    else:
        assert np.abs(mine.astype(int) - wanted.astype(int)).max() <= (wanted.dtype.itemsize == 1)
