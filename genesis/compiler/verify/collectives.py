"""Prove collectives: what ranks do together is right before anything runs.

Four questions, each with its own check, which knows nothing of the passes that made the answer:

* `verify_states`: does the graph of one rank compute the whole graph's results? Along every axis of
  the mesh a node is *the same* on all ranks, a *block*, or a *partial sum*. These states are found
  anew, from how the leaves lie: a sum of what all have would count it several times, a partial sum
  that passes for the whole leaves something out, blocks along different dimensions do not meet.
* `verify_flights`: between its START and its WAIT nothing touches what a collective receives, and
  no other value lies there, whatever the sizes are.
* `verify_messages`: what ranks send and receive one by one fits, in an order that ends.
* `verify_cover`: blocks make up an array, every element once.

A state that cannot be told is taken for right: every alarm is a mistake, but not every mistake is
found.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from math import prod
from typing import Final, Literal, NamedTuple, NoReturn

from genesis.backends.base import Host, Launch, Record, every, steps, touched, waits
from genesis.compiler.program.memory_plan import WrongProgram
from genesis.compiler.program.program import Program
from genesis.ir import ops
from genesis.ir.node import LibraryCall, Node, topological
from genesis.ir.placement import MeshShape, Placement
from genesis.ir.size import Dim, Size, evaluate, product

# ---- states

#: One of these dimensions is divided: which one is not always to be seen, where extents are 1.
Block = frozenset[int]
PARTIAL: Final = "a partial sum"
UNKNOWN: Final = "unknown"  # it differs from rank to rank, who knows how
SHIFTED: Final = "an index that counts from the rank's first row"
OWN: Final = "rows that are right where they are the rank's own"
MASK: Final = "whether a row is the rank's own"
State = Block | None | str


def verify_states(
    roots: Sequence[Node],
    mesh: MeshShape,
    leaves: Mapping[int, Placement],
    placements: Sequence[Placement | None],
) -> int:
    """How many states were proven; raises `WrongProgram` if one is wrong.

    `roots` are one rank's results, which lie as `placements` says, of input slots that lie as
    `leaves` says.
    """
    order, proven = topological(roots), 0
    for k, (axis, size) in enumerate(mesh.axes):
        if size > 1:
            splits = {slot: p.splits[k] for slot, p in leaves.items()}
            given = {slot: s.dim for slot, s in splits.items() if s is not None}
            found = _Axis(axis, size, given)
            for n in order:
                found.visit(n)
            for root, placement in zip(roots, placements, strict=True):
                split = None if placement is None else placement.splits[k]
                found.ends(root, None if split is None else split.dim)
            proven += sum(state != UNKNOWN for state in found.states.values())
    return proven


class _Axis:
    """The states of nodes along one axis."""

    def __init__(self, axis: str, size: int, leaves: Mapping[int, int]) -> None:
        self.axis, self.size, self.leaves = axis, size, leaves
        self.rank = f"rank_{axis}"
        self.states: dict[Node, State] = {}

    def visit(self, n: Node) -> None:
        """Find the state of a node whose inputs' are known."""
        given = [self.states[i] for i in n.inputs]
        if n.op.group == "leaf":
            self.states[n] = self.leaf(n)
        elif n.op is ops.CALL:
            self.states[n] = self.called(n, given)
        elif n.op is ops.ITEM:
            self.states[n] = self.item(n)
        elif n.op is ops.SLICE and any(self.depends(start) for start, _ in n.attr):
            self.states[n] = self.cut(n, given[0])
        elif all(state is None for state in given):
            self.states[n] = None
        elif _shift(self, n):
            self.states[n] = SHIFTED if given[0] is None else UNKNOWN
        elif n.op is ops.GATHER or n.op is ops.SCATTER:
            self.states[n] = _INDEXED[n.op](self, n, given)
        elif UNKNOWN in given:
            self.states[n] = UNKNOWN
        else:
            rule = _RULES.get(n.op) or (_pointwise if n.op.is_elementwise else _needs_all)
            self.states[n] = rule(self, n, given)

    def ends(self, root: Node, dim: int | None) -> None:
        """A result is what it is said to be."""
        state = self.states[root]
        right = state is None if dim is None else isinstance(state, frozenset) and dim in state
        if not right and state != UNKNOWN:
            wanted = "the same on all ranks" if dim is None else f"a block along dimension {dim}"
            self.wrong(root, f"is {_told(state)}, not {wanted}")

    def wrong(self, n: Node, text: str) -> NoReturn:
        """Refuse the program."""
        raise WrongProgram(f"{n.op.name} {n.dtype}{list(n.shape)} along {self.axis}: {text}")

    def depends(self, x: Dim) -> bool:
        """Whether a number differs from rank to rank."""
        return isinstance(x, Size) and any(s.name == self.rank for s in x.symbols)

    def leaf(self, n: Node) -> State:
        """Inputs lie as it was said; nothing else differs, but the rank itself."""
        if n.op is ops.BUFFER and n.attr.slot in self.leaves:
            return frozenset({self.leaves[n.attr.slot]})
        return UNKNOWN if n.op is ops.SIZE and self.depends(n.attr) else None

    def cut(self, n: Node, state: State) -> State:
        """A rank's block of what all have: blocks lie one after the other, from end to end."""
        x, found = n.inputs[0], []
        for d, (start, step) in enumerate(n.attr):
            if self.depends(start):
                starts = [evaluate(start, {self.rank: r}) for r in range(self.size)]
                regions = [((at, evaluate(n.shape[d], {})),) for at in starts]
                verify_cover(regions, (evaluate(x.shape[d], {}),))
                if starts != sorted(starts) or step != 1:
                    self.wrong(n, f"blocks begin at {starts}, out of order")
                found.append(d)
        if state is not None and state != UNKNOWN:
            self.wrong(n, f"a block is cut out of {_told(state)}")
        return UNKNOWN if state == UNKNOWN or len(found) != 1 else frozenset(found)

    # ---- collectives
    def called(self, n: Node, given: Sequence[State]) -> State:
        """A call of the library needs everything; collectives are looked at by their results."""
        call: LibraryCall = n.attr
        if not call.is_collective:
            return _needs_all(self, n, given)
        for dtype, shape in (*call.operands, *call.results):
            if any(self.depends(extent) for extent in shape):
                self.wrong(n, f"{call.name} exchanges {dtype}{list(shape)}, which differs by rank")
        return None

    def item(self, n: Node) -> State:
        """What comes of a collective, or of a call or a loop."""
        called = n.inputs[0]
        if called.op is not ops.CALL or not called.attr.is_collective:
            return self.states[called]
        name = called.attr.name.removeprefix("collectives.")
        state = self.states[called.inputs[n.attr]]
        self.form(n, name, called.attr)
        if called.attr.options[1] != self.axis:
            return self.beside(n, name, called.attr, state)
        return _COLLECTIVES[name](self, n, called.attr, state)

    def form(self, n: Node, name: str, call: LibraryCall) -> None:
        """A collective gives arrays of the shapes that it is defined to give."""
        (kind, given), (dtype, got) = call.operands[n.attr], call.results[n.attr]
        if call.options[1] != self.axis:
            return
        extents = {
            "all_gather": got[:1] == (given[0] * self.size,) if given else False,
            "reduce_scatter": given[:1] == (got[0] * self.size,) if got else False,
            "all_to_all": given == got and bool(given) and given[0] == self.size,
        }
        fits = extents.get(name, given == got)
        if kind is not dtype or len(given) != len(got) or given[1:] != got[1:] or not fits:
            self.wrong(n, f"{name} of {kind}{list(given)} does not give {dtype}{list(got)}")

    def beside(self, n: Node, name: str, call: LibraryCall, state: State) -> State:
        """A collective along another axis does the same with what every rank of this one has."""
        if state == PARTIAL and name == "all_reduce" and call.options[2] != "sum":
            self.wrong(n, f"the {call.options[2]} of partial sums")
        first = isinstance(state, frozenset) and (0 in state or name == "all_to_all")
        return UNKNOWN if first and name not in ("all_reduce", "permute") else state

    def reduced(self, n: Node, call: LibraryCall, state: State) -> State:
        """all_reduce: what every rank has a part of."""
        how = call.options[2]
        if isinstance(state, frozenset) or (state is None and how in ("sum", "prod")):
            self.wrong(n, f"the {how} over ranks of {_told(state)} counts what is not apart")
        if state == PARTIAL and how != "sum":
            self.wrong(n, f"the {how} of partial sums")
        return None

    def gathered(self, n: Node, call: LibraryCall, state: State) -> State:
        """all_gather: of blocks along the first dimension."""
        if state != UNKNOWN and not (isinstance(state, frozenset) and 0 in state):
            self.wrong(n, f"gathers {_told(state)}, not blocks along dimension 0")
        return None

    def scattered(self, n: Node, call: LibraryCall, state: State) -> State:
        """reduce_scatter: a sum, in blocks."""
        if state not in (PARTIAL, UNKNOWN):
            self.wrong(n, f"the sum over ranks of {_told(state)} counts what is not apart")
        return frozenset({0})

    def turned(self, n: Node, call: LibraryCall, state: State) -> State:
        """all_to_all: the piece for every rank, of a block along another dimension."""
        if state != UNKNOWN and not (isinstance(state, frozenset) and state != frozenset({0})):
            self.wrong(n, f"pieces of {_told(state)} are turned")
        return UNKNOWN

    def permuted(self, n: Node, call: LibraryCall, state: State) -> State:
        """permute: every block to another rank."""
        sources = call.options[2]
        if sorted(sources) != list(range(self.size)):
            self.wrong(n, f"ranks receive from {list(sources)}: some block twice, or never")
        if state is None or state == PARTIAL:
            self.wrong(n, f"{_told(state)} goes from rank to rank")
        return state


