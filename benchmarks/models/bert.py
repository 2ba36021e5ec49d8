"""BERT (Devlin et al. 2018): the encoder with its masked-language-model loss, forward and backward.

Every layer is a pair of functions. The forward one returns its result and what the backward one
needs; the backward one takes that and the gradient of the result, and returns the gradients of the
input and of the weights. No tape: what a training step computes is what is written here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from benchmarks.models import Tree
from genesis import ndarray as nd
from genesis.ndarray import NDArray

EPSILON = 1e-12


@dataclass(frozen=True)
class Config:
    """The size of the model."""

    layers: int = 12
    hidden: int = 768
    heads: int = 12
    intermediate: int = 3072
    vocabulary: int = 30522
    positions: int = 512


BERT_BASE = Config()


def parameters(config: Config) -> Tree:
    """The shapes of all weights."""
    hidden = config.hidden
    layer = {
        "query": _linear(hidden, hidden),
        "key": _linear(hidden, hidden),
        "value": _linear(hidden, hidden),
        "output": _linear(hidden, hidden),
        "attention_norm": _norm(hidden),
        "up": _linear(config.intermediate, hidden),
        "down": _linear(hidden, config.intermediate),
        "feed_forward_norm": _norm(hidden),
    }
    return {
        "words": (config.vocabulary, hidden),
        "positions": (config.positions, hidden),
        "norm": _norm(hidden),
        "layers": [layer] * config.layers,
        "decoder_bias": (config.vocabulary,),
    }


def _linear(out: int, features: int) -> Tree:
    return {"weight": (out, features), "bias": (out,)}


def _norm(hidden: int) -> Tree:
    return {"gamma": (hidden,), "beta": (hidden,)}


# ---- linear: y = x Wᵀ + b


def linear(x: NDArray, w: Tree) -> NDArray:
    """The last axis of x through a weight (out, in) and a bias."""
    y: NDArray = nd.einsum("bti,oi->bto", x, w["weight"]) + w["bias"]
    return y


def linear_backward(x: NDArray, w: Tree, dy: NDArray) -> tuple[NDArray, Tree]:
    """The gradients of x and of the weights."""
    weight = nd.einsum("bto,bti->oi", dy, x)
    dx = nd.einsum("bto,oi->bti", dy, w["weight"])
    return dx, {"weight": weight, "bias": dy.sum(axis=(0, 1))}


# ---- layer norm: y = γ x̂ + β with x̂ = (x - mean) / deviation


def layer_norm(x: NDArray, w: Tree) -> tuple[NDArray, Tree]:
    """Each token with mean 0 and variance 1, scaled and shifted."""
    centred = x - x.mean(axis=-1, keepdims=True)
    deviation = nd.sqrt((centred * centred).mean(axis=-1, keepdims=True) + EPSILON)
    normal = centred / deviation
    return normal * w["gamma"] + w["beta"], (normal, deviation)


def layer_norm_backward(saved: Tree, w: Tree, dy: NDArray) -> tuple[NDArray, Tree]:
    """dx is dx̂ without its parts along 1 and along x̂, over the deviation."""
    normal, deviation = saved
    scaled = dy * w["gamma"]
    mean = scaled.mean(axis=-1, keepdims=True)
    along = (scaled * normal).mean(axis=-1, keepdims=True)
    dx = (scaled - mean - normal * along) / deviation
    return dx, {"gamma": (dy * normal).sum(axis=(0, 1)), "beta": dy.sum(axis=(0, 1))}


# ---- GELU: y = x Φ(x)


def gelu_backward(x: NDArray, dy: NDArray) -> NDArray:
    """d/dx x Φ(x) = Φ(x) + x φ(x)"""
    probability = (nd.erf(x * math.sqrt(0.5)) + 1) * 0.5
    density = nd.exp(x * x * -0.5) * (1 / math.sqrt(2 * math.pi))
    return dy * (probability + x * density)


# ---- attention


def split_heads(x: NDArray, heads: int) -> NDArray:
    """(batch, tokens, hidden) as (batch, heads, tokens, hidden / heads)."""
    batch, tokens, hidden = x.shape
    return x.reshape(batch, tokens, heads, hidden // heads).swapaxes(1, 2)


def join_heads(x: NDArray) -> NDArray:
    """The inverse of `split_heads`."""
    batch, heads, tokens, size = x.shape
    return x.swapaxes(1, 2).reshape(batch, tokens, heads * size)


def attention(x: NDArray, w: Tree, heads: int) -> tuple[NDArray, Tree]:
    """Every token as a mean of all values, weighted by how its query fits their keys."""
    query = split_heads(linear(x, w["query"]), heads)
    key = split_heads(linear(x, w["key"]), heads)
    value = split_heads(linear(x, w["value"]), heads)
    probability = nd.softmax(query @ key.mT / math.sqrt(query.shape[-1]))
    mixed = join_heads(probability @ value)
    return linear(mixed, w["output"]), (x, query, key, value, probability, mixed)


def attention_backward(saved: Tree, w: Tree, heads: int, dy: NDArray) -> tuple[NDArray, Tree]:
    """The gradients of x and of the four projections."""
    x, query, key, value, probability, mixed = saved
    dmixed, output = linear_backward(mixed, w["output"], dy)
    dmixed = split_heads(dmixed, heads)
    dvalue = probability.mT @ dmixed
    dprobability = dmixed @ value.mT
    along = (dprobability * probability).sum(axis=-1, keepdims=True)
    dscore = probability * (dprobability - along) / math.sqrt(query.shape[-1])
    dquery = dscore @ key
    dkey = dscore.mT @ query
    dx_query, query_weights = linear_backward(x, w["query"], join_heads(dquery))
    dx_key, key_weights = linear_backward(x, w["key"], join_heads(dkey))
    dx_value, value_weights = linear_backward(x, w["value"], join_heads(dvalue))
    gradients = {"query": query_weights, "key": key_weights, "value": value_weights}
    return dx_query + dx_key + dx_value, {**gradients, "output": output}


# ---- one layer


def layer(x: NDArray, w: Tree, heads: int) -> tuple[NDArray, Tree]:
    """Attention and a feed-forward network, each added to its input and normalised."""
    mixed, saved_attention = attention(x, w, heads)
    middle, saved_middle = layer_norm(x + mixed, w["attention_norm"])
    wide = linear(middle, w["up"])
    active = nd.gelu(wide)
    result, saved_result = layer_norm(middle + linear(active, w["down"]), w["feed_forward_norm"])
    return result, (saved_attention, saved_middle, middle, wide, active, saved_result)


def layer_backward(saved: Tree, w: Tree, heads: int, dy: NDArray) -> tuple[NDArray, Tree]:
    """The gradients of the layer's input and weights."""
    saved_attention, saved_middle, middle, wide, active, saved_result = saved
    dsum, feed_forward_norm = layer_norm_backward(saved_result, w["feed_forward_norm"], dy)
    dactive, down = linear_backward(active, w["down"], dsum)
    dmiddle, up = linear_backward(middle, w["up"], gelu_backward(wide, dactive))
    dmixed, attention_norm = layer_norm_backward(saved_middle, w["attention_norm"], dsum + dmiddle)
    dx, projections = attention_backward(saved_attention, w, heads, dmixed)
    gradients = {"attention_norm": attention_norm, "up": up, "down": down}
    return dmixed + dx, {**projections, **gradients, "feed_forward_norm": feed_forward_norm}


