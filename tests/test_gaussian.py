"""Gaussian averages of every built-in function, against closed forms, adaptive quadrature and mpmath."""

import ast
import copy
import math
import pickle
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import mpmath
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.integrate import quad_vec

from firststep import gaussian
from firststep.gaussian import (
    Function,
    averages,
    expectation,
    expressions,
    function,
    gauss_hermite,
    hermite_polynomials,
    monomial_in_hermite,
    names,
    shapes,
)
from firststep.gaussian.kinks import find_kinks

ROOT_2PI = math.sqrt(2 * math.pi)
SELU = (1.0507009873554805, 1.6732632423543772)

# Each built-in written again, for one float, in another way than the package does.
PLAIN: dict[str, Callable[[float], float]] = {
    "identity": lambda x: x,
    "relu": lambda x: x if x > 0 else 0.0,
    "leaky_relu": lambda x: x if x > 0 else 0.01 * x,
    "tanh": lambda x: (
        -math.expm1(-2 * x) / (1 + math.exp(-2 * x)) if x > 0 else math.expm1(2 * x) / (1 + math.exp(2 * x))
    ),
    "erf": math.erf,
    "sigmoid": lambda x: 0.5 * (1 + math.tanh(x / 2)),
    "softplus": lambda x: math.log1p(math.exp(x)) if x < 30 else x + math.exp(-x),
    "gelu": lambda x: 0.5 * x * math.erfc(-x / math.sqrt(2)),
    "silu": lambda x: 0.5 * x * (1 + math.tanh(x / 2)),
    "sin": math.sin,
    "cos": math.cos,
    "abs": abs,
    "sign": lambda x: math.copysign(1.0, x),
    "elu": lambda x: x if x > 0 else math.expm1(x),
    "selu": lambda x: SELU[0] * (x if x > 0 else SELU[1] * math.expm1(x)),
    "relu2": lambda x: x * x if x > 0 else 0.0,
    "cubic": lambda x: x**3,
    "h0": lambda x: 1.0,
    "h4": lambda x: x**4 - 6 * x**2 + 3,
}
# The same for an array, for rules that want many values.
DENSE = {name: np.vectorize(f, otypes=[float]) for name, f in PLAIN.items()}
ACTIVATIONS = [name for name in PLAIN if name != "sign"]
PAIRS = [
    (1.0, 0.0),
    (0.3, -1.2),
    (2.5, 0.7),
    (1.7, 12.0),
    (0.0, 1.3),
    (1e-3, -2.0),
    (10.0, -3.0),
    (5.0, -40.0),
    (10.0, 40.0),
]


def assert_close(found: object, wanted: object, tolerance: float) -> None:
    """Fail unless the two agree to the tolerance, relative to the larger of 1 and the wanted size."""
    found, wanted = np.asarray(found, dtype=float), np.asarray(wanted, dtype=float)
    assert found.shape == wanted.shape, f"shapes {found.shape} and {wanted.shape}"
    error = np.abs(found - wanted) / np.maximum(1.0, np.abs(wanted))
    assert np.all(error <= tolerance), f"off by {error.max():.2e}: {found} instead of {wanted}"


def adaptive(f: Callable[[float], object], kinks: tuple[float, ...] = ()) -> np.ndarray:
    """E f(Z), of a number or an array, by adaptive quadrature piece by piece."""
    edges = [-14.0, *(k for k in sorted(kinks) if -14 < k < 14), 14.0]
    return sum(
        quad_vec(
            lambda x: np.asarray(f(x)) * math.exp(-x * x / 2) / ROOT_2PI, a, b, epsabs=1e-13, epsrel=1e-13
        )[0]
        for a, b in pairwise(edges)
    )


def dense(f: Callable[[np.ndarray], np.ndarray], kinks: tuple[float, ...] = (), width: float = 0.05) -> float:
    """E f(Z) on very many Gauss–Legendre nodes between the kinks."""
    unit, weights = np.polynomial.legendre.leggauss(16)
    edges = [-14.0, *(k for k in sorted(kinks) if -14 < k < 14), 14.0]
    total = 0.0
    for a, b in pairwise(edges):
        ends = np.linspace(a, b, math.ceil((b - a) / width) + 1)
        x = ((ends[1:] + ends[:-1]) / 2)[:, None] + ((ends[1:] - ends[:-1]) / 2)[:, None] * unit
        w = ((ends[1:] - ends[:-1]) / 2)[:, None] * weights
        total += float(np.sum(w * f(x) * np.exp(-x * x / 2) / ROOT_2PI))
    return total


def assert_moments(
    made: Function, f: Callable[[np.ndarray], np.ndarray], pairs: list, tolerance: float
) -> None:
    """Fail unless gaussian_averages of an uncentred function equal dense quadrature of f at each pair."""
    scale, shift = np.array(pairs).T
    found = np.array(made.gaussian_averages(scale, shift))
    assert_close(found[:3], np.array(made.gaussian_moments(scale, shift)), 1e-15)
    for i, (s, t) in enumerate(pairs):
        kinks = tuple((k - t) / s for k in made.kinks) if s else ()
        weighted = [
            lambda g, s=s, t=t: f(s * g + t),
            lambda g, s=s, t=t: g * f(s * g + t),
            lambda g, s=s, t=t: f(s * g + t) ** 2,
            lambda g, s=s, t=t: (g * g - 1) * f(s * g + t),
        ]
        assert_close(found[:, i], [dense(w, kinks, 0.5 / max(1.0, s)) for w in weighted], tolerance)


# The helpers reject wrong answers.


def test_assert_close_rejects():
    assert_close([1.0, 2.0], [1.0, 2.0 + 1e-12], 1e-11)
    for wrong in ([1.0, 2.1], [1.0, math.nan], [1.0]):
        with pytest.raises(AssertionError):
            assert_close(wrong, [1.0, 2.0], 1e-11)


def test_references_agree_and_see_a_missing_kink():
    assert_close(adaptive(abs, (0.0,)), math.sqrt(2 / math.pi), 1e-13)
    assert_close(dense(np.abs, (0.0,)), math.sqrt(2 / math.pi), 1e-14)
    assert abs(dense(np.abs, (0.317,)) - math.sqrt(2 / math.pi)) > 1e-9


def test_assert_moments_rejects():
    made = function("tanh", centre=False)
    assert_moments(made, np.tanh, PAIRS[:3], 1e-12)
    with pytest.raises(AssertionError):
        assert_moments(made, lambda x: np.tanh(x) + 1e-10, PAIRS[:3], 1e-12)
    with pytest.raises(AssertionError):
        assert_moments(function("tanh(1.0001*x)", centre=False), np.tanh, PAIRS[:3], 1e-12)


# Averages of the built-in functions.


def test_every_name_is_checked():
    assert set(names()) - {f"h{k}" for k in range(21)} == set(PLAIN) - {"h0", "h4"}
    assert {f"h{k}" for k in range(21)} <= set(names())


