"""Linear algebra and Fourier transforms against PyTorch, to the second derivative.

Losses of factors that are determined only up to signs or phases use what does not depend on them.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import genesis
from tests.gradients import Case, check

_rng = np.random.default_rng(11)


def _random(*shape: int, complex: bool = False) -> np.ndarray:
    x: np.ndarray = _rng.uniform(-1, 1, shape)
    return x + 1j * _rng.uniform(-1, 1, shape) if complex else x


def _case(name: str, call: Callable[..., Any], *arguments: Any, **options: Any) -> Case:
    options = {"tolerance": 1e-7, **options}
    return Case(name, call, tuple(np.asarray(x) for x in arguments), **options)


def _without_phases(m: Any, u: Any, s: Any, vh: Any) -> tuple[Any, ...]:
    return m.abs(u), s, m.abs(vh), u @ vh


def _sizes(m: Any, *results: Any) -> tuple[Any, ...]:
    return tuple(m.abs(x) for x in results)


def _of(complex: bool) -> list[Case]:
    """Cases for real or for complex matrices."""
    one = 1 + 0j if complex else 1.0
    a = _random(2, 3, 3, complex=complex) + 2 * one * np.eye(3)
    b, v = _random(2, 3, 2, complex=complex), _random(2, 3, complex=complex)
    tall, wide = _random(4, 2, complex=complex), _random(2, 4, complex=complex)
    small = _random(3, 3, complex=complex) + 2 * np.eye(3)

    def adjoint(x: Any) -> Any:
        return x.transpose(-1, -2).conj()

    def positive(x: Any) -> Any:
        return x @ adjoint(x)

    return [
        _case("inv", lambda m, x: m.linalg.inv(x), a),
        _case("solve", lambda m, x, y: m.linalg.solve(x, y), a, b),
        _case("solve vectors", lambda m, x, y: m.linalg.solve(x, y), a, v),
        _case("solve right", lambda m, x, y: m.linalg.solve(x, y.mT, left=False), a, b),
        *(
            _case(
                f"solve_triangular {upper} {left} {unit}",
                lambda m, x, y, upper=upper, left=left, unit=unit: m.linalg.solve_triangular(
                    x, y if left else y.mT, upper=upper, left=left, unitriangular=unit
                ),
                a,
                b,
            )
            for upper, left, unit in ((True, True, False), (False, True, True), (True, False, True))
        ),
        _case("det", lambda m, x: m.linalg.det(x), a),
        _case("slogdet", lambda m, x: tuple(m.linalg.slogdet(x)), a),
        _case("matrix_exp", lambda m, x: m.linalg.matrix_exp(x), a),
        _case("matrix_power", lambda m, x: m.linalg.matrix_power(x, 3), a),
        _case("matrix_power -2", lambda m, x: m.linalg.matrix_power(x, -2), a),
        _case("pinv", lambda m, x: m.linalg.pinv(x), tall),
        _case("pinv wide", lambda m, x: m.linalg.pinv(x), wide),
        _case(
            "lstsq",
            lambda m, x, y: m.linalg.lstsq(x, y)[0],
            tall,
            _random(4, 3, complex=complex),
            order=1,
        ),
        _case("cholesky", lambda m, x: m.linalg.cholesky(positive(x)), a),
        _case("cholesky upper", lambda m, x: m.linalg.cholesky(positive(x), upper=True), a),
        _case(
            "cholesky_solve",
            lambda m, x, y: m.cholesky_solve(y, m.linalg.cholesky(positive(x))),
            a,
            b,
        ),
        _case(
            "cholesky_inverse", lambda m, x: m.cholesky_inverse(m.linalg.cholesky(positive(x))), a
        ),
        _case("qr", lambda m, x: tuple(m.linalg.qr(x)), tall),
        _case("qr square", lambda m, x: tuple(m.linalg.qr(x)), small),
        _case("qr wide", lambda m, x: tuple(m.linalg.qr(x)), wide),
        _case("lu", lambda m, x: tuple(m.linalg.lu(x)[1:]), small),
        _case("lu tall", lambda m, x: tuple(m.linalg.lu(x)[1:]), tall),
        _case("lu wide", lambda m, x: tuple(m.linalg.lu(x)[1:]), wide),
        _case("lu_factor", lambda m, x: m.linalg.lu_factor(x)[0], a),
        *(
            _case(
                f"lu_solve {left} {turned}",
                lambda m, x, y, left=left, turned=turned: m.linalg.lu_solve(
                    *m.linalg.lu_factor(x), y if left else y.mT, left=left, adjoint=turned
                ),
                a,
                b,
            )
            for left in (True, False)
            for turned in (True, False)
        ),
        _case("svdvals", lambda m, x: m.linalg.svdvals(x), tall),
        *(
            _case(
                f"svd {x.shape}",
                lambda m, x: _without_phases(m, *m.linalg.svd(x, full_matrices=False)),
                x,
                tolerance=1e-6,
            )
            for x in (tall, wide, small)
        ),
        _case("eigvalsh", lambda m, x: m.linalg.eigvalsh(x + adjoint(x)), a),
        _case(
            "eigh",
            lambda m, x: _sizes(m, *m.linalg.eigh(x + adjoint(x))),
            a,
            tolerance=1e-6,
        ),
        *(
            _case(f"matrix_norm {p}", lambda m, x, p=p: m.linalg.matrix_norm(x, p), small)
            for p in ("fro", "nuc", 1, -1, 2, -2, np.inf, -np.inf)
        ),
        _case("norm", lambda m, x: m.linalg.norm(x, 3, 1), tall),
        _case("cond", lambda m, x: m.linalg.cond(x), small),
        _case("cond 1", lambda m, x: m.linalg.cond(x, 1), small, order=0),
        _case(
            "multi_dot", lambda m, x, y, z: m.linalg.multi_dot([x, y, z]), tall, wide, wide.T.copy()
        ),
        _case("vander", lambda m, x: m.linalg.vander(x, N=4), v),
        _case("vecdot", lambda m, x, y: m.linalg.vecdot(x, y), v, v[::-1].copy()),
        _case("cross", lambda m, x, y: m.linalg.cross(x, y, dim=1), a, b[:, :, :1]),
        _case(
            "householder_product",
            lambda m, x, y: m.linalg.householder_product(x, y),
            tall,
            v[0, :2],
        ),
    ]


S = _random(3, 3) + 2 * np.eye(3)

OTHERS = [
    _case("eig", lambda m, x: _sizes(m, *m.linalg.eig(x)), S, order=1),
    _case("eigvals", lambda m, x: m.linalg.eigvals(x).sum(), S),
    _case("logdet", lambda m, x: m.logdet(x @ x.mT), S),
    _case("tensorinv", lambda m, x: m.linalg.tensorinv(x, ind=1), _random(6, 2, 3)),
    _case("tensorsolve", lambda m, x, y: m.linalg.tensorsolve(x, y), _random(6, 2, 3), _random(6)),
    _case("matrix_rank", lambda m, x: m.linalg.matrix_rank(x @ x.mT), _random(4, 2), order=0),
    _case(
        "lstsq residuals",
        lambda m, x, y: m.linalg.lstsq(x, y, driver="gels")[1],
        _random(5, 2),
        _random(5, 2),
        order=1,
    ),
    _case("diagonal", lambda m, x: m.linalg.diagonal(x, offset=1), S),
]

R, C = _random(3, 5), _random(3, 5, complex=True)
LONG, WINDOW = _random(2, 21), np.hanning(10)[1:-1]

FOURIER = [
    *(
        _case(
            f"{name} {norm}",
            lambda m, x, name=name, norm=norm: getattr(m.fft, name)(x, norm=norm),
            x,
        )
        for norm in (None, "ortho", "forward")
        for name, x in (
            ("fft", C),
            ("ifft", C),
            ("rfft", R),
            ("irfft", C),
            ("hfft", C),
            ("ihfft", R),
        )
    ),
    _case("fft of real", lambda m, x: m.fft.fft(x, dim=0), R),
    *(
        _case(f"{name} {n}", lambda m, x, name=name, n=n: getattr(m.fft, name)(x, n), x)
        for n in (4, 7)
        for name, x in (("fft", C), ("rfft", R), ("irfft", C), ("hfft", C), ("ihfft", R))
    ),
    *(
        _case(name, lambda m, x, name=name: getattr(m.fft, name)(x), x)
        for name, x in (
            ("fftn", C),
            ("ifftn", C),
            ("rfftn", R),
            ("irfftn", C),
            ("hfftn", C),
            ("ihfftn", R),
            ("fft2", C),
            ("ifft2", C),
            ("rfft2", R),
            ("irfft2", C),
            ("fftshift", C),
            ("ifftshift", R),
        )
    ),
    _case("fftn sizes", lambda m, x: m.fft.fftn(x, (4, 6), (1, 0)), C),
    _case("fftfreq", lambda m, x: x * m.fft.fftfreq(5, 0.5), R),
    _case("rfftfreq", lambda m, x: x * m.fft.rfftfreq(8), R),
    *(
        _case(
            f"stft {k}", lambda m, x, w, o=o: m.stft(x, 8, window=w, return_complex=True, **o), x, w
        )
        for k, (o, x, w) in enumerate(
            (
                ({}, LONG, WINDOW),
                ({"hop_length": 3, "center": False, "normalized": True}, LONG[0], WINDOW),
                ({"win_length": 5, "onesided": False, "pad_mode": "constant"}, LONG, WINDOW[:5]),
            )
        )
    ),
    _case(
        "istft",
        lambda m, x, w: m.istft(m.stft(x, 8, window=w, return_complex=True), 8, window=w),
        LONG,
        WINDOW,
    ),
    _case(
        "istft length",
        lambda m, x, w: m.istft(x, 8, 2, window=w, length=18),
        _random(2, 5, 9, complex=True),
        WINDOW,
        order=1,
    ),
    _case("rfftn sizes", lambda m, x: m.fft.rfftn(x, (4, 6), norm="ortho"), R),
]

#: Rules whose second derivative is compared for complex matrices, too; the others differ only in
#: what they compose.
_DEEP = ("solve", "slogdet", "cholesky", "qr", "svdvals", "eigvalsh")

GROUPS = {
    "real": _of(False),
    "complex": [c if c.name in _DEEP else c._replace(order=min(c.order, 1)) for c in _of(True)],
    "others": OTHERS,
    "fourier": FOURIER,
}


@pytest.mark.parametrize("group", GROUPS)
def test_against_pytorch(group: str) -> None:
    check(GROUPS[group])


def test_equal_values_do_not_disturb_their_gradients() -> None:
    """Vectors of equal singular values or eigenvalues have no gradient, but the values have."""
    one = np.eye(3)
    check(
        [
            _case("svdvals", lambda m, x: m.linalg.svdvals(x), one, order=1),
            _case("nuclear norm", lambda m, x: m.linalg.matrix_norm(x, "nuc"), one, order=1),
            _case("eigvalsh", lambda m, x: m.linalg.eigvalsh(x).sum(), one, order=1),
            _case("eigvals", lambda m, x: m.linalg.eigvals(x).sum().real, one, order=1),
        ]
    )


def test_one_factor_alone() -> None:
    a = _random(4, 3)
    check(
        [
            _case("Q", lambda m, x: m.linalg.qr(x)[0], a),
            _case("R", lambda m, x: m.linalg.qr(x)[1], a),
            _case("L", lambda m, x: m.linalg.lu(x)[1], a),
            _case("U of LU", lambda m, x: m.linalg.lu(x)[2], a),
            _case("U of SVD", lambda m, x: m.abs(m.linalg.svd(x, False)[0]), a, tolerance=1e-6),
            _case("V", lambda m, x: m.abs(m.linalg.svd(x)[2]), a, tolerance=1e-6),
            _case(
                "eigenvectors", lambda m, x: m.abs(m.linalg.eigh(x.mT @ x)[1]), a, tolerance=1e-6
            ),
        ]
    )


def test_what_counts_as_zero() -> None:
    """Singular values up to `atol`, or up to `rtol` times the greatest."""
    a = _random(3, 5, 4)
    a[0, :, 3] = a[0, :, 2] + 1e-5 * a[0, :, 1]
    a[1] *= 1e-6
    check(
        _case(f"{name} {limits}", call, a, order=0)
        for limits in ({}, {"atol": 1e-4}, {"rtol": 1e-4}, {"atol": 1e-4, "rtol": 0.1})
        for name, call in (
            ("pinv", lambda m, x, k=limits: m.linalg.pinv(x, **k)),
            ("matrix_rank", lambda m, x, k=limits: m.linalg.matrix_rank(x, **k)),
        )
    )


@pytest.mark.parametrize(
    "shapes", [((5, 10), (7, 10, 5)), ((3, 4), (2, 5, 4, 6)), ((3, 4), (1, 4, 2))]
)
def test_one_matrix_before_a_batch_has_a_gradient_that_is_rounded_once(shapes: Any) -> None:
    """In half precision: the sum over the batch is carried in float32, as every product's is."""
    rng = np.random.default_rng(0)
    x, y = (genesis.tensor(rng.standard_normal(s)).bfloat16() for s in shapes)
    x.requires_grad_()
    product = x @ y
    weight = genesis.tensor(rng.standard_normal(product.shape)).bfloat16()
    product.backward(weight)
    one_by_one = np.einsum("...ik,...jk->...ij", weight.double().numpy(), y.double().numpy())
    exact = one_by_one.reshape(-1, *shapes[0]).sum(0)
    error = np.abs(x.grad.double().numpy() - exact) - np.abs(exact) * 2.0**-8
    assert error.max() <= 1e-5
