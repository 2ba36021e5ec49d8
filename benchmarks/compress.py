"""How fast a checkpoint becomes a GGUF file, and in how much memory.

    python -m benchmarks.compress [FORMAT or BYTES ...] [--size 1.5GB]

A file of matrices of bfloat16, of a Llama's shapes, is written to a temporary folder, and made
smaller by a process of its own for each format, with one thread. What counts is processor time, and
the peak of memory that is no file's, less what the process had before.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import threading
import time
from datetime import date
from pathlib import Path

import numpy as np

import genesis
from benchmarks.int8 import machine
from genesis.compress.stream import compress_file, parse_bytes

RESULTS = Path(__file__).parent / "results" / "compress.md"
HEADER = """# Files made smaller

`python -m benchmarks.compress`: a safetensors file of 1.5 GB, matrices of bfloat16, to a GGUF file
in one format, or of so many bytes. *MB/s* are bytes read by processor time, one thread; parts of a
tensor are independent, so two threads do two at a time. *Memory* is the peak of what is no file's,
on top of what the process had before; the largest tensor has 33 MB. Programs were compiled before.
"""
RUNS = ("F16", "Q8_0", "Q5_1", "Q4_0", "MXFP4", "IQ4_XS", "Q6_K", "Q5_K", "Q4_K", "Q3_K", "Q2_K",
        "700MB")  # fmt: skip
SHAPES = ((8192, 2048), (2048, 8192), (2048, 2048))


def write(path: str, size: float) -> None:
    """A checkpoint of at least so many bytes."""
    rng, state, count = np.random.default_rng(0), {}, 0
    while sum(x.nbytes for x in state.values()) < size:
        for shape in SHAPES:
            x = 0.02 * rng.standard_normal(shape, dtype=np.float32)
            state[f"layer{count}"] = genesis.tensor(x).to(genesis.bfloat16)
            count += 1
    genesis.save(state, path)


def anonymous() -> int:
    """The bytes of this process's memory that are no file's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(dict(line.split(":", 1) for line in lines)["RssAnon"].split()[0]) << 10


def run(source: str, target: str, what: str) -> None:
    """Make a file smaller, and print the line of it."""
    genesis.set_num_threads(1)
    peak, done, before = 0, threading.Event(), anonymous()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.01):
            peak = max(peak, anonymous() - before)

    watcher = threading.Thread(target=watch)
    watcher.start()
    begin = time.process_time()
    if what[0].isdigit():
        report = compress_file(source, target, bytes=parse_bytes(what))
    else:
        report = compress_file(source, target, format=what)
    rate = report.bytes_before / (time.process_time() - begin) / 1e6
    done.set()
    watcher.join()
    Path(target).unlink()
    print(f"| {what} | {report.bytes_after / 1e6:.0f} MB | {rate:.0f} | {peak / 1e6:.0f} MB |")


def main() -> None:
    """Measure, print, and write the page if everything was measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="*")
    parser.add_argument("--size", default="1.5GB")
    parser.add_argument("--run", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.run:
        run(*given.run, *given.runs)
        return
    lines = ["| format | file | MB/s | memory |", "|---|---:|---:|---:|"]
    with tempfile.TemporaryDirectory() as folder:
        source, target = f"{folder}/in.safetensors", f"{folder}/out.gguf"
        write(source, parse_bytes(given.size))
        for what in given.runs or RUNS:
            command = [sys.executable, "-m", "benchmarks.compress", "--run", source, target, what]
            for _ in range(2):  # the first one compiles
                done = subprocess.run(command, capture_output=True, text=True, check=True)
            lines.append(done.stdout.strip())
            print(lines[-1], flush=True)
    if not given.runs:
        RESULTS.write_text(f"{HEADER}\n{machine()}, {date.today()}.\n\n" + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
