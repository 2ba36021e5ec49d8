"""Hyper-parameters found by trying: at random, by successive halving, or by Bayesian optimization.

Trials run in processes of their own, so one that fails, or is killed, is a failed trial and
nothing else. Each result is a line of a journal, which is forced to disk: a search that was stopped
goes on with the trials that are missing. What is tried depends on the seed only, not on how many
run at once (but for ``bayes``, which learns from whatever has ended).
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import numpy as np

Config = dict[str, Any]
#: ``objective(config, budget)`` is what is to be small; a larger `budget` means longer training.
Objective = Callable[[Config, int], float]


@dataclass(frozen=True)
class Uniform:
    """A number between two; with `log`, its logarithm is drawn. Integers give integers."""

    low: float
    high: float
    log: bool = False

    def __post_init__(self) -> None:
        if not self.low < self.high or (self.log and self.low <= 0):
            raise ValueError(f"{self}: low < high, and with log 0 < low")

    def at(self, share: float) -> float:
        """The number at a share, from 0 to 1, of the way."""
        if self.log:
            found = math.exp(math.log(self.low) + share * math.log(self.high / self.low))
        else:
            found = self.low + share * (self.high - self.low)
        found = min(max(found, self.low), self.high)
        return round(found) if isinstance(self.low, int) and isinstance(self.high, int) else found


#: For each name what it may be: a `Uniform`, or a list to choose from.
Space = Mapping[str, "Uniform | Sequence[Any]"]


@dataclass(frozen=True)
class Trial:
    """A configuration that was tried; `value` is None if it failed, and `error` says how."""

    number: int
    budget: int
    config: Config
    value: float | None
    error: str = ""


def search(
    objective: Objective,
    space: Space,
    *,
    trials: int = 20,
    method: str = "random",
    budget: int = 1,
    processes: int = 1,
    journal: str | os.PathLike[str] | None = None,
    seed: int = 0,
) -> list[Trial]:
    """Try configurations; all trials, the best first.

    `method` is ``"random"``, ``"halving"`` (all with `budget` 1, the best third of them with three
    times as much, and so on up to `budget`) or ``"bayes"`` (optuna's TPE, the extra ``search``).

    >>> found = search(lambda c, _: (c["x"] - 2) ** 2, {"x": Uniform(0.0, 4.0)}, trials=12)
    >>> abs(found[0].config["x"] - 2) < 0.6
    True
    """
    if trials < 1 or processes < 1 or budget < 1 or not space:
        raise ValueError(f"search: {trials=}, {processes=}, {budget=}, {len(space)=}: at least 1")
    methods = {"random": _random, "halving": _halving, "bayes": _bayes}
    if method not in methods:
        raise ValueError(f"search: method is one of {[*methods]}, not {method!r}")
    record = _Journal(journal, {"method": method, "seed": seed, "space": repr(dict(space))})
    crew = _Crew(objective, processes, record)
    try:
        methods[method](crew, space, trials, budget, seed)
    finally:
        crew.close()
    worst = float("inf")
    return sorted(
        record.trials.values(), key=lambda t: (-t.budget, worst if t.value is None else t.value)
    )


def drawn(space: Space, seed: int, number: int) -> Config:
    """The configuration that belongs to a number."""
    rng = np.random.Generator(np.random.Philox(key=[seed, number]))
    return {name: _at(choice, float(rng.random())) for name, choice in space.items()}


def _at(choice: Uniform | Sequence[Any], share: float) -> Any:
    return choice.at(share) if isinstance(choice, Uniform) else choice[int(share * len(choice))]


# ---- what to try


def _random(crew: _Crew, space: Space, trials: int, budget: int, seed: int) -> None:
    crew.run((k, budget, drawn(space, seed, k)) for k in range(trials))


def _halving(crew: _Crew, space: Space, trials: int, budget: int, seed: int) -> None:
    configs = {k: drawn(space, seed, k) for k in range(trials)}
    now = 1
    while True:
        found = crew.run((k, now, config) for k, config in configs.items())
        if now >= budget or len(configs) <= 1:
            return
        ranked = sorted((t for t in found if t.value is not None), key=lambda t: t.value or 0.0)
        configs = {t.number: t.config for t in ranked[: max(1, len(configs) // 3)]}
        now = min(3 * now, budget)


def _bayes(crew: _Crew, space: Space, trials: int, budget: int, seed: int) -> None:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
    names = {name: _distribution(optuna, choice) for name, choice in space.items()}
    asked: dict[int, Any] = {}

    def configs() -> Iterator[tuple[int, int, Config]]:
        for k in range(trials):
            known = crew.known(k, budget)
            if known is not None:
                study.enqueue_trial(_indexed(space, known.config))
            asked[k] = study.ask(names)
            chosen = {n: asked[k].params[n] for n in space}
            yield k, budget, {n: _chosen(space[n], x) for n, x in chosen.items()}

    def tell(trial: Trial) -> None:
        failed = trial.value is None
        state = optuna.trial.TrialState.FAIL if failed else None
        study.tell(asked[trial.number], None if failed else trial.value, state=state)

    crew.run(configs(), tell)


def _distribution(optuna: Any, choice: Uniform | Sequence[Any]) -> Any:
    kinds = optuna.distributions
    if not isinstance(choice, Uniform):
        return kinds.CategoricalDistribution(list(range(len(choice))))
    if isinstance(choice.low, int) and isinstance(choice.high, int):
        return kinds.IntDistribution(choice.low, choice.high, log=choice.log)
    return kinds.FloatDistribution(choice.low, choice.high, log=choice.log)


def _chosen(choice: Uniform | Sequence[Any], value: Any) -> Any:
    return value if isinstance(choice, Uniform) else choice[value]


def _indexed(space: Space, config: Config) -> Config:
    """A configuration as optuna knows it: choices by their place."""
    return {
        name: config[name] if isinstance(choice, Uniform) else list(choice).index(config[name])
        for name, choice in space.items()
    }


# ---- trying


class _Journal:
    """Trials that have ended, in memory and in a file."""

    def __init__(self, path: str | os.PathLike[str] | None, about: Mapping[str, Any]) -> None:
        self.trials: dict[tuple[int, int], Trial] = {}
        self._path = None if path is None else Path(path)
        if self._path is None:
            return
        if not self._path.exists():
            self._append(about)
            return
        first, *lines = self._path.read_text().splitlines() or [""]
        if first != json.dumps(about):
            raise ValueError(f"search: {self._path} is the journal of another search: {first}")
        for line in lines:
            try:
                trial = Trial(**json.loads(line))
            except (ValueError, TypeError):
                continue  # half a line: the search was stopped while it was written
            self.trials[trial.number, trial.budget] = trial

    def add(self, trial: Trial) -> None:
        self.trials[trial.number, trial.budget] = trial
        if self._path is not None:
            self._append(asdict(trial))

    def _append(self, content: Mapping[str, Any]) -> None:
        assert self._path is not None
        with open(self._path, "a+b") as file:
            # Half a line that is there already must not take this one with it.
            if file.tell() and os.pread(file.fileno(), 1, file.tell() - 1) != b"\n":
                file.write(b"\n")
            file.write(json.dumps(content).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())


class _Crew:
    """Up to some number of processes, each with a trial."""

    def __init__(self, objective: Objective, size: int, journal: _Journal) -> None:
        self._objective, self._size, self._journal = objective, size, journal
        self._context = get_context("fork")
        self._running: dict[Any, tuple[Any, int, int, Config]] = {}

    def known(self, number: int, budget: int) -> Trial | None:
        """A trial that has ended before."""
        return self._journal.trials.get((number, budget))

    def run(
        self, wanted: Iterator[tuple[int, int, Config]], tell: Callable[[Trial], None] | None = None
    ) -> list[Trial]:
        """Have configurations tried that were not yet; all their trials."""
        found = []
        waiting = iter(wanted)
        more = True
        while more or self._running:
            while more and len(self._running) < self._size:
                item = next(waiting, None)
                more = item is not None
                if item is None:
                    break
                if (known := self.known(item[0], item[1])) is None:
                    self._start(*item)
                else:
                    found.append(known)
                    if tell is not None:
                        tell(known)
            for trial in self._ended():
                self._journal.add(trial)
                found.append(trial)
                if tell is not None:
                    tell(trial)
        return found

    def _start(self, number: int, budget: int, config: Config) -> None:
        ours, theirs = self._context.Pipe(duplex=False)
        arguments = (theirs, self._objective, dict(config), budget)
        process = self._context.Process(target=_tried, args=arguments)
        process.start()
        theirs.close()
        self._running[ours] = (process, number, budget, config)

    def _ended(self) -> Iterator[Trial]:
        ready: list[Any] = wait(list(self._running)) if self._running else []
        for pipe in ready:
            process, number, budget, config = self._running.pop(pipe)
            try:
                value, error = pipe.recv()
            except EOFError:
                process.join()
                value, error = None, f"the process ended with {process.exitcode}"
            pipe.close()
            process.join()
            yield Trial(number, budget, config, value, error)

    def close(self) -> None:
        """End what still runs."""
        for process, *_ in self._running.values():
            process.kill()
            process.join()


def _tried(pipe: Any, objective: Objective, config: Config, budget: int) -> None:
    try:
        value = float(objective(config, budget))
        pipe.send((value, "") if math.isfinite(value) else (None, f"the value is {value}"))
    except Exception as error:
        pipe.send((None, f"{type(error).__name__}: {error}"))
