"""Tokenizers: every kind of vocabulary, against slow versions and against llama.cpp's results."""

import itertools
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from genesis.llm.gguf_vocabulary import _BY_NAME
from genesis.llm.tokenizer import _LEVEL, Tokenizer
from genesis.serialization import BadFile
from genesis.weights.gguf import GGUFFile, write_gguf
from tests.hostile import damaged
from tests.llm.tiny_tokenizer import save_tokenizer

#: Sources of llama.cpp, whose models/ggml-vocab-*.gguf come with texts and their tokens.
LLAMA_CPP = Path(os.environ.get("GENESIS_LLAMA_CPP", "/nonexistent"))
VOCABULARIES = sorted((LLAMA_CPP / "models").glob("ggml-vocab-*.gguf"))
NORMAL, UNKNOWN, CONTROL, USER, BYTE = 1, 2, 3, 4, 6

TEXT = "Hello  world's 12345\n\n\tnaïve café 日本 🎉 l'été!"


def metadata(model: str, tokens: dict[str, int], **more: Any) -> dict[str, Any]:
    """What a GGUF file says of tokens with their types."""
    found = {"model": model, "tokens": list(tokens), **more}
    found["token_type"] = np.array(list(tokens.values()), np.int32)
    return {f"tokenizer.ggml.{key}": value for key, value in found.items()}


def byte_pairs(pre: str = "gpt-2", **more: Any) -> dict[str, Any]:
    """All bytes, a few merges, and special tokens."""
    merges = ["h e", "l l", "he ll", "hell o", "Ġ w", "o r", "Ġw or", "1 2", "12 3", "e r"]
    tokens = dict.fromkeys([*_LEVEL, *(m.replace(" ", "") for m in merges)], NORMAL)
    tokens |= {"<|end|>": CONTROL, "<|start|>": CONTROL, "<tag>": USER}
    more = {"eos_token_id": len(tokens) - 3, "bos_token_id": len(tokens) - 2, **more}
    return metadata("gpt2", tokens, merges=merges, pre=pre, **more)


def sentence_pieces(**more: Any) -> dict[str, Any]:
    tokens = {"<unk>": UNKNOWN, "<s>": CONTROL, "</s>": CONTROL}
    tokens |= {f"<0x{b:02X}>": BYTE for b in range(256)}
    words = "▁ h e l o w r d ▁h el lo hel hello ▁hello ▁w or wor ▁wor ld ▁world".split()  # noqa: SIM905
    tokens |= dict.fromkeys(words, NORMAL)
    scores = -np.arange(len(tokens), dtype=np.float32)
    return metadata("llama", tokens, scores=scores, **more)


def word_pieces() -> dict[str, Any]:
    special = dict.fromkeys(("[PAD]", "[UNK]", "[CLS]", "[SEP]"), CONTROL)
    words = ("▁hello", "▁hell", "o", "▁wor", "ld", "▁!", "▁日", "▁cafe")
    ids = {"cls_token_id": 2, "bos_token_id": 2, "seperator_token_id": 3, "unknown_token_id": 1}
    return metadata("bert", special | dict.fromkeys(words, NORMAL), **ids)


def unigrams() -> dict[str, Any]:
    tokens = {"<pad>": CONTROL, "</s>": CONTROL, "<unk>": UNKNOWN}
    tokens |= dict.fromkeys(("▁", "a", "b", "▁a", "ab", "▁ab", "c"), NORMAL)
    scores = np.float32([0, 0, 0, -5, -4, -4, -4.5, -3, -2.5, -6])
    return metadata("t5", tokens, scores=scores, unknown_token_id=2, eos_token_id=1)


# ---- byte pairs


