"""Checkpoints of PyTorch: `.pt`, `.pth` and `.bin` files, read without executing anything.

Such a file is a zip archive with a pickle and the bytes of the tensors; before PyTorch 1.6 it was a
row of pickles, and the bytes behind them. A pickle is a program for a stack machine whose
instructions can call any function; so Python's own reader is not used. The one here knows the
instructions that data needs, and a fixed list of what may be called: what rebuilds a tensor from
its storage, and `OrderedDict`. Everything else is refused by its name. Memory is bounded by the
file: a tensor is a view of the bytes that are there, mapped where it is an archive.
"""

from __future__ import annotations

import math
import pickletools
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from genesis.ir import dtype as dtypes
from genesis.serialization import BadFile

_LONGEST_PICKLE = 200_000_000  # bytes
_MOST_ITEMS = 10_000_000

_STORAGES = {
    "FloatStorage": dtypes.float32, "DoubleStorage": dtypes.float64, "HalfStorage": dtypes.float16,
    "BFloat16Storage": dtypes.bfloat16, "LongStorage": dtypes.int64, "IntStorage": dtypes.int32,
    "ShortStorage": dtypes.int16, "CharStorage": dtypes.int8, "ByteStorage": dtypes.uint8,
    "BoolStorage": dtypes.bool_, "ComplexFloatStorage": dtypes.complex64,
    "ComplexDoubleStorage": dtypes.complex128, "UntypedStorage": dtypes.uint8,
}  # fmt: skip
#: How a file from before PyTorch 1.6 begins: a pickle of this number.
_OLD_START = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."
_ENTRY = struct.Struct("<26xHH")  # before the bytes of an entry of a zip archive


#: What the library for zip archives raises when one is damaged.
_DAMAGE = (
    zipfile.BadZipFile, EOFError, RuntimeError, ValueError, KeyError, struct.error, zlib.error,
    OverflowError, NotImplementedError, OSError,
)  # fmt: skip


class PickledStorage(NamedTuple):
    """The bytes that tensors lie in."""

    dtype: dtypes.DType
    contents: Any


class _Named(NamedTuple):
    """A global that a pickle names; it stands for itself, and nothing is imported."""

    module: str
    name: str


def open_pickle(path: Path) -> dict[str, Any]:
    """The tensors of a checkpoint by name, as NumPy arrays on the file's bytes."""
    with open(path, "rb") as file:
        try:
            if file.read(len(_OLD_START)) == _OLD_START:
                return _named(_read_old(path), path)
            with zipfile.ZipFile(file) as archive:
                return _named(_read(archive, path), path)
        except (BadFile, FileNotFoundError, PermissionError):
            raise
        except _DAMAGE as error:
            raise BadFile(f"{path} is no checkpoint of torch.save: {error}") from None


def _mapped(path: Path) -> Any:
    """The bytes of a file."""
    return np.memmap(path, np.uint8, "r") if path.stat().st_size else np.zeros(0, np.uint8)


def _read(archive: zipfile.ZipFile, path: Path) -> Any:
    entries = [i for i in archive.infolist() if i.filename.endswith("data.pkl")]
    if len(entries) != 1 or entries[0].file_size > _LONGEST_PICKLE:
        raise BadFile(f"{path} is no checkpoint of torch.save: it has no data.pkl")
    folder = entries[0].filename.removesuffix("data.pkl")
    mapped = _mapped(path)

    def storage(key: str, dtype: dtypes.DType, count: int) -> PickledStorage:
        found = archive.getinfo(f"{folder}data/{key}")
        if found.compress_type != zipfile.ZIP_STORED:
            raise BadFile(
                f"{path}: the storage {key!r} is compressed, which torch.save does not do"
            )
        head = mapped[found.header_offset : found.header_offset + _ENTRY.size].tobytes()
        lengths = _ENTRY.unpack(head)  # of the name, and of what is said besides
        begin = found.header_offset + _ENTRY.size + sum(lengths)
        contents = mapped[begin : begin + found.file_size]
        if len(contents) < count * dtype.itemsize:
            raise BadFile(f"{path}: the storage {key!r} has {len(contents)} bytes, too few")
        if zlib.crc32(contents) != found.CRC:
            raise BadFile(f"{path}: the storage {key!r} is damaged")
        return PickledStorage(dtype, contents)

    return _Machine(archive.read(entries[0]), path, storage).run()


