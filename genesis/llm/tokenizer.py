"""`Tokenizer`: text as tokens and back, from a checkpoint's folder or from GGUF metadata.

The work is done by the library `tokenizers`. A folder holds its file, tokenizer.json. A GGUF file
holds a vocabulary and the name of what splits text into words, from which the same is built here.

Tokens become text by their bytes: a character may lie in several tokens, so `DecodeStream` holds
back bytes until they are a character, and `decode` is a stream that ends.
"""

from __future__ import annotations

import codecs
import json
import os
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from genesis.llm.gguf_vocabulary import SPACE, Vocabulary, library
from genesis.serialization import BadFile
from genesis.weights.checkpoint_reader import read_json

_NAMES = [f"{name}_token" for name in ("bos", "eos", "unk", "pad", "sep", "cls", "mask")]
#: What models call the text before, the text after, and the place between them.
_FILL_IN = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
)


class Tokenizer:
    """Text as tokens and back.

    `special_tokens` are texts by the names that chat templates use, `chat_templates` the sources
    by name ("default" is the one without), `eos_ids` the tokens that end an answer.
    """

    def __init__(
        self,
        tokenizer: Any,
        special_tokens: Mapping[str, str],
        eos_ids: Iterable[int],
        chat_templates: Mapping[str, str],
    ) -> None:
        self._tokenizer = tokenizer
        self._lock = threading.Lock()
        self.vocab_size: int = tokenizer.get_vocab_size(with_added_tokens=True)
        self.special_tokens = dict(special_tokens)
        self.chat_templates = dict(chat_templates)
        self.eos_ids = frozenset(eos_ids)
        self.bos_id = self.id(self.special_tokens.get("bos_token"))
        self._added = tokenizer.get_added_tokens_decoder()
        #: Tokens that are not text: `decode` leaves them out.
        self.special_ids = frozenset(k for k, token in self._added.items() if token.special)
        self._pieces = _Pieces(tokenizer.decoder)
        self._bytes: dict[int, bytes] = {}

    @classmethod
    def from_folder(cls, path: str | os.PathLike[str]) -> Tokenizer:
        """The tokenizer of a checkpoint: tokenizer.json and what lies beside it."""
        folder = Path(path)
        file = folder / "tokenizer.json"
        if not file.is_file():
            raise FileNotFoundError(
                f"Tokenizer: {folder} has no tokenizer.json; save_pretrained of a tokenizer of "
                "transformers writes one"
            )
        config = read_json(folder / "tokenizer_config.json")
        names = {**read_json(folder / "special_tokens_map.json"), **config}
        special = {name: text for name in _NAMES if (text := _content(names.get(name)))}
        opened = partial(library().Tokenizer.from_file, os.fspath(file))
        tokenizer = _guarded(f"{file} cannot be read", opened)
        tokenizer.no_truncation()  # a file may say that texts are cut off, or made longer
        tokenizer.no_padding()
        said = read_json(folder / "generation_config.json").get("eos_token_id")
        if said is None:
            said = read_json(folder / "config.json").get("eos_token_id")
        ends = [said, tokenizer.token_to_id(special.get("eos_token", ""))]
        ends = [k for end in ends for k in (end if isinstance(end, list) else [end])]
        templates = _templates(folder, config.get("chat_template"))
        return cls(tokenizer, special, (k for k in ends if type(k) is int), templates)

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any]) -> Tokenizer:
        """The tokenizer that the metadata of a GGUF file describe."""
        vocabulary = Vocabulary(metadata)
        tokenizer = _guarded("the GGUF vocabulary cannot be read", vocabulary.tokenizer)
        templates = {
            key.removeprefix("tokenizer.chat_template").lstrip(".") or "default": text
            for key, text in metadata.items()
            if re.match(r"tokenizer\.chat_template(\.|$)", key) and isinstance(text, str)
        }
        return cls(tokenizer, vocabulary.special(), vocabulary.ends(), templates)

    def encode(
        self, text: str, *, add_special_tokens: bool = True, parse_special: bool = True
    ) -> list[int]:
        """The tokens of a text.

        `add_special_tokens` puts around it what the model saw around texts (a rendered chat has it
        already); with `parse_special` texts such as ``<|im_end|>`` in it are the tokens they name.
        """
        with self._lock:  # what is parsed is a state of the library's object
            self._tokenizer.encode_special_tokens = not parse_special
            encode = partial(self._tokenizer.encode, add_special_tokens=add_special_tokens)
            encoded = _guarded("the text cannot be encoded", partial(encode, text))
        return encoded.ids  # type: ignore[no-any-return]

    def fill_in(self, before: str, after: str) -> list[int]:
        """The tokens after which a model writes what lies between two texts, if it was taught to.

        Texts are only texts here: nothing in them is a token by its name.
        """
        marks = [[self.id(name) for name in names] for names in _FILL_IN]
        known = next((ids for ids in marks if None not in ids), None)
        if known is None:
            raise ValueError("the model was not taught to fill in text: it has no tokens for it")
        plain = partial(self.encode, add_special_tokens=False, parse_special=False)
        first = [self.bos_id] if self.bos_id in self.encode("")[:1] else []
        prefix, suffix, middle = known
        found = [*first, prefix, *plain(before), suffix, *plain(after), middle]
        return [token for token in found if token is not None]

    def decode(self, tokens: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """The text of tokens; bytes that are no characters become U+FFFD."""
        stream = self.stream(skip_special_tokens=skip_special_tokens)
        return "".join([*map(stream.push, tokens), stream.finish()])

    def stream(self, *, skip_special_tokens: bool = True) -> DecodeStream:
        """What turns tokens into text one by one."""
        return DecodeStream(self, skip_special_tokens)

    def id(self, text: str | None) -> int | None:
        """The token with exactly this text, if there is one."""
        return None if text is None else self._tokenizer.token_to_id(text)

    def token_bytes(self, token: int) -> bytes:
        """The bytes that a token stands for; tokens that do not exist stand for none."""
        if token not in self._bytes:
            text = self._tokenizer.id_to_token(token) if 0 <= token < 1 << 32 else None
            added = token in self._added
            self._bytes[token] = b"" if text is None else self._pieces.bytes(text, added)
        return self._bytes[token]

    @cached_property
    def longest_token(self) -> int:
        """How many characters a token stands for at most."""
        return max(map(len, self._tokenizer.get_vocab(with_added_tokens=True)), default=1)

    @property
    def strips_first_space(self) -> bool:
        """Whether a space that begins the text is not part of it."""
        return self._pieces.strips

    def to_json(self) -> str:
        """The tokenizer in the library's own format."""
        return self._tokenizer.to_str()  # type: ignore[no-any-return]


class DecodeStream:
    """Tokens in, text out, and never half a character."""

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special_ids if skip_special_tokens else frozenset()
        self._characters = codecs.getincrementaldecoder("utf-8")("replace")
        self._first = tokenizer.strips_first_space

    def push(self, token: int) -> str:
        """The text that is complete with this token."""
        if token in self._skipped:
            return ""
        contents = self._tokenizer.token_bytes(token)
        if self._first and contents:
            self._first = False
            contents = contents.removeprefix(b" ")
        return self._characters.decode(contents)

    def finish(self) -> str:
        """What was held back: a character whose end never came."""
        return self._characters.decode(b"", final=True)


def _guarded(what: str, step: Callable[[], Any]) -> Any:
    """The result of the library; what it says of bad input, or that it panicked, as one error."""
    try:
        return step()
    except BaseException as error:
        if isinstance(error, BadFile | ImportError):
            raise
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            raise BadFile(f"Tokenizer: {what}: {error}") from None
        raise


def _content(token: Any) -> str | None:
    """A special token, which may lie in a dictionary with its properties."""
    token = token.get("content") if isinstance(token, dict) else token
    return token if isinstance(token, str) else None


def _templates(folder: Path, said: Any) -> dict[str, str]:
    """Chat templates by name: from a file of their own, else from the configuration."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        extra = folder / "additional_chat_templates"
        files = {"default": file} | {f.stem: f for f in sorted(extra.glob("*.jinja"))}
        return {name: f.read_text("utf-8", "replace") for name, f in files.items()}
    said = said or read_json(folder / "chat_template.json").get("chat_template")
    if isinstance(said, str):
        return {"default": said}
    entries = [x for x in said or () if isinstance(x, dict)] if isinstance(said, list) else []
    pairs = {x.get("name"): x.get("template") for x in entries}
    return {k: v for k, v in pairs.items() if isinstance(k, str) and isinstance(v, str)}


# ---- tokens as bytes


class _Pieces:
    """The bytes of tokens, as a decoder of the library would make text of them."""

    def __init__(self, decoder: Any) -> None:
        state = json.loads(decoder.__getstate__()) if decoder is not None else {"type": "words"}
        kinds = {x.get("type"): x for x in state.get("decoders", [state])}
        self.level = "ByteLevel" in kinds
        self.words = not kinds.keys().isdisjoint({"words", "WordPiece"})
        self.inside = kinds.get("WordPiece", {}).get("prefix", "##")
        spaced = kinds.get("Metaspace", {"prepend_scheme": "never"})["prepend_scheme"] != "never"
        self.strips = self.words or spaced or bool(kinds.get("Strip", {}).get("start"))

    def bytes(self, text: str, added: bool) -> bytes:
        """What a token stands for; one that was added to the vocabulary is text as it is."""
        if self.level:
            plain = added or not _LEVEL.keys() >= set(text)
            return text.encode() if plain else bytes(map(_LEVEL.__getitem__, text))
        if self.words:
            inside = text.startswith(self.inside)
            return (text.removeprefix(self.inside) if inside else f" {text}").encode()
        if re.fullmatch("<0x[0-9A-F]{2}>", text):
            return bytes([int(text[3:5], 16)])
        return text.replace(SPACE, " ").encode()


def _byte_level() -> dict[str, int]:
    """GPT-2's alphabet: printable bytes are themselves, the others follow from 256 on."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    return {chr(b): b for b in plain} | {chr(256 + k): b for k, b in enumerate(others)}


_LEVEL = _byte_level()

__all__ = ["DecodeStream", "Tokenizer"]