@pytest.mark.parametrize("name", PLAIN)
def test_values(name):
    x = np.concatenate([np.linspace(-30, 30, 241), [-1e-9, 1e-9]])
    x = x[x != 0] if name == "sign" else x
    plain = DENSE[name](x)
    assert_close(function(name, centre=False)(x), plain, 4e-15)
    mean = adaptive(PLAIN[name], function(name).kinks)
    assert_close(function(name)(x), plain - mean, 1e-12)


@pytest.mark.parametrize("name", PLAIN)
def test_coefficients_and_second_moment_by_adaptive_quadrature(name):
    plain, centred, raw = PLAIN[name], function(name), function(name, centre=False)
    degrees = np.arange(9)
    factorials = np.array([float(math.factorial(k)) for k in degrees])
    found = adaptive(
        lambda x: plain(x) * np.append(hermite_polynomials(x, 9, normalised=True), plain(x)), raw.kinks
    )
    wanted, power = found[:9] / np.sqrt(factorials), float(found[9])
    assert_close(raw.hermite(9), wanted, 1e-12)
    assert_close(raw.mean, wanted[0], 1e-12)
    assert centred.hermite(9)[0] == 0.0
    assert_close(centred.hermite(9)[1:], wanted[1:], 1e-12)
    assert_close(raw.second_moment, power, 1e-12)
    assert_close(centred.second_moment, power - wanted[0] ** 2, 1e-12)


@pytest.mark.parametrize("name", ["tanh", "softplus", "silu", "gelu", "elu"])
def test_coefficients_in_high_precision(name):
    high = {
        "tanh": mpmath.tanh,
        "softplus": lambda x: mpmath.log1p(mpmath.exp(x)),
        "silu": lambda x: x / (1 + mpmath.exp(-x)),
        "gelu": lambda x: x * mpmath.ncdf(x),
        "elu": lambda x: x if x > 0 else mpmath.expm1(x),
    }[name]
    raw = function(name, centre=False)
    polynomials = {1: [0, 1], 2: [-1, 0, 1], 7: [0, -105, 0, 105, 0, -21, 0, 1]}
    with mpmath.workdps(20):
        edges = [-13, -5, 0, 5, 13]
        for k, powers in polynomials.items():
            average = mpmath.quad(
                lambda x, powers=powers: (
                    high(x) * sum(c * x**i for i, c in enumerate(powers) if c) * mpmath.npdf(x)
                ),
                edges,
            )
            assert abs(raw.hermite(8)[k] - float(average / mpmath.factorial(k))) < 1e-14
        assert abs(raw.mean - float(mpmath.quad(lambda x: high(x) * mpmath.npdf(x), edges))) < 1e-14
        power = mpmath.quad(lambda x: high(x) ** 2 * mpmath.npdf(x), edges)
        assert abs(raw.second_moment - float(power)) < 1e-14


@pytest.mark.parametrize("name", PLAIN)
def test_high_coefficients(name):
    """Normalised coefficients up to degree 60, where H_k itself reaches 1e40."""
    raw = function(name, centre=False)
    found = raw.hermite(61) * np.sqrt([float(math.factorial(k)) for k in range(61)])
    for k in (10, 17, 24, 33, 40, 59, 60):
        wanted = dense(lambda x, k=k: DENSE[name](x) * hermite_polynomials(x, k + 1, True)[k], raw.kinks, 0.2)
        assert abs(found[k] - wanted) < 2e-14


@pytest.mark.parametrize("name", PLAIN)
def test_moments(name):
    assert_moments(function(name, centre=False), DENSE[name], PAIRS, 1e-12)


@pytest.mark.parametrize("name", ["relu", "softplus", "cos", "h4", "tanh(x) + 1"])
def test_moments_after_centring(name):
    scale, shift = np.array(PAIRS).T
    raw, centred = function(name, centre=False), function(name)
    m0, m1, m2 = raw.gaussian_moments(scale, shift)
    assert_close(centred.gaussian_moments(scale, shift)[0], m0 - raw.mean, 1e-13)
    assert_close(centred.gaussian_moments(scale, shift)[1], m1, 1e-13)
    assert_close(centred.gaussian_moments(scale, shift)[2], m2 - 2 * raw.mean * m0 + raw.mean**2, 1e-12)
    at_one = [float(m) for m in centred.gaussian_moments(1.0, 0.0)]
    assert_close(at_one, [0.0, centred.hermite(2)[1], centred.second_moment], 1e-14)


def test_shares_below_keep_their_digits():
    """Far below 0, E 1[g + t > 0] = Phi(t) is tiny and still right; at the ends it is 0 and 1."""
    points = np.array([-37.0, -20.0, -8.0, -3.0, -1e-9, 0.0, 0.5, 2.0, 9.0])
    with mpmath.workdps(40):
        wanted = [float(mpmath.ncdf(mpmath.mpf(t))) for t in points]
    found = function("relu", centre=False).gaussian_moments(np.ones(9), points)[1]
    np.testing.assert_allclose(found, wanted, rtol=3e-13, atol=0)
    np.testing.assert_allclose(found[3:], wanted[3:], rtol=3e-15, atol=0)
    ends = function("relu", centre=False).gaussian_moments(0.0, [-1.0, 2.0])
    assert [m.tolist() for m in ends] == [[0.0, 2.0], [0.0, 0.0], [0.0, 4.0]]


def test_relu_in_closed_form():
    relu = function("relu")
    c = relu.hermite(12)
    assert relu.mean == pytest.approx(1 / ROOT_2PI, rel=1e-15)
    assert c[0] == 0.0
    assert c[1] == 0.5
    assert c[2] == pytest.approx(1 / (2 * ROOT_2PI), rel=1e-15)
    assert (c[3::2] == 0.0).all()
    assert c[4] == pytest.approx(-1 / (24 * ROOT_2PI), rel=1e-14)
    assert relu.tail(2) == pytest.approx(0.25 - 1 / (2 * math.pi), rel=1e-13)
    assert relu.derivative_second_moment == pytest.approx(0.5, rel=1e-13)


def test_erf_in_closed_form():
    erf = function("erf")
    assert erf.mean == 0.0
    assert erf.hermite(2)[1] == pytest.approx(2 / math.sqrt(3 * math.pi), rel=1e-15)
    assert erf.hermite(4)[3] == pytest.approx(-2 / (9 * math.sqrt(3 * math.pi)), rel=1e-14)
    assert erf.second_moment == pytest.approx(2 / math.pi * math.asin(2 / 3), rel=1e-14)
    assert erf.derivative_second_moment == pytest.approx(4 / (math.pi * math.sqrt(5)), rel=1e-12)


