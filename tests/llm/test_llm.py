"""An `LLM` from its files: what users call, and what happens when they call it wrongly."""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.numpy import save_file

import genesis
from genesis.llm import LLM, BadGrammar, BadModel, Refused, RequestFailed, SamplingParams

GREEDY: dict[str, Any] = {"temperature": 0, "ignore_eos": True}


def test_answers_are_those_of_transformers(llm: LLM, llama: Path) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(llama)
    prompts = ["the cat", "sat on the mat and then", "x", "the other cat sat there, too" * 3]
    found = llm.generate(prompts, max_tokens=24, **GREEDY)
    for prompt, completion in zip(prompts, found, strict=True):
        tokens = torch.tensor([llm.encode(prompt)])
        want = model.generate(tokens, max_new_tokens=24, min_new_tokens=24, do_sample=False)
        assert completion.answers[0].tokens == want[0, tokens.shape[1] :].tolist()


def test_a_seed_gives_the_same_answers_in_any_company(llm: LLM) -> None:
    alone = llm.generate("the cat", max_tokens=12, seed=3, n=3, top_p=0.95)
    company = llm.generate(["sat on", "a", "the cat"], max_tokens=12, seed=3, n=3, top_p=0.95)[2]
    assert [a.tokens for a in alone.answers] == [a.tokens for a in company.answers]
    assert len({tuple(a.tokens) for a in alone.answers}) == 3


def test_a_stream_adds_up(llm: LLM) -> None:
    whole = llm.generate("the cat", max_tokens=20, seed=1)
    events = list(llm.stream("the cat", max_tokens=20, seed=1))
    assert "".join(e.text for e in events) == whole.text
    assert [t for e in events for t in e.tokens] == whole.answers[0].tokens
    assert [e.reason for e in events][-1] == whole.answers[0].reason


def test_stop_strings_are_cut_out(llm: LLM) -> None:
    text = llm.generate("the cat", max_tokens=30, seed=5).text
    stop = text[6:9]
    answer = llm.generate("the cat", max_tokens=30, seed=5, stop=["no such text", stop]).answers[0]
    assert answer.text == text[: text.index(stop)]
    assert answer.reason == "stop"
    streamed = llm.stream("the cat", max_tokens=30, seed=5, stop=stop)
    assert "".join(e.text for e in streamed) == answer.text


def test_logprobs(llm: LLM) -> None:
    found = llm.generate("the cat sat", max_tokens=4, logprobs=2, prompt_logprobs=1, **GREEDY)
    tokens = llm.encode("the cat sat")
    assert [p.token for p in found.prompt_logprobs] == tokens[1:]
    for noted, token in zip(found.answers[0].logprobs, found.answers[0].tokens, strict=True):
        assert noted.token == token == max(noted.top, key=noted.top.__getitem__)
        assert noted.logprob == noted.top[token] <= 0


def test_structured_answers_are_valid(llm: LLM) -> None:
    schema = {
        "type": "object",
        "properties": {"x": {"type": "integer"}, "y": {"enum": ["a", "b"]}},
        "required": ["x", "y"],
        "additionalProperties": False,
    }
    for seed in range(3):
        text = llm.generate("a", max_tokens=200, seed=seed, response_format={"json": schema}).text
        found = json.loads(text)
        assert type(found["x"]) is int and found["y"] in ("a", "b")
    text = llm.generate("a", seed=1, response_format={"regex": "[0-9]{3}-[xy]+z"}).text
    assert text[3] == "-" and text[-1] == "z"
    assert llm.generate("a", seed=1, response_format={"choice": ["yes", "no"]}).text in (
        "yes",
        "no",
    )
    with pytest.raises(BadGrammar, match="JSON schema"):
        llm.generate("a", response_format={"json": {"type": "nonsense"}})


def test_a_request_fails_alone(llm: LLM) -> None:
    def processor(tokens: Any, scores: Any) -> Any:
        raise KeyError("mine")

    before = llm.generate("the cat", max_tokens=6, **GREEDY).text
    results: list[Any] = []

    def other() -> None:
        results.append(llm.generate("the cat", max_tokens=6, **GREEDY).text)

    threads = [threading.Thread(target=other) for _ in range(3)]
    for thread in threads:
        thread.start()
    with pytest.raises(RequestFailed, match="mine"):
        llm.generate("the cat", processors=[processor])
    for thread in threads:
        thread.join()
    assert results == [before] * 3