def _read_old(path: Path) -> Any:
    """What a file from before PyTorch 1.6 holds: pickles, then the storages in their order.

    The pickles are a number that says what it is, a version, sizes of the machine, what was saved,
    and the keys of the storages; each storage says how many elements it has.
    """
    mapped = _mapped(path)
    wanted: dict[str, tuple[dtypes.DType, PickledStorage]] = {}
    at, parts = 0, []

    def storage(key: str, dtype: dtypes.DType, count: int) -> PickledStorage:
        # Tensors are made before the bytes are found: they are given a place to be filled.
        known = sum(len(found.contents) for _, found in wanted.values())
        if not 0 <= count * dtype.itemsize <= len(mapped) - known:
            raise BadFile(f"{path}: the storage {key!r} of {count} elements does not fit into it")
        wanted[key] = dtype, PickledStorage(dtype, np.zeros(count * dtype.itemsize, np.uint8))
        return wanted[key][1]

    for _ in range(5):
        machine = _Machine(mapped[at : at + _LONGEST_PICKLE].tobytes(), path, storage)
        parts.append(machine.run())
        at += machine.length
    if not isinstance(parts[4], list) or {*map(str, parts[4])} != wanted.keys():
        raise BadFile(f"{path}: its storages are others than its tensors need")
    for key in map(str, parts[4]):
        dtype, (_, contents) = wanted[key]
        (count,) = np.frombuffer(mapped[at : at + 8].tobytes(), "<i8")
        found = mapped[at + 8 : at + 8 + len(contents)]
        if count * dtype.itemsize != len(contents) or len(found) != len(contents):
            raise BadFile(f"{path}: the storage {key!r} has {count} elements, or is cut off")
        contents[:] = found
        at += 8 + len(contents)
    return parts[3]


