"""The staircase: published values, the general formula in high precision, identities, large spikes."""

import math

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ndtri

from firststep import Problem, Sizes, predict
from firststep.gaussian import monomial_in_hermite
from firststep.setting import OutsideTheoryWarning
from firststep.theory.limits import staircase
from firststep.theory.limits.random_features import teacher_parts, traces_of
from firststep.theory.limits.staircase import (
    captured,
    delta_1,
    delta_2,
    delta_general,
    lambda_1,
    lambda_1_as_printed,
    lambda_2,
    lambda_2_as_printed,
    solve,
    spike_count,
    spike_degrees,
    spread,
)

SETTING = Problem("relu", "h1 + h2/sqrt(2)", noise_std=0.5)
SIZES = Sizes(1000, 500, 800)
# Every degree up to eight is there, in the activation and in the teacher.
ALL = Problem("softplus(x) + tanh(x)", [0, 1, 0.5, 0.3, 0.15, 0.06, 0.02, 0.006, 0.002], noise_std=0.5)


@pytest.mark.parametrize(
    ("sizes", "ridge", "levels"),
    [
        (SIZES, 0.05, [(0.801189, 2.48788), (0.704427, 2.24610), (0.634085, 2.01294)]),
        (Sizes(1000, 500, 750), 0.1, [(1.022087, 2.20800), (0.882674, 1.96624), (0.796947, 1.76613)]),
        (Sizes(500, 1000, 2000), 0.01, [(0.024268, 2.774683), (0.022715, 2.629468), (0.022438, 2.594629)]),
    ],
)
def test_published_levels(sizes, ridge, levels):
    given_count = solve(SETTING, sizes, [0.0, 0.0, 0.0], ridge, n_spikes=[0, 1, 2])
    from_exponent = predict(SETTING, sizes, ridges=ridge, step_exponents=[-0.1, 0.1, 0.3], theory="staircase")
    for found in (given_count, from_exponent):
        assert found.train_error[:, 0] == pytest.approx([train for train, _ in levels], abs=1.01e-6)
        assert found.test_error[:, 0] == pytest.approx([test for _, test in levels], abs=6e-6)
        assert found.details["n_spikes"] == [0, 1, 2]


def test_number_of_spikes():
    for count in range(1, 9):
        low, high = (count - 1) / (2 * count), count / (2 * count + 2)
        inside = np.array([low + 1e-6, (low + high) / 2, high - 1e-6])
        assert spike_count(inside).tolist() == [count] * 3
        # On the threshold the next spike is not there yet, however 1/3 and 3/8 are rounded.
        assert spike_count([high, np.nextafter(high, 0), np.nextafter(high, 1)]).tolist() == [count] * 3
    assert spike_count([-np.inf, -0.5, 0.0]).tolist() == [0, 0, 0]
    assert spike_count([0.4999999, 0.5]).tolist() == [staircase.MAX_SPIKES] * 2
    assert spike_count(0.5, maximum=3) == 3
    for wrong in (0.51, math.nan):
        with pytest.raises(ValueError, match=r"at most 1/2 .*unified"):
            spike_count([0.1, wrong])


def test_degrees_present():
    assert spike_degrees(ALL, 5) == (1, 2, 3, 4, 5)
    assert spike_degrees(SETTING, 7) == (1, 2, 4, 6)
    assert spike_degrees(Problem("tanh", "identity"), 6) == (1, 3, 5)
    assert spike_degrees(Problem("identity", "identity"), 6) == (1,)
    assert spike_degrees(Problem("h2", "identity"), 6) == ()
    assert spike_degrees(SETTING, 0) == ()
    assert spike_degrees(Problem("relu", "identity", readout="rademacher"), 6) == (1, 2)
    assert spike_degrees(Problem("tanh", "identity", readout="rademacher"), 6) == (1,)
    assert spike_degrees(Problem("relu", "identity", readout="constant"), 6) == (1,)


def general_formula(problem, sizes, n_spikes, t1, t2):
    """v^T M^-1 v with 60 digits, from the monomials as the formula has them."""
    degrees = spike_degrees(problem, n_spikes)
    count = degrees[-1] + 1
    xi = monomial_in_hermite(count)
    c_star = problem.teacher.hermite(count)
    with mp.workdps(60):
        r = mp.mpf(float(c_star[1])) / mp.sqrt(mp.mpf(problem.direction_norm_squared(sizes)))
        tau = [mp.mpf(float(t2 if i == 1 else t1)) for i in range(count)]
        g = [mp.factorial(p) * mp.mpf(float(c_star[p])) * r**p * tau[p] for p in range(count)]
        matrix = mp.matrix(
            [
                [
                    mp.fsum(mp.factorial(i) * int(xi[j, i]) * int(xi[k, i]) * tau[i] for i in range(count))
                    for k in degrees
                ]
                for j in degrees
            ]
        )
        v = mp.matrix([mp.fsum(int(xi[k, p]) * g[p] for p in range(count)) for k in degrees])
        return (v.T * mp.lu_solve(matrix, v))[0]


