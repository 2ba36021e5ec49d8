"""Operations and modules to call with changing sizes, and what each is called with.

A case is a function of tensors and a function that makes its arguments for a size. Each is called
with several sizes, under `genesis.jit` and without: `programs` recordings must serve them all.
`python tests/size_cases.py [NAME ..]` prints how many it took, and how long the recordings did.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import genesis
from genesis import nn
from genesis.nn import functional as F  # noqa: N812

SIZES = (6, 8, 12, 5, 16, 9)
EVEN = (6, 8, 12, 4, 16, 10)
FOURS = (8, 12, 16, 24, 20, 32)


@dataclass
class Case:
    """A function, its arguments for a size, and in how many recordings it serves `sizes`."""

    name: str
    function: Callable[..., Any]
    arguments: Callable[[int], tuple[Any, ...]]
    sizes: tuple[int, ...] = SIZES
    programs: int = 2
    gradients: bool = True
    compared: bool = True  # the numbers, and not only the shapes
    rtol: float = 2e-4


def numbers(*shape: int) -> Any:
    """Different numbers around 0."""
    rng = np.random.default_rng(sum(shape))
    return genesis.from_numpy(rng.standard_normal(shape).astype(np.float32))


def whole(below: int, *shape: int) -> Any:
    """Integers from 0 to below - 1."""
    return genesis.from_numpy(np.random.default_rng(sum(shape)).integers(0, below, shape))


def _batch_and_length(
    name: str,
    function: Callable[..., Any],
    *shape: Any,
    sizes: tuple[int, ...] = SIZES,
    skip: tuple[str, ...] = (),
    lengths: int = 2,
    **more: Any,
) -> Iterator[Case]:
    """One case for each letter in a shape: "b" is a batch, "n" a length.

    `lengths` is how many recordings may serve those; every one has its own if it needs the number.
    """
    usual = {"b": 3, "n": 16}
    for letter in "bn":
        if letter not in shape or letter in skip:
            continue

        def arguments(k: int, letter: str = letter) -> tuple[Any, ...]:
            known = usual | {letter: k}
            return (numbers(*(known.get(s, s) for s in shape)),)

        programs = lengths if letter == "n" else 2
        yield Case(f"{name}/{letter}", function, arguments, sizes, programs, **more)


def _movement() -> Iterator[Case]:
    vary = _batch_and_length
    yield from vary("reshape(-1, 2)", lambda x: x.reshape(-1, 2) * 2, "n", sizes=EVEN)
    yield from vary("reshape(-1, 2) of 3n", lambda x: x.reshape(-1, 2) * 2, "n", 3, sizes=EVEN)
    yield from vary("reshape(-1, 2) of 4n", lambda x: x.reshape(-1, 2) * 2, "n", 4)
    yield from vary("view(b, -1)", lambda x: x.view(x.shape[0], -1) * 2, "b", 3, "n")
    yield from vary("view(-1, k)", lambda x: x.view(-1, 3) * 2, "b", "n", 3)
    yield from vary("view(-1, heads, k)", lambda x: x.view(x.shape[0], -1, 2, 3) + 1, "b", "n", 6)
    yield from vary("merge batch and length", lambda x: x.view(-1, 4).tanh(), "b", "n", 4)
    yield from vary("flatten", lambda x: x.flatten() * 2, "b", "n")
    yield from vary("flatten(1)", lambda x: x.flatten(1) * 2, "b", 2, "n")
    yield from vary("unflatten", lambda x: x.unflatten(-1, (2, -1)) * 2, "b", "n", sizes=EVEN)
    yield from vary("halves", lambda x: x[:, : x.shape[1] // 2] * 2, "b", "n")
    yield from vary("both halves", _rotated, "b", "n", sizes=EVEN)
    yield from vary("chunk(2)", lambda x: x.chunk(2, -1)[1] * 2, "b", "n", sizes=EVEN)
    yield from vary("chunk(3) of odd", lambda x: x.chunk(3, -1)[0] * 2, "b", "n", skip=("n",))
    yield from vary("split(2)", lambda x: x.split(2, 1)[0] * 2, "b", "n", skip=("n",))
    yield from vary("tensor_split", lambda x: x.tensor_split((2,), 1)[1] * 2, "b", "n")
    yield from vary("x[1:]", lambda x: x[:, 1:] - x[:, :-1], "b", "n")
    yield from vary("x[2:-2]", lambda x: x[:, 2:-2] * 2, "b", "n")
    yield from vary("x[-3:]", lambda x: x[:, -3:] * 2, "b", "n")
    yield from vary("x[:3]", lambda x: x[:, :3] * 2, "b", "n")
    yield from vary("x[::2]", lambda x: x[:, ::2] * 2, "b", "n")
    yield from vary("x[1::2]", lambda x: x[:, 1::2] * 2, "b", "n")
    yield from vary("x[:, -1]", lambda x: x[:, -1] * 2, "b", "n", 3)
    yield from vary("x[n // 2]", lambda x: x[:, x.shape[1] // 2] * 2, "b", "n", 3)
    yield from vary("narrow", lambda x: x.narrow(1, 1, x.shape[1] - 2) * 2, "b", "n")
    yield from vary("flip", lambda x: x.flip(-1) * 2, "b", "n")
    yield from vary("roll", lambda x: x.roll(2, 1) * 2, "b", "n")
    yield from vary("roll(-1)", lambda x: x.roll(-1, 1) * 2, "b", "n")
    yield from vary("repeat", lambda x: x.repeat(2, 3) * 2, "b", "n")
    yield from vary("tile", lambda x: x.tile(2, 1) * 2, "b", "n")
    yield from vary("repeat_interleave", lambda x: x.repeat_interleave(2, 1) * 2, "b", "n")
    yield from vary("expand", lambda x: x[:, None].expand(-1, 4, -1) * 2, "b", "n")
    yield from vary("squeeze", lambda x: x[:, None].squeeze() * 2, "b", "n")
    yield from vary("cat", lambda x: genesis.cat([x, x * 2, x[:, :1]], 1), "b", "n")
    yield from vary("stack", lambda x: genesis.stack([x, x * 2], 1), "b", "n")
    yield from vary("hstack", lambda x: genesis.hstack([x, x * 2]), "b", "n")
    yield from vary("pad", lambda x: F.pad(x, (1, 2), value=3.0), "b", "n")
    for mode in ("reflect", "replicate", "circular"):
        yield from vary(f"pad {mode}", lambda x, m=mode: F.pad(x, (2, 1), mode=m), "b", 2, "n")
    yield from vary("unfold", lambda x: x.unfold(1, 3, 2) * 2, "b", "n")
    yield from vary("F.unfold", lambda x: F.unfold(x, 3, padding=1), "b", 2, "n", 5)
    yield from vary("diff", lambda x: genesis.diff(x), "b", "n")
    yield from vary("transpose", lambda x: x.transpose(1, 2).contiguous() * 2, "b", "n", 3)
    yield from vary("heads", _heads, "b", "n", 8)
    yield from vary("pixel_shuffle", lambda x: F.pixel_shuffle(x, 2), "b", 4, "n", 5)
    yield from vary(
        "pixel_unshuffle", lambda x: F.pixel_unshuffle(x, 2), "b", 2, "n", 6, sizes=EVEN
    )
    yield from vary("einsum", lambda x: genesis.einsum("bnd,bmd->bnm", x, x), "b", "n", 4)


def _rotated(x: Any) -> Any:
    half = x.shape[-1] // 2
    return genesis.cat([-x[..., half:], x[..., :half]], -1) + x


def _heads(x: Any) -> Any:
    b, n, d = x.shape
    return x.reshape(b, n, 2, d // 2).transpose(1, 2).reshape(b * 2, n, d // 2) * 2


def _made() -> Iterator[Case]:
    vary = _batch_and_length
    yield from vary("arange", lambda x: x + genesis.arange(x.shape[1]), "b", "n")
    yield from vary("arange(1, n + 1)", lambda x: x * genesis.arange(1, x.shape[1] + 1), "b", "n")
    yield from vary("zeros(x.shape)", lambda x: x + genesis.zeros(x.shape), "b", "n")
    yield from vary("ones(2 * n)", lambda x: x.sum() + genesis.ones(x.shape[1] * 2), "b", "n")
    yield from vary("full", lambda x: x + genesis.full((x.shape[1],), 2.0), "b", "n")
    yield from vary("eye", lambda x: x @ genesis.eye(x.shape[1]), "b", "n")
    yield from vary("linspace", lambda x: x * genesis.linspace(0, 1, x.shape[1]), "b", "n")
    yield from vary("n * 2", lambda x: x * (x.shape[1] * 2), "b", "n")
    yield from vary("sum / n", lambda x: x.sum(1) / x.shape[1], "b", "n")
    yield from vary("1 / n", lambda x: x.sum(1) * (1 / x.shape[1]), "b", "n", lengths=6)
    yield from vary("n ** -0.5", lambda x: x * x.shape[1] ** -0.5, "b", "n", lengths=6)
    yield from vary("numel", lambda x: x.sum() / x.numel(), "b", "n")
    yield from vary("n % 2", lambda x: x * (2 if x.shape[1] % 2 else 3), "b", "n", lengths=3)
    yield from vary("n > 4", lambda x: x * (2 if x.shape[1] > 4 else 3), "b", "n")
    yield from vary("min(n, 4)", lambda x: x[:, : min(x.shape[1], 4)] * 2, "b", "n")
    yield from vary("mask", lambda x: x @ _causal(x.shape[1]), "b", "n")
    yield from vary("tril", lambda x: x.tril(), "b", "n")
    yield from vary("triu", lambda x: x.triu(1), "b", "n")
    yield from vary("outer tril", lambda x: (x.mT @ x).tril(-1), "b", "n")
    yield from vary("diag", lambda x: genesis.diag(x.sum(0)), "b", "n", lengths=6)
    yield from vary("diagonal", lambda x: (x.mT @ x).diagonal(), "b", "n", lengths=6)
    yield from vary("trace", lambda x: (x.mT @ x).trace(), "b", "n", lengths=6)
    drawn: dict[str, Any] = {"compared": False}
    yield from vary("rand", lambda x: x + genesis.rand(x.shape), "b", "n", **drawn)
    yield from vary("randn_like", lambda x: x + genesis.randn_like(x), "b", "n", **drawn)
    yield from vary("dropout", lambda x: F.dropout(x, 0.5), "b", "n", **drawn)
    yield from vary("dropout1d", lambda x: F.dropout1d(x, 0.5), "b", 3, "n", **drawn)
    yield from vary("randint", lambda x: x + genesis.randint(0, 5, x.shape), "b", "n", **drawn)
    yield from vary("bernoulli", lambda x: x * genesis.bernoulli(x.sigmoid()), "b", "n", **drawn)
    yield from vary("randperm", lambda x: x[:, genesis.randperm(x.shape[1])], "b", "n", **drawn)
    yield from vary(
        "multinomial", lambda x: genesis.multinomial(x.softmax(-1), 2), "b", "n", **drawn,
        gradients=False,
    )  # fmt: skip


def _causal(n: Any) -> Any:
    return genesis.ones(n, n).triu()


def _reductions() -> Iterator[Case]:
    vary = _batch_and_length
    for name in ("sum", "mean", "amax", "logsumexp", "softmax", "log_softmax", "prod"):
        yield from vary(name, lambda x, f=name: getattr(genesis, f)(x, -1), "b", "n")
    for name in ("var", "std", "norm"):
        yield from vary(name, lambda x, f=name: getattr(genesis, f)(x, dim=-1), "b", "n")
    yield from vary("std of all", lambda x: x.std(), "b", "n")
    yield from vary("max", lambda x: x.max(-1)[0], "b", "n")
    yield from vary("argmax", lambda x: x.argmax(-1), "b", "n", gradients=False)
    for name in ("cumsum", "cumprod", "logcumsumexp"):
        yield from vary(name, lambda x, f=name: getattr(genesis, f)(x, 1), "b", "n")
    yield from vary("cummax", lambda x: genesis.cummax(x, 1)[0], "b", "n")
    yield from vary("sort", lambda x: x.sort(-1)[0], "b", "n")
    yield from vary("argsort", lambda x: x.argsort(-1), "b", "n", gradients=False)
    yield from vary("topk", lambda x: x.topk(3)[0], "b", "n")
    yield from vary("topk indices", lambda x: x.topk(3)[1], "b", "n", gradients=False)
    yield from vary("topk of dim 0", lambda x: x.topk(2, 0)[0], "b", "n")
    yield from vary("kthvalue", lambda x: x.kthvalue(2)[0], "b", "n")
    yield from vary("median", lambda x: x.median(-1)[0], "b", "n")
    yield from vary("quantile", lambda x: x.quantile(0.3, -1), "b", "n")
    yield from vary("cdist", lambda x: genesis.cdist(x, x + 1), "b", "n", 3)
    yield from vary("normalize", lambda x: F.normalize(x), "b", "n")
    yield from vary("cosine", lambda x: F.cosine_similarity(x, x + 1), "b", "n")
    yield from vary("searchsorted", lambda x: genesis.searchsorted(x.sort(-1)[0], x),
                    "b", "n", gradients=False, lengths=6)  # fmt: skip


def _layers() -> Iterator[Case]:
    vary = _batch_and_length
    w = {k: numbers(*k) for k in [(4, 3, 3), (4, 3, 3, 3), (4, 3, 3, 3, 3), (4, 1, 3, 3), (3, 4, 3),
                                  (3, 4, 3, 3), (4, 1, 3)]}  # fmt: skip
    conv1, conv2, conv3 = w[4, 3, 3], w[4, 3, 3, 3], w[4, 3, 3, 3, 3]
    yield from vary("conv1d", lambda x: F.conv1d(x, conv1), "b", 3, "n")
    yield from vary("conv1d same", lambda x: F.conv1d(x, conv1, padding="same"), "b", 3, "n")
    yield from vary("conv1d stride 2", lambda x: F.conv1d(x, conv1, stride=2), "b", 3, "n")
    yield from vary("conv1d causal", lambda x: F.conv1d(F.pad(x, (2, 0)), conv1), "b", 3, "n")
    yield from vary("conv1d dilated", lambda x: F.conv1d(x, conv1, dilation=2), "b", 3, "n")
    yield from vary("conv1d depthwise", lambda x: F.conv1d(x, w[4, 1, 3], groups=4), "b", 4, "n")
    yield from vary("conv2d", lambda x: F.conv2d(x, conv2, padding=1), "b", 3, "n", 6)
    yield from vary("conv2d square", lambda x: F.conv2d(x, conv2, padding=1), "b", 3, "n", "n")
    yield from vary(
        "conv2d stride 2", lambda x: F.conv2d(x, conv2, padding=1, stride=2), "b", 3, "n", "n"
    )
    yield from vary(
        "conv2d depthwise", lambda x: F.conv2d(x, w[4, 1, 3, 3], groups=4), "b", 4, "n", 6
    )
    yield from vary("conv3d", lambda x: F.conv3d(x, conv3, padding=1), "b", 3, "n", 4, 4)
    for k in (1, 2):
        yield from vary(
            f"conv_transpose1d stride {k}",
            lambda x, k=k: F.conv_transpose1d(x, w[3, 4, 3], stride=k), "b", 3, "n",
        )  # fmt: skip
    yield from vary(
        "conv_transpose2d", lambda x: F.conv_transpose2d(x, w[3, 4, 3, 3], stride=2), "b", 3, "n", 4
    )
    for kind in ("max", "avg"):
        for rank in (1, 2, 3):
            pool = getattr(F, f"{kind}_pool{rank}d")
            rest = (4,) * (rank - 1)
            yield from vary(f"{kind}_pool{rank}d", lambda x, f=pool: f(x, 2), "b", 3, "n", *rest)
        pool = getattr(F, f"{kind}_pool2d")
        yield from vary(f"{kind}_pool2d 3/2/1", lambda x, f=pool: f(x, 3, 2, 1), "b", 3, "n", "n")
        yield from vary(
            f"{kind}_pool2d ceil",
            lambda x, f=pool: f(x, 3, 2, ceil_mode=True),
            "b",
            3,
            "n",
            7,
            lengths=3,
        )
        adaptive = getattr(F, f"adaptive_{kind}_pool2d")
        yield from vary(f"adaptive_{kind}_pool2d(1)", lambda x, f=adaptive: f(x, 1), "b", 3, "n", 8)
        yield from vary(
            f"adaptive_{kind}_pool2d(4)", lambda x, f=adaptive: f(x, 4), "b", 3, "n", 8, sizes=FOURS
        )
        yield from vary(
            f"adaptive_{kind}_pool2d(3)", lambda x, f=adaptive: f(x, 3), "b", 3, "n", 8,
            skip=("n",),
        )  # fmt: skip
    yield from vary(
        "max_pool2d indices", lambda x: F.max_pool2d(x, 2, return_indices=True)[1], "b", 3, "n", 4,
        gradients=False,
    )  # fmt: skip
    yield from vary("lp_pool1d", lambda x: F.lp_pool1d(x, 2.0, 2), "b", 3, "n")
    for mode in ("nearest", "linear"):
        yield from vary(
            f"interpolate 1d {mode} x2",
            lambda x, m=mode: F.interpolate(x, scale_factor=2, mode=m), "b", 3, "n",
        )  # fmt: skip
    for mode in ("nearest", "bilinear", "bicubic"):
        yield from vary(
            f"interpolate {mode} x2",
            lambda x, m=mode: F.interpolate(x, scale_factor=2, mode=m), "b", 3, "n", "n",
        )  # fmt: skip
        yield from vary(
            f"interpolate {mode} to 8",
            lambda x, m=mode: F.interpolate(x, size=(8, 8), mode=m), "b", 3, "n", "n",
            lengths=6,
        )  # fmt: skip
    yield from vary(
        "interpolate bilinear aligned",
        lambda x: F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=True),
        "b", 3, "n", "n", lengths=6)  # fmt: skip
    yield from vary(
        "interpolate nearest /2", lambda x: F.interpolate(x, scale_factor=0.5), "b", 3, "n", "n"
    )
    yield from vary("layer_norm", lambda x: F.layer_norm(x, (4,)), "b", "n", 4)
    yield from vary("rms_norm", lambda x: F.rms_norm(x, (4,)), "b", "n", 4)
    yield from vary("group_norm", lambda x: F.group_norm(x, 2), "b", 4, "n")
    yield from vary("instance_norm", lambda x: F.instance_norm(x), "b", 3, "n")
    yield from vary("batch_norm", lambda x: F.batch_norm(x, None, None, training=True), "b", 3, "n")
    yield from vary("local_response_norm", lambda x: F.local_response_norm(x, 3), "b", 4, "n")
    yield from vary(
        "attention", lambda x: F.scaled_dot_product_attention(x, x, x), "b", 2, "n", 4, rtol=1e-3
    )
    yield from vary(
        "attention causal", lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True),
        "b", 2, "n", 4, rtol=1e-3,
    )  # fmt: skip
    yield from vary("attention masked", _masked_attention, "b", 2, "n", 4, rtol=1e-3)
    yield from vary("glu", lambda x: F.glu(x, 1), "b", 4, "n")
    yield from vary("grid_sample", lambda x: F.grid_sample(x, x[:, :2].permute(0, 2, 3, 1)),
                    "b", 3, "n", 5, lengths=6)  # fmt: skip
    yield from vary("fft", lambda x: genesis.fft.fft(x).abs(), "b", 8, skip=("n",))
    yield from vary("rfft", lambda x: genesis.fft.rfft(x).real, "b", 8, skip=("n",))
    yield from vary("irfft", lambda x: genesis.fft.irfft(x), "b", 8)
    yield from vary("fft2", lambda x: genesis.fft.fft2(x).abs(), "b", 4, 8)
    yield from vary("fft of dim 0", lambda x: genesis.fft.rfft(x, dim=0).abs(), 8, "n")
    yield from vary("stft", lambda x: genesis.stft(x, 4, return_complex=True).abs(), "b", 16)


def _masked_attention(x: Any) -> Any:
    mask = genesis.ones(x.shape[2], x.shape[2]).tril() > 0
    return F.scaled_dot_product_attention(x, x, x, attn_mask=mask)


def _losses_and_indices() -> Iterator[Case]:
    def with_classes(shape: Callable[[int], tuple[int, ...]]) -> Callable[[int], tuple[Any, ...]]:
        return lambda k: (numbers(*shape(k), 5), whole(5, *shape(k)))

    yield Case("cross_entropy/b", lambda x, y: F.cross_entropy(x, y), with_classes(lambda k: (k,)))
    yield Case("cross_entropy flat/n",
               lambda x, y: F.cross_entropy(x.view(-1, 5), y.view(-1)),
               with_classes(lambda k: (3, k)))  # fmt: skip
    yield Case("cross_entropy flat/b",
               lambda x, y: F.cross_entropy(x.view(-1, 5), y.view(-1), ignore_index=0),
               with_classes(lambda k: (k, 3)))  # fmt: skip
    yield Case("cross_entropy 2d/n", lambda x, y: F.cross_entropy(x.movedim(-1, 1), y),
               with_classes(lambda k: (2, k, k)))  # fmt: skip
    yield Case("language model/n",
               lambda x, y: F.cross_entropy(x[:, :-1].reshape(-1, 5), y[:, 1:].reshape(-1)),
               with_classes(lambda k: (3, k)))  # fmt: skip
    yield Case("mse/b", lambda x, y: F.mse_loss(x, y), lambda k: (numbers(k, 3), numbers(k, 3)))
    yield Case("bce/b", lambda x, y: F.binary_cross_entropy_with_logits(x, y.sigmoid()),
               lambda k: (numbers(k, 3), numbers(k, 3)))  # fmt: skip
    yield Case("kl_div/b", lambda x, y: F.kl_div(x.log_softmax(-1), y.softmax(-1), "batchmean"),
               lambda k: (numbers(k, 3), numbers(k, 3)))  # fmt: skip
    table = numbers(7, 4)
    for letter, shape in (("b", lambda k: (k, 3)), ("n", lambda k: (3, k))):
        some = {"arguments": lambda k, s=shape: (whole(7, *s(k)),), "gradients": False}
        yield Case(f"embedding/{letter}", lambda i: F.embedding(i, table), **some)
        yield Case(f"one_hot/{letter}", lambda i: F.one_hot(i, 7), **some)
        both = {"arguments": lambda k, s=shape: (numbers(*s(k)), whole(3, *s(k)))}
        yield Case(f"gather/{letter}", lambda x, i: x.gather(1, i), **both)
        yield Case(f"scatter_add/{letter}", lambda x, i: x.scatter_add(1, i, x * 2), **both)
        yield Case(f"masked_fill/{letter}", lambda x, i: x.masked_fill(i > 1, 0.5), **both)
        yield Case(f"where/{letter}", lambda x, i: genesis.where(i > 1, x, 0.5), **both)
        yield Case(f"take_along_dim/{letter}", lambda x, i: x.take_along_dim(i, 1), **both)
    rows = lambda k: (numbers(k, 3), whole(k, k))  # noqa: E731
    yield Case("index_select/b", lambda x, i: x.index_select(0, i), rows)
    yield Case("x[i]/b", lambda x, i: x[i], rows)
    yield Case("x[arange, i]/b", lambda x, i: x[genesis.arange(x.shape[0]), i % 3], rows)
    yield Case("index_add/b", lambda x, i: x.index_add(0, i, x), rows)
    yield Case("segments/b", lambda x, i: genesis.zeros(4, 3).index_add(0, i % 4, x), rows)
    yield Case("x[i] = 0/b", _cleared, rows)
    square = lambda k: (numbers(k, 3, 3),)  # noqa: E731
    yield Case("linalg.inv/b", lambda x: genesis.linalg.inv(x), square, rtol=2e-2)
    yield Case("linalg.solve/b", lambda x: genesis.linalg.solve(x, x[:, :, :1]), square, rtol=2e-2)
    yield Case("linalg.det/b", lambda x: genesis.linalg.det(x), square)
    yield Case("cholesky/b", lambda x: genesis.linalg.cholesky(x @ x.mT + 3 * genesis.eye(3)),
               square, rtol=1e-3)  # fmt: skip
    yield Case("linalg.norm/b", lambda x: genesis.linalg.norm(x, dim=(1, 2)), square)
    yield Case("qr/b", lambda x: genesis.linalg.qr(x)[1].abs(), square, rtol=2e-2)
    yield Case("svdvals/b", lambda x: genesis.linalg.svdvals(x), square, rtol=2e-2)
    yield Case("eigvalsh/b", lambda x: genesis.linalg.eigvalsh(x + x.mT), square, rtol=2e-2)
    yield Case("bmm/n", lambda x: genesis.bmm(x, x.mT), lambda k: (numbers(3, k, 4),))
    yield Case("past and new/n",
               lambda k, q, m: F.scaled_dot_product_attention(
                   q, genesis.cat([k, q], 2), genesis.cat([k, q], 2), attn_mask=m),
               lambda k: (numbers(1, 2, k, 4), numbers(1, 2, 1, 4), numbers(1, k + 1)),
               rtol=1e-3)  # fmt: skip
    yield Case("skip connection/n", _skip, lambda k: (numbers(2, 3, k, k),), EVEN)


def _cleared(x: Any, i: Any) -> Any:
    y = x * 1
    y[i] = 0.0
    return y


def _skip(x: Any) -> Any:
    small = F.max_pool2d(x, 2)
    return genesis.cat([x, F.interpolate(small, scale_factor=2)], 1)


def _both() -> Iterator[Case]:
    """Batch and length change at once, by different amounts."""

    def at(*shape: Any) -> Callable[[int], tuple[Any, ...]]:
        def arguments(k: int) -> tuple[Any, ...]:
            known = {"b": k, "n": (3 * k) % 7 + 5}
            return (numbers(*(known.get(s, s) for s in shape)),)

        return arguments

    w = numbers(4, 3, 3)
    yield Case("view(-1, k)/bn", lambda x: x.view(-1, 4).tanh(), at("b", "n", 4))
    yield Case("flatten/bn", lambda x: x.flatten() * 2, at("b", "n"))
    yield Case("layer_norm/bn", lambda x: F.layer_norm(x, (64,)), at("b", "n", 64))
    yield Case("heads/bn", _heads, at("b", "n", 8))
    yield Case("conv1d/bn", lambda x: F.conv1d(x, w, padding=1), at("b", 3, "n"))
    yield Case("max_pool1d/bn", lambda x: F.max_pool1d(x, 2), at("b", 3, "n"))
    yield Case("batch_norm/bn", lambda x: F.batch_norm(x, None, None, training=True),
               at("b", 3, "n"))  # fmt: skip
    yield Case("attention/bn", lambda x: F.scaled_dot_product_attention(x, x, x),
               at("b", 2, "n", 4), rtol=1e-3)  # fmt: skip
    yield Case("sum/bn", lambda x: x.sum() + x.mean(), at("b", "n", 64))
    yield Case("softmax/bn", lambda x: x.softmax(-1), at("b", 16, "n"))


OPERATIONS = [*_both(), *_movement(), *_made(), *_reductions(), *_layers(), *_losses_and_indices()]


# ---- modules, trained


class Recurrent(nn.Module):
    """A recurrent layer whose last output is classified."""

    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.layer = kind(4, 5, batch_first=True)
        self.head = nn.Linear(5, 3)

    def forward(self, x: Any) -> Any:
        return self.head(self.layer(x)[0][:, -1])


class Causal(nn.Module):
    """A small transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, 11)

    def forward(self, x: Any) -> Any:
        return self.head(self.layer(self.embed(x)))