@pytest.mark.parametrize(
    ("name", "zeros"),
    [
        *(
            (name, slice(0, None, 2))
            for name in ("identity", "tanh", "erf", "sin", "sign", "cubic", "h3", "tanh(2*x)")
        ),
        *((name, slice(1, None, 2)) for name in ("cos", "abs", "h4", "abs(x) + cos(2*x)", "sqrt(1 + x**2)")),
        *(
            (name, slice(3, None, 2))
            for name in ("relu", "leaky_relu", "gelu", "silu", "softplus", "relu(2*x)")
        ),
        *((name, slice(2, None, 2)) for name in ("sigmoid", "tanh(x) + 3", "sin(x)*cos(x)")),
        ("relu2", slice(4, None, 2)),
    ],
)
def test_zeros_by_parity_are_exact(name, zeros):
    c = function(name, centre=False).hermite(40)
    assert (c[zeros] == 0.0).all()
    assert np.count_nonzero(c) > 0


@pytest.mark.parametrize("name", ["sigmoid", "softplus"])
def test_the_part_that_parity_fixes_is_exact(name):
    raw = function(name, centre=False)
    assert (raw.mean if name == "sigmoid" else raw.hermite(2)[1]) == 0.5


@pytest.mark.parametrize("name", [*PLAIN, "tanh(x) + h2/2", "relu(x - 0.5) + sin(x)"])
def test_tail_is_what_the_coefficients_leave(name):
    f = function(name, centre=False)
    normalised = f.hermite(31) * np.sqrt([float(math.factorial(k)) for k in range(31)])
    for k in (0, 1, 2, 5, 30):
        assert f.tail(k) >= 0.0
        assert f.tail(k) == pytest.approx(
            f.second_moment - np.sum(normalised[:k] ** 2), abs=1e-13 * (1 + f.tail(0))
        )


def test_small_tails_keep_their_digits():
    sine = function("sin")
    wanted = math.fsum(math.exp(-1) / math.factorial(k) for k in range(15, 40, 2))
    assert sine.tail(15) == pytest.approx(wanted, rel=1e-6)
    assert 1e-13 < sine.tail(15) < 3e-13
    assert function("h1 + h2/sqrt(2)").tail(3) == 0.0


def test_tails_and_coefficients_of_very_high_degree():
    """Tails of relu fall like k^(-3/2), and its c_k below the smallest float."""
    relu = function("relu")
    assert np.isfinite(relu.hermite(300)).all()
    terms = relu._normalised(3000)[100:] ** 2
    rest = float(np.sum(terms)) + relu.tail(3000)
    assert relu.tail(100) == pytest.approx(rest, rel=1e-9)
    assert relu.tail(3000) == pytest.approx(relu.tail(100) / 30**1.5, rel=0.05)


@pytest.mark.parametrize("name", ["relu", "h1 + h2/sqrt(2)", "tanh"])
def test_coefficients_that_are_kept_cannot_be_changed_from_outside(name):
    f = function(name)
    first = f.hermite(3)
    wanted = first.copy()
    first[:] = 7.0
    assert f.hermite(3).tolist() == wanted.tolist()
    assert f.hermite(200)[:3].tolist() == wanted.tolist()
    assert f.hermite(0).shape == (0,)


@pytest.mark.parametrize("name", [*ACTIVATIONS, "tanh(x)*relu(x)", "h2 + 0.1*sin(3*x)", "max(-1, min(1, x))"])
def test_stein(name):
    """E[f' H_k] = (k+1)! c_{k+1} [Stein81]: the derivative belongs to the function."""
    f = function(name)
    c = f.hermite(7)
    for k in range(6):
        average = expectation(lambda z, k=k: f.derivative(z) * hermite_polynomials(z, k + 1)[k], f.kinks)
        assert_close(average, math.factorial(k + 1) * c[k + 1], 2e-12)


@pytest.mark.parametrize("name", [*ACTIVATIONS, "tanh(x)*relu(x)", "max(-1, min(1, x))"])
def test_derivative_by_differences(name):
    f = function(name)
    x = np.linspace(-4.03, 4.01, 83)
    step = 1e-5
    assert_close(f.derivative(x), (f(x + step) - f(x - step)) / (2 * step), 1e-8)


def test_series_of_scaled_functions():
    scales = np.array([0.0, 0.2, 1.0, 3.3, 10.0])
    for name in (
        "relu",
        "tanh",
        "softplus",
        "silu",
        "gelu",
        "erf",
        "elu",
        "sin",
        "relu2",
        "sign",
        "h4",
        "relu(x - 0.5)",
    ):
        raw = function(name, centre=False)
        found = raw.hermite_of_scaled(scales, 200)
        assert found.shape == (5, 200)
        f = DENSE[name] if name in DENSE else lambda x: np.maximum(x - 0.5, 0)
        for i, s in enumerate(scales):
            kinks = tuple(k / s for k in raw.kinks) if s else ()
            for k in (0, 1, 2, 7, 60, 199):
                wanted = dense(
                    lambda g, s=s, k=k, f=f: f(s * g) * hermite_polynomials(g, k + 1, True)[k], kinks, 0.1
                )
                assert abs(found[i, k] - (0.0 if s == 0 and name == "sign" else wanted)) < 1e-12 * max(
                    1.0, s**4
                )
        centred = function(name).hermite_of_scaled(scales, 5)
        assert_close(centred[:, 0], found[:, 0] - raw.mean, 1e-15)
        assert_close(centred[:, 1:], found[:, 1:5], 1e-15)
    assert function("tanh").hermite_of_scaled([1.0, 2.0], 0).shape == (2, 0)


# Covariances.

COVARIANT = [
    *["identity", "relu", "leaky_relu", "abs", "relu2", "erf", "gelu", "sign", "sin", "cos", "cubic", "h4"],
    *["h1 + h2/sqrt(2)", "2*relu(-3*x) - 1", "erf(x/sqrt(2))", "hermite(0.3, 1, -0.5, 0.2, 0, 0.01)"],
]


@pytest.mark.parametrize("name", COVARIANT)
@pytest.mark.parametrize("centre", [True, False])
def test_covariance_by_two_dimensional_quadrature(name, centre):
    f = function(name, centre=centre)
    assert f.has_covariance
    for v1, rho, v2 in [(1.0, 0.3, 1.0), (0.4, -0.8, 2.5), (1.0, 0.0, 1.0), (0.7, 0.97, 1.3)]:
        # Given x1, x2 is Gaussian: the inner average is one of the moments checked above.
        s1, s2 = math.sqrt(v1), math.sqrt(v2)
        inner_scale = s2 * math.sqrt(1 - rho * rho)

        def given_first(g, s1=s1, s2=s2, rho=rho, inner_scale=inner_scale):
            return f(s1 * g) * f.gaussian_moments(inner_scale, s2 * rho * g)[0]

        wanted = dense(given_first, (0.0,), 0.25)
        assert_close(float(f.covariance(v1, rho * s1 * s2, v2)), wanted, 1e-12)


