"""`genesis llm load`: requests as clients send them, and what the server made of them."""

from __future__ import annotations

import http.client
import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

PlannedRequest = tuple[float, list[int], int]  # when, a prompt, and how many tokens are wanted
_THREADS = 512  # requests that are on their way at once, at most


@dataclass
class RequestOutcome:
    """When a request was sent, and its pieces came."""

    sent: float
    times: list[float] = field(default_factory=list)
    status: str = "200"
    waited: float | None = None  # what a server that was busy said


class Target:
    """A server, and how to ask it: `fields` are in every request."""

    def __init__(self, url: str, model: str | None, key: str | None, **fields: Any) -> None:
        self._fields = fields
        self._url = urlsplit(url if "//" in url else f"http://{url}")
        self._headers = {"Content-Type": "application/json"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"
        self._model = model or self._first()

    def _connection(self) -> http.client.HTTPConnection:
        kind: type[http.client.HTTPConnection] = http.client.HTTPConnection
        if self._url.scheme == "https":
            kind = http.client.HTTPSConnection
        return kind(self._url.hostname or "127.0.0.1", self._url.port, timeout=600)

    def _first(self) -> str:
        connection = self._connection()
        connection.request("GET", "/v1/models", headers=self._headers)
        found: str = json.loads(connection.getresponse().read())["data"][0]["id"]
        return found

    def ask(self, prompt: list[int], tokens: int) -> RequestOutcome:
        """One request, to its end."""
        body = {
            "model": self._model, "prompt": prompt, "max_tokens": tokens, "stream": True,
            "ignore_eos": True, "temperature": 1.0, **self._fields,
        }  # fmt: skip
        outcome = RequestOutcome(time.monotonic())
        connection = self._connection()
        try:
            connection.request("POST", "/v1/completions", json.dumps(body), self._headers)
            answer = connection.getresponse()
            outcome.status = str(answer.status)
            wait = answer.getheader("retry-after")
            outcome.waited = None if wait is None else float(wait)
            whole = answer.status != 200
            for line in answer if answer.status == 200 else ():
                if line.startswith(b"data: {"):
                    if b'"error"' in line[:20]:
                        outcome.status, whole = "error", True
                    outcome.times.append(time.monotonic())
                whole |= line.startswith(b"data: [DONE]")
            outcome.status = outcome.status if whole else "cut off"
        except (OSError, http.client.HTTPException) as error:
            outcome.status = type(error).__name__
        finally:
            connection.close()
        return outcome


def plans(how: dict[str, Any]) -> Iterator[PlannedRequest]:
    """When requests are sent, with which tokens, and how many they want."""
    rng = random.Random(how["seed"])
    if how["trace"] is not None:
        rows = [json.loads(line) for line in Path(how["trace"]).read_text().splitlines()]
        rows = [row for row in rows if "pages" in row]
        first = min((row["time"] for row in rows), default=0.0)
        for row in sorted(rows, key=lambda row: row["time"]):
            prompt = [t for page in row["pages"] for t in _page(page, row["page_size"])]
            prompt += [rng.randrange(10, 300) for _ in range(row["prompt_tokens"] - len(prompt))]
            yield row["time"] - first, prompt, row["completion_tokens"]
        return
    shared = [rng.randrange(10, 300) for _ in range(how["shared"])]
    at = 0.0
    for _ in range(how["requests"]):
        own = [rng.randrange(10, 300) for _ in range(max(1, how["input"] - len(shared)))]
        yield at, shared + own, how["output"]
        at += rng.expovariate(how["rate"]) if how["rate"] else 0.0


def _page(name: str, size: int) -> list[int]:
    rng = random.Random(name)
    return [rng.randrange(10, 300) for _ in range(size)]


def send(target: Target, todo: list[PlannedRequest], clients: int | None) -> list[RequestOutcome]:
    """Send all requests, by so many clients who wait for their answers, or each at its time."""
    begin = time.monotonic()

    def one(plan: PlannedRequest) -> RequestOutcome:
        at, prompt, tokens = plan
        if clients is None:
            time.sleep(max(0.0, begin + at - time.monotonic()))
        return target.ask(prompt, tokens)

    with ThreadPoolExecutor(clients or max(1, min(_THREADS, len(todo)))) as pool:
        return list(pool.map(one, todo))


def measure(target: Target, how: dict[str, Any]) -> dict[str, float]:
    """Send all requests; the figures. Times of the first, `warm`, are not counted."""
    timed = how["rate"] is not None or how["trace"] is not None
    todo, begin = list(plans(how)), time.monotonic()
    outcomes = send(target, todo, None if timed else how["clients"])
    return figures(outcomes, time.monotonic() - begin, how.get("warm", 0))


def figures(outcomes: list[RequestOutcome], seconds: float, warm: int = 0) -> dict[str, float]:
    """Tokens per second, and percentiles of times in milliseconds."""
    good = [o for o in outcomes if o.status == "200" and o.times]
    found = {"requests": len(outcomes), "answered": len(good), "seconds": seconds}
    found |= {
        f"status {s}": n for s, n in Counter(o.status for o in outcomes).items() if s != "200"
    }
    found["pieces/s"] = sum(len(o.times) for o in good) / seconds
    first = [o.times[0] - o.sent for o in good]
    gaps = [b - a for o in good[warm:] for a, b in pairwise(o.times)]
    if warm:
        found["burst p95 ms"] = 1e3 * float(np.percentile(first[:warm] or [0.0], 95))
    for name, values in (("first token", first[warm:]), ("between", gaps)):
        for q in (50, 95, 99):
            found[f"{name} p{q} ms"] = 1e3 * float(np.percentile(values or [0.0], q))
    return found


def load(url: str, model: str | None, key: str | None, **how: Any) -> int:
    """Print what a server does under load."""
    found = measure(Target(url, model, key), how)
    for name, value in found.items():
        print(f"{name:22}{value:12.5g}")
    return 0 if found["answered"] == found["requests"] else 1


__all__ = [
    "PlannedRequest",
    "RequestOutcome",
    "Target",
    "figures",
    "load",
    "measure",
    "plans",
    "send",
]
