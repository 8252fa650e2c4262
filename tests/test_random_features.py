"""Traces and errors without a step: high precision, branches, identities, a small simulation."""

import math

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firststep import Problem, Sizes, function
from firststep.numerics.fixedpoint import ConvergenceError
from firststep.setting import OutsideTheoryWarning
from firststep.theory import predict
from firststep.theory.limits import random_features
from firststep.theory.limits.random_features import equation_residuals, limiting_traces, solve

RELU = {"linear": 0.5, "nonlinear": math.sqrt(0.25 - 0.5 / math.pi)}

ridges = st.floats(-12, 12).map(lambda e: 10.0**e)
ratios = st.floats(-3, 3).map(lambda e: 10.0**e)
coefficients = st.one_of(st.just(0.0), st.floats(-4, 2).map(lambda e: 10.0**e))


def precise(ridge, sample_ratio, width_ratio, linear, nonlinear):
    """(t1, t2) with 60 digits, by bisection and Anderson's method on the scalar equation."""
    lam = mp.mpf(ridge)
    phi, psi, c1, c_rest = (mp.mpf(float(v)) for v in (sample_ratio, width_ratio, linear, nonlinear))
    ratio, linear2, rest2 = phi / psi, c1**2, c_rest**2

    def parts(t):
        top, b = 1 + rest2 * t, linear2 * t / psi
        p = b * (1 - psi) - top
        return (-p + mp.sqrt(p * p + 4 * top * b)) / 2, b

    def excess(x):
        t = mp.exp(x)
        return lam * t + ratio * (1 - 1 / parts(t)[0]) - 1

    low, high = -mp.log(lam + ratio * (linear2 + rest2)) - 1, -mp.log(lam) + 1
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if excess(middle) > 0 else (middle, high)
    t = mp.exp(mp.findroot(excess, (low, high), solver="anderson", tol=mp.mpf(10) ** -110, verify=False))
    w, b = parts(t)
    return t, t * w / (w + b)


def corner_points():
    generator = np.random.default_rng(3)
    special = [
        (ridge, phi, psi, *c)
        for ridge in (1e-12, 1e-3, 1e12)
        for phi in (1e-3, 1.0, 1e3)
        for psi in (1e-3, 1.0, 1 - 1e-9, 1e3)
        for c in ((0.5, 0.3), (1.0, 0.0), (0.0, 1.0), (1.0, 1e-5))
    ]
    free = 10 ** generator.uniform([-12, -3, -3, -6, -6], [12, 3, 3, 1, 1], size=(60, 5))
    # The interpolation threshold n = N and its neighbourhood.
    near = [(1e-10, 0.7, 0.7 * (1 + gap), 0.5, 0.3) for gap in (0.0, 1e-15, -1e-12, 1e-7, -1e-4)]
    return np.array([*special, *near, *free])


def test_published_value():
    traces = limiting_traces(0.05, 0.5, 0.625, **RELU)
    assert f"{traces.m1:.5f} {traces.m2:.5f}" == "7.62331 3.28988"
    assert traces.t1 == pytest.approx(1.25 * traces.m1, rel=1e-15)


def test_traces_and_derivatives_against_high_precision():
    points = corner_points()
    traces = limiting_traces(*points.T)
    with mp.workdps(60):
        for i, point in enumerate(points):
            lam = mp.mpf(float(point[0]))
            step = lam * mp.mpf(10) ** -18
            t1, t2 = precise(lam, *point[1:])
            up, down = precise(lam + step, *point[1:]), precise(lam - step, *point[1:])
            d1, d2 = ((u - v) / (2 * step) for u, v in zip(up, down, strict=True))
            wanted = {
                "t1": t1,
                "t2": t2,
                "dt1": d1,
                "dt2": d2,
                "m1": t1 * mp.mpf(float(point[1])) / mp.mpf(float(point[2])),
                "dp1": t1 + lam * d1,
                "dp2": t2 + lam * d2,
                "degrees_of_freedom": 1 - lam * t1,
            }
            for name, value in wanted.items():
                found = mp.mpf(float(getattr(traces, name)[i]))
                assert abs(found - value) <= 1e-13 * abs(value), (name, point)