_COLLECTIVES: dict[str, Callable[[_Axis, Node, LibraryCall, State], State]] = {
    "all_reduce": _Axis.reduced,
    "all_gather": _Axis.gathered,
    "reduce_scatter": _Axis.scattered,
    "all_to_all": _Axis.turned,
    "permute": _Axis.permuted,
}


# ---- what operations make of states; not all inputs are the same on all ranks
def _needs_all(a: _Axis, n: Node, given: Sequence[State]) -> State:
    wrong = next((s for s in given if s is not None), None)
    if wrong is None or wrong == UNKNOWN:
        return wrong
    return a.wrong(n, f"needs all of what is {_told(wrong)}")


def _pointwise(a: _Axis, n: Node, given: Sequence[State]) -> State:
    if {SHIFTED, MASK, OWN} & {s for s in given if isinstance(s, str)}:
        return _of_own_rows(n, given)
    if PARTIAL in given:
        return _linear(a, n, given)
    blocks = [s for s in given if isinstance(s, frozenset)]
    common = frozenset.intersection(*blocks)
    whole = [i for i, s in zip(n.inputs, given, strict=True) if s is None and i.shape]
    if not common or not all(_repeats(i, common) for i in whole):
        states = ", ".join(_told(s) for s in given)
        a.wrong(n, f"elements of {states} do not belong together")
    return common


