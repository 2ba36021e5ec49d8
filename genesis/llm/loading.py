"""From the files of a model to what runs it: weights, tokenizer, pages and the engine."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import genesis
from genesis.content_store import generation
from genesis.llm import gguf_config
from genesis.llm.config import BadModel, DecoderConfig
from genesis.llm.decoder import Decoder
from genesis.llm.encoder import FAMILIES as ENCODERS
from genesis.llm.encoder import Encoder, EncoderConfig, read_pooling
from genesis.llm.encoder import read_config as read_encoder
from genesis.llm.engine import Engine
from genesis.llm.eviction import LRU, Cost, Heat, Learned
from genesis.llm.executor import Executor
from genesis.llm.families import read_config
from genesis.llm.gguf_names import GGUFSource, encoder_name
from genesis.llm.kv_cache import FORMATS
from genesis.llm.lora import Adapters
from genesis.llm.page_offload import Log, Tiers
from genesis.llm.pages import PageGroup, PagePool
from genesis.llm.prefix_cache import PrefixCache
from genesis.llm.request import Limits
from genesis.llm.scheduler import Scheduler
from genesis.llm.speculation import Draft, NGrams, Proposer
from genesis.llm.tokenizer import Tokenizer
from genesis.llm.weight_names import DecoderTensors
from genesis.weights.array_cache import ArrayCache
from genesis.weights.checkpoint_reader import Weights, open_weights
from genesis.weights.repack_quantized import QuantizedParameter

POLICIES = {"lru": LRU, "heat": Heat, "cost": Cost, "learned": Learned}


@dataclass(frozen=True)
class Settings:
    """How a model is run.

    `format`: what weights are stored as, "float32", "bfloat16", "float16" or one of
    `genesis.compress.FORMATS`; as in the file unless given. Quantised files keep their bits, and
    activations are rounded to integers of 8 bits by the greatest of a group: with "float32" nothing
    is rounded. `max_length` is the longest text, prompt and answer: what the model takes
    and memory allows unless given. `cache_bytes` is what pages of keys and values may take, a
    quarter of the machine's free memory unless given, and `cache_format` what they are stored as:
    "float32", "bfloat16", "float16", "fp8", "int8" or "int4".
    """

    format: str | None = None
    max_length: int | None = None
    cache_bytes: int = 0
    cache_format: str = "float32"
    page_size: int = 64  # a multiple of 16: of smaller pages bits depend on how a text was cut
    step_tokens: int = 512
    sequences: int = 64
    policy: str = "learned"
    host_bytes: int = 0
    disk: str | Path | None = None
    disk_bytes: int = 1 << 34
    #: What guesses tokens ahead: "ngrams", a number of the model's own layers, or another model.
    speculate: str | int | Path | None = None
    drafts: int = 4
    #: Slots for LoRA adapters, and their greatest rank.
    adapters: int = 0
    adapter_rank: int = 16

    def __post_init__(self) -> None:
        if not self.cache_bytes:
            free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
            object.__setattr__(self, "cache_bytes", free // 4)
        for name in ("cache_bytes", "page_size", "step_tokens", "sequences", "drafts"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, not a positive number")
        if self.max_length is not None and self.max_length < 1:
            raise ValueError(f"max_length is {self.max_length}, not a positive number")
        if self.cache_format not in FORMATS:
            raise ValueError(f"cache_format is {self.cache_format!r}, none of {', '.join(FORMATS)}")
        if self.policy not in POLICIES:
            raise ValueError(f"policy is {self.policy!r}, not one of {', '.join(POLICIES)}")


@dataclass
class Loaded:
    """A model that is ready."""

    tokenizer: Tokenizer
    engine: Engine | None = None
    encoder: Encoder | None = None


class _Tensors:
    """Weights as tensors."""

    def __init__(self, weights: Weights) -> None:
        self.weights = weights

    def names(self) -> Iterable[str]:
        return self.weights.names()

    def read(self, name: str) -> Any:
        return QuantizedParameter.of(self.weights, name) or genesis.from_numpy(
            self.weights.read(name)
        )


def load(path: Path, settings: Settings) -> Loaded:
    """The model of a folder or file."""
    if not path.exists():
        raise FileNotFoundError(f"LLM: there is no {path}")
    weights = open_weights(path)
    tokenizer = _tokenizer(path, weights)
    if _is_encoder(weights):
        return Loaded(tokenizer, encoder=_encoder(path, weights))
    return Loaded(tokenizer, engine=_engine(path, weights, settings, tokenizer))


def _tokenizer(path: Path, weights: Weights) -> Tokenizer:
    if weights.metadata:
        return Tokenizer.from_gguf(weights.metadata)
    return Tokenizer.from_folder(path if path.is_dir() else path.parent)


def _is_encoder(weights: Weights) -> bool:
    if weights.metadata is not None:
        return weights.metadata.get("general.architecture") in gguf_config.ENCODERS
    return weights.config.get("model_type") in ENCODERS


def _encoder(path: Path, weights: Weights) -> Encoder:
    if weights.metadata is not None:
        config = gguf_config.read_encoder(weights, str(path))
        return _named_encoder(config, path, weights, encoder_name)
    config = read_encoder(dict(weights.config), str(path / "config.json"), **read_pooling(path))
    prefix = next((p for p in ("", "bert.", "roberta.") if _FIRST in _after(weights, p)), None)
    if prefix is None:
        raise BadModel(f"{path}: there is no tensor {_FIRST!r}")
    return _named_encoder(config, path, weights, prefix.__add__)


def _named_encoder(
    config: EncoderConfig, path: Path, weights: Weights, called: Callable[[str], str]
) -> Encoder:
    """The encoder of files that call tensors by names of their own."""

    def read(name: str, shape: tuple[int, ...]) -> Any:
        theirs = called(name)
        if theirs not in weights:
            raise BadModel(f"{path}: there is no tensor {theirs!r}")
        value = genesis.from_numpy(weights.read(theirs)).to(genesis.float32)
        if tuple(value.shape) != shape:
            raise BadModel(
                f"{path}: {theirs} has the shape {tuple(value.shape)}, where the "
                f"configuration means {shape}"
            )
        return value

    return Encoder(config, read)


_FIRST = "embeddings.word_embeddings.weight"


def _after(weights: Weights, prefix: str) -> set[str]:
    return {name.removeprefix(prefix) for name in weights.names() if name.startswith(prefix)}


def _engine(path: Path, weights: Weights, settings: Settings, tokenizer: Tokenizer) -> Engine:
    decoder = decoder_of(path, weights, settings)
    config, longest = decoder.config, decoder.longest
    pages = _pages(decoder, settings, longest)
    pool = PagePool(
        settings.page_size,
        [PageGroup(n, window) for n, window in zip(pages, config.windows, strict=True)],
    )
    tiers = None
    if settings.host_bytes or settings.disk is not None:
        log = None
        if settings.disk is not None:
            log = Log(Path(settings.disk), settings.disk_bytes)
        tiers = Tiers(settings.host_bytes, log, FORMATS[settings.cache_format].dtype.itemsize)
    cache = PrefixCache(pool, POLICIES[settings.policy], tiers)
    limits = Limits(longest, max(settings.step_tokens, settings.sequences + 1), settings.sequences)
    adapters = None
    if settings.adapters:
        adapters = Adapters(decoder, settings.adapters, settings.adapter_rank)
    executor = Executor(
        decoder, pages, settings.page_size, settings.cache_format, adapters is not None
    )
    executor.prepare()
    return Engine(
        executor,
        Scheduler(limits, pool, cache, _identity(path, settings)),
        end=sorted(tokenizer.eos_ids),
        text=tokenizer.stream,
        proposer=_proposer(settings, executor),
        drafts=settings.drafts if settings.speculate is not None else 0,
        adapters=adapters,
    )


def _proposer(settings: Settings, executor: Executor) -> Proposer | None:
    how, config = settings.speculate, executor.decoder.config
    if how is None:
        return None
    if how == "ngrams":
        return NGrams()
    if isinstance(how, int):
        if not 0 < how < len(config.layers):
            raise ValueError(f"speculate is {how}, and the model has {len(config.layers)} layers")
        return Draft(executor.first(how), shares_pages=True)
    draft = decoder_of(Path(how), open_weights(how), settings)
    if draft.config.vocabulary != config.vocabulary or len(draft.config.windows) > len(
        config.windows
    ):
        raise BadModel(f"{how}: a draft has the model's vocabulary, and layers that see as far")
    pages = executor.pages[: len(draft.config.windows)]
    return Draft(Executor(draft, pages, settings.page_size, settings.cache_format))


def decoder_of(path: Path, weights: Weights, settings: Settings) -> Decoder:
    """The decoder of a folder or file, which was opened."""
    if weights.metadata is None:
        config = read_config(dict(weights.config), str(path / "config.json"))
        kind = DecoderTensors
    else:
        config = gguf_config.read_config(weights, str(path))
        kind = GGUFSource
    longest = min(settings.max_length or _affordable(config, settings), config.context)
    array_cache = ArrayCache(*_files(path), generation("compress", "weights"))
    source = kind(_Tensors(weights), config, str(path), settings.format, array_cache)
    with genesis.no_grad():
        decoder = Decoder(config, source, longest)
    array_cache.finish()
    return decoder


def _affordable(config: DecoderConfig, settings: Settings) -> int:
    """The longest text whose keys and values fit: a configuration may say any length."""
    groups = range(len(config.windows))
    token = sum(Executor.page_bytes(config, g, 1, settings.cache_format) for g in groups)
    return max(settings.cache_bytes // token, settings.page_size)


def _pages(decoder: Decoder, settings: Settings, longest: int) -> list[int]:
    """How many pages each group gets: as many texts of full length as fit, at least one."""
    size, windows = settings.page_size, decoder.config.windows
    budget = settings.cache_bytes
    whole = -(-longest // size)
    # A window keeps its own pages, those of the step that is being computed, and one at each end.
    each = [
        whole if w is None else min(whole, -(-(w + settings.step_tokens) // size) + 2)
        for w in windows
    ]
    bytes_ = [
        Executor.page_bytes(decoder.config, g, size, settings.cache_format)
        for g in range(len(windows))
    ]
    text = sum(n * b for n, b in zip(each, bytes_, strict=True))
    count = budget / text
    if count < 1:
        raise BadModel(
            f"a text of {longest} tokens takes {text / 1e6:.0f} MB of keys and values, and "
            f"cache_bytes is {budget / 1e6:.0f} MB; set max_length or cache_bytes"
        )
    most = settings.sequences + 1
    return [int(min(count, most) * n) for n in each]


def _identity(path: Path, settings: Settings) -> bytes:
    """What tells the pages of this model from those of another."""
    settled = repr((settings.format, settings.cache_format))
    return hashlib.sha256("\n".join((settled, *_files(path))).encode()).digest()


def _files(path: Path) -> list[str]:
    """What tells the files of this model from those of another."""
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    stats = [(file.resolve(), file.stat()) for file in files if file.is_file()]
    return [repr((str(name), s.st_size, s.st_mtime_ns)) for name, s in stats]


__all__ = ["Loaded", "Settings", "decoder_of", "load"]
