"""`open_weights`: the parameters of a checkpoint by name, however they lie in its files.

A checkpoint is a folder with safetensors files, one such file, or a GGUF file. All are mapped, and
nothing is copied before it is read. Quantised matrices lie in several tensors (GPTQ, AWQ, MXFP4,
floats of 8 bits); here they are one parameter with the name it has in the model, ``x.weight``, with
the shape of the matrix and with `genesis.compress.Codes`, whichever method made them.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from genesis.compress import FORMATS, Codes, Format, Integer, Table
from genesis.compress.exchange import AWQ_ORDER
from genesis.ir.dtype import as_dtype
from genesis.serialization import BadFile, open_table, without_doubles
from genesis.weights.archives import open_hdf5, open_keras, open_npz
from genesis.weights.gguf import GGUFFile
from genesis.weights.gguf_types import e8m0
from genesis.weights.pickles import open_pickle

T = TypeVar("T")

_LONGEST_JSON = 100_000_000  # bytes
_INDEX, _SINGLE = "model.safetensors.index.json", "model.safetensors"
_FLOAT8 = ("float8_e4m3fn", "float8_e5m2")
_SCALES = ("float32", "bfloat16", "float16")


#: What reads all arrays of a file, by how its name ends.
_ARRAYS: dict[str, Callable[[Path], dict[str, Any]]] = {
    ".pt": open_pickle, ".pth": open_pickle, ".bin": open_pickle, ".npz": open_npz,
    ".h5": open_hdf5, ".hdf5": open_hdf5, ".keras": open_keras,
}  # fmt: skip


@dataclass(frozen=True)
class StoredParameter:
    """A parameter: what is known before it is read, and how it is read."""

    shape: tuple[int, ...]
    #: The name of an element type, or of a quantised format.
    dtype: str
    read: Callable[[], Any]
    #: What it is quantised in, the codes of some rows (counted over all dimensions but the last),
    #: and the order of the columns that they have.
    format: Format | None = None
    codes: Callable[[slice], Codes] | None = None
    order: Callable[[], Any] | None = None


class Weights:
    """The parameters of a checkpoint by name."""

    def __init__(
        self,
        stored: Mapping[str, StoredParameter],
        config: Mapping[str, Any],
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        self._stored = stored
        #: What stands in config.json.
        self.config = config
        #: The metadata of a GGUF file.
        self.metadata = metadata

    def __contains__(self, name: object) -> bool:
        return name in self._stored

    def __iter__(self) -> Iterator[str]:
        return iter(self._stored)

    def __len__(self) -> int:
        return len(self._stored)

    def names(self) -> list[str]:
        """The parameters."""
        return list(self._stored)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a parameter."""
        return self._stored[name].shape

    def dtype(self, name: str) -> str:
        """The element type of a parameter, or the format it is quantised in."""
        return self._stored[name].dtype

    def read(self, name: str) -> Any:
        """A parameter as a NumPy array: float32 if it is quantised, and else as it is stored."""
        return self._stored[name].read()

    def format(self, name: str) -> Format | None:
        """What a parameter is quantised in; None if it is not."""
        return self._stored[name].format

    def order(self, name: str) -> Any:
        """Which columns the codes of a quantised parameter belong to; None: they are in order."""
        order = self._stored[name].order
        return None if order is None else order()

    def codes(self, name: str, rows: slice = slice(None)) -> Codes:
        """The integers of a quantised parameter with their scales.

        Of some rows, if asked: they are counted over all dimensions but the last.
        """
        codes = self._stored[name].codes
        if codes is None:
            raise ValueError(f"codes: {name!r} is {self.dtype(name)}, and not quantised")
        return codes(rows)

    def read_linear(self, name: str) -> Any:
        """A matrix (rows, k) as float32."""
        if len(self.shape(name)) != 2:
            raise ValueError(f"read_linear: {name!r} of shape {self.shape(name)} is no matrix")
        return np.asarray(self.read(name), np.float32)


