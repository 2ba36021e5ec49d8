"""`/v1/responses`: text and tools, without anything kept between calls."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from genesis.serve.answers import Answers, Asked, ask
from genesis.serve.chat import Json, conversation, message_of, schema_of, tools_of
from genesis.serve.model_pool import Models
from genesis.serve.request_body import RequestBody


def _messages(body: RequestBody, asked: Asked) -> list[Json]:
    """The conversation that an input is."""
    found: list[Json] = []
    if (instructions := body.text("instructions")) is not None:
        found.append({"role": "system", "content": instructions})
    given = body.raw("input")
    if isinstance(given, str):
        return [*found, {"role": "user", "content": given}]
    for item in body.tables("input", asked.caps.messages):
        kind = item.text("type", "message")
        if kind == "message":
            found.append(message_of(item))
        elif kind == "function_call":
            call = {"name": item.text("name", ""), "arguments": item.raw("arguments")}
            table = {"id": item.text("call_id", ""), "function": call}
            said = {"role": "assistant", "tool_calls": [table]}
            found.append(message_of(RequestBody(said, "input.")))
        elif kind == "function_call_output":
            id, output = item.text("call_id", ""), item.text("output", "")
            found.append({"role": "tool", "tool_call_id": id, "content": output})
        elif kind != "reasoning":
            raise item.wrong("type", "message, function_call, function_call_output or reasoning")
    if not found:
        raise body.wrong("input", "a text, or a list with an item at least")
    return found


async def responses(asked: Asked, body: RequestBody, models: Models) -> AsyncIterator[Json]:
    """`/v1/responses`."""
    body.refuse(previous_response_id=None, background=False)
    body.raw("store")  # whatever it says, nothing is kept
    messages, tools = _messages(body, asked), tools_of(body, asked, flat=True)
    text = body.table("text")
    schema = schema_of(None if text is None else text.table("format"), asked, flat=True)
    most, stream = body.integer("max_output_tokens", None, 1), body.flag("stream")
    async with models.use(body.text("model")) as (model, adapter):
        wanted = await conversation(
            asked, body, model, adapter, messages, tools, schema, most, None
        )
        answers = await ask(asked, body, wanted)
        head = {
            "id": asked.id, "object": "response", "created_at": int(time.time()), "error": None,
            "model": body.text("model") or model.name, "incomplete_details": None,
            "parallel_tool_calls": tools.many, "tool_choice": body.raw("tool_choice") or "auto",
            "tools": body.raw("tools") or [], "instructions": body.text("instructions"),
            "temperature": wanted.params.temperature, "top_p": wanted.params.top_p, "metadata": {},
        }  # fmt: skip
        last: Json = {}
        async with aclosing(_events(answers, head)) as events:  # type: ignore[type-var]
            async for last in events:
                if stream:
                    yield last
        if not stream:
            yield last["response"]


class _Items:
    """The output as it grows: items, of which the last is open, and events that say so."""

    def __init__(self, id: str, answers: Answers) -> None:
        self._id, self._answers = id, answers
        self.output: list[Json] = []
        self.open = ""  # the kind of the last item
        self._number = 0

    def event(self, kind: str, **more: Any) -> Json:
        """An event with its number."""
        self._number += 1
        return {"type": f"response.{kind}", "sequence_number": self._number - 1, **more}

    def begin(self, kind: str, text: str) -> list[Json]:
        """Another item."""
        index, id = len(self.output), f"{kind}_{self._id}_{len(self.output)}"
        item: Json = {"id": id, "type": kind, "status": "in_progress"}
        if kind == "function_call":
            calls = sum(i["type"] == kind for i in self.output)
            item |= {"call_id": self._answers.call_id(0, calls), "name": text, "arguments": ""}
        elif kind == "reasoning":
            item |= {"summary": [], "content": [{"type": "reasoning_text", "text": ""}]}
        else:
            item |= {"role": "assistant", "content": [_text_part()]}
        self.open = kind
        self.output.append(item)
        shown = {**item, "content": []} if kind == "message" else item
        found = [self.event("output_item.added", output_index=index, item=shown)]
        if kind == "message":
            found.append(self.event("content_part.added", **self._at(), part=_text_part()))
        return found

    def _at(self) -> Json:
        item = self.output[-1]
        at = {"item_id": item["id"], "output_index": len(self.output) - 1}
        return at if item["type"] == "function_call" else {**at, "content_index": 0}

    def add(self, text: str) -> Json:
        """More of the open item."""
        item, kind = self.output[-1], self.open
        more: Json = {"logprobs": []} if kind == "message" else {}
        if kind == "function_call":
            item["arguments"] += text
            name = "function_call_arguments.delta"
        else:
            item["content"][0]["text"] += text
            name = "output_text.delta" if kind == "message" else "reasoning_text.delta"
        return self.event(name, **self._at(), delta=text, **more)

    def end(self) -> list[Json]:
        """The open item is complete."""
        if not self.open:
            return []
        item, kind, self.open = self.output[-1], self.open, ""
        item["status"] = "completed"
        at, index = self._at(), len(self.output) - 1
        found = []
        if kind == "function_call":
            arguments = {"name": item["name"], "arguments": item["arguments"]}
            found.append(self.event("function_call_arguments.done", **at, **arguments))
        else:
            part = item["content"][0]
            name = "output_text.done" if kind == "message" else "reasoning_text.done"
            more: Json = {"logprobs": []} if kind == "message" else {}
            found.append(self.event(name, **at, text=part["text"], **more))
            if kind == "message":
                found.append(self.event("content_part.done", **at, part=part))
        return [*found, self.event("output_item.done", output_index=index, item=item)]


def _text_part() -> Json:
    return {"type": "output_text", "text": "", "annotations": [], "logprobs": []}


_ITEMS = {"content": "message", "reasoning": "reasoning", "call": "function_call"}


async def _events(answers: Answers, head: Json) -> AsyncIterator[Json]:
    items = _Items(head["id"], answers)
    begun = {**head, "status": "in_progress", "output": []}
    reason = "stop"
    first = True
    async with aclosing(answers.__aiter__()) as pieces:  # type: ignore[type-var]
        async for piece in pieces:
            if first:
                yield items.event("created", response=begun)
                yield items.event("in_progress", response=begun)
                first = False
            for kind, text, _ in piece.deltas:
                if kind == "call" or (kind != "arguments" and items.open != _ITEMS[kind]):
                    for event in [*items.end(), *items.begin(_ITEMS[kind], text)]:
                        yield event
                if kind != "call":
                    yield items.add(text)
            reason = piece.reason or reason
    for event in items.end():
        yield event
    usage = answers.usage()
    cut = reason == "length"
    whole = {
        **head, "status": "incomplete" if cut else "completed", "output": items.output,
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "usage": {
            "input_tokens": usage["prompt_tokens"], "output_tokens": usage["completion_tokens"],
            "total_tokens": usage["total_tokens"],
            "input_tokens_details": usage["prompt_tokens_details"],
            "output_tokens_details": usage["completion_tokens_details"],
        },
    }  # fmt: skip
    yield items.event("incomplete" if cut else "completed", response=whole)


__all__ = ["responses"]