def slow_byte_pairs(words: list[str], pairs: list[str], ids: dict[str, int]) -> list[int]:
    """The pair that was merged first is merged first, again and again."""
    back = {b: c for c, b in _LEVEL.items()}
    found = []
    for word in words:
        symbols = [back[b] for b in word.encode()]
        while True:
            ranks = [
                (pairs.index(f"{a} {b}"), k)
                for k, (a, b) in enumerate(itertools.pairwise(symbols))
                if f"{a} {b}" in pairs
            ]
            if not ranks:
                break
            k = min(ranks)[1]
            symbols[k : k + 2] = [symbols[k] + symbols[k + 1]]
        found += [ids[s] for s in symbols]
    return found


@pytest.mark.parametrize(
    ("pre", "words"),
    {
        "gpt-2": ["hello", " world", "'s", " 1234", "!", "\n\n", " x"],
        "llama-bpe": ["hello", " world", "'s", " ", "123", "4", "!\n\n", " x"],
        "qwen2": ["hello", " world", "'s", " ", "1", "2", "3", "4", "!\n\n", " x"],
        "starcoder": ["hello", " world", "'s", " ", "1", "2", "3", "4", "!", "\n\n", " x"],
        "gpt-4o": ["hello", " world's", " ", "123", "4", "!\n\n", " x"],
        "deepseek-v3": ["hello", " world", "'s", " ", "123", "4", "!\n\n", " x"],
        "default": ["hello", " world", "'", "s", " ", "123", "4", "!", "\n\n", " x"],
    }.items(),
)
def test_byte_pairs(pre: str, words: list[str]) -> None:
    said = byte_pairs(pre)
    tokenizer = Tokenizer.from_gguf(said)
    ids = {text: k for k, text in enumerate(said["tokenizer.ggml.tokens"])}
    wanted = slow_byte_pairs(words, said["tokenizer.ggml.merges"], ids)
    found = tokenizer.encode("".join(words), add_special_tokens=False)
    assert found == wanted
    assert tokenizer.decode(found) == "".join(words)


@pytest.mark.parametrize("pre", _BY_NAME)
def test_every_way_to_split_text_loses_nothing(pre: str) -> None:
    tokenizer = Tokenizer.from_gguf(byte_pairs(pre))
    assert tokenizer.decode(tokenizer.encode(TEXT, add_special_tokens=False)) == TEXT


def test_special_tokens_are_parsed_or_text() -> None:
    said = byte_pairs("llama-bpe")
    tokenizer = Tokenizer.from_gguf(said)
    end, start = tokenizer.id("<|end|>"), tokenizer.id("<|start|>")
    assert tokenizer.eos_ids == {end} and tokenizer.bos_id == start
    assert tokenizer.encode("hello<|end|>") == [start, tokenizer.id("hello"), end]
    assert tokenizer.encode("hello<|end|>", add_special_tokens=False)[-1] == end
    plain = tokenizer.encode("<|end|><tag>", add_special_tokens=False, parse_special=False)
    assert end not in plain and plain[-1] == tokenizer.id("<tag>")
    assert tokenizer.decode(plain) == "<|end|><tag>"
    tokens = [tokenizer.id("hello"), end, start]
    assert tokenizer.decode(tokens) == "hello"
    assert tokenizer.decode(tokens, skip_special_tokens=False) == "hello<|end|><|start|>"
    assert tokenizer.decode([1 << 20, -1, 1 << 40]) == ""
    with pytest.raises(ValueError, match="cannot be encoded"):
        tokenizer.encode("half a pair: \ud800")


# ---- SentencePiece, WordPiece, unigrams


def slow_sentence_pieces(text: str, scores: dict[str, float]) -> list[str]:
    """Neighbours whose token has the highest score are merged; what is left is bytes."""
    symbols = list("▁" + text.replace(" ", "▁"))
    while True:
        pairs = [a + b for a, b in itertools.pairwise(symbols)]
        ranked = [(-scores[pair], k) for k, pair in enumerate(pairs) if pair in scores]
        if not ranked:
            break
        k = min(ranked)[1]
        symbols[k : k + 2] = [symbols[k] + symbols[k + 1]]
    pieces = []
    for s in symbols:
        pieces += [s] if s in scores else [f"<0x{b:02X}>" for b in s.encode()]
    return pieces