def _repeats(n: Node, dims: Block) -> bool:
    """Whether an array is the same all along some dimensions, on sight."""
    while n.op is ops.SLICE:
        n = n.inputs[0]
    return n.op is ops.EXPAND and all(n.inputs[0].shape[d] == 1 for d in dims)


def _linear(a: _Axis, n: Node, given: Sequence[State]) -> State:
    """Partial sums stay such through what is linear; anything else needs their sum first."""
    partial = [s == PARTIAL for s in given]
    zero = [_is_zero(i) for i in n.inputs]
    rest = [s for s in given if s not in (None, PARTIAL)]
    fits = {
        ops.NEG: True,
        ops.MUL: sum(partial) == 1,
        ops.DIV: partial == [True, False],
        ops.CAST: n.inputs[0].dtype.kind == n.dtype.kind == "float",
        ops.COMPLEX: all(map(_either, partial, zero)),
        ops.REAL: True,
        ops.IMAG: True,
    }
    if n.op in (ops.ADD, ops.SUB):
        fits[n.op] = all(map(_either, partial, zero))
    elif n.op is ops.WHERE:
        fits[n.op] = not partial[0] and all(map(_either, partial[1:], zero[1:]))
    if rest or not fits.get(n.op, False):
        states = ", ".join(_told(s) for s in given)
        a.wrong(n, f"of {states} is not part of a sum: it would be counted {a.size} times")
    return PARTIAL