def test_the_high_precision_reference_solves_the_printed_equations():
    # The reference comes from the scalar equation: here it is put into the two printed ones.
    with mp.workdps(60):
        for point in corner_points()[::7]:
            if point[3] == 0:
                continue
            lam, phi, psi, c1, c_rest = (mp.mpf(float(v)) for v in point)
            m1, m2 = (phi / psi * t for t in precise(lam, *point[1:]))
            common = c1**2 * m1 * m2 * (lam * psi * m1 / phi - 1)
            first = phi * (m1 - m2) * (c_rest**2 * m1 + c1**2 * m2)
            second = phi / psi * (c1**2 * m1 * m2 + phi * (m2 - m1))
            size = abs(phi / psi * phi * m1) + phi * m1 * (c_rest**2 * m1 + c1**2 * m2) + c1**2 * m1 * m2
            assert abs(first + common) < mp.mpf(10) ** -40 * size
            assert abs(second + common) < mp.mpf(10) ** -40 * size


@pytest.mark.parametrize(("phi", "psi"), [(0.5, 0.625), (2.0, 0.5), (0.3, 3.0), (1.0, 1.0)])
def test_the_branch_is_the_one_that_continues_from_a_large_ridge(phi, psi):
    c1, c_rest = RELU["linear"], RELU["nonlinear"]

    def printed(m, lam):
        common = c1**2 * m[0] * m[1] * (lam * psi * m[0] / phi - 1)
        return np.array(
            [
                phi * (m[0] - m[1]) * (c_rest**2 * m[0] + c1**2 * m[1]) + common,
                phi / psi * (c1**2 * m[0] * m[1] + phi * (m[1] - m[0])) + common,
            ]
        )

    ladder = np.geomspace(1e3, 1e-4, 600)
    m = np.full(2, phi / (psi * ladder[0]))
    for lam in ladder:
        for _ in range(12):
            scale = np.maximum(np.abs(m), 1e-30)
            columns = [
                (printed(m + 1e-7 * scale * unit, lam) - printed(m - 1e-7 * scale * unit, lam))
                / (2e-7 * scale @ unit)
                for unit in np.eye(2)
            ]
            m = m - np.linalg.solve(np.array(columns).T, printed(m, lam))
    traces = limiting_traces(ladder[-1], phi, psi, c1, c_rest)
    assert m == pytest.approx([float(traces.m1), float(traces.m2)], rel=1e-6)


@given(ridges, ratios, ratios, coefficients, coefficients)
def test_every_point_has_the_properties_of_a_trace(ridge, phi, psi, c1, c_rest):
    traces = limiting_traces([ridge, ridge * 1.1], phi, psi, c1, c_rest)
    assert np.all(traces.residual < 1e-13)
    assert np.all(traces.iterations < 30)
    assert np.all(traces.m2 > 0)
    assert np.all(traces.m1 >= traces.m2)
    assert np.all(ridge * traces.t1[0] <= 1 + 1e-15)
    assert traces.t1[1] < traces.t1[0]
    assert traces.t2[1] < traces.t2[0]
    assert np.all(traces.dt1 < 0)
    assert np.all(traces.dt2 < 0)
    assert np.all(traces.dp1 >= 0)
    assert np.all(
        (traces.degrees_of_freedom >= 0) & (traces.degrees_of_freedom <= min(1, phi / psi) * (1 + 1e-12))
    )
    if c1 == 0:
        assert traces.m1 == pytest.approx(traces.m2, rel=1e-15)


@given(ridges, ratios, ratios, st.floats(0.05, 20))
def test_scaling_activation_and_ridge_together_scales_the_traces(ridge, phi, psi, factor):
    plain = limiting_traces(ridge, phi, psi, **RELU)
    scaled = limiting_traces(factor**2 * ridge, phi, psi, *(factor * c for c in RELU.values()))
    assert factor**2 * scaled.m1 == pytest.approx(float(plain.m1), rel=1e-12)
    assert factor**2 * scaled.m2 == pytest.approx(float(plain.m2), rel=1e-12)
    assert factor**4 * scaled.dm2 == pytest.approx(float(plain.dm2), rel=1e-12)