@settings(max_examples=60)
@given(st.text(st.sampled_from("helowrd é日\n"), min_size=1, max_size=20))
def test_sentence_pieces(text: str) -> None:
    said = sentence_pieces()
    tokens = said["tokenizer.ggml.tokens"]
    tokenizer = Tokenizer.from_gguf(said)
    scores = dict(zip(tokens, said["tokenizer.ggml.scores"], strict=True))
    wanted = [tokens.index(piece) for piece in slow_sentence_pieces(text, scores)]
    assert tokenizer.encode(text) == [1, *wanted]
    assert tokenizer.decode(wanted) == text


def test_text_is_filled_in(tmp_path: Path) -> None:
    save_tokenizer(tmp_path)
    with pytest.raises(ValueError, match="not taught to fill in"):
        Tokenizer.from_folder(tmp_path).fill_in("a", "b")
    library = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    marks = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"]
    library.add_special_tokens(marks)
    library.save(str(tmp_path / "tokenizer.json"))
    found = Tokenizer.from_folder(tmp_path)
    tokens = found.fill_in("the cat <|fim_middle|>", " mat")
    assert found.decode(tokens, skip_special_tokens=False) == (
        "<|fim_prefix|>the cat <|fim_middle|><|fim_suffix|> mat<|fim_middle|>"
    )
    prefix, suffix, middle = map(library.token_to_id, marks)
    assert [t for t in tokens if t in (prefix, suffix, middle)] == [prefix, suffix, middle]


def test_sentence_pieces_after_special_tokens() -> None:
    tokenizer = Tokenizer.from_gguf(sentence_pieces())
    hello = [tokenizer.id(piece) for piece in ("▁h", "el", "lo")]
    assert tokenizer.encode("<s>hello</s>hello", add_special_tokens=False) == [1, *hello, 2, *hello]
    assert tokenizer.encode("", add_special_tokens=False) == []
    assert tokenizer.special_tokens == {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
    }
    bare = Tokenizer.from_gguf(sentence_pieces(add_space_prefix=False, add_bos_token=False))
    assert bare.encode("hello") == [bare.id("hello")] and bare.decode(hello) == " hello"


def test_word_pieces() -> None:
    tokenizer = Tokenizer.from_gguf(word_pieces())
    assert tokenizer.encode("Hello WORLD! 日café xyz") == [2, 4, 7, 8, 9, 10, 11, 1, 3]
    assert tokenizer.decode([4, 7, 8, 9]) == "hello world !"


def test_unigrams_are_the_likeliest() -> None:
    said = unigrams()
    tokens, scores = said["tokenizer.ggml.tokens"], said["tokenizer.ggml.scores"]
    tokenizer = Tokenizer.from_gguf(said)

    def best(text: str) -> tuple[float, list[int]]:
        splits = [(0.0, [])] if not text else []
        for k in range(3, len(tokens)):
            if text.startswith(tokens[k]):
                score, rest = best(text[len(tokens[k]) :])
                splits.append((score + float(scores[k]), [k, *rest]))
        return max(splits, default=(-1e9, []))

    for text in ("a", "ab", "abab", "aabb", "bac", "cab a"):
        wanted = [k for word in text.split() for k in best("▁" + word)[1]]
        assert tokenizer.encode(text) == [*wanted, 1]
        assert tokenizer.decode(wanted) == text


# ---- streams


@settings(max_examples=100)
@given(st.text(max_size=30), st.sampled_from(["gpt2", "llama"]))
def test_streams_emit_whole_characters(text: str, kind: str) -> None:
    text = text.replace("▁", "")  # is a space in vocabularies of SentencePiece
    tokenizer = Tokenizer.from_gguf(byte_pairs() if kind == "gpt2" else sentence_pieces())
    stream, found = tokenizer.stream(), ""
    for token in tokenizer.encode(text, add_special_tokens=False, parse_special=False):
        found += stream.push(token)
        assert text.startswith(found)
    assert found == text and stream.finish() == ""


