"""The engine under random traffic: answers depend on their requests alone, and nothing is left."""

from __future__ import annotations

import resource
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from genesis.llm.decoder import Decoder
from genesis.llm.engine import Engine
from genesis.llm.executor import Executor
from genesis.llm.page_offload import Tiers
from genesis.llm.pages import PageGroup, PagePool
from genesis.llm.prefix_cache import PrefixCache
from genesis.llm.request import Limits, TokenSpan
from genesis.llm.sampling import SamplingParams
from genesis.llm.scheduler import Scheduler
from genesis.llm.speculation import Draft, NGrams
from tests.llm.random_models import saved
from tests.llm.run_decoder import load


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    folder: Path = tmp_path_factory.mktemp("model")
    saved("gemma3", folder)  # two groups of pages
    return load(folder)


class Traffic:
    """An engine on shared programs, with pages of its own."""

    def __init__(
        self, decoder: Decoder, most: int = 400, size: int = 16, cache: str = "float32"
    ) -> None:
        self.windows = decoder.config.windows
        self.executor = Executor(decoder, [most] * len(self.windows), size, cache)
        self.executor.prepare()  # the programs that serve, for any number of rows
        self.size = size

    def engine(
        self, pages: int, tokens: int = 48, tiers: Tiers | None = None, proposer: Any = None
    ) -> Engine:
        pool = PagePool(self.size, [PageGroup(pages, window) for window in self.windows])
        cache = PrefixCache(pool, tiers=tiers)
        limits = Limits(256, tokens, sequences=16)
        scheduler = Scheduler(limits, pool, cache, b"model")
        return Engine(
            self.executor, scheduler, proposer=proposer, drafts=3 if proposer is not None else 0
        )


@pytest.fixture(scope="module")
def traffic(decoder: Decoder) -> Traffic:
    return Traffic(decoder)


def answers(engine: Engine, requests: dict[str, tuple[list[int], SamplingParams]]) -> Any:
    for id, (prompt, params) in requests.items():
        engine.submit(prompt, params, id=id)
    found: dict[str, list[list[int]]] = {
        id: [[] for _ in range(params.n)] for id, (_, params) in requests.items()
    }
    while len(engine):
        for event in engine.step():
            assert event.error is None, event.error
            found[event.id][event.index] += event.tokens
    engine.scheduler.check()
    return found


class Scores:
    """Notes the scores of all choices; they have the same bits whenever they come again."""

    def __init__(self) -> None:
        self.found: dict[tuple[int, ...], Any] = {}
        self.again = 0

    def __call__(self, tokens: Sequence[int], scores: Any) -> Any:
        known = self.found.setdefault(tuple(tokens), scores.copy())
        assert (known == scores).all(), f"other scores after {len(tokens)} tokens"
        self.again += known is not scores
        return scores


def some(
    rng: np.random.Generator, count: int, scores: Scores | None = None
) -> dict[str, tuple[list[int], SamplingParams]]:
    """Requests with common prefixes, of all kinds."""
    shared = rng.integers(3, 320, 70).tolist()
    requests = {}
    for k in range(count):
        own = rng.integers(3, 320, int(rng.integers(1, 60))).tolist()
        prompt = shared[: int(rng.integers(0, 70))] + own
        params = SamplingParams(
            max_tokens=int(rng.integers(1, 20)), ignore_eos=True, seed=int(rng.integers(1 << 30)),
            temperature=float(rng.choice([0.0, 0.8])), top_p=0.9, n=int(rng.choice([1, 1, 3])),
            processors=[] if scores is None else [scores],
        )  # fmt: skip
        requests[str(k)] = prompt, params
    return requests


def everywhere(traffic: Traffic, requests: dict[str, tuple[list[int], SamplingParams]]) -> None:
    """Requests alone, among others, preempted, with cached prefixes and with guesses."""
    alone = {}
    for id, request in requests.items():
        alone |= answers(traffic.engine(100), {id: request})
    assert answers(traffic.engine(400), requests) == alone
    crowded = traffic.engine(36, tokens=24, tiers=Tiers(1 << 20))  # preempts, evicts and reloads
    assert answers(crowded, requests) == alone
    assert answers(crowded, requests) == alone
    assert answers(traffic.engine(100, proposer=NGrams()), requests) == alone
    layers = Draft(traffic.executor.first(2), shares_pages=True)
    plain = {k: (prompt, replace(p, processors=[])) for k, (prompt, p) in requests.items()}
    assert answers(traffic.engine(100, proposer=layers), plain) == alone  # it guesses by others