def test_what_cannot_be_done_is_refused(llm: LLM, tmp_path: Path) -> None:
    with pytest.raises(Refused, match="context of 256"):
        llm.generate([5] * 250, max_tokens=100)
    with pytest.raises(ValueError, match="no token 999"):
        llm.generate([5, 999])
    with pytest.raises(Refused, match="prompt"):
        llm.generate([[]])
    with pytest.raises(TypeError, match="does not embed"):
        llm.embed("x")
    with pytest.raises(TypeError, match="not both"):
        llm.generate("x", SamplingParams(), top_k=3)
    with pytest.raises(FileNotFoundError, match="no such"):
        LLM(tmp_path / "no such")
    with pytest.raises(ValueError, match="policy"):
        LLM(tmp_path, policy="best")


def test_asyncio(llm: LLM) -> None:
    async def many() -> list[Any]:
        calls = (llm.agenerate("the cat", max_tokens=5, seed=k) for k in range(4))
        return await asyncio.gather(*calls)

    found = asyncio.run(many())
    assert [c.text for c in found] == [
        llm.generate("the cat", max_tokens=5, seed=k).text for k in range(4)
    ]


def test_a_prefix_is_not_computed_again(llm: LLM) -> None:
    prompt = llm.encode("the cat sat on the mat and then the other cat sat there" * 8)
    first = llm.generate(prompt, max_tokens=4, salt=b"mine", **GREEDY)
    again = llm.generate([*prompt, 7], max_tokens=4, salt=b"mine", **GREEDY)
    other = llm.generate(prompt, max_tokens=4, salt=b"yours", **GREEDY)
    assert first.cached_tokens == other.cached_tokens == 0
    size = llm.engine.executor.page_size
    assert again.cached_tokens == len(prompt) // size * size > 0
    assert first.answers[0].tokens == other.answers[0].tokens


def test_no_step_takes_more_memory_than_was_planned(llm: LLM) -> None:
    """Not even while prompts as long as the context are computed beside answers."""
    plan, executor = llm.memory, llm.engine.executor
    assert plan.weights == sum(x.nbytes for x in executor.decoder.buffers())
    assert plan.pages == sum(x.nbytes for c in executor.caches for x in c.arrays)
    rng = np.random.default_rng(5)
    lengths = [llm.context - 9, *rng.integers(1, llm.context - 9, 5)]
    prompts = [rng.integers(3, 60, n).tolist() for n in lengths]
    how = {"max_tokens": 8, **GREEDY}
    llm.generate(prompts, **how)  # what is compiled and kept
    genesis.memory.reset_peak()
    before = genesis.memory.stats().live_bytes
    llm.generate([[7, *p[:-1]] for p in prompts], **how)
    taken = genesis.memory.stats().peak_live_bytes - before
    assert 0 < taken <= 1.02 * plan.step


@pytest.mark.slow
def test_a_cache_of_fewer_bits_holds_more(llama: Path, llm: LLM) -> None:
    room = 1 << 21
    plain = llm.generate("the cat sat", max_tokens=6, **GREEDY).answers[0].tokens
    tokens = {}
    for format in ("float32", "int8", "int4"):
        with LLM(llama, cache_bytes=room, cache_format=format, max_length=256) as small:
            tokens[format] = sum(small.engine.executor.pages) * small.engine.executor.page_size
            assert small.memory.pages <= room * 1.3  # a page of every group is nobody's
            found = small.generate("the cat sat", max_tokens=6, **GREEDY).answers[0].tokens
            assert format == "int4" or found == plain
    assert tokens["int8"] > 3 * tokens["float32"] and tokens["int4"] > 1.7 * tokens["int8"]


def test_an_abandoned_stream_frees_its_pages(llm: LLM) -> None:
    stream = llm.stream("the cat", max_tokens=100, **GREEDY)
    next(stream)
    stream.close()
    llm.generate("the cat", max_tokens=1)
    assert len(llm.engine) == 0
    llm.engine.scheduler.check()


@pytest.mark.parametrize("how", ["ngrams", 2])
def test_speculation_changes_no_token(llama: Path, llm: LLM, how: Any) -> None:
    with LLM(llama, cache_bytes=1 << 24, speculate=how) as quick:
        for params in (GREEDY, {"seed": 4}, {"seed": 4, "top_p": 0.8, "frequency_penalty": 0.5}):
            prompts = ["the cat sat on the cat sat on the", "a"]
            want = llm.generate(prompts, max_tokens=24, **params)
            got = quick.generate(prompts, max_tokens=24, **params)
            assert [c.answers[0].tokens for c in got] == [c.answers[0].tokens for c in want]


def _adapter(folder: Path, rank: int, seed: int) -> dict[str, Any]:
    """An adapter of some modules, and what it adds to their weights."""
    rng = np.random.default_rng(seed)
    shapes = {"self_attn.q_proj": (64, 64), "self_attn.v_proj": (32, 64), "mlp.up_proj": (96, 64)}
    tensors, added = {}, {}
    for layer in range(4):
        for module, (rows, columns) in shapes.items():
            name = f"model.layers.{layer}.{module}"
            a = rng.standard_normal((rank, columns)).astype(np.float32) * 0.3
            b = rng.standard_normal((rows, rank)).astype(np.float32) * 0.3
            tensors[f"base_model.model.{name}.lora_A.weight"] = a
            tensors[f"base_model.model.{name}.lora_B.weight"] = b
            added[f"{name}.weight"] = torch.tensor(b @ a) * (2 * rank / rank)
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return added