@pytest.mark.parametrize("output", ["vanishing", "order_one"])
@pytest.mark.parametrize("activation", ["softplus(x) + tanh(x)", "relu", "tanh"])
def test_any_number_of_spikes_against_the_general_formula(activation, output):
    problem = Problem(activation, ALL.teacher, 0.5, initial_output=output)
    sizes = Sizes(800, 500, 700, 1300)
    traces = traces_of(problem, sizes, 0.05)
    linear, rest = teacher_parts(problem)
    h = 1e-6
    for n_spikes in (1, 2, 3, 4, 5, 8, 12):
        gain = general_formula(problem, sizes, n_spikes, traces.t1[0], traces.t2[0])
        found = solve(problem, sizes, 1.0, 0.05, n_spikes=n_spikes)
        q = float(linear * traces.t2[0] + rest * traces.t1[0] - gain)
        assert found.train_error[0, 0] == pytest.approx(0.05 * q, rel=1e-10)
        assert found.train_gain[0, 0] == pytest.approx(float(0.05 * gain), rel=1e-10)
        # The derivative in the ridge, through t1 and t2, by a difference of 60-digit numbers.
        moved = [
            (float(t + s * h * d))
            for s in (1, -1)
            for t, d in ((traces.t1[0], traces.dt1[0]), (traces.t2[0], traces.dt2[0]))
        ]
        slope = (
            general_formula(problem, sizes, n_spikes, *moved[:2])
            - general_formula(problem, sizes, n_spikes, *moved[2:])
        ) / (2 * h)
        assert found.test_gain[0, 0] == pytest.approx(float(-slope / traces.t1[0] ** 2), rel=1e-7)
        before = solve(problem, sizes, 1.0, 0.05, n_spikes=0)
        assert before.test_error - found.test_error == pytest.approx(found.test_gain, rel=1e-8)


def test_printed_train_gains_are_the_general_ones():
    lam = np.geomspace(1e-3, 10, 5)
    for problem in (SETTING, Problem("softplus", "tanh(x) + x**2", 0.2, initial_output="order_one")):
        for n_spikes, printed in ((1, delta_1), (2, delta_2)):
            found = solve(problem, SIZES, 1.0, lam, n_spikes=n_spikes).train_gain[0]
            assert printed(problem, SIZES, lam) == pytest.approx(found, rel=1e-10)
    for n_spikes in range(1, 9):
        found = solve(ALL, SIZES, 1.0, lam, n_spikes=n_spikes).train_gain[0]
        assert delta_general(ALL, SIZES, lam, n_spikes) == pytest.approx(found, rel=1e-8)
    with pytest.raises(ValueError, match=r"wants c_1, \.\.\., c_l all non-zero"):
        delta_general(SETTING, SIZES, lam, 3)
    with pytest.raises(ValueError, match="l at least 1"):
        delta_general(SETTING, SIZES, lam, 0)


def test_corrected_test_gains_are_the_general_ones():
    lam = np.geomspace(1e-3, 10, 5)
    for n_spikes, corrected in ((1, lambda_1), (2, lambda_2)):
        found = solve(SETTING, SIZES, 1.0, lam, n_spikes=n_spikes).test_gain[0]
        assert corrected(SETTING, SIZES, lam) == pytest.approx(found, rel=1e-10)


def test_printed_test_gains_are_not_gains():
    sizes, scaled = SIZES, Problem("3*relu(x)", "h1 + h2/sqrt(2)", 0.5)
    assert f"{lambda_1_as_printed(SETTING, sizes, 0.05)[0]:.1f}" == "17.6"
    assert f"{lambda_1(SETTING, sizes, 0.05)[0]:.3f}" == "0.242"
    # A test error is the same for 3 sigma and 9 lambda; the printed gains are not.
    for right, printed in ((lambda_1, lambda_1_as_printed), (lambda_2, lambda_2_as_printed)):
        assert right(scaled, sizes, 0.45) == pytest.approx(right(SETTING, sizes, 0.05), rel=1e-9)
        assert abs(printed(scaled, sizes, 0.45) / printed(SETTING, sizes, 0.05) - 1) > 0.9
    # The second printed term alone is invariant but off by phi/psi.
    printed = lambda_2_as_printed(SETTING, sizes, 0.05) - lambda_1_as_printed(SETTING, sizes, 0.05)
    right = lambda_2(SETTING, sizes, 0.05) - lambda_1(SETTING, sizes, 0.05)
    assert right / printed == pytest.approx(0.8)


