"""The PyTorch models that `benchmarks.torch_compile` times, with random weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as it is known

from benchmarks.gpu_training import resnet50

Step = Callable[[], float]
Compile = Callable[[Any], Any]


class DecoderLayer(nn.Module):
    """A layer of a Llama-shaped decoder with a static key-value cache, for one token at a time."""

    def __init__(self, width: int, heads: int, hidden: int, length: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate_up = nn.Linear(width, 2 * hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)
        shape = (1, heads, length, width // heads)
        self.register_buffer("keys", torch.zeros(shape))
        self.register_buffer("values", torch.zeros(shape))

    def forward(self, x: torch.Tensor, position: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """The layer's output for the token at `position`."""
        b, t, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        self.keys[:, :, position] = k
        self.values[:, :, position] = v
        y = F.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=mask)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class Decoder(nn.Module):
    """A Llama-shaped decoder."""

    def __init__(self, layers: int = 12, width: int = 768, heads: int = 12, hidden: int = 2048,
                 vocabulary: int = 32000, length: int = 512) -> None:  # fmt: skip
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(
            DecoderLayer(width, heads, hidden, length) for _ in range(layers)
        )
        self.norm = nn.RMSNorm(width)
        self.register_buffer("positions", torch.arange(length))

    def forward(self, token: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        """The scores of the next token."""
        x = self.embedding(token)
        mask = (self.positions <= position)[None, None, None]
        for layer in self.layers:
            x = layer(x, position, mask)
        return self.norm(x) @ self.embedding.weight.T


def bert_inference(compiled: Compile, batch: int = 1) -> Step:
    """BERT-base on 128 tokens of every text."""
    from transformers import BertConfig, BertModel

    model = BertModel(BertConfig()).eval()
    run = compiled(model)
    tokens = torch.randint(0, 30000, (batch, 128))

    def step() -> float:
        with torch.no_grad():
            return float(run(input_ids=tokens).last_hidden_state[0, 0, 0])

    return step


def resnet_inference(compiled: Compile, batch: int = 8) -> Step:
    """ResNet-50 on some images."""
    model = resnet50(torch).eval()
    run = compiled(model)
    images = torch.randn(batch, 3, 224, 224)

    def step() -> float:
        with torch.no_grad():
            return float(run(images)[0, 0])

    return step


def training(model: nn.Module, loss_of: Callable[[], torch.Tensor]) -> Step:
    """Forward, backward and AdamW, PyTorch's fused one: it is to be no large part of a step."""
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)

    def step() -> float:
        loss = loss_of()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.detach())

    return step


def bert_training(compiled: Compile, batch: int = 4) -> Step:
    """BERT-base classifying texts of 128 tokens."""
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    model = BertForSequenceClassification(config)
    run = compiled(model)
    tokens, labels = torch.randint(0, 30000, (batch, 128)), torch.arange(batch) % 2
    return training(model, lambda: run(input_ids=tokens, labels=labels).loss)


def gpt2_training(compiled: Compile) -> Step:
    """GPT-2 124M on 2x256 tokens."""
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, use_cache=False))
    run = compiled(model)
    tokens = torch.randint(0, 50257, (2, 256))
    return training(model, lambda: run(input_ids=tokens, labels=tokens).loss)


def resnet_training(compiled: Compile, batch: int = 8) -> Step:
    """ResNet-50 on some images."""
    model = resnet50(torch)
    run = compiled(model)
    images, labels = torch.randn(batch, 3, 224, 224), torch.randint(0, 1000, (batch,))
    return training(model, lambda: F.cross_entropy(run(images), labels))


def llama_decode(compiled: Compile) -> Step:
    """One token of a Llama-shaped decoder of 110M parameters with a cache of 512."""
    model = Decoder().eval()
    run = compiled(model)
    position = torch.tensor([100])
    token = torch.tensor([[5]])

    def step() -> float:
        with torch.no_grad():
            return float(run(token, position)[0, 0, 0])

    return step


MODELS: dict[str, Callable[[Compile], Step]] = {
    "BERT-base inference": bert_inference,
    "BERT-base training": bert_training,
    "GPT-2 training": gpt2_training,
    "ResNet-50 inference": resnet_inference,
    "ResNet-50 training": resnet_training,
    "Llama decode": llama_decode,
}