@pytest.mark.parametrize("name", COVARIANT)
def test_covariance_at_its_ends(name):
    f = function(name)
    variances = np.array([0.0, 1e-8, 0.5, 1.0, 7.0])
    # A correlation of one, up to rounding either way.
    for wobble in (-2e-16, 0.0, 2e-16):
        found = f.covariance(variances, variances * (1 + wobble), variances)
        assert_close(found, f.gaussian_moments(np.sqrt(variances), 0.0)[2], 1e-13)
    means = f.gaussian_moments(np.sqrt(variances), 0.0)[0]
    assert_close(f.covariance(variances, 0.0, 1.3), means * f.gaussian_moments(math.sqrt(1.3), 0.0)[0], 1e-13)


@pytest.mark.parametrize("name", ["relu", "erf", "h1 + h2/sqrt(2)", "sin"])
def test_covariance_of_a_matrix(name):
    """A large matrix goes block by block and gives what single entries and the series give."""
    rows = np.random.default_rng(0).standard_normal((300, 40)) / math.sqrt(40)
    cov = rows @ rows.T
    variances = np.diag(cov).copy()
    f = function(name)
    found = f.covariance(variances[:, None], cov, variances[None, :])
    assert found.shape == (300, 300)
    assert_close(found, found.T, 1e-15)
    assert float(found[7, 291]) == pytest.approx(
        float(f.covariance(variances[7], cov[7, 291], variances[291])), abs=1e-15
    )
    assert np.linalg.eigvalsh(found)[0] > -1e-12
    scales = np.sqrt(variances)
    a = f.hermite_of_scaled(scales, 120)
    rho = cov / np.outer(scales, scales)
    np.fill_diagonal(rho, 0.0)
    series = sum(np.outer(a[:, k], a[:, k]) * rho**k for k in range(120))
    off = ~np.eye(300, dtype=bool)
    assert_close(found[off], series[off], 1e-12)


def test_covariance_refuses():
    with pytest.raises(ValueError, match="tanh has no closed-form covariance"):
        function("tanh").covariance(1.0, 0.5, 1.0)
    assert not function("tanh").has_covariance
    assert not function("relu(x - 1)").has_covariance
    with pytest.raises(ValueError, match=r"at most sqrt\(v1 v2\)"):
        function("relu").covariance(1.0, 1.1, 1.0)
    with pytest.raises(ValueError, match="variances must be zero or more"):
        function("relu").covariance(-1.0, 0.0, 1.0)


# Polynomials and rules.


def test_hermite_polynomials():
    x = np.linspace(-3, 3, 7).reshape(7, 1)
    found = hermite_polynomials(x, 9)
    assert found.shape == (9, 7, 1)
    for k in range(9):
        assert_close(found[k], np.polynomial.hermite_e.hermeval(x, [0.0] * k + [1.0]), 1e-14)
        assert_close(
            hermite_polynomials(x, 9, normalised=True)[k], found[k] / math.sqrt(math.factorial(k)), 1e-14
        )
    assert hermite_polynomials(1.0, 0).shape == (0,)
    assert np.isfinite(hermite_polynomials(10.0, 1000, normalised=True)).all()


def test_monomials():
    xi = monomial_in_hermite(13)
    x = np.linspace(-2, 2, 9)
    assert_close(xi @ hermite_polynomials(x, 13), x ** np.arange(13)[:, None], 1e-10)
    assert xi[4].tolist()[:5] == [3.0, 0.0, 6.0, 0.0, 1.0]
    assert monomial_in_hermite(1).tolist() == [[1.0]]


@pytest.mark.parametrize("count", [1, 5, 60, 500, 1000])
def test_gauss_hermite(count):
    nodes, weights = gauss_hermite(count)
    assert np.isfinite(weights).all()
    assert weights.sum() == pytest.approx(1.0, abs=1e-13)
    assert weights @ nodes**2 == pytest.approx(1.0 if count > 1 else 0.0, abs=1e-11)
    with pytest.raises(ValueError, match="read-only"):
        nodes[0] = 0.0
    with pytest.raises(ValueError, match="at least one node"):
        gauss_hermite(0)


def test_expectation():
    assert_close(
        expectation(lambda x: np.abs(x) ** 0.5, [0.0]), 2**0.25 * math.gamma(0.75) / math.sqrt(math.pi), 1e-12
    )
    assert_close(expectation(lambda x: np.exp(3 * x)), math.exp(4.5), 1e-12)
    below, density = math.erfc(0.3 / math.sqrt(2)) / 2, math.exp(-0.045) / ROOT_2PI
    assert_close(
        expectation(lambda x: np.maximum(x - 0.3, 0) ** 2, [0.3]), 1.09 * below - 0.3 * density, 1e-13
    )
    with pytest.raises(ValueError, match="did not settle"):
        expectation(lambda x: np.abs(x - 0.3))
    with pytest.raises(ValueError, match="not finite"):
        expectation(lambda x: np.log(np.where(x > 0, x, np.nan)))
    with pytest.raises(ValueError, match="grows too fast"):
        expectation(lambda x: np.exp(x * x / 2.0001))


@pytest.mark.parametrize(
    "coefficients", [[0, 1, 1 / math.sqrt(2)], [0.5], [1, 0, -2, 0, 0.3], [0.0] * 20 + [1e-9]]
)
def test_hermite_series_is_exact(coefficients):
    f = function(coefficients, centre=False)
    assert f.hermite(25).tolist() == [float(c) for c in coefficients] + [0.0] * (25 - len(coefficients))
    assert f.second_moment == pytest.approx(
        sum(math.factorial(k) * c * c for k, c in enumerate(coefficients)), rel=1e-15
    )
    assert function(f.spec, centre=False) == f


def test_polynomial_expressions_are_recognised():
    for text, wanted in [
        ("h1 + h2/sqrt(2)", [0, 1, 1 / math.sqrt(2)]),
        ("x**3", [0, 3, 0, 1]),
        ("(x - 1)*(x + 1)", [0, 0, 1]),
        ("h3(2*x)", [0, 18, 0, 8]),
        ("cubic(x)/2 - -x", [0, 2.5, 0, 0.5]),
        ("h2**2", [2, 0, 4, 0, 1]),
        ("sin(pi/6)*x", [0, 0.5]),
    ]:
        found = function(text, centre=False).hermite(len(wanted) + 2)
        assert_close(found, [*wanted, 0, 0], 1e-14)
        assert (found[len(wanted) :] == 0).all()


# Expressions.

GOOD = {
    "tanh(2*x)": lambda x: np.tanh(2 * x),
    "relu(x - 0.5)": lambda x: np.maximum(x - 0.5, 0),
    "1 - 3*softplus(-x/2)": lambda x: 1 - 3 * np.logaddexp(0, -x / 2),
    "tanh(x) + h2/2": lambda x: np.tanh(x) + (x**2 - 1) / 2,
    "exp(-x**2/2)": lambda x: np.exp(-(x**2) / 2),
    "x/sqrt(1 + x**2)": lambda x: x / np.sqrt(1 + x**2),
    "log(1 + x**2)": lambda x: np.log(1 + x**2),
    "max(-1, min(1, x))": lambda x: np.clip(x, -1, 1),
    "relu(x**2 - 2)": lambda x: np.maximum(x**2 - 2, 0),
    "relu(sin(x) + 0.3)": lambda x: np.maximum(np.sin(x) + 0.3, 0),
    "sqrt(x**2)": np.abs,
    "exp(x/2)": lambda x: np.exp(x / 2),
    "sin(5*x)*tanh(x)": lambda x: np.sin(5 * x) * np.tanh(x),
    "x*sign(x - 1)": lambda x: x * np.sign(x - 1),
}


