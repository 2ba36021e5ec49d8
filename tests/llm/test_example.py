"""The example that trains a model, in a very short form; and its files, in other hands."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest
import torch
import transformers

from examples import llm as example
from genesis.llm import LLM

SHORT = ["--steps", "24", "--batch", "2", "--files", "8"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder that the example writes, and what it prints."""
    folder = tmp_path_factory.mktemp("example") / "python-llama"
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        example.main([*SHORT, "--output", str(folder)])
    return folder, printed.getvalue()


def test_it_learns_and_answers(trained: tuple[Path, str]) -> None:
    _, printed = trained
    losses = [float(x) for x in re.findall(r"loss (?:on other files: )?([0-9.]+)", printed)]
    assert losses[0] > 7.5 and losses[-1] < 7.0  # of 2048 tokens, none of them likelier: 7.62
    before, _, answer = printed.partition(example.PROMPT)
    assert before and len(answer) > 100


def test_transformers_reads_the_folder_and_says_the_same(trained: tuple[Path, str]) -> None:
    folder, _ = trained
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    assert sum(p.numel() for p in model.parameters()) > 1e6
    with LLM(folder, cache_bytes=1 << 24) as llm:
        tokens = llm.encode(example.PROMPT)
        assert tokenizer(example.PROMPT)["input_ids"] == tokens
        found = llm.generate(tokens, temperature=0, max_tokens=40).answers[0]
        want = model.generate(torch.tensor([tokens]), do_sample=False, max_new_tokens=40)
        assert found.tokens == want[0, len(tokens) :].tolist()
        assert found.text == tokenizer.decode(found.tokens, skip_special_tokens=True)