def open_weights(path: str | os.PathLike[str]) -> Weights:
    """The parameters in a folder or a file of any kind that is known: see the package."""
    place = Path(path)
    if place.is_dir():
        return _open_folder(place)
    if place.name.endswith(".index.json"):  # what one of several files is named by
        return _open_folder(place.parent)
    if place.suffix == ".gguf":
        return _open_gguf(place)
    if place.suffix in _ARRAYS:
        return Weights(_in_memory(_ARRAYS[place.suffix](place)), {})
    return Weights(_quantised(place, _tensors(place), {}), {})


def _in_memory(arrays: Mapping[str, Any]) -> dict[str, StoredParameter]:
    """Arrays that were read already."""
    return {
        name: StoredParameter(x.shape, as_dtype(x.dtype).name, partial(np.asarray, x))
        for name, x in arrays.items()
    }


def read_json(path: Path) -> dict[str, Any]:
    """The dictionary in a JSON file; there is none in a file that is not there."""
    if not path.exists():
        return {}
    if path.stat().st_size > _LONGEST_JSON:
        raise BadFile(f"open_weights: {path} is too long for what it should be")
    try:
        found = json.loads(path.read_bytes(), object_pairs_hook=without_doubles)
    except (ValueError, RecursionError) as error:
        raise BadFile(f"open_weights: {path} cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise BadFile(f"open_weights: {path} holds no dictionary")
    return found


# ---- files


def _open_folder(folder: Path) -> Weights:
    config = read_json(folder / "config.json")
    if (folder / _INDEX).exists():
        stored = _indexed(folder)
    elif (folder / _SINGLE).exists():
        stored = _tensors(folder / _SINGLE)
    else:
        files = sorted(f for end in ("safetensors", "gguf") for f in folder.glob(f"*.{end}"))
        pickles = sorted(folder.glob("pytorch_model*.bin"))
        if not files and pickles:
            return Weights(_in_memory(_joined(pickles)), config)
        if not files:
            raise FileNotFoundError(
                f"open_weights: {folder} has no safetensors, no GGUF file and no pytorch_model.bin"
            )
        if files[0].suffix == ".gguf":
            return _open_gguf(files[0])
        if len(files) > 1:
            raise BadFile(
                f"open_weights: {folder} has {len(files)} safetensors files and no {_INDEX}"
            )
        stored = _tensors(files[0])
    return Weights(_quantised(folder, stored, config), config)


def _joined(files: Sequence[Path]) -> dict[str, Any]:
    """The tensors of several files of PyTorch's."""
    found: dict[str, Any] = {}
    for file in files:
        arrays = open_pickle(file)
        twice = found.keys() & arrays.keys()
        if twice:
            raise BadFile(f"open_weights: {sorted(twice)[0]!r} is in {file.name} and another file")
        found |= arrays
    return found


def _indexed(folder: Path) -> dict[str, StoredParameter]:
    """The tensors of several files, each in the one that the index names."""
    index = folder / _INDEX
    places = read_json(index).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(x, str) for x in places.values()):
        raise BadFile(f"open_weights: {index} does not say which tensor is in which file")
    stored: dict[str, StoredParameter] = {}
    for shard in sorted(set(places.values())):
        if not re.fullmatch(r"[\w][\w.-]*\.safetensors", shard) or not (folder / shard).is_file():
            raise BadFile(f"open_weights: {index} names {shard!r}, which is no file of the folder")
        for name, tensor in _tensors(folder / shard).items():
            if places.get(name, shard) != shard:
                raise BadFile(
                    f"open_weights: {index}: {name!r} is in {shard}, not only in {places[name]}"
                )
            stored[name] = tensor
    if missing := places.keys() - stored.keys():
        name = min(missing)
        raise BadFile(f"open_weights: {index}: {name!r} is not in {places[name]}")
    return {name: stored[name] for name in places}


