"""The vocabularies of GGUF files, as objects of the library `tokenizers`.

A file holds tokens with scores or merges, and names the way in which text is split into words;
the patterns that the names stand for are llama.cpp's, or what those were adapted from.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from genesis.serialization import BadFile

SPACE = "▁"  # how vocabularies of SentencePiece write a space
#: Tokens that end an answer, whatever the file says of them.
_ENDS = {
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>",
    "<end_of_turn>", "<|eom_id|>", "<|endoftext|>", "<|end_of_text|>", "<EOT>", "_<EOT>", "[EOT]",
    "[EOS]", "<end_of_utterance>", "<eos>", "<turn|>", "<|tool_response>", "[e~[",
    "<｜end▁of▁sentence｜>",
}  # fmt: skip

_ENGLISH = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_QWEN2 = rf"{_ENGLISH}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_REST}"
_LLAMA3 = _QWEN2.replace(r"\p{N}|", r"\p{N}{1,3}|", 1)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASES = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+END|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*END"
_SLASH = _REST.replace(r"[\r\n]*", r"[\r\n/]*", 1)
_GPT4O = _CASES.replace("END", f"{_ENGLISH}?") + rf"|\p{{N}}{{1,3}}|{_SLASH}"
_MARKS = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
_DEEPSEEK3 = (
    rf"{_MARKS}|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
#: Letters that have cases. Escaped: some have lookalikes, which editors put in their place.
_CASED = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-"
    "\u02af\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1"
    "\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-"
    "\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15"
    "\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d"
    "\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb"
    "\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d"
    "\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183"
    "\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b"
    "\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-"
    "\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb"
    "\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
#: What splits text into words, one pattern after the other, by the names of files.
_PATTERNS: dict[str, tuple[str, ...]] = {
    "default": (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"),
    "gpt-2 phi-2 mpt olmo jais trillion granite-docling jina-es jina-de jina-v2-es jina-v2-de "
    "jina-v1-en jina-v2-code roberta-bpe gigachat a.x-4.0 mellum modern-bert exaone4": (_GPT2,),
    "starcoder refact command-r smollm codeshell exaone minerva-7b mellum2": (r"\p{N}", _GPT2),
    "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano dbrx smaug-bpe "
    "chatglm-bpe glm4 glm5": (_LLAMA3,),
    "qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2": (_QWEN2,),
    "ufakzeka": (_QWEN2.removeprefix(f"{_ENGLISH}|"),),
    "qwen35": (
        _QWEN2.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(r"[^\s\p{L}", r"[^\s\p{L}\p{M}"),
    ),
    "minicpm5": (r"\p{N}{1,3}", _QWEN2.replace(r"\p{N}|", r"\p{N}+|", 1)),
    "laguna": (r"[^\n]+|\n+", _QWEN2),
    "seed-coder": (
        _QWEN2.replace(r" ?[^\s\p{L}\p{N}]+[\r\n]*", r" ?[^\s\p{L}\p{N}\r\n]+"),
    ),
    "bailingmoe bailingmoe2 llada-moe": (_QWEN2.replace(r"\s*[\r\n]+", r"\s*[\r\n]"),),
    "tekken": (_CASES.replace("END", "") + rf"|\p{{N}}|{_SLASH}",),
    "gpt-4o llama4 kanana2 talkie minimax-m2 granite-embed-multi-97m": (_GPT4O,),
    "tiny_aya cohere2moe": (r"\d{1,3}(?=(?:\d{3})*\b)", _GPT4O),
    "falcon": (r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]"),
    "deepseek-llm": (
        r"[\r\n]", rf"\s?[{_CASED}]+", r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$",
        "[一-龥ࠀ-一가-퟿]+", r"\p{N}+",
    ),
    "deepseek-coder": (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}"),
    "deepseek-v3 hunyuan-dense joyai-llm hy_v4": (
        r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", _DEEPSEEK3,
    ),
    "poro-chat bloom gpt3-finnish": (r" ?[^(\s|.,!?…。，、।۔،)]+",),
    "viking": (r" ?[^(\s|.,!?…。，、।۔،)]+", r"\p{N}"),
    "superbpe": (r"\p{N}+", r"(?=(\d{3})+(?!\d))"),
}  # fmt: skip
_BY_NAME = {name: patterns for names, patterns in _PATTERNS.items() for name in names.split()}
#: A word that is in the vocabulary is its token, whether merges lead there or not.
_WHOLE_WORDS = {
    "llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2",
    "jina-v5-nano", "glm4", "glm5", "tekken", "minicpm5", "granite-embed-multi-97m",
}  # fmt: skip
_STARTS = _WHOLE_WORDS - {"glm4", "glm5", "minicpm5", "granite-embed-multi-97m"}

_UNKNOWN, _CONTROL, _USER = 2, 3, 4  # types of tokens
_LONGEST = 1024  # characters of a token; the work of finding merges grows with the square


def library() -> Any:
    """The library, where it is installed."""
    try:
        import tokenizers
    except ImportError:
        raise ImportError("genesis.llm needs tokenizers: pip install genesis-dl[llm]") from None
    return tokenizers


class Vocabulary:
    """``tokenizer.ggml.*`` of a GGUF file, checked."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self._metadata = metadata
        self.model = self._get("model", str, None)
        self.pre = self._get("pre", str, "default")
        tokens = self._get("tokens", list, None)
        self.tokens = [text or f"[EMPTY_{k}]" for k, text in enumerate(tokens)]
        self.merges: list[str] = self._get("merges", list, [])
        count = len(self.tokens)
        self.types = self._numbers("token_type", count, 1).tolist()
        self.scores = self._numbers("scores", count, 0)
        self.phi3 = "phi-3" in str(metadata.get("general.name")).lower().replace("phi3", "phi-3")
        if len(set(self.tokens)) != count or max(map(len, self.tokens), default=0) > _LONGEST:
            raise BadFile("Tokenizer: the GGUF vocabulary has a token twice, or an endless one")

    def _get(self, name: str, kind: type, default: Any) -> Any:
        value = self._metadata.get(f"tokenizer.ggml.{name}", default)
        if not isinstance(value, kind):
            raise BadFile(f"Tokenizer: the GGUF metadata have no fitting tokenizer.ggml.{name}")
        return value

    def _numbers(self, name: str, count: int, default: float) -> Any:
        numbers = self._metadata.get(f"tokenizer.ggml.{name}")
        if numbers is None:
            return np.full(count, default)
        if not isinstance(numbers, np.ndarray) or numbers.shape != (count,):
            raise BadFile(f"Tokenizer: tokenizer.ggml.{name} does not fit {count} tokens")
        return numbers

    def _token(self, name: str, default: int | None = None) -> str | None:
        """The text of a special token."""
        k = self._metadata.get(f"tokenizer.ggml.{name}_token_id", default)
        return self.tokens[k] if type(k) is int and 0 <= k < len(self.tokens) else None

    def special(self) -> dict[str, str]:
        """Special tokens by the names that chat templates use."""
        llama, bert = self.model == "llama", self.model == "bert"
        found = {
            "bos_token": self._token("bos", 1 if llama else 101 if bert else None),
            "eos_token": self._token("eos", 2 if llama else 1 if self.model == "t5" else None),
            "unk_token": self._token("unknown", 0 if llama else 100 if bert else None),
            "sep_token": self._token("seperator", 102 if bert else None),  # the format's spelling
            "pad_token": self._token("padding"),
            "mask_token": self._token("mask"),
        }
        return {name: text for name, text in found.items() if text is not None}

    def ends(self) -> set[int]:
        """The tokens that end an answer."""
        said = {self._token(name) for name in ("eos", "eot", "eom")}
        known = {t for t, kind in zip(self.tokens, self.types, strict=True) if kind == _CONTROL}
        ends = said | known & _ENDS | {self.special().get("eos_token")}
        if ends >= {"<|return|>", "<|call|>"} or ends >= {"<|flush|>", "<|calls|>"}:
            ends -= {"<|end|>"}  # ends a message of several that are one answer
        return {k for k, text in enumerate(self.tokens) if text in ends}

    def tokenizer(self) -> Any:
        """The same as an object of the library."""
        build = {
            "gpt2": self._byte_pairs,
            "gemma4": self._spaced_pairs,
            "llama": self._sentence_pieces,
            "bert": self._word_pieces,
            "t5": self._unigrams,
        }.get(self.model)
        if build is None:
            raise BadFile(f"Tokenizer: vocabularies of the kind {self.model!r} are not read")
        tokenizer = build()
        self._add_special(tokenizer)
        self._add_around(tokenizer)
        return tokenizer

    def _ids(self) -> dict[str, int]:
        return {text: k for k, text in enumerate(self.tokens)}

    def _pairs(self, **options: Any) -> Any:
        """Byte pair encoding by the merges of the file."""
        pairs = []
        for merge in self.merges:
            end = merge.find(" ", 1)  # a token may begin with a space
            pairs.append((merge[:end], merge[end + 1 :]))
        lib = library()
        return lib.Tokenizer(lib.models.BPE(self._ids(), pairs, **options))

    def _byte_pairs(self) -> Any:
        if self.pre not in _BY_NAME:
            raise BadFile(f"Tokenizer: how {self.pre!r} splits text into words is not known")
        lib = library()
        tokenizer = self._pairs(ignore_merges=self.pre in _WHOLE_WORDS)
        splits = [lib.pre_tokenizers.Split(lib.Regex(p), "isolated") for p in _BY_NAME[self.pre]]
        level = lib.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.pre_tokenizer = lib.pre_tokenizers.Sequence([*splits, level])
        tokenizer.decoder = lib.decoders.ByteLevel()
        return tokenizer

    def _spaced_pairs(self) -> Any:
        """Byte pair encoding of lines, with spaces and bytes as SentencePiece has them."""
        lib = library()
        tokenizer = self._pairs(byte_fallback=True)
        self._spaces(tokenizer, prefix=False)
        lines = lib.Regex(r"[^\n]+|\n+")
        tokenizer.pre_tokenizer = lib.pre_tokenizers.Split(lines, "isolated")
        return tokenizer

    def _sentence_pieces(self) -> Any:
        """Pairs are merged whose token has the highest score: that is an order of merges."""
        lib = library()
        known = self._ids()
        pairs = []
        for k in np.argsort(-self.scores, kind="stable").tolist():
            text = self.tokens[k]
            cuts = [i for i in range(1, len(text)) if text[:i] in known and text[i:] in known]
            pairs += [(text[:i], text[i:]) for i in cuts]
        unknown = self.special().get("unk_token")
        model = lib.models.BPE(known, pairs, byte_fallback=True, unk_token=unknown, fuse_unk=True)
        tokenizer = lib.Tokenizer(model)
        self._spaces(tokenizer, prefix=bool(self._get("add_space_prefix", bool, True)))
        return tokenizer

    def _spaces(self, tokenizer: Any, prefix: bool) -> None:
        """Write spaces as SentencePiece does, before encoding, and undo it when decoding."""
        lib = library()
        replaced = lib.normalizers.Replace(" ", SPACE)
        first = [lib.normalizers.Prepend(SPACE)] if prefix else []
        tokenizer.normalizer = lib.normalizers.Sequence([*first, replaced])
        steps = [lib.decoders.Replace(SPACE, " "), lib.decoders.ByteFallback()]
        strip = [lib.decoders.Strip(" ", 1, 0)] if prefix else []
        tokenizer.decoder = lib.decoders.Sequence([*steps, lib.decoders.Fuse(), *strip])

    def _word_pieces(self) -> Any:
        """BERT's: a GGUF file marks the tokens that begin a word, the library the others."""
        lib = library()
        special = [kind in (_UNKNOWN, _CONTROL, _USER) for kind in self.types]
        vocabulary = {
            text if plain else text[1:] if text.startswith(SPACE) else f"##{text}": k
            for k, (text, plain) in enumerate(zip(self.tokens, special, strict=True))
        }
        unknown = self.special().get("unk_token", "[UNK]")
        model = lib.models.WordPiece(
            vocabulary, unk_token=unknown, max_input_chars_per_word=1 << 20
        )
        tokenizer = lib.Tokenizer(model)
        lower = self._get("normalizer.lowercase", bool, True)
        accents = self._get("normalizer.strip_accents", bool, lower)
        tokenizer.normalizer = lib.normalizers.BertNormalizer(
            lowercase=lower, strip_accents=accents
        )
        tokenizer.pre_tokenizer = lib.pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = lib.decoders.WordPiece()
        return tokenizer

    def _unigrams(self) -> Any:
        """SentencePiece's other kind, by probabilities."""
        lib = library()
        unknown = self._metadata.get("tokenizer.ggml.unknown_token_id", 2)
        scored = list(zip(self.tokens, map(float, self.scores), strict=True))
        tokenizer = lib.Tokenizer(lib.models.Unigram(scored, unknown, byte_fallback=False))
        charsmap = self._metadata.get("tokenizer.ggml.precompiled_charsmap")
        steps = [] if charsmap is None else [lib.normalizers.Precompiled(charsmap.tobytes())]
        if self._get("remove_extra_whitespaces", bool, False):
            steps += [lib.normalizers.Strip(), lib.normalizers.Replace(lib.Regex(" {2,}"), " ")]
        tokenizer.normalizer = lib.normalizers.Sequence(steps)
        prefix = "always" if self._get("add_space_prefix", bool, True) else "never"
        tokenizer.pre_tokenizer = lib.pre_tokenizers.Metaspace(SPACE, prefix)
        tokenizer.decoder = lib.decoders.Metaspace(SPACE, prefix)
        return tokenizer

    def _add_special(self, tokenizer: Any) -> None:
        """Tokens that are found in a text before anything else."""
        lib = library()
        keeps = {"<unk>", "<s>", "<|endoftext|>"}
        found = []
        for text, kind in zip(self.tokens, self.types, strict=True):
            if kind in (_UNKNOWN, _CONTROL, _USER):
                rstrip = self.phi3 and text not in keeps
                special = kind != _USER
                found.append(lib.AddedToken(text, special=special, normalized=False, rstrip=rstrip))
        tokenizer.add_tokens(found)

    def _add_around(self, tokenizer: Any) -> None:
        """What is put before and after a text."""
        special, bert = self.special(), self.model == "bert"
        starts = self.model in ("llama", "bert", "gemma4") or self.pre in _STARTS
        starts = self._get("add_bos_token", bool, starts)
        ends = bert or self._get("add_eos_token", bool, self.model == "t5")
        before = special.get("bos_token") if starts else None
        after = special.get("sep_token" if bert else "eos_token") if ends else None
        template = [text for text in (before, "$A", after) if text]
        if len(template) > 1:
            ids = [(text, tokenizer.token_to_id(text)) for text in template if text != "$A"]
            around = library().processors.TemplateProcessing(single=template, special_tokens=ids)
            tokenizer.post_processor = around


__all__ = ["SPACE", "Vocabulary", "library"]
