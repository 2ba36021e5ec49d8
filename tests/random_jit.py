"""Random programs with state, with jit and without: everything that can be seen must be the same.

``python -m tests.random_jit --seed S --count N [--minutes M] [--jobs J]`` runs the programs of the
seeds from S on (`random_jit_source` writes them), and prints each that differs, made as short as
leaving out lines makes it. ``--show SEED`` prints a program, ``--file PATH`` runs one.

A program ends differently if a call gives, raises, writes or draws something else than without jit.
What jit refuses with a `CaptureError` is counted; such an error must name a line and leave
everything as it was, for the call is then made without jit.
"""

from __future__ import annotations

import argparse
import bisect
import collections
import contextlib
import functools
import heapq
import io
import math
import multiprocessing
import operator
import random
import re
import signal
import sys
import threading
import time
import types
from collections import Counter, deque, namedtuple
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from random_jit_source import source

import genesis
from genesis import ndarray as nd
from genesis import nn, optim
from genesis.compiler import using
from genesis.ndarray import NDArray
from genesis.ndarray.core.value import CaptureError
from genesis.ndarray.core.value import thread as current
from genesis.ndarray.tracing.jit import Jit

#: Seconds that a program may take; one that takes longer hangs, unless it is long without jit.
LIMIT = 20


class Stop(Exception):
    """What programs raise."""


@dataclass
class Pair:
    a: Any
    n: Any


Point = namedtuple("Point", "a n")


class Hangs(BaseException):
    """A program took too long."""


# ---- what can be seen


class Name(str):
    """The name of something in a snapshot."""


class Snapshot:
    """All that can be reached from some names as a list of plain data, tensors apart."""

    def __init__(self, names: dict[str, Any]) -> None:
        self.data: list[Any] = []
        self.tensors: dict[int, Any] = {}  # by their place in the list
        self._numbers: dict[int, int] = {}  # an object seen before is a number
        self._kept: list[Any] = []  # so that no other object gets the id of one
        self._named(names)

    def settled(self) -> list[Any]:
        """The list with the contents of tensors."""
        arrays = [t.array if isinstance(t, genesis.Tensor) else t for t in self.tensors.values()]
        nd.realize(*arrays)
        for k, array in zip(self.tensors, arrays, strict=True):
            self.data[k] = array.tolist()
        return self.data

    def _named(self, names: dict[str, Any]) -> None:
        for name, x in names.items():
            self.data.append(Name(name))
            self._add(x)

    def _each(self, *objects: Any) -> None:
        self.data.append(len(objects))
        for x in objects:
            self._add(x)

    def _add(self, x: Any) -> None:
        while isinstance(x, Jit):
            x = x.__wrapped__  # type: ignore[attr-defined]
        kind = type(x)
        self.data.append(kind.__name__)
        if x is None or isinstance(x, bool | int | float | str | bytes | np.generic | type(...)):
            self.data.append(x)
        elif isinstance(x, type | types.ModuleType) and not _is_made(x):
            self.data.append(x.__name__)
        elif id(x) in self._numbers:
            self.data.append(("seen", self._numbers[id(x)]))
        else:
            self._numbers[id(x)] = len(self._numbers)
            self._kept.append(x)
            self._look_into(x)

    def _look_into(self, x: Any) -> None:
        if isinstance(x, genesis.Tensor):
            self.data += [str(x.dtype), tuple(x.shape), x.requires_grad, x.is_leaf]
            self._array(x)
            self._add(x.grad if x.is_leaf else None)
        elif isinstance(x, NDArray):
            self._array(x)
        elif isinstance(x, np.ndarray):
            self.data += [str(x.dtype), x.tolist()]
        elif isinstance(x, dict):
            self._named({repr(k): v for k, v in x.items()})
        elif isinstance(x, set | frozenset):
            self.data.append(sorted(map(repr, x)))
        elif isinstance(x, tuple | list | deque):
            self._each(*x)
        elif isinstance(x, types.FunctionType):
            cells = [c.cell_contents for c in x.__closure__ or () if _is_full(c)]
            self._each(*cells, *(x.__defaults__ or ()), *(x.__kwdefaults__ or {}).values())
        elif isinstance(x, types.MethodType):
            self._each(x.__self__, x.__func__)
        elif isinstance(x, functools.partial):
            self._each(x.func, *x.args, *x.keywords.values())
        elif isinstance(x, nn.Module):
            self._named({k: v for k, v in vars(x).items() if not k.startswith("_")})
            self._named({**x._parameters, **x._buffers, **x._modules})
        elif isinstance(x, optim.Optimizer):
            for group in x.param_groups:
                self._named({k: v for k, v in group.items() if k != "params"})
            self._each(*x.state_dict()["state"].values())
        elif isinstance(x, random.Random):
            self.data.append(hash(x.getstate()))
        elif hasattr(x, "__dict__"):
            self._named({k: v for k, v in vars(x).items() if not k.startswith("__")})

    def _array(self, x: Any) -> None:
        self.tensors[len(self.data)] = x
        self.data.append(None)


