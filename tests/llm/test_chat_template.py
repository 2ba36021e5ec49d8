"""Chat templates: rendered as transformers renders them, and stopped when they do harm."""

import gc
import os
import resource
from pathlib import Path
from typing import Any

import pytest

from genesis.llm.chat_template import CHATML, ChatTemplate, TemplateError

#: Sources of llama.cpp, with the chat templates of many models.
LLAMA_CPP = Path(os.environ.get("GENESIS_LLAMA_CPP", "/nonexistent"))
TEMPLATES = sorted((LLAMA_CPP / "models" / "templates").glob("*.jinja"))

USER = {"role": "user", "content": "Hello <b>é</b>"}
SYSTEM = {"role": "system", "content": "Be brief."}
ANSWER = {"role": "assistant", "content": "Hi\nthere"}
REASONED = {**ANSWER, "reasoning": "Think."}
FUNCTION = {
    "name": "get_weather",
    "description": "The weather <now> in é",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer", "enum": [1, 2]}},
        "required": ["city"],
    },
}
TOOLS = [{"type": "function", "function": FUNCTION}]
CALL = {"name": "get_weather", "arguments": {"city": "Paris", "days": 1}}
CALLED = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"id": "call_0001", "type": "function", "function": CALL}],
}
RESULT = {"role": "tool", "name": "get_weather", "tool_call_id": "call_0001", "content": "sunny"}
CONVERSATIONS: dict[str, dict[str, Any]] = {
    "user": {"messages": [USER]},
    "system": {"messages": [SYSTEM, USER]},
    "turns": {"messages": [SYSTEM, USER, ANSWER, USER]},
    "answered": {"messages": [USER, ANSWER], "add_generation_prompt": False},
    "reasoned": {"messages": [USER, REASONED, USER]},
    "tools": {"messages": [USER], "tools": TOOLS},
    "called": {"messages": [USER, CALLED, RESULT, ANSWER, USER], "tools": TOOLS},
    "documents": {"messages": [USER], "documents": [{"title": "T", "text": "body"}]},
    "thinking": {"messages": [USER], "enable_thinking": False},
}
NAMES = {"bos_token": "<s>", "eos_token": "</s>"}


SHARED = ChatTemplate("", NAMES)  # one process for the whole file


def render(source: str, **more: Any) -> str:
    SHARED.sources = {"default": source}
    return SHARED.render(**{"messages": [USER], **more})


def test_the_default_is_chatml() -> None:
    assert render(CHATML, messages=[SYSTEM, USER, ANSWER, USER]) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello <b>é</b><|im_end|>\n"
        "<|im_start|>assistant\nHi\nthere<|im_end|>\n<|im_start|>user\nHello <b>é</b><|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert render(CHATML, add_generation_prompt=False).endswith("<|im_end|>\n")
    assert ChatTemplate().sources == {"default": CHATML}


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}", "<s>Hello <b>é</b></s>"),
        ("{{ messages[0] | tojson }}", '{"role": "user", "content": "Hello <b>é</b>"}'),
        ("{{ {'b': 1, 'a': 'é'} | tojson(indent=1, sort_keys=true, ensure_ascii=true) }}",
         '{\n "a": "\\u00e9",\n "b": 1\n}'),
        ("{{ [1, 2] | tojson(separators=(',', ':')) }}", "[1,2]"),
        ("  {% if true %}\n  x\n  {% endif %}\ny", "  x\ny"),
        ("{% for i in range(9) %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 4 %}"
         "{% break %}{% endif %}{{ i }}{% endfor %}", "013"),
        ("a{% generation %}{% set x = 1 %}b{{ x }}{% endgeneration %}c", "ab1c"),
        ("{% set ns = namespace(n=1) %}{% set ns.n = ns.n + 1 %}{{ ns.n }}", "2"),
        ("{{ dict(a=1).a }}{{ undefined_name }}{{ tools is none }}{{ documents is none }}",
         "1TrueTrue"),
        ("{{ strftime_now('%%') }}{{ strftime_now('%Y') | length }}", "%4"),
        ("{{ messages[0]['content'].split('>')[1].strip().upper() }}", "É</B"),
        ("{{ more.deep[0] }}", "1"),
        ("\ud800 😀 é", "\ud800 😀 é"),
    ],
)  # fmt: skip
def test_what_templates_use(source: str, wanted: str) -> None:
    assert render(source, more={"deep": [1]}) == wanted


def test_reasoning_has_the_names_that_templates_read() -> None:
    source = "{% for m in messages %}{{ m.reasoning_content }}|{{ m.thinking }};{% endfor %}"
    assert render(source, messages=[REASONED, USER]) == "Think.|Think.;|;"


def test_of_several_templates_one_is_for_tools() -> None:
    template = ChatTemplate({"default": "a", "tool_use": "b", "rag": "c"})
    assert template.render([USER]) == "a" and template.render([USER], tools=TOOLS) == "b"
    assert template.render([USER], template="rag") == "c"
    with pytest.raises(TemplateError, match="no chat template 'x'"):
        template.render([USER], template="x")


