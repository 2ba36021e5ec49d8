"""Tables of vectors that are looked up by number."""

from __future__ import annotations

from typing import Any

from genesis.autograd import no_grad
from genesis.nn import functional, init
from genesis.nn.module import Module, Parameter
from genesis.nn.new_parameters import parameter
from genesis.tensor.tensor import Tensor
from genesis.tensor.whole_calls import whole


class _Table(Module):
    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
        _weight: Tensor | None = None,
        device: str | None = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        if sparse:
            raise NotImplementedError(f"{name}: there are no sparse gradients; use sparse=False")
        if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
            raise ValueError(f"{name}: padding_idx {padding_idx} is none of {num_embeddings} rows")
        if padding_idx is not None and padding_idx < 0:
            padding_idx += num_embeddings
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.padding_idx, self.max_norm, self.norm_type = padding_idx, max_norm, norm_type
        self.scale_grad_by_freq = scale_grad_by_freq
        shape = (num_embeddings, embedding_dim)
        if _weight is None:
            self.weight = parameter(shape, dtype, device)
            self.reset_parameters()
        elif tuple(_weight.shape) != shape:
            raise ValueError(f"{name}: a weight of {tuple(_weight.shape)} is no table of {shape}")
        else:
            self.weight = _weight if isinstance(_weight, Parameter) else Parameter(_weight)

    def reset_parameters(self) -> None:
        """Numbers of the normal distribution; zeros for padding."""
        init.normal_(self.weight)
        if self.padding_idx is not None:
            with no_grad():
                self.weight.array[self.padding_idx].assign(0)

    @classmethod
    def from_pretrained(cls, embeddings: Tensor, freeze: bool = True, **settings: Any) -> Any:
        """A layer with a given table, which is not trained if `freeze`."""
        rows, width = embeddings.shape
        made: Any = cls(rows, width, _weight=embeddings, **settings)
        made.weight.requires_grad = not freeze
        return made

    def extra_repr(self) -> str:
        """The sizes, and whatever else is not the default."""
        return f"{self.num_embeddings}, {self.embedding_dim}" + self._unusual(
            padding_idx=None, max_norm=None, norm_type=2.0, scale_grad_by_freq=False, mode="mean"
        )


class Embedding(_Table):
    """The rows of a table at given positions.

    >>> import genesis
    >>> Embedding(10, 3)(genesis.tensor([[1, 2], [4, 5]])).shape
    genesis.Size([2, 2, 3])
    """

    @whole
    def forward(self, input: Any) -> Any:
        """A row for every position."""
        return functional.embedding(
            input, self.weight, self.padding_idx, self.max_norm, self.norm_type,
            self.scale_grad_by_freq,
        )  # fmt: skip


class EmbeddingBag(_Table):
    """The sum, mean or maximum of the rows of every bag of positions."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        mode: str = "mean",
        sparse: bool = False,
        _weight: Tensor | None = None,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        device: str | None = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(
            num_embeddings, embedding_dim, padding_idx, max_norm, norm_type, scale_grad_by_freq,
            sparse, _weight, device, dtype,
        )  # fmt: skip
        self.mode, self.include_last_offset = mode, include_last_offset

    @whole
    def forward(self, input: Any, offsets: Any = None, per_sample_weights: Any = None) -> Any:
        """A vector for every bag."""
        return functional.embedding_bag(
            input, self.weight, offsets, self.max_norm, self.norm_type, self.scale_grad_by_freq,
            self.mode, False, per_sample_weights, self.include_last_offset, self.padding_idx,
        )  # fmt: skip


__all__ = ["Embedding", "EmbeddingBag"]
