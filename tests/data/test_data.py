"""Datasets, samplers and collation, against PyTorch's and against slow obvious versions."""

import collections
import io
import json
import tarfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch.utils.data as theirs

import genesis
from genesis import data as ours
from genesis.data import augment
from genesis.serialization import BadFile


class Squares(ours.Dataset[Any]):
    """Samples of several kinds, with random numbers in them."""

    def __len__(self) -> int:
        return 23

    def __getitem__(self, index: int) -> Any:
        noise = np.random.random(3).astype(np.float32)
        return {"x": noise + index, "y": index, "name": f"n{index}", "pair": (index / 2, noise[:1])}


class Pair(NamedTuple):
    x: Any
    y: Any


def plain(x: Any) -> Any:
    """A batch of either library as lists."""
    if isinstance(x, dict):
        return {k: plain(v) for k, v in x.items()}
    if isinstance(x, list | tuple):
        return [plain(v) for v in x]
    return (str(x.dtype).removeprefix("torch."), x.tolist()) if hasattr(x, "tolist") else x


SAMPLES: list[list[Any]] = [
    [1, 2, 3],
    [1.5, 2.5],
    [True, False],
    [np.float32(1), np.float32(2)],
    [np.arange(3, dtype=np.int16), np.arange(3, dtype=np.int16)],
    [np.zeros((0, 2)), np.zeros((0, 2))],
    ["a", "b"],
    [(1, "a", [2.0, np.ones(2)]), (3, "b", [4.0, np.zeros(2)])],
    [{"a": 1, "b": {"c": np.eye(2)}}, {"a": 2, "b": {"c": np.eye(2)}}],
    [Pair(1, np.ones(1, np.uint8)), Pair(2, np.zeros(1, np.uint8))],
]


@pytest.mark.parametrize("samples", SAMPLES, ids=str)
def test_collation_is_pytorchs(samples: list[Any]) -> None:
    mine, expected = ours.default_collate(samples), theirs.default_collate(samples)
    assert plain(mine) == plain(expected)
    assert type(mine) is type(expected) or isinstance(mine, genesis.Tensor)


@pytest.mark.parametrize(
    ("samples", "word"),
    [
        ([np.zeros(2), np.zeros(3)], "differ"),
        ([np.zeros(2), np.zeros(2, np.int32)], "int32"),
        ([(1, np.zeros(2)), (1, np.zeros(3))], r"\[1\]"),
        ([{"a": 1}, {"b": 1}], "no 'a'"),
        ([(1, 2), (1,)], "entries"),
        ([1, "a"], "differ"),
        ([object()], "object"),
        ([np.array([object()])], "numbers"),
        ([], "no samples"),
    ],
)
def test_collation_names_what_does_not_fit(samples: list[Any], word: str) -> None:
    with pytest.raises(TypeError, match=f"default_collate: .*{word}"):
        ours.default_collate(samples)


def test_padding() -> None:
    x, n = ours.pad_collate([(np.ones((2, 1)), 1), (np.ones((1, 3)), 2)], value=-1)
    assert x.tolist() == [[[1, -1, -1], [1, -1, -1]], [[1, 1, 1], [-1, -1, -1]]]
    assert n.tolist() == [1, 2]


def test_datasets_of_datasets() -> None:
    both = ours.ConcatDataset([range(3), range(10, 14)])
    assert [both[k] for k in range(len(both))] == [0, 1, 2, 10, 11, 12, 13]
    assert both[-1] == 13
    with pytest.raises(IndexError, match="7 of 7"):
        both[7]
    assert ours.StackDataset(a=range(3), b=range(3))[1] == {"a": 1, "b": 1}
    subset = ours.Subset(ours.TensorDataset(genesis.arange(5)), [4, 0])
    (batch,) = next(iter(ours.DataLoader(subset, 2)))
    assert batch.tolist() == [4, 0]
    parts = ours.random_split(range(10), [3, 7])
    assert sorted(x for part in parts for x in part) == list(range(10))
    with pytest.raises(ValueError, match="add up neither"):
        ours.random_split(range(10), [0.5, 0.6])


