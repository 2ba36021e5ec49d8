"""200 steps on two processes with every codec: the last losses, as JSON."""

from __future__ import annotations

import json

import numpy as np

import genesis
import genesis.distributed as gd
from genesis import nn, optim
from genesis.distributed import codecs


def train(codec: codecs.Codec) -> float:
    genesis.manual_seed(0)
    mesh = gd.mesh(dp=2)
    layers = [nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 4)]
    loss = nn.functional.cross_entropy
    pipeline = gd.Pipeline(layers, loss, mesh, microbatches=1, codec=codec)
    optimizer = optim.SGD(pipeline.parameters(), lr=0.1)
    rng, found = np.random.default_rng(0), []
    truth = rng.standard_normal((16, 4))
    for _ in range(200):
        x = rng.standard_normal((64, 16)).astype(np.float32)
        y = (x @ truth + 2 * rng.standard_normal((64, 4))).argmax(1)
        mine = mesh.rows(64)
        found.append(pipeline(genesis.tensor(x[mine]), genesis.tensor(y[mine])).item())
        optimizer.step()
    return float(np.mean(found[-40:]))


if __name__ == "__main__":
    every = [codecs.Plain(), codecs.Half(), codecs.Int8(), codecs.TopK(0.05), codecs.PowerSGD(4)]
    every += [codecs.Sign(), codecs.Adaptive()]
    result = {type(codec).__name__: train(codec) for codec in every}
    if gd.rank() == 0:
        print(json.dumps(result))
