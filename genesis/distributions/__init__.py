"""Probability distributions: draws, densities, entropies and divergences."""

from genesis.distributions.continuous import (
    Beta, Cauchy, Dirichlet, Exponential, Gamma, Gumbel, HalfNormal, Laplace, LogNormal,
    MultivariateNormal, Normal, Uniform,
)  # fmt: skip
from genesis.distributions.discrete import (
    Bernoulli, Binomial, Categorical, Geometric, OneHotCategorical, Poisson,
)  # fmt: skip
from genesis.distributions.distribution import Distribution, Independent
from genesis.distributions.divergence import kl_divergence, register_kl

__all__ = [
    "Bernoulli", "Beta", "Binomial", "Categorical", "Cauchy", "Dirichlet", "Distribution",
    "Exponential", "Gamma", "Geometric", "Gumbel", "HalfNormal", "Independent", "Laplace",
    "LogNormal", "MultivariateNormal", "Normal", "OneHotCategorical", "Poisson", "Uniform",
    "kl_divergence", "register_kl",
]  # fmt: skip