class _Machine:
    """Executes the instructions of a pickle that data is made of."""

    def __init__(
        self,
        program: bytes,
        path: Path,
        storage: Callable[[str, dtypes.DType, int], PickledStorage],
    ) -> None:
        self.program, self.path, self._open = program, path, storage
        self.stack: list[Any] = []
        self.marks: list[list[Any]] = []
        self.memo: dict[int, Any] = {}
        self._storages: dict[str, PickledStorage] = {}
        self.length = 0  #: how many bytes the pickle has, when it has run

    def fail(self, text: str) -> BadFile:
        """The exception for a pickle that does more than hold tensors."""
        return BadFile(
            f"{self.path}: its pickle {text}; only tensors and plain data are read: save a "
            "state_dict"
        )

    def run(self) -> Any:
        """What the pickle describes."""
        try:
            for count, (opcode, argument, at) in enumerate(pickletools.genops(self.program)):
                if count > _MOST_ITEMS:
                    raise self.fail("is too long")
                if opcode.name == "STOP":
                    self.length = (at or 0) + 1
                    return self.stack.pop()
                self._step(opcode.name, argument)
        except BadFile:
            raise
        except (
            ValueError,
            IndexError,
            KeyError,
            TypeError,
            AttributeError,
            OverflowError,
        ) as error:
            raise BadFile(f"{self.path}: its pickle is damaged: {error}") from None
        raise BadFile(f"{self.path}: its pickle has no end")

    def _step(self, name: str, argument: Any) -> None:
        if name in _PUSHED:
            self.stack.append(argument)
        elif name in _CONSTANTS:
            self.stack.append(_CONSTANTS[name]())
        elif name in _IGNORED:
            pass
        else:
            method = getattr(self, f"_{name.lower()}", None)
            if method is None:
                raise self.fail(f"has the instruction {name}")
            method(argument)

    def _popped(self) -> list[Any]:
        items, self.stack = self.stack, self.marks.pop()
        return items

    def _mark(self, _: Any) -> None:
        self.marks.append(self.stack)
        self.stack = []

    def _pop(self, _: Any) -> None:
        self.stack.pop()

    def _tuple(self, _: Any) -> None:
        items = tuple(self._popped())
        self.stack.append(items)

    def _tuple1(self, _: Any) -> None:
        self._last(1)

    def _tuple2(self, _: Any) -> None:
        self._last(2)

    def _tuple3(self, _: Any) -> None:
        self._last(3)

    def _last(self, count: int) -> None:
        self.stack[-count:] = [tuple(self.stack[-count:])]

    def _list(self, _: Any) -> None:
        items = self._popped()
        self.stack.append(items)

    def _append(self, _: Any) -> None:
        item = self.stack.pop()
        _expect(self.stack[-1], list).append(item)

    def _appends(self, _: Any) -> None:
        items = self._popped()
        _expect(self.stack[-1], list).extend(items)

    def _setitem(self, _: Any) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        _expect(self.stack[-1], dict)[key] = value

    def _setitems(self, _: Any) -> None:
        items = self._popped()
        _expect(self.stack[-1], dict).update(zip(items[::2], items[1::2], strict=True))

    def _additems(self, _: Any) -> None:
        items = self._popped()
        _expect(self.stack[-1], set).update(items)

    def _memoize(self, _: Any) -> None:
        self.memo[len(self.memo)] = self.stack[-1]

    def _binput(self, where: int) -> None:
        self.memo[where] = self.stack[-1]

    _long_binput = _put = _binput

    def _binget(self, where: int) -> None:
        self.stack.append(self.memo[where])

    _long_binget = _get = _binget

    def _global(self, named: str) -> None:
        module, _, name = named.partition(" ")
        self.stack.append(_Named(module, name))

    def _stack_global(self, _: Any) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        self.stack.append(_Named(str(module), str(name)))

    def _binpersid(self, _: Any) -> None:
        match self.stack.pop():
            case (
                "storage",
                _Named("torch" | "torch.storage", kind),
                str(key),
                _,
                int(count),
                *rest,
            ) if kind in _STORAGES and not any(rest):
                if key not in self._storages:
                    self._storages[key] = self._open(key, _STORAGES[kind], count)
                self.stack.append(self._storages[key])
            case other:
                raise self.fail(f"refers to {other!r:.80}")

    def _reduce(self, _: Any) -> None:
        arguments, function = self.stack.pop(), self.stack.pop()
        known = _CALLS.get(function) if isinstance(function, _Named) else None
        if known is None:
            name = ".".join(function) if isinstance(function, _Named) else repr(function)[:80]
            raise self.fail(f"calls {name}")
        self.stack.append(known(*arguments))

    def _newobj(self, _: Any) -> None:
        _, kind = self.stack.pop(), self.stack.pop()
        if kind != _Named("argparse", "Namespace"):  # what a training was started with
            name = ".".join(kind) if isinstance(kind, _Named) else repr(kind)[:80]
            raise self.fail(f"makes a {name}")
        self.stack.append(None)

    def _build(self, _: Any) -> None:
        state = self.stack.pop()  # attributes of an ordered dictionary, which nobody needs
        plain = isinstance(self.stack[-1], dict) and isinstance(state, dict)
        if not plain and self.stack[-1] is not None:
            raise self.fail("sets the state of an object")


def _expect(x: Any, kind: type) -> Any:
    if type(x) is not kind:
        raise TypeError(f"a {kind.__name__} was expected")
    return x


_PUSHED = frozenset(
    ("BININT", "BININT1", "BININT2", "LONG1", "LONG4", "INT", "LONG", "BINFLOAT", "FLOAT",
     "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "UNICODE", "BINBYTES", "SHORT_BINBYTES",
     "BINBYTES8", "SHORT_BINSTRING", "BINSTRING", "STRING")
)  # fmt: skip
_CONSTANTS: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None, "NEWTRUE": lambda: True, "NEWFALSE": lambda: False, "EMPTY_DICT": dict,
    "EMPTY_LIST": list, "EMPTY_TUPLE": tuple, "EMPTY_SET": set,
}  # fmt: skip
_IGNORED = frozenset(("PROTO", "FRAME"))


