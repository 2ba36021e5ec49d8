"""Generate text with a Llama-shaped model: tokens per second of PyTorch and of Genesis.

    python examples/torch/llama.py [--on compile|device|eager]

Keys and values of all earlier tokens lie in memory that is there from the start, so every step has
the same shapes. The step is compiled once: a call writes to the cache in place, in one program. The
weights are random; what counts is the time of a token, and that both choose the same tokens.
"""

import argparse
import copy
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as it is known

import genesis.torch  # noqa: F401 - makes the device known


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--on",
        choices=("compile", "device", "eager"),
        default="compile",
        help="torch.compile, torch.device('genesis') or PyTorch itself (compile)",
    )
    parser.add_argument("--tokens", type=int, default=100, help="to generate (100)")
    parser.add_argument("--prompt", type=int, default=32, help="tokens to begin with (32)")
    parser.add_argument("--layers", type=int, default=8, help="of the model (8)")
    parser.add_argument("--width", type=int, default=512, help="of the model (512)")
    parser.add_argument("--vocabulary", type=int, default=8000, help="of the model (8000)")
    parser.add_argument("--seed", type=int, default=0, help="of all random numbers (0)")
    parser.add_argument("--quick", action="store_true", help="a small model, few tokens")
    options = parser.parse_args()
    if options.quick:
        options.layers, options.width, options.vocabulary, options.tokens = 2, 64, 500, 8
    torch.manual_seed(options.seed)

    length = options.prompt + options.tokens
    model = Llama(options.vocabulary, options.width, options.layers, length).eval()
    prompt = torch.randint(options.vocabulary, (1, options.prompt))
    count = sum(p.numel() for p in model.parameters())
    print(f"{count:,} parameters, {options.tokens} tokens after {options.prompt}\n")

    with torch.inference_mode():
        theirs = generate("PyTorch", model, model, prompt, options.tokens)
        if options.on == "eager":
            return
        if options.on == "compile":
            step = torch.compile(model, backend="genesis", dynamic=False, fullgraph=True)
            ours = generate("Genesis", step, model, prompt, options.tokens)
        else:
            there = copy.deepcopy(model).to("genesis")
            ours = generate("Genesis", there, there, prompt.to("genesis"), options.tokens)
    same = sum(a == b for a, b in zip(ours, theirs, strict=True))
    print(f"\n{same} of {len(ours)} tokens are the same; the first: {ours[:8]}")


def generate(
    name: str, step: Callable[..., Tensor], model: "Llama", prompt: Tensor, count: int
) -> list[int]:
    """The likeliest tokens after a prompt, one after the other."""
    device = prompt.device
    places = torch.arange(prompt.shape[1] + count, device=device)

    def tokens() -> tuple[list[int], float, float]:
        model.forget()
        start = time.perf_counter()
        token = step(prompt, places[: prompt.shape[1]])
        found = [token.item()]
        middle = time.perf_counter()
        for k in range(count - 1):
            token = step(token, places[prompt.shape[1] + k :][:1])
            found.append(token.item())
        return found, middle - start, time.perf_counter() - middle

    start = time.perf_counter()
    tokens()  # compiles
    print(f"{name}: the first time took {time.perf_counter() - start:.1f} s")
    found, prefill, decode = tokens()
    print(
        f"{name}: prompt {prompt.shape[1] / prefill:7.1f} tokens/s, "
        f"then {(count - 1) / decode:7.1f} tokens/s"
    )
    return found


# ---- the model


class Layer(nn.Module):
    """Attention to all tokens so far, then a gated network."""

    def __init__(self, width: int, heads: int, groups: int, length: int) -> None:
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads
        kept = groups * self.size
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv = nn.Linear(width, width + 2 * kept, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate = nn.Linear(width, 3 * width, bias=False)
        self.up = nn.Linear(width, 3 * width, bias=False)
        self.down = nn.Linear(3 * width, width, bias=False)
        self.register_buffer("keys", torch.zeros(1, groups, length, self.size))
        self.register_buffer("values", torch.zeros(1, groups, length, self.size))

    def forward(self, x: Tensor, places: Tensor, angles: Tensor, mask: Tensor) -> Tensor:
        """``(1, tokens, width)`` to the same; the cache gets their keys and values."""
        width, kept = self.heads * self.size, self.groups * self.size
        q, k, v = self.qkv(self.norm1(x)).split((width, kept, kept), -1)
        self.keys[:, :, places] = turned(self.by_head(k), angles)
        self.values[:, :, places] = self.by_head(v)
        mixed = F.scaled_dot_product_attention(
            turned(self.by_head(q), angles), self.keys, self.values, mask, enable_gqa=True
        )
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))

    def by_head(self, x: Tensor) -> Tensor:
        """``(1, tokens, heads * size)`` to ``(1, heads, tokens, size)``."""
        return x.unflatten(-1, (-1, self.size)).transpose(1, 2)


class Llama(nn.Module):
    """The likeliest token after those given. It remembers those it was given before."""

    def __init__(self, vocabulary: int, width: int, layers: int, length: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(Layer(width, 8, 4, length) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, vocabulary, bias=False)
        half = width // 16
        rates = 10000.0 ** (-torch.arange(half) / half)
        self.register_buffer("angles", torch.arange(length)[:, None] * rates)

    def forward(self, tokens: Tensor, places: Tensor) -> Tensor:
        """The token after `tokens`, ``(1, count)``, which stand at `places`, as ``(1, 1)``."""
        x, angles = self.embedding(tokens), self.angles[places]
        mask = torch.arange(len(self.angles), device=places.device) <= places[:, None]
        for layer in self.layers:
            x = layer(x, places, angles, mask)
        return self.head(self.norm(x[:, -1:])).argmax(-1)

    def forget(self) -> None:
        """Empty the cache."""
        for layer in self.layers:
            layer.keys.zero_()
            layer.values.zero_()


def turned(x: Tensor, angles: Tensor) -> Tensor:
    """Pairs of numbers, turned by an angle that tells where a token stands."""
    a, b = x.chunk(2, -1)
    return torch.cat((a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()), -1)


if __name__ == "__main__":
    main()
