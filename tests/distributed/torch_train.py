"""PyTorch's own ways of training on several processes, on the device, against the CPU.

``torchrun --nproc-per-node N tests/distributed/torch_train.py WHAT [FOLDER]``: the first process
prints what came out as JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import genesis.torch  # noqa: F401 - makes the device known

STEPS, ROWS = 6, 8


class Block(nn.Module):
    """A layer of a small GPT."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            t.unflatten(-1, (2, -1)).transpose(1, 2)
            for t in self.qkv(self.norms[0](x)).chunk(3, -1)
        )
        seen = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norms[1](x))


def gpt() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(32, 16), Block(16), Block(16), nn.Linear(16, 32))


def cnn() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 8, 3), nn.ReLU(),
        nn.Flatten(), nn.Linear(8 * 3 * 3, 10),
    )  # fmt: skip


def data(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(1)
    if name == "cnn":
        x = torch.randn(STEPS, ROWS, 1, 12, 12, generator=g)
        return x, torch.randint(10, (STEPS, ROWS), generator=g)
    tokens = torch.randint(32, (STEPS, ROWS, 9), generator=g)
    return tokens[..., :-1], tokens[..., 1:]


def losses(
    name: str, model: nn.Module, device: str, rows: slice, accumulate: bool = False
) -> Iterator[float]:
    """The loss of every step; with `accumulate`, of two halves of which only one is exchanged."""
    x, y = (t[:, rows] for t in data(name))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for k in range(STEPS):
        optimizer.zero_grad()
        parts = [slice(0, None, 2), slice(1, None, 2)] if accumulate else [slice(None)]
        total = 0.0
        for n, part in enumerate(parts):
            last = n == len(parts) - 1
            quiet = nullcontext() if last or not hasattr(model, "no_sync") else model.no_sync()
            with quiet:  # type: ignore[union-attr]
                found = model(x[k, part].to(device))
                loss = cross_entropy(found.flatten(0, -2), y[k, part].flatten().to(device))
                (loss / len(parts)).backward()
            total += loss.item() / len(parts)
        optimizer.step()
        yield total


def compared(name: str, make: Any, model: nn.Module, accumulate: bool = False) -> float:
    """How far losses are from those of one process on the CPU."""
    want = torch.tensor(list(losses(name, make(), "cpu", slice(None), accumulate)))
    rank, size = dist.get_rank(), dist.get_world_size()
    mine = slice(rank * ROWS // size, (rank + 1) * ROWS // size)
    found = torch.tensor(list(losses(name, model, "genesis", mine, accumulate)))
    dist.all_reduce(found)
    return float((found / size - want).abs().max())


def sharded(model: nn.Module) -> nn.Module:
    mesh = init_device_mesh("genesis", (dist.get_world_size(),))
    for layer in model.children():
        if any(True for _ in layer.parameters()):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def ddp(folder: str) -> dict[str, float]:
    return {
        f"{name} {accumulate}": compared(
            name, make, DistributedDataParallel(make().to("genesis")), accumulate
        )
        for name, make in (("cnn", cnn), ("gpt", gpt))
        for accumulate in (False, True)
    }


def fsdp(folder: str) -> dict[str, float]:
    return {
        name: compared(name, make, sharded(make().to("genesis")))
        for name, make in (("cnn", cnn), ("gpt", gpt))
    }


def save(folder: str) -> dict[str, float]:
    model = sharded(gpt().to("genesis"))
    list(losses("gpt", model, "genesis", slice(None)))
    dcp.save(model.state_dict(), checkpoint_id=folder)
    return _digest(model)


def load(folder: str) -> dict[str, float]:
    model = sharded(gpt().to("genesis"))
    state = model.state_dict()
    dcp.load(state, checkpoint_id=folder)
    model.load_state_dict(state)
    return _digest(model)


def _digest(model: nn.Module) -> dict[str, float]:
    whole = {
        n: p.full_tensor() if isinstance(p, DTensor) else p for n, p in model.named_parameters()
    }
    return {name: float(p.double().square().sum()) for name, p in whole.items()}


def collectives(folder: str) -> dict[str, float]:
    """The difference of every collective from that of CPU tensors."""
    rank, size = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % size, (rank - 1) % size
    ops = dist.ReduceOp
    found: dict[str, list[torch.Tensor]] = {}
    for device in ("cpu", "genesis"):
        x = (torch.arange(4.0 * size).reshape(size, 4) * (rank + 1)).to(device)
        got: dict[str, Any] = {}
        for op in (ops.SUM, ops.MAX, ops.PRODUCT):
            got[f"reduce {op}"] = x.clone()
            dist.all_reduce(got[f"reduce {op}"], op)
        got["broadcast"] = x.clone()
        dist.broadcast(got["broadcast"], size - 1)
        got["gather"] = [torch.empty_like(x) for _ in range(size)]
        dist.all_gather(got["gather"], x)
        got["scattered"] = torch.empty(4, device=device)
        dist.reduce_scatter_tensor(got["scattered"], x.flatten())
        got["all to all"] = torch.empty_like(x)
        dist.all_to_all_single(got["all to all"], x)
        got["view"] = x.clone()
        whole = got["view"] if device == "cpu" else got["view"][:, ::2]  # seen in steps
        dist.all_reduce(whole)
        got["view"] = got["view"][:, ::2]
        got["ring"] = torch.empty_like(x)
        both = [dist.P2POp(dist.isend, x, right), dist.P2POp(dist.irecv, got["ring"], left)]
        for work in dist.batch_isend_irecv(both):
            work.wait()
        got["late"] = x.clone()
        work = dist.all_reduce(got["late"], async_op=True)
        assert work is not None
        work.wait()
        for name, value in got.items():
            values = value if isinstance(value, list) else [value]
            found.setdefault(name, []).append(torch.stack([v.cpu() for v in values]))
    average = torch.full((3,), float(rank), device="genesis")
    dist.all_reduce(average, ops.AVG)  # which gloo alone does not know
    assert average.tolist() == [(size - 1) / 2] * 3
    return {name: float((a - b).abs().max()) for name, (a, b) in found.items()}


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found = globals()[sys.argv[1]]((sys.argv[2:] or [""])[0])
    if dist.get_rank() == 0:
        print(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