@pytest.mark.parametrize("text", GOOD)
def test_expressions(text):
    f = function(text, centre=False)
    x = np.linspace(-5, 5, 101) + 1e-3
    assert_close(f(x), GOOD[text](x), 1e-13)
    assert_moments(f, GOOD[text], [(1.0, 0.0), (0.3, -1.2), (2.5, 0.7), (0.0, 1.3), (1e-3, -2.0)], 1e-12)
    wanted = [
        dense(lambda z, k=k: GOOD[text](z) * hermite_polynomials(z, 9, True)[k], f.kinks, 0.1)
        for k in range(9)
    ]
    found = f.hermite(9) * np.sqrt([float(math.factorial(k)) for k in range(9)])
    assert_close(found, wanted, 1e-12)
    assert function(text).hermite(1)[0] == 0.0


def test_a_power_with_a_singular_kink():
    f = function("abs(x)**1.5", centre=False)
    assert_close(f.mean, 2**0.75 * math.gamma(1.25) / math.sqrt(math.pi), 1e-13)
    found = f.gaussian_moments(0.8, 0.3)
    with mpmath.workdps(20):
        edges = [-12, -4, -mpmath.mpf(0.3) / 0.8, 4, 12]
        for i, factor in enumerate([lambda g, v: v, lambda g, v: g * v, lambda g, v: v * v]):
            wanted = mpmath.quad(
                lambda g, factor=factor: factor(g, abs(0.8 * g + 0.3) ** 1.5) * mpmath.npdf(g), edges
            )
            assert_close(float(found[i]), float(wanted), 1e-12)


def test_moments_where_the_mass_is_far_out():
    """E exp(x/2) at scale 10: the integrand lives around g = 5 and, squared, around g = 10."""
    f = function("exp(x/2) + 0*tanh(x)", centre=False)
    m0, m1, m2 = f.gaussian_moments(np.array([10.0]), np.array([3.0]))
    wanted = [math.exp(1.5 + 12.5), 5 * math.exp(1.5 + 12.5), math.exp(3 + 50)]
    assert_close([m0[0], m1[0], m2[0]], wanted, 1e-12)


def test_parity_is_not_guessed_from_samples():
    """sign(0.3 - h5) looks odd at all but a few points; its mean is not that of an odd function."""
    f = function("softplus(sign(0.3 - h5))", centre=False)
    wanted = dense(lambda x: np.logaddexp(0, np.sign(0.3 - hermite_polynomials(x, 6)[5])), f.kinks)
    assert_close(f.mean, wanted, 1e-13)
    assert abs(wanted - (math.log1p(math.e) - 0.5)) > 1e-3


def test_derivative_where_an_inner_part_rests():
    f = function("sqrt(relu(x**2 - 1))")
    assert_close(f.derivative(np.array([-2.0, 0.0, 0.5, 2.0])), [-2 / 3**0.5, 0, 0, 2 / 3**0.5], 1e-15)


def test_kinks_are_found():
    root2 = math.sqrt(2)
    for text, wanted in [
        ("relu(2*x - 1)", [0.5]),
        ("abs(x) + relu(1 - x)", [0, 1]),
        ("relu(x**2 - 2)", [-root2, root2]),
        ("abs(tanh(x) - 0.5) + x", [math.atanh(0.5)]),
        ("max(-1, min(1, x))", [-1, 1]),
        ("relu(relu(x) - 1)*x", [0, 1]),
        ("tanh(x) + sin(x)", []),
    ]:
        assert_close(np.array(function(text).kinks), np.array(wanted, dtype=float), 1e-9)


def test_spelling_is_canonical():
    for text, spec in [
        (" h1+h2/ sqrt(2)", "h1 + h2/sqrt(2)"),
        ("tanh( 2.0 *x )", "tanh(2*x)"),
        ("relu(x)", "relu"),
        ("((x))*(h3(x))", "x*h3"),
        ("-(x**2)", "-x**2"),
        ("(-x)**2", "(-x)**2"),
        ("(x + 1) - (2 - x)", "x + 1 - (2 - x)"),
        ("x/(2*x**2+1)", "x/(2*x**2 + 1)"),
        ("1e-3*x\n+ .5", "0.001*x + 0.5"),
        ("+x", "x"),
        ("2**(1/2)*tanh(x)", "2**(1/2)*tanh(x)"),
    ]:
        f = function(text)
        assert f.spec == spec
        assert function(spec) == f
        assert function(spec).key == f.key


HOSTILE = [
    *["__import__('os')", "x.__class__", "9**9**9**9", "x**9**9", "lambda: x", "[x for x in x]", "f'{x}'"],
    *[
        "x" * 10**6,
        "х + 1",
        "１*x",
        "(x:=3)",
        "relu(x, y=2)",
        "max(*x)",
        "max(**x)",
        "x\0",
        "",
        "x[0]",
        "{x}",
    ],
    *["x if x else x", "x == 1", "x;x", "eval(x)", "0777*x", "x@x", "x//2", "x % 2", "~x", "'abs'", "x(x)"],
    *["pi(x)", "tanh()", "tanh(x, x)", "min(x)", "(" * 150 + "x", "-" * 150 + "x", "1e400*x", "1/0", "x/0"],
    *[
        "x**x",
        "2**x",
        "sqrt(-1)*x",
        "x\u200b",
        "tanh\xa0(x)",
        "hermite(nan)",
        "hermite(1,,2)",
        "hermite(1e999)",
    ],
    *[
        "hermite(" + "1," * 90 + "1)",
        "callable:f",
        "x.real",
        "print(x)",
        "...",
        "2x",
        "h21(x)",
        "(1e9*x)**20",
    ],
    *[
        "1_0*x",
        "0x10*x",
        "True",
        "x and x",
        "yield x",
        "exp(1e8)*x",
        "x**-21",
        "tanh(x)(x)",
        "(x, x)",
        "x, x",
    ],
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_text(text):
    with pytest.raises(ValueError, match=r".") as caught:
        function(text)
    message = str(caught.value)
    assert len(message) < 700
    assert "\n" not in message
    assert any(
        word in message
        for word in ("may use", "known are", "must", "divides by zero", "takes numbers", "wanted", "pass the")
    )


def test_no_text_is_executed():
    called = {
        node.func.id
        for path in Path(gaussian.__file__).parent.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert "function" in called
    assert not called & {"eval", "exec", "compile", "__import__", "open"}


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("exp(x**2)", "not finite|not square-integrable"),
        ("exp(x**2/3.9)", "not square-integrable"),
        ("1/x", "not square-integrable"),
        ("1/(x - 0.12345)", "not square-integrable"),
        ("log(x)", "not finite"),
        ("sqrt(x)", "not finite"),
        ("abs(sin(30*x))", "kinks"),
    ],
)
def test_functions_without_averages_are_refused(text, match):
    with pytest.raises(ValueError, match=match):
        function(text)