class Block(nn.Module):
    """Convolutions with a way around them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm1 = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.second, self.norm2 = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)

    def forward(self, x: Any) -> Any:
        return (x + self.norm2(self.second(self.norm1(self.first(x)).relu()))).relu()


def _cnn() -> Any:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(4, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3),
    )  # fmt: skip


def _residual() -> Any:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.MaxPool2d(3, 2, 1), Block(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3),
    )  # fmt: skip


def _vary(
    name: str, make: Callable[[], Any], shape: tuple[Any, ...], usual: dict[str, int],
    sizes: tuple[int, ...] = SIZES, whole_below: int = 0, programs: int = 2,
) -> Iterator[Case]:  # fmt: skip
    for letter in usual:

        def arguments(k: int, letter: str = letter) -> tuple[Any, ...]:
            known = usual | {letter: k}
            real = [known.get(s, s) for s in shape]
            return (whole(whole_below, *real) if whole_below else numbers(*real),)

        yield Case(f"{name}/{letter}", make, arguments, sizes, programs, rtol=1e-3)


def _models() -> Iterator[Case]:
    yield from _vary("MLP", lambda: nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 3)),
                     ("b", 4), {"b": 3})  # fmt: skip
    yield from _vary(
        "MLP with batch norm",
        lambda: nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)),
        ("b", 4), {"b": 3},
    )  # fmt: skip
    yield from _vary("CNN", _cnn, ("b", 3, "n", "n"), {"b": 3, "n": 16})
    yield from _vary("ResNet", _residual, ("b", 3, "n", "n"), {"b": 3, "n": 16}, FOURS)
    yield from _vary(
        "Conv1d",
        lambda: nn.Sequential(nn.Conv1d(3, 4, 3, padding=1), nn.BatchNorm1d(4), nn.ReLU(),
                              nn.MaxPool1d(2), nn.Conv1d(4, 3, 3)),
        ("b", 3, "n"), {"b": 3, "n": 16}, (8, 12, 16, 9, 20, 11),
    )  # fmt: skip
    yield from _vary("LSTM", lambda: Recurrent(nn.LSTM), ("b", "n", 4), {"b": 3, "n": 7})
    yield from _vary("GRU", lambda: Recurrent(nn.GRU), ("b", "n", 4), {"b": 3, "n": 7})
    yield from _vary("RNN", lambda: Recurrent(nn.RNN), ("b", "n", 4), {"b": 3, "n": 7})
    yield from _vary("transformer", Causal, ("b", "n"), {"b": 3, "n": 7}, whole_below=11)
    yield from _vary(
        "U-Net",
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.MaxPool2d(2), nn.GroupNorm(2, 4),
                              nn.Upsample(scale_factor=2), nn.ConvTranspose2d(4, 3, 2, stride=2)),
        ("b", 3, "n", "n"), {"b": 3, "n": 8},
    )  # fmt: skip


def _wide_models() -> Iterator[Case]:
    """Widths and sizes that fill vectors and blocks."""
    sizes = (24, 32, 40, 33, 64, 17)
    yield from _vary(
        "wide MLP",
        lambda: nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.BatchNorm1d(256),
                              nn.Linear(256, 32)),
        ("b", 64), {"b": 3}, sizes,
    )  # fmt: skip
    yield from _vary(
        "wide CNN",
        lambda: nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
                              nn.MaxPool2d(2), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(),
                              nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)),
        ("b", 3, "n", "n"), {"b": 8, "n": 32}, sizes,
    )  # fmt: skip
    yield from _vary(
        "wide transformer",
        lambda: nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True),
        ("b", "n", 64), {"b": 4, "n": 48}, sizes,
    )  # fmt: skip


MODELS = [*_models(), *_wide_models()]


# ---- running them


def flat(x: Any) -> list[Any]:
    """The tensors in a result."""
    if isinstance(x, genesis.Tensor):
        return [x]
    return [z for y in x for z in flat(y)] if isinstance(x, tuple | list) else []


def with_gradients(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function's result and its gradient for every floating-point argument."""

    def both(*args: Any) -> Any:
        given = [x.detach().requires_grad_() if x.dtype.is_float else x for x in args]
        y = function(*given)
        loss = (y * y * 0.5).sum() + y.sum()
        wanted = [x for x in given if x.requires_grad]
        return y, genesis.autograd.grad(loss, wanted, allow_unused=True)

    return both


