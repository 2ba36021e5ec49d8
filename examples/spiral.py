"""Train a small network to tell three spiral arms apart, with gradients written by hand.

    python examples/spiral.py

The whole training step is ordinary array code under `genesis.jit`: the first call records it, and
every later call runs one compiled program, from the matrix products to the update of the weights.
"""

import argparse
import math
import sys
import time
from collections.abc import Callable

from tqdm import tqdm

import genesis
from genesis import memory
from genesis import ndarray as nd
from genesis.ndarray import NDArray

ARMS, POINTS, TURN = 3, 300, 7.0  # arms, points on each, the angle an arm winds through
HIDDEN = 128
MOMENTUM, DECAY = 0.9, 1e-4
MAP_WIDTH, MAP_HEIGHT = 60, 28


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=4000, help="training steps (4000)")
    parser.add_argument("--rate", type=float, default=0.3, help="learning rate (0.3)")
    parser.add_argument("--seed", type=int, default=0, help="of all random numbers (0)")
    options = parser.parse_args()
    genesis.manual_seed(options.seed)

    # The data: points on arms that wind around the origin, and which arm each belongs to.
    x, arm = spiral()
    target = (arm.reshape(-1, 1) == nd.arange(ARMS)).astype(genesis.float32)
    # An array, because a plain number would be part of the recorded program.
    rate = nd.array(options.rate)

    # The network: two layers, and a velocity for every parameter.
    w1, b1 = nd.random.normal((2, HIDDEN)), nd.zeros(HIDDEN)
    w2, b2 = nd.random.normal((HIDDEN, ARMS), std=HIDDEN**-0.5), nd.zeros(ARMS)
    parameters = [w1, b1, w2, b2]
    velocities = [nd.zeros(p.shape) for p in parameters]

    def forward(x: NDArray) -> tuple[NDArray, NDArray]:
        hidden = nd.relu(x @ w1 + b1)
        return hidden, hidden @ w2 + b2

    @genesis.jit
    def step(x: NDArray, target: NDArray, rate: NDArray) -> tuple[NDArray, NDArray]:
        hidden, logits = forward(x)
        loss = -(target * nd.log_softmax(logits)).sum(axis=1).mean()
        accuracy = share(logits.argmax(axis=1) == target.argmax(axis=1))

        # Backwards: the gradient of softmax with cross entropy is the difference to the target.
        d_logits = (nd.softmax(logits) - target) / len(x)
        d_hidden = (d_logits @ w2.T) * (hidden > 0)
        gradients = [
            x.T @ d_hidden,
            d_hidden.sum(axis=0),
            hidden.T @ d_logits,
            d_logits.sum(axis=0),
        ]

        # The update writes in place: the arrays outside this function hold the new weights.
        for p, v, g in zip(parameters, velocities, gradients, strict=True):
            v *= MOMENTUM
            v -= rate * (g + DECAY * p)
            p += v
        return loss, accuracy

    report = genesis.explain(step, x, target, rate)
    start = time.perf_counter()
    with tqdm(total=options.steps, unit="step") as bar:
        for number in range(1, options.steps + 1):
            loss, accuracy = step(x, target, rate)
            if number % 200 == 0 or number == options.steps:
                bar.update(number - bar.n)
                bar.set_postfix(loss=f"{loss.item():.4f}", accuracy=f"{accuracy.item():.1%}")
    seconds = time.perf_counter() - start

    def classify(points: NDArray) -> NDArray:
        return forward(points)[1].argmax(axis=1)

    draw(classify)
    points, arm = spiral()
    rows = {
        "accuracy in training": f"{accuracy.item():.1%}",
        "accuracy on new points": f"{share(classify(points) == arm).item():.1%}",
        "steps per second": f"{options.steps / seconds:,.0f}",
        "kernels per step": f"{len(report.kernels)}",
        "floating-point operations per step": f"{report.flops:,}",
        "all kernels proven safe": "yes" if report.proven else "no",
        "peak memory of arrays": f"{memory.stats().peak_live_bytes / 1024:,.0f} KiB",
    }
    print()
    for name, value in rows.items():
        print(f"{name:36}{value:>12}")


def spiral() -> tuple[NDArray, NDArray]:
    """Points (x, y) on noisy spiral arms, and the number of the arm each one is on."""
    arm = nd.arange(ARMS * POINTS) // POINTS
    along = nd.tile(nd.linspace(0.05, 1, POINTS), (ARMS,))
    angle = TURN * along + arm * (2 * math.pi / ARMS) + 0.15 * nd.random.normal(arm.shape)
    return nd.stack([along * nd.sin(angle), along * nd.cos(angle)], axis=1), arm


def share(condition: NDArray) -> NDArray:
    """How much of an array of bools is true."""
    return condition.astype(genesis.float32).mean()


def draw(classify: Callable[[NDArray], NDArray]) -> None:
    """The plane as the network sees it: a colour, or a letter, for each arm."""
    columns = nd.linspace(-1.1, 1.1, MAP_WIDTH)
    rows = nd.linspace(1.1, -1.1, MAP_HEIGHT).reshape(-1, 1)
    shape = (MAP_HEIGHT, MAP_WIDTH)
    points = nd.stack([nd.broadcast_to(columns, shape), nd.broadcast_to(rows, shape)], axis=-1)
    found = classify(points.reshape(-1, 2)).tolist()
    marks = ["A", "B", "C"]
    if sys.stdout.isatty():
        marks = [f"\033[38;5;{colour}m█\033[0m" for colour in (203, 79, 75)]
    for start in range(0, len(found), MAP_WIDTH):
        print("".join(marks[arm] for arm in found[start : start + MAP_WIDTH]))


if __name__ == "__main__":
    main()
