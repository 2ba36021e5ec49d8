"""Models on disk that tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from genesis.llm import LLM
from tests.llm.random_models import saved
from tests.llm.tiny_tokenizer import save_tokenizer


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random Llama with a tokenizer."""
    folder = tmp_path_factory.mktemp("llama")
    saved("llama", folder)
    save_tokenizer(folder)
    return folder


@pytest.fixture(scope="session")
def llm(llama: Path) -> Iterator[LLM]:
    """The tiny Llama, loaded."""
    with LLM(llama, cache_bytes=1 << 24) as found:
        yield found
