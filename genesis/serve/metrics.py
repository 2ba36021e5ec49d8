"""What is counted, by the names that dashboards know."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily

from genesis.llm.request import EngineStep
from genesis.llm.step_time import StepSize

_SOON = (0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300)
_TRACE_SECONDS = 60.0


class Metrics:
    """Counters of a server; `models` are looked at when somebody asks."""

    def __init__(self, models: Callable[[], Iterable[Any]]) -> None:
        self.registry = registry = CollectorRegistry()
        self._models = models
        registry.register(self)

        def histogram(name: str, text: str, *labels: str) -> Histogram:
            return Histogram(
                f"genesis_{name}_seconds", text, labels, registry=registry, buckets=_SOON
            )

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"genesis_{name}", text, labels, registry=registry)

        self.requests = counter("requests", "requests by what came of them", "path", "status")
        self.first_token = histogram(
            "time_to_first_token", "from a request to its first token", "model", "tier"
        )
        self.between = histogram("time_per_output_token", "between tokens", "model", "tier")
        self.whole = histogram("e2e_request_latency", "from a request to its end", "path")
        self.prompt = counter("prompt_tokens", "tokens of prompts", "model")
        self.generated = counter("generation_tokens", "tokens of answers", "model")
        self.cached = counter("prefix_cached_tokens", "tokens of prompts found in a cache", "model")
        self.preemptions = counter("preemptions", "requests that made way", "model")
        self.steps = histogram("step", "a step, by part", "model", "part")
        self.pause = Gauge(
            "genesis_event_loop_longest_pause_seconds", "since it was last asked", registry=registry
        )
        self.trace: deque[tuple[str, float, float, Mapping[str, Any]]] = deque(maxlen=4096)

    def tokens(self, model: str, prompt: int, generated: int, cached: int) -> None:
        """A request is over that took these."""
        self.prompt.labels(model).inc(prompt)
        self.generated.labels(model).inc(generated)
        self.cached.labels(model).inc(cached)

    def watch(self, model: Any) -> Callable[[EngineStep, Sequence[float]], None]:
        """What an engine is to tell its steps: they are timed, and learned from."""
        parts = [self.steps.labels(model.name, part) for part in ("plan", "compute", "choose")]
        preempted = self.preemptions.labels(model.name)

        def note(step: EngineStep, times: Sequence[float]) -> None:
            for part, begin, end in zip(parts, times, times[1:], strict=False):
                part.observe(end - begin)
            preempted.inc(len(step.preempted))
            if step.work:
                size = StepSize.of(step)
                model.times.note(size, times[-1] - times[0])
                args = {"prompt tokens": size.tokens, "rows": size.rows, "read": size.read}
                self.event(f"{model.name}: step", times[0], times[-1], args)

        return note

    def event(self, name: str, begin: float, end: float, args: Mapping[str, Any]) -> None:
        """Something that took a while, for the trace."""
        self.trace.append((name, begin, end, args))

    def last(self, now: float) -> dict[str, Any]:
        """The last minute, as Perfetto reads it."""
        found = [
            {"name": name, "ph": "X", "pid": 1, "tid": name.split(":")[0], "ts": begin * 1e6,
             "dur": (end - begin) * 1e6, "args": args}
            for name, begin, end, args in list(self.trace)
            if end >= now - _TRACE_SECONDS
        ]  # fmt: skip
        return {"traceEvents": found}

    def text(self) -> bytes:
        """All of it, as Prometheus reads it."""
        found = generate_latest(self.registry)
        self.pause.set(0)
        return found

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """What engines have now."""
        rows: dict[tuple[str, str, tuple[str, ...]], list[tuple[tuple[str, ...], float]]] = {}

        def note(name: str, text: str, value: float, **labels: str) -> None:
            rows.setdefault((name, text, tuple(labels)), []).append((tuple(labels.values()), value))

        for model in self._models():
            for what, size in model.planned().items():
                note("memory_bytes", "planned", size, model=model.name, what=what)
            note("model_loaded", "1 if it is", float(model.llm is not None), model=model.name)
            note("engine_restarts", "by the watchdog", model.restarts, model=model.name)
            if model.generates:
                _engine(model, note)
        for (name, text, labels), values in rows.items():
            family = GaugeMetricFamily(f"genesis_{name}", text, labels=labels)
            for given, value in values:
                family.add_metric(given, value)
            yield family


def _engine(model: Any, note: Callable[..., None]) -> None:
    engine, name = model.llm.engine, model.name
    scheduler = engine.scheduler
    waiting, _, running, _ = scheduler.backlog()
    note("num_requests_waiting", "in the queue", waiting, model=name)
    note("num_requests_running", "sequences that run", running, model=name)
    total = sum(group.pages for group in scheduler.pool.groups)
    free = sum(scheduler.pool.available())
    kept = sum(scheduler.cache.kept(g) for g in range(len(scheduler.pool.groups)))
    note("kv_cache_usage_ratio", "pages that requests hold", 1 - free / total, model=name)
    note("pages", "by tier", kept, model=name, tier="device")
    if scheduler.cache.tiers is not None:
        tiers = scheduler.cache.tiers
        note("pages", "by tier", len(tiers._host), model=name, tier="host")
        note(
            "pages", "by tier", 0 if tiers.log is None else len(tiers.log), model=name, tier="disk"
        )
    note("evictions", "pages that left the device", scheduler.cache.evictions, model=name)
    note("spec_decode_draft_tokens", "tokens guessed", engine.guessed, model=name)
    note("spec_decode_accepted_tokens", "and right", engine.accepted, model=name)


__all__ = ["Metrics"]
