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
from genesis import content_store as disk

if TYPE_CHECKING:
    from genesis.llm import LLM, SamplingParams


_RECIPES = {
    "adaptation": "read digits on other paper, without labels for it",
    "adversarial": "attack a network, train another against it, and take noise away",
    "bert": "pretrain a small BERT with LAMB, with MLPerf's log lines",
    "continual": "one task after another: elastic weights, and replay",
    "contrastive": "pictures and captions in one space",
    "ctc": "hear spoken digits: connectionist temporal classification",
    "diffusion": "digits out of noise: a diffusion model",
    "federated": "learn from ten clinics whose data stays there",
    "forecast": "forecasts by an LSTM and a transformer, with honest intervals",
    "gpt": "a character GPT on Python's documentation, then sampled",
    "graphs": "GCN, GraphSAGE, GAT and GIN on the graph of a karate club",
    "impala": "balance a pole with actors that lag behind: V-trace",
    "neural_ode": "learn how hares and lynxes change, from one round of it",
    "pinn": "solve the heat equation with a network that knows the law",
    "ppo": "balance a pole on a cart by proximal policy optimization",
    "private": "train so that no example can be told from the weights: DP-SGD",
    "recommender": "recommend films with two towers",
    "resnet": "recognise textures with a ResNet and the tricks of speed runs",
    "retinanet": "find and name drawn shapes, judged by COCO's precision",
    "retrieval": "find the page that answers: BM25, and reading again",
    "unet": "find drawn shapes in noise with a U-Net",
    "vae": "a variational autoencoder of digits",
    "wgan": "a Wasserstein GAN on a ring of eight clouds",
    "word2vec": "words by their company, on Python's documentation",
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

    _add_serve(commands)

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
    _add_load(uses)
    _add_simulate(uses)

    _add_onnx(commands)
    convert = commands.add_parser(
        "convert",
        help="weights from one kind of file to another",
        description=(
            "Read the tensors of a checkpoint (.safetensors, .pt, .pth, .bin, .npz, .h5, .keras, "
            ".gguf, or a folder) and write them to a .safetensors or .npz file. Nothing in "
            "the file is executed."
        ),
    )
    convert.add_argument("source", metavar="IN")
    convert.add_argument("target", metavar="OUT")
    convert.set_defaults(run=_convert)

    compress = commands.add_parser(
        "compress",
        help="write the weights of a model in fewer bits",
        description=(
            "Write the weights of a checkpoint (safetensors, GGUF, PyTorch's) to a GGUF file in "
            "fewer bits, tensor by tensor. A run that was interrupted goes on where it was."
        ),
    )
    compress.add_argument("source", metavar="IN", help="a file or a folder")
    compress.add_argument("target", metavar="OUT.gguf")
    size = compress.add_mutually_exclusive_group()
    size.add_argument("--format", help="of all matrices: Q8_0, Q6_K, Q4_K, .. (Q4_K)")
    size.add_argument("--bytes", help="at most so many, the error as small as possible: 1.5GB")
    size.add_argument(
        "--recipe",
        help="for the digits' network (`genesis train digits`): server, laptop, phone or tiny; "
        "folds, prunes, recovers and quantises, measures each step, writes a safetensors file",
    )
    compress.add_argument("--verbose", action="store_true", help="a line for every tensor")
    compress.set_defaults(run=_compress)

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

    view = commands.add_parser(
        "view",
        help="run a script and show what was compiled for it, on a page or as text",
        description=(
            "Run a script as Python would, and write a page when it ends: the programs that ran, "
            "their graphs before and after each stage with what each rule did, their kernels with "
            "schedule, code, proof and place under the machine's roof, a timeline, memory over "
            "time and the numbers that the script asked for, such as its loss. The page is one "
            "file that loads nothing else."
        ),
    )
    view.add_argument("--text", action="store_true", dest="as_text", help="print it instead")
    view.add_argument("--output", metavar="FILE", help="the page (SCRIPT.view.html)")
    view.add_argument("--runs", metavar="FOLDER", help="show curves of its event files, too")
    view.add_argument("script", help="a Python file")
    view.add_argument("arguments", nargs=REMAINDER, help="the script's own arguments")
    view.set_defaults(run=_view)

    launch = commands.add_parser(
        "launch",
        help="run a script on several processes that train or compute together",
        description=(
            "Run a script on several processes of this machine. They find each other by "
            "genesis.distributed.mesh(..); if one fails, all end."
        ),
    )
    launch.add_argument("-n", type=_positive, required=True, dest="count", help="processes")
    launch.add_argument(
        "--restarts", type=int, default=0, help="how often to start all again if one fails (0)"
    )
    launch.add_argument(
        "--elastic", action="store_true",
        help="go on without a lost process, and replace it: for genesis.distributed.elastic",
    )  # fmt: skip
    launch.add_argument("script", help="a Python file")
    launch.add_argument("arguments", nargs=REMAINDER, help="the script's own arguments")
    launch.set_defaults(run=_launch)

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


def _add_serve(commands: Any) -> None:
    serve = commands.add_parser(
        "serve",
        help="serve language models over HTTP, as clients of OpenAI expect",
        description=(
            "Serve models to clients of OpenAI's interface, with a page to chat on. SIGTERM ends "
            "it when what runs is done. All options can be in a TOML file, too, with _ for -."
        ),
    )
    serve.add_argument("paths", nargs="*", metavar="[NAME=]PATH", help="a folder, or a GGUF file")
    serve.add_argument("--config", metavar="FILE", help="TOML: options, [[model]], [tiers.NAME]")
    formats = ("float32", "bfloat16", "float16", "int8", "int4")
    serve.add_argument("--format", choices=formats, help="of the weights (as in the files)")
    for name, kind, text in (
        ("host", str, "address to listen on (127.0.0.1)"),
        ("port", int, "port to listen on, 0 for any (8000)"),
        ("max-length", _positive, "tokens of the longest text (the model's)"),
        ("cache-bytes", _positive, "memory for keys and values of each model"),
        ("sequences", _positive, "texts that are continued at once (64)"),
        ("step-tokens", _positive, "tokens computed in a step, at most (512)"),
        ("policy", str, "which pages go: learned, cost, heat or lru (learned)"),
        ("disk", str, "folder where pages outlive the process"),
        ("speculate", str, "guess tokens ahead: ngrams, or a smaller model"),
        ("adapters", int, "slots for LoRA adapters (as many as are given)"),
        ("memory", _positive, "bytes that all models may take (3/4 of the machine)"),
        ("idle", float, "seconds until an unused model is dropped (never)"),
        ("stall", float, "seconds without a step until an engine is restarted (300)"),
        ("grace", float, "seconds that requests have at the end (30)"),
        ("keys", str, "TOML file of keys; without it, everybody may ask"),
        ("log", str, "file for a JSON line about each request"),
        ("record", str, "file for a trace that `genesis llm simulate` reads; no text"),
        ("tls-cert", str, "certificate"),
        ("tls-key", str, "and its key"),
    ):
        serve.add_argument(f"--{name}", type=kind, metavar=name.split("-")[-1].upper(), help=text)
    serve.add_argument(
        "--adapter", action="append", metavar="NAME=FOLDER", help="a LoRA as a model"
    )
    serve.add_argument("--cors", action="append", metavar="ORIGIN", help="pages that may ask")
    serve.add_argument(
        "--share-prefixes", action="store_true", default=None,
        help="let keys find each other's prefixes (time tells who asked what)",
    )  # fmt: skip
    serve.set_defaults(run=_serve)


def _add_load(uses: Any) -> None:
    load = uses.add_parser(
        "load",
        help="put load on a server, and measure what it does",
        description=(
            "Send requests to a server of OpenAI's interface, at random times or by clients that "
            "wait for their answers, and print tokens per second and times."
        ),
    )
    load.add_argument("url", help="of the server, as http://127.0.0.1:8000")
    load.add_argument("--model", help="its name (the first)")
    load.add_argument("--requests", type=_positive, default=64, help="how many (64)")
    load.add_argument("--clients", type=_positive, default=8, help="that wait for answers (8)")
    load.add_argument("--rate", type=float, help="requests a second at random times, instead")
    load.add_argument("--trace", metavar="FILE", help="requests as they were recorded, instead")
    load.add_argument("--input", type=_positive, default=256, help="tokens of a prompt (256)")
    load.add_argument("--output", type=_positive, default=64, help="tokens of an answer (64)")
    load.add_argument(
        "--shared", type=int, default=0, help="tokens that prompts have in common (0)"
    )
    load.add_argument("--warm", type=int, default=0, help="first requests, not timed (0)")
    load.add_argument("--key", help="for the server")
    load.add_argument("--seed", type=int, default=0, help="of what is random (0)")
    load.set_defaults(run=_load)


def _add_simulate(uses: Any) -> None:
    simulate = uses.add_parser(
        "simulate",
        help="run a recorded trace on a clock that is not real",
        description=(
            "Run the scheduler, pages and eviction of the engine on requests that "
            "`genesis serve --record` noted, with times of steps that were learned there. Options "
            "that are lists, as --policy lru,learned, are compared."
        ),
    )
    simulate.add_argument("trace", help="a file of --record")
    simulate.add_argument(
        "--policy", default="learned", help="of eviction: learned, cost, heat, lru"
    )
    simulate.add_argument("--pages", help="of the cache (as recorded)")
    simulate.add_argument("--sequences", help="at once (as recorded)")
    simulate.add_argument("--replicas", default="1", help="servers, or auto for an autoscaler (1)")
    simulate.add_argument("--order", default="due", help="of requests: due or arrival (due)")
    simulate.add_argument("--speed", default="1", help="factor on the rate of requests (1)")
    simulate.add_argument(
        "--clients", type=int, default=0,
        help="who wait for an answer before they send the next request (0: as recorded)",
    )  # fmt: skip
    simulate.add_argument("--html", metavar="FILE", help="write the table as a page, too")
    simulate.set_defaults(run=_simulate)


def _add_onnx(commands: Any) -> None:
    """Model files: look at them, run them, measure them."""
    onnx = commands.add_parser(
        "onnx",
        help="models in ONNX files: run, info, bench, check",
        description="Use a model from an ONNX file.",
    )
    onnx.set_defaults(run=partial(_help, onnx))
    uses = onnx.add_subparsers(title="uses", metavar="USE")
    for use, text in (
        ("info", "what a model takes, gives and is made of"),
        ("run", "run a model on inputs from an .npz file, or on random ones"),
        ("bench", "measure how long a call takes, beside onnxruntime where it is installed"),
        ("check", "compare results with onnxruntime's"),
    ):
        parser = uses.add_parser(use, help=text, description=f"{text[0].upper()}{text[1:]}.")
        parser.add_argument("path", help="an ONNX file")
        if use != "info":
            parser.add_argument("--inputs", metavar="FILE", help="an .npz file with the inputs")
            parser.add_argument(
                "--size", action="append", default=[], type=_named_size, metavar="NAME=N",
                help="of an axis that the model leaves open",
            )  # fmt: skip
        if use == "run":
            parser.add_argument("--output", metavar="FILE", help="an .npz file for the results")
        if use == "bench":
            parser.add_argument("--seconds", type=float, default=5.0, help="time to take (5)")
        if use == "check":
            parser.add_argument("--tolerance", type=float, default=1e-4, help="allowed (1e-4)")
        parser.set_defaults(run=partial(_onnx, use))


def _named_size(text: str) -> tuple[str, int]:
    name, _, number = text.partition("=")
    return name, _positive(number)


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


def _serve(**how: Any) -> int:
    def run() -> int:
        from genesis.serve.command import serve

        return serve(**how)

    return _explained_all(run)


def _load(**how: Any) -> int:
    def run() -> int:
        from genesis.serve.load_generator import load

        return load(**how)

    return _explained_all(run)


def _simulate(**how: Any) -> int:
    def run() -> int:
        from genesis.serve.simulate import simulate

        return simulate(**how)

    return _explained_all(run)


def _explained_all(run: Callable[[], int]) -> int:
    """What is wrong with options or files is one line."""
    try:
        return run()
    except OSError as error:
        return _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    except (ImportError, TypeError, ValueError) as error:
        return _fail(" ".join(str(error).split()))
    except KeyboardInterrupt:
        return 130


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


# ---- genesis onnx, genesis convert


def _onnx(use: str, path: str, **how: Any) -> int:
    if not Path(path).is_file():
        return _fail(f"there is no file {path}")
    if "size" in how:
        how["sizes"] = dict(how.pop("size"))
    try:
        from genesis.onnx import command

        for line in getattr(command, use)(path, **how):
            print(line, flush=True)
    except OSError as error:
        return _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    except (ImportError, NotImplementedError, TypeError, ValueError) as error:
        return _fail(" ".join(str(error).split()))
    return 0


def _compress(
    source: str,
    target: str,
    format: str | None,
    bytes: str | None,
    recipe: str | None,
    verbose: bool,
) -> int:
    from genesis.compress.stream import compress_file, parse_bytes

    if not Path(source).exists():
        return _fail(f"there is no file or folder {source}")
    shown = print if verbose else lambda line: None
    try:
        if recipe is not None:
            return _shrink(source, target, recipe)
        limit = None if bytes is None else parse_bytes(bytes)
        chosen = (format or "Q4_K") if limit is None else None
        print(compress_file(source, target, format=chosen, bytes=limit, progress=shown))
    except OSError as error:
        return _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    except (ImportError, TypeError, ValueError) as error:
        return _fail(" ".join(str(error).split()))
    return 0


def _shrink(source: str, target: str, preset: str) -> int:
    import numpy as np

    import genesis
    from genesis.compress.compression_pipeline import shrink
    from genesis.recipes.digits import load, predicted, prepared
    from genesis.serialization import require_place

    require_place(target)
    model, test = load(source), genesis.datasets.digits("test")
    images = prepared(genesis.datasets.digits("train").images)
    data = [images[k : k + 128] for k in range(0, 1280, 128)]
    truth = test.labels.tolist()

    def score(small: Any) -> float:
        found = predicted(small, test.images)
        return float(np.mean(np.array(found) == np.array(truth)))

    small, report = shrink(model, data, score, preset)
    genesis.save(small.state_dict(), target)
    print(report)
    print(f"The weights are in {target}.")
    return 0


def _convert(source: str, target: str) -> int:
    from genesis.weights import convert

    if not Path(source).exists():
        return _fail(f"there is no file or folder {source}")
    try:
        print(convert(source, target))
    except OSError as error:
        return _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    except (ImportError, TypeError, ValueError) as error:
        return _fail(" ".join(str(error).split()))
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


def _view(script: str, **how: Any) -> int:
    if not Path(script).is_file():
        return _fail(f"there is no file {script}")
    from genesis.view.command import view

    try:
        return view(script, **how)
    except OSError as error:
        return _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))


