"""A Llama-shaped decoder (Touvron et al. 2023): forward and backward of the next-token loss.

RMS norm, rotary position embedding, attention in which several query heads share a key head, and
the SwiGLU feed-forward network. As in `bert`, every layer is a pair of functions.

Letters of contractions: b batch, t and s tokens, k key heads, g query heads per key head,
d the elements of a head, i and o features.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from operator import index

from benchmarks.models import Tree
from genesis import ndarray as nd
from genesis.ndarray import NDArray

EPSILON = 1e-5
THETA = 10000.0


@dataclass(frozen=True)
class Config:
    """The size of the model: as the 1-billion-parameter one in depth, narrower."""

    layers: int = 16
    hidden: int = 512
    heads: int = 8
    key_heads: int = 2
    intermediate: int = 2048
    vocabulary: int = 2048


def parameters(config: Config) -> Tree:
    """The shapes of all weights."""
    hidden, size = config.hidden, config.hidden // config.heads
    group = config.heads // config.key_heads
    layer = {
        "attention_norm": (hidden,),
        "query": (config.key_heads, group, size, hidden),
        "key": (config.key_heads, size, hidden),
        "value": (config.key_heads, size, hidden),
        "output": (hidden, config.key_heads, group, size),
        "feed_forward_norm": (hidden,),
        "gate": (config.intermediate, hidden),
        "up": (config.intermediate, hidden),
        "down": (hidden, config.intermediate),
    }
    return {
        "words": (config.vocabulary, hidden),
        "layers": [layer] * config.layers,
        "norm": (hidden,),
        "decoder": (config.vocabulary, hidden),
    }


# ---- RMS norm: y = γ x / r with r² = mean(x²) + ε


def rms_norm(x: NDArray, gamma: NDArray) -> tuple[NDArray, Tree]:
    """Each token with mean square 1, scaled."""
    size = nd.sqrt((x * x).mean(axis=-1, keepdims=True) + EPSILON)
    normal = x / size
    return normal * gamma, (normal, size)


def rms_norm_backward(saved: Tree, gamma: NDArray, dy: NDArray) -> tuple[NDArray, NDArray]:
    """The gradients of x and γ."""
    normal, size = saved
    scaled = dy * gamma
    along = (scaled * normal).mean(axis=-1, keepdims=True)
    return (scaled - normal * along) / size, (dy * normal).sum(axis=(0, 1))


# ---- rotary position embedding


def rotation(tokens: int, size: int) -> tuple[NDArray, NDArray]:
    """Cosines and signed sines (tokens, 2, size / 2) of each position's angles."""
    half = size // 2
    frequency = nd.exp(nd.arange(half).astype("float32") * (-math.log(THETA) / half))
    angle = nd.arange(tokens).astype("float32")[:, None, None] * frequency
    sign = nd.arange(2).astype("float32")[:, None] * 2 - 1
    return nd.cos(angle).expand(tokens, 2, half), nd.sin(angle) * sign