@pytest.mark.parametrize("options", [{}, {"row_norms": True, "full_gradient": True}])
def test_errors_do_not_change_when_activation_and_ridge_are_scaled(options):
    scaled = Problem("2*relu(x)", SETTING.teacher, 0.5)
    for n_spikes in (1, 2, 4):
        plain = solve(SETTING, SIZES, 1.0, [0.01, 1.0], n_spikes=n_spikes, **options)
        other = solve(scaled, SIZES, 1.0, [0.04, 4.0], n_spikes=n_spikes, **options)
        for name in ("train_error", "test_error", "train_mse", "train_gain", "test_gain"):
            assert other.values[name] == pytest.approx(plain.values[name], rel=1e-9)


@given(st.floats(-4, 3), st.floats(0, 2), st.sampled_from(["gaussian", "rademacher", "constant"]))
def test_more_spikes_never_hurt(exponent, noise, readout):
    problem = Problem(ALL.activation, ALL.teacher, noise, readout=readout)
    found = solve(problem, SIZES, np.ones(7), 10.0**exponent, n_spikes=range(7))
    assert np.all(np.diff(found.train_error[:, 0]) <= 1e-14)
    assert np.all(np.diff(found.test_error[:, 0]) <= 1e-14)
    assert np.all(found.train_error > 0)
    assert np.all(found.test_error >= noise**2)
    assert np.all(found.train_mse <= found.train_error)
    norm = (found.train_error - found.train_mse) / found.ridges
    assert found.readout_norm_squared == pytest.approx(norm, rel=1e-6, abs=1e-9)


def test_only_the_direction_changes_with_the_initial_output():
    other = Problem("relu", "h1 + h2/sqrt(2)", 0.5, initial_output="order_one")
    plain = solve(SETTING, SIZES, 1.0, 0.05, n_spikes=2)
    found = solve(other, SIZES, 1.0, 0.05, n_spikes=2)
    ratio = SETTING.direction_norm_squared(SIZES) / other.direction_norm_squared(SIZES)
    one = captured(SETTING, SIZES, 2), captured(other, SIZES, 2)
    assert one[1].linear == pytest.approx(ratio * one[0].linear)
    assert one[1].rest == pytest.approx(ratio**2 * one[0].rest)
    assert found.test_error[0, 0] > plain.test_error[0, 0]


def test_a_teacher_without_linear_part_gains_nothing():
    problem = Problem("relu", "h2 + h3", 0.5)
    with pytest.warns(OutsideTheoryWarning, match="learns nothing"):
        found = predict(problem, SIZES, ridges=0.1, step_exponents=[0.1, 0.3], theory="staircase")
    assert np.all(found.train_gain == 0)
    assert np.all(found.test_gain == 0)
    assert "learns nothing" in found.notes[0]


def test_an_activation_without_linear_part_has_no_spikes():
    with pytest.warns(OutsideTheoryWarning, match="no rank-one part"):
        found = predict(Problem("h2", "identity"), SIZES, ridges=0.1, step_exponents=0.3, theory="staircase")
    assert found.details["degrees"] == [[]]
    assert found.test_gain[0, 0] == 0


def test_all_spikes_at_one_half():
    problem, sizes = Problem("softplus(x) + tanh(x)", "sin(x)", 0.0), Sizes(1000, 500, 800, 40_000)
    found = predict(problem, sizes, ridges=0.1, step_exponents=0.5, theory="staircase")
    assert f"{staircase.MAX_SPIKES} were counted" in found.notes[-1]
    # All that can be known from z is E[s(beta.x) | z], for the sine of second moment sinh(r^2)/e.
    part = captured(problem, sizes, staircase.MAX_SPIKES)
    r2 = part.linear / problem.teacher.hermite(2)[1] ** 2
    assert 0.97 < r2 < 1
    assert part.linear + part.rest == pytest.approx(math.sinh(r2) / math.e, rel=1e-9)