# ---- the model


def forward(w: Tree, tokens: NDArray, heads: int) -> tuple[NDArray, Tree]:
    """The last hidden states (batch, tokens, hidden)."""
    embedded = nd.embedding(w["words"], tokens) + w["positions"][: tokens.shape[1]]
    x, saved_norm = layer_norm(embedded, w["norm"])
    saved = []
    for weights in w["layers"]:
        x, saved_layer = layer(x, weights, heads)
        saved.append(saved_layer)
    return x, (saved_norm, saved)


def loss_and_gradients(
    w: Tree, tokens: NDArray, labels: NDArray, heads: int
) -> tuple[NDArray, Tree]:
    """The mean cross entropy at the tokens whose label is not negative, and all gradients.

    The decoder's matrix is the word embedding.
    """
    x, (saved_norm, saved) = forward(w, tokens, heads)
    logits = nd.einsum("bti,vi->btv", x, w["words"]) + w["decoder_bias"]
    logarithm = nd.log_softmax(logits)
    asked = (labels >= 0).astype("float32")
    weight = asked / asked.sum()
    hit = nd.arange(logits.shape[-1]) == labels[:, :, None]
    loss = -(nd.where(hit, logarithm, 0.0).sum(axis=-1) * weight).sum()

    dlogits = (nd.exp(logarithm) - hit.astype("float32")) * weight[:, :, None]
    dx = nd.einsum("btv,vi->bti", dlogits, w["words"])
    dwords = nd.einsum("btv,bti->vi", dlogits, x)
    layers = []
    for weights, saved_layer in zip(reversed(w["layers"]), reversed(saved), strict=True):
        dx, gradients = layer_backward(saved_layer, weights, heads, dx)
        layers.append(gradients)
    dx, norm = layer_norm_backward(saved_norm, w["norm"], dx)
    unused = w["positions"].shape[0] - tokens.shape[1]
    return loss, {
        "words": nd.index_add(dwords, tokens, dx),
        "positions": nd.pad(dx.sum(axis=0), ((0, unused), (0, 0))),
        "norm": norm,
        "layers": layers[::-1],
        "decoder_bias": dlogits.sum(axis=(0, 1)),
    }
