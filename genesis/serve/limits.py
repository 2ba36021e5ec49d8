"""Who may ask, and how much: keys, rates, classes of service."""

from __future__ import annotations

import hashlib
import hmac
import time
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path

from genesis.serve.errors import ApiError


@dataclass(frozen=True)
class Caps:
    """The most of everything."""

    body: int = 4 << 20  # bytes
    body_seconds: float = 30.0  # until a body is there
    n: int = 16  # answers
    logprobs: int = 20
    schema_bytes: int = 1 << 16
    schema_depth: int = 32
    messages: int = 4096
    tools: int = 128
    inputs: int = 256  # texts of an embedding
    waiting: int = 4096  # events that a slow reader leaves
    send_seconds: float = 30.0  # until a slow reader takes something
    queue_seconds: float = 60.0  # that a first token may come after twice its target


@dataclass(frozen=True)
class Tier:
    """A class of service: seconds to a first token, and between tokens, that are aimed at."""

    first_token: float = 10.0
    between: float = 1.0
    priority: int = 0


#: By `service_tier`, as clients call them.
TIERS = {"default": Tier(), "priority": Tier(2.0, 0.25, 1), "flex": Tier(60.0, 10.0, -1)}


@dataclass(frozen=True)
class Key:
    """Who pays: `sha256` of the secret, and what it may have, 0 for anything."""

    name: str
    sha256: str = ""
    requests: int = 0  # a minute
    tokens: int = 0  # a minute
    concurrency: int = 0
    share: float = 1.0
    tier: str = "default"
    admin: bool = False


class Bucket:
    """So many a minute, of which a minute's worth can be saved up."""

    def __init__(self, rate: int) -> None:
        self.rate, self.left, self._at = rate, float(rate), time.monotonic()

    def wait(self, wanted: float) -> float:
        """Seconds until so many are left; more than all is as many as all."""
        now = time.monotonic()
        self.left = min(self.rate, self.left + (now - self._at) * self.rate / 60)
        self._at = now
        return max(0.0, (min(wanted, self.rate) - self.left) * 60 / self.rate)


class Meter:
    """What a key has had."""

    def __init__(self, key: Key) -> None:
        self.key = key
        self.active = 0
        self._requests = Bucket(key.requests) if key.requests else None
        self._tokens = Bucket(key.tokens) if key.tokens else None

    @contextmanager
    def request(self) -> Iterator[None]:
        """A request of the key; 429 if it is one too many."""
        key = self.key
        if key.concurrency and self.active >= key.concurrency:
            text = f"key {key.name}: {key.concurrency} requests at once are the most"
            raise ApiError(429, text, code="concurrency", retry_after=1)
        if self._requests is not None:
            if wait := self._requests.wait(1):
                text = f"key {key.name}: {key.requests} requests a minute are the most"
                raise ApiError(429, text, code="requests", retry_after=wait)
            self._requests.left -= 1
        self.active += 1
        try:
            yield
        finally:
            self.active -= 1

    def charge(self, tokens: int, wait: bool = False) -> None:
        """Tokens that were taken; where they can wait, 429 if there are too few."""
        if self._tokens is None:
            return
        if wait and (seconds := self._tokens.wait(tokens)):
            text = f"key {self.key.name}: {self.key.tokens} tokens a minute are the most"
            raise ApiError(429, text, code="tokens", retry_after=seconds)
        self._tokens.left -= tokens


class Keys:
    """The keys of a file, or nobody's in particular."""

    def __init__(self, keys: Mapping[str, Key] | None = None) -> None:
        self.open = keys is None
        known = {"": Key("", admin=True)} if keys is None else keys
        self.meters = {name: Meter(key) for name, key in known.items()}

    @classmethod
    def read(cls, path: Path) -> Keys:
        """The keys of a TOML file: a table each, by name."""
        try:
            tables = tomllib.loads(path.read_text())
            keys = {name: Key(name, **table) for name, table in tables.items()}
        except (TypeError, ValueError) as error:
            names = ", ".join(field.name for field in fields(Key) if field.name != "name")
            raise ValueError(f"{path}: {error}; a key has {names}") from None
        if bad := [k.name for k in keys.values() if len(k.sha256) != 64]:
            raise ValueError(f"{path}: {bad[0]} has no sha256 of 64 digits")
        return cls(keys)

    @property
    def shares(self) -> dict[str, float]:
        """Weights of keys in the scheduler."""
        return {name: meter.key.share for name, meter in self.meters.items()}

    def find(self, header: str) -> Meter:
        """Whose secret this is. Every key is looked at, and takes as long as any other."""
        if self.open:
            return self.meters[""]
        kind, _, secret = header.partition(" ")
        if kind.lower() != "bearer" or not secret:
            raise ApiError(401, "a key is wanted: Authorization: Bearer KEY", code="no_key")
        digest = hashlib.sha256(secret.strip().encode("utf-8", "replace")).hexdigest()
        found = None
        for meter in self.meters.values():
            if hmac.compare_digest(digest, meter.key.sha256.lower()):
                found = meter
        if found is None:
            raise ApiError(401, "this key is not known", code="invalid_api_key")
        return found


__all__ = ["Caps", "Key", "Keys", "Meter", "TIERS", "Tier"]