def test_streams_of_bytes_that_are_no_characters() -> None:
    tokenizer = Tokenizer.from_gguf(sentence_pieces())
    octets = [3 + b for b in b"\xe2\x82\xac\xff\xe2\x82A\xf0\x9f"]
    stream = tokenizer.stream()
    pieces = [stream.push(token) for token in octets]
    assert pieces == ["", "", "€", "\ufffd", "", "", "\ufffdA", "", ""]
    assert stream.finish() == "\ufffd"
    assert tokenizer.decode(octets) == "€\ufffd\ufffdA\ufffd"
    assert tokenizer.token_bytes(octets[0]) == b"\xe2"


# ---- folders


def folder(path: Path, **files: Any) -> Path:
    Tokenizer.from_gguf(byte_pairs("qwen2"))._tokenizer.save(str(path / "tokenizer.json"))
    for name, contents in files.items():
        (path / f"{name}.json").write_text(json.dumps(contents))
    return path


def test_folders(tmp_path: Path) -> None:
    special = {"eos_token": {"content": "<|end|>"}, "bos_token": None}
    folder(tmp_path, tokenizer_config={**special, "chat_template": "{{ 1 }}"})
    tokenizer = Tokenizer.from_folder(tmp_path)
    library = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert tokenizer.encode(TEXT) == library.encode(TEXT).ids
    assert tokenizer.decode(tokenizer.encode(TEXT)) == TEXT
    assert tokenizer.vocab_size == library.get_vocab_size()
    assert tokenizer.special_tokens == {"eos_token": "<|end|>"} and tokenizer.bos_id is None
    assert tokenizer.chat_templates == {"default": "{{ 1 }}"}
    assert tokenizer.eos_ids == {tokenizer.id("<|end|>")}
    assert json.loads(tokenizer.to_json())["model"]["type"] == "BPE"
    folder(tmp_path, generation_config={"eos_token_id": [3, 4]}, config={"eos_token_id": 5})
    assert Tokenizer.from_folder(tmp_path).eos_ids == {3, 4, tokenizer.id("<|end|>")}
    (tmp_path / "chat_template.jinja").write_text("{{ 2 }}")
    assert Tokenizer.from_folder(tmp_path).chat_templates == {"default": "{{ 2 }}"}


def test_texts_are_neither_cut_off_nor_padded(tmp_path: Path) -> None:
    library = tokenizers.Tokenizer.from_file(str(folder(tmp_path) / "tokenizer.json"))
    library.enable_truncation(4)
    library.enable_padding(length=64)
    library.add_tokens(["<naïve>"])  # its letters are bytes of the alphabet, which is not meant
    library.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.from_folder(tmp_path)
    text = f"{TEXT}<naïve>{TEXT}"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.encode("hello") == [tokenizer.id("hello")]


def test_templates_by_name(tmp_path: Path) -> None:
    templates = [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}, 3]
    folder(tmp_path, tokenizer_config={"chat_template": templates})
    wanted = {"default": "a", "tool_use": "b"}
    assert Tokenizer.from_folder(tmp_path).chat_templates == wanted
    said = byte_pairs() | {"tokenizer.chat_template": "a", "tokenizer.chat_template.tool_use": "b"}
    said["tokenizer.chat_templates"] = ["tool_use"]
    assert Tokenizer.from_gguf(said).chat_templates == wanted


def test_decoders_of_the_library_agree(tmp_path: Path) -> None:
    for said in (byte_pairs(), sentence_pieces(), unigrams()):
        tokenizer = Tokenizer.from_gguf(said)
        for text in (" hello  world", "hello", "ab a"):
            tokens = tokenizer.encode(text)
            assert tokenizer.decode(tokens) == tokenizer._tokenizer.decode(tokens)


