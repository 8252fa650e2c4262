"""One loud direction of the inputs: drawn networks, the theory without it where it is quiet, and the scope."""

import math

import numpy as np
import pytest

from firststep import Problem, Sizes, predict
from firststep.simulate.draw import Draw
from firststep.theory import loud, unified

SIZES = Sizes(1000, 500, 750)


def setting(activation, inputs, **words):
    return Problem(activation, "h1 + h2/2", 0.3, rows="sphere", inputs=inputs, **words)


# 160 drawn networks (benchmarks/covariance.py): inputs, activation, exponent, test error with its standard error.
DRAWN = [
    ("spiked(10, overlap=1)", "relu", 0.0, 0.4712, 0.0013),
    ("spiked(10, overlap=1)", "relu", 0.2, 0.3753, 0.0008),
    ("spiked(10, overlap=1)", "relu", 0.4, 0.2266, 0.0004),
    ("spiked(10, overlap=1)", "tanh", 0.3, 0.7260, 0.0012),
    ("spiked(10, overlap=1)", "tanh", 0.5, 0.6765, 0.0013),
    ("spiked(50, overlap=1)", "relu", 0.0, 0.2740, 0.0006),
    ("spiked(50, overlap=1)", "relu", 0.3, 0.1863, 0.0003),
    ("spiked(50, overlap=1)", "relu", 0.4, 0.1878, 0.0003),
    ("spiked(50, overlap=1)", "softplus", 0.4, 0.1693, 0.0008),
    ("spiked(50, overlap=1)", "tanh", 0.5, 0.6723, 0.0015),
    ("spiked(50, overlap=0)", "relu", 0.3, 1.0198, 0.0029),
    ("spiked(50, overlap=0)", "relu", 0.5, 0.9360, 0.0032),
    ("spiked(50, overlap=0)", "tanh", 0.3, 0.9364, 0.0020),
    ("spiked(50, overlap=0)", "tanh", 0.5, 0.9673, 0.0032),
    ("power(1)", "tanh", 0.2, 1.1594, 0.0027),
    ("power(1)", "relu", 0.5, 1.4202, 0.0033),
    ("power(1)", "relu", 0.3, 1.3664, 0.0029),
    ("power(1)", "softplus", 0.5, 1.2290, 0.0035),
]


@pytest.mark.parametrize("row", DRAWN)
def test_errors_against_drawn_networks(row):
    inputs, activation, exponent, value, error = row
    found = predict(setting(activation, inputs), SIZES, step_exponents=exponent, ridges=0.1)
    assert found.test_error[0, 0] == pytest.approx(value, abs=0.01 * value + 2 * error)
    assert abs(found.test_error[0, 0] - value) < found.test_error_bar[0, 0] + 2 * error


@pytest.mark.xfail(
    strict=True, reason="1.4 % too low; not explained (docs/theory/joint-law.md, what is left)"
)
def test_an_aligned_spike_of_ten_and_the_largest_step():
    value, error = 0.2087, 0.0004  # 160 drawn networks
    found = predict(setting("relu", "spiked(10, overlap=1)"), SIZES, step_exponents=0.5, ridges=0.1)
    assert found.test_error[0, 0] == pytest.approx(value, abs=0.01 * value + 2 * error)


def test_what_M_scatters_along_a_loud_direction_counts_once():
    """Counted besides the neurons' own noise it made this error 9.7 % too high."""
    value, error = 0.1944, 0.0004  # 160 drawn networks
    found = predict(setting("relu", "spiked(50, overlap=1)"), SIZES, step_exponents=0.5, ridges=0.1)
    assert found.test_error[0, 0] == pytest.approx(value, abs=0.015 * value + 2 * error)


# The same for an output of order one (seed 0, with controls), n, d, N = 600, 300, 450, alpha 0.1, 0.3 and 0.5.
ORDER_ONE = {
    "relu": ([0.8747, 0.8122, 0.7812], [0.0048, 0.0064, 0.0081]),
    "tanh": ([0.9194, 0.9475, 0.9934], [0.0044, 0.0059, 0.0064]),
}