def _either(a: bool, b: bool) -> bool:
    return a or b


def _of_own_rows(n: Node, given: Sequence[State]) -> State:
    """Rows that lie elsewhere count as zero: then what ranks have adds up to all."""
    if n.op is ops.WHERE and given[0] == MASK and given[1] == OWN and _is_zero(n.inputs[2]):
        return PARTIAL
    known = {s for s in given if s is not None}
    if n.op in (ops.LT, ops.LE) and known == {SHIFTED}:
        return MASK
    return MASK if n.op is ops.AND and known == {MASK} else UNKNOWN


def _reshape(a: _Axis, n: Node, given: Sequence[State]) -> State:
    def targets(dim: int) -> list[int]:
        before = _count(n.inputs[0].shape[:dim])
        return [d for d in range(len(n.shape)) if _count(n.shape[:d]) == before]

    return _moved(a, n, given, targets)


def _permute(a: _Axis, n: Node, given: Sequence[State]) -> State:
    return _moved(a, n, given, lambda dim: [n.attr.index(dim)])


def _expand(a: _Axis, n: Node, given: Sequence[State]) -> State:
    x = n.inputs[0]
    return _moved(a, n, given, lambda d: [d] if n.shape[d] == x.shape[d] else [])


def _steps(a: _Axis, n: Node, given: Sequence[State]) -> State:
    x = n.inputs[0]
    if given[0] == PARTIAL and not all(map(_is_zero, n.inputs[1:])):
        a.wrong(n, f"what partial sums are filled up with would be counted {a.size} times")
    kept = [
        (n.shape[d] == x.shape[d] and n.attr[d] == (0, 1))
        or isinstance(n.attr[d][0], Size)  # a block of a block, along another axis of the mesh
        for d in range(len(n.shape))
    ]
    return _moved(a, n, given, lambda d: [d] if kept[d] else [])


def _window(a: _Axis, n: Node, given: Sequence[State]) -> State:
    return _moved(a, n, given, lambda d: [] if d == n.attr[0] else [d])


def _as_real(a: _Axis, n: Node, given: Sequence[State]) -> State:
    return _moved(a, n, given, lambda d: [d] if d < len(n.shape) else [])


def _moved(a: _Axis, n: Node, given: Sequence[State], targets: Callable[[int], list[int]]) -> State:
    """Movement of the first input: where its divided dimension goes."""
    state = given[0]
    if not isinstance(state, frozenset):
        return state if state in (PARTIAL, MASK, None) else UNKNOWN
    found = frozenset(d for dim in state for d in targets(dim))
    return found or a.wrong(n, f"of {_told(state)} is no block any more")


def _reduce(a: _Axis, n: Node, given: Sequence[State]) -> State:
    state = given[0]
    if not isinstance(state, frozenset):
        return PARTIAL if state == PARTIAL and n.op is ops.SUM else _needs_all(a, n, given)
    inside = {d in n.attr for d in state}
    if inside == {False}:
        return frozenset(d - sum(axis < d for axis in n.attr) for d in state)
    return PARTIAL if inside == {True} and n.op is ops.SUM else UNKNOWN


