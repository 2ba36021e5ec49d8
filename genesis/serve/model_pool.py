"""The models of a server, under one plan of memory.

A model is loaded when it is first asked for, and dropped when nobody asked for a while or another
one needs the room, unless it is pinned. LoRA adapters are names of their own, over a model.
"""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from genesis.llm import LLM
from genesis.llm.scheduler import Scheduler
from genesis.llm.step_time import StepTime
from genesis.serve.errors import ApiError
from genesis.serve.tool_calls import CallFormat, format_of

_log = logging.getLogger("genesis.serve")
_BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0, "int8": 1.07, "int4": 0.57}
_SAMPLES = ((16, 1), (160, 2), (64, 8))  # tokens of prompts, and answers to them


@dataclass
class Spec:
    """A model by name, and how it is run (fields of `genesis.llm`'s `Settings`)."""

    name: str
    path: Path
    how: dict[str, Any] = field(default_factory=dict)
    aliases: list[str] = field(default_factory=list)
    adapters: dict[str, Path] = field(default_factory=dict)
    pinned: bool = False


class ServedModel:
    """A model that may be loaded."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.llm: LLM | None = None
        self.active = 0
        self.used = self.created = time.time()
        self.times = StepTime()
        self.written = 128.0  # tokens of an answer, as they were lately
        self.format = CallFormat("json")
        self.restarts = 0
        self.rendering = ThreadPoolExecutor(1)  # one prompt at a time: a template may loop
        self.vectors: OrderedDict[bytes, Any] = OrderedDict()  # of texts, the latest last

    @property
    def name(self) -> str:
        """What it is called."""
        return self.spec.name

    @property
    def generates(self) -> bool:
        """Whether it writes texts, and does not embed them."""
        return self.llm is not None and self.llm.generates

    def planned(self) -> dict[str, int]:
        """The bytes it takes, by what for: as loaded, or as its files say."""
        pages = int(self.spec.how.get("cache_bytes", 0))
        if self.llm is not None and self.llm.generates:
            executor = self.llm.engine.executor
            held = {id(b): b.nbytes for b in executor.decoder.buffers() if b is not None}
            weights = sum(held.values())
            pages = sum(x.nbytes for cache in executor.caches for x in cache.arrays)
        else:
            weights = _weights(self.spec.path, self.spec.how.get("format"))
        return {"weights": weights, "pages": pages, "host": int(self.spec.how.get("host_bytes", 0))}

    def system(self) -> dict[str, Any]:
        """What the simulator has to know of it."""
        assert self.llm is not None
        scheduler = self.llm.engine.scheduler
        limits, pool = scheduler.limits, scheduler.pool
        return {
            "costs": [float(cost) for cost in self.times.costs], "page_size": pool.page_size,
            "pages": [g.pages for g in pool.groups], "windows": [g.window for g in pool.groups],
            "context": limits.context, "sequences": limits.sequences,
            "step_tokens": limits.step_tokens,
            "noise": sorted(round(x, 4) for x in list(self.times.noise)[::8]),
        }  # fmt: skip

    def predicted_wait(self, tokens: int) -> float:
        """Seconds until a prompt that came now would have its first token."""
        assert self.llm is not None
        return predicted_wait(self.llm.engine.scheduler, self.times, self.written, tokens)


def predicted_wait(scheduler: Scheduler, times: StepTime, written: float, tokens: int) -> float:
    """Seconds until a prompt would have its first token, where answers are `written` tokens long.

    What waits has its prompts computed, beside steps of what runs; and whoever finds all places
    taken waits for as many answers to end.
    """
    waiting, ahead, running, read = scheduler.backlog()
    slots = scheduler.limits.sequences
    step = times.seconds((1, 0, 0, running, read, 0)) if running else 0.0
    pieces = (ahead + tokens) / scheduler.limits.step_tokens + 1
    prompts = (ahead + tokens) * times.costs[2] + (waiting + 1) * times.costs[1] + pieces * step
    behind = max(0, waiting + running + 1 - slots)
    return float(prompts + behind * written * step / slots)


class Models:
    """All models; `memory` is what they may take together, in bytes."""

    def __init__(
        self,
        specs: list[Spec],
        memory: int = 0,
        idle: float = 0.0,
        shares: Mapping[str, float] | None = None,
        watch: Callable[[ServedModel], Callable[..., None]] | None = None,
    ) -> None:
        if len({s.name for s in specs}) < len(specs):
            raise ValueError("two models have the same name")
        self.models = {spec.name: ServedModel(spec) for spec in specs}
        self.memory = memory or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * 3 // 4
        self._idle, self._shares, self._watch = idle, dict(shares or {}), watch
        self._loading = asyncio.Lock()
        share = self.memory // max(1, 2 * len(specs))
        for spec in specs:
            spec.how.setdefault("cache_bytes", min(share, 4 << 30))

    def names(self) -> dict[str, tuple[ServedModel, str | None]]:
        """Every name a request can have: its model, and the folder of its adapter."""
        found: dict[str, tuple[ServedModel, str | None]] = {}
        for model in self.models.values():
            spec = model.spec
            found |= dict.fromkeys((spec.name, *spec.aliases), (model, None))
            found |= {name: (model, str(path)) for name, path in spec.adapters.items()}
        return found

    def find(self, name: str | None) -> tuple[ServedModel, str | None]:
        """A model by name, and the folder of its adapter; the first if there is no name."""
        names = self.names()
        if name is None:
            return next(iter(names.values()))
        if name not in names:
            text = f"there is no model {name[:80]!r}; there are {', '.join(sorted(names))}"
            raise ApiError(404, text, param="model", code="model_not_found")
        return names[name]

    @asynccontextmanager
    async def use(self, name: str | None) -> AsyncIterator[tuple[ServedModel, str | None]]:
        """A model, loaded, which stays so until the end of the block."""
        model, adapter = self.find(name)
        model.active += 1
        try:
            await self.loaded(model)
            yield model, adapter
        finally:
            model.active -= 1
            model.used = time.time()

    async def loaded(self, model: ServedModel) -> None:
        """Load a model that is not, after others made room for it."""
        if model.llm is not None:
            return
        async with self._loading:
            if model.llm is None:
                await self._make_room(model)
                await asyncio.to_thread(self._load, model)

    async def _make_room(self, model: ServedModel) -> None:
        need = sum(model.planned().values())
        held = [m for m in self.models.values() if m.llm is not None]
        over = need + sum(sum(m.planned().values()) for m in held) - self.memory
        for other in sorted(held, key=lambda m: m.used):
            if over > 0 and not other.active and not other.spec.pinned:
                over -= sum(other.planned().values())
                await self.drop(other)
        if over > 0 and held:
            text = f"model {model.name}: {over / 1e6:.0f} MB are missing beside models in use"
            raise ApiError(503, text, code="no_memory", retry_after=10)

    def _load(self, model: ServedModel) -> None:
        try:
            llm = LLM(model.spec.path, **model.spec.how)
        except Exception as error:
            known = isinstance(error, OSError | ValueError)
            _log.error("model %s: %s", model.name, error, exc_info=not known)
            raise ApiError(500, f"model {model.name} cannot be loaded: {error}") from None
        if llm.generates:
            engine = llm.engine
            llm.generate([0], n=2, max_tokens=3, ignore_eos=True)  # compiles what is not yet
            engine.scheduler.limits = replace(engine.scheduler.limits, shares=self._shares)
            engine.watch = self._watch(model) if self._watch is not None else None
            for length, n in _SAMPLES:  # so that the first plans know what steps take
                length, n = min(length, llm.context - 4), min(n, engine.scheduler.limits.sequences)
                llm.generate([n] * length, n=n, max_tokens=4, ignore_eos=True)
            engine.scheduler.times = model.times  # from now on it learns what requests are like
            model.format = format_of("".join(llm.tokenizer.chat_templates.values()))
        model.llm = llm

    async def drop(self, model: ServedModel) -> None:
        """Let go of a model; what lies in its cache goes to the disk, if it has one."""
        llm, model.llm = model.llm, None
        if llm is not None:
            await asyncio.to_thread(llm.close)

    async def sweep(self, stall: float) -> None:
        """Drop what is idle, and restart engines that show no sign of life."""
        for model in self.models.values():
            llm = model.llm
            if llm is None:
                continue
            if llm.generates and (not llm.loop.alive or llm.loop.age > stall):
                _log.error("model %s: no step for %.0f s; it is restarted", model.name, stall)
                faulthandler.dump_traceback()
                llm.abandon(RuntimeError("the engine showed no sign of life"))
                model.llm = None
                model.restarts += 1
                await self.loaded(model)
            unused = not model.active and not model.spec.pinned
            if self._idle and unused and time.time() - model.used > self._idle:
                await self.drop(model)

    def healthy(self, stall: float) -> bool:
        """Whether every engine shows signs of life."""
        loaded = [m.llm for m in self.models.values() if m.llm is not None]
        return all(x.loop.alive and x.loop.age < stall for x in loaded if x.generates)

    async def close(self) -> None:
        """Let go of all."""
        for model in self.models.values():
            await self.drop(model)


def _weights(path: Path, format: str | None) -> int:
    """The bytes of a model's weights in a format, by the size of its files in 16 bits."""
    files = [path] if path.is_file() else [*path.glob("*.safetensors"), *path.glob("*.gguf")]
    size = sum(file.stat().st_size for file in files)
    return int(size * _BYTES.get(format or "bfloat16", 2.0) / 2)


__all__ = ["ServedModel", "Models", "Spec"]
