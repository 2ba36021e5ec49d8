"""Calls of tools in every format: whatever the pieces of a text are, they add up to the same."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from genesis.llm.structured import Grammars
from genesis.llm.tokenizer import Tokenizer
from genesis.serve.tool_calls import CallFormat, Delta, Parser, format_of, grammar

SCHEMAS: dict[str, dict[str, Any]] = {
    "get": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 3}, "n": {"type": "integer",
                       "minimum": 0, "maximum": 9}},
        "required": ["city", "n"],
        "additionalProperties": False,
    },
    "stop": {"type": "object", "properties": {}, "additionalProperties": False},
}  # fmt: skip
HERMES = CallFormat("json", "<tool_call>", "</tool_call>", ("<think>", "</think>"))
LLAMA = CallFormat("json", "<|python_tag|>")
MISTRAL = CallFormat("list", "[TOOL_CALLS]")
XML = CallFormat("xml", "<tool_call>", "</tool_call>")
HARMONY = CallFormat("harmony")
CALL = '{"name": "get", "arguments": {"city": "a}\\"b", "n": [2, {"x": "]"}]}}'

CASES: list[tuple[CallFormat, str, str, str, list[tuple[str, Any]]]] = [
    (HERMES, "plain <b>text</b>", "plain <b>text</b>", "", []),
    (HERMES, f"<think>so {{</think>\n\nyes <tool_call>\n{CALL}\n</tool_call>\n<tool_call>"
     '{"name": "stop", "arguments": {}}</tool_call>\n', "yes ", "so {",
     [("get", {"city": 'a}"b', "n": [2, {"x": "]"}]}), ("stop", {})]),
    (HERMES, '<tool_call>{"arguments": {"n": 1}, "name": "get"}</tool_call>', "", "",
     [("get", {"n": 1})]),
    (HERMES, "<tool_call>nonsense</tool_call> after", "nonsense after", "", []),
    (HERMES, '<tool_call>{"name": "get", "arg', '{"name": "get", "arg', "", []),
    (LLAMA, '{"name": "get", "parameters": {"city": "x"}}; {"name": "stop", "parameters": {}}', "",
     "", [("get", {"city": "x"}), ("stop", {})]),
    (LLAMA, '<|python_tag|>{"name": "get", "parameters": {}}', "", "", [("get", {})]),
    (LLAMA, '{"answer": 42}', '{"answer": 42}', "", []),
    (MISTRAL, '[TOOL_CALLS][{"name": "get", "arguments": {"n": 1}}, {"name": "stop", '
     '"arguments": {}}]', "", "", [("get", {"n": 1}), ("stop", {})]),
    (MISTRAL, 'ok[TOOL_CALLS]get[ARGS]{"n": 1}[TOOL_CALLS]stop[ARGS]{}', "ok", "",
     [("get", {"n": 1}), ("stop", {})]),
    (XML, "a<tool_call>\n<function=get>\n<parameter=city>\n12\n</parameter>\n<parameter=n>\n3\n"
     "</parameter>\n</function>\n</tool_call>", "a", "", [("get", {"city": "12", "n": 3})]),
    (XML, "<tool_call>\n<function=stop>\n</function>\n</tool_call>", "", "", [("stop", {})]),
    (HARMONY, "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary "
     'to=functions.get <|constrain|>json<|message|>{"n":1}<|call|>', "", "hm", [("get", {"n": 1})]),
    (HARMONY, "<|channel|>final<|message|>hello < there", "hello < there", "", []),
]  # fmt: skip


def together(deltas: list[Delta]) -> tuple[str, str, list[tuple[str, Any]]]:
    text = {"content": "", "reasoning": ""}
    calls: list[list[str]] = []
    for kind, piece, call in deltas:
        if kind == "call":
            calls.append([piece, ""])
        elif kind == "arguments":
            calls[call][1] += piece
        else:
            text[kind] += piece
    return text["content"], text["reasoning"], [(n, json.loads(a)) for n, a in calls]


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_pieces_add_up(case: Any) -> None:
    format, text, *want = case
    for seed in range(60):
        rng = random.Random(seed)
        parser, found, at = Parser(format, SCHEMAS), list[Delta](), 0
        while at < len(text):
            size = rng.choice([1, 1, 2, 3, 7, 50]) if seed else len(text)
            found += parser.push(text[at : at + size])
            at += size
        content, reasoning, calls = together(found + parser.finish())
        assert [content.rstrip("\n"), reasoning, calls] == want, seed


def test_arguments_come_before_their_call_ends() -> None:
    parser = Parser(HERMES, SCHEMAS)
    parser.push('<tool_call>{"name": "get", "arguments": {"city"')
    assert parser.push(': "Ro') == [Delta("arguments", ': "Ro')]


@pytest.mark.parametrize(
    ("template", "format"),
    [
        ("{{ '<tool_call>' }}<think>", HERMES),
        ("{{ '<|python_tag|>' }}", LLAMA),
        ("[TOOL_CALLS]", MISTRAL),
        ("<tool_call><function=", XML),
        ("<|start|><|channel|>", HARMONY),
    ],
)
def test_the_template_shows_the_format(template: str, format: CallFormat) -> None:
    assert format_of(template) == format


def _tokenizer() -> Tokenizer:
    from tokenizers import AddedToken, decoders, models, pre_tokenizers
    from tokenizers import Tokenizer as Library

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Library(models.BPE(vocab={c: k for k, c in enumerate(alphabet)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    names = ["</s>", "[TOOL_CALLS]", "<|channel|>", "<|message|>", "<|constrain|>", "<|call|>"]
    made.add_special_tokens([AddedToken(name, special=True) for name in names])
    return Tokenizer(made, {"eos_token": "</s>"}, [256], {})


@pytest.mark.parametrize("format", [HERMES, LLAMA, MISTRAL, XML, HARMONY])
def test_by_its_grammar_only_valid_calls_are_written(format: CallFormat) -> None:
    tokenizer = _tokenizer()
    grammars = Grammars(tokenizer, tokenizer.vocab_size)
    written = grammar(format, SCHEMAS, tokenizer, many=False, thinking=False)
    import numpy as np

    for seed in range(8):
        rng = np.random.default_rng(seed)
        constraint, tokens = grammars.lark(written), list[int]()
        for _ in range(400):
            scores = constraint.allow(rng.standard_normal(tokenizer.vocab_size).astype(np.float32))
            token = int(scores.argmax())
            if token in tokenizer.eos_ids:
                break
            tokens.append(token)
            if constraint.push(token):
                break
        text = tokenizer.decode(tokens, skip_special_tokens=False)
        parser = Parser(format, SCHEMAS)
        content, _, calls = together(parser.push(text) + parser.finish())
        assert content == "" and calls, text
        for name, arguments in calls:
            assert set(SCHEMAS[name]["properties"]) == set(arguments), text
