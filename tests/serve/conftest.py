"""A server that tests share, with tiny random models."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import OpenAI

from tests.serve.running import Running, save_model, tiny


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random Llama with a tokenizer and a template that knows tools."""
    found = tmp_path_factory.mktemp("llama")
    save_model(found)
    return found


@pytest.fixture(scope="session")
def running(folder: Path) -> Iterator[Running]:
    """A server with the tiny Llama."""
    found = Running([tiny(folder)])
    yield found
    found.close()


@pytest.fixture(scope="session")
def client(running: Running) -> OpenAI:
    """The official client."""
    return OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0)