def test_answers_are_the_same_to_the_last_bit_in_any_company(traffic: Traffic) -> None:
    scores = Scores()
    everywhere(traffic, some(np.random.default_rng(0), 6, scores))
    assert scores.again > 3 * len(scores.found)


@pytest.mark.parametrize(
    "cache",
    ["int8", *(pytest.param(x, marks=pytest.mark.slow) for x in ("bfloat16", "fp8", "int4"))],
)
def test_pages_of_few_bits_give_the_same_bits_everywhere(decoder: Decoder, cache: str) -> None:
    everywhere(Traffic(decoder, cache=cache), some(np.random.default_rng(4), 4, Scores()))


@pytest.mark.slow
@pytest.mark.timeout(3600)  # more than a machine with other work needs
@pytest.mark.parametrize("name", ["llama", "gemma2", "qwen2 moe", "gpt-oss", "llama4"])
@pytest.mark.parametrize("format", ["float32", "bfloat16", "int8", "int4"])
def test_many_schedules_give_the_same_bits(name: str, format: str, tmp_path: Path) -> None:
    saved(name, tmp_path)
    traffic = Traffic(load(tmp_path, format=format))
    rng = np.random.default_rng(3)
    for _ in range(3):
        everywhere(traffic, some(rng, 8, Scores()))


def test_cancelled_requests_leave_nothing(traffic: Traffic) -> None:
    rng = np.random.default_rng(1)
    engine = traffic.engine(60)
    alive = {}
    for id, (prompt, params) in some(rng, 30).items():
        engine.submit(prompt, params, id=id)
        alive[id] = params.n
    for _ in range(400):
        if not len(engine):
            break
        if alive and rng.random() < 0.3:
            engine.cancel(str(rng.choice(list(alive))))
        for event in engine.step():
            if event.reason is not None and event.id in alive:
                alive[event.id] -= 1
                if not alive[event.id] or event.reason == "cancelled":
                    del alive[event.id]
    assert not len(engine) and not alive
    engine.scheduler.check()
    pool = engine.scheduler.pool
    assert pool.available() == [group.pages for group in pool.groups]


def test_one_program_decodes_any_number_of_texts(decoder: Decoder) -> None:
    """Where programs sum up in different orders, as on GPUs, all texts must have the same one."""
    traffic = Traffic(decoder)
    executor, groups = traffic.executor, len(traffic.windows)
    executor.sums_by_program = True
    captures = executor._decode.captures
    for count in (9, 1, 3):
        works = [TokenSpan(None, 0, 0, [5 + k], [[k]] * groups, True) for k in range(count)]
        scores = executor.decode(works, [4] * count)
        assert [x.shape for x in scores] == [(1, decoder.config.vocabulary)] * count
        if count == 9:
            among = scores[0]
        np.testing.assert_array_equal(scores[0], among)
    assert executor._decode.captures == captures


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_thousand_requests_take_no_more_memory_than_planned(decoder: Decoder) -> None:
    """At three times what the pages hold, and with prompts of any length."""
    rng = np.random.default_rng(2)
    traffic = Traffic(decoder, 100)
    engine = traffic.engine(100, tiers=Tiers(1 << 22))
    answers(engine, some(rng, 40))  # all programs
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(10):
        answers(engine, some(rng, 100))
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert after <= before * 1.02
    assert engine.executor._decode.captures + engine.executor._prefill.captures <= 12


@pytest.fixture(scope="module")
def long_rope(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Traffic]:
    """A model with other frequencies for texts of more than 48 tokens."""
    folder: Path = tmp_path_factory.mktemp("long")
    model = saved("phi3 long", folder)
    return model, Traffic(load(folder))


def test_texts_that_outgrow_their_frequencies(long_rope: tuple[Any, Traffic]) -> None:
    """All of the text is computed anew then, as in transformers."""
    torch = pytest.importorskip("torch")
    model, traffic = long_rope
    params = SamplingParams(max_tokens=24, temperature=0, ignore_eos=True)
    engine = traffic.engine(100)
    for length in (30, 47, 48, 49):
        prompt = np.random.default_rng(length).integers(3, 320, length).tolist()
        with torch.inference_mode():
            want = model.generate(
                torch.tensor([prompt]), do_sample=False, pad_token_id=0,
                min_new_tokens=24, max_new_tokens=24,
            )[0, length:].tolist()  # fmt: skip
        assert answers(engine, {"x": (prompt, params)}) == {"x": [want]}


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_texts_outgrow_their_frequencies_in_any_company(long_rope: tuple[Any, Traffic]) -> None:
    everywhere(long_rope[1], some(np.random.default_rng(5), 10, Scores()))
