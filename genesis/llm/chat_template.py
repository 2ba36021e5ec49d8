"""`ChatTemplate`: a conversation as the text that a model was trained to continue.

A template is a program in Jinja that came with the model's files. Jinja's sandbox keeps it from the
outside, but no check inside a process keeps it from running for ever or from filling the memory: a
comparison of nested lists or one number to the power of another is a single step of Python. So
templates are rendered by a process of their own, this file run as a script, which the kernel ends
when a rendering takes too much time or memory. It waits for the next one at a cost of about 0.1 ms.
"""

from __future__ import annotations

# The process that renders starts with these, too: what only one side needs is imported there.
import json
import struct
import sys
from collections.abc import Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    import subprocess

_SECONDS = 1.0  # of processor time for a rendering
_MEMORY = 1 << 29  # bytes of address space
_LONGEST = 1 << 26  # bytes of output
_LENGTH = struct.Struct("<Q")

#: What is used where a model has none.
CHATML = """\
{% for message in messages %}
{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{%- endfor %}
{% if add_generation_prompt %}
{{ '<|im_start|>assistant\\n' }}
{%- endif %}
"""
#: Names under which people pass reasoning; templates read the first, some the second.
_REASONING = ("reasoning_content", "thinking", "reasoning")


class TemplateError(ValueError):
    """A chat template that cannot be rendered, or that refuses a conversation."""


class ChatTemplate:
    r"""A template, with texts (such as ``bos_token``) that it may use.

    >>> template = ChatTemplate()
    >>> template.render([{"role": "user", "content": "Hi"}])
    '<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n'
    """

    def __init__(
        self,
        source: str | Mapping[str, str] | None = None,
        special_tokens: Mapping[str, str] | None = None,
    ) -> None:
        sources = {"default": source} if isinstance(source, str) else dict(source or {})
        self.sources = sources or {"default": CHATML}
        self.special_tokens = dict(special_tokens or {})
        self._worker = _Worker()

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        template: str | None = None,
        **more: Any,
    ) -> str:
        """The conversation as text.

        Of several templates, ``tool_use`` is for conversations with tools, if there is one.
        """
        if template is None:
            template = "tool_use" if tools is not None and "tool_use" in self.sources else "default"
        if template not in self.sources:
            raise TemplateError(f"the model has no chat template {template!r}: {[*self.sources]}")
        names = {
            **self.special_tokens,
            "messages": [_with_reasoning(message) for message in messages],
            "tools": tools,
            "documents": documents,
            "add_generation_prompt": add_generation_prompt,
            **more,
        }
        try:
            request = json.dumps([self.sources[template], names])
        except (TypeError, ValueError, RecursionError) as error:
            raise TemplateError(f"the conversation is no JSON: {error}") from None
        return self._worker.render(request.encode())

    def close(self) -> None:
        """End the process that renders; the next rendering starts another."""
        self._worker.close()


