"""Probability distributions: draws, densities, entropies and divergences."""

from genesis.distributions.continuous import (
    Beta, Cauchy, Chi2, Dirichlet, Exponential, Gamma, Gumbel, HalfNormal, Laplace, LogNormal,
    MultivariateNormal, Normal, StudentT, Uniform, VonMises, Weibull,
)  # fmt: skip
from genesis.distributions.discrete import (
    Bernoulli, Binomial, Categorical, Geometric, Multinomial, OneHotCategorical, Poisson,
)  # fmt: skip
from genesis.distributions.distribution import Distribution, Independent
from genesis.distributions.divergence import kl_divergence, register_kl
from genesis.distributions.mixture_same_family import MixtureSameFamily
from genesis.distributions.transformed_distribution import TransformedDistribution
from genesis.distributions.transforms import (
    AffineTransform, ComposeTransform, ExpTransform, PowerTransform, SigmoidTransform,
    SoftplusTransform, TanhTransform, Transform,
)  # fmt: skip

__all__ = [
    "AffineTransform", "Bernoulli", "Beta", "Binomial", "Categorical", "Cauchy", "Chi2",
    "ComposeTransform", "Dirichlet", "Distribution", "ExpTransform", "Exponential", "Gamma",
    "Geometric", "Gumbel", "HalfNormal", "Independent", "Laplace", "LogNormal",
    "MixtureSameFamily", "Multinomial", "MultivariateNormal", "Normal", "OneHotCategorical",
    "Poisson", "PowerTransform", "SigmoidTransform", "SoftplusTransform", "StudentT",
    "TanhTransform", "Transform", "TransformedDistribution", "Uniform", "VonMises", "Weibull",
    "kl_divergence", "register_kl",
]  # fmt: skip
