"""Attention of language models with a cache, in which several heads share keys and values."""

from __future__ import annotations

from typing import Any

from genesis import functional as fn
from genesis.ir import dtype as dtypes
from genesis.onnx.operators.contrib_attention import turned
from genesis.onnx.registry import Host, operator


@operator("GroupQueryAttention", domain="com.microsoft")
def group_query_attention(
    query: Any, key: Any = None, value: Any = None, past_key: Any = None, past_value: Any = None,
    lengths: Any = None, total: Host = None, cosines: Any = None, sines: Any = None,
    positions: Any = None, bias: Any = None, sink: Any = None, *, num_heads: int,
    kv_num_heads: int, do_rotary: int = 0, rotary_interleaved: int = 0, scale: float = 0.0,
    softcap: float = 0.0, local_window_size: int = -1, smooth_softmax: int = 0, causal: int = 1,
    outputs: int = 1,
) -> Any:  # fmt: skip
    """Attention to what came before and to itself; the cache with what is new in its places.

    `lengths` are those of the sequences, less one; `total` is the greatest of them. The cache may
    be longer than what is in it.
    """
    from genesis import arange

    if lengths is None or total is None:
        raise ValueError("GroupQueryAttention needs the lengths of its sequences")
    batch, count = query.shape[:2]
    if key is None:
        size = query.shape[-1] // (num_heads + 2 * kv_num_heads)
        sizes = [num_heads * size, kv_num_heads * size, kv_num_heads * size]
        query, key, value = fn.split(query, sizes, -1)
    heads = (num_heads, kv_num_heads, kv_num_heads)
    q, k, v = (
        fn.transpose(x.reshape(batch, count, n, x.shape[-1] // n), 1, 2)
        for x, n in zip((query, key, value), heads, strict=True)
    )
    longest = total.reshape(()).item()
    known = 0 if past_key is None else past_key.shape[2]
    begins = lengths.reshape(-1, 1).to(dtypes.int64) + (1 - count)  # the place of what is new
    begins = begins * 0 if count == longest else begins
    places = begins + arange(count).reshape(1, -1)
    if do_rotary:
        at = places if positions is None else positions
        q, k = (turned(x, at, cosines, sines, bool(rotary_interleaved)) for x in (q, k))
    slots = arange(longest if longest > known else known)
    kept, cached = k, v
    if past_key is not None and known:
        kept, cached = (
            _placed(old, new, slots, begins, known) for old, new in ((past_key, k), (past_value, v))
        )
    group = num_heads // kv_num_heads
    every = q.reshape(batch, kv_num_heads, group, count, q.shape[-1])
    scores = fn.matmul(every, fn.unsqueeze(fn.transpose(kept, -1, -2), 2))
    scores = scores * (scale or q.shape[-1] ** -0.5)
    scores = fn.tanh(scores / softcap) * softcap if softcap else scores
    slot, place = slots.reshape(1, 1, -1), fn.unsqueeze(places, -1)
    seen = slot <= (place if causal else lengths.reshape(-1, 1, 1).to(dtypes.int64))
    if local_window_size > 0:
        seen = fn.logical_and(seen, slot > place - local_window_size)
    scores = scores.reshape(batch, num_heads, count, slots.shape[0])
    scores = scores if bias is None else scores + bias
    scores = fn.where(fn.unsqueeze(seen, 1), scores, float("-inf"))
    if smooth_softmax or sink is not None:
        least = scores[..., :1] * 0 if sink is None else sink.reshape(1, -1, 1, 1)
        least = fn.broadcast_to(least, (batch, num_heads, count, 1)).to(scores.dtype)
        scores = fn.softmax(fn.cat([scores, least], -1), -1)[..., :-1]
    else:
        scores = fn.softmax(scores, -1)
    shares = scores.reshape(batch, kv_num_heads, group, count, slots.shape[0])
    y = fn.matmul(shares, fn.unsqueeze(cached, 2)).reshape(batch, num_heads, count, -1)
    y = fn.transpose(y, 1, 2).reshape(batch, count, -1)
    return (y, kept, cached)[:outputs]


def _placed(old: Any, new: Any, slots: Any, begins: Any, known: Any) -> Any:
    """A cache in which what is new lies from places on that sequences have each their own of."""
    at = slots.reshape(1, -1) - begins
    count, width = new.shape[2], new.shape[-1]

    def rows(x: Any, index: Any) -> Any:
        wide = fn.unsqueeze(fn.unsqueeze(index, 1), -1)
        return fn.gather(x, 2, fn.expand(wide, (*x.shape[:2], slots.shape[0], width)))

    before = rows(old, fn.clamp(slots.reshape(1, -1) + begins * 0, 0, known - 1))
    after = rows(new, fn.clamp(at, 0, count - 1))
    at = fn.unsqueeze(fn.unsqueeze(at, 1), -1)
    return fn.where(at < 0, before, fn.where(at < count, after, 0))
