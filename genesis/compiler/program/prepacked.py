"""What a program keeps from run to run: work that depends only on inputs that stay the same.

A contraction packs its right-hand operand first. Where that is a weight, every run packs the same
numbers. So what a launch begins with, be it all of it, is noted when a program is assembled, with
what it reads and writes (`Early`). Whoever runs the program, and knows that some inputs have not
changed, has all that depends on nothing else run once: the temporaries written are kept, and later
runs go without.

Whether inputs have changed is for the caller to know; twice the same is what it takes to begin.
Programs that make the same of one input share it, where the caller says what the input is.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, WeakValueDictionary, ref

from genesis.backends.base import Executable, Launch, Memory, Record
from genesis.compiler.program.memory_plan import Temporary
from genesis.compiler.program.program import Early, Program
from genesis.ir.size import evaluate


class PreparedProgram(NamedTuple):
    """The rest of a program, and where the temporaries are that were written before.

    A run that has begun holds it, and so what it reads.
    """

    executable: Executable
    memory: tuple[tuple[int, Memory], ...]  # by frame slot
    elsewhere: frozenset[int]  # those slots, for which a run needs no memory


#: What is made of an input: the meaning, the numbers it is made with, and its bytes.
Form = tuple[str, tuple[int, ...], int]
#: What was made of an input, and is still kept by some program.
_shared: WeakKeyDictionary[Any, WeakValueDictionary[Form, Memory]] = WeakKeyDictionary()


class KeptValues:
    """What a program keeps for certain sizes; of its inputs, those in `steady` slots may stay."""

    def __init__(self, program: Program, sizes: Mapping[str, int], steady: Collection[int]) -> None:
        self._program, self._sizes = program, sizes
        known = set(steady)
        early: dict[int, Early] = {}  # of every record the most that is
        for e in program.early:  # in the order in which they run
            if known.issuperset(e.reads):
                early[e.record] = e
                known.update(e.writes)
        self._early = list(early.values())
        #: The slots of the inputs that all of it depends on.
        self.slots = sorted({slot for e in self._early for slot in e.reads} & set(steady))
        #: For whoever runs the program: what those inputs held in the run before.
        self.seen: list[ref[Any]] = []
        self._prepared: PreparedProgram | None = None

    @property
    def suits_all_sizes(self) -> bool:
        """Whether what is kept is the same for any sizes, so that all runs can share it."""
        sizes = self._program.sizes
        return all(isinstance(self._temporary(s).nbytes, int) for s in self._writes) and not any(
            slot in sizes for e in self._early for slot in e.numbers
        )

    def prepared(
        self, frame: array[int], unchanged: bool, inputs: Sequence[Any] = ()
    ) -> PreparedProgram | None:
        """What is left to run, given whether the inputs are those of the run before; None: all.

        `frame` has the pointers of the inputs; `inputs` are objects that stand for what those
        hold, and for nothing else as long as they live.
        """
        if not unchanged:
            self._prepared = None
        elif self._prepared is None:
            self._prepared = self._prepare(frame, inputs)
        return self._prepared

    @property
    def _writes(self) -> list[int]:
        return [slot for e in self._early for slot in e.writes]

    def _temporary(self, slot: int) -> Temporary:
        """The temporary in a slot of the frame."""
        return self._program.temporaries[slot - self._program.first_temporary]

    def _prepare(self, frame: array[int], inputs: Sequence[Any]) -> PreparedProgram:
        program, backend = self._program, self._program.backend
        frame = frame[:]
        memory: dict[int, Memory] = {}
        before: list[Record] = []
        rest: dict[int, Record] = dict(enumerate(program.records))
        missing: list[Early] = []
        again: dict[int, int] = {}  # slots that hold what another one does
        first: dict[tuple[int, Form], int] = {}
        for e in self._early:
            launch = rest[e.record]
            assert isinstance(launch, Launch)
            known, slot = self._known(e, frame, inputs), e.writes[0]
            made = (e.reads[0], self._form(e, frame)) if self._is_shared(e, inputs) else None
            if known is not None:
                memory[slot] = known
            elif made in first:
                again[slot] = first[made]
            else:
                missing.append(e)
                before.append(replace(launch, phases=(0, e.phases)))
                if made is not None:
                    first[made] = slot
            if e.phases < e.of:
                rest[e.record] = replace(launch, phases=(e.phases, e.of))
            else:
                del rest[e.record]
        slots = [slot for e in missing for slot in e.writes]
        nbytes = list(map(self._nbytes, slots))
        memory |= zip(slots, backend.allocate_many(nbytes), strict=True)
        memory |= {slot: memory[other] for slot, other in again.items()}
        for slot, block in memory.items():
            frame[slot] = block.pointer
        backend.assemble(before).run(frame)
        for e in missing:
            if self._is_shared(e, inputs):
                others = _shared.setdefault(inputs[e.reads[0]], WeakValueDictionary())
                others[self._form(e, frame)] = memory[e.writes[0]]
        executable = backend.assemble(list(rest.values()))
        return PreparedProgram(executable, tuple(memory.items()), frozenset(memory))

    def _known(self, e: Early, frame: array[int], inputs: Sequence[Any]) -> Memory | None:
        """What another program has made already."""
        others = _shared.get(inputs[e.reads[0]]) if self._is_shared(e, inputs) else None
        return None if others is None else others.get(self._form(e, frame))

    def _form(self, e: Early, frame: array[int]) -> Form:
        return e.meaning, tuple(frame[n] for n in e.numbers), self._nbytes(e.writes[0])

    def _is_shared(self, e: Early, inputs: Sequence[Any]) -> bool:
        """Whether other programs may want the same: something that is made of one input."""
        single = len(e.reads) == len(e.writes) == 1
        return single and bool(e.meaning) and e.reads[0] < len(inputs)

    def _nbytes(self, slot: int) -> int:
        return evaluate(self._temporary(slot).nbytes, self._sizes)
