"""What forward graphs save for GPUs lies channels last; here the CPU is taken for one."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import genesis.torch  # noqa: F401
from genesis.torch.compile import backend, saved_layouts

F = nn.functional


class Net(nn.Module):
    """Convolutions, norms, windows and concatenation, and a head whose scores are no pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.norm, self.groups = nn.BatchNorm2d(8), nn.GroupNorm(2, 8)
        self.rise, self.head = nn.ConvTranspose2d(8, 8, 2, 2), nn.Linear(2048, 12)

    def forward(self, x: Any) -> Any:
        y = F.relu(self.norm(self.a(x)))
        z = self.rise(F.silu(self.groups(self.b(F.max_pool2d(y, 2)))))
        h = self.head(torch.cat([z, y], 1)[:, 4:12].flatten(1)).view(-1, 2, 2, 3)
        return F.scaled_dot_product_attention(h, h * 2, h - 1), y.mean((2, 3))


def test_saved_results_of_convolutions_lie_channels_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """They do, gradients are eager's, and nothing else that is saved is turned around."""
    judged: dict[tuple[int, ...], bool] = {}
    alone = saved_layouts._alone

    def noted(node: Any, *rest: Any) -> bool:
        found = alone(node, *rest)
        judged[tuple(node.meta["val"].shape)] = found
        return found

    monkeypatch.setattr(saved_layouts, "_alone", noted)
    monkeypatch.setattr(backend, "_devices", lambda places: ("cpu", "cpu"))
    torch.manual_seed(0)
    torch._dynamo.reset()
    model = Net()
    ours = copy.deepcopy(model)
    run = torch.compile(ours, backend="genesis")
    x = torch.randn(4, 3, 16, 16)
    for call in (model, run):
        first, second = call(x)
        (first.square().sum() + second.sum()).backward()
    for p, q in zip(model.parameters(), ours.parameters(), strict=True):
        torch.testing.assert_close(q.grad, p.grad, rtol=1e-4, atol=1e-4)
    assert judged[4, 8, 16, 16]
    assert judged[4, 8, 8, 8]
    assert (4, 2, 2, 3) not in judged
