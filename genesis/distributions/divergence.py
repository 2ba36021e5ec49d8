"""The Kullback-Leibler divergence, by a rule for each pair of distributions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from genesis import functional as fn
from genesis.distributions.continuous import (
    Beta,
    Dirichlet,
    Exponential,
    Gamma,
    Normal,
    Uniform,
)
from genesis.distributions.discrete import Bernoulli, Categorical, Poisson
from genesis.distributions.distribution import Distribution, Independent
from genesis.distributions.multivariate import NormalVector
from genesis.tensor.tensor import Tensor

Rule = Callable[[Any, Any], Any]
_rules: dict[tuple[type, type], Rule] = {}


def register_kl(p: type, q: type) -> Callable[[Rule], Rule]:
    """Say what the divergence of two kinds of distributions is."""

    def entered(rule: Rule) -> Rule:
        _rules[p, q] = rule
        return rule

    return entered


def kl_divergence(p: Distribution, q: Distribution) -> Tensor:
    """How much is lost by taking q for p: the expected logarithm of their ratio, under p.

    >>> import genesis
    >>> from genesis.distributions import Normal, kl_divergence
    >>> kl_divergence(Normal(0.0, 1.0), Normal(1.0, 1.0))
    tensor(0.5000)
    """
    for kind in type(p).__mro__:
        for other in type(q).__mro__:
            if (kind, other) in _rules:
                found: Tensor = _rules[kind, other](p, q)
                return found
    raise NotImplementedError(
        f"kl_divergence: there is no rule for {type(p).__name__} and {type(q).__name__}; give one "
        "with register_kl"
    )


@register_kl(Normal, Normal)
def _normals(p: Normal, q: Normal) -> Any:
    ratio = fn.square(p.scale / q.scale)
    return 0.5 * (ratio + fn.square((p.loc - q.loc) / q.scale) - 1 - fn.log(ratio))


@register_kl(NormalVector, NormalVector)
def _vectors(p: NormalVector, q: NormalVector) -> Any:
    apart = fn.unsqueeze(q.loc - p.loc, -1)
    squares = q._squares(p._factor()) + q._squares(apart)
    return q._log_volume() - p._log_volume() + 0.5 * (squares - p.event_shape[0])


@register_kl(Bernoulli, Bernoulli)
def _coins(p: Bernoulli, q: Bernoulli) -> Any:
    apart = p.probs * (p.logits - q.logits) + fn.softplus(q.logits) - fn.softplus(p.logits)
    never = fn.logical_and(q.probs == 0, p.probs > 0)
    always = fn.logical_and(q.probs == 1, p.probs < 1)
    return fn.where(fn.logical_or(never, always), float("inf"), apart)


@register_kl(Categorical, Categorical)
def _choices(p: Categorical, q: Categorical) -> Any:
    terms = fn.where(p.probs > 0, p.probs * (p.logits - q.logits), 0.0)
    return fn.sum(terms, -1)


@register_kl(Exponential, Exponential)
def _times(p: Exponential, q: Exponential) -> Any:
    ratio = q.rate / p.rate
    return ratio - 1 - fn.log(ratio)


@register_kl(Poisson, Poisson)
def _counts(p: Poisson, q: Poisson) -> Any:
    return p.rate * (fn.log(p.rate) - fn.log(q.rate)) - p.rate + q.rate


@register_kl(Uniform, Uniform)
def _ranges(p: Uniform, q: Uniform) -> Any:
    inside = fn.logical_and(q.low <= p.low, p.high <= q.high)
    return fn.where(inside, fn.log((q.high - q.low) / (p.high - p.low)), float("inf"))


@register_kl(Gamma, Gamma)
def _gammas(p: Gamma, q: Gamma) -> Any:
    a, b = p.concentration, q.concentration
    return (
        b * fn.log(p.rate / q.rate)
        + fn.lgamma(b)
        - fn.lgamma(a)
        + (a - b) * fn.digamma(a)
        + (q.rate - p.rate) * a / p.rate
    )


@register_kl(Dirichlet, Dirichlet)
def _shares(p: Dirichlet, q: Dirichlet) -> Any:
    a, b = p.concentration, q.concentration
    total = fn.sum(a, -1)
    parts = fn.lgamma(b) - fn.lgamma(a)
    parts = parts + (a - b) * (fn.digamma(a) - fn.unsqueeze(fn.digamma(total), -1))
    return fn.lgamma(total) - fn.lgamma(fn.sum(b, -1)) + fn.sum(parts, -1)


@register_kl(Beta, Beta)
def _betas(p: Beta, q: Beta) -> Any:
    return _shares(p._pair, q._pair)


@register_kl(Independent, Independent)
def _independent(p: Independent, q: Independent) -> Any:
    return p._summed(kl_divergence(p.base, q.base))
