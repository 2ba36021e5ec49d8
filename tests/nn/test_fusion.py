"""Batch normalisation folded into the layer before it, and normalisation without a bias."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import genesis
from genesis.nn import utils


def pair(lib: Any, kind: str) -> Any:
    nn = lib.nn
    return {
        "conv": lambda: (nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4, bias=False)),
        "transposed": lambda: (nn.ConvTranspose1d(3, 4, 3), nn.BatchNorm1d(4, affine=False)),
        "linear": lambda: (nn.Linear(3, 4), nn.BatchNorm1d(4)),
    }[kind]()


@pytest.mark.parametrize(
    ("kind", "shape"), [("conv", (2, 3, 5, 5)), ("transposed", (2, 3, 5)), ("linear", (5, 3))]
)
def test_fused_layers(rng: np.random.Generator, kind: str, shape: tuple[int, ...]) -> None:
    theirs, ours = (pair(lib, kind) for lib in (torch, genesis))
    for part, twin in zip(theirs, ours, strict=True):
        state = {
            name: rng.uniform(0.5, 2, x.shape).astype(str(x.dtype)[6:])
            for name, x in part.state_dict().items()
        }
        part.load_state_dict({name: torch.tensor(x) for name, x in state.items()})
        twin.load_state_dict({name: genesis.tensor(x) for name, x in state.items()})
        part.eval()
        twin.eval()
    layer, norm = ours
    fuse = "fuse_linear_bn_eval" if kind == "linear" else "fuse_conv_bn_eval"
    args = (True,) if kind == "transposed" else ()
    fused = getattr(utils, fuse)(layer, norm, *args)
    expected = getattr(torch.nn.utils, fuse)(*theirs, *args)
    for name, x in expected.state_dict().items():
        np.testing.assert_allclose(fused.state_dict()[name].numpy(), x.numpy(), 1e-5, 1e-6)
    x = rng.normal(size=shape).astype(np.float32)
    unfused = norm(layer(genesis.tensor(x)))
    found = fused(genesis.tensor(x))
    np.testing.assert_allclose(found.detach().numpy(), unfused.detach().numpy(), 1e-4, 1e-5)
    assert fused is not layer
    with pytest.raises(ValueError, match="eval mode"):
        getattr(utils, fuse)(layer.train(), norm)


def test_normalisation_without_bias() -> None:
    for name, *args in (("BatchNorm1d", 3), ("GroupNorm", 1, 3), ("LazyInstanceNorm1d",)):
        layers = [getattr(lib.nn, name)(*args, bias=False) for lib in (genesis, torch)]
        for lib, layer in zip((genesis, torch), layers, strict=True):
            layer(lib.ones(2, 3, 4))
        ours, theirs = (sorted(layer.state_dict()) for layer in layers)
        assert ours == theirs
        assert layers[0].bias is None