@pytest.mark.parametrize("activation", ORDER_ONE)
def test_an_output_of_order_one(activation):
    sizes, (values, errors) = Sizes(600, 300, 450), ORDER_ONE[activation]
    problem = setting(activation, "spiked(15, overlap=0.5)", initial_output="order_one")
    found = predict(problem, sizes, step_exponents=[0.1, 0.3, 0.5], ridges=0.1)
    assert np.all(np.abs(found.test_error[:, 0] - values) < 0.01 * np.array(values) + 2 * np.array(errors))
    still = [predict(p, sizes, 0.0) for p in (problem, problem.replaced(initial_output="vanishing"))]
    assert still[0].test_error[0, 0] == still[1].test_error[0, 0]
    plain = unified.solve(problem, sizes, np.array([sizes.step_size(0.5)]), np.array([0.1]))
    assert abs(plain.test_error[0, 0] / values[-1] - 1) > 2 * abs(found.test_error[-1, 0] / values[-1] - 1)


def test_without_it_the_theory_is_far_off():
    steps = np.array([SIZES.step_size(0.2)])
    known = unified.solve(setting("relu", "spiked(10, overlap=1)"), SIZES, steps, np.array([0.1]))
    assert known.test_error[0, 0] < 0.92 * DRAWN[1][3]


@pytest.mark.parametrize(
    "inputs", ["spiked(0.5, overlap=0)", "spiked(0.5, overlap=1)", "spiked(1, overlap=0.5)"]
)
@pytest.mark.parametrize("exponent", [0.0, 0.2])
def test_a_quiet_direction_changes_nothing(inputs, exponent):
    problem = setting("relu", inputs)
    steps, ridges = np.array([SIZES.step_size(exponent)]), np.array([0.1, 1.0])
    found = loud.solve(problem, SIZES, steps, ridges)
    known = unified.solve(problem, SIZES, steps, ridges)
    assert not loud.is_loud(problem, SIZES)
    for name in ("train_error", "test_error", "learned_t1"):
        assert np.allclose(found.values[name], known.values[name], rtol=0.01)


def test_where_it_is_used():
    inputs = "spiked(10, overlap=0.5)"
    assert loud.is_loud(setting("relu", inputs), SIZES)
    assert loud.is_loud(setting("relu", "power(1)"), SIZES)
    assert not loud.is_loud(setting("relu", "power(0.5)"), SIZES)
    assert loud.is_loud(setting("relu", inputs, initial_output="order_one"), SIZES)
    assert loud.is_loud(setting("relu", "power(1)", initial_output="order_one"), SIZES)
    assert not loud.is_loud(Problem("relu", "t1 + t2", inputs=inputs), SIZES)


def test_errors_leave_a_direction_with_little_of_the_teacher_to_the_joint_law():
    problem = setting("relu", "spiked(10, overlap=0.3)")
    assert loud.is_loud(problem, SIZES)
    assert not loud.is_loud_to_errors(problem, SIZES)
    assert not loud.is_loud_to_errors(setting("relu", "spiked(1)"), SIZES)
    for inputs in ("spiked(20, overlap=0.6)", "spiked(20, overlap=0)", "spiked(50, overlap=0.1)", "power(1)"):
        assert loud.is_loud_to_errors(setting("relu", inputs), SIZES)


def test_a_draft_knows_the_loud_direction_too():
    problem, steps = setting("relu", "spiked(50, overlap=1)"), [1.0, 8.0]
    whole, draft = (predict(problem, SIZES, steps, 0.1, tolerance=t).test_error for t in (None, math.inf))
    assert np.allclose(draft, whole, rtol=0.05)
    without = unified.solve(problem, SIZES, np.array(steps), np.array([0.1]), tolerance=math.inf).test_error
    assert np.all(np.abs(without / whole - 1) > 0.1)


def test_the_best_ridge_is_that_of_the_loud_theory():
    problem = setting("relu", "spiked(50, overlap=1)")
    found = unified.best_ridge(problem, SIZES, 8.0)
    # One at a time: on a grid of ridges the next order is interpolated.
    errors = [predict(problem, SIZES, 8.0, found.ridge * factor).test_error[0, 0] for factor in (0.5, 1, 2)]
    assert errors[1] == pytest.approx(found.test_error, rel=1e-9)
    assert errors[1] < min(errors[0], errors[2])


