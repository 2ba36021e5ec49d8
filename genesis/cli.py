"""The `genesis` command: look at the installation and at what it keeps on disk.

Whatever a subcommand needs beyond the package itself is imported when it runs, so that
``genesis --help`` answers at once.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from genesis import __version__
from genesis import store as disk


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with these arguments (the process's own, if not given); its exit status."""
    chosen = _parser().parse_args(arguments)
    status: int = chosen.run()
    return status


def _parser() -> ArgumentParser:
    parser = ArgumentParser("genesis", description="Genesis, a deep-learning stack in Python.")
    parser.add_argument("--version", action="version", version=f"genesis {__version__}")
    parser.set_defaults(run=partial(_help, parser))
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")

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


def _help(parser: ArgumentParser) -> int:
    parser.print_help()
    return 0


# ---- genesis env


def _env() -> int:
    import platform
    from importlib.metadata import PackageNotFoundError, version

    from genesis.backends import get
    from genesis.backends.cpu.runtime import get_num_threads

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
        print("genesis: the cache is off", file=sys.stderr)
        return 1
    print(path)
    return 0


def _store() -> disk.Store | None:
    """The store, if it is there: looking at it must not make it."""
    path = disk.directory()
    return disk.Store(path) if path is not None and _exists(path) else None


def _exists(path: Path) -> bool:
    return path.exists() or path.is_symlink()


def _complain(error: OSError) -> int:
    print(f"genesis: {disk.directory()}: {error.strerror or error}", file=sys.stderr)
    return 1


def _bytes(entries: Sequence[disk.Entry]) -> str:
    return _size(sum(e.nbytes for e in entries))


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} GiB"
