"""The same request has the same answer: alone, under load, from a cold and a warm cache."""

from __future__ import annotations

import json
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.serve.running import HTTP, Running, tiny

HOW: list[dict[str, Any]] = [{"temperature": 0}, {"temperature": 0.8, "seed": 7}]


def body(**how: Any) -> dict[str, Any]:
    text = "the cat sat on the mat and then the other cat sat there, too " * 6
    messages = [{"role": "user", "content": text}]
    return {"model": "tiny", "messages": messages, "max_tokens": 12, "logprobs": True, **how}


def choices(running: Running, asked: dict[str, Any]) -> str:
    answer = HTTP.post(running.url + "/v1/chat/completions", json=asked)
    assert answer.status_code == 200, answer.text
    return json.dumps(answer.json()["choices"])


def noise(running: Running, seed: int) -> None:
    rng = random.Random(seed)
    words = " ".join(rng.choices(["the", "cat", "mat", "sat"], k=rng.randint(3, 40)))
    asked = {"model": "tiny", "prompt": words, "max_tokens": rng.randint(1, 12)}
    HTTP.post(running.url + "/v1/completions", json=asked)


def found(folder: Path, count: int, load: int) -> set[str]:
    running = Running([tiny(folder)])
    try:
        made = set()
        for how in HOW:
            alone = choices(running, body(**how))
            with ThreadPoolExecutor(load) as pool:
                others = [pool.submit(noise, running, k) for k in range(count)]
                same = list(pool.map(choices, [running] * count, [body(**how)] * count))
                for other in others:
                    other.result()
            made |= {alone, *same, choices(running, body(**how, cache_salt="cold"))}
        return made
    finally:
        running.close()


def test_a_few(folder: Path) -> None:
    assert len(found(folder, 3, 3)) == len(HOW)


@pytest.mark.slow
def test_two_hundred_and_a_restart(folder: Path) -> None:
    assert len(found(folder, 100, 32) | found(folder, 100, 32)) == len(HOW)