def training(make: Callable[[], Any]) -> Callable[..., Any]:
    """A step that trains a new module with Adam, and gives the loss."""
    genesis.manual_seed(0)
    model = make()
    optimizer = genesis.optim.Adam(model.parameters(), lr=1e-2)

    def step(x: Any) -> Any:
        optimizer.zero_grad()
        y = model(x)
        loss = (y * y).mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def difference(case: Case, got: Any, want: Any) -> str | None:
    """What is wrong with a result, in words."""
    for g, w in zip(flat(got), flat(want), strict=True):
        if g.shape != w.shape or g.dtype != w.dtype:
            return f"{g.dtype}{tuple(g.shape)} instead of {w.dtype}{tuple(w.shape)}"
        if case.compared:
            a, b = g.detach().numpy(), w.detach().numpy()
            scale = float(np.abs(b).max(initial=1.0)) if b.dtype.kind == "f" else 1.0
            if not np.allclose(a, b, rtol=case.rtol, atol=case.rtol * scale):
                return f"off by {np.abs(a - b).max()}"
    return None


def run(case: Case, mode: str) -> tuple[int, float, list[str]]:
    """Recordings taken, seconds in them, and what was wrong."""
    if mode == "step":
        function, plain = training(case.function), training(case.function)
    elif mode == "gradients":
        function = plain = with_gradients(case.function)
    else:
        function = plain = case.function
    jitted = genesis.jit(function)
    wrong, seconds = [], 0.0
    for n in case.sizes:
        start, before = time.perf_counter(), jitted.captures
        got = jitted(*case.arguments(n))
        if jitted.captures > before:
            seconds += time.perf_counter() - start
        fault = difference(case, got, plain(*case.arguments(n)))
        if fault:
            wrong.append(f"{n}: {fault}")
    return jitted.captures, seconds, wrong


def modes(case: Case) -> list[str]:
    """What a case is tried with."""
    if case in MODELS:
        return ["step"]
    return ["forward", "gradients"] if case.gradients else ["forward"]


def main(names: list[str]) -> None:
    """Print one line for each case."""
    for case in [*OPERATIONS, *MODELS]:
        if names and not any(n in case.name for n in names):
            continue
        for mode in modes(case):
            try:
                captures, seconds, wrong = run(case, mode)
            except Exception as error:
                captures, seconds, wrong = -1, 0.0, [f"{type(error).__name__}: {error}"]
            mark = "" if captures <= case.programs and not wrong else "  <--"
            print(f"{case.name:36} {mode:10}{captures:3} {seconds:6.2f} s{mark}", *wrong[:2],
                  flush=True)  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1:])
