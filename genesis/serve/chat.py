"""`/v1/chat/completions`.

An endpoint is an asynchronous generator of what it sends: one object, or with `stream` many. What
it raises before the first is the answer's status.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from genesis.llm import LLM
from genesis.llm.engine import TokenLogprobs
from genesis.serve.answers import (
    AnswerPiece,
    Answers,
    Asked,
    Wanted,
    aside,
    ask,
    check_bias,
    checked_schema,
    constraint_of,
    prompt_of,
    room,
)
from genesis.serve.errors import ApiError
from genesis.serve.model_pool import Models, ServedModel
from genesis.serve.request_body import RequestBody, params_of, sampling

Json = dict[str, Any]
_ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_TOOL_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


# ---- what is said


def message_of(message: RequestBody) -> Json:
    """A message as templates take it: its content a text, arguments of calls objects."""
    role = message.text("role", None, _ROLES)
    if role is None:
        raise message.wrong("role", f"one of {', '.join(_ROLES)}")
    found: Json = {"role": "system" if role == "developer" else role}
    found["content"] = _content(message)
    for name in ("name", "tool_call_id", "reasoning_content", "reasoning"):
        if (value := message.text(name)) is not None:
            found[name] = value
    if calls := message.tables("tool_calls", 128):
        found["tool_calls"] = [_call(call) for call in calls]
    return found


def _content(message: RequestBody) -> str:
    content = message.raw("content")
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise message.wrong("content", "a text, or a list of parts")
    texts = []
    for part in message.tables("content", 1024):
        if part.text("type", "text") not in ("text", "input_text", "output_text", "refusal"):
            raise part.wrong("type", "text, which is all that models here read")
        texts.append(part.text("text", ""))
    return "".join(texts)


def _call(call: RequestBody) -> Json:
    function = call.table("function")
    if function is None:
        raise call.wrong("function", "an object with name and arguments")
    arguments = function.raw("arguments")
    if isinstance(arguments, str):
        with suppress(ValueError, RecursionError):  # what a model wrote is shown to it again
            arguments = json.loads(arguments)
    return {
        "id": call.text("id", ""),
        "type": "function",
        "function": {"name": function.text("name", ""), "arguments": arguments},
    }


@dataclass
class Tools:
    """The tools of a call: as templates see them, their schemas, and whether one must be called."""

    shown: list[Json] = field(default_factory=list)
    schemas: dict[str, Json] = field(default_factory=dict)
    must: dict[str, Json] | None = None
    many: bool = True


def tools_of(body: RequestBody, asked: Asked, flat: bool = False) -> Tools:
    """The tools that a call brings; `flat` if names are not inside of "function"."""
    found = Tools(many=body.flag("parallel_tool_calls", True))
    for tool in body.tables("tools", asked.caps.tools):
        if tool.text("type", "function") != "function":
            raise tool.wrong("type", "function, the only kind of tools here")
        function = tool if flat else tool.table("function")
        name = None if function is None else function.text("name")
        if function is None or name is None or not _TOOL_NAME.fullmatch(name):
            raise tool.wrong("function", "a function with a name of letters, digits, _, - and .")
        schema = function.raw("parameters") or {"type": "object", "properties": {}}
        found.schemas[name] = checked_schema(schema, asked.caps, "tools")
        parts, required = schema.get("properties", {}), schema.get("required") or []
        objects = isinstance(parts, dict) and all(isinstance(p, dict) for p in parts.values())
        lists = [required, *(p.get("enum") or [] for p in parts.values())] if objects else [None]
        if not all(isinstance(x, list) for x in lists):
            meaning = "a schema whose properties are objects, and required and enum lists"
            raise function.wrong("parameters", meaning)
        about = {"name": name, "description": function.text("description", "")}
        found.shown.append({"type": "function", "function": {**about, "parameters": schema}})
    choice = body.raw("tool_choice")
    if isinstance(choice, dict):
        holder = RequestBody(choice, "tool_choice.")
        named = (holder.table("function") or holder).text("name")
        if named not in found.schemas:
            raise body.wrong("tool_choice", "a function that is among the tools")
        found.must, found.many = {named: found.schemas[named]}, False
    elif choice is not None:
        choice = body.text("tool_choice", None, ("none", "auto", "required"))
        if choice == "required" and not found.schemas:
            raise body.wrong("tool_choice", "to be had without tools")
        found.must = found.schemas if choice == "required" else None
        found = Tools() if choice == "none" else found
    return found


def schema_of(format: RequestBody | None, asked: Asked, flat: bool = False) -> Json | None:
    """The schema that an answer must follow."""
    if format is None:
        return None
    kind = format.text("type", "text", ("text", "json_object", "json_schema"))
    if kind == "text":
        return None
    if kind == "json_object":
        return {"type": "object"}
    holder = format if flat else format.table("json_schema")
    schema = None if holder is None else holder.raw("schema")
    if schema is None:
        raise format.wrong("json_schema", "an object with a schema")
    return checked_schema(schema, asked.caps, "response_format")


async def conversation(
    asked: Asked, body: RequestBody, model: ServedModel, adapter: str | None, messages: list[Json],
    tools: Tools, schema: Json | None, most: int | None, logprobs: int | None,
) -> Wanted:  # fmt: skip
    """A conversation as what is wanted of a model."""
    llm = generating(model)
    more = body.raw("chat_template_kwargs") or {}
    if not isinstance(more, dict) or more.keys() & {"self", "messages", "tools"}:
        raise body.wrong("chat_template_kwargs", "an object of other names")
    render = partial(llm.template.render, messages, tools=tools.shown or None, **more)
    text = await aside(render, lane=model.rendering)
    tokens = await aside(prompt_of, llm, text, True)
    format = model.format
    thinking = format.think is not None and text.rstrip().endswith(format.think[0])
    fields = sampling(body, llm.defaults, room(llm, tokens, most), asked.caps.n)
    special = {llm.tokenizer.id(m) for m in (*format.markers, "<|channel|>")}
    hidden = bool(special & llm.tokenizer.special_ids)
    params = params_of({**fields, "logprobs": logprobs, "skip_special_tokens": not hidden})
    check_bias(llm, params)
    constraint = await constraint_of(llm, model, schema, tools.must, tools.many, thinking)
    schemas = tools.schemas or None
    plain = not schemas and format.think is None and format.style != "harmony"
    return Wanted(model, adapter, tokens, params, constraint, schemas, plain, thinking)


def generating(model: ServedModel) -> LLM:
    """The LLM of a model that writes texts."""
    assert model.llm is not None
    if not model.llm.generates:
        text = f"model {model.name} embeds texts, it does not generate any"
        raise ApiError(400, text, param="model")
    return model.llm


# ---- what is answered


@dataclass
class ChatMessage:
    """An answer, put together."""

    content: str = ""
    reasoning: str = ""
    calls: list[list[str]] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    reason: str | None = None

    def add(self, piece: AnswerPiece) -> None:
        """Another piece of it."""
        for kind, text, call in piece.deltas:
            if kind == "content":
                self.content += text
            elif kind == "reasoning":
                self.reasoning += text
            elif kind == "call":
                self.calls.append([text, ""])
            else:
                self.calls[call][1] += text
        self.logprobs += piece.logprobs
        self.reason = piece.reason or self.reason


async def together(answers: Answers) -> list[ChatMessage]:
    """All answers, when they are complete."""
    found = [ChatMessage() for _ in range(answers.wanted.params.n)]
    async with aclosing(answers.__aiter__()) as pieces:  # type: ignore[type-var]
        async for piece in pieces:
            found[piece.index].add(piece)
    return found


def token_row(llm: LLM, token: int, logprob: float) -> Json:
    """A token with its text."""
    contents = llm.tokenizer.token_bytes(token)
    text = contents.decode("utf-8", "replace")
    return {"token": text, "logprob": max(logprob, -9999.0), "bytes": list(contents)}


def chat_logprobs(llm: LLM, noted: Sequence[TokenLogprobs]) -> Json | None:
    """What the model thought of tokens."""
    if not noted:
        return None
    rows = []
    for n in noted:
        top = [token_row(llm, token, value) for token, value in n.top.items()]
        rows.append({**token_row(llm, n.token, n.logprob), "top_logprobs": top})
    return {"content": rows, "refusal": None}


async def chat(asked: Asked, body: RequestBody, models: Models) -> AsyncIterator[Json]:
    """`/v1/chat/completions`."""
    messages = [message_of(m) for m in body.tables("messages", asked.caps.messages)]
    if not messages:
        raise body.wrong("messages", "a list with a message at least")
    tools, schema = tools_of(body, asked), schema_of(body.table("response_format"), asked)
    most = body.integer("max_completion_tokens", body.integer("max_tokens", None, 1), 1)
    top = body.integer("top_logprobs", 0, 0, asked.caps.logprobs)
    logprobs = top if body.flag("logprobs") else None
    stream, usage = body.flag("stream"), wants_usage(body)
    async with models.use(body.text("model")) as (model, adapter):
        wanted = await conversation(
            asked, body, model, adapter, messages, tools, schema, most, logprobs
        )
        answers = await ask(asked, body, wanted)
        head = head_of("chat.completion", asked, body.text("model") or model.name)
        if stream:
            async with aclosing(_chunks(answers, head, usage)) as chunks:  # type: ignore[type-var]
                async for chunk in chunks:
                    yield chunk
        else:
            found = await together(answers)
            choices = [_choice(answers, k, m) for k, m in enumerate(found)]
            yield {**head, "choices": choices, "usage": answers.usage()}


def head_of(kind: str, asked: Asked, model: str) -> Json:
    """What every object of an answer begins with."""
    return {"id": asked.id, "object": kind, "created": int(time.time()), "model": model}


def wants_usage(body: RequestBody) -> bool:
    """Whether a stream ends with its usage."""
    options = body.table("stream_options")
    return options is not None and options.flag("include_usage")


def _choice(answers: Answers, index: int, m: ChatMessage) -> Json:
    said: Json = {"role": "assistant", "content": m.content or (None if m.calls else "")}
    if m.reasoning:
        said["reasoning_content"] = m.reasoning
    if m.calls:
        said["tool_calls"] = [
            _tool_call(answers, index, k, name, arguments)
            for k, (name, arguments) in enumerate(m.calls)
        ]
    llm = answers.wanted.model.llm
    assert llm is not None
    noted = chat_logprobs(llm, m.logprobs)
    return {"index": index, "message": said, "finish_reason": m.reason, "logprobs": noted}


def _tool_call(answers: Answers, index: int, call: int, name: str, arguments: str) -> Json:
    function = {"name": name, "arguments": arguments}
    return {"id": answers.call_id(index, call), "type": "function", "function": function}


async def _chunks(answers: Answers, head: Json, usage: bool) -> AsyncIterator[Json]:
    """A chat as it is written."""
    head = {**head, "object": "chat.completion.chunk"}
    llm = answers.wanted.model.llm
    assert llm is not None

    def chunk(index: int, delta: Json, reason: str | None = None, noted: Any = None) -> Json:
        choice = {"index": index, "delta": delta, "finish_reason": reason, "logprobs": noted}
        return {**head, "choices": [choice], **({"usage": None} if usage else {})}

    begun: set[int] = set()
    async with aclosing(answers.__aiter__()) as pieces:  # type: ignore[type-var]
        async for piece in pieces:
            index = piece.index
            if index not in begun:
                begun.add(index)
                yield chunk(index, {"role": "assistant", "content": ""})
            noted = chat_logprobs(llm, piece.logprobs)
            deltas = [_delta(answers, index, *delta) for delta in piece.deltas]
            for delta in deltas or ([{"content": ""}] if noted else []):
                yield chunk(index, delta, None, noted)
                noted = None
            if piece.reason is not None:
                yield chunk(index, {}, piece.reason)
    if usage:
        yield {**head, "choices": [], "usage": answers.usage()}


def _delta(answers: Answers, index: int, kind: str, text: str, call: int) -> Json:
    if kind == "content":
        return {"content": text}
    if kind == "reasoning":
        return {"reasoning_content": text}
    if kind == "arguments":
        return {"tool_calls": [{"index": call, "function": {"arguments": text}}]}
    return {"tool_calls": [{"index": call, **_tool_call(answers, index, call, text, "")}]}


__all__ = [
    "Json", "ChatMessage", "chat", "conversation", "generating", "head_of", "schema_of", "together",
    "token_row", "tools_of", "wants_usage",
]  # fmt: skip
