"""What a model writes, as content, reasoning and calls of tools: while it writes.

Models were taught a handful of formats for calls; a model's chat template shows which. A `Parser`
takes the text of an answer piece by piece and gives what is certain: names as soon as they are
complete, arguments as they come. `grammar` is the same format as a grammar, by which nothing but a
valid call can be written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from genesis.llm.tokenizer import Tokenizer

Schemas = Mapping[str, Mapping[str, Any]]  # of the arguments of tools, by name


class Delta(NamedTuple):
    """A piece of an answer: "content", "reasoning", the name of a "call", or its "arguments"."""

    kind: str
    text: str
    call: int = 0


@dataclass(frozen=True)
class CallFormat:
    """How calls are written: between `begin` and `end`, in a `style`."""

    style: str  # "json", "list", "xml" or "harmony"
    begin: str = ""
    end: str = ""
    think: tuple[str, str] | None = None

    @property
    def markers(self) -> list[str]:
        """Texts that mean something."""
        return [m for m in (self.begin, self.end, *(self.think or ())) if m]


HARMONY = ("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>",
           "<|return|>")  # fmt: skip


def format_of(template: str) -> CallFormat:
    """The format that a chat template shows.

    >>> format_of("{{ '[TOOL_CALLS]' }}").style
    'list'
    """
    think = ("<think>", "</think>") if "think>" in template else None
    if "<|channel|>" in template:
        return CallFormat("harmony")
    if "[TOOL_CALLS]" in template:
        pair = ("[THINK]", "[/THINK]") if "[THINK]" in template else think
        return CallFormat("list", "[TOOL_CALLS]", think=pair)
    if "<function=" in template:
        return CallFormat("xml", "<tool_call>", "</tool_call>", think)
    if "<|python_tag|>" in template or '"parameters":' in template.replace("'", '"'):
        return CallFormat("json", "<|python_tag|>", "", think)
    return CallFormat("json", "<tool_call>", "</tool_call>", think)


_NAME = r'"((?:[^"\\]|\\.)*)"'
_HEAD = re.compile(r'\s*\{\s*(?:"type"\s*:\s*"function"\s*,\s*)?"name"\s*:\s*' + _NAME
                   + r'\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)')  # fmt: skip
_FUNCTION = re.compile(r"\s*<function=([^>\n]+)>\s*")
_PARAMETER = re.compile(r"\s*<parameter=([^>\n]+)>\n?(.*?)\n?</parameter>\s*", re.DOTALL)


def cut(text: str, markers: Sequence[str]) -> tuple[str, str, str]:
    """Text before the first marker, the marker, the rest; or what may begin one as the rest.

    >>> cut("a<b>c", ["<b>"]), cut("a<b", ["<b>"])
    (('a', '<b>', 'c'), ('a', '', '<b'))
    """
    found = min(((at, m) for m in markers if (at := text.find(m)) >= 0), default=None)
    if found is not None:
        at, marker = found
        return text[:at], marker, text[at + len(marker) :]
    longest = max(map(len, markers), default=1)
    for size in range(min(len(text), longest - 1), 0, -1):
        if any(marker.startswith(text[-size:]) for marker in markers):
            return text[:-size], "", text[-size:]
    return text, "", ""


class _Value:
    """Finds where a JSON object ends."""

    def __init__(self) -> None:
        self._depth, self._string, self._escaped = 0, False, False

    def end(self, text: str) -> int | None:
        """How much of the text belongs to the object, if it ends in it."""
        for at, c in enumerate(text):
            if self._string:
                if self._escaped:
                    self._escaped = False
                elif c == "\\":
                    self._escaped = True
                elif c == '"':
                    self._string = False
            elif c == '"':
                self._string = True
            elif c in "{[":
                self._depth += 1
            elif c in "}]":
                self._depth -= 1
                if self._depth == 0:
                    return at + 1
        return None


class Parser:
    """The text of one answer, in pieces; `thinking` says that it begins with reasoning."""

    def __init__(self, format: CallFormat, schemas: Schemas | None, thinking: bool = False) -> None:
        self._format, self._schemas = format, schemas
        self.calls = 0
        self.thinking = thinking
        self._rest = ""
        self._out: list[Delta] = []
        self._value = _Value()
        self._arguments = 0
        self._kind = "content"
        self._name = ""  # of the call
        self._within = False  # behind reasoning, or a call
        self._state: Callable[[], bool] = self._start
        if format.style == "harmony":
            self._state = self._header
        elif thinking:
            self._state = self._reasoning

    def push(self, text: str) -> list[Delta]:
        """What is certain after some more text."""
        self._rest += text
        while self._state():
            pass
        out, self._out = self._out, []
        return out

    def finish(self) -> list[Delta]:
        """What is left when nothing follows: a call that is not complete is text."""
        if self._rest:
            if self._state == self._head:
                self._whole(self._rest)
            elif self._state not in (self._value_state, self._tail, self._parameters):
                self._say("reasoning" if self.thinking else "content", self._rest)
        if self._state == self._parameters:
            self._say("arguments", "}")
        self._rest = ""
        out, self._out = self._out, []
        return out

    # ---- states: each takes what it can from the rest; True if another may go on

    def _say(self, kind: str, text: str) -> None:
        if text:
            self._out.append(Delta(kind, text, max(0, self.calls - 1)))

    def _start(self) -> bool:
        """At the beginning some formats have a call without a sign."""
        bare = self._rest.lstrip()
        if self._within:  # space after reasoning and calls is nobody's
            self._rest = bare
        if not bare:
            return False
        unsigned = self._schemas is not None and self._format.style == "json"
        unsigned = unsigned and not self._format.end and bare[0] == "{"
        self._state = self._head if unsigned else self._content
        return True

    def _content(self) -> bool:
        f = self._format
        opening = [f.begin] if self._schemas is not None else []
        before, marker, self._rest = cut(self._rest, [*opening, *(f.think or ())[:1]])
        self._say("content", before)
        if not marker:
            return False
        self.thinking = marker != f.begin
        self._state = self._reasoning if self.thinking else self._head
        return True

    def _reasoning(self) -> bool:
        assert self._format.think is not None
        before, marker, self._rest = cut(self._rest, [self._format.think[1]])
        self._say("reasoning", before)
        if not marker:
            return False
        self.thinking, self._within = False, True
        self._state = self._start
        return True

    def _head(self) -> bool:
        """The beginning of a call, up to its arguments."""
        f = self._format
        if f.style == "xml":
            found = _FUNCTION.match(self._rest)
            if found:
                self._call(found[1])
                self._say("arguments", "{")
                self._state = self._parameters
        elif f.style == "list" and (
            found := re.match(r"\s*([\w.-]+)\[ARGS\](?=\s*\{)", self._rest)
        ):
            self._call(found[1])
            self._state = self._value_state
        else:
            self._rest = self._rest.lstrip().removeprefix("[") if f.style == "list" else self._rest
            found = _HEAD.match(self._rest)
            if found:
                self._call(json.loads(f'"{found[1]}"'))
                self._state = self._value_state
        if found:
            self._rest = self._rest[found.end() :]
            return True
        before, marker, after = cut(self._rest, [f.end] if f.end else [])
        if marker:
            self._rest, self._state = after, self._start
            self._whole(before)
            return True
        return False

    def _call(self, name: str) -> None:
        self.calls += 1
        self._arguments, self._within = 0, True
        self._value, self._name = _Value(), name
        self._say("call", name)

    def _whole(self, body: str) -> None:
        """A call whose parts come in another order, or no call."""
        try:
            found = json.loads(body)
            name, given = found["name"], found.get("arguments", found.get("parameters", {}))
            given = given if isinstance(given, str) else json.dumps(given)
            self._call(str(name))
            self._say("arguments", given)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            self._say("content", body)

    def _value_state(self) -> bool:
        """Arguments, as they come."""
        if not self._rest:
            return False
        end = self._value.end(self._rest)
        self._say("arguments", self._rest[:end])
        self._rest = "" if end is None else self._rest[end:]
        if end is not None:
            self._state = self._tail
        return end is not None

    def _parameters(self) -> bool:
        """The parameters of a call in XML, each when it is complete."""
        found = _PARAMETER.match(self._rest)
        if found:
            comma = ", " if self._arguments else ""
            self._arguments += 1
            value = self._typed(found[1], found[2])
            self._say("arguments", f"{comma}{json.dumps(found[1])}: {value}")
            self._rest = self._rest[found.end() :]
            return True
        if "</function>" in self._rest:
            self._say("arguments", "}")
            self._rest, self._state = self._rest.split("</function>", 1)[1], self._tail
            return True
        return False

    def _typed(self, name: str, text: str) -> str:
        """A parameter as JSON: a text, unless its schema says something else."""
        kind = (self._schemas or {}).get(self._name, {}).get("properties", {}).get(name, {})
        texts = kind.get("type") == "string" or any(
            isinstance(c, str) for c in kind.get("enum") or ()
        )
        if not texts:
            with suppress(ValueError, RecursionError):
                return json.dumps(json.loads(text))
        return json.dumps(text, ensure_ascii=False)

    def _tail(self) -> bool:
        """From the end of arguments to the next call, or back to content."""
        if self._format.end:
            _, marker, self._rest = cut(self._rest, [self._format.end])
            self._state = self._start if marker else self._tail
            return bool(marker)
        self._rest = self._rest.lstrip(" \n}")
        if not self._rest:
            return False
        again = self._rest[0] in ",;"
        self._rest = self._rest[1:] if self._rest[0] in ",;]" else self._rest
        self._state = self._head if again else self._start
        return True

    # ---- harmony: messages with a header each

    def _header(self) -> bool:
        header, marker, rest = cut(self._rest, ["<|message|>"])
        if not marker:
            return False
        self._rest = rest
        tool = re.search(r"to=functions\.([\w.-]+)", header)
        self.thinking = not tool and "analysis" in header
        self._kind = "reasoning" if self.thinking else "content"
        if tool:
            self._call(tool[1])
            self._kind = "arguments"
        self._state = self._message
        return True

    def _message(self) -> bool:
        before, marker, self._rest = cut(self._rest, HARMONY)
        self._say(self._kind, before)
        if marker:
            self._state, self.thinking = self._header, False
        return bool(marker)


# ---- the same as grammars


def grammar(
    format: CallFormat, schemas: Schemas, tokenizer: Tokenizer, many: bool, thinking: bool
) -> str:
    """A grammar in Lark's notation of at least one call."""
    rules = [f"call_{k}: {rule}" for k, rule in enumerate(_calls(format, schemas, tokenizer))]
    one = " | ".join(f"call_{k}" for k in range(len(rules)))
    repeat = "+" if many and format.style in ("json", "xml") and format.end else ""
    before = ""
    if thinking and format.think is not None:
        before = f"/[^<\\[]*/ {_literal(format.think[1], tokenizer)} "
    return "\n".join([f"start: {before}({one}){repeat}", *rules])