def _is_made(x: Any) -> bool:
    """Whether a class or a module is the program's own."""
    return "program" in (getattr(x, "__module__", ""), getattr(x, "__name__", ""))


def _is_full(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


Seen = list[tuple[str, list[Any]]]


def difference(want: Seen, got: Seen) -> str | None:
    """Where two runs differ, in words."""
    for (what, data), (now, other) in zip(want, got, strict=False):
        if what != now:
            return f"{what!r} is {now!r}"
        if data == other:
            continue
        path = ""
        for k, (a, b) in enumerate(zip(data, other, strict=False)):
            if isinstance(a, Name):
                path = f"{path} {a}" if len(path) < 60 else a
            if not _same(a, b):
                return (
                    f"{what}, after {path.strip()}: {data[k - 2 : k + 3]} is {other[k - 2 : k + 3]}"
                )
        if len(data) != len(other):
            return f"{what}: there is more of it"
    return None if len(want) == len(got) else f"{len(want)} calls are {len(got)}"


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        return all(map(_same, a, b))
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=1e-4, abs_tol=1e-5) or (a != a and b != b)
    return type(a) is type(b) and a == b


# ---- running


class Run:
    """One run of a program: its names, and what was seen of it.

    Outside of jit every operation is computed at its line and kernels are not fused, since they are
    then soon all compiled; unless the run is `lazy`.
    """

    def __init__(self, jit: Callable[..., Any], lazy: bool = False) -> None:
        self.lazy = lazy
        self.seen: Seen = []
        self.result: Any = None
        self.kept: list[Any] = []
        self.refusals: list[str] = []
        self.printed = io.StringIO()
        self.given = dict(  # noqa: C408
            __name__="program", genesis=genesis, nn=nn, optim=optim, np=np, jit=jit, deque=deque,
            collections=collections, SimpleNamespace=SimpleNamespace, Stop=Stop, Pair=Pair,
            Point=Point, vec=_vec, see=self.see, see_elsewhere=self.see_elsewhere, pull=self.pull,
            first=_first, try_=_try, module=_module, functools=functools,
            numbers=iter(range(1, 1000)), pseudo=random.Random(0),
            heapq=heapq, bisect=bisect, operator=operator,
        )  # fmt: skip
        self.names: dict[str, Any] = dict(self.given)

    def look(self, what: str) -> None:
        """Note everything that can be seen now."""
        names = {k: v for k, v in self.names.items() if k not in self.given and k[0] != "_"}
        more = {"result": self.result, "kept": self.kept, "printed": self.printed.getvalue()}
        self.seen.append((what, Snapshot({**names, **more}).settled()))

    def see(self, function: Callable[..., Any], *args: Any) -> None:
        """Call a function, and note what it gives or raises, and what there is afterwards."""
        what = f"call {len(self.seen)}"
        try:
            try:
                with computing(eagerly=False):
                    self.result = function(*args)
            except CaptureError as error:  # which must leave everything as it was
                if not isinstance(function, Jit):
                    raise  # but not what the caller has done before
                self.refusals.append(str(error))
                with computing(eagerly=True):
                    self.result = function(*args)
        except Exception as error:
            if not isinstance(function, Jit) and (refusal := _refusal(error)):
                raise refusal from None
            self.result = None
            what += f" raises {type(error).__name__}"
        self.kept = [*self.kept[-3:], self.result]
        self.look(what)

    def see_elsewhere(self, function: Callable[..., Any], *args: Any) -> None:
        """The same on another thread."""
        errors: list[BaseException] = []

        def work() -> None:
            try:
                with computing(eagerly=not self.lazy):
                    self.see(function, *args)
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        thread.join(LIMIT)
        if thread.is_alive():
            raise Hangs
        if errors:
            raise errors[0]

    def pull(self) -> None:
        """Take the gradients of the last result."""
        found = Snapshot({"result": self.result}).tensors.values()
        wanted = [t for t in found if isinstance(t, genesis.Tensor) and t.requires_grad]
        what = f"gradients {len(self.seen)}"
        if wanted:
            try:
                sum((t.sum() for t in wanted), genesis.tensor(0.0)).backward()
            except RuntimeError:  # or what jit makes of it
                what += " raises RuntimeError"
            except Exception as error:
                what += f" raises {type(error).__name__}"
        self.look(what)

    def poke(self) -> None:
        """Write to every tensor, each something else: shows which of them share memory."""
        names = {k: v for k, v in self.names.items() if k not in self.given}
        found = Snapshot({**names, "result": self.result, "kept": self.kept}).tensors.values()
        for k, t in enumerate(found):
            if isinstance(t, genesis.Tensor) and t.is_floating_point():
                t.detach().add_(2.0 ** (k % 12))
        self.look("written to")

    def run(self, text: str) -> Seen:
        """Run the program to its end."""
        sys.modules["program"] = types.ModuleType("program")
        genesis.manual_seed(0)
        with (
            using(fuse=self.lazy),
            computing(eagerly=not self.lazy),
            contextlib.redirect_stdout(self.printed),
        ):
            try:
                exec(compile(text, "program.py", "exec"), self.names)
                self.poke()
            except CaptureError:
                raise
            except Exception as error:
                self.look(f"ends with {type(error).__name__}: {error}")
        return self.seen