def test_unknown_names_get_a_suggestion():
    with pytest.raises(ValueError, match=r"'tahn' \(did you mean 'tanh'\?\).*known are identity, relu"):
        function("tahn")
    with pytest.raises(ValueError, match=r"did you mean 'relu'"):
        function("2*rleu(x)")
    with pytest.raises(ValueError, match=r"as in tanh\(x\)"):
        function("tanh + 1")
    for wrong in (None, 3, [], [[1.0]], ["a"], b"relu", {"a": 1}, [math.nan], [1] * 70):
        with pytest.raises(ValueError, match=r"wanted a name|must be finite"):
            function(wrong)
    with pytest.raises(ValueError, match="describe a Python callable"):
        function("relu", kinks=[0.0])


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=60) | st.text(alphabet="xeh12.0+-*/() ,\tpitansqr", max_size=30))
@example("x" * 201)
@example("h" + "9" * 100)
@example("1" * 199)
@example("x**-1")
def test_random_text_gives_a_function_or_a_value_error(text):
    try:
        f = function(text)
    except ValueError:
        return
    assert isinstance(f, Function)
    assert function(f.spec) == f


NUMBERS = st.integers(0, 9).map(float) | st.floats(0.01, 9).map(lambda v: float(f"{v:.3g}"))
LEAVES = (
    st.just(expressions._X)
    | NUMBERS.map(lambda v: expressions._Node("number", (), v))
    | st.sampled_from(["pi", "e"]).map(expressions._Node)
)


def trees(functions: list[str], *, exponents: bool = True) -> st.SearchStrategy:
    def grow(inner: st.SearchStrategy) -> st.SearchStrategy:
        binary = st.tuples(
            st.sampled_from(["+", "-", "*", "/"] if exponents else ["+", "-", "*"]), inner, inner
        )
        choices = [
            binary.map(lambda t: expressions._Node(t[0], t[1:])),
            inner.map(lambda a: expressions._Node("neg", (a,))),
            st.tuples(st.sampled_from(functions), inner).map(lambda t: expressions._Node(t[0], t[1:])),
        ]
        if exponents:
            choices.append(st.tuples(inner, inner).map(lambda t: expressions._Node("**", t)))
            choices.append(
                st.tuples(st.sampled_from(["min", "max"]), inner, inner).map(
                    lambda t: expressions._Node(t[0], t[1:])
                )
            )
        return st.one_of(choices)

    return st.recursive(LEAVES, grow, max_leaves=8)


@settings(max_examples=150, deadline=None)
@given(trees(["tanh", "relu", "h2", "h11", "sqrt", "abs"]))
def test_spelling_round_trips(tree):
    text = expressions._spell(tree)
    if len(text) <= expressions.MAX_TEXT:
        assert expressions._parse(text) == tree
        assert expressions._parse(text.replace(" ", "")) == tree
        assert expressions._spell(expressions._parse(text)) == text


@settings(max_examples=200, deadline=None)
@given(trees(["tanh", "sin", "cos", "erf", "sigmoid", "gelu"], exponents=False), st.floats(-2, 2))
def test_derivatives_of_random_trees(tree, x):
    try:
        folded = expressions._fold(tree)
    except ValueError:
        return
    points = np.array([x])
    step = 1e-4

    def value(shift: float) -> float:
        return float(np.ravel(expressions._evaluate(folded, points + shift))[0])

    slope = float(np.ravel(expressions._dual(folded, points)[1])[0])
    far, near = (value(2 * step) - value(-2 * step)) / (4 * step), (value(step) - value(-step)) / (2 * step)
    # The difference of two step sizes says how far the quotient itself can be trusted.
    size = max(abs(value(k * step)) for k in (-2, 0, 2))
    assert abs(slope - near) <= 1e-7 * (1 + abs(slope)) + 3 * abs(far - near) + 1e-11 * size


@settings(max_examples=100, deadline=None)
@given(trees(["tanh", "sin", "cos", "erf", "h2"], exponents=False))
def test_values_of_random_trees_are_those_of_python(tree):
    """The same text, read by Python with our functions in place of ours, gives the same number."""
    try:
        folded = expressions._fold(tree)
    except ValueError:
        return
    scope = {
        "x": 0.7,
        "pi": math.pi,
        "e": math.e,
        "tanh": math.tanh,
        "sin": math.sin,
        "cos": math.cos,
        "erf": math.erf,
    }
    plain = expressions._spell(tree).replace("h2(", "square(").replace("h2", "square(x)")
    wanted = eval(plain.replace("square(x)(", "square("), {**scope, "square": lambda v: v * v - 1})
    assert float(np.ravel(expressions._evaluate(folded, np.array([0.7])))[0]) == pytest.approx(
        wanted, rel=1e-9, abs=1e-9
    )


# Callables.


def bumpy(x):
    return np.tanh(x) + 0.3 * np.cos(2 * x)


def bumpy_slope(x):
    return 1 - np.tanh(x) ** 2 - 0.6 * np.sin(2 * x)


def shifted_relu(x):
    return np.maximum(x - 0.3, 0)


def test_callable_with_and_without_derivative():
    expression = function("tanh(x) + 0.3*cos(2*x)")
    for f in (function(bumpy), function(bumpy, derivative=bumpy_slope)):
        assert f.spec == "callable:bumpy"
        assert_close(f.hermite(10), expression.hermite(10), 1e-14)
        x = np.linspace(-6, 6, 201)
        assert_close(f(x), expression(x), 1e-14)
        assert_close(f.derivative(x), expression.derivative(x), 1e-9)
        pairs = np.array(PAIRS[:6]).T
        assert_close(f.gaussian_moments(*pairs), expression.gaussian_moments(*pairs), 1e-12)
        assert f.derivative_second_moment == pytest.approx(expression.derivative_second_moment, abs=1e-9)
        assert pickle.loads(pickle.dumps(f)) == f


def test_callable_with_kinks():
    f = function(shifted_relu, kinks=[0.3], name="shifted")
    wanted = function("relu(x - 0.3)")
    assert f.spec == "callable:shifted"
    assert f.kinks == (0.3,)
    assert_close(f.hermite(12), wanted.hermite(12), 1e-14)
    x = np.array([-1.0, 0.29, 0.2999, 0.30001, 0.31, 2.0])
    assert_close(f.derivative(x), [0, 0, 0, 1, 1, 1], 1e-9)
    assert_close(f.gaussian_moments(1.3, 0.4), wanted.gaussian_moments(1.3, 0.4), 1e-12)
    two = function(lambda x: np.clip(x, 0.0, 0.01), kinks=(0.0, 0.01))
    assert_close(two.derivative(np.array([-1e-4, 1e-4, 0.0099, 0.0101])), [0, 1, 1, 0], 1e-8)
    assert function(shifted_relu).kinks == (0.3,)
    with pytest.raises(ValueError, match=r"kinks|derivative"):
        function(shifted_relu, kinks=[0.4])


