"""`genesis chat` and `genesis llm`: a model from the command line."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from genesis.cli import main
from genesis.llm import LLM, SamplingParams, bench, command

ROOT = Path(__file__).parents[2]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}: {{ m.content }}<|im_end|>{% endfor %}"
    "<|im_start|>assistant:"
)


@pytest.fixture(scope="module")
def chatty(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny Llama, with a chat template."""
    folder = tmp_path_factory.mktemp("chatty")
    shutil.copytree(llama, folder, dirs_exist_ok=True)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


@pytest.fixture(scope="module")
def chatbot(chatty: Path) -> Iterator[LLM]:
    """The same, loaded, with a short memory."""
    with LLM(chatty, max_length=128, cache_bytes=1 << 24) as found:
        yield found


def typed(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))


def test_generate(
    llama: Path, llm: LLM, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ["--seed", "3", "--max-tokens", "8", "--temperature", "0.5"]
    want = llm.generate("the cat", seed=3, max_tokens=8, temperature=0.5).text
    typed(monkeypatch, "the cat")
    assert main(["llm", "generate", str(llama), "-", *options, "--format", "float32"]) == 0
    assert capsys.readouterr().out == want + "\n"


def test_without_template_each_line_goes_on(
    llama: Path, llm: LLM, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    typed(monkeypatch, "the cat\n\nsat on\n")
    assert main(["chat", str(llama), "--temperature", "0", "--max-tokens", "6"]) == 0
    want = llm.generate(["the cat", "sat on"], temperature=0, max_tokens=6)
    assert capsys.readouterr().out == "".join(c.text + "\n" for c in want)


def test_a_conversation_remembers(
    chatbot: LLM, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    typed(monkeypatch, "the cat\nsat on\n")
    command.chat(chatbot, SamplingParams(seed=1, max_tokens=6), "the mat")
    messages = [{"role": "system", "content": "the mat"}]
    want = ""
    for text in ("the cat", "sat on"):
        messages.append({"role": "user", "content": text})
        answer = chatbot.chat(messages, seed=1, max_tokens=6).text
        messages.append({"role": "assistant", "content": answer})
        want += answer + "\n"
    assert capsys.readouterr().out == want


def test_the_oldest_is_forgotten_when_the_context_is_full(chatbot: LLM) -> None:
    params = SamplingParams(max_tokens=30, ignore_eos=True, seed=0)
    conversation = command.Conversation(chatbot, "the mat")
    for k in range(6):
        conversation.answer(f"question {k}", params)
        tokens = chatbot.render([*conversation.system, *conversation.messages])
        assert len(tokens) < 128 + 16  # and what the template adds
    assert 2 <= len(conversation.messages) < 12
    assert conversation.messages[-2]["content"] == "question 5"


def test_an_interrupt_ends_the_answer_only(
    chatbot: LLM, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    typed(monkeypatch, "the cat\nsat on\n")
    stream, calls = chatbot.stream, []

    def interrupted(*arguments: Any, **how: Any) -> Any:
        calls.append(arguments[0])
        for k, event in enumerate(stream(*arguments, **how)):
            yield event
            if k == 2 and len(calls) == 1:
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(1)

    monkeypatch.setattr(chatbot, "stream", interrupted)
    command.chat(chatbot, SamplingParams(max_tokens=6, temperature=0, ignore_eos=True))
    first, second = capsys.readouterr().out.splitlines()
    asked = [{"role": "user", "content": "the cat"}]
    assert chatbot.chat(asked, max_tokens=6, temperature=0).text.startswith(first) and second
    # What was said is part of the conversation.
    assert f"assistant: {first}" in chatbot.tokenizer.decode(calls[1])


@pytest.mark.slow
def test_a_terminal(chatty: Path) -> None:
    """Ctrl-C leaves the program and the process that renders templates alive; Ctrl-D ends."""
    spawn = "import pty, sys; sys.exit(pty.spawn(sys.argv[1:]) >> 8)"
    chat = [sys.executable, "-m", "genesis", "chat", str(chatty), "--max-tokens", "200"]
    process = subprocess.Popen(
        [sys.executable, "-c", spawn, *chat],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
    )
    assert process.stdin is not None and process.stdout is not None
    seen = b""

    def until(end: bytes) -> None:
        nonlocal seen
        start = len(seen)
        while end not in seen[start:]:
            found = process.stdout.read(4096)
            assert found, seen
            seen += found

    until(b"> ")
    process.stdin.write(b"the cat\n")
    until(b"\r\n")
    seen += process.stdout.read(1)  # the answer began
    process.stdin.write(b"\x03")
    until(b"> ")
    process.stdin.write(b"sat on\n")
    until(b"> ")
    process.stdin.write(b"\x04")
    assert process.wait(60) == 0
    process.stdin.close()
    process.stdout.close()
    assert b"Traceback" not in seen and b"genesis:" not in seen


@pytest.fixture
def broken(llama: Path, tmp_path: Path) -> Path:
    shutil.copytree(llama, tmp_path / "model")
    config = tmp_path / "model" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "model_type": "abacus"}))
    (tmp_path / "text.gguf").write_text("no model")
    (tmp_path / "empty").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("name", "options", "complaint"),
    [
        ("nothing", [], "there is no file or folder"),
        ("empty", [], "no safetensors, no GGUF file"),
        ("text.gguf", [], "text.gguf"),
        ("model", [], "'abacus' is no known family"),
        ("llama", ["--temperature", "-1"], "temperature is -1.0"),
        ("llama", ["--max-length", "16"], "do not fit the context of 16"),
    ],
)
def test_what_is_wrong_is_one_line(
    name: str,
    options: list[str],
    complaint: str,
    broken: Path,
    llama: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = str(llama if name == "llama" else broken / name)
    for use in (["llm", "generate", path, "the cat sat on the mat" * 8], ["llm", "bench", path]):
        if use[1] == "generate" or not options:
            assert main([*use, *(options if use[1] == "generate" else [])]) == 1
            printed = capsys.readouterr()
            assert printed.err.startswith("genesis: ") and complaint in printed.err
            assert printed.err.count("\n") == 1 and not printed.out


def test_bench(
    llama: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "BATCHES", (1, 3))
    monkeypatch.setattr(bench, "STEPS", 3)
    assert main(["llm", "bench", str(llama), "--max-length", "96"]) == 0
    out = capsys.readouterr().out
    assert "llama, 4 layers" in out
    rows = [line.split() for line in out.splitlines() if line.startswith(("prefill", "decode"))]
    assert [row[0] for row in rows] == ["prefill", "decode,", "decode,"]
    for row in rows:
        assert int(row[2 if row[0] == "prefill" else 3].replace(",", "")) > 0