def _tensor(storage: Any, offset: int, shape: Any, strides: Any, *_: Any) -> Any:
    """A tensor on its storage, as PyTorch describes it."""
    if not isinstance(storage, PickledStorage):
        raise ValueError("a tensor without storage")
    sizes, steps = [int(n) for n in shape], [int(n) for n in strides]
    if len(sizes) != len(steps) or min((*sizes, *steps, offset), default=0) < 0 or len(sizes) > 64:
        raise ValueError(f"a tensor of shape {sizes} with strides {steps}")
    item = storage.dtype.itemsize
    last = offset + sum((n - 1) * s for n, s in zip(sizes, steps, strict=True))
    empty = math.prod(sizes) == 0
    if not empty and (last + 1) * item > len(storage.contents):
        raise ValueError(f"a tensor of shape {sizes} reaches beyond its storage")
    if not empty and math.prod(sizes) * item > max(len(storage.contents), 1) * 16:
        raise ValueError(f"a tensor of shape {sizes} that repeats a few elements")
    flat = storage.contents[: len(storage.contents) // item * item].view(storage.dtype.numpy)
    if empty:
        return np.zeros(sizes, storage.dtype.numpy)
    return np.lib.stride_tricks.as_strided(
        flat[offset:], sizes, [s * item for s in steps], writeable=False
    )


def _typed(
    storage: Any, offset: int, shape: Any, strides: Any, grad: Any, hooks: Any, dtype: Any, *_: Any
) -> Any:
    """A tensor of a type that has no storage of its own: 8-bit floats, and unsigned integers."""
    if not isinstance(storage, PickledStorage) or not isinstance(dtype, _Named):
        raise ValueError("a tensor without storage, or without a type")
    return _tensor(
        PickledStorage(dtypes.as_dtype(dtype.name), storage.contents), offset, shape, strides
    )


_CALLS: dict[_Named, Callable[..., Any]] = {
    _Named("collections", "OrderedDict"): lambda *items: dict(*items),
    _Named("torch._utils", "_rebuild_tensor"): _tensor,
    _Named("torch._utils", "_rebuild_tensor_v2"): _tensor,
    _Named("torch._utils", "_rebuild_tensor_v3"): _typed,
    _Named("torch._utils", "_rebuild_parameter"): lambda tensor, *_: tensor,
    _Named("torch", "Size"): lambda sizes: tuple(sizes),
    # What trainings keep beside tensors, and no weight: nothing is made of it.
    _Named("torch", "device"): lambda *_: None,
    _Named("_codecs", "encode"): lambda *_: None,
    _Named("numpy", "dtype"): lambda *_: None,
    _Named("numpy.core.multiarray", "scalar"): lambda *_: None,
    _Named("numpy._core.multiarray", "scalar"): lambda *_: None,
    _Named("collections", "defaultdict"): lambda *_: {},
}


def _named(found: Any, path: Path) -> dict[str, Any]:
    """The tensors of nested dictionaries and lists, by names joined with dots."""
    tensors: dict[str, Any] = {}
    stack: list[tuple[str, Any, int]] = [("", found, 0)]
    while stack:
        name, x, depth = stack.pop()
        if depth > 64:
            raise BadFile(f"{path}: its contents are nested too deep")
        prefix = f"{name}." if name else ""
        if isinstance(x, np.ndarray):
            tensors[name or "tensor"] = x
        elif isinstance(x, dict):
            stack += [(f"{prefix}{k}", v, depth + 1) for k, v in reversed(x.items())]
        elif isinstance(x, list | tuple):
            stack += [(f"{prefix}{k}", v, depth + 1) for k, v in reversed(list(enumerate(x)))]
        if len(stack) + len(tensors) > _MOST_ITEMS:
            raise BadFile(f"{path}: it has too many parts")
    return _without_wrapper(tensors)


def _without_wrapper(tensors: dict[str, Any]) -> dict[str, Any]:
    """Names without the one dictionary that trainings put a model's state into."""
    for wrapper in ("state_dict.", "model_state_dict.", "model."):
        if tensors and all(name.startswith(wrapper) for name in tensors):
            return {name.removeprefix(wrapper): x for name, x in tensors.items()}
    return tensors