@pytest.mark.parametrize(
    ("call", "kinks"),
    [
        (lambda x: np.maximum(x, 0), (0.0,)),
        (lambda x: np.maximum(x - math.sqrt(2), 0) ** 2, (math.sqrt(2),)),
        (lambda x: np.clip(x, -1, 1), (-1.0, 1.0)),
        (lambda x: np.where(x > 1 / 3, 1.0, np.sin(x)), (1 / 3,)),
        (np.tanh, ()),
        (lambda x: np.sin(20 * x), ()),
        (lambda x: x**5 - np.exp(x), ()),
    ],
)
def test_kinks_of_callables_are_found(call, kinks):
    assert find_kinks(call, 8) == pytest.approx(kinks, abs=1e-6)


def test_a_callable_with_a_kink_needs_no_more_words():
    found, known = function(lambda x: np.maximum(x, 0)), function("relu")
    assert found.kinks == (0.0,)
    assert found.second_moment == pytest.approx(known.second_moment, rel=1e-14)
    np.testing.assert_allclose(found.hermite(8), known.hermite(8), rtol=0, atol=1e-14)
    np.testing.assert_allclose(found.derivative(np.array([-1.0, 1.0])), [0, 1], atol=1e-9)


def test_callables_do_not_touch_their_argument():
    f = function(lambda x: x, centre=False)
    g = function(lambda x: x + 1)
    x = np.array([1.0, 2.0])
    assert g(x).tolist() == pytest.approx([1.0, 2.0])
    f(x)[:] = 7
    assert x.tolist() == [1.0, 2.0]
    for name in ("identity", "relu", "x", "h1", "cubic", "x*1", "x**1 + tanh(x)*0"):
        function(name)(x)[:] = 7
        assert x.tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("call", "options", "match"),
    [
        (math.tanh, {}, "must take an array"),
        (lambda x: x.sum(), {}, "in the shape of its argument"),
        (lambda x: x - x.mean(), {}, "each element alone"),
        (lambda x: x[:-1], {}, "in the shape of its argument"),
        (lambda x: x + 1j, {}, "real numbers"),
        (lambda x: np.exp(x**2), {}, "not finite|not square-integrable"),
        (lambda x: np.tanh(40 * x), {}, "write function.f, derivative="),
        (np.tanh, {"derivative": np.cos}, "is not its derivative"),
        (np.abs, {"derivative": np.sign, "kinks": [0.5]}, "kinks"),
        (lambda x: x.astype(np.float32) ** 2 * np.tanh(x.astype(np.float32)), {}, "did not settle"),
        (np.tanh, {"kinks": [math.nan]}, "finite"),
    ],
)
def test_bad_callables(call, options, match):
    with pytest.raises(ValueError, match=match), np.errstate(all="ignore"):
        function(call, **options)


# Functions that jump are teachers only.


@pytest.mark.parametrize("text", ["sign", "2*sign(x - 1)", "sign(x) + x", "sign(sin(x))*x**2"])
def test_functions_that_jump(text):
    f = function(text)
    assert f.second_moment > 0
    with pytest.raises(ValueError, match="can only be a teacher"):
        f.derivative(np.zeros(2))
    with pytest.raises(ValueError, match="can only be a teacher"):
        _ = f.derivative_second_moment


def test_continuous_uses_of_sign_have_a_derivative():
    x = np.array([-2.0, 0.5])
    assert function("x*sign(x)").derivative(x).tolist() == [-1.0, 1.0]
    jump = function(lambda x: np.where(x > 0.2, 1.0, 0.0), kinks=[0.2])
    with pytest.raises(ValueError, match="can only be a teacher"):
        jump.derivative(x)
    with pytest.raises(ValueError, match=r"did not settle|no Gaussian average"):
        _ = function("sqrt(abs(x))").derivative_second_moment


# The object.