def _contract(a: _Axis, n: Node, given: Sequence[State]) -> State:
    lhs, rhs, out = n.attr
    if PARTIAL in given:
        return PARTIAL if None in given else _needs_all(a, n, given)
    labels = [
        None if state is None else {labels[d] for d in state}
        for state, labels in zip(given, (lhs, rhs), strict=True)
        if not isinstance(state, str)
    ]
    found = [x for x in labels if x is not None]
    if len(labels) != 2 or not found:
        return UNKNOWN
    common = set.intersection(*found)
    if len(found) == 1:  # the other operand has all of it: so it must not have the label
        common -= set(rhs if given[1] is None else lhs)
    if not common:
        a.wrong(n, f"a product of {_told(given[0])} and {_told(given[1])}: they do not meet")
    kept = {label in out for label in common}
    if kept == {False}:
        return PARTIAL
    return frozenset(out.index(label) for label in common) if kept == {True} else UNKNOWN


def _update(a: _Axis, n: Node, given: Sequence[State]) -> State:
    if given[0] == given[1] == PARTIAL:
        return PARTIAL
    blocks = [s for s in given if isinstance(s, frozenset)]
    if len(blocks) < 2:
        return a.wrong(n, f"{_told(given[1])} is written over {_told(given[0])}")
    x, value = n.inputs
    common = {d for d in blocks[0] & blocks[1] if x.shape[d] == value.shape[d]}
    found = frozenset(d for d in common if n.attr[d] == (0, 1))
    return found or a.wrong(n, "a block is written somewhere else on every rank")


def _prefix(a: _Axis, n: Node, given: Sequence[State]) -> State:
    blocks = [s for s in given if isinstance(s, frozenset)]
    if len(blocks) < len(given):
        return UNKNOWN
    found = frozenset.intersection(*blocks) - {n.attr.axis}
    return found or a.wrong(n, f"a running sum along {_told(blocks[0])}")


def _gather(a: _Axis, n: Node, given: Sequence[State]) -> State:
    x, *indices = given
    axes, first, rank = n.attr, n.attr[0], len(n.inputs[1].shape)
    shifted = [axis for axis, i in zip(axes, n.inputs[1:], strict=True) if _shift(a, i)]
    if shifted:
        if x != frozenset(shifted):
            return UNKNOWN
        bases = [a.states[i.inputs[0] if _shift(a, i) else i] for i in n.inputs[1:]]
        rows = [s for s in bases if isinstance(s, frozenset)]
        if len(rows) == len(bases):
            return frozenset(first + d for d in frozenset.intersection(*rows))
        return OWN if all(s is None for s in bases) else UNKNOWN
    blocks = [s for s in indices if isinstance(s, frozenset)]
    if UNKNOWN in given or any(isinstance(s, str) for s in indices):
        return UNKNOWN
    if x is None and len(blocks) == len(indices):
        return frozenset(first + d for d in frozenset.intersection(*blocks))
    if x == PARTIAL:
        return UNKNOWN if blocks else PARTIAL
    if isinstance(x, frozenset) and not blocks:
        kept = x - set(axes)
        if not kept:
            a.wrong(n, "rows are taken of what lies in blocks, by numbers of the whole")
        return frozenset(_kept(d, axes, rank) for d in kept)
    return UNKNOWN


def _scatter(a: _Axis, n: Node, given: Sequence[State]) -> State:
    x, *indices, updates = given
    axes, mode = n.attr
    rank = len(n.inputs[1].shape)
    shifted = [axis for axis, i in zip(axes, n.inputs[1:-1], strict=True) if _shift(a, i)]
    blocks = [s for s in indices if isinstance(s, frozenset)]
    if shifted:
        return x if isinstance(x, frozenset) and x == frozenset(shifted) else UNKNOWN
    if UNKNOWN in given:
        return UNKNOWN
    if isinstance(x, frozenset) and not blocks and isinstance(updates, frozenset):
        found = frozenset(d for d in x - set(axes) if _kept(d, axes, rank) in updates)
        return found or a.wrong(n, "rows are written to blocks, by numbers of the whole")
    if x is None and len(blocks) == len(indices) and isinstance(updates, frozenset):
        if mode != "add" or not _is_zero(n.inputs[0]):
            a.wrong(n, "ranks write rows of their own to what all have")
        return PARTIAL
    return UNKNOWN


