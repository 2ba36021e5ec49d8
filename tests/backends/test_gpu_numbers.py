"""Every recipe for GPUs against NumPy: on a GPU, or by Triton's interpreter on a pretended one.

The interpreter takes the sizes marked small; a GPU takes all.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from math import erfc, inf, sqrt
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import genesis
from genesis import cuda
from genesis import ndarray as nd
from genesis.compiler.graph.gpu import pad_rows
from genesis.compiler.schedule.gpu import operand_layout
from genesis.compress import QuantizedTensor, quantize, quantize_, quantized_tensor
from genesis.ir.dtype import STORED, DType
from genesis.models import Llama, LlamaConfig
from tests.interpreted_cuda import passes

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
on_gpu = pytest.mark.gpu


@pytest.fixture
def gpu() -> Iterator[None]:
    with nd.on_device("cuda"):
        yield


def normal(*shape: int, dtype: str = "float32") -> Any:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(dtype)


def close(got: nd.NDArray, want: Any, tolerance: float = 1e-5) -> None:
    found, want = got.numpy(), np.asarray(want)
    assert found.shape == want.shape
    scale = max(1.0, float(np.max(np.abs(want), initial=0)))
    np.testing.assert_allclose(found.astype(np.float64), want, tolerance, tolerance * scale)


Case = Callable[[Any, Any], tuple[nd.NDArray, Any]]


def softmax(x: Any) -> Any:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def convolved(x: Any, w: Any) -> Any:
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    return np.einsum("nchwij,ocij->nohw", windows, w)


def attention(q: Any, k: Any, v: Any, causal: bool) -> Any:
    scores = np.einsum("hqd,hkd->hqk", q, k) / np.sqrt(q.shape[-1])
    if causal:
        scores = np.where(np.tri(*scores.shape[1:], dtype=bool), scores, -np.inf)
    return np.einsum("hqk,hkd->hqd", softmax(scores), v)


def attended(q: Any, k: Any, v: Any, causal: bool) -> nd.NDArray:
    operands = [genesis.tensor(x) for x in (q, k, v)]
    result = genesis.functional.scaled_dot_product_attention(*operands, is_causal=causal)
    found: nd.NDArray = result.array
    return found


def pairs(small: bool) -> Iterator[tuple[str, Callable[[], tuple[nd.NDArray, Any]]]]:
    """Computations with what they should give."""

    def case(name: str, f: Callable[[], tuple[nd.NDArray, Any]]) -> Any:
        return name, f

    a, b = normal(37, 53), normal(37, 53)
    yield case("pointwise", lambda: (nd.array(a) * 2 + nd.array(b), a * 2 + b))
    yield case("transpose", lambda: (nd.array(a).T + 1, a.T + 1))
    yield case("slice", lambda: (nd.array(a)[1:, 3:] * 3, a[1:, 3:] * 3))
    signs = np.copysign(1, -(a * 0))
    yield case("negative zero", lambda: (nd.copysign(1.0, -(nd.array(a) * 0)), signs))
    yield case("rows", lambda: (nd.softmax(nd.array(a), axis=1), softmax(a)))
    yield case("columns", lambda: (nd.array(a).sum(axis=0), a.sum(0)))
    yield case("argmax", lambda: (nd.argmax(nd.array(a), axis=1), a.argmax(1)))
    yield case("prefix", lambda: (nd.cumsum(nd.array(a), axis=1), a.cumsum(1)))
    yield case("prefix across", lambda: (nd.cumsum(nd.array(a), axis=0), a.cumsum(0)))
    yield case("product", lambda: (nd.array(a) @ nd.array(b).T, a @ b.T))
    c, d = normal(3, 5, 70), normal(3, 70, 20)
    yield case("few rows", lambda: (nd.array(c) @ nd.array(d), c @ d))
    e = normal(20, 512)
    yield case("parts of a sum", lambda: (nd.array(e) @ nd.array(e).T, e @ e.T))
    x, w = normal(2, 3, 9, 9), normal(20, 3, 3, 3)
    yield case("convolution", lambda: (nd.convolution(nd.array(x), nd.array(w), padding=1),
                                       convolved(x, w)))  # fmt: skip
    y, v = normal(1, 32, 7, 7), normal(40, 32, 3, 3)
    yield case("many channels", lambda: (nd.convolution(nd.array(y), nd.array(v), padding=1),
                                         convolved(y, v)))  # fmt: skip
    q = normal(2, 40, 16)
    for causal in (False, True):
        yield case(f"attention {causal}", lambda causal=causal: (
            attended(q, q, q, causal), attention(q, q, q, causal)))  # fmt: skip
    where = np.array([3, 0, 3, 5])
    added = np.zeros((7, 53), np.float32)
    np.add.at(added, where, a[:4])
    yield case("scatter", lambda: (
        nd.index_add(nd.zeros((7, 53)), nd.array(where), nd.array(a[:4])), added))  # fmt: skip
    yield case("gather", lambda: (nd.take(nd.array(a), nd.array(where), axis=0), a[where]))
    yield case("host", lambda: (nd.linalg.inv(nd.array(a[:9, :9])), np.linalg.inv(a[:9, :9])))
    if small:
        return
    f = normal(64, 20000)
    yield case("long rows", lambda: (nd.softmax(nd.array(f), axis=1), softmax(f)))
    g = normal(1 << 21)
    yield case("one long row", lambda: (nd.array(g).sum(), g.astype(np.float64).sum()))
    yield case("a long prefix", lambda: (nd.cumsum(nd.array(g), axis=0), g.cumsum(dtype=float)))
    h = normal(20000, 200)
    yield case("long columns", lambda: (nd.array(h).sum(axis=0), h.sum(0, dtype=float)))
    i = normal(300, 4096)
    yield case("large product", lambda: (nd.array(i) @ nd.array(i).T, i @ i.T))


CASES = dict(pairs(INTERPRETED))


@on_gpu
@pytest.mark.parametrize("name", CASES)
def test_numbers(name: str, gpu: None) -> None:
    got, want = CASES[name]()
    close(got, want, 2e-4 if name == "host" else 2e-5)


@on_gpu
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-5), ("bfloat16", 2e-2)])
@pytest.mark.parametrize("last", [0, 63, 64, 299])
def test_a_few_queries_share_their_keys_among_blocks(
    dtype: str, tolerance: float, last: int, gpu: None
) -> None:
    """Heads in groups; how many of the keys are there is data."""
    kind = getattr(ml_dtypes, dtype, np.float32)
    q, k, v = (normal(*s).astype(kind) for s in ((6, 1, 24), (2, 300, 24), (2, 300, 24)))
    tensors = [genesis.tensor(x) for x in (q, k, v)]
    position = genesis.tensor([last])
    past = genesis.arange(300) <= position[:, None]
    got = genesis.functional.scaled_dot_product_attention(*tensors, attn_mask=past, enable_gqa=True)
    wide = [np.repeat(x[:, : last + 1].astype(np.float64), 3, 0) for x in (k, v)]
    want = attention(q.astype(np.float64), *wide, False)
    np.testing.assert_allclose(got.float().numpy(), want, rtol=tolerance, atol=tolerance)


@on_gpu
@pytest.mark.parametrize(
    ("format", "width"),
    [("int8", 130), ("int4", 130), ("Q4_K", 500), ("IQ4_XS", 500), ("nf4", 130), ("MXFP4", 130)],
)
@pytest.mark.parametrize("rows", [1, 5, 20, 300])
def test_products_with_quantised_weights(format: str, width: int, rows: int, gpu: None) -> None:
    with nd.on_device("cpu"):
        weight = quantize(genesis.tensor(normal(70, width)), format)
        x = normal(rows, width)
        want = x @ weight.dequantize().numpy().T
        alike = weight.linear(genesis.tensor(x)).numpy()
    there = QuantizedTensor(weight.values.to("cuda"), weight.shape, format)
    got = there.linear(genesis.tensor(x)).numpy()
    assert np.abs(got - want).max() < 0.02 * np.abs(want).max()
    if rows < quantized_tensor.MANY_ROWS:  # the same sums of integers
        np.testing.assert_allclose(got, alike, 1e-5, 1e-4)


@on_gpu
def test_an_index_that_does_not_exist_is_told_when_something_is_read(gpu: None) -> None:
    table = genesis.tensor(normal(5, 3))
    take = genesis.jit(lambda places: table[places])
    assert take(genesis.tensor([4, 0])).shape == (2, 3)
    rows = take(genesis.tensor([4, 5]))
    with pytest.raises(IndexError, match="index 5 is out of range for axis 0 of size 5"):
        rows.numpy()
    assert take(genesis.tensor([1, 2])).numpy().shape == (2, 3)


@on_gpu
@pytest.mark.parametrize("causal", [False, True])
def test_attention_of_16_bit_numbers(causal: bool, gpu: None) -> None:
    q, k, v = (normal(2, 150 + n, 40).astype(ml_dtypes.bfloat16) for n in (0, 10, 10))
    want = attention(*(x.astype(np.float64) for x in (q, k, v)), causal)
    close(attended(q, k, v, causal), want, 1e-2)


@on_gpu
@pytest.mark.parametrize(
    ("dtype", "queries", "keys", "heads", "causal", "scale"),
    [("bfloat16", 150, 150, (20, 24), True, 0.2), ("float16", 40, 70, (80, 72), False, -0.3),
     ("float16", 70, 70, (64, 40), True, 0.1), ("float32", 50, 90, (20, 40), True, 0.25)],
)  # fmt: skip
def test_gradients_of_attention(
    dtype: str,
    queries: int,
    keys: int,
    heads: tuple[int, int],
    causal: bool,
    scale: float,
    gpu: None,
) -> None:
    """By a sweep, whose tiles are cut by the diagonal and by the ends of both axes."""
    kind = getattr(ml_dtypes, dtype, dtype)
    q, k, v = normal(1, queries, heads[0]), normal(1, keys, heads[0]), normal(1, keys, heads[1])
    arrays = [x.astype(kind) for x in (q, k, v, normal(1, queries, heads[1]))]
    q, k, v, grad = (x.astype(np.float64) for x in arrays)
    scores = np.einsum("hqd,hkd->hqk", q, k) * scale
    seen = np.tri(queries, keys, dtype=bool) if causal else True
    weights = softmax(np.where(seen, scores, -np.inf))
    to_weights = np.einsum("hqd,hkd->hqk", grad, v)
    to_scores = weights * (to_weights - (to_weights * weights).sum(-1, keepdims=True)) * scale
    wanted = (
        np.einsum("hqk,hkd->hqd", to_scores, k),
        np.einsum("hqk,hqd->hkd", to_scores, q),
        np.einsum("hqk,hqd->hkd", weights, grad),
    )
    inputs = [genesis.tensor(x).requires_grad_() for x in arrays[:3]]
    attend: Any = genesis.functional.scaled_dot_product_attention
    attend(*inputs, is_causal=causal, scale=scale).backward(genesis.tensor(arrays[3]))
    for x, want in zip(inputs, wanted, strict=True):
        assert x.grad is not None
        close(x.grad.array, want, 2e-5 if dtype == "float32" else 2e-2)


@on_gpu
@pytest.mark.parametrize("dtype", STORED, ids=str)
def test_floats_of_8_bits_are_those_of_the_cpu(dtype: DType, gpu: None) -> None:
    rng = np.random.default_rng(8)
    bits = np.frombuffer(rng.bytes(1 << 14), np.uint32).view(np.float32)
    drawn = [rng.standard_normal(999) * s for s in (1e-3, 1, 460, 6e4)]
    ends = np.array([464, 464.1, 61440, np.inf, -np.inf, np.nan, -0.0])
    x = np.concatenate([bits, np.concatenate([*drawn, ends]).astype(np.float32)])
    want = genesis.tensor(x, device="cpu").to(dtype)
    got = genesis.tensor(x).to(dtype)
    wide = got.float().numpy()
    np.testing.assert_array_equal(wide, want.float().numpy())
    known = ~np.isnan(wide)
    np.testing.assert_array_equal(got.numpy().view("u1")[known], want.numpy().view("u1")[known])


@on_gpu
@pytest.mark.parametrize("kinds", [(0, 0), (0, 1), (1, 1)])
def test_products_of_floats_of_8_bits(kinds: tuple[int, int], gpu: None) -> None:
    a, b = (
        genesis.tensor(normal(*shape)).to(STORED[k])
        for shape, k in zip(((70, 150), (150, 90)), kinds, strict=True)
    )
    wide = [x.numpy().astype(np.float64) for x in (a, b)]
    got = genesis.functional.scaled_mm(a, b, 0.5, 2.0, output_dtype=genesis.float32)
    close(got.array, wide[0] @ wide[1], 1e-3)


@on_gpu
@pytest.mark.parametrize("turned", [(False, False), (True, False), (False, True)])
def test_products_whose_operands_are_copied(
    turned: tuple[bool, bool], gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operand_layout, "LAUNCH", 0.0)
    monkeypatch.setattr(operand_layout, "BANDWIDTH", inf)
    a, b = normal(41, 91, dtype="bfloat16"), normal(91, 69)
    b[:] = b.astype("bfloat16")
    b[0, 0] = np.inf  # which zeros past the end of a row must not meet
    want = a.astype("float32") @ b
    left, right = (x.T.copy() if t else x for x, t in zip((a, b), turned, strict=True))
    x, y = genesis.tensor(left), genesis.tensor(right).to(genesis.bfloat16)
    x, y = x.T if turned[0] else x, y.T if turned[1] else y
    np.testing.assert_allclose((x @ y).float().numpy(), want, 2e-2, 1e-1)


@on_gpu
def test_rows_that_are_not_whole_vectors(gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scores of a vocabulary, their loss and its gradients, with rows of 37 numbers."""
    for name, value in (("LEAST", 16), ("READS", 1), ("WHOLE", 32)):
        monkeypatch.setattr(pad_rows, name, value)
    x, w = normal(48, 40, dtype="bfloat16"), normal(37, 40)
    where = np.random.default_rng(0).integers(0, 37, 48)

    @genesis.jit
    def step(x: Any, w: Any, where: Any) -> Any:
        x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
        scores = (x @ w.to(genesis.bfloat16).T).float()
        loss = genesis.functional.cross_entropy(scores, where)
        loss.backward()
        return loss, x.grad, w.grad

    left, right = x.astype(np.float64), w.astype("bfloat16").astype(np.float64)
    scores = (left @ right.T).astype("bfloat16").astype(np.float64)
    gradient = (softmax(scores) - np.eye(37)[where]) / 48
    loss = -np.log(softmax(scores)[np.arange(48), where]).mean()
    wanted = loss, gradient @ right, gradient.T @ left
    for got, want in zip(step(*map(genesis.tensor, (x, w, where))), wanted, strict=True):
        np.testing.assert_allclose(got.float().detach().numpy(), want, 2e-2, 2e-3)


