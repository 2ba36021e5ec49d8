"""Medians, quantiles, modes, histograms, moments and distances, against PyTorch and NumPy."""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
import torch

import genesis
from genesis import ndarray as nd

NAN = math.nan


def close(found: nd.NDArray, expected: Any, tolerance: float = 1e-5) -> None:
    given, wanted = found.numpy(), np.asarray(expected)
    assert given.dtype == wanted.dtype and given.shape == wanted.shape
    np.testing.assert_allclose(given, wanted, rtol=tolerance, atol=tolerance / 10)


def both(found: Iterable[nd.NDArray], expected: Iterable[Any]) -> None:
    for a, b in zip(found, expected, strict=True):
        close(a, b)


@pytest.fixture
def x(rng: np.random.Generator) -> np.ndarray:
    return rng.standard_normal((3, 5, 4)).astype(np.float32)


@pytest.fixture
def holes(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """With NaN here and there, and a row of nothing else."""
    found = np.where(rng.random(x.shape) < 0.3, np.float32(NAN), x)
    found[0, :, 0] = NAN
    return found


# ---- order


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("keepdims", [False, True])
def test_medians(x: np.ndarray, holes: np.ndarray, axis: int, keepdims: bool) -> None:
    both(nd.median(nd.array(x), axis, keepdims), torch.median(torch.from_numpy(x), axis, keepdims))
    tensor = torch.from_numpy(holes)
    both(nd.median(nd.array(holes), axis, keepdims), torch.median(tensor, axis, keepdims))
    values, indices = nd.nanmedian(nd.array(holes), axis, keepdims)
    close(values, torch.nanmedian(tensor, axis, keepdims).values)
    where = indices if keepdims else nd.unsqueeze(indices, axis)
    taken = np.take_along_axis(holes, where.numpy(), axis)
    np.testing.assert_array_equal(taken if keepdims else taken.squeeze(axis), values.numpy())


def test_medians_of_everything(x: np.ndarray, holes: np.ndarray) -> None:
    close(nd.median(nd.array(x)), torch.median(torch.from_numpy(x)))
    close(nd.nanmedian(nd.array(holes)), torch.nanmedian(torch.from_numpy(holes)))
    assert math.isnan(nd.median(nd.array(holes)).item())
    assert nd.median(nd.array(x), keepdims=True).shape == (1, 1, 1)
    assert nd.median(nd.array([5, 3, 9, 7])).item() == 5
    assert [part.item() for part in nd.median(nd.array(2.0), 0)] == [2.0, 0]
    assert math.isnan(nd.median(nd.zeros(0)).item())


def test_long_rows(rng: np.random.Generator) -> None:
    x = rng.integers(-500, 500, (3, 70_001))
    both(nd.median(nd.array(x), 1), [np.median(x, 1).astype(np.int64), _first(x)])
    small = x.astype(np.float32)
    close(nd.quantile(nd.array(small), 0.3, 1), np.quantile(small, 0.3, 1).astype(np.float32))


def _first(x: np.ndarray) -> np.ndarray:
    """The position that a stable sort takes the median from."""
    return np.argsort(x, 1, kind="stable")[:, (x.shape[1] - 1) // 2]


@pytest.mark.parametrize("interpolation", ["linear", "lower", "higher", "midpoint", "nearest"])
@pytest.mark.parametrize("q", [0.3, [0.0, 1.0], [0.1, 0.25, 0.5, 0.6, 0.99]])
def test_quantiles(x: np.ndarray, holes: np.ndarray, q: Any, interpolation: str) -> None:
    fractions = torch.tensor(q)
    for axis, keepdims in ((0, False), (1, True), (None, False), (None, True)):
        for name, given in (("quantile", x), ("quantile", holes), ("nanquantile", holes)):
            tensor = torch.from_numpy(given)
            expected = getattr(torch, name)(
                tensor, fractions, axis, keepdims, interpolation=interpolation
            )
            close(getattr(nd, name)(nd.array(given), q, axis, keepdims, interpolation), expected)


def test_quantiles_of_infinities() -> None:
    x = nd.array([-math.inf, -math.inf, 0.0, math.inf, math.inf])
    assert nd.quantile(x, [0.0, 0.25, 0.5, 1.0]).tolist() == [-math.inf, -math.inf, 0, math.inf]
    assert nd.quantile(x, nd.array([0.1], dtype="float32")).tolist() == [-math.inf]


def test_modes(rng: np.random.Generator) -> None:
    x = rng.integers(0, 4, (5, 7, 6))
    for axis in (0, 1, -1):
        values, indices = nd.mode(nd.array(x), axis)
        close(values, torch.mode(torch.from_numpy(x), axis).values)
        last = np.max(
            np.where(x == np.expand_dims(values.numpy(), axis), _places(x, axis), -1), axis
        )
        close(indices, last)
    assert [part.shape for part in nd.mode(nd.zeros((3, 1)), -1, True)] == [(3, 1), (3, 1)]
    assert nd.mode(nd.array([NAN, 1.0, NAN, 1.0])).values.item() == 1.0


def _places(x: np.ndarray, axis: int) -> np.ndarray:
    shape = [1] * x.ndim
    shape[axis] = -1
    return np.broadcast_to(np.arange(x.shape[axis]).reshape(shape), x.shape)


# ---- histograms


def test_histograms(x: np.ndarray, rng: np.random.Generator) -> None:
    array, tensor = nd.array(x), torch.from_numpy(x)
    weights = rng.random(x.shape).astype(np.float32)
    for bins in (1, 5, [-2.0, -1.0, 0.0, 0.3, 5.0]):
        given = bins if isinstance(bins, int) else torch.tensor(bins)
        for density in (False, True):
            expected = torch.histogram(tensor, given, density=density)
            both(nd.histogram(array, bins, density=density), expected)
            expected = torch.histogram(
                tensor, given, density=density, weight=torch.from_numpy(weights)
            )
            both(nd.histogram(array, bins, None, nd.array(weights), density), expected)
    both(nd.histogram(array, 4, (-1.0, 1.0)), torch.histogram(tensor, 4, range=(-1.0, 1.0)))
    close(nd.histc(array, 7), torch.histc(tensor, 7))
    close(nd.histc(array, 7, -1, 1), torch.histc(tensor, 7, -1, 1))


def test_histograms_at_their_ends() -> None:
    x = nd.array([0.0, 0.5, 1.0, 1.5, NAN, 2.0])
    assert nd.histogram(x, [0.0, 1.0, 2.0]).hist.tolist() == [2.0, 3.0]
    assert nd.histogram(x, 2, (0.0, 2.0)).hist.tolist() == [2.0, 3.0]
    assert nd.histogram(nd.array([3.0, 3.0]), 2).bin_edges.tolist() == [2.5, 3.0, 3.5]
    assert nd.histogram(nd.zeros(0), 2).hist.tolist() == [0.0, 0.0]
    many = nd.histogram(nd.ones(1 << 17, dtype="float32"), 1)
    assert many.hist.tolist() == [float(1 << 17)]


# ---- moments


@pytest.mark.parametrize("offset", [0.0, 1e4, -3e5, 1e8])
def test_variances_do_not_cancel(rng: np.random.Generator, offset: float) -> None:
    x = (rng.standard_normal((4, 3000)) * max(1.0, offset / 1e6) + offset).astype(np.float32)
    wide = x.astype(np.float64)
    spread, middle = nd.var_mean(nd.array(x), 1)
    np.testing.assert_allclose(spread.numpy(), wide.var(1, ddof=1), rtol=1e-4)
    np.testing.assert_allclose(middle.numpy(), wide.mean(1), rtol=1e-6, atol=1e-6)
    deviation, _ = nd.std_mean(nd.array(x), correction=0)
    np.testing.assert_allclose(deviation.item(), wide.std(), rtol=1e-4)


def test_constants_have_no_variance() -> None:
    assert nd.var(nd.full((1000,), 1e8)).item() < 100  # one unit in the last place is 8
    assert nd.var(nd.full((1024,), 2.0**27)).item() == 0


def test_sums_without_nan(holes: np.ndarray) -> None:
    array, tensor = nd.array(holes), torch.from_numpy(holes)
    for axis in (0, 1, (0, 2)):
        close(nd.nansum(array, axis), torch.nansum(tensor, axis))
        close(nd.nanmean(array, axis, True), torch.nanmean(tensor, axis, True))
    close(nd.nansum(array), torch.nansum(tensor))
    assert nd.nansum(nd.array([1, 2])).item() == 3


def test_aminmax(x: np.ndarray, holes: np.ndarray) -> None:
    both(nd.aminmax(nd.array(x), 1, True), torch.aminmax(torch.from_numpy(x), dim=1, keepdim=True))
    both(nd.aminmax(nd.array(x)), torch.aminmax(torch.from_numpy(x)))
    both(nd.aminmax(nd.array(holes), 0), torch.aminmax(torch.from_numpy(holes), dim=0))


def test_covariances(rng: np.random.Generator) -> None:
    x = rng.standard_normal((3, 6)).astype(np.float32) + 100
    often, much = np.array([1, 2, 3, 1, 1, 2]), rng.random(6).astype(np.float32)
    tensor = torch.from_numpy(x)
    for correction in (0, 1):
        for fweights in (None, often):
            for aweights in (None, much):
                weights = {"fweights": fweights, "aweights": aweights}
                mine = {k: None if w is None else nd.array(w) for k, w in weights.items()}
                theirs = {k: None if w is None else torch.from_numpy(w) for k, w in weights.items()}
                expected = torch.cov(tensor, correction=correction, **theirs)
                close(nd.cov(nd.array(x), correction, **mine), expected, 1e-4)
    close(nd.cov(nd.array(x[0])), torch.cov(tensor[0]), 1e-4)
    close(nd.corrcoef(nd.array(x)), torch.corrcoef(tensor), 1e-4)
    close(nd.corrcoef(nd.array(x[0])), torch.corrcoef(tensor[0]))
    z = x - 100 + 1j * rng.standard_normal((3, 6)).astype(np.float32)
    close(nd.cov(nd.array(z)), torch.cov(torch.from_numpy(z)))
    close(nd.corrcoef(nd.array(z)), torch.corrcoef(torch.from_numpy(z)))


@pytest.mark.parametrize("p", [0.0, 1.0, 2.0, 3.0, math.inf])
def test_distances(x: np.ndarray, p: float) -> None:
    y = x[:1, :2] + 1
    tensors = torch.from_numpy(x), torch.from_numpy(y)
    close(nd.cdist(nd.array(x), nd.array(y), p), torch.cdist(*tensors, p), 1e-4)
    close(nd.dist(nd.array(x), nd.array(y[:, :1]), p), torch.dist(tensors[0], tensors[1][:, :1], p))


def test_distances_of_many_points(rng: np.random.Generator) -> None:
    x, y = rng.standard_normal((2, 40, 8)) + 1000, rng.standard_normal((30, 8)) + 1000
    x, y = x.astype(np.float32), y.astype(np.float32)
    expected = np.linalg.norm(x[:, :, None].astype(np.float64) - y, axis=-1)
    np.testing.assert_allclose(nd.cdist(nd.array(x), nd.array(y)).numpy(), expected, atol=1e-3)
    itself = nd.cdist(nd.array(y), nd.array(y)).numpy()
    np.testing.assert_allclose(np.diagonal(itself), 0, atol=5e-3)


def test_renorm_and_trace(x: np.ndarray) -> None:
    close(nd.renorm(nd.array(x), 2, 1, 1.5), torch.renorm(torch.from_numpy(x), 2, 1, 1.5))
    for offset in (-5, -2, 0, 1, 4):
        expected = np.trace(x, offset, 1, 2)
        close(nd.trace(nd.array(x), offset), expected.astype(np.float32))


def test_in_one_program(x: np.ndarray) -> None:
    def function(x: nd.NDArray) -> nd.NDArray:
        return (x - nd.median(x, -1, True).values) / (nd.quantile(x, 0.9, -1, True) + 10)

    recorded = genesis.jit(function)
    for factor in (1, 2):
        close(recorded(nd.array(x * factor)), function(nd.array(x * factor)).numpy())


def test_bad_input() -> None:
    x = nd.zeros((2, 3))
    with pytest.raises(ValueError, match="quantile: q must be between 0 and 1, not 2"):
        nd.quantile(x, 2.0)
    with pytest.raises(ValueError, match="quantile: interpolation is one of linear"):
        nd.quantile(x, 0.5, interpolation="cubic")
    with pytest.raises(TypeError, match="quantile: needs float32 or float64, not int64"):
        nd.quantile(nd.arange(3), 0.5)
    with pytest.raises(ValueError, match=r"quantile: there are no elements in shape \(0,\)"):
        nd.quantile(nd.zeros(0), 0.5)
    with pytest.raises(ValueError, match=r"median: no elements along axis 1 of shape \(2, 0\)"):
        nd.median(nd.zeros((2, 0)), 1)
    with pytest.raises(TypeError, match="median: complex64 numbers have no order"):
        nd.median(nd.array([1j]))
    with pytest.raises(ValueError, match="histogram: needs at least one bin, not 0"):
        nd.histogram(x, 0)
    with pytest.raises(ValueError, match=r"histogram: the range from 2\.0 to"):
        nd.histogram(x, 2, (2.0, 1.0))
    with pytest.raises(ValueError, match="cov: needs a vector or a matrix"):
        nd.cov(nd.zeros((2, 2, 2)))
    with pytest.raises(TypeError, match="cov: fweights must be integers, not float32"):
        nd.cov(x, 1, nd.ones(3))
    with pytest.raises(ValueError, match="cdist: points of shapes"):
        nd.cdist(x, nd.zeros((2, 4)))
