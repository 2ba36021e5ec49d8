"""How many threads do a block, how deep its pipelines are, and how many registers a thread has.

The renderer counts what a function does as it writes it down, in `FunctionWork`; the numbers
follow.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from genesis.ir.dtype import DType
from genesis.ir.kernel import Buffer

#: Blocks of which a multiprocessor has only a few.
FEW = 512
#: Blocks with which most multiprocessors have two.
PAIRS = 256


@dataclass
class FunctionWork:
    """What a function does, and what suits that."""

    elements: int = 1  # of the largest block
    read: dict[Buffer, int] = field(default_factory=dict)  # bytes of the tiles that are read
    met: dict[Buffer, int] = field(default_factory=dict)  # bytes read for every element of a block
    stores_tiles: bool = False
    multiplied: list[DType] = field(default_factory=list)  # by matrix products
    products: list[int] = field(default_factory=list)  # elements of each
    rows: int = 0  # of the tallest
    held: int = 0  # elements of all products of one loop
    words: bool = False  # whether it reads bytes by fours
    blocks: int = 0  # how many there are, if that is known
    loops: bool = False  # whether it goes through tiles one after the other

    @property
    def num_warps(self) -> int:
        """A warp group or two for matrix products, else a few elements per lane."""
        if self.multiplied:
            # A group takes 64 rows of what alternates; of fewer rows, two groups share columns.
            least = 64 if self.alternates and self.rows != 64 else 128
            return 8 if self.elements >= 128 * least else 4
        if self.words:  # 16 bytes per thread and load, of which there are many; or many threads
            most = 16 if self.blocks <= FEW else 8
            return max(1, min(most, self.elements // 128))
        if self.blocks == 1:  # nobody else is there
            return max(1, min(32, self.elements // 128))
        most = 16 if self.elements >= 8192 else max(1, min(8, self.elements // 256))
        if not self.loops and self.blocks > FEW and self.elements == 8192:
            most = 8  # other blocks have something to do while one waits
        if len(self.read) > 1 and self.elements >= 4096 and not self.stores_tiles:
            # A product with a vector only reads: up to 64 bytes of the matrix per thread.
            return min(most, max(8, min(self.read.values()) // 2048))
        return most

    @property
    def num_stages(self) -> int:
        """Tiles of operands in flight for matrix products; little to gain elsewhere."""
        if not self.multiplied:
            return 2
        if self.alternates:
            return 2 if self.registers or self.held > 128 * 32 * self.num_warps else 3
        return 4 if self.multiplied[0].bits == 16 and not self.shares else 3

    @property
    def registers(self) -> int:
        """Few enough for two blocks at a time, if products alternate with other work.

        One block then keeps the matrix units busy while the other does that work.
        """
        few = self.alternates and self.held <= 96 * 32 * self.num_warps
        return 128 if few or self.shares else 0

    @property
    def shares(self) -> bool:
        """Whether blocks with one product of 16-bit numbers are small enough for two at a time.

        One loads what its sums meet, and stores them, while the other multiplies.
        """
        if len(self.products) != 1 or self.multiplied[0].bits != 16 or 0 < self.blocks < PAIRS:
            return False
        (product,) = self.products
        met = sum(size for size in self.met.values() if size >= 2 * product)
        return self.num_warps == 8 and 4 * product + met <= 96 * 4 * 32 * self.num_warps

    @property
    def alternates(self) -> bool:
        """Whether products of 16-bit numbers depend on each other."""
        return len(self.multiplied) > 1 and all(d.bits == 16 for d in self.multiplied)