# ---- samplers


def test_random_orders() -> None:
    sampler = ours.RandomSampler(range(100))
    first, second = list(sampler), list(sampler)
    assert sorted(first) == sorted(second) == list(range(100)) and first != second
    assert list(sampler.seeded(1)) == list(sampler.seeded(1)) != list(sampler.seeded(2))
    assert len(list(ours.RandomSampler(range(4), num_samples=10))) == 10
    assert set(ours.SubsetRandomSampler([5, 7])) == {5, 7}


def test_weights_are_followed() -> None:
    drawn = collections.Counter(ours.WeightedRandomSampler([1.0, 0.0, 3.0], 8000))
    assert drawn[1] == 0
    assert abs(drawn[2] / 8000 - 0.75) < 0.03  # six standard deviations
    without = list(ours.WeightedRandomSampler([1.0, 5.0, 3.0], 3, replacement=False))
    assert sorted(without) == [0, 1, 2]
    with pytest.raises(ValueError, match="4 draws from 2 samples"):
        ours.WeightedRandomSampler([1.0, 0.0, 3.0], 4, replacement=False)


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9])
@pytest.mark.parametrize("drop", [False, True])
def test_processes_share_the_samples(count: int, drop: bool) -> None:
    samplers = [ours.DistributedSampler(range(count), 4, k, drop_last=drop) for k in range(4)]
    parts = [list(s) for s in samplers]
    reference = theirs.DistributedSampler(range(count), 4, 0, drop_last=drop) if count else None
    assert {len(p) for p in parts} == {len(samplers[0])}
    assert reference is None or len(samplers[0]) == len(reference)
    every = [x for part in parts for x in part]
    assert drop or set(every) == set(range(count))
    assert len(set(every)) == len(every) or not drop


def test_buckets_hold_similar_lengths(rng: np.random.Generator) -> None:
    lengths = rng.integers(1, 200, 1000)
    sampler = ours.BucketBatchSampler(lengths, 16, pool=10)
    batches = list(sampler.seeded(3))
    assert sorted(k for b in batches for k in b) == list(range(1000))
    assert len(batches) == len(sampler)
    padded = sum(len(b) * lengths[b].max() for b in batches)
    plain = ours.BatchSampler(range(1000), 16)
    unsorted = sum(len(b) * lengths[b].max() for b in plain)
    assert padded < 1.15 * lengths.sum() < unsorted
    tokens = ours.BucketBatchSampler(lengths, max_tokens=1000)
    filled = list(tokens.seeded(3))
    assert sorted(k for b in filled for k in b) == list(range(1000))
    assert max(len(b) * lengths[b].max() for b in filled) <= 1000


# ---- the loader in one process


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("size", [None, 1, 4, 23, 50])
def test_batches_are_pytorchs(size: int | None, drop_last: bool) -> None:
    if size is None and drop_last:
        return
    np.random.seed(0)
    data = [Squares()[k] for k in range(23)]
    mine = ours.DataLoader(data, size, drop_last=drop_last)
    expected = theirs.DataLoader(data, size, drop_last=drop_last)  # type: ignore[arg-type]
    assert [plain(b) for b in mine] == [plain(b) for b in expected]
    assert len(mine) == len(expected)


def test_the_outer_generators_stay_where_they_are() -> None:
    genesis.manual_seed(5)
    np.random.seed(5)
    loader = iter(ours.DataLoader(Squares(), 4))
    genesis.rand(2)
    np.random.seed(7)
    drawn = np.random.random()
    np.random.seed(7)
    before = genesis.ndarray.random.default_generator().state.numpy().tolist()
    next(loader)
    assert np.random.random() == drawn
    assert genesis.ndarray.random.default_generator().state.numpy().tolist() == before


def test_an_epoch_left_is_begun_anew() -> None:
    loader = ours.DataLoader(range(6), 2)
    next(iter(loader))
    assert [b.tolist() for b in loader] == [[0, 1], [2, 3], [4, 5]]