def test_adapters_are_those_merged_into_the_weights(llama: Path, tmp_path: Path) -> None:
    paths = [tmp_path / "one", tmp_path / "two", tmp_path / "three"]
    added = [
        _adapter(path, rank, seed)
        for seed, (path, rank) in enumerate(zip(paths, (4, 2, 3), strict=True))
    ]
    prompt = "the cat sat"
    with LLM(llama, cache_bytes=1 << 24, adapters=2, adapter_rank=4) as llm:

        def ask(adapter: Path | None) -> list[int]:
            how = {} if adapter is None else {"adapter": str(adapter)}
            tokens: list[int] = (
                llm.generate(prompt, max_tokens=12, **GREEDY, **how).answers[0].tokens
            )
            return tokens

        plain = ask(None)
        for path, more in zip(paths, added, strict=True):  # the third takes the slot of the first
            model = transformers.AutoModelForCausalLM.from_pretrained(llama)
            with torch.no_grad():
                for name, value in more.items():
                    model.get_parameter(name).add_(value)
            tokens = torch.tensor([llm.encode(prompt)])
            want = model.generate(tokens, max_new_tokens=12, min_new_tokens=12, do_sample=False)
            assert ask(path) == want[0, tokens.shape[1] :].tolist() != plain
        assert ask(None) == plain
        before = ask(paths[1])
        shutil.rmtree(paths[1])
        _adapter(paths[1], 2, 17)
        assert ask(paths[1]) != before  # what lies there now
        with pytest.raises(BadModel, match="rank of 9"):
            _adapter(tmp_path / "large", 9, 0)
            ask(tmp_path / "large")
        with pytest.raises(BadModel, match=r"adapter_config.json"):
            ask(tmp_path)
        assert ask(None) == plain


@pytest.mark.parametrize("penalty", [1.0, 0.0])
def test_beams_are_those_of_transformers(llm: LLM, llama: Path, penalty: float) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(llama)
    tokens = torch.tensor([llm.encode("the cat sat")])
    want = model.generate(
        tokens, max_new_tokens=10, do_sample=False, num_beams=4, num_return_sequences=2,
        length_penalty=penalty,
    )  # fmt: skip
    got = llm.generate("the cat sat", max_tokens=10, beams=4, n=2, length_penalty=penalty)
    for answer, row in zip(got.answers, want[:, tokens.shape[1] :].tolist(), strict=True):
        assert answer.tokens == row[: len(answer.tokens)]
    llm.engine.scheduler.check()


@pytest.mark.parametrize(
    "how", [{"stop": "x"}, {"min_tokens": 2}, {"logprobs": 1}, {"response_format": {"regex": "a+"}}]
)
def test_beams_drop_nothing_silently(llm: LLM, how: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="beams"):
        llm.generate("the cat", beams=2, max_tokens=4, **how)


def test_a_deadline_is_seconds_from_now(llm: LLM) -> None:
    late = llm.generate("the cat", max_tokens=100, deadline=0.0, **GREEDY)
    assert late.answers[0].reason == "deadline"
    assert (
        llm.generate("the cat", max_tokens=3, deadline=600.0, **GREEDY).answers[0].reason
        == "length"
    )


def test_a_processor_that_raises_fails_alone_beside_a_draft(llama: Path) -> None:
    def processor(tokens: Any, scores: Any) -> Any:
        if len(tokens) > 4:
            raise KeyError("mine")
        return scores

    with LLM(llama, cache_bytes=1 << 24, speculate=str(llama)) as quick:
        want = quick.generate("the cat", max_tokens=6, **GREEDY).text
        with pytest.raises(RequestFailed, match="mine"):
            quick.generate("the cat", processors=[processor], **GREEDY)
        assert quick.generate("the cat", max_tokens=6, **GREEDY).text == want


def test_a_log_on_disk_is_let_go_of(llama: Path, tmp_path: Path) -> None:
    prompt = [7, 8, 9] * 50
    for _ in range(2):
        with LLM(llama, cache_bytes=1 << 22, disk=tmp_path / "log", host_bytes=1 << 20) as one:
            one.generate(prompt, max_tokens=2)


@pytest.mark.parametrize("name", ["page_size", "sequences", "max_length", "step_tokens"])
def test_bad_settings_are_named(llama: Path, name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} is"):
        LLM(llama, **{name: 0 if name != "max_length" else -3})
