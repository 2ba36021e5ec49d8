"""Training and inference on several processes: the jitted function of one process, unchanged.

An array has the shape of the whole, and each process holds its block. A function under
`genesis.jit` that works on such arrays is divided by the compiler: every process computes its part,
and where parts depend on each other the program exchanges them.

>>> import genesis
>>> import genesis.distributed as gd
>>> mesh = gd.mesh(dp=2, tp=2)  # without a launcher: one process
>>> model = genesis.nn.Linear(4, 2)
>>> optimizer = genesis.optim.AdamW(model.parameters())
>>> gd.place(model, optimizer, mesh, tp=gd.megatron, dp=gd.zero(3))
>>> @genesis.jit
... def step(x):
...     loss = model(x).square().mean()
...     optimizer.zero_grad()
...     loss.backward()
...     optimizer.step()
...     return loss
>>> step(mesh.batch(genesis.ones(8, 4))).shape
genesis.Size([])

`genesis launch -n 4 train.py` starts it on four processes, and so does ``torchrun``. This needs the
extra ``distributed``; one process needs nothing.
"""

from genesis.distributed import codecs
from genesis.distributed.checkpoint import Saving, interval, restore, save
from genesis.distributed.elastic import Run, elastic
from genesis.distributed.experts import Experts, experts
from genesis.distributed.mesh import Mesh, mesh
from genesis.distributed.pipeline import Pipeline, layer_costs
from genesis.distributed.placement_rules import (
    Rule,
    Rules,
    constrain,
    gather,
    megatron,
    place,
    zero,
)
from genesis.distributed.ray import on_ray
from genesis.distributed.context_parallel import ring_attention
from genesis.distributed.merged_trace import save_trace
from genesis.distributed.process_groups import RankLost, rank, world_size

__all__ = [
    "Experts", "Mesh", "Pipeline", "RankLost", "Rule", "Rules", "Run", "Saving", "codecs",
    "constrain", "elastic", "experts", "gather", "interval", "layer_costs", "megatron", "mesh",
    "on_ray", "place", "rank", "restore", "ring_attention", "save", "save_trace", "world_size",
    "zero",
]  # fmt: skip