def rotate(x: NDArray, cosine: NDArray, sine: NDArray) -> NDArray:
    """Turn the pairs (x[i], x[i + size/2]) of the last axis; axis 1 is the position.

    (a, b) becomes (a cos - b sin, b cos + a sin): the halves, and the halves exchanged.
    """
    halves = x.reshape(*x.shape[:-1], 2, x.shape[-1] // 2)
    between = (1,) * (x.ndim - 3)
    cosine = cosine.reshape(cosine.shape[0], *between, *cosine.shape[1:])
    sine = sine.reshape(sine.shape[0], *between, *sine.shape[1:])
    return (halves * cosine + halves.flip(-2) * sine).reshape(x.shape)


# ---- attention


def attention(x: NDArray, w: Tree, turn: Tree) -> tuple[NDArray, Tree]:
    """Every token as a mean of its predecessors' values."""
    cosine, sine = turn
    query = rotate(nd.einsum("bti,kgdi->btkgd", x, w["query"]), cosine, sine)
    key = rotate(nd.einsum("bti,kdi->btkd", x, w["key"]), cosine, sine)
    value = nd.einsum("bti,kdi->btkd", x, w["value"])
    score = nd.einsum("btkgd,bskd->bkgts", query, key) / math.sqrt(query.shape[-1])
    position = nd.arange(x.shape[1])
    past = position[:, None] >= position
    probability = nd.softmax(nd.where(past, score, float("-inf")))
    mixed = nd.einsum("bkgts,bskd->btkgd", probability, value)
    result = nd.einsum("btkgd,okgd->bto", mixed, w["output"])
    return result, (x, query, key, value, probability, mixed)


def attention_backward(saved: Tree, w: Tree, turn: Tree, dy: NDArray) -> tuple[NDArray, Tree]:
    """The gradients of x and of the four projections."""
    cosine, sine = turn
    x, query, key, value, probability, mixed = saved
    dmixed = nd.einsum("bto,okgd->btkgd", dy, w["output"])
    dvalue = nd.einsum("bkgts,btkgd->bskd", probability, dmixed)
    dprobability = nd.einsum("btkgd,bskd->bkgts", dmixed, value)
    along = (dprobability * probability).sum(axis=-1, keepdims=True)
    dscore = probability * (dprobability - along) / math.sqrt(query.shape[-1])
    dquery = rotate(nd.einsum("bkgts,bskd->btkgd", dscore, key), cosine, -sine)
    dkey = rotate(nd.einsum("bkgts,btkgd->bskd", dscore, query), cosine, -sine)
    dx = (
        nd.einsum("btkgd,kgdi->bti", dquery, w["query"])
        + nd.einsum("btkd,kdi->bti", dkey, w["key"])
        + nd.einsum("btkd,kdi->bti", dvalue, w["value"])
    )
    return dx, {
        "query": nd.einsum("btkgd,bti->kgdi", dquery, x),
        "key": nd.einsum("btkd,bti->kdi", dkey, x),
        "value": nd.einsum("btkd,bti->kdi", dvalue, x),
        "output": nd.einsum("bto,btkgd->okgd", dy, mixed),
    }


# ---- SwiGLU: y = (silu(x Gᵀ) ⊙ x Uᵀ) Dᵀ


def feed_forward(x: NDArray, w: Tree) -> tuple[NDArray, Tree]:
    """The gated feed-forward network."""
    gate = nd.einsum("bti,oi->bto", x, w["gate"])
    up = nd.einsum("bti,oi->bto", x, w["up"])
    wide = nd.silu(gate) * up
    return nd.einsum("bti,oi->bto", wide, w["down"]), (x, gate, up, wide)


def feed_forward_backward(saved: Tree, w: Tree, dy: NDArray) -> tuple[NDArray, Tree]:
    """The gradients of x and of the three matrices."""
    x, gate, up, wide = saved
    dwide = nd.einsum("bto,oi->bti", dy, w["down"])
    sigmoid = nd.sigmoid(gate)
    dgate = dwide * up * sigmoid * (1 + gate * (1 - sigmoid))
    dup = dwide * gate * sigmoid
    dx = nd.einsum("bto,oi->bti", dgate, w["gate"]) + nd.einsum("bto,oi->bti", dup, w["up"])
    return dx, {
        "gate": nd.einsum("bto,bti->oi", dgate, x),
        "up": nd.einsum("bto,bti->oi", dup, x),
        "down": nd.einsum("bto,bti->oi", dy, wide),
    }


# ---- one layer


def layer(x: NDArray, w: Tree, turn: Tree) -> tuple[NDArray, Tree]:
    """Attention and the feed-forward network, each of the normalised input and added to it."""
    normal, saved_first = rms_norm(x, w["attention_norm"])
    mixed, saved_attention = attention(normal, w, turn)
    middle = x + mixed
    normal, saved_second = rms_norm(middle, w["feed_forward_norm"])
    wide, saved_wide = feed_forward(normal, w)
    return middle + wide, (saved_first, saved_attention, saved_second, saved_wide)


def layer_backward(saved: Tree, w: Tree, turn: Tree, dy: NDArray) -> tuple[NDArray, Tree]:
    """The gradients of the layer's input and weights."""
    saved_first, saved_attention, saved_second, saved_wide = saved
    dnormal, matrices = feed_forward_backward(saved_wide, w, dy)
    dx, second = rms_norm_backward(saved_second, w["feed_forward_norm"], dnormal)
    dmiddle = dy + dx
    dnormal, projections = attention_backward(saved_attention, w, turn, dmiddle)
    dx, first = rms_norm_backward(saved_first, w["attention_norm"], dnormal)
    norms = {"attention_norm": first, "feed_forward_norm": second}
    return dmiddle + dx, {**norms, **projections, **matrices}


# ---- the model


def loss_and_gradients(w: Tree, tokens: NDArray, targets: NDArray) -> tuple[NDArray, Tree]:
    """The mean cross entropy of the targets (batch, tokens), and the gradients of all weights."""
    x = nd.embedding(w["words"], tokens)
    size = w["layers"][0]["key"].shape[1]
    turn = rotation(index(tokens.shape[1]), size)
    saved = []
    for weights in w["layers"]:
        x, saved_layer = layer(x, weights, turn)
        saved.append(saved_layer)
    normal, saved_norm = rms_norm(x, w["norm"])
    logarithm = nd.log_softmax(nd.einsum("bti,vi->btv", normal, w["decoder"]))
    hit = nd.arange(logarithm.shape[-1]) == targets[:, :, None]
    loss = -nd.where(hit, logarithm, 0.0).sum(axis=-1).mean()

    dlogits = (nd.exp(logarithm) - hit.astype("float32")) / float(targets.size)
    dnormal = nd.einsum("btv,vi->bti", dlogits, w["decoder"])
    dx, norm = rms_norm_backward(saved_norm, w["norm"], dnormal)
    layers = []
    for weights, saved_layer in zip(reversed(w["layers"]), reversed(saved), strict=True):
        dx, gradients = layer_backward(saved_layer, weights, turn, dx)
        layers.append(gradients)
    return loss, {
        "words": nd.index_add(nd.zeros_like(w["words"]), tokens, dx),
        "layers": layers[::-1],
        "norm": norm,
        "decoder": nd.einsum("btv,bti->vi", dlogits, normal),
    }
