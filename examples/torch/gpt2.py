"""Train GPT-2, letter by letter, on the Python documentation that comes with Python.

    python examples/torch/gpt2.py [--on compile|device|eager] [--large]

The model is `GPT2LMHeadModel` of Hugging Face's transformers, small and with random weights:
nothing is downloaded. Under ``--on compile`` the step of the optimizer is compiled, too, and one
program serves the sampling loop, however long its text has become. ``--large`` takes the 124
million parameters of GPT-2 itself, which wants a great machine or patience.
"""

import argparse
import time
from collections.abc import Callable
from pydoc_data import topics

import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

import genesis.torch  # noqa: F401 - makes the device known


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--on",
        choices=("compile", "device", "eager"),
        default="compile",
        help="torch.compile, torch.device('genesis') or PyTorch itself (compile)",
    )
    parser.add_argument("--steps", type=int, default=500, help="training steps (500)")
    parser.add_argument("--batch", type=int, default=32, help="texts per step (32)")
    parser.add_argument("--context", type=int, default=64, help="letters of a text (64)")
    parser.add_argument("--width", type=int, default=96, help="of the model (96)")
    parser.add_argument("--layers", type=int, default=3, help="blocks of the model (3)")
    parser.add_argument("--letters", type=int, default=300, help="letters to sample (300)")
    parser.add_argument("--large", action="store_true", help="the size of GPT-2: 124M parameters")
    parser.add_argument("--seed", type=int, default=0, help="of all random numbers (0)")
    parser.add_argument("--quick", action="store_true", help="few steps with a narrow model")
    options = parser.parse_args()
    if options.quick:
        options.steps, options.batch, options.context, options.letters = 3, 2, 16, 20
        options.width, options.layers = 32, 1
    torch.manual_seed(options.seed)
    device = "genesis" if options.on == "device" else "cpu"

    text = "".join(c for c in "".join(topics.topics.values()) if c.isascii())
    letters = sorted(set(text))
    number = {c: k for k, c in enumerate(letters)}
    data = torch.tensor([number[c] for c in text])

    if options.large:
        config, rate = GPT2Config(), 6e-4
    else:
        config, rate = GPT2Config(vocab_size=len(letters), n_positions=options.context, n_head=4,
                                  n_embd=options.width, n_layer=options.layers,
                                  bos_token_id=None, eos_token_id=None), 3e-3  # fmt: skip
    # Little text and few steps: nothing to gain from dropout.
    config.attn_pdrop = config.embd_pdrop = config.resid_pdrop = 0.0
    config.use_cache = False
    model = GPT2LMHeadModel(config).to(device)
    model.loss_type = "ForCausalLM"  # which it would otherwise guess, with a warning
    # A learning rate in a tensor changes without another program.
    optimizer = torch.optim.AdamW(model.parameters(), torch.tensor(rate), betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, rate, total_steps=options.steps, pct_start=0.1, cycle_momentum=False
    )
    forward, update = model, optimizer.step
    if options.on == "compile":
        forward = torch.compile(model, backend="genesis")
        update = torch.compile(optimizer.step, backend="genesis")

    count = sum(p.numel() for p in model.parameters())
    print(f"{len(text):,} letters, {count:,} parameters")
    start = time.perf_counter()
    for step in range(options.steps):
        first = torch.randint(len(data) - options.context, (options.batch, 1))
        chosen = data[first + torch.arange(options.context)].to(device)
        loss = forward(input_ids=chosen, labels=chosen).loss
        optimizer.zero_grad()
        loss.backward()
        update()
        schedule.step()
        if step % 50 == 0 or step == options.steps - 1:
            print(f"step {step:4}  loss {loss.item():.3f}  {time.perf_counter() - start:5.1f} s")

    model.eval()
    prompt = torch.tensor([[number[c] for c in "The "]], device=device)
    drawn = sample(forward, prompt, options.letters, options.context)
    print("\n" + "".join(letters[k] for k in drawn if k < len(letters)))


@torch.no_grad()
def sample(
    model: Callable[..., object], text: Tensor, count: int, context: int, top: int = 20
) -> list[int]:
    """Letters drawn one after another, each from the `top` likeliest."""
    for _ in range(count):
        seen = text[:, -context:].contiguous()
        scores, places = model(input_ids=seen).logits[:, -1].topk(top)
        drawn = torch.multinomial((scores / 0.8).softmax(-1).cpu(), 1).to(text.device)
        text = torch.cat((text, places.gather(1, drawn)), 1)
    return text[0].tolist()


if __name__ == "__main__":
    main()