@on_gpu
def test_rows_are_added_by_the_blocks_that_own_them(gpu: None) -> None:
    values, where = normal(70, 131), np.random.default_rng(0).integers(0, 9, 70)
    want = np.zeros((9, 131), np.float32)
    np.add.at(want, where, values)
    got = [
        nd.index_add(nd.zeros((9, 131)), nd.array(where), nd.array(values)).numpy() for _ in "ab"
    ]
    np.testing.assert_allclose(got[0], want, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(*got)  # in some order, which is always the same


@on_gpu
@pytest.mark.parametrize("format", ["float32", "int8"])
def test_a_decoder_gives_the_tokens_that_it_gives_on_the_cpu(gpu: None, format: str) -> None:
    config = LlamaConfig(
        layers=1, width=64, heads=4, key_heads=2, hidden=96, vocabulary=60, context=8
    )
    with nd.on_device("cpu"):
        genesis.manual_seed(0)
        model = Llama(config)
        if format != "float32":
            quantize_(model, format)
        want = model.generate([3, 1, 4], 4)
    assert model.to("cuda").generate([3, 1, 4], 4) == want


@on_gpu
def test_gelu_keeps_the_digits_of_small_results(gpu: None) -> None:
    def gelu(x: Any) -> Any:
        return genesis.functional.gelu(genesis.tensor(x)).array.numpy()

    x = np.linspace(-6, 6, 4001).astype(np.float32)
    want = [0.5 * v * erfc(-v / sqrt(2)) for v in x.astype(np.float64)]
    np.testing.assert_allclose(gelu(x), want, 1e-4, 1e-37)
    above = x > 0
    np.testing.assert_allclose(gelu(x)[above], np.array(want)[above], 5e-7)
    ends = gelu(np.array([-np.inf, -100, 100, np.inf, np.nan], np.float32))
    np.testing.assert_array_equal(ends, [np.nan, 0, 100, np.inf, np.nan])


# Triton's interpreter has no smallest bfloat16.
@on_gpu
@pytest.mark.parametrize(
    "dtype", ["float16", "float32", "float64", *([] if INTERPRETED else ["bfloat16"])]
)
def test_what_division_leaves_is_exact(dtype: str, gpu: None) -> None:
    """Of numbers of all sizes, the smallest of the type among them, and beside each other."""
    rng = np.random.default_rng(7)
    kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    info = ml_dtypes.finfo(kind)
    with np.errstate(all="ignore"):
        powers = 2.0 ** rng.integers(info.minexp - info.nmant, info.maxexp, 3000)
        x = (rng.uniform(-2, 2, 3000) * powers).astype(kind)
        near = 2.0 ** rng.integers(-30, 5, 3000) * rng.uniform(-2, 2, 3000)
        y = np.where(rng.random(3000) < 0.7, x.astype(float) * near, np.roll(x, 1)).astype(kind)
        x[:4], y[:4] = info.smallest_subnormal, [1.5, -1.5, info.smallest_subnormal, np.inf]
        y = np.where(y == 0, info.smallest_subnormal, y)
        wide = np.float64 if dtype != "float64" else np.longdouble
        rest = np.fmod(x.astype(wide), y.astype(wide))
        moved = (rest != 0) & ((rest < 0) != (y < 0))
        ends = np.isfinite(x) & np.isfinite(y.astype(wide)) | np.isinf(y)
        a, b = nd.array(x), nd.array(y)
        with nd.on_device("cpu"):
            floors = nd.floor_divide(nd.array(x), nd.array(y)).numpy()
    wants = {
        nd.fmod: rest.astype(kind),
        nd.remainder: np.where(moved, rest + y.astype(wide), rest).astype(kind),
        nd.floor_divide: floors,
    }
    for function, want in wants.items():
        got = function(a, b).numpy()
        np.testing.assert_array_equal(
            got[ends].astype(np.float64), want[ends].astype(np.float64), function.__name__
        )


@on_gpu
def test_a_replay_reads_what_it_is_given(gpu: None) -> None:
    step = genesis.jit(lambda x: (nd.cumsum(x * 2, axis=1), x.sum(axis=0)))
    kept = []
    for k in range(8):
        x = normal(9, 33) + k
        kept.append((x, step(nd.array(x))))
    for x, (prefix, total) in kept:
        close(prefix, (x * 2).cumsum(1))
        close(total, x.sum(0))


@on_gpu
def test_updates_in_place(gpu: None) -> None:
    total = nd.zeros((100,))
    step = genesis.jit(lambda x: total.__iadd__(x))
    for _ in range(6):
        step(nd.ones((100,)))
    close(total, np.full(100, 6.0))


@on_gpu
def test_loops(gpu: None) -> None:
    xs = normal(11, 6)
    last, sums = nd.scan(lambda s, x: (s + x, s * x), nd.zeros((6,)), nd.array(xs))
    close(last, xs.sum(0))
    before = np.concatenate([np.zeros((1, 6)), xs.cumsum(0)[:-1]])
    close(sums, before * xs)


@on_gpu
@pytest.mark.parametrize("shape", [(70, 40), (100, 600), (600, 3), (9, 1100)])
def test_running_sums_of_columns(shape: tuple[int, int], gpu: None) -> None:
    """By tiles of some rows, in chunks where columns are few."""
    x = normal(*shape)
    close(nd.cumsum(nd.array(x), 0), np.cumsum(x.astype(np.float64), 0))


@on_gpu
@pytest.mark.parametrize("extreme", [0.0, 90.0, inf, -inf, np.nan])
@pytest.mark.parametrize("rows", [2, 300])
def test_softmax_of_rows_that_no_tile_holds(extreme: float, rows: int, gpu: None) -> None:
    """Powers relative to the greatest element so far are those relative to the greatest of all."""
    if INTERPRETED and rows > 2:
        pytest.skip("for a GPU")
    x = normal(rows, 17001) * 10
    x[0, [5, 9000, 16900]] = extreme
    x[1, :16000] = -inf
    x[1, 16000:] += 1000
    for function in (genesis.functional.log_softmax, genesis.functional.logsumexp):
        found = function(genesis.tensor(x), -1).numpy()
        wanted = function(genesis.tensor(x.astype(np.float64), device="cpu"), -1).numpy()
        np.testing.assert_allclose(found, wanted, 1e-5, 1e-4)


@on_gpu
@pytest.mark.parametrize("batch", [5, 40])
def test_batch_norms_of_few_channels_are_shared_among_blocks(batch: int, gpu: None) -> None:
    x = normal(batch, 3, 70, 70) + 3
    found = genesis.functional.batch_norm(genesis.tensor(x), None, None, training=True).array
    mean, var = (f(x.astype(np.float64), axis=(0, 2, 3), keepdims=True) for f in (np.mean, np.var))
    close(found, (x - mean) / np.sqrt(var + 1e-5), 1e-4)


@on_gpu
def test_random_numbers_are_those_of_any_device(gpu: None) -> None:
    def drawn(device: str) -> Any:
        generator = nd.random.Generator(3, device)
        return nd.random.uniform((1000,), generator=generator).numpy()

    np.testing.assert_array_equal(drawn("cuda"), drawn("cpu"))


@pytest.mark.gpu
@pytest.mark.skipif(INTERPRETED, reason="about a real GPU")
def test_sharing_with_other_libraries(gpu: None) -> None:
    torch = pytest.importorskip("torch")
    theirs = torch.arange(12.0, device="cuda").reshape(3, 4)
    mine = nd.from_dlpack(theirs)
    assert mine.device == "cuda"
    close(mine.T * 2, theirs.T.cpu().numpy() * 2)
    back = torch.from_dlpack(mine * 3)
    assert back.is_cuda and bool((back == theirs * 3).all())
    taken = nd.from_dlpack(theirs[:, 1::2])
    close(taken + 0, theirs[:, 1::2].cpu().numpy())


@pytest.mark.gpu
@pytest.mark.skipif(INTERPRETED, reason="about a real GPU")
def test_time_passes_between_events(gpu: None) -> None:
    x = nd.array(normal(2048, 2048)).realize()
    (x @ x).realize()
    start, end = cuda.Event(), cuda.Event()
    start.record()
    (x @ x).realize()
    end.record()
    assert start.elapsed_time(end) > 0


@pytest.mark.gpu
@pytest.mark.skipif(INTERPRETED, reason="about a real GPU")
def test_memory_comes_back(gpu: None) -> None:
    before = cuda.memory_allocated()
    x = nd.array(normal(1000, 1000)).realize()
    assert cuda.memory_allocated() - before >= 4_000_000
    y = nd.softmax(x @ x, axis=1).realize()
    del x, y
    assert cuda.memory_allocated() == before


@pytest.mark.gpu
@pytest.mark.skipif(INTERPRETED, reason="about a real GPU")
def test_no_torch_in_the_process() -> None:
    code = (
        "import sys; from genesis import ndarray as nd; nd.set_default_device('cuda')\n"
        "assert float((nd.ones((3,)) * 2).sum()) == 6; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.skipif(INTERPRETED, reason="runs the others so")
@pytest.mark.timeout(1800)  # a whole file: on a loaded machine that takes long
def test_by_the_interpreter() -> None:
    passes(__file__)