def _tensors(path: Path) -> dict[str, StoredParameter]:
    """The tensors of a safetensors file."""
    _, table, mapped = open_table(os.fspath(path))
    return {
        name: StoredParameter(tuple(entry.shape), entry.dtype.name, partial(entry.contents, mapped))
        for name, entry in table.items()
    }


def _open_gguf(path: Path) -> Weights:
    """The tensors of a GGUF file, and of those it was split into."""
    first = GGUFFile(path)
    count = first.metadata.get("split.count", 1)
    files = [first]
    if count not in (0, 1):
        found = re.fullmatch(r"(.+)-00001-of-(\d{5})\.gguf", path.name)
        if found is None or count != int(found[2]):
            raise BadFile(f"open_weights: {path} is one of {count!r} files, and not called so")
        others = (f"{found[1]}-{k:05}-of-{found[2]}.gguf" for k in range(2, count + 1))
        files += [GGUFFile(path.with_name(name)) for name in others]
    stored: dict[str, StoredParameter] = {}
    for file in files:
        for name, info in file.tensors.items():
            if name in stored:
                raise BadFile(f"open_weights: {file.path}: {name!r} is in another file, too")
            dtype = info.format.name if info.format.dtype is None else info.format.dtype.name
            quantised = info.format.unpack is not None
            more = (info.format.numbers, partial(file.codes, name)) if quantised else ()
            stored[name] = StoredParameter(info.shape, dtype, partial(file.read, name), *more)
    return Weights(stored, {}, first.metadata)


# ---- quantised matrices in several tensors