def test_gains_bars_and_learned_functions_are_told():
    found = predict(setting("tanh", "spiked(10, overlap=1)"), SIZES, step_sizes=[0.0, 8.0], ridges=[0.1, 0.5])
    assert np.all(found.test_gain[0] == 0)
    assert np.all(found.test_gain[1] > 0)
    assert np.allclose(found.details["learned"][..., 1], found.learned_t1, rtol=1e-9)
    assert np.all(found.test_error_bar[1] > found.test_error_bar[0])
    assert found.alignment > 0.99


# SiLU less a little erf, teacher SiLU, no noise, alpha 0.383: spectra, test errors of drawn networks (400 and 160),
# their standard errors. Without what M makes of l the theory has 2.297 and 0.850.
TURNED = [
    ("spiked(2.9, 3.4, 17, overlap=0.41)", 2.475, 0.010, 0.035),
    ("spiked(17, overlap=0.9)", 0.897, 0.006, 0.015),
]


@pytest.mark.parametrize("row", TURNED)
def test_neurons_share_what_m_makes_of_the_loud_direction(row):
    inputs, value, _, most = row
    problem = Problem(
        "silu(x) - 0.11*erf(0.59*x)", "silu(2.68*x - 0.23)", readout="rademacher", inputs=inputs
    )
    sizes = Sizes(746, 524, 450, 1348)
    found = predict(problem, sizes, step_exponents=0.38307, ridges=0.0019611)
    assert found.test_error[0, 0] == pytest.approx(value, abs=most * value)


@pytest.mark.parametrize("overlap", [0.0, 0.9])
def test_noise_that_goes_with_the_loud_direction_against_drawn_gradients(overlap):
    problem = Problem("relu", "h1 + h2/2", 0.3, rows="sphere", inputs=f"spiked(20, overlap={overlap})")
    sizes = Sizes(10, 300, 300, 4000)
    loudest, slopes, correlations = problem.covariance(300).values[0], [], []
    for seed in range(12):
        draw = Draw(problem, sizes, seed=seed)
        inputs, labels = draw.step_sample()
        rows = draw.whitened_weights()
        gradient = (labels[:, None] * problem.activation.derivative(inputs @ rows.T)).T @ inputs / len(labels)
        along = inputs[:, 0] - (labels**2 @ inputs[:, 0]) / (labels**2).sum()
        # M l as far as it is no part of l or of the teacher's direction: along the step's own noise, and beside it.
        noise = inputs.T @ (labels[:, None] * np.column_stack([np.ones_like(labels), along]))
        basis = np.linalg.qr(np.column_stack([np.eye(300)[0], draw.beta, noise]))[0]
        seen = basis[:, 2:] * np.sign(np.diag(basis[:, 2:].T @ noise))
        # The teacher may point along -l.
        seen[:, 0] *= np.sign(draw.beta[0]) or 1.0
        xi = rows[:, 0] / math.sqrt(loudest / 300)
        slopes.append(np.polyfit(xi, gradient @ seen[:, 1], 1)[0])
        own = gradient[:, 0] - np.polyval(np.polyfit(xi, gradient[:, 0], 4), xi)
        correlations.append([np.corrcoef(own, rows @ each)[0, 1] for each in seen.T])
    scale = np.sqrt((rows[:, 1:] ** 2).sum(axis=1))
    found = loud.loud_gradient(problem, sizes, overlap, rows[:, 0], scale)
    size = math.sqrt(sizes.step_ratio * problem.label_variance)
    assert np.mean(slopes) == pytest.approx(np.polyfit(xi, size * found.turned, 1)[0], rel=0.06)
    share = float(np.mean(found.own_turned / np.sqrt(found.own)))
    expected = share * np.array([found.scattered, math.sqrt(1 - found.scattered**2)])
    errors = np.std(correlations, axis=0, ddof=1) / math.sqrt(len(correlations))
    assert np.all(np.abs(np.mean(correlations, axis=0) - expected) < 0.06 * share + 2 * errors)
    assert (abs(found.scattered) > 0.2) == (overlap > 0)