def answer_grammar(schema: Any, format: CallFormat, tokenizer: Tokenizer) -> str:
    """A grammar of JSON by a schema, after reasoning."""
    assert format.think is not None
    close = _literal(format.think[1], tokenizer)
    return f"start: /[^<\\[]*/ {close} {_json(schema)}"


def _literal(text: str, tokenizer: Tokenizer) -> str:
    """A text as a grammar has it: tokens that are no text are written as such."""
    token = tokenizer.id(text)
    return f"<[{token}]>" if token in tokenizer.special_ids else json.dumps(text)


def _json(schema: Any) -> str:
    plain = {**schema, "x-guidance": {"whitespace_flexible": False}}
    return f"%json {json.dumps(plain)}"


def _named(name: str, key: str, schema: Any) -> dict[str, Any]:
    properties = {"name": {"const": name}, key: {"type": "object", **schema}}
    return {"type": "object", "properties": properties, "required": ["name", key],
            "additionalProperties": False}  # fmt: skip


def _calls(format: CallFormat, schemas: Schemas, tokenizer: Tokenizer) -> list[str]:
    begin, end = (_literal(m, tokenizer) for m in (format.begin, format.end))
    if format.style == "harmony":
        channel, constrain, message = (_literal(HARMONY[k], tokenizer) for k in (1, 3, 2))
        return [
            f'{channel} "commentary to=functions.{name} " {constrain} "json" {message} '
            + _json({"type": "object", **schema})
            for name, schema in schemas.items()
        ]
    if format.style == "xml":
        return [f"{begin} {_xml(name, schema)} {end}" for name, schema in schemas.items()]
    if format.style == "list":
        calls = {"anyOf": [_named(name, "arguments", s) for name, s in schemas.items()]}
        return [f"{begin} {_json({'type': 'array', 'items': calls, 'minItems': 1, 'maxItems': 8})}"]
    if format.end:
        return [
            f'{begin} "\\n" {_json(_named(name, "arguments", schema))} "\\n" {end}'
            for name, schema in schemas.items()
        ]
    return [_json(_named(name, "parameters", schema)) for name, schema in schemas.items()]


def _xml(name: str, schema: Any) -> str:
    parts = [json.dumps(f"\n<function={name}>\n")]
    required = schema.get("required") or []
    for parameter, kind in schema.get("properties", {}).items():
        opening = json.dumps(f"<parameter={parameter}>\n")
        value = _xml_value(kind if isinstance(kind, dict) else {})
        part = f'{opening} {value} "\\n</parameter>\\n"'
        parts.append(part if parameter in required else f"({part})?")
    return " ".join([*parts, '"</function>\\n"'])


def _xml_value(kind: dict[str, Any]) -> str:
    """A value between tags: texts as they are, the rest as JSON."""
    choices = kind.get("enum")
    if choices and all(isinstance(c, str) for c in choices):
        return f"({' | '.join(map(json.dumps, choices))})"
    if kind.get("type") == "string":
        longest = kind.get("maxLength")
        return f"/[^<]{{0,{longest}}}/" if isinstance(longest, int) else "/[^<]*/"
    return _json(kind)


__all__ = ["Delta", "CallFormat", "Parser", "answer_grammar", "cut", "format_of", "grammar"]
