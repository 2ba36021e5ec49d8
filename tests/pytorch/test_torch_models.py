"""Hugging Face's models give eager's losses and gradients when compiled by Genesis."""

from __future__ import annotations

import pytest

from tests.torch_models import CASES, Case, compare

#: One of each kind: an encoder, a decoder, both, images by attention and by convolution.
SOME = ("Bert", "Llama", "T5", "ViT", "ResNet")


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case[0], marks=() if case[0] in SOME else pytest.mark.slow)
        for case in CASES
    ],
)
def test_forward_and_backward(case: Case) -> None:
    assert compare(case) == ""
