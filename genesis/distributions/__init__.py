"""Probability distributions: draws, densities, entropies and divergences."""

from genesis.distributions import constraints, transforms
from genesis.distributions.constraint_registry import biject_to, transform_to
from genesis.distributions.continuous import (
    Beta, Cauchy, Chi2, ContinuousBernoulli, Dirichlet, Exponential, Gamma, GeneralizedPareto,
    Gumbel, HalfCauchy, HalfNormal, Laplace, LogNormal, Normal, StudentT, Uniform, VonMises,
    Weibull,
)  # fmt: skip
from genesis.distributions.derived import (
    FisherSnedecor, InverseGamma, Kumaraswamy, LogisticNormal, NegativeBinomial,
    OneHotCategoricalStraightThrough, Pareto, RelaxedBernoulli, RelaxedOneHotCategorical,
)  # fmt: skip
from genesis.distributions.discrete import (
    Bernoulli, Binomial, Categorical, Geometric, Multinomial, OneHotCategorical, Poisson,
)  # fmt: skip
from genesis.distributions.distribution import Distribution, Independent
from genesis.distributions.divergence import kl_divergence, register_kl
from genesis.distributions.mixture_same_family import MixtureSameFamily
from genesis.distributions.multivariate import (
    LKJCholesky, LowRankMultivariateNormal, MultivariateNormal, Wishart,
)  # fmt: skip
from genesis.distributions.transformed_distribution import TransformedDistribution
from genesis.distributions.transform import (
    AffineTransform, ComposeTransform, ExpTransform, PowerTransform, SigmoidTransform,
    SoftplusTransform, TanhTransform, Transform, identity_transform,
)  # fmt: skip
from genesis.distributions.vector_transforms import (
    AbsTransform, CatTransform, CorrCholeskyTransform, CumulativeDistributionTransform,
    IndependentTransform, LowerCholeskyTransform, PositiveDefiniteTransform, ReshapeTransform,
    SoftmaxTransform, StackTransform, StickBreakingTransform,
)  # fmt: skip

__all__ = [
    "AbsTransform", "AffineTransform", "Bernoulli", "Beta", "Binomial", "CatTransform",
    "Categorical", "Cauchy", "Chi2", "ComposeTransform", "ContinuousBernoulli",
    "CorrCholeskyTransform", "CumulativeDistributionTransform", "Dirichlet", "Distribution",
    "ExpTransform", "Exponential", "FisherSnedecor", "Gamma", "GeneralizedPareto", "Geometric",
    "Gumbel", "HalfCauchy", "HalfNormal", "Independent", "IndependentTransform", "InverseGamma",
    "Kumaraswamy", "LKJCholesky", "Laplace", "LogNormal", "LogisticNormal",
    "LowRankMultivariateNormal", "LowerCholeskyTransform", "MixtureSameFamily", "Multinomial",
    "MultivariateNormal", "NegativeBinomial", "Normal", "OneHotCategorical",
    "OneHotCategoricalStraightThrough", "Pareto", "Poisson", "PositiveDefiniteTransform",
    "PowerTransform", "RelaxedBernoulli", "RelaxedOneHotCategorical", "ReshapeTransform",
    "SigmoidTransform", "SoftmaxTransform", "SoftplusTransform", "StackTransform",
    "StickBreakingTransform", "StudentT", "TanhTransform", "Transform", "TransformedDistribution",
    "Uniform", "VonMises", "Weibull", "Wishart", "biject_to", "constraints", "identity_transform",
    "kl_divergence", "register_kl", "transform_to", "transforms",
]  # fmt: skip
