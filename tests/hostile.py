"""Damaged copies of good files: what a fuzzer feeds to a reader."""

import random
from collections.abc import Iterator

#: What damaged counts and lengths look like.
_LENGTHS = (0, 1, 255, 1 << 31, (1 << 32) - 1, 1 << 40, (1 << 63) - 1, (1 << 64) - 1)


def damaged(good: bytes, count: int, seed: int = 0) -> Iterator[bytes]:
    """Copies with flipped bits, giant numbers, parts cut off, missing, doubled or exchanged."""
    draw = random.Random(seed)
    for _ in range(count):
        bad = bytearray(good)
        for _ in range(draw.choice((1, 1, 1, 2, 5))):
            _damage(bad, draw)
        yield bytes(bad)


def _damage(bad: bytearray, draw: random.Random) -> None:
    place = draw.randrange(len(bad) + 1)
    width = draw.choice((1, 4, 8, 8, 40))
    kind = draw.randrange(6)
    if kind == 0 and place < len(bad):
        bad[place] ^= 1 << draw.randrange(8)
    elif kind == 1:
        bad[place : place + 8] = draw.choice(_LENGTHS).to_bytes(8, "little")
    elif kind == 2:
        bad[place : place + 4] = (draw.choice(_LENGTHS) & 0xFFFFFFFF).to_bytes(4, "little")
    elif kind == 3:
        del bad[place:]
    elif kind == 4:
        del bad[place : place + width]
    else:
        other = draw.randrange(len(bad) + 1)
        bad[place:place] = bad[other : other + width]