def _shift(a: _Axis, index: Node) -> bool:
    """Whether an index is counted from the rank's first row."""
    return (
        index.op is ops.SUB and index.inputs[1].op is ops.SIZE and a.depends(index.inputs[1].attr)
    )


def _kept(dim: int, axes: tuple[int, ...], rank: int) -> int:
    """Where a dimension that is not indexed is in the result."""
    position = dim - sum(axis < dim for axis in axes)
    return position if position < axes[0] else position + rank


def _is_zero(n: Node) -> bool:
    while n.op in (ops.EXPAND, ops.RESHAPE):
        n = n.inputs[0]
    return n.op is ops.CONST and n.attr == 0


def _count(shape: Sequence[Dim]) -> int:
    return evaluate(product(tuple(shape)), {})


_RULES: dict[ops.Op, Callable[[_Axis, Node, Sequence[State]], State]] = {
    ops.RESHAPE: _reshape,
    ops.PERMUTE: _permute,
    ops.EXPAND: _expand,
    ops.SLICE: _steps,
    ops.PAD: _steps,
    ops.WINDOW: _window,
    ops.AS_REAL: _as_real,
    ops.AS_COMPLEX: _as_real,
    ops.COMPLEX: _pointwise,
    ops.REAL: _pointwise,
    ops.IMAG: _pointwise,
    ops.SUM: _reduce,
    ops.PROD: _reduce,
    ops.AMAX: _reduce,
    ops.AMIN: _reduce,
    ops.CONTRACT: _contract,
    ops.UPDATE: _update,
    ops.PREFIX: _prefix,
}
_INDEXED = {ops.GATHER: _gather, ops.SCATTER: _scatter}


def _told(state: State) -> str:
    if state is None:
        return "the same on all ranks"
    if isinstance(state, frozenset):
        return f"a block along dimension {' or '.join(map(str, sorted(state)))}"
    return state


# ---- memory


def verify_flights(program: Program, ends: Sequence[Sequence[int]] | None = None) -> int:
    """How many collectives of a program were proven to be left alone while they are under way.

    `ends` says for every record, and for the end, which collectives are waited for before it;
    without it, what backends go by (`backends.base.waits`). Raises `WrongProgram`.
    """
    records = program.records
    ends = waits(records) if ends is None else ends
    starts = [k for k, r in enumerate(records) if _is_collective(r)]
    inside = [r for r in every(records) if _is_collective(r)]
    if len(inside) != len(starts):
        raise WrongProgram("a collective in a loop: ranks could repeat it differently often")
    if not starts:
        return 0
    awaited = [(k, at) for at, numbers in enumerate(ends) for k in numbers]
    if sorted(k for k, _ in awaited) != starts:
        missing = sorted(set(starts) - {k for k, _ in awaited})
        raise WrongProgram(f"collectives {missing or starts} are not waited for, or not once")
    position = _positions(records)
    for k, at in awaited:
        record = records[k]
        assert isinstance(record, Host)
        slots = {x.pointer for x in record.results}
        for between in range(k + 1, at):
            if slots & set(touched(records[between])):
                raise WrongProgram(f"record {between} touches what collective {k} is to receive")
        for slot in slots:
            if at <= k or not _is_free(program, slot, position[k], position[at] - 1):
                raise WrongProgram(f"memory that collective {k} receives into is not free")
    return len(starts)


def _is_collective(record: Record) -> bool:
    return isinstance(record, Host) and record.is_collective


