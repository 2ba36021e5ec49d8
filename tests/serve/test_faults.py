"""Clients of every bad kind at once: healthy requests end right, and everything is given back."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.serve.fault_run import fault_run, grown
from tests.serve.running import HTTP

pytestmark = pytest.mark.slow
CHAT: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "the cat sat"}],
    "max_tokens": 8,
    "seed": 1,
}


def test_faults() -> None:
    """A minute of what `python -m tests.serve.fault_run` does for longer."""
    found = fault_run(60, 64)
    kinds = [name for name in found.seen if ":" not in name]
    assert len(kinds) >= 13 and found.seen["healthy"] > 20, found.seen


def test_memory_does_not_grow() -> None:
    assert grown(10_000) < 0.01


class Process:
    """`genesis serve` as a process."""

    def __init__(self, folder: Path, disk: Path) -> None:
        command = [sys.executable, "-m", "genesis", "serve", f"tiny={folder}", "--port", "0"]
        more = ["--disk", str(disk), "--cache-bytes", str(1 << 24)]
        self.process = subprocess.Popen(
            [*command, *more], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self.process.stdout is not None
        self.url = ""
        for line in self.process.stdout:
            if line.startswith("serving"):
                self.url = line.split()[1]
            if line.startswith("try"):
                break

    def ask(self, **how: Any) -> Any:
        text = "the cat sat on the mat and then " * 12
        asked = {**CHAT, "messages": [{"role": "user", "content": text}], **how}
        return HTTP.post(self.url + "/v1/chat/completions", json=asked).json()

    def end(self, number: int) -> int:
        self.process.send_signal(number)
        return self.process.wait(120)


def test_ends_of_a_process(folder: Path, tmp_path: Path) -> None:
    server = Process(folder, tmp_path)
    want, answers = server.ask(), list[Any]()
    long = {"max_tokens": 300, "ignore_eos": True}
    asks = [threading.Thread(target=lambda: answers.append(server.ask(**long))) for _ in range(3)]
    for ask in asks:
        ask.start()
    while (
        'genesis_num_requests_running{model="tiny"} 3' not in HTTP.get(server.url + "/metrics").text
    ):
        time.sleep(0.05)
    assert server.end(signal.SIGTERM) == 0
    for ask in asks:
        ask.join()
    assert [a["usage"]["completion_tokens"] for a in answers] == [300] * 3
    again = Process(folder, tmp_path)  # finds its pages on disk
    found = again.ask()
    assert found["choices"] == want["choices"]
    assert found["usage"]["prompt_tokens_details"]["cached_tokens"] >= 64
    again.end(signal.SIGKILL)
    (tmp_path / "000000000001.log").write_bytes(b"not a log")
    last = Process(folder, tmp_path)
    assert last.ask()["choices"] == want["choices"]
    assert last.end(signal.SIGTERM) == 0
