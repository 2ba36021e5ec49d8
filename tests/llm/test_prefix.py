"""The prefix cache: what is found, and what must not be."""

from __future__ import annotations

import itertools

from genesis.llm.eviction import LRU
from genesis.llm.pages import NOWHERE, PageGroup, PagePool
from genesis.llm.prefix_cache import Chain, PrefixCache

TOKENS = list(range(40))


def computed(pool: PagePool, cache: PrefixCache, chain: Chain) -> None:
    """A sequence of 40 tokens that was computed and is over."""
    tables = pool.new_tables()
    chain.extend(TOKENS)
    for end in range(4, 41, 4):
        pool.extend(tables, end - 4, end)
        cache.register(tables, chain.keys[: end // 4], end // 4 - 1)
        pool.slide(tables, end)
    cache.use(chain.keys)
    pool.free(tables)


def test_keys_differ_with_everything_that_contents_depend_on() -> None:
    parts = [(4, 2), (b"m", b"", b"ma"), (b"", b"a", b"s"), (b"", b"s", b"as")]
    keys = set()
    for size, model, adapter, salt in itertools.product(*parts):
        chain = Chain(size, model, adapter, salt)
        chain.extend(TOKENS[:4])
        keys.add(chain.keys[-1])
    assert len(keys) == 2 * 3 * 3 * 3


def test_keys_depend_on_all_tokens_before() -> None:
    one, other = Chain(4, b""), Chain(4, b"")
    one.extend([1, 2, 3, 4, 5, 6, 7, 8])
    other.extend([1, 2, 3, 9, 5, 6, 7, 8])
    assert not set(one.keys) & set(other.keys)


def test_nothing_is_found_across_salts_and_adapters() -> None:
    pool = PagePool(4, [PageGroup(50)])
    cache = PrefixCache(pool, LRU)
    computed(pool, cache, Chain(4, b"m", b"a", b"s"))
    for adapter, salt in itertools.product([b"a", b"b", b""], [b"s", b"t", b""]):
        chain = Chain(4, b"m", adapter, salt)
        chain.extend(TOKENS)
        expected = 10 if (adapter, salt) == (b"a", b"s") else 0
        assert cache.match(chain.keys).pages == expected


def test_the_longest_prefix_is_found() -> None:
    pool = PagePool(4, [PageGroup(50)])
    cache = PrefixCache(pool, LRU)
    computed(pool, cache, Chain(4, b""))
    for same in range(41):
        chain = Chain(4, b"")
        chain.extend([*TOKENS[:same], *[99] * (40 - same)])
        assert cache.match(chain.keys).pages == same // 4


def test_window_groups_need_the_window_only() -> None:
    """Of 10 pages, the group with a window of 6 keeps those that were not overwritten."""
    pool = PagePool(4, [PageGroup(12), PageGroup(3, window=6)])
    cache = PrefixCache(pool, LRU)
    chain = Chain(4, b"")
    computed(pool, cache, chain)
    match = cache.match(chain.keys)
    assert match.pages == 10
    tables = cache.hold(match)
    assert tables[1][:8] == [NOWHERE] * 8 and NOWHERE not in tables[1][8:]
    pool.check([tables])
    # Shorter prefixes have all pages of the first group, but none of the second one's window.
    assert cache.match(chain.keys[:6]).pages == 0


def test_pages_computed_twice_become_one() -> None:
    pool = PagePool(4, [PageGroup(8)])
    cache = PrefixCache(pool, LRU)
    tables = [pool.new_tables(), pool.new_tables()]
    chain = Chain(4, b"")
    chain.extend(TOKENS[:8])
    for one in tables:
        pool.extend(one, 0, 8)
    for one in tables:
        cache.register(one, chain.keys, 0)
    assert tables[0] == tables[1]
    assert pool.available() == [6]
    pool.check(tables)
    cache.check()