class _Matrix(NamedTuple):
    """A quantised matrix that was found."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    format: Format
    codes: Callable[[slice], Codes]
    order: Callable[[], Any] | None = None


_Reader = Callable[[dict[str, StoredParameter], str, Mapping[str, Any]], _Matrix]


def _quantised(
    place: Path, stored: dict[str, StoredParameter], config: Mapping[str, Any]
) -> dict[str, StoredParameter]:
    """The parameters that tensors stand for."""
    said = config.get("quantization_config") or read_json(place / "quantize_config.json")
    if not said:
        return stored
    method = said.get("quant_method", "gptq") if isinstance(said, dict) else None
    if method not in list(_METHODS):
        raise BadFile(f"open_weights: {place} is quantised by {method!r}, which is not read")
    result = dict(stored)
    for suffix, reader in _METHODS[method].items():
        for name in stored:
            if name.endswith(suffix) and name in result:
                base = name.removesuffix(suffix)
                where = f"{place}: {base!r}, quantised by {method}"
                matrix = _checked(where, partial(reader, result, base, said))
                result[matrix.name] = _stored(matrix, where)
    if result.keys() == stored.keys() and not any(x.format for x in result.values()):
        raise BadFile(f"open_weights: {place} says it is quantised by {method}, and nothing is")
    return result


def _checked(where: str, step: Callable[[], T]) -> T:
    try:
        return step()
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise BadFile(f"open_weights: {where}: {error}") from None


def _stored(matrix: _Matrix, where: str) -> StoredParameter:
    def codes(rows: slice) -> Codes:
        return _checked(where, partial(matrix.codes, rows))

    def read() -> Any:
        return codes(slice(None)).decode().reshape(matrix.shape)

    order = None if matrix.order is None else partial(_checked, where, matrix.order)
    return StoredParameter(matrix.shape, matrix.dtype, read, matrix.format, codes, order)


def _require(*facts: bool) -> None:
    if not all(facts):
        raise ValueError("its tensors do not fit each other")


def _take(
    tensors: dict[str, StoredParameter], base: str, names: str, optional: str = ""
) -> dict[str, StoredParameter]:
    """The tensors that are a matrix, which are no parameters themselves."""
    taken = {name: tensors.pop(f"{base}.{name}") for name in names.split()}
    for name in optional.split():
        if f"{base}.{name}" in tensors:
            taken[name] = tensors.pop(f"{base}.{name}")
    return taken


def _group(said: Mapping[str, Any], k: int) -> int:
    group = said.get("group_size", said.get("q_group_size", 128))
    _require(type(group) is int, group == -1 or group > 0)
    return max(1, k if group == -1 else min(group, k))


def _gptq(tensors: dict[str, StoredParameter], base: str, said: Mapping[str, Any]) -> _Matrix:
    bits, own = said.get("bits", 4), _take(tensors, base, "qweight qzeros scales", "g_idx")
    _require(bits in (2, 3, 4, 8), own["qweight"].dtype == own["qzeros"].dtype == "int32")
    words, n = own["qweight"].shape
    k = words * 32 // bits
    group = _group(said, k)
    groups = -(-k // group)
    _require(own["scales"].shape == (groups, n), own["qzeros"].shape == (groups, n * bits // 32))
    _require("g_idx" not in own or own["g_idx"].shape == (k,))
    # The first version of the format holds the zeros less one, and 0 as all ones.
    later = 0 if said.get("checkpoint_format") == "gptq_v2" else 1
    format = _integers("gptq", bits, group, own["scales"])

    def order() -> Any:
        return _order(own["g_idx"].read(), group) if "g_idx" in own else None

    def codes(rows: slice) -> Codes:
        integers, places = _unpacked(own["qweight"].read().T[rows], bits), order()
        zero = (_unpacked(own["qzeros"].read(), bits).T[rows] + later) & ((1 << bits) - 1)
        integers = integers if places is None else np.take(integers, places, 1)
        scale = np.ascontiguousarray(own["scales"].read().T[rows])
        return Codes(format, integers, scale, np.ascontiguousarray(zero), order=places)

    return _Matrix(f"{base}.weight", (n, k), "gptq", format, codes, order)


def _integers(name: str, bits: int, group: int, scales: StoredParameter) -> Format:
    """Integers with a zero in every group."""
    _require(scales.dtype in _SCALES)
    return Format(name, Integer(bits), group, scales.dtype, zero=bits)


def _order(groups: Any, group: int) -> Any:
    """The columns in the order of their groups, or None if that is their own order."""
    wanted = np.arange(len(groups)) // group
    if (groups == wanted).all():
        return None
    order = np.argsort(groups, kind="stable")
    if (groups[order] != wanted).any():
        raise ValueError("columns are in groups (g_idx) that do not exist")
    return order


def _awq(tensors: dict[str, StoredParameter], base: str, said: Mapping[str, Any]) -> _Matrix:
    own = _take(tensors, base, "qweight qzeros scales")
    _require(said.get("bits", said.get("w_bit", 4)) == 4, own["qweight"].dtype == "int32")
    _require(str(said.get("version", "gemm")).lower() == "gemm", own["qzeros"].dtype == "int32")
    k, words = own["qweight"].shape
    n, group = words * 8, _group(said, k)
    groups = -(-k // group)
    _require(own["scales"].shape == (groups, n), own["qzeros"].shape == (groups, words))

    format = _integers("awq", 4, group, own["scales"])

    def codes(rows: slice) -> Codes:
        scale = np.ascontiguousarray(own["scales"].read().T[rows])
        integers, zero = (_deinterleaved(own[x].read(), rows) for x in ("qweight", "qzeros"))
        return Codes(format, integers, scale, zero)

    return _Matrix(f"{base}.weight", (n, k), "awq", format, codes)


def _deinterleaved(words: Any, rows: slice) -> Any:
    """Some of the columns of AWQ's words, as rows."""
    begin, end, _ = rows.indices(words.shape[1] * 8)
    words = words[:, begin // 8 : -(-end // 8)]
    codes = _unpacked(words, 4).reshape(len(words), -1, 8)[:, :, np.argsort(AWQ_ORDER)]
    codes = codes.reshape(len(words), -1)[:, begin % 8 : begin % 8 + max(0, end - begin)]
    return np.ascontiguousarray(codes.T)


def _unpacked(words: Any, bits: int) -> Any:
    """Integers of few bits that lie in 32-bit words, the first in the lowest bits."""
    octets = np.ascontiguousarray(words).view(np.uint8)
    if 8 % bits == 0:
        shifts = np.arange(0, 8, bits, dtype=np.uint8)
        return (octets[..., None] >> shifts & np.uint8((1 << bits) - 1)).reshape(len(words), -1)
    ones = np.unpackbits(octets, axis=1, bitorder="little").reshape(len(words), -1, bits)
    return np.packbits(ones, axis=2, bitorder="little")[..., 0]


def _scaled(scale_name: str) -> _Reader:
    """Matrices of bytes with a scale for all, for a row, or for a block of rows and columns."""

    def reader(tensors: dict[str, StoredParameter], base: str, said: Mapping[str, Any]) -> _Matrix:
        own = _take(tensors, base, f"weight {scale_name}")
        weight, scale = own["weight"], own[scale_name]
        n, k = weight.shape
        rows, group = _block(scale.shape, n, k, said)
        _require(weight.dtype in (*_FLOAT8, "int8"), scale.dtype in _SCALES)

        format = replace(FORMATS[weight.dtype], group=group, scale=scale.dtype)

        def codes(some: slice) -> Codes:
            values = np.asarray(scale.read())
            values = values.reshape(-1, values.shape[-1] if values.ndim == 2 else 1)
            bytes_ = weight.read()[some].view(np.uint8)
            flipped = bytes_ ^ np.uint8(128 * (weight.dtype == "int8"))
            return Codes(format, flipped, np.repeat(values, rows, axis=0)[:n][some])

        return _Matrix(f"{base}.weight", (n, k), weight.dtype, format, codes)

    return reader


def _block(shape: tuple[int, ...], n: int, k: int, said: Mapping[str, Any]) -> tuple[int, int]:
    """How many rows and columns share a scale."""
    if shape in ((), (1,), (1, 1)):
        return n, k
    if shape in ((n,), (n, 1)):
        return 1, k
    rows, columns = said.get("weight_block_size") or (128, 128)
    _require(type(rows) is int, type(columns) is int, rows > 0, columns > 0)
    _require(shape == (-(-n // rows), -(-k // columns)))
    return min(rows, n), min(columns, k)


def _mxfp4(tensors: dict[str, StoredParameter], base: str, said: Mapping[str, Any]) -> _Matrix:
    blocks, scales = tensors.pop(f"{base}_blocks"), tensors.pop(f"{base}_scales")
    _require(blocks.dtype == scales.dtype == "uint8", len(blocks.shape) >= 2)
    _require(blocks.shape[:-1] == scales.shape, blocks.shape[-1] == 16)
    shape, format = (*scales.shape[:-1], scales.shape[-1] * 32), FORMATS["MXFP4"]

    def codes(rows: slice) -> Codes:
        groups = scales.read().reshape(math.prod(shape[:-1]), scales.shape[-1])[rows]
        words = blocks.read().reshape(-1, groups.shape[1] * 16)[rows]
        return Codes(format, _unpacked(words, 4), e8m0(groups))

    return _Matrix(base, shape, "mxfp4", format, codes)


def _packed_tensors(
    tensors: dict[str, StoredParameter], base: str, said: Mapping[str, Any]
) -> _Matrix:
    """Matrices of compressed-tensors: integers in words, or floats of 4 bits in bytes."""
    more = "weight_zero_point weight_global_scale weight_shape weight_g_idx input_global_scale"
    own = _take(tensors, base, "weight_packed weight_scale", more)
    packed, scale = own["weight_packed"], own["weight_scale"]
    _require(len(packed.shape) == 2, len(scale.shape) == 2, scale.shape[0] in (1, packed.shape[0]))
    if packed.dtype == "uint8":
        return _packed_floats(base, own)
    n = packed.shape[0]
    shape = own["weight_shape"].read().tolist() if "weight_shape" in own else [n, 0]
    _require(packed.dtype == "int32", len(shape) == 2, shape[0] == n, 0 < shape[1] < 1 << 40)
    k, words = shape[1], packed.shape[1]
    fitting = [b for b in _said_bits(said) if -(-k * b // 32) == words]
    _require(len(fitting) == 1, scale.dtype in _SCALES)
    bits, groups = fitting[0], scale.shape[1]
    group = -(-k // groups)
    sizes = {g["weights"].get("group_size") for g in said["config_groups"].values()}
    _require(groups == 1 or not sizes - {None, -1} or group in sizes)
    _require(group * (groups - 1) < k, "weight_g_idx" not in own, scale.shape[0] == n)
    zeros, half = own.get("weight_zero_point"), 1 << bits - 1
    _require(zeros is None or zeros.shape == (-(-n * bits // 32), groups))
    element = Integer(bits) if zeros is not None else Integer(bits, half)
    format = Format("compressed-tensors", element, group, scale.dtype, zero=bits * bool(zeros))

    def codes(rows: slice) -> Codes:
        integers = _unpacked(packed.read()[rows], bits)[:, :k]
        steps = np.ascontiguousarray(scale.read()[rows])
        if zeros is None:
            return Codes(format, integers, steps)
        own_zeros = _unpacked(np.ascontiguousarray(zeros.read().T), bits)[:, :n].T[rows]
        return Codes(format, integers, steps, np.ascontiguousarray(own_zeros))

    return _Matrix(f"{base}.weight", (n, k), "compressed-tensors", format, codes)


def _said_bits(said: Mapping[str, Any]) -> set[int]:
    """The bits that a configuration of compressed-tensors names for weights."""
    found = {group["weights"]["num_bits"] for group in said["config_groups"].values()}
    _require(all(type(b) is int and 1 <= b <= 8 for b in found))
    return found


def _packed_floats(base: str, own: dict[str, StoredParameter]) -> _Matrix:
    """Floats of 4 bits with scales of 8 bits and one for all (NVFP4), or powers of two (MXFP4)."""
    packed, scale = own["weight_packed"], own["weight_scale"]
    (n, half), groups = packed.shape, scale.shape[1]
    k, whole = 2 * half, own.get("weight_global_scale")
    standard = FORMATS["MXFP4" if whole is None else "NVFP4"]
    _require(groups * standard.group == k, scale.shape[0] == n)
    _require(scale.dtype == ("uint8" if whole is None else "float8_e4m3fn"))
    format = standard.fitted(k)

    def codes(rows: slice) -> Codes:
        elements, bytes_ = _unpacked(packed.read()[rows], 4), scale.read()[rows]
        if whole is None:
            return Codes(format, elements, e8m0(bytes_))
        assert isinstance(format.scale, Format)
        unit = np.float32(1) / np.asarray(whole.read(), np.float32).reshape(-1)[0]
        units = np.full((len(elements), 1), unit, np.float32)
        inner = Codes(format.scale, np.ascontiguousarray(bytes_).view(np.uint8), units)
        return Codes(format, elements, inner)

    name = "mxfp4" if whole is None else "nvfp4"
    return _Matrix(f"{base}.weight", (n, k), name, format, codes)


def _bitsandbytes(kind: str) -> _Reader:
    """Matrices of bitsandbytes in 4 bits: a table, blocks that run on from row to row."""

    def reader(tensors: dict[str, StoredParameter], base: str, said: Mapping[str, Any]) -> _Matrix:
        state = f"quant_state.bitsandbytes__{kind}"
        own = _take(tensors, base, f"absmax quant_map {state}", "nested_absmax nested_quant_map")
        packed, absmax = tensors.pop(base), own["absmax"]
        facts = json.loads(
            np.asarray(own[state].read()).tobytes(), object_pairs_hook=without_doubles
        )
        (n, k), block = facts["shape"], facts["blocksize"]
        _require(all(type(x) is int and 0 < x < 1 << 40 for x in (n, k, block)))
        _require(packed.dtype == "uint8", math.prod(packed.shape) == -(-n * k // 2))
        _require(own["quant_map"].shape == (16,), absmax.shape == (-(-n * k // block),))
        values = tuple(float(x) for x in own["quant_map"].read())
        group = math.gcd(k, block)
        format = Format(kind, Table(values), group, "float32")
        nested = "nested_absmax" in own
        if nested:
            few, offset = facts["nested_blocksize"], facts["nested_offset"]
            _require(type(few) is int, few > 0, isinstance(offset, float | int))
            _require(own["nested_absmax"].shape == (-(-absmax.shape[0] // few),))
            _require(absmax.dtype == "uint8", own["nested_quant_map"].shape == (256,))

        def peaks() -> Any:
            found = absmax.read()
            if not nested:
                return np.asarray(found, np.float32)
            scales = np.repeat(own["nested_absmax"].read(), few)[: len(found)]
            return own["nested_quant_map"].read()[found] * scales + np.float32(offset)

        def codes(rows: slice) -> Codes:
            some = range(n)[rows]
            begin, end = some.start * k, some.stop * k
            bytes_ = packed.read().reshape(-1)[begin // 2 : -(-end // 2)]
            both = np.stack([bytes_ >> 4, bytes_ & 15], 1).reshape(-1)
            elements = both[begin % 2 : begin % 2 + end - begin].reshape(len(some), k)
            first = np.arange(begin, end, group).reshape(len(some), k // group)
            return Codes(format, elements, peaks()[first // block])

        return _Matrix(base, (n, k), f"bitsandbytes {kind}", format, codes)

    return reader


def _bytes_by_rows(
    tensors: dict[str, StoredParameter], base: str, said: Mapping[str, Any]
) -> _Matrix:
    """Matrices of bitsandbytes in 8 bits: 127 stands for the greatest of a row."""
    own = _take(tensors, base, "weight SCB", "weight_format")
    weight, peaks = own["weight"], own["SCB"]
    _require(weight.dtype == "int8", len(weight.shape) == 2, peaks.shape == weight.shape[:1])
    n, k = weight.shape
    format = replace(FORMATS["int8"], group=k, scale="float32")

    def codes(rows: slice) -> Codes:
        scale = np.asarray(peaks.read()[rows], np.float32)[:, None] / np.float32(127)
        return Codes(format, weight.read()[rows].view(np.uint8) ^ np.uint8(128), scale)

    return _Matrix(f"{base}.weight", (n, k), "bitsandbytes int8", format, codes)


#: For each method, by the end of a tensor's name, what makes a parameter of it and its relatives.
_FLOATS = {f".{name}": _scaled(name) for name in ("weight_scale_inv", "weight_scale")}
_METHODS: dict[str, dict[str, _Reader]] = {
    "gptq": {".qweight": _gptq},
    "awq": {".qweight": _awq},
    "mxfp4": {"_blocks": _mxfp4},
    "fp8": _FLOATS,
    "fbgemm_fp8": _FLOATS,
    "compressed-tensors": {".weight_packed": _packed_tensors, **_FLOATS},
    "bitsandbytes": {
        **{f".quant_state.bitsandbytes__{kind}": _bitsandbytes(kind) for kind in ("nf4", "fp4")},
        ".SCB": _bytes_by_rows,
    },
    "modelopt": _FLOATS,
}

__all__ = ["StoredParameter", "Weights", "open_weights", "read_json"]