@contextlib.contextmanager
def computing(eagerly: bool) -> Iterator[None]:
    """Compute every operation at its line, or not."""
    before, current.eager = current.eager, eagerly
    try:
        yield
    finally:
        current.eager = before


def _vec(*numbers: float) -> genesis.Tensor:
    return genesis.tensor([float(n) for n in numbers])


def _refusal(error: BaseException | None) -> CaptureError | None:
    """What jit refused before a function that is not jitted raised an error."""
    while error is not None and not isinstance(error, CaptureError):
        error = error.__context__
    return error


def _first(x: Any) -> Any:
    """The first tensor in a result."""
    if isinstance(x, genesis.Tensor):
        return x
    if isinstance(x, Pair | Point):
        return _first(x.a)
    if isinstance(x, dict):
        return _first(next(iter(x.values())))
    if isinstance(x, list | tuple) and x:
        return _first(x[0])
    return _vec(1, 1)


def _try(function: Callable[[], Any]) -> None:
    with contextlib.suppress(RuntimeError):
        function()


def _module(**names: Any) -> types.ModuleType:
    module = types.ModuleType("made")
    vars(module).update(names)
    return module


@contextlib.contextmanager
def limited(seconds: int) -> Iterator[None]:
    """Raise where a program computes for longer, or waits for much longer.

    Does nothing outside of the main thread.
    """

    def stop(*_: object) -> None:
        raise Hangs

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = [signal.signal(s, stop) for s in (signal.SIGPROF, signal.SIGALRM)]
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, seconds * 20)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGPROF, before[0])
        signal.signal(signal.SIGALRM, before[1])


class Verdict(NamedTuple):
    """ "equal", "refused", "long", or what is the matter; and more about it."""

    kind: str
    more: str = ""

    @property
    def is_finding(self) -> bool:
        """Whether the program shows that something is wrong."""
        return self.kind not in ("equal", "refused", "long")


def takes_long(text: str, lazy: bool) -> bool:
    """Whether a program takes long without jit: its lists may double at every call."""
    begin = time.thread_time()
    try:
        with limited(LIMIT):
            Run(lambda f: f, lazy).run(text)
    except Hangs:
        return True
    return time.thread_time() - begin > LIMIT / 200