@pytest.mark.parametrize(
    "name", [*ACTIVATIONS, "tanh(x) + h2/2", "max(x, 0.1*x)**2", "2*relu(x - 1)/3", "1/(1 + x**2)"]
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_dtype_and_shape_are_kept(name, dtype):
    f = function(name)
    x = np.random.default_rng(1).standard_normal((3, 4, 2)).astype(dtype)
    for what in (f, f.derivative):
        found = what(x)
        assert found.dtype == dtype
        assert found.shape == x.shape
        assert_close(found, what(x.astype(np.float64)), 1e-5 if dtype == np.float32 else 1e-15)
        assert np.shape(what(dtype(0.5))) == ()
        assert np.asarray(what(dtype(0.5))).dtype == dtype
        assert what([1, 2]).dtype == np.float64


def test_moments_broadcast():
    scale, shift = np.linspace(0, 3, 4)[:, None], np.linspace(-2, 2, 5)
    for name in ("relu", "tanh", "silu", "h3", "identity", "tanh(x) + h2", "relu(x)*tanh(x)"):
        f = function(name)
        whole = f.gaussian_moments(scale, shift)
        assert all(m.shape == (4, 5) for m in whole)
        for i, j in [(0, 0), (1, 3), (3, 4)]:
            one = f.gaussian_moments(float(scale[i, 0]), float(shift[j]))
            assert_close([float(m) for m in one], [m[i, j] for m in whole], 1e-14)
        assert all(m.shape == (0,) for m in f.gaussian_moments(np.zeros(0), 1.0))


@pytest.mark.parametrize("soft", [False, True])
def test_steep_logistic_functions_by_a_step_agree_with_the_trapezoid_rule(soft):
    for scale in (30.0, 200.0):
        shift = np.linspace(-9, 9, 41) * scale
        for one, other in zip(
            shapes._steep_logistic(np.full(41, scale), shift, soft),
            shapes._gentle_logistic(np.full(41, scale), shift, soft),
            strict=True,
        ):
            assert_close(one, other, 1e-13 * np.abs(other).max())


def test_a_logistic_function_of_any_steepness_has_averages():
    for scale in (1e4, 1e9, 1e150):
        mean, slope, square = function("tanh").gaussian_moments([scale] * 2, [0.0, scale])
        assert_close(mean, [0.0, math.erf(math.sqrt(0.5))], 1e-7)
        assert_close(slope, [math.sqrt(2 / math.pi) * math.exp(-x) for x in (0, 0.5)], 1e-7)
        assert_close(square, [1.0, 1.0], 1e-4)


def test_moments_refuse():
    tanh = function("tanh")
    with pytest.raises(ValueError, match=r"scale must be finite and zero or more, got -1.0"):
        tanh.gaussian_moments([1.0, -1.0], 0.0)
    with pytest.raises(ValueError, match="shift must be finite, got nan"):
        tanh.gaussian_moments(1.0, [0.0, math.nan])
    with pytest.raises(ValueError, match="did not settle"):
        function("exp(x/2) + 0*tanh(x)").gaussian_moments(40.0, 0.0)
    with pytest.raises(ValueError, match="zero or more"):
        tanh.hermite_of_scaled([-1.0], 3)
    for wrong in (lambda: tanh.hermite(-1), lambda: tanh.tail(-1)):
        with pytest.raises(ValueError, match="zero or more"):
            wrong()


@pytest.mark.parametrize("name", ["tanh", "softplus", "silu", "sigmoid"])
def test_moments_far_outside_the_usual_range(name):
    """Shifts so large that exp(t) would overflow."""
    assert_moments(
        function(name, centre=False), DENSE_SAFE[name], [(1.0, 900.0), (2.0, -900.0), (30.0, 500.0)], 1e-12
    )


DENSE_SAFE = {
    "tanh": np.tanh,
    "softplus": lambda x: np.logaddexp(0.0, x),
    "silu": lambda x: 0.5 * x * (1 + np.tanh(x / 2)),
    "sigmoid": lambda x: 0.5 * (1 + np.tanh(x / 2)),
}


def test_derivative_second_moment():
    for name in ("tanh", "gelu", "softplus", "leaky_relu", "elu", "h4", "tanh(x) + h2/2"):
        f = function(name)
        wanted = dense(lambda z, f=f: f.derivative(z) ** 2, f.kinks, 0.1)
        assert f.derivative_second_moment == pytest.approx(wanted, rel=1e-11)


@pytest.mark.parametrize(
    "spec", ["relu", "tanh(2*x)", "h1 + h2/sqrt(2)", "tanh(x)*relu(x)", [0, 1, 0.5], bumpy]
)
@pytest.mark.parametrize("centre", [True, False])
def test_pickles_copies_and_hashes(spec, centre):
    f = function(spec, centre=centre)
    f.hermite(5)
    for other in (pickle.loads(pickle.dumps(f)), copy.deepcopy(f), function(spec, centre=centre)):
        assert other == f
        assert hash(other) == hash(f)
        assert other.spec == f.spec
        assert other.centred == centre
        x = np.linspace(-2, 2, 5)
        assert other(x).tolist() == f(x).tolist()
    assert function(f) is f
    assert f != function(spec, centre=not centre)
    assert f != "relu"


def test_repr():
    assert repr(function("relu")) == "Function('relu', centred)"
    assert repr(function([0, 1, -0.5], centre=False)) == "Function('hermite(0, 1, -0.5)', not centred)"


def test_frozen():
    with pytest.raises(AttributeError):
        function("relu").spec = "tanh"


def test_keys_are_stable():
    """Results are stored under keys: a change orphans every stored number, so none may come by accident."""
    assert function("relu").key == "6afbbe07ffc2c49e"
    assert function("h1 + h2/sqrt(2)", centre=False).key == "69a926d8a52d1de0"
    keys = {
        function(s, centre=c).key for s in ("relu", "tanh", "h1", [0, 1], "x", np.tanh) for c in (True, False)
    }
    assert len(keys) == 12


def test_callables_are_told_apart_by_their_values():
    first, second = function(lambda x: np.tanh(x), name="f"), function(lambda x: np.tanh(1.001 * x), name="f")
    assert first.spec == second.spec
    assert first != second
    assert first == function(lambda y: np.tanh(y) + 0, name="f")


@pytest.mark.parametrize(
    "text", ["relu(1/x)", "relu(1/(x - 0.3))", "abs(x)**-0.5", "relu(1/x - 3)", "1/abs(x)"]
)
def test_growth_at_a_kink_that_no_rule_sees_is_refused(text: str) -> None:
    """E f^2 is infinite, and yet two levels of a rule agreed on 958 for the first."""
    with pytest.raises(ValueError, match=r"not square-integrable: near x = \S+ it grows like|is not finite"):
        function(text)


@pytest.mark.parametrize("width", [1e-2, 1e-3, 3e-4, 4e-5])
def test_a_narrow_bump_is_right_or_refused(width: float) -> None:
    """Two levels of a rule may both hit, or both miss, what is narrower than the distance of their nodes."""
    for place in (1.2345, 0.1, -0.7071, 2.0):
        text = f"30*exp(-{1 / width**2!r}*(x - {place})**2) + x"
        density = math.exp(-(place**2) / 2) / math.sqrt(2 * math.pi)
        # Up to terms of second order in the width.
        power = 1 + density * math.sqrt(math.pi) * width * (900 / math.sqrt(2) + 60 * place)
        mean = 30 * density * math.sqrt(math.pi) * width
        try:
            found = function(text, centre=False)
        except ValueError as error:
            assert re.search(r"varies too fast|did not settle", str(error))  # noqa: PT017
        else:
            assert found.second_moment == pytest.approx(power, rel=20 * width)
            assert found.mean == pytest.approx(mean, rel=20 * width, abs=1e-9)


def test_a_callable_with_a_narrow_bump_is_right_or_refused() -> None:
    for place in (1.2345, 0.1, -0.7071, 2.0):

        def bump(x, place=place):
            return 30 * np.exp(-1e6 * (x - place) ** 2) + x

        def slope(x, place=place):
            return -6e7 * (x - place) * np.exp(-1e6 * (x - place) ** 2) + 1

        density = math.exp(-(place**2) / 2) / math.sqrt(2 * math.pi)
        power = 1 + density * math.sqrt(math.pi) * 1e-3 * (900 / math.sqrt(2) + 60 * place)
        try:
            found = function(bump, derivative=slope, centre=False).second_moment
        except ValueError:
            # Its averages, or its derivative, cannot be had by numbers.
            continue
        assert found == pytest.approx(power, rel=0.02)


@pytest.mark.parametrize(
    "text",
    ["tanh(5*x) + sin(3*x)", "exp(x**2/5)", "sqrt(abs(x))", "sign(x)*x**2", "min(relu(x), 1)", "gelu(x)*x"],
)
def test_what_is_well_behaved_is_not_refused(text: str) -> None:
    assert function(text).second_moment > 0


@pytest.mark.parametrize("name", ["relu", "leaky_relu", "abs"])
def test_hermite_coefficients_of_a_corner_are_those_of_the_rule(name):
    rng = np.random.default_rng(3)
    scale, shift = np.abs(rng.normal(size=200)) + 0.01, 2 * rng.normal(size=200)
    made = function(name)
    found = made.gaussian_hermite(scale, shift, 10)
    rule = averages._hermite_sums(made._shape, scale, shift, 10)
    assert np.abs(found[1:] - rule[1:]).max() < 1e-9
    assert np.abs(found[3:]).max() > 0.1
    # Without a scale, or with none to speak of, only the value is left.
    assert np.abs(made.gaussian_hermite([0.0, 0.0, 1e-200], [0.0, 1.0, 1.0], 6)[1:]).max() < 1e-100
