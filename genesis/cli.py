"""The `genesis` command: train a network, use it, chat, and look at the installation.

Whatever a subcommand needs beyond the package itself is imported when it runs, so that
``genesis --help`` answers at once.
"""

from __future__ import annotations

import sys
from argparse import REMAINDER, ArgumentParser, ArgumentTypeError, RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from genesis import __version__
from genesis import store as disk

if TYPE_CHECKING:
    from genesis.llm import LLM, SamplingParams


_RECIPES = {
    "diffusion": "digits out of noise: a diffusion model",
    "gpt": "a character GPT on Python's documentation, then sampled",
    "graphs": "GCN, GraphSAGE, GAT and GIN on the graph of a karate club",
    "ppo": "balance a pole on a cart by proximal policy optimization",
    "unet": "find drawn shapes in noise with a U-Net",
    "vae": "a variational autoencoder of digits",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with these arguments (the process's own, if not given); its exit status."""
    chosen = vars(_parser().parse_args(arguments))
    status: int = chosen.pop("run")(**chosen)
    return status


def _parser() -> ArgumentParser:
    parser = ArgumentParser("genesis", description="Genesis, a deep-learning stack in Python.")
    parser.add_argument("--version", action="version", version=f"genesis {__version__}")
    parser.set_defaults(run=partial(_help, parser))
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")

    train = commands.add_parser(
        "train",
        help="train a network that comes with the package",
        description="Train a network, show how well it does and save its weights.",
    )
    train.set_defaults(run=partial(_help, train))
    recipes = train.add_subparsers(title="recipes", metavar="RECIPE")
    digits = recipes.add_parser(
        "digits",
        help="read handwritten digits: 1437 images of 8 by 8 dots, a few seconds",
        description=(
            "Train a small convolutional network on handwritten digits of 8 by 8 dots, and try it "
            "on 360 others. The code is genesis/recipes/digits.py."
        ),
    )
    digits.add_argument("--steps", type=_positive, default=600, help="training steps (600)")
    digits.add_argument("--seed", type=int, default=0, help="of all random numbers (0)")
    digits.add_argument(
        "--output", default="digits.safetensors", help="file for the weights (digits.safetensors)"
    )
    digits.set_defaults(run=_train_digits)
    for name, text in _RECIPES.items():
        recipe = recipes.add_parser(
            name, help=text, description=f"{text}. The code is genesis/recipes/{name}.py."
        )
        recipe.add_argument("--steps", type=_positive, help="training steps (the recipe's own)")
        recipe.add_argument("--seed", type=int, default=0, help="of all random numbers (0)")
        recipe.set_defaults(run=partial(_train, name))

    predict = commands.add_parser(
        "predict",
        help="read digits with a trained network",
        description=(
            "Read digits with the weights that `genesis train digits` saved. An image is a text of "
            "8 lines of 8 numbers from 0 (paper) to 16 (ink); without one, digits that were held "
            "out in training are read."
        ),
    )
    predict.add_argument("weights", help="a file that `genesis train digits` wrote")
    predict.add_argument("image", nargs="*", help="texts with an image each; - is standard input")
    predict.set_defaults(run=_predict)

    chat = commands.add_parser(
        "chat",
        help="talk to a language model",
        description=(
            "Answer the lines of standard input, a terminal's or another's, with a language model. "
            "Ctrl-C stops an answer, Ctrl-D ends. A model without chat template goes on with each "
            "line instead."
        ),
    )
    _add_model(chat)
    _add_sampling(chat)
    chat.add_argument("--system", metavar="TEXT", help="what the model is told beforehand")
    chat.set_defaults(run=_chat)

    llm = commands.add_parser(
        "llm",
        help="language models: let one go on with a text, measure one",
        description="Use a language model from its files.",
    )
    llm.set_defaults(run=partial(_help, llm))
    uses = llm.add_subparsers(title="uses", metavar="USE")
    text = "print how a text goes on"
    generate = uses.add_parser("generate", help=text, description=f"{text[0].upper()}{text[1:]}.")
    _add_model(generate)
    generate.add_argument("prompt", help="the text; - is standard input")
    _add_sampling(generate)
    generate.set_defaults(run=_generate)
    measure = uses.add_parser(
        "bench",
        help="measure how fast a model answers",
        description=(
            "Measure the tokens per second of prompts and of answers to 1, 8 and 32 requests at "
            "once, how soon the first token comes, and how near that is to the speed of memory."
        ),
    )
    _add_model(measure)
    measure.set_defaults(run=_bench_llm)

    profile = commands.add_parser(
        "profile",
        help="run a script and show which kernels its time goes to",
        description=(
            "Run a script as Python would, and show its kernels when it ends: how often and how "
            "long each ran, how fast it computed and moved data, how near that is to what this "
            "machine can do, and which lines it came from."
        ),
    )
    profile.add_argument(
        "--trace", metavar="FILE", help="write a trace for ui.perfetto.dev or chrome://tracing"
    )
    profile.add_argument(
        "--roofline", metavar="FILE", help="draw the kernels under the machine's roof: .html, .png"
    )
    profile.add_argument("script", help="a Python file")
    profile.add_argument("arguments", nargs=REMAINDER, help="the script's own arguments")
    profile.set_defaults(run=_profile)

    tune = commands.add_parser(
        "tune",
        help="run a script and look for better schedules of its kernels",
        description=(
            "Run a script as Python would, then measure other schedules of the kernels that took "
            "most of its time. What is clearly faster is kept on disk, and used from then on. "
            "Without a script: show, exchange or forget what is kept."
        ),
    )
    tune.add_argument("--seconds", type=_positive, default=60, help="time to take (60)")
    kept = tune.add_mutually_exclusive_group()
    kept.add_argument("--show", action="store_true", help="list the kernels that were tuned")
    kept.add_argument("--export", metavar="FILE", help="write them to a file")
    kept.add_argument("--import", metavar="FILE", dest="source", help="add those in a file")
    kept.add_argument("--clear", action="store_true", help="forget them")
    tune.add_argument("script", nargs="?", help="a Python file")
    tune.add_argument("arguments", nargs=REMAINDER, help="the script's own arguments")
    tune.set_defaults(run=_tune)

    bench = commands.add_parser(
        "bench",
        help="measure this machine, and how near to its limits Genesis comes",
        description=(
            "Measure how fast this machine computes and moves data, then a few kernels that models "
            "are made of, and compare. Takes half a minute; PyTorch takes part if it is installed."
        ),
    )
    bench.set_defaults(run=_bench)

    checkpoint = commands.add_parser(
        "checkpoint",
        help="the checkpoints of a training: list, look into, compare, check",
        description="Look at the checkpoints that genesis.train wrote to a folder.",
    )
    checkpoint.set_defaults(run=partial(_help, checkpoint))
    looks = checkpoint.add_subparsers(title="actions", metavar="ACTION")
    for name, steps, text in (
        ("ls", "", "list the checkpoints of a folder"),
        ("show", "?", "list what is in a checkpoint: that of a step, or the last"),
        ("diff", "2", "say in what the checkpoints of two steps differ"),
        ("verify", "", "check every bit of all checkpoints; the status is 1 if one is damaged"),
    ):
        look = looks.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        look.add_argument("folder", help="where the checkpoints are")
        if steps:
            count: Any = 2 if steps == "2" else steps
            look.add_argument("steps", type=int, nargs=count, metavar="STEP", help="its number")
        look.set_defaults(run=partial(_checkpoint, name))

    search = commands.add_parser(
        "search",
        help="run a script's objective with many configurations",
        description=(
            "Look for hyper-parameters. The script is a Python file that defines SPACE, what each "
            "may be, and objective(config, budget), what is to be small. Every trial is a line "
            "of the journal; a search that was stopped goes on."
        ),
    )
    search.add_argument("script", help="a Python file")
    search.add_argument("--trials", type=_positive, default=20, help="configurations (20)")
    methods = ("random", "halving", "bayes")
    search.add_argument("--method", choices=methods, default="random", help="(random)")
    search.add_argument("--budget", type=_positive, default=1, help="of a whole training (1)")
    search.add_argument("--processes", type=_positive, default=1, help="at once (1)")
    search.add_argument("--seed", type=int, default=0, help="of what is tried (0)")
    search.add_argument("--journal", metavar="FILE", help="for results (SCRIPT.search.jsonl)")
    search.set_defaults(run=_search)

    env = commands.add_parser(
        "env",
        help="versions, chip, threads, cache: what a report of a problem should contain",
        description="Print versions, the chip, the number of threads and the state of the cache.",
    )
    env.set_defaults(run=_env)

    cache = commands.add_parser(
        "cache",
        help="the compiled programs kept on disk",
        formatter_class=RawDescriptionHelpFormatter,
        description=(
            "Show or clear the programs and machine code kept on disk.\n\n"
            "They are in $GENESIS_CACHE, else in $XDG_CACHE_HOME/genesis, else in\n"
            "~/.cache/genesis. GENESIS_CACHE=off switches the cache off."
        ),
    )
    cache.set_defaults(run=_show)
    actions = cache.add_subparsers(title="actions", metavar="ACTION")
    for name, run, text in (
        ("show", _show, "say what is kept and how much room it takes (the default)"),
        ("clear", _clear, "delete all of it; programs that are running are not disturbed"),
        ("path", _path, "print the directory"),
    ):
        action = actions.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        action.set_defaults(run=run)
    return parser


def _add_model(parser: ArgumentParser) -> None:
    """What a language model is opened with."""
    parser.add_argument("path", help="a folder of Hugging Face files, or a GGUF file")
    formats = ("float32", "bfloat16", "float16", "int8", "int4")
    parser.add_argument("--format", choices=formats, help="of the weights (as in the files)")
    parser.add_argument(
        "--max-length", type=_positive, metavar="N", help="tokens of the longest text (the model's)"
    )


def _add_sampling(parser: ArgumentParser) -> None:
    """How tokens are chosen."""
    parser.add_argument(
        "--temperature", type=float, default=0.7, metavar="T", help="0: the likeliest token (0.7)"
    )
    parser.add_argument("--seed", type=int, metavar="N", help="of the choices (a random one)")
    parser.add_argument(
        "--max-tokens", type=_positive, default=512, metavar="N", help="of an answer (512)"
    )


def _help(parser: ArgumentParser) -> int:
    parser.print_help()
    return 0


# ---- genesis train, genesis predict


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"{text} is not a positive number")
    return int(text)


def _train_digits(steps: int, seed: int, output: str) -> int:
    from genesis.recipes import digits
    from genesis.serialization import require_place

    if not Path(output).absolute().parent.is_dir():
        return _fail(f"there is no folder {Path(output).parent} to save {Path(output).name} in")
    try:
        require_place(output)
    except OSError as error:
        return _fail(f"cannot save to {output}: {error.strerror}")
    digits.train(steps, seed, output)
    return 0


def _train(name: str, steps: int | None, seed: int) -> int:
    from importlib import import_module

    settings = {} if steps is None else {"steps": steps}
    found = import_module(f"genesis.recipes.{name}").train(seed=seed, **settings)
    print()
    for what, value in found.items():
        print(f"{what:30}{value:>12.4g}")
    return 0


def _predict(weights: str, image: list[str]) -> int:
    import numpy as np

    from genesis import datasets, from_numpy
    from genesis.recipes import digits

    try:
        model = digits.load(weights)
        given = np.stack([digits.read_image(path) for path in image]) if image else None
    except OSError as error:
        return _fail(f"{error.filename}: {error.strerror}")
    except ValueError as error:
        return _fail(str(error))
    if given is not None:
        digits.show(given, digits.predicted(model, from_numpy(given)))
        return 0
    images, labels = (x[:12] for x in datasets.digits("test"))
    digits.show(images.numpy(), digits.predicted(model, images), labels.tolist())
    return 0


# ---- genesis chat, genesis llm


def _chat(system: str | None, **how: Any) -> int:
    from genesis.llm import command

    return _with_model(how, lambda llm, params: command.chat(llm, params, system))


def _generate(prompt: str, **how: Any) -> int:
    from genesis.llm import command

    text = sys.stdin.read() if prompt == "-" else prompt
    return _with_model(how, lambda llm, params: command.generate(llm, text, params))


def _with_model(how: dict[str, Any], use: Callable[[LLM, SamplingParams], None]) -> int:
    """Use a model; what is the matter with it, or with what is asked of it, is one line."""
    from genesis.llm import LLM, SamplingParams

    sampling = {name: how.pop(name) for name in ("temperature", "seed", "max_tokens")}

    def run() -> None:
        params = SamplingParams(**sampling)
        with LLM(**how) as llm:
            use(llm, params)

    return _explained(run, how["path"])


def _bench_llm(path: str, **how: Any) -> int:
    from genesis.llm.bench import bench

    def run() -> None:
        for line in bench(path, **how):
            print(line, flush=True)

    return _explained(run, path)


def _explained(run: Callable[[], None], path: str) -> int:
    from genesis.llm import RequestFailed

    if not Path(path).exists():
        return _fail(f"there is no file or folder {path}")
    try:
        run()
    except OSError as error:
        return _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    except (ImportError, RequestFailed, TypeError, ValueError) as error:
        return _fail(" ".join(str(error).split()))
    except KeyboardInterrupt:
        print()
        return 130
    return 0


# ---- genesis profile, genesis tune, genesis bench


def _profile(trace: str | None, roofline: str | None, script: str, arguments: list[str]) -> int:
    if not Path(script).is_file():
        return _fail(f"there is no file {script}")
    for path in (trace, roofline):
        if path is not None and not Path(path).absolute().parent.is_dir():
            return _fail(f"there is no folder {Path(path).parent} to write {Path(path).name} in")
        if path is not None and Path(path).is_dir():
            return _fail(f"cannot write to {path}: it is a folder")
    if roofline is not None and not roofline.endswith((".html", ".png")):
        return _fail(f"--roofline {roofline}: the name must end in .html or .png")
    from genesis.profiling.command import run

    found, status = run(script, arguments)
    print(f"\n{found.table()}")
    if trace is not None:
        found.save_trace(trace)
    if roofline is not None:
        found.save_roofline(roofline)
    return status


def _tune(script: str | None, arguments: list[str], seconds: int, **kept: Any) -> int:
    if script is not None and not Path(script).is_file():
        return _fail(f"there is no file {script}")
    if (script is None) == (not any(kept.values())):
        return _fail("tune takes a script, or one of --show, --export, --import and --clear")
    from genesis.tuning import command

    try:
        if script is not None:
            return command.tune_script(script, arguments, seconds)
        for line in command.manage(**kept):
            print(line)
    except OSError as error:
        return _fail(f"{error.filename}: {error.strerror}")
    except ValueError as error:
        return _fail(str(error))
    return 0


def _bench() -> int:
    from genesis.profiling.bench import bench

    for line in bench():
        print(line, flush=True)
    return 0


# ---- genesis checkpoint


def _checkpoint(action: str, folder: str, steps: Any = None) -> int:
    from genesis.serialization import BadFile
    from genesis.train import checkpoint_command as command

    try:
        if action == "verify":
            found = list(command.verified(folder))
            print(*(line for _, line in found), sep="\n")
            return 0 if all(whole for whole, _ in found) else 1
        if action == "diff":
            lines = command.differences(folder, *steps)
        else:
            lines = command.listed(folder) if action == "ls" else command.shown(folder, steps)
        for line in lines:
            print(line)
    except BadFile as error:
        return _fail(str(error))
    return 0


# ---- genesis search


def _search(script: str, journal: str | None, **how: Any) -> int:
    import runpy

    from genesis.train import search

    if not Path(script).is_file():
        return _fail(f"there is no file {script}")
    names = runpy.run_path(script, run_name="genesis_search")
    if not {"SPACE", "objective"} <= names.keys():
        return _fail(f"{script} defines no SPACE and objective(config, budget)")
    try:
        path = journal or f"{script}.search.jsonl"
        found = search(names["objective"], names["SPACE"], journal=path, **how)
    except (ImportError, OSError, ValueError) as error:
        return _fail(str(error))
    for trial in found[:10]:
        value = "failed" if trial.value is None else f"{trial.value:.6g}"
        print(f"{value:>12}  budget {trial.budget}  {trial.config}  {trial.error}".rstrip())
    return 0 if any(trial.value is not None for trial in found) else 1


# ---- genesis env


def _env() -> int:
    import platform
    from importlib.metadata import PackageNotFoundError, version

    from genesis.backends import get
    from genesis.backends.cpu.runtime.runtime import get_num_threads

    lines = [("genesis", __version__), ("python", f"{platform.python_version()}, {sys.platform}")]
    for package in ("numpy", "llvmlite", "islpy", "triton"):
        try:
            lines.append((package, version(package)))
        except PackageNotFoundError:
            lines.append((package, "not installed"))
    chip = get("cpu").chip
    caches = f"{chip.l1_bytes >> 10} KiB L1, {chip.l2_bytes >> 10} KiB L2"
    lines.append(("cpu", f"{chip.name}; {8 * chip.vector_bytes}-bit vectors, {caches}"))
    lines.append(("threads", str(get_num_threads())))
    lines.append(("cache", _summary()))
    for name, value in lines:
        print(f"{name:<10}{value}")
    return 0


def _summary() -> str:
    try:
        store = _store()
    except OSError as error:
        return f"{disk.directory()}: not used, {error.strerror or error}"
    if store is None:
        return "off" if disk.directory() is None else f"{disk.directory()}: empty"
    entries = store.entries()
    return f"{store.path}: {len(entries)} entries, {_bytes(entries)}"


# ---- genesis cache


def _show() -> int:
    try:
        store = _store()
    except OSError as error:
        return _complain(error)
    print(f"directory  {disk.directory() or 'none: the cache is off'}")
    entries = store.entries() if store is not None else []
    for kind in ("program", "object"):
        kept = [e for e in entries if e.kind == kind]
        print(f"{kind + 's':<11}{len(kept):<7}{_bytes(kept)}")
    print(f"{'limit':<18}{_size(disk.LIMIT)}")
    return 0


def _clear() -> int:
    try:
        store = _store()
    except OSError as error:
        return _complain(error)
    removed = store.clear() if store is not None else []
    print(f"deleted {len(removed)} entries, {_bytes(removed)}")
    return 0


def _path() -> int:
    path = disk.directory()
    if path is None:
        return _fail("the cache is off")
    print(path)
    return 0


def _store() -> disk.Store | None:
    """The store, if it is there: looking at it must not make it."""
    path = disk.directory()
    there = path is not None and (path.exists() or path.is_symlink())
    return disk.Store(path) if path is not None and there else None


def _complain(error: OSError) -> int:
    return _fail(f"{disk.directory()}: {error.strerror or error}")


def _fail(message: str) -> int:
    print(f"genesis: {message}", file=sys.stderr)
    return 1


def _bytes(entries: Sequence[disk.Entry]) -> str:
    return _size(sum(e.nbytes for e in entries))


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} GiB"