def test_templates_refuse_conversations() -> None:
    with pytest.raises(TemplateError, match="roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(TemplateError, match=r"Unexpected end of template.*line 1"):
        render("{% if true %}")
    with pytest.raises(TemplateError, match="no JSON"):
        render("x", messages=[{"content": object()}])
    with pytest.raises(TemplateError, match="a message is a dictionary"):
        render("x", messages=["hello"])


NESTED = (
    "{% set ns = namespace(s=[1], t=[1]) %}{% for i in range(99) %}{% set ns.s = [ns.s, ns.s] %}"
)
NESTED += "{% set ns.t = [ns.t, ns.t] %}{% endfor %}"
HARMFUL = {
    "range": ("{% for i in range(10**12) %}{% endfor %}", "Range too big"),
    "loops": ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
              "1 s"),
    "text": ("{{ 'x' * 10**11 }}", "memory"),
    "power": ("{{ (10**9) ** (10**9) }}", "1 s"),
    "macro": ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
    "macros": ("{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}"
               "{{ f(99) }}", "1 s"),
    "doubled": ("{% set ns = namespace(s='x') %}{% for i in range(99) %}"
                "{% set ns.s = ns.s ~ ns.s %}{% endfor %}", "memory"),
    "compared": (NESTED + "{{ ns.s == ns.t }}", "1 s"),
    "format": ("{{ '%99999999999d' % 1 }}", "memory|too big"),
    "filter": ("{{ 'x' | center(10**11) }}", "memory"),
    "bytes": ("{{ (5).to_bytes(10**11, 'big') }}", "memory"),
    "output": ("{% for i in range(99999) %}{{ 'x' * 1000 }}{% endfor %}", "bytes of text"),
    "python": ("{{ ''.__class__.__mro__ }}", "unsafe"),
    "globals": ("{{ cycler.__init__.__globals__ }}", "unsafe"),
    "namespace": ("{% set ns = namespace() %}{% set ns.__class__ = 1 %}", "no name"),
    "lists": ("{{ messages.append(1) }}", "unsafe"),
    "parentheses": ("{{ " + "(" * 10_000 + "1" + ")" * 10_000 + " }}", "recursion"),
    "blocks": ("{% if 1 %}" * 3000 + "{% endif %}" * 3000, "recursion"),
    "division": ("{{ 1 // 0 }}", "zero"),
    "missing": ("{% include '/etc/passwd' %}", "no loader|cannot be rendered"),
}  # fmt: skip


SLOW = ("loops", "macros", "compared")  # each takes its second


@pytest.mark.parametrize(
    "case", [pytest.param(x, marks=pytest.mark.slow) if x in SLOW else x for x in HARMFUL]
)
def test_harmful_templates_are_stopped(case: str) -> None:
    source, why = HARMFUL[case]
    start = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    # What takes much memory may take its second first: how long pages take nobody knows.
    with pytest.raises(TemplateError, match=f"{why}|1 s" if "memory" in why else why):
        render(source)
    # Of the processor's time: how long that takes beside other processes nobody knows.
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - start < 3


def test_the_next_rendering_is_not_the_last_ones() -> None:
    source = (
        "{% if loop_for_ever %}{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}"
    )
    template = ChatTemplate(source + "{% endfor %}{% endif %}{{ n }}")
    assert template.render([USER], n=1) == "1"
    with pytest.raises(TemplateError, match="1 s"):
        template.render([USER], n=2, loop_for_ever=True)
    assert template.render([USER], n=3) == "3"
    template.close()
    assert template.render([USER], n=4) == "4"


def test_a_process_that_somebody_ended_is_started_again() -> None:
    assert render("a") == "a"
    process = SHARED._worker._process
    assert process is not None
    process.kill()
    process.wait()
    assert render("b") == "b"


def test_processes_end_with_their_templates() -> None:
    template = ChatTemplate("x")
    template.render([USER])
    process = template._worker._process
    assert process is not None and process.poll() is None
    del template
    gc.collect()
    assert process.poll() is not None


def test_long_conversations() -> None:
    messages = [{"role": "user", "content": "é" * 1000}] * 5000
    assert len(render(CHATML, messages=messages)) > 5_000_000


@pytest.mark.slow
@pytest.mark.skipif(not TEMPLATES, reason="GENESIS_LLAMA_CPP names no sources of llama.cpp")
@pytest.mark.parametrize("file", TEMPLATES, ids=lambda path: path.stem)
def test_models_templates_render_as_in_transformers(file: Path) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    source = file.read_text()
    template = ChatTemplate(source, NAMES)
    for conversation in CONVERSATIONS.values():
        request = {"add_generation_prompt": True, **conversation}
        more = {**NAMES, **request}
        messages = more.pop("messages")
        try:
            wanted = render_jinja_template([messages], chat_template=source, **more)[0][0]
        except Exception as error:
            with pytest.raises(TemplateError) as caught:
                template.render(**request)
            assert str(error) in str(caught.value)
        else:
            assert template.render(**request) == wanted
