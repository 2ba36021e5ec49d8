"""Train a small BERT to tell which chapter of Python's documentation some words are from.

    python examples/torch/bert.py [--on compile|device|eager] [--base]

The model is `BertForSequenceClassification` of Hugging Face's transformers, with random weights:
nothing is downloaded. It learns from four of five passages of each chapter and is tried on the
fifth. ``--base`` takes a model of BERT-base's size, which wants a great machine or patience.
"""

import argparse
import re
import time
from collections import Counter
from pydoc_data import topics

import torch
from torch import Tensor
from transformers import BertConfig, BertForSequenceClassification

import genesis.torch  # noqa: F401 - makes the device known

CHAPTERS = ("specialnames", "compound", "formatstrings", "string-methods", "debugger",
            "typesmapping")  # fmt: skip
PAD, UNKNOWN = 0, 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--on",
        choices=("compile", "device", "eager"),
        default="compile",
        help="torch.compile, torch.device('genesis') or PyTorch itself (compile)",
    )
    parser.add_argument("--steps", type=int, default=300, help="training steps (300)")
    parser.add_argument("--batch", type=int, default=32, help="passages per step (32)")
    parser.add_argument("--words", type=int, default=64, help="in a passage (64)")
    parser.add_argument("--base", action="store_true", help="the size of BERT-base")
    parser.add_argument("--seed", type=int, default=0, help="of all random numbers (0)")
    parser.add_argument("--quick", action="store_true", help="few steps with a narrow model")
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    device = "genesis" if options.on == "device" else "cpu"

    learn, trial, vocabulary = passages(options.words)
    sizes = {"hidden_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
             "intermediate_size": 192, "max_position_embeddings": 128}  # fmt: skip
    if options.quick:
        options.steps, options.batch = 4, 4
        sizes |= {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
    config = BertConfig(vocab_size=vocabulary, num_labels=len(CHAPTERS), pad_token_id=PAD,
                        **({} if options.base else sizes))  # fmt: skip
    model = BertForSequenceClassification(config).to(device)
    rate = 1e-4 if options.base else 1e-3
    optimizer = torch.optim.AdamW(model.parameters(), rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, rate, total_steps=options.steps, pct_start=0.1
    )
    forward = torch.compile(model, backend="genesis") if options.on == "compile" else model
    count = sum(p.numel() for p in model.parameters())
    print(f"{len(learn)} passages, {vocabulary:,} words, {count:,} parameters")

    start = time.perf_counter()
    for step in range(options.steps):
        chosen = learn[torch.randint(len(learn), (options.batch,))]
        # Forgetting some words keeps the model from learning the text by heart.
        words = chosen[:, 1:].masked_fill(torch.rand(options.batch, options.words) < 0.3, UNKNOWN)
        loss = forward(input_ids=words.to(device), labels=chosen[:, 0].to(device)).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 50 == 0 or step == options.steps - 1:
            print(f"step {step:4}  loss {loss.item():.3f}  {time.perf_counter() - start:5.1f} s")

    model.eval()
    with torch.no_grad():
        found = [forward(input_ids=x[:, 1:].to(device)).logits.argmax(1) for x in trial.split(64)]
    right = (torch.cat(found).cpu() == trial[:, 0]).float()
    print()
    for k, name in enumerate(CHAPTERS):
        print(f"{name:20}{right[trial[:, 0] == k].mean():6.1%}")
    print(f"\n{right.mean():.1%} of {len(trial)} passages that it has not seen are placed right")


def passages(length: int) -> tuple[Tensor, Tensor, int]:
    """Passages to learn from and to try, and how many words there are.

    A row is the number of its chapter, then those of its words.
    """
    parts: tuple[list[list[str]], list[list[str]]] = ([], [])
    for k, chapter in enumerate(CHAPTERS):
        words = re.findall(r"[a-z_]+|[^a-z_\s]", topics.topics[chapter].lower())
        for n, first in enumerate(range(0, len(words) - length + 1, length)):
            parts[n % 5 == 2].append([str(k), *words[first : first + length]])
    times = Counter(word for row in parts[0] for word in row[1:])
    common = sorted(word for word in times if times[word] > 1)
    number = {word: k for k, word in enumerate(common, UNKNOWN + 1)}
    learn, trial = (
        torch.tensor([[int(row[0]), *(number.get(w, UNKNOWN) for w in row[1:])] for row in part])
        for part in parts
    )
    return learn, trial, UNKNOWN + 1 + len(common)


if __name__ == "__main__":
    main()