def judged(text: str, lazy: bool = False) -> Verdict:
    """What becomes of a program under jit."""
    try:
        with limited(LIMIT):
            want = Run(lambda f: f, lazy).run(text)
    except Hangs:
        return Verdict("long")
    run = Run(genesis.jit, lazy)
    try:
        with limited(LIMIT):
            run.run(text)
    except CaptureError as error:  # between calls that are seen
        run.refusals.append(str(error))
        want = want[: len(run.seen)]
    except Hangs:
        return Verdict("long" if takes_long(text, lazy) else "hangs")
    for refusal in run.refusals:
        if not re.search(r"\.py:\d+", refusal):
            return Verdict("no line", refusal)
    if run.refusals and "finally:" in text and sys.version_info < (3, 12):
        return Verdict("refused", run.refusals[0])  # a trace function that raises sees no more
    if found := difference(want, run.seen):
        return Verdict("different", found)
    return Verdict("refused", run.refusals[0]) if run.refusals else Verdict("equal")


def is_lazy(seed: int) -> bool:
    """Whether a program is run lazily outside of jit, and with fused kernels inside."""
    return seed % 16 == 0


# ---- making programs short


def shrunk(text: str, fails: Callable[[str], bool]) -> str:
    """A program with as few lines as leaving out lines and blocks gives, which still fails."""
    lines = text.splitlines()
    again = True
    while again:
        again = False
        k = len(lines) - 1
        while k >= 0:
            for shorter in _without(lines, k):
                if _compiles(shorter) and fails("\n".join(shorter) + "\n"):
                    lines, again = shorter, True
                    break
            k = min(k - 1, len(lines) - 1)
    return "\n".join(lines) + "\n"


def _without(lines: list[str], k: int) -> Iterator[list[str]]:
    """Lines without line k and what belongs to it; without it alone, the rest moved out."""
    depth = len(lines[k]) - len(lines[k].lstrip())
    end = k + 1
    while end < len(lines) and len(lines[end]) - len(lines[end].lstrip()) > depth:
        end += 1
    yield lines[:k] + lines[end:]
    if end > k + 1:
        yield lines[:k] + [line[4:] for line in lines[k + 1 : end]] + lines[end:]


def _compiles(lines: list[str]) -> bool:
    try:
        compile("\n".join(lines) + "\n", "program.py", "exec")
    except SyntaxError:
        return False
    return True


def finding(seed: int, verdict: Verdict) -> str:
    """What to print of a program that shows something wrong."""
    lazy = is_lazy(seed)

    def fails(text: str) -> bool:
        try:
            return judged(text, lazy).kind == verdict.kind
        except Exception:
            return False

    text = shrunk(source(seed), fails) if verdict.kind != "hangs" else source(seed)
    more = judged(text, lazy).more
    return f"---- seed {seed}: {verdict.kind}\n{text}# {more[:600]}\n"


# ---- many programs


def run_many(seeds: range, until: float, say: Callable[[str], None] = print) -> Counter[str]:
    """Run programs, say what is found, and count."""
    counts: Counter[str] = Counter()
    for seed in seeds:
        if time.monotonic() > until:
            break
        try:
            verdict = judged(source(seed), is_lazy(seed))
        except Exception as error:
            verdict = Verdict("crash", f"{type(error).__name__}: {error}")
        counts[verdict.kind] += 1
        if verdict.is_finding:
            say(finding(seed, verdict))
    return counts


def _work(task: tuple[int, int, int, float]) -> Counter[str]:
    first, count, jobs, seconds = task
    seeds = range(first, first + count, jobs)
    return run_many(seeds, time.monotonic() + seconds, lambda text: print(text, flush=True))


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--minutes", type=float, default=1e9)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--show", type=int, help="print the program of a seed")
    parser.add_argument("--file", type=Path, help="run the program in a file")
    options = parser.parse_args()
    if options.show is not None:
        print(source(options.show))
        return 0
    if options.file is not None:
        verdict = judged(options.file.read_text())
        print(verdict.kind, verdict.more)
        return int(verdict.is_finding)
    begin = time.monotonic()
    seconds, jobs = options.minutes * 60, options.jobs
    tasks = [
        (options.seed + k, options.count - k, jobs, seconds)
        for k in range(jobs)
        if k < options.count
    ]
    if jobs == 1:
        counts = _work(tasks[0])
    else:
        with multiprocessing.get_context("spawn").Pool(jobs) as pool:
            counts = sum(pool.imap_unordered(_work, tasks), Counter())
    took = time.monotonic() - begin
    print(f"{sum(counts.values())} programs in {took:.0f} s: {dict(counts.most_common())}")
    return int(any(Verdict(kind).is_finding for kind in counts))


if __name__ == "__main__":
    sys.exit(main())
