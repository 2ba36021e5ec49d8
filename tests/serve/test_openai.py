"""The official client against the server: every call, streamed and not, with equal answers."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.serve.running import HTTP, Running

MESSAGES: Any = [{"role": "user", "content": "the cat sat on the mat"}]
HOW: dict[str, Any] = {"model": "tiny", "messages": MESSAGES, "max_completion_tokens": 24}
CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo"]}, "days": {"type": "integer", "maximum": 9,
                                                                "minimum": 0}},
    "required": ["city", "days"],
    "additionalProperties": False,
}  # fmt: skip
WEATHER: Any = {"type": "function", "function": {"name": "weather", "parameters": CITY}}


def test_a_stream_adds_up_to_the_whole(client: OpenAI) -> None:
    for seed in range(4):
        whole = client.chat.completions.create(**HOW, seed=seed, n=2)
        texts = ["", ""]
        reasons: list[Any] = [None, None]
        usage = None
        stream = client.chat.completions.create(
            **HOW, seed=seed, n=2, stream=True, stream_options={"include_usage": True}
        )
        for chunk in stream:
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
                reasons[choice.index] = choice.finish_reason or reasons[choice.index]
            usage = chunk.usage or usage
        assert texts == [c.message.content for c in whole.choices]
        assert reasons == [c.finish_reason for c in whole.choices]
        assert usage is not None and whole.usage is not None
        assert usage.completion_tokens == whole.usage.completion_tokens > 0


def test_stop_strings_across_chunks(client: OpenAI) -> None:
    text = client.chat.completions.create(**HOW, seed=5).choices[0].message.content or ""
    stop = text[5:9]
    stream = client.chat.completions.create(**HOW, seed=5, stop=[stop], stream=True)
    found = "".join(c.choices[0].delta.content or "" for c in stream)
    assert found == text[: text.index(stop)]


def test_logprobs_and_bias(client: OpenAI) -> None:
    found = client.chat.completions.create(
        **HOW, temperature=0, logprobs=True, top_logprobs=3, logit_bias={"70": 100}
    )
    noted = found.choices[0].logprobs
    assert noted is not None and noted.content is not None
    assert len(noted.content) == 24 and len(noted.content[0].top_logprobs) == 3
    assert len({row.token for row in noted.content}) == 1
    legacy = client.completions.create(
        model="tiny", prompt="the cat", max_tokens=5, logprobs=2, extra_body={"ignore_eos": True}
    )
    about = legacy.choices[0].logprobs
    assert about is not None and len(about.tokens or []) == 5
    assert about.text_offset == sorted(about.text_offset or [])


def test_completions_of_texts_and_tokens(client: OpenAI, running: Running) -> None:
    tokens = HTTP.post(f"{running.url}/tokenize", json={"prompt": "the cat"}).json()
    how: Any = {"model": "tiny", "max_tokens": 12, "seed": 3}
    text = client.completions.create(prompt="the cat", **how).choices[0].text
    assert client.completions.create(prompt=tokens["tokens"], **how).choices[0].text == text
    pieces = client.completions.create(prompt="the cat", stream=True, **how)
    assert "".join(c.choices[0].text for c in pieces) == text
    back = HTTP.post(f"{running.url}/detokenize", json={"tokens": tokens["tokens"]}).json()
    assert back["prompt"] == "the cat"


def test_completions_of_several_prompts(client: OpenAI, running: Running) -> None:
    prompts = ["the cat", "on the mat and then", "sat"]
    how: Any = {"model": "tiny", "max_tokens": 9, "seed": 3, "n": 2}
    alone = [client.completions.create(prompt=p, **how) for p in prompts]
    want = [choice.text for found in alone for choice in found.choices]
    whole = client.completions.create(prompt=prompts, **how)
    assert [(c.index, c.text) for c in whole.choices] == list(enumerate(want))
    assert whole.usage is not None
    assert whole.usage.total_tokens == sum(f.usage.total_tokens for f in alone if f.usage)
    texts = [""] * 6
    for chunk in client.completions.create(prompt=prompts, stream=True, **how):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == want
    with pytest.raises(openai.BadRequestError, match="do not fit the context"):
        client.completions.create(prompt=["the", [5] * 2000], **how)
    while len(running.engine):  # the first prompt goes with the second
        time.sleep(0.01)


def test_an_echo_tells_what_the_model_thought_of_the_prompt(client: OpenAI) -> None:
    how: Any = {"model": "tiny", "prompt": "the cat sat", "logprobs": 2, "echo": True, "seed": 1}
    told = client.completions.create(max_tokens=0, **how).choices[0]
    assert told.text == "the cat sat" and told.logprobs is not None
    longer = client.completions.create(max_tokens=3, extra_body={"ignore_eos": True}, **how)
    more = longer.choices[0].logprobs
    assert longer.choices[0].text.startswith("the cat sat") and more is not None
    values, tokens = told.logprobs.token_logprobs or [], told.logprobs.tokens or []
    assert values[0] is None and all(v is not None and v < 0 for v in values[1:])
    assert (more.token_logprobs or [])[: len(values)] == values
    assert len(more.tokens or []) == len(tokens) + 3
    assert more.text_offset == sorted(more.text_offset or [])


def test_a_schema_is_followed(client: OpenAI) -> None:
    format: Any = {"type": "json_schema", "json_schema": {"name": "c", "schema": CITY}}
    for seed in range(5):
        found = client.chat.completions.create(
            model="tiny", messages=MESSAGES, response_format=format, seed=seed
        )
        answer = json.loads(found.choices[0].message.content or "")
        assert answer["city"] in ("Rome", "Oslo") and 0 <= answer["days"] <= 9


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "weather"}}]
)
def test_tools_that_must_be_called(client: OpenAI, choice: Any) -> None:
    how: Any = {"model": "tiny", "messages": MESSAGES, "tools": [WEATHER], "tool_choice": choice}
    for seed in range(3):
        whole = client.chat.completions.create(**how, seed=seed).choices[0]
        assert whole.finish_reason == "tool_calls" and whole.message.content is None
        calls: dict[int, list[Any]] = {}
        for chunk in client.chat.completions.create(**how, seed=seed, stream=True):
            for call in chunk.choices[0].delta.tool_calls or []:
                assert call.function is not None
                known = calls.setdefault(call.index, [call.id, call.function.name, ""])
                known[2] += call.function.arguments or ""
        want = [
            [c.id, c.function.name, c.function.arguments] for c in whole.message.tool_calls or []
        ]
        assert [calls[k] for k in sorted(calls)] == want
        for _, name, arguments in want:
            assert name == "weather" and json.loads(arguments)["city"] in ("Rome", "Oslo")


def test_a_conversation_with_calls_goes_on(client: OpenAI) -> None:
    called = client.chat.completions.create(
        model="tiny", messages=MESSAGES, tools=[WEATHER], tool_choice="required", seed=1
    ).choices[0]
    call = (called.message.tool_calls or [])[0]
    more: Any = [*MESSAGES, called.message.model_dump(exclude_none=True),
                 {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]  # fmt: skip
    found = client.chat.completions.create(
        model="tiny", messages=more, tools=[WEATHER], max_completion_tokens=4,
        extra_body={"ignore_eos": True},
    )  # fmt: skip
    assert found.usage is not None and found.usage.completion_tokens == 4


def test_responses(client: OpenAI) -> None:
    how: Any = {"model": "tiny", "input": "the cat", "max_output_tokens": 12,
                "extra_body": {"seed": 3, "ignore_eos": True}}  # fmt: skip
    whole = client.responses.create(**how)
    assert whole.status == "incomplete" and whole.usage is not None
    with client.responses.stream(**how) as stream:
        text = "".join(e.delta for e in stream if e.type == "response.output_text.delta")
    assert text == whole.output_text
    tool: Any = {"type": "function", "name": "weather", "parameters": CITY, "strict": True}
    called = client.responses.create(
        model="tiny", input=MESSAGES, tools=[tool], tool_choice="required", extra_body={"seed": 3}
    )
    assert called.status == "completed"
    assert {item.type for item in called.output} == {"function_call"}
    events = list(
        client.responses.create(
            model="tiny",
            input=MESSAGES,
            tools=[tool],
            tool_choice="required",
            stream=True,
            extra_body={"seed": 3},
        )
    )
    assert [e.sequence_number for e in events] == list(range(len(events)))
    assert events[-1].type == "response.completed"


def test_what_is_listed(client: OpenAI) -> None:
    assert [m.id for m in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny") == client.models.list().data[0]
    with pytest.raises(openai.NotFoundError, match="there are tiny"):
        client.models.retrieve("org/large")
    with pytest.raises(openai.NotFoundError, match="there are tiny"):
        client.chat.completions.create(model="other", messages=MESSAGES)


def test_cached_tokens_are_told(client: OpenAI) -> None:
    long: Any = [{"role": "user", "content": "the cat sat on the mat and then " * 12}]
    found = [
        client.chat.completions.create(model="tiny", messages=long, max_completion_tokens=2).usage
        for _ in range(2)
    ]
    cached = [u.prompt_tokens_details.cached_tokens for u in found if u and u.prompt_tokens_details]
    assert cached[0] == 0 and (cached[1] or 0) >= 64


def _valid(client: OpenAI, seed: int) -> None:
    tools: Any = {"tools": [WEATHER], "tool_choice": "required"}
    format: Any = {"type": "json_schema", "json_schema": {"name": "c", "schema": CITY}}
    how: Any = tools if seed % 2 else {"response_format": format}
    found = client.chat.completions.create(
        model="tiny", messages=MESSAGES, seed=seed, temperature=1, **how
    ).choices[0]
    calls = [c.function.arguments for c in found.message.tool_calls or []]
    for text in calls if seed % 2 else [found.message.content]:
        answer = json.loads(text or "")
        assert answer.keys() == {"city", "days"} and answer["city"] in ("Rome", "Oslo")
        assert type(answer["days"]) is int and 0 <= answer["days"] <= 9
    assert found.finish_reason == ("tool_calls" if seed % 2 else "stop")


@pytest.mark.slow
def test_all_of_two_thousand_are_valid(client: OpenAI) -> None:
    with ThreadPoolExecutor(16) as pool:
        for _ in pool.map(lambda seed: _valid(client, seed), range(2000)):
            pass


def test_text_is_filled_in(
    client: OpenAI, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(openai.BadRequestError, match="suffix: the model was not taught"):
        client.completions.create(model="tiny", prompt="the cat", suffix=" mat")
    llm = running.server.models.models["tiny"].llm
    assert llm is not None
    between = [3, *llm.encode("the cat"), 4, *llm.encode(" mat")]
    monkeypatch.setattr(llm.tokenizer, "fill_in", lambda before, after: between)
    filled = client.completions.create(model="tiny", prompt="the cat", suffix=" mat", seed=1)
    want = client.completions.create(model="tiny", prompt=between, seed=1)
    assert filled.choices == want.choices and filled.usage == want.usage
    with pytest.raises(openai.BadRequestError, match="suffix"):
        client.completions.create(model="tiny", prompt=[1, 2], suffix=" mat")
