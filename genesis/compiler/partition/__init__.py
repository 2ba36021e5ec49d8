"""From the graph of one process to that of every rank: `partition`."""

from genesis.compiler.partition.partition import (
    FREE, Partitioned, Wanted, constraints, described, collectives, partition,
)  # fmt: skip

__all__ = [
    "FREE", "Partitioned", "Wanted", "constraints", "described", "collectives", "partition",
]  # fmt: skip