def _launch(count: int, restarts: int, elastic: bool, script: str, arguments: list[str]) -> int:
    if not Path(script).is_file():
        return _fail(f"there is no file {script}")
    from genesis.distributed.launch import launch

    return launch(count, script, arguments, restarts, elastic)


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
    from genesis.profiling.kernel_benchmarks import bench

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
    if found := _shelves().kept():
        print(f"{'weights':<11}{len(found):<7}{_size(sum(size for _, size in found))}")
    return 0


def _clear() -> int:
    try:
        store = _store()
    except OSError as error:
        return _complain(error)
    removed = store.clear() if store is not None else []
    print(f"deleted {len(removed)} entries, {_bytes(removed)}")
    if found := _shelves().clear():
        print(f"deleted packed weights, {_size(sum(size for _, size in found))}")
    return 0


def _shelves() -> Any:
    from genesis.weights import array_cache

    return array_cache


def _path() -> int:
    path = disk.directory()
    if path is None:
        return _fail("the cache is off")
    print(path)
    return 0


def _store() -> disk.ContentStore | None:
    """The store, if it is there: looking at it must not make it."""
    path = disk.directory()
    there = path is not None and (path.exists() or path.is_symlink())
    return disk.ContentStore(path) if path is not None and there else None


def _complain(error: OSError) -> int:
    return _fail(f"{disk.directory()}: {error.strerror or error}")


def _fail(message: str) -> int:
    print(f"genesis: {message}", file=sys.stderr)
    return 1


def _bytes(entries: Sequence[disk.StoredFile]) -> str:
    return _size(sum(e.nbytes for e in entries))


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} GiB"
