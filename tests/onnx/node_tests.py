"""The tests of operators that come with the `onnx` package: models, inputs and expected outputs.

    python -m tests.onnx.node_tests [--only TEXT] [--part 0/2]

prints what fails, and how many pass.
"""

import argparse
import collections
import time
import warnings
from functools import cache
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests
from onnx.backend.test.runner import Runner

from genesis.onnx.backend import GenesisBackend


@cache
def cases(kinds=("node",)):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [case for kind in kinds for case in load_model_tests(kind=kind)]


def _value(proto, kind):
    if kind.HasField("sequence_type"):
        return numpy_helper.to_list(proto)
    if kind.HasField("optional_type"):
        return numpy_helper.to_optional(proto)
    return numpy_helper.to_array(proto)


def _stored_sets(case, model):
    """The inputs and outputs that lie in files."""
    for folder in sorted(Path(case.model_dir).glob("test_data_set_*")):
        sets = []
        for what, infos in (("input", model.graph.input), ("output", model.graph.output)):
            values = []
            for k, path in enumerate(sorted(folder.glob(f"{what}_*.pb"), key=_number)):
                kind = infos[k].type
                message = onnx.TensorProto()
                if kind.HasField("sequence_type"):
                    message = onnx.SequenceProto()
                elif kind.HasField("optional_type"):
                    message = onnx.OptionalProto()
                message.ParseFromString(path.read_bytes())
                values.append(_value(message, kind))
            sets.append(values)
        yield sets


def _number(path):
    return int(path.stem.rpartition("_")[2])


def check(case):
    """Run a case; what is wrong is raised."""
    if case.model_dir is not None:
        model = onnx.load(str(Path(case.model_dir) / "model.onnx"))
        sets = list(_stored_sets(case, model))
    else:
        model, sets = case.model, case.data_sets
    prepared = GenesisBackend.prepare(model)
    for inputs, expected in sets:
        given = [
            x if not isinstance(x, onnx.TensorProto) else numpy_helper.to_array(x) for x in inputs
        ]
        wanted = [
            x if not isinstance(x, onnx.TensorProto) else numpy_helper.to_array(x) for x in expected
        ]
        results = list(prepared.run(given))
        Runner.assert_similar_outputs(
            wanted, results, rtol=case.rtol, atol=case.atol, model_dir=case.model_dir
        )


#: Cases whose results are random: only their form can be compared.
RANDOM = ("test_bernoulli", "test_training_dropout", "test_random")


def failures(chosen):
    """What went wrong in cases, with the names of those it happened in."""
    failed = collections.defaultdict(list)
    for case in chosen:
        try:
            with np.errstate(all="ignore"):
                check(case)
        except Exception as error:
            text = f"{type(error).__name__}: {str(error)[:300]}".replace("\n", " ")
            failed[text].append(case.name)
    return failed


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="")
    parser.add_argument("--part", default="0/1")
    parser.add_argument("--kinds", default="node")
    chosen = parser.parse_args()
    which, parts = map(int, chosen.part.split("/"))
    found = [c for c in cases(tuple(chosen.kinds.split(","))) if chosen.only in c.name][
        which::parts
    ]
    begun = time.process_time()
    failed = failures(found)
    for text, names in sorted(failed.items(), key=lambda e: -len(e[1])):
        print(len(names), text, names[:4], flush=True)
    passed = len(found) - sum(map(len, failed.values()))
    print(f"{passed} of {len(found)} pass ({time.process_time() - begun:.0f} s of processor time)")


if __name__ == "__main__":
    main()