@pytest.mark.parametrize(
    ("n_spikes", "error", "message"),
    [
        (-1, ValueError, "between 0 and 20"),
        (21, ValueError, "between 0 and 20"),
        (1.5, TypeError, "whole number"),
        ([1, 2, 3], ValueError, "one for each of 2 step sizes"),
    ],
)
def test_bad_numbers_of_spikes(n_spikes, error, message):
    with pytest.raises(error, match=message):
        solve(SETTING, SIZES, [1.0, 2.0], 0.1, n_spikes=n_spikes)


def test_a_step_beyond_the_staircase_is_refused():
    with pytest.raises(ValueError, match="at most 1/2"):
        predict(SETTING, SIZES, ridges=0.1, step_exponents=0.6, theory="staircase")


def within(samples, value, bias):
    """Whether the mean of the samples is the value, up to four standard errors and a relative bias."""
    samples = np.asarray(samples)
    stderr = samples.std(ddof=1) / math.sqrt(len(samples))
    return abs(samples.mean() - value) < 4 * stderr + bias * abs(value)


def large_spikes(problem, sizes, cases, ridge, seed):
    """Train and test error: a row without spikes, one for each case {power of the readout: function of z}.

    The spikes have large coefficients, and z has the limit's correlation r with the teacher's direction.
    Along these two directions the inputs are a shifted lattice, so that moments of the teacher vary little.
    """
    generator = np.random.default_rng(seed)
    n, d, width = sizes.n_samples, sizes.dim, sizes.width
    r = float(problem.teacher.hermite(2)[1]) / math.sqrt(problem.direction_norm_squared(sizes))
    weights = generator.standard_normal((width, d)) / math.sqrt(d)
    if problem.rows == "sphere":
        weights /= np.linalg.norm(weights, axis=1, keepdims=True)
    readout = generator.standard_normal(width)

    def draw(count):
        inputs = generator.standard_normal((count, d))
        steps = np.arange(count)
        inputs[:, 0] = ndtri((steps + 0.5) / count)
        inputs[:, 1] = ndtri((steps * (math.sqrt(5) - 1) / 2 + generator.random()) % 1)
        labels = problem.teacher(inputs[:, 0]) + problem.noise_std * generator.standard_normal(count)
        z = r * inputs[:, 0] + math.sqrt(1 - r * r) * inputs[:, 1]
        return problem.activation(inputs @ weights.T), z, labels

    def fit(functions):
        extra, test_extra = (
            sum((300 * np.outer(f(at), readout**k) for k, f in functions.items()), np.zeros(1))
            for at in (z, test_z)
        )
        features = plain + extra
        fitted = np.linalg.solve(features.T @ features + ridge * n * np.eye(width), features.T @ labels)
        train = np.mean((labels - features @ fitted) ** 2) + ridge * fitted @ fitted
        return np.array([train, np.mean((test_labels - (test_plain + test_extra) @ fitted) ** 2)])

    (plain, z, labels), (test_plain, test_z, test_labels) = draw(n), draw(1500)
    return np.array([fit(functions) for functions in ({}, *cases)])


def monomials(degrees):
    return {k: lambda z, k=k: z**k for k in degrees}


def check_gains(samples, found, bias):
    """Errors and gains of every number of spikes against the simulated ones; values 10 % off are rejected."""
    for column, name in enumerate(("train", "test")):
        errors, gains = samples[:, :, column], samples[:, :1, column] - samples[:, 1:, column]
        for row, value in enumerate(found.values[f"{name}_error"][:, 0]):
            assert within(errors[:, row], value, bias), (name, row)
            assert not within(errors[:, row], 1.1 * value, bias), (name, row)
            assert not within(errors[:, row], 0.9 * value, bias), (name, row)
        for row, value in enumerate(found.values[f"{name}_gain"][1:, 0]):
            assert within(gains[:, row], value, bias), (name, row + 1)
            assert not within(gains[:, row], 1.2 * value, bias), (name, row + 1)
            assert not within(gains[:, row], 0.8 * value, bias), (name, row + 1)


def test_large_spikes_simulated():
    problem = Problem("softplus(x) + tanh(x)", "2*sin(1.5*x) + 2*cos(1.5*x)", 0.2, rows="sphere")
    sizes = Sizes(400, 100, 200, 2000)
    cases = [monomials(range(1, count + 1)) for count in (1, 2, 3)]
    samples = np.array([large_spikes(problem, sizes, cases, 4.0, seed) for seed in range(32)])
    check_gains(samples, solve(problem, sizes, np.ones(4), 4.0, n_spikes=[0, 1, 2, 3]), bias=0.025)