def _with_reasoning(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message with its reasoning under the names that templates read."""
    if not isinstance(message, Mapping):
        raise TemplateError(f"a message is a dictionary, not a {type(message).__name__}")
    said = next((message[key] for key in _REASONING if message.get(key) is not None), None)
    if said is None:
        return dict(message)
    return {"thinking": said, **message, "reasoning_content": said}


class _Worker:
    """The process that renders, started when it is first needed."""

    def __init__(self) -> None:
        import threading

        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def render(self, request: bytes) -> str:
        with self._lock:
            if self._process is not None and self._process.poll() is not None:
                self._end()  # somebody ended it between renderings
            process = self._process = self._process or self._started()
            assert process.stdin is not None and process.stdout is not None
            try:
                _send(process.stdin, request)
                answer = _receive(process.stdout)
            except BrokenPipeError:
                answer = None
            except BaseException:
                self._end()  # the answer that comes now is not the next request's
                raise
            if answer is None:
                raise TemplateError(f"the chat template was stopped: {_verdict(self._end())}")
        kind, text = answer[:1], answer[1:].decode("utf-8", "surrogatepass")
        if kind == b"!":
            raise TemplateError(f"the chat template cannot be rendered: {text}")
        return text

    def _started(self) -> subprocess.Popen[bytes]:
        import subprocess

        try:
            import jinja2  # noqa: F401
        except ImportError:
            raise ImportError("genesis.llm needs jinja2: pip install genesis-dl[llm]") from None
        # -P: the folder of this file is not where the script's imports are.
        command = [sys.executable, "-P", __file__]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def close(self) -> None:
        with self._lock:
            self._end()

    def _end(self) -> int:
        """End the process, and say how it had ended."""
        process, self._process = self._process, None
        if process is None:
            return 0
        try:
            process.communicate(timeout=0.1)
        except Exception:
            process.kill()
            process.communicate()
        return process.returncode

    def __del__(self) -> None:
        self._end()


def _verdict(code: int) -> str:
    import signal

    if code == -signal.SIGPROF:
        return f"rendering took more than {_SECONDS:g} s"
    return f"its process ended with {code}"


def _send(file: IO[bytes], contents: bytes) -> None:
    file.write(_LENGTH.pack(len(contents)) + contents)
    file.flush()


def _receive(file: IO[bytes]) -> bytes | None:
    """What was sent, or None if the other side ended."""
    head = file.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    contents = file.read(length)
    return contents if len(contents) == length else None


# ---- in the process that renders


def _environment() -> Any:
    """Jinja as transformers sets it up for chat templates."""
    from datetime import datetime

    import jinja2
    import jinja2.ext
    import jinja2.nodes
    import jinja2.sandbox
    import jinja2.utils

    class Generation(jinja2.ext.Extension):
        """``{% generation %}`` marks what the model says; here it changes nothing."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return jinja2.nodes.Scope(body).set_lineno(line)

    class Namespace(jinja2.utils.Namespace):
        """Names that a template sets, none of them Python's own."""

        def __setitem__(self, name: str, value: Any) -> None:
            if name.startswith("_"):
                raise jinja2.exceptions.SecurityError(f"{name!r} is no name for a template")
            super().__setitem__(name, value)

    def namespace(*args: Any, **names: Any) -> Any:
        made = Namespace()
        for name, value in dict(*args, **names).items():
            made[name] = value
        return made

    def raise_exception(message: str) -> None:
        raise jinja2.TemplateError(message)

    def strftime_now(format: str) -> str:
        return datetime.now().strftime(format)

    def tojson(
        x: Any,
        ensure_ascii: bool = False,
        indent: Any = None,
        separators: Any = None,
        sort_keys: bool = False,
    ) -> str:
        return json.dumps(
            x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
        )

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals.update(
        raise_exception=raise_exception, strftime_now=strftime_now, namespace=namespace
    )
    return environment


def _main() -> None:
    """Render what comes in until nothing comes any more."""
    import resource
    import signal
    from functools import lru_cache

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # is for who asks; this ends when that does
    environment = _environment()
    compiled = lru_cache(8)(environment.from_string)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    source, target = sys.stdin.buffer, sys.stdout.buffer
    while (request := _receive(source)) is not None:
        signal.setitimer(signal.ITIMER_PROF, _SECONDS)
        try:
            template, names = json.loads(request)
            answer = b"=" + compiled(template).render(**names).encode("utf-8", "surrogatepass")
            if len(answer) > _LONGEST:
                answer = b"!it made more than %d bytes of text" % _LONGEST
        except MemoryError:
            answer = b"!it needs more than %d bytes of memory" % _MEMORY
        except Exception as error:
            answer = b"!" + _message(error).encode("utf-8", "surrogatepass")
        signal.setitimer(signal.ITIMER_PROF, 0)
        del request
        _send(target, answer)


def _message(error: Exception) -> str:
    text = str(error)[:1000] or type(error).__name__
    line = getattr(error, "lineno", None)
    return text if line is None else f"{text} (line {line})"


if __name__ == "__main__":
    _main()

__all__ = ["CHATML", "ChatTemplate", "TemplateError"]