def test_a_large_ridge_leaves_nothing_but_the_ridge():
    traces = limiting_traces(1e12, 0.5, 0.625, **RELU)
    assert [float(traces.m1), float(traces.m2)] == pytest.approx([0.8e-12] * 2, rel=1e-11)
    found = solve(Problem("relu", "tanh", 0.3), Sizes(1000, 500, 800), 0.0, 1e12)
    assert found.test_error[0, 0] == pytest.approx(found.problem.label_variance, rel=1e-9)
    assert found.train_mse[0, 0] == pytest.approx(found.problem.label_variance, rel=1e-9)


def test_no_activation_at_all():
    traces = limiting_traces([1e-3, 7.0], 0.5, 0.625, linear=0.0, nonlinear=0.0)
    assert traces.t1 == pytest.approx([1e3, 1 / 7.0])
    assert traces.t2 == pytest.approx(traces.t1)
    assert traces.degrees_of_freedom == pytest.approx([0, 0])


@pytest.mark.parametrize("phi", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("psi", [0.2, 1.0, 3.0])
def test_identity_activation_is_a_product_of_two_gaussian_matrices(phi, psi):
    # X~ Sigma X~^T with Sigma = W0^T W0: the companion equation of the sample covariance, with the
    # Marchenko-Pastur transform of Sigma in closed form.
    lam = np.array([1e-3, 0.1, 10.0])
    traces = limiting_traces(lam, phi, psi, linear=1.0, nonlinear=0.0)
    # (1/d) tr (1 + t Sigma)^-1: s(x) = (1/d) tr (Sigma + x)^-1 solves x s^2 + (x + 1/psi - 1) s - 1 = 0.
    x = 1 / traces.t1
    middle = x + 1 / psi - 1
    s = (-middle + np.sqrt(middle**2 + 4 * x)) / (2 * x)
    assert lam * traces.t1 + phi * (1 - x * s) == pytest.approx(np.ones(3), rel=1e-10)
    assert traces.t2 == pytest.approx(traces.t1 * x * s, rel=1e-8)


def test_features_without_linear_part_are_a_gaussian_matrix():
    lam, phi, psi = np.array([1e-6, 0.1, 3.0]), 0.4, 0.9
    traces = limiting_traces(lam, phi, psi, linear=0.0, nonlinear=1.0)
    ratio = phi / psi
    middle = lam + ratio - 1
    t = (-middle + np.sqrt(middle**2 + 4 * lam)) / (2 * lam)
    assert traces.t1 == pytest.approx(t, rel=1e-9)


@pytest.mark.parametrize(
    ("name", "value"),
    [("ridge", 0.0), ("ridge", -1.0), ("sample_ratio", 0.0), ("width_ratio", math.inf), ("linear", math.nan)],
)
def test_bad_arguments_are_named(name, value):
    arguments = {"ridge": 0.1, "sample_ratio": 0.5, "width_ratio": 0.5, "linear": 1.0, "nonlinear": 1.0}
    with pytest.raises(ValueError, match=f"{name} must be .*finite, got {value}"):
        limiting_traces(**(arguments | {name: value}))


def test_a_ridge_out_of_all_proportion_is_refused():
    with pytest.raises(ValueError, match="rescale the activation"):
        limiting_traces(1e-40, 0.5, 0.5, linear=1e15, nonlinear=1.0)


def test_a_wrong_root_is_never_returned(monkeypatch):
    right = random_features._solve

    def wrong(*arguments):
        t, error, iterations = right(*arguments)
        return t * (1 + 1e-9), error, iterations

    monkeypatch.setattr(random_features, "_solve", wrong)
    with pytest.raises(
        ConvergenceError, match=r"residual .* at ridge=0.05.*bring the ratios or the ridge nearer"
    ):
        limiting_traces(0.05, 0.5, 0.625, **RELU)


def test_the_residual_rejects_wrong_values():
    traces = limiting_traces(0.05, 0.5, 0.625, **RELU)
    arguments = (0.05, 0.5, 0.625, *RELU.values())
    assert equation_residuals(*arguments, traces.m1, traces.m2) < 1e-15
    assert equation_residuals(*arguments, traces.m1 * 1.1, traces.m2) > 1e-3
    assert equation_residuals(*arguments, traces.m1, traces.m2 * 1.1) > 1e-3
    # Without a linear part the printed equations leave m1 free; the third does not.
    flat = limiting_traces(0.05, 0.5, 0.625, 0.0, 1.0)
    assert equation_residuals(0.05, 0.5, 0.625, 0.0, 1.0, 1.1 * flat.m1, 1.1 * flat.m1) > 1e-3


def test_shapes_broadcast():
    traces = limiting_traces(np.full((3, 1), 0.1), np.array([0.5, 1.0]), 0.5, 1.0, 0.5)
    assert traces.m1.shape == traces.dm2.shape == traces.residual.shape == traces.iterations.shape == (3, 2)
    assert limiting_traces([], 0.5, 0.5, 1.0, 0.5).t1.shape == (0,)
    assert limiting_traces(0.1, 0.5, 0.5, 1.0, 0.5).t1.shape == ()
    # More points than are solved together.
    many = limiting_traces(np.geomspace(1e-3, 1e3, 10_001), 0.5, 0.5, 1.0, 0.5)
    one = limiting_traces(1.0, 0.5, 0.5, 1.0, 0.5)
    assert many.t1[5000] == pytest.approx(float(one.t1), rel=1e-14)


def test_trace_along_a_direction():
    traces = limiting_traces(np.geomspace(1e-6, 1e6, 9), 0.5, 0.625, **RELU)
    for found, wanted in zip(traces.along(0.25), (traces.t2, traces.dt2, traces.dp2), strict=True):
        assert found == pytest.approx(wanted, rel=1e-13)
    for found, wanted in zip(traces.along(0.0), (traces.t1, traces.dt1, traces.dp1), strict=True):
        assert found == pytest.approx(wanted, rel=1e-13)
    near = limiting_traces(traces.ridge * (1 + 1e-5), 0.5, 0.625, **RELU).along(0.7)
    value, slope, penalised = traces.along(0.7)
    assert (near[0] - value) / (1e-5 * traces.ridge) == pytest.approx(slope, rel=1e-4)
    # Not a difference of large numbers: the identity is checked where it is well conditioned.
    assert penalised[:5] == pytest.approx((value + traces.ridge * slope)[:5], rel=1e-9)


@pytest.mark.parametrize(
    ("sizes", "ridge", "train", "test"),
    [
        (Sizes(1000, 500, 800), 0.05, 0.801189, 2.48788),
        (Sizes(1000, 500, 750), 0.1, 1.022087, 2.20800),
        (Sizes(500, 1000, 2000), 0.01, 0.024268, 2.774683),
    ],
)
def test_published_errors(sizes, ridge, train, test):
    found = solve(Problem("relu", "h1 + h2/sqrt(2)", 0.5), sizes, 0.0, ridge, degrees=1)
    assert found.train_error[0, 0] == pytest.approx(train, abs=6e-7)
    assert found.test_error[0, 0] == pytest.approx(test, abs=6e-6)


def test_errors_do_not_change_when_activation_and_ridge_are_scaled():
    lam = np.geomspace(1e-4, 1e2, 7)
    sizes = Sizes(1000, 500, 800)
    plain = solve(Problem("tanh", "relu", 0.3), sizes, 0.0, lam)
    scaled = solve(Problem("3*tanh(x)", "relu", 0.3), sizes, 0.0, 9 * lam)
    for name in ("train_error", "test_error", "train_mse", "degrees_of_freedom"):
        assert scaled.values[name] == pytest.approx(plain.values[name], rel=1e-9)
    assert scaled.readout_norm_squared == pytest.approx(plain.readout_norm_squared / 9, rel=1e-9)


def test_the_norm_of_the_readout_is_the_slope_of_the_train_error():
    # The penalised minimum has this derivative in the ridge, whatever the features.
    sizes, lam = Sizes(1000, 500, 800), 0.07
    found = solve(Problem("tanh", "relu", 0.3), sizes, 0.0, [lam * (1 - 1e-5), lam, lam * (1 + 1e-5)])
    slope = (found.train_error[0, 2] - found.train_error[0, 0]) / (2e-5 * lam)
    assert found.readout_norm_squared[0, 1] == pytest.approx(slope, rel=1e-8)
    penalty = lam * found.readout_norm_squared[0, 1]
    assert found.train_mse[0, 1] + penalty == pytest.approx(found.train_error[0, 1], rel=1e-12)


def within(samples, value, bias):
    """Whether the mean of the samples is the value, up to four standard errors and a relative bias."""
    samples = np.asarray(samples)
    stderr = samples.std(ddof=1) / math.sqrt(len(samples))
    return abs(samples.mean() - value) < 4 * stderr + bias * abs(value)


def test_small_simulation():
    problem, sizes, ridge = Problem("relu", "tanh(2*x)", 0.5), Sizes(400, 200, 320), 0.1
    names = ("train_error", "test_error", "train_mse", "readout_norm_squared", "degrees_of_freedom")
    samples = {name: [] for name in names}
    generator = np.random.default_rng(11)
    n, d, width = 400, 200, 320

    def draw(weights, count):
        inputs = generator.standard_normal((count, d))
        labels = problem.teacher(inputs[:, 0]) + 0.5 * generator.standard_normal(count)
        return problem.activation(inputs @ weights.T), labels

    for _ in range(48):
        weights = generator.standard_normal((width, d)) / math.sqrt(d)
        features, labels = draw(weights, n)
        gram = features.T @ features
        inverse = np.linalg.inv(gram + ridge * n * np.eye(width))
        readout = inverse @ (features.T @ labels)
        mse = np.mean((labels - features @ readout) ** 2)
        test_features, test_labels = draw(weights, 2000)
        samples["train_mse"].append(mse)
        samples["readout_norm_squared"].append(readout @ readout)
        samples["train_error"].append(mse + ridge * readout @ readout)
        samples["test_error"].append(np.mean((test_labels - test_features @ readout) ** 2))
        samples["degrees_of_freedom"].append(np.sum(inverse * gram) / n)
    found = solve(problem, sizes, 0.0, ridge)
    for name in names:
        value = found.values[name][0, 0]
        assert within(samples[name], value, bias=0.015), name
        assert not within(samples[name], 1.1 * value, bias=0.015), name
        assert not within(samples[name], 0.9 * value, bias=0.015), name


def test_the_outcome_repeats_itself_for_every_step_size():
    problem, sizes = Problem("relu", "tanh", 0.1), Sizes(1000, 500, 800)
    found = predict(problem, sizes, [0.0, 3.0], [0.1, 0.2, 0.3], theory="random_features")
    assert found.source == "random_features"
    assert found.test_error.shape == found.train_gain.shape == (2, 3)
    assert np.array_equal(found.test_error[0], found.test_error[1])
    assert not found.test_gain.any()
    assert found.weights_top.shape == (2, 1)
    assert found.weights_top[1, 0] == pytest.approx(1 + math.sqrt(1.6))
    assert found.direction_norm.shape == found.alignment.shape == ()
    assert found.details["residual"] < 1e-14
    assert len(found.rows()) == 6


def test_means_that_are_not_zero_warn_and_still_answer():
    problem = Problem(function("relu", centre=False), "tanh", 0.1)
    with pytest.warns(OutsideTheoryWarning, match="has mean 0.399; the theory assumes 0"):
        found = predict(problem, Sizes(1000, 500, 800), 0.0, 0.1, theory="random_features")
    assert np.isfinite(found.test_error).all()
    assert "relu" in found.notes[0]