def test_the_norms_of_gaussian_rows_matter_from_the_second_spike_on():
    # Same draws, rows normalised or not: the difference is seen far more sharply than either gain.
    sizes, ridge = Sizes(300, 150, 240, 3000), 0.05
    problems = [Problem("relu", "h1 + h2/sqrt(2)", 0.5, rows=rows) for rows in ("gaussian", "sphere")]
    samples = np.array(
        [[large_spikes(p, sizes, [monomials([1, 2])], ridge, seed) for p in problems] for seed in range(16)]
    )
    gains = samples[:, :, 0] - samples[:, :, 1]
    difference = gains[:, 0] - gains[:, 1]
    found = [solve(p, sizes, [1.0, 1.0], ridge, n_spikes=[1, 2], row_norms=True) for p in problems]
    for column, name in enumerate(("train_gain", "test_gain")):
        one, two = (found[0].values[name] - found[1].values[name])[:, 0]
        assert one == 0 < two
        assert within(difference[:, column], two, bias=0.2), name
        assert not within(difference[:, column], 0.0, bias=0.0), name
        assert not within(difference[:, column], 2 * two, bias=0.2), name
    published = [solve(p, sizes, 1.0, ridge, n_spikes=2) for p in problems]
    assert published[0].test_gain == published[1].test_gain
    assert found[1].test_gain[1] == published[1].test_gain[0]
    assert "row_norms=True" in published[0].notes[0]
    assert solve(problems[0], sizes, 1.0, ridge, n_spikes=1).notes == ()


@pytest.mark.parametrize("readout", ["gaussian", "rademacher", "constant"])
@pytest.mark.parametrize("output", ["vanishing", "order_one"])
def test_the_rest_of_the_gradient_lengthens_the_rows(readout, output):
    problem = Problem("relu", "tanh(2*x)", 0.5, readout=readout, initial_output=output)
    n0, d, width = 800, 400, 600
    sizes = Sizes(n0, d, width)
    lengths = []
    for seed in range(6):
        generator = np.random.default_rng(seed)
        weights = generator.standard_normal((width, d)) / math.sqrt(d)
        a = {
            "gaussian": generator.standard_normal(width),
            "rademacher": generator.choice([-1.0, 1.0], width),
            "constant": np.ones(width),
        }[readout] / math.sqrt(width)
        inputs = generator.standard_normal((n0, d))
        labels = problem.teacher(inputs[:, 0]) + 0.5 * generator.standard_normal(n0)
        before = inputs @ weights.T
        output_scale = 1 if output == "order_one" else 1 / math.sqrt(width)
        left = labels - output_scale * problem.activation(before) @ a
        rows = (left[:, None] * problem.activation.derivative(before)).T @ inputs / n0
        lengths.append(np.mean(np.sum(rows**2, axis=1)))
    rank_one = problem.activation.hermite(2)[1] ** 2 * problem.direction_norm_squared(sizes)
    assert within(lengths, rank_one * (1 + spread(problem, sizes)), bias=0.02)
    assert not within(lengths, rank_one, bias=0.02)


def test_the_second_spike_with_the_full_gradient():
    mu = spread(SETTING, SIZES)
    plain, full = captured(SETTING, SIZES, 2), captured(SETTING, SIZES, 2, full_gradient=True)
    assert full.rest / plain.rest == pytest.approx(3 / (2 + (1 + mu) ** 2))
    assert full.linear == plain.linear
    # The spike then carries z^2 + mu: simulated with a large coefficient.
    problem, sizes = (
        Problem("relu", "2*sin(1.5*x) + 2*cos(1.5*x)", 0.2, rows="sphere"),
        Sizes(400, 100, 200, 500),
    )
    mu = spread(problem, sizes)
    cases = [monomials([1]), {1: lambda z: z, 2: lambda z: z**2 + mu}]
    samples = np.array([large_spikes(problem, sizes, cases, 2.0, seed) for seed in range(20)])
    found = solve(problem, sizes, np.ones(3), 2.0, n_spikes=[0, 1, 2], full_gradient=True)
    check_gains(samples, found, bias=0.025)
    with pytest.raises(AssertionError):
        check_gains(samples, solve(problem, sizes, np.ones(3), 2.0, n_spikes=[0, 1, 2]), bias=0.025)
    assert found.notes == ()
    # A linear network has no rest, and an odd activation no even spike that it could change.
    assert spread(Problem("identity", "identity"), SIZES) == pytest.approx(0, abs=1e-12)
    odd = Problem("tanh", "tanh(2*x)", 0.1)
    assert captured(odd, SIZES, 5).rest == pytest.approx(captured(odd, SIZES, 5, full_gradient=True).rest)