# ---- what is no vocabulary


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"model": "rwkv"}, "'rwkv' are not read"),
        ({"model": 3}, "no fitting tokenizer.ggml.model"),
        ({"tokens": "abc"}, "no fitting tokenizer.ggml.tokens"),
        ({"tokens": ["a", "a"]}, "does not fit"),
        ({"pre": "unheard-of"}, "'unheard-of' splits"),
        ({"token_type": np.zeros(3, np.int32)}, "does not fit"),
        ({"merges": ["zz yy"]}, "cannot be read"),
        ({"merges": ["h"]}, "cannot be read"),
        ({"add_bos_token": 3}, "no fitting"),
    ],
)
def test_what_is_no_vocabulary_is_refused(change: dict[str, Any], why: str) -> None:
    said = byte_pairs() | {f"tokenizer.ggml.{key}": value for key, value in change.items()}
    with pytest.raises(BadFile, match=why):
        Tokenizer.from_gguf(said)


def test_tokens_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="twice, or an endless one"):
        Tokenizer.from_gguf(metadata("gpt2", {"a" * 2000: NORMAL}))
    said = byte_pairs()
    said["tokenizer.ggml.tokens"][5] = said["tokenizer.ggml.tokens"][6]
    with pytest.raises(BadFile, match="twice"):
        Tokenizer.from_gguf(said)
    charsmap = unigrams() | {"tokenizer.ggml.precompiled_charsmap": np.uint8([1, 2, 3])}
    with pytest.raises(BadFile, match="charsmap"):
        Tokenizer.from_gguf(charsmap)


@pytest.mark.parametrize("count", [60, pytest.param(3000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["gpt2", "llama", "bert", "t5"])
def test_no_damage_does_harm(tmp_path: Path, kind: str, count: int) -> None:
    said = {"gpt2": byte_pairs, "llama": sentence_pieces, "bert": word_pieces, "t5": unigrams}
    file = tmp_path / "v.gguf"
    write_gguf(file, said[kind](), {})
    for bad in damaged(file.read_bytes(), count):
        file.write_bytes(bad)
        try:
            tokenizer = Tokenizer.from_gguf(GGUFFile(file).metadata)
            tokenizer.decode(tokenizer.encode(TEXT))
        except BadFile:
            continue


@pytest.mark.parametrize("count", [60, pytest.param(3000, marks=pytest.mark.slow)])
def test_damaged_folders(tmp_path: Path, count: int) -> None:
    file = folder(tmp_path) / "tokenizer.json"
    good = file.read_bytes()
    for bad in [b"", b"{}", b"[" * 100_000, *damaged(good, count)]:
        file.write_bytes(bad)
        try:
            tokenizer = Tokenizer.from_folder(tmp_path)
            tokenizer.decode(tokenizer.encode(TEXT))
        except BadFile:
            continue
    with pytest.raises(FileNotFoundError, match=r"no tokenizer\.json"):
        Tokenizer.from_folder(tmp_path / "nowhere")


# ---- llama.cpp's own


@pytest.mark.skipif(not VOCABULARIES, reason="GENESIS_LLAMA_CPP names no sources of llama.cpp")
@pytest.mark.parametrize("file", VOCABULARIES, ids=lambda path: path.stem)
def test_tokens_are_those_of_llama_cpp(file: Path) -> None:
    tokenizer = Tokenizer.from_gguf(GGUFFile(file).metadata)
    if not file.with_suffix(".gguf.inp").exists():
        assert tokenizer.decode(tokenizer.encode("Hello world")).strip() == "Hello world"
        return
    texts = file.with_suffix(".gguf.inp").read_bytes().decode().split("\n__ggml_vocab_test__\n")
    lines = file.with_suffix(".gguf.out").read_text().split("\n")
    for text, line in zip(texts, lines, strict=False):
        found = tokenizer.encode(text, add_special_tokens=False, parse_special=False)
        assert found == [int(x) for x in line.split()]
        assert "bert" in file.stem or tokenizer.decode(found) == text
