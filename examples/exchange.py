"""A model on its way: trained here, written to an ONNX file, run as onnxruntime would, trained on.

    python examples/exchange.py

takes a few seconds. Where onnxruntime is installed, its results are compared.
"""

import tempfile
import time
from pathlib import Path

import numpy as np

import genesis
from genesis import datasets, nn, optim
from genesis.nn import functional


def network():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 16, 10),
    )  # fmt: skip


def trained(model, images, labels, steps, logits):
    optimizer = optim.Adam(model.parameters(), lr=0.003)

    @genesis.jit
    def step(x, y):
        optimizer.zero_grad()
        loss = functional.cross_entropy(logits(model(x)), y)
        loss.backward()
        optimizer.step()
        return loss

    for k in range(steps):
        part = slice(64 * k % 1280, 64 * k % 1280 + 64)
        loss = step(images[part], labels[part])
    return loss.item()


def main():
    genesis.manual_seed(0)
    images, labels = datasets.digits("train")
    images = images.reshape(-1, 1, 8, 8) / 16
    held_out, answers = datasets.digits("test")
    pixels = held_out.reshape(-1, 1, 8, 8).numpy() / np.float32(16)

    model = network()
    loss = trained(model, images, labels, 200, lambda y: y)
    print(f"trained: loss {loss:.3f}")

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "digits.onnx"
        genesis.onnx.save(
            model.eval(), images[:2], path, input_names=["images"], output_names=["scores"],
            dynamic_axes={"images": {0: "batch"}},
        )  # fmt: skip
        print(f"written: {path.name}, {path.stat().st_size} bytes")

        begun = time.perf_counter()
        session = genesis.onnx.InferenceSession(path)
        (scores,) = session.run(["scores"], {"images": pixels})
        right = float((scores.argmax(1) == answers.numpy()).mean())
        print(f"run: {right:.1%} of {len(pixels)} read, after {time.perf_counter() - begun:.2f} s")
        try:
            import onnxruntime

            other = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
            (expected,) = other.run(["scores"], {"images": pixels})
            print(f"onnxruntime: differs by {np.abs(scores - expected).max():.1e}")
        except ImportError:
            print("onnxruntime is not installed: nothing to compare with")

        again = genesis.onnx.load(path)
        names = [name for name, _ in again.named_parameters()]
        print(f"read back: {len(names)} parameters, such as {names[0]}")
        loss = trained(again.train(), images, labels, 50, lambda outputs: outputs[0])
        print(f"trained on: loss {loss:.3f}")


if __name__ == "__main__":
    main()