def test_batches_on_a_device_are_counted_when_they_are_given() -> None:
    """The next one is on its way already."""
    loader = ours.DataLoader(range(6), 2, device="cpu")
    for number, batch in enumerate(loader):
        assert loader.state_dict()["batches"] == number + 1
        assert batch.tolist() == [2 * number, 2 * number + 1]


def test_the_name_that_pytorch_has() -> None:
    import genesis.utils.data

    for name in ("DataLoader", "Dataset", "IterableDataset", "TensorDataset", "get_worker_info"):
        assert getattr(genesis.utils.data, name) is getattr(ours, name)
        assert hasattr(theirs, name)


@pytest.mark.parametrize("given", [1, 3, 6])
def test_a_position_is_taken_up_again(given: int) -> None:
    genesis.manual_seed(1)
    loader = ours.DataLoader(Squares(), 4, shuffle=True)
    whole, places = [], []
    for batch in loader:
        whole.append(plain(batch))
        places.append(json.loads(json.dumps(loader.state_dict())))
    following = [plain(b) for b in loader]
    genesis.manual_seed(99)
    again = ours.DataLoader(Squares(), 4, shuffle=True)
    again.load_state_dict(places[given - 1])
    assert [plain(b) for b in again] == whole[given:]
    assert again.state_dict()["epoch"] == 1
    assert following != whole


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"batch_size": 0}, "batch_size"),
        ({"num_workers": -1}, "num_workers"),
        ({"shuffle": True, "sampler": [0]}, "sampler"),
        ({"batch_sampler": [[0]], "batch_size": 2}, "batch_sampler"),
        ({"batch_size": None, "drop_last": True}, "drop_last"),
        ({"timeout": 3}, "num_workers is 0"),
        ({"num_workers": 1, "prefetch_factor": 0}, "prefetch_factor"),
    ],
)
def test_arguments_that_do_not_fit(arguments: dict[str, Any], word: str) -> None:
    with pytest.raises(ValueError, match=f"DataLoader: .*{word}"):
        ours.DataLoader(range(3), **arguments)


# ---- readers


def test_tables(tmp_path: Path) -> None:
    import pyarrow as pa
    from pyarrow import csv, feather, parquet

    table = pa.table({"a": [1, 2, 3], "b": [0.5, 1.5, 2.5], "name": ["x", "y", "z"]})
    csv.write_csv(table, tmp_path / "t.csv")
    parquet.write_table(table, tmp_path / "t.parquet")
    feather.write_feather(table, tmp_path / "t.arrow", compression="uncompressed")
    for name in ("t.csv", "t.parquet", "t.arrow"):
        rows = ours.TableDataset(tmp_path / name)
        assert rows[1] == {"a": 2, "b": 1.5, "name": "y"}
        (batch,) = ours.DataLoader(rows, 3)
        assert plain(batch) == {
            "a": ("int64", [1, 2, 3]),
            "b": ("float64", [0.5, 1.5, 2.5]),
            "name": ["x", "y", "z"],
        }
        assert list(ours.TableDataset(tmp_path / name, ["b"])[0]) == ["b"]
    mapped = ours.TableDataset(tmp_path / "t.arrow").columns["b"]
    assert not mapped.flags.owndata and not mapped.flags.writeable  # where it lies in the file
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 nothing")
    with pytest.raises(BadFile, match=r"bad\.parquet"):
        ours.TableDataset(tmp_path / "bad.parquet")
    (tmp_path / "holes.csv").write_text("a,b\n1,\n2,3\n")
    with pytest.raises(BadFile, match="'b' are missing"):
        ours.TableDataset(tmp_path / "holes.csv")


def test_images_by_class(tmp_path: Path, rng: np.random.Generator) -> None:
    from PIL import Image

    pixels = rng.integers(0, 256, (2, 5, 4, 3), np.uint8)
    for name, image in zip(("cat", "dog"), pixels, strict=True):
        (tmp_path / name).mkdir()
        Image.fromarray(image).save(tmp_path / name / "1.png")
    folder = ours.ImageFolder(tmp_path)
    assert folder.classes == ["cat", "dog"]
    for k in range(2):
        image, label = folder[k]
        assert label == k and np.array_equal(image, pixels[k])
    (tmp_path / "cat" / "2.png").write_bytes(b"\x89PNG broken")
    with pytest.raises(BadFile, match=r"2\.png is no image"):
        ours.ImageFolder(tmp_path)[1]