def _is_free(program: Program, slot: int, first: int, last: int) -> bool:
    """Whether nothing else lies in a slot's memory between two launches."""
    if slot >= program.first_temporary:
        life = program.temporaries[slot - program.first_temporary]
        return life.first <= first and last <= life.last
    room = slot - program.first_output  # until a result is written, temporaries may lie in it
    return room >= 0 and program.outputs[room].first <= first


def _positions(records: Sequence[Record]) -> list[int]:
    """The number of every record's first launch, and the end; parts before a loop are its own."""
    found, at = [], 0
    for record in records:
        found.append(at)
        begins = isinstance(record, Launch) and record.phases is not None and not record.phases[0]
        at += 0 if begins else sum(1 for _ in steps([record]))
    return [*found, at]


# ---- messages


class Message(NamedTuple):
    """What a rank sends to another one, or receives from it, under a tag."""

    kind: Literal["send", "receive"]
    peer: int
    tag: int

    def __str__(self) -> str:
        return f"{self.kind} {self.tag} {'to' if self.kind == 'send' else 'from'} {self.peer}"


def verify_messages(ranks: Sequence[Sequence[Message]]) -> int:
    """How many messages arrive, if every rank goes through its list; raises `WrongProgram`.

    Sending does not wait, receiving does. A tag is used again between the same two only when the
    message before has been received.

    >>> verify_messages([[Message("send", 1, 0)], [Message("receive", 0, 0)]])
    1
    """
    at, under_way = [0] * len(ranks), set[tuple[int, int, int]]()
    arrived, moved = 0, True
    while moved:
        moved = False
        for rank, messages in enumerate(ranks):
            while at[rank] < len(messages):
                kind, peer, tag = messages[at[rank]]
                if not 0 <= peer < len(ranks) or peer == rank:
                    raise WrongProgram(f"rank {rank}: {messages[at[rank]]}, which is no other rank")
                way = (rank, peer, tag) if kind == "send" else (peer, rank, tag)
                if kind == "send" and way in under_way:
                    raise WrongProgram(f"rank {rank}: {messages[at[rank]]} while one is under way")
                if kind == "receive" and way not in under_way:
                    break
                under_way ^= {way}
                arrived += kind == "receive"
                at[rank] += 1
                moved = True
    stuck = [
        f"rank {r}: {m[k]}" for r, (m, k) in enumerate(zip(ranks, at, strict=True)) if k < len(m)
    ]
    if stuck:
        raise WrongProgram(f"ranks wait for ever: {'; '.join(stuck)}")
    if under_way:
        sender, receiver, tag = min(under_way)
        raise WrongProgram(f"rank {sender} sends {tag} to {receiver}, which never receives it")
    return arrived


# ---- blocks

#: For every dimension, where a block begins and how long it is.
Region = Sequence[tuple[int, int]]


def verify_cover(regions: Sequence[Region], shape: Sequence[int]) -> None:
    """Raise `WrongProgram` unless blocks make up an array of a shape, every element once.

    >>> verify_cover([((0, 2),), ((2, 3),)], (5,))
    >>> verify_cover([((0, 3),), ((2, 3),)], (5,))
    Traceback (most recent call last):
    genesis.compiler.program.memory_plan.WrongProgram: blocks at (0,) and (2,) of (5,) overlap
    """
    blocks = [r for r in regions if all(length for _, length in r)]
    for r in blocks:
        if any(a < 0 or n < 0 or a + n > extent for (a, n), extent in zip(r, shape, strict=True)):
            raise WrongProgram(f"a block at {_corner(r)} lies outside of {tuple(shape)}")
    for r, other in combinations(blocks, 2):
        if all(a < b + m and b < a + n for (a, n), (b, m) in zip(r, other, strict=True)):
            both = f"{_corner(r)} and {_corner(other)}"
            raise WrongProgram(f"blocks at {both} of {tuple(shape)} overlap")
    if sum(prod(n for _, n in r) for r in blocks) != prod(shape):
        raise WrongProgram(f"blocks leave part of {tuple(shape)} out")


def _corner(region: Region) -> tuple[int, ...]:
    return tuple(start for start, _ in region)