def test_tars(tmp_path: Path) -> None:
    files = {
        "a/1.txt": b"one", "a/1.cls": b"3", "a/2.txt": b"two", "a/2.json": b'{"k": 1}',
        "b.npy": _npy(np.arange(3)), "b.bin": b"\0\1",
    }  # fmt: skip
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    one, two, three = ours.TarDataset(tmp_path / "x.tar")
    assert one == {"__key__": "a/1", "txt": "one", "cls": 3}
    assert two == {"__key__": "a/2", "txt": "two", "json": {"k": 1}}
    assert three["npy"].tolist() == [0, 1, 2] and three["bin"] == b"\0\1"
    (tmp_path / "bad.tar").write_bytes(b"no tar")
    with pytest.raises(BadFile, match=r"bad\.tar"):
        list(ours.TarDataset(tmp_path / "bad.tar"))


def _npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


@pytest.mark.parametrize("text", ["", "\n", "one", "one\n", "a\n\nb\r\nc", "é\n日本"])
def test_lines(tmp_path: Path, text: str) -> None:
    path = tmp_path / "text"
    path.write_bytes(text.encode())
    lines = ours.TextLines(path)
    expected = text.replace("\r\n", "\n").split("\n")
    expected = expected[:-1] if expected[-1] == "" else expected
    assert [lines[k] for k in range(len(lines))] == expected


def test_numpy_files_hold_no_code(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([object()]), allow_pickle=True)
    with pytest.raises(BadFile, match=r"x\.npy"):
        ours.NumpyDataset(tmp_path / "x.npy")


# ---- augmentations


def test_crops_are_parts_of_the_padded_image(rng: np.random.Generator) -> None:
    image = rng.integers(1, 256, (6, 5, 3), np.uint8)
    padded = np.pad(image, ((2, 2), (2, 2), (0, 0)))
    parts = {padded[y : y + 4, x : x + 4].tobytes(): (y, x) for y in range(7) for x in range(6)}
    np.random.seed(0)
    crop = augment.RandomCrop(4, padding=2)
    seen = {parts[crop(image).tobytes()] for _ in range(1000)}
    assert len(seen) == 42  # every place is drawn
    with pytest.raises(ValueError, match="smaller"):
        augment.RandomCrop(8)(image)
    assert np.array_equal(augment.CenterCrop(4)(image), image[1:5, 0:4])


def test_normalising_leaves_the_image_alone(rng: np.random.Generator) -> None:
    mean, std = np.array([1.0, 2.0, 3.0]), np.array([4.0, 5.0, 6.0])
    for image in (rng.integers(0, 256, (4, 5, 3), np.uint8), rng.random((4, 5, 3), np.float32)):
        before = image.copy()
        found = augment.Normalize(mean, std)(image)
        assert np.allclose(found, ((image - mean) / std).transpose(2, 0, 1), atol=1e-5)
        assert found.dtype == np.float32 and np.array_equal(image, before)
    grey = rng.random((4, 5), np.float32)
    before = grey.copy()
    augment.Normalize(0.5, 2)(grey)
    assert np.array_equal(grey, before)


def test_colours_and_erasing(rng: np.random.Generator) -> None:
    image = rng.integers(0, 256, (8, 8, 3), np.uint8)
    np.random.seed(1)
    brighter = augment.ColorJitter(brightness=0.5)(image)
    assert brighter.dtype == np.uint8 and not np.array_equal(brighter, image)
    whole = augment.ColorJitter()(image)
    assert np.abs(whole.astype(int) - image).max() <= 1
    erased = augment.RandomErasing(1.0, share=0.5, fill=0)(image)
    changed = (erased != image).any(2)
    rows, columns = changed.any(1).sum(), changed.any(0).sum()
    assert changed.sum() <= rows * columns <= 0.6 * 64
