"""Two steps: errors, overlaps, limits and refusals."""

import numpy as np
import pytest

from firststep import Problem, Sizes, predict, predict_spectrum
from firststep.arrays import gradient_step
from firststep.gaussian import function
from firststep.numerics.fixedpoint import ConvergenceError
from firststep.theory.both_steps import Plane, both_steps, plane_geometry
from firststep.theory.coefficients import readout_rule
from firststep.theory.covariant_step import general_step
from firststep.theory.second_step import Readouts, second_gradient
from firststep.theory.spectra.two_steps import TwoStepWeights
from firststep.theory.turns import turn_samples

pytestmark = pytest.mark.filterwarnings("ignore::firststep.setting.OutsideTheoryWarning")

SIZES = Sizes(1500, 300, 600)
CURVED = Problem("relu", "t1 + t1*t2", noise_std=0.3, rows="sphere")
# 80 drawn networks (benchmarks/steps.py), ridge 0.05: alphas, train and test error with standard errors, overlaps, the
# share of t1 t2 that was learned.
STEPS = [
    ((0.35, 0.35), (0.58217, 0.00465), (1.01758, 0.00462), (0.833, 0.442), 0.270),
    ((0.35, 0.5), (0.47986, 0.00396), (0.86132, 0.00377), (0.787, 0.492), 0.429),
    ((0.5, 0.5), (0.39941, 0.00337), (0.72660, 0.00332), (0.847, 0.590), 0.512),
]


@pytest.mark.parametrize("row", STEPS)
def test_the_second_step_learns_what_the_first_made_visible(row):
    (first, second), train, test, overlaps, product = row
    found = predict(CURVED, SIZES, step_exponents=first, next_step_exponents=second, ridges=0.05)
    assert found.train_error[0, 0] == pytest.approx(train[0], abs=3 * train[1])
    assert found.test_error[0, 0] == pytest.approx(test[0], abs=2 * test[1])
    assert found.top1_t1[0, 0] == pytest.approx(overlaps[0], abs=0.03)
    assert found.top2_t2[0, 0] == pytest.approx(overlaps[1], abs=0.03)
    assert found.learned_t1_t2[0, 0] == pytest.approx(product, abs=0.01)
    # One step alone would be far off.
    one = predict(CURVED, SIZES, step_exponents=first, ridges=0.05).test_error[0, 0]
    assert one > 1.15 * test[0]


# Eight drawn networks, ridge 0.05: both steps, shares of t1 and of t1 t2 that the fit has, with standard errors.
LEARNED = [
    ((0.0, 0.0), (0.683, 0.019), (0.004, 0.001)),
    ((20.0, 0.0), (0.909, 0.013), (0.128, 0.005)),
    ((20.0, 20.0), (0.972, 0.007), (0.397, 0.009)),
]


@pytest.mark.parametrize("row", LEARNED)
def test_what_was_learned_after_none_one_and_two_steps(row):
    (first, second), linear, product = row
    found = predict(CURVED, SIZES, step_sizes=first, next_step_sizes=second, ridges=0.05)
    assert found.learned_t1[0, 0] == pytest.approx(linear[0], abs=2 * linear[1])
    assert found.learned_t1_t2[0, 0] == pytest.approx(product[0], abs=3 * product[1])
    if not second:
        one = predict(CURVED, SIZES, step_sizes=first, ridges=0.05)
        assert one.learned_t1_t2[0, 0] == found.learned_t1_t2[0, 0]


def test_one_direction_has_the_same_names_and_numbers_in_a_sequence():
    problem = Problem("relu", "h1 + h2/2", noise_std=0.3)
    one = predict(problem, SIZES, step_sizes=10.0)
    two = predict(problem, SIZES, step_sizes=10.0, next_step_sizes=[0.0, 10.0])
    for name in ("learned_t1", "learned_h2t1"):
        assert two.values[name][0, 0] == one.values[name][0, 0]
        assert one.values[name][0, 0] < two.values[name][1, 0] < 1
    assert two.top1_t1[0, 0] < two.top1_t1[1, 0]


def test_an_overlap_is_that_of_an_outlier_or_of_the_last_of_the_bulk():
    found = predict(CURVED, SIZES, step_exponents=0.2, next_step_exponents=[0.05, 0.5], ridges=0.05)
    assert 1 / SIZES.dim < found.top2_t2[0, 0] < 0.01
    assert found.top2_t2[1, 0] > 0.2


# One step of alpha = 0.5 at the same ratios: 200, 80 and 40 networks, squared overlap of t2 with the second vector.
@pytest.mark.parametrize(
    ("factor", "drawn", "error"), [(0.5, 0.083, 0.005), (1.0, 0.059, 0.005), (2.0, 0.044, 0.005)]
)
def test_a_hidden_vector_has_a_share_of_what_the_matrix_turns_it_to(factor, drawn, error):
    sizes = Sizes(*(int(factor * x) for x in (1500, 300, 600)))
    found = predict(CURVED, sizes, step_exponents=0.5, next_step_sizes=0.0, ridges=0.05)
    # Nothing beside the first is clear of the bulk.
    weights = TwoStepWeights(CURVED, sizes, (float(sizes.step_size(0.5)), 0.0), "structured")
    assert weights.leading(2)[1] == 1
    assert found.top2_t2[0, 0] == pytest.approx(drawn, abs=0.01 + 2 * error)
    assert abs(found.top2_t2[0, 0] - drawn) < found.top2_t2_bar[0, 0] + 2 * error


# 60 and 24 drawn networks: sizes, alpha of the first step, then alphas of the second with squared overlaps of t2 with
# the second vector, where it leaves the bulk.
LEAVING = [
    (SIZES, 0.35, {0.14: 0.009, 0.18: 0.014, 0.22: 0.042, 0.24: 0.097, 0.3: 0.344}),
    (SIZES, 0.42, {0.14: 0.044, 0.18: 0.073, 0.2: 0.113, 0.22: 0.194, 0.3: 0.446}),
    (SIZES, 0.5, {0.14: 0.087, 0.18: 0.115, 0.2: 0.143, 0.22: 0.187, 0.3: 0.495}),
    (Sizes(2000, 1000, 1500), 0.42, {0.2: 0.028, 0.22: 0.053, 0.23: 0.087, 0.24: 0.119, 0.29: 0.219}),
]


@pytest.mark.parametrize("row", LEAVING)
def test_an_overlap_grows_without_a_notch_where_a_vector_leaves_the_bulk(row):
    sizes, first, drawn = row
    exponents = np.arange(0.14, 0.3, 0.01)
    found = predict(CURVED, sizes, step_exponents=first, next_step_exponents=exponents, ridges=0.05)
    overlap = found.top2_t2[:, 0]
    assert np.diff(overlap).min() > -2e-3
    # No point of the curve is far from the middle of its neighbours.
    assert np.abs(overlap[1:-1] - (overlap[:-2] + overlap[2:]) / 2).max() < 0.03
    for exponent, value in drawn.items():
        assert np.interp(exponent, exponents, overlap) == pytest.approx(value, abs=0.04)


@pytest.mark.parametrize(
    "problem", [CURVED, Problem("relu", "h1 + h2/2", noise_std=0.3)], ids=["two directions", "one"]
)
def test_a_step_of_size_zero_is_no_step_in_both_orders(problem):
    ridges = [0.05, 0.5]
    one = predict(problem, SIZES, step_sizes=5.0, ridges=ridges)
    before, after = (
        predict(problem, SIZES, step_sizes=first, next_step_sizes=second, ridges=ridges)
        for first, second in ((5.0, 0.0), (0.0, 5.0))
    )
    # Errors, shares and their bars as one step has them; overlaps, which it does not name, in both orders alike.
    names = {name for name in one.values if name.startswith(("train_error", "test_error", "learned_"))}
    assert {"test_error_bar", "learned_t1", "learned_t1_bar"} <= names
    for name in names:
        assert np.array_equal(before.values[name], one.values[name]), name
    assert {"top1_t1", "top2_t1", "top1_t1_bar"} <= set(before.values) == set(after.values)
    for name in before.values:
        assert np.array_equal(before.values[name], after.values[name]), name
    assert np.allclose(before.test_gain, one.test_gain, rtol=1e-12)
    assert [found.next_step_sizes.tolist() for found in (before, after)] == [[[0.0]], [[5.0]]]
    # Spectra of features and weights.
    for of in ("features", "weights"):
        spectra = [
            predict_spectrum(problem, SIZES, first, of=of, **later)
            for first, later in ((5.0, {}), (5.0, {"next_step_size": 0.0}), (0.0, {"next_step_size": 5.0}))
        ]
        for other in spectra[1:]:
            assert np.array_equal(other.x, spectra[0].x)
            assert np.array_equal(other.density, spectra[0].density)
            assert other.outliers == spectra[0].outliers


def gain_of_two(n):
    """What two unit steps gain in the test error, relatively, beside one of size two on the samples of both."""
    problem = Problem("tanh", "h1", noise_std=0.5, rows="sphere")
    parts = n // 2, 3 * n // 4
    none = predict(problem, Sizes(n, *parts), step_sizes=0.0, ridges=0.05).test_error[0, 0]
    two = predict(problem, Sizes(n, *parts), step_sizes=1.0, next_step_sizes=1.0, ridges=0.05)
    one = predict(problem, Sizes(n, *parts, 2 * n), step_sizes=2.0, ridges=0.05)
    return (none - two.test_error[0, 0]) / (none - one.test_error[0, 0]) - 1


def test_two_steps_on_halves_are_one_on_the_sum_to_the_order_of_the_spike():
    # The second residual lacks what the first step made of the output, omega c_1 z with omega = eta c_1 |b|/sqrt(N). So
    # what is left is of the order eta/sqrt(N), beside a gain that does not vanish: a quarter for sixteen times n.
    left = [gain_of_two(n) for n in (2000, 32000, 512000)]
    assert 1e-3 < abs(left[0]) < 0.01
    assert np.allclose(np.divide(left[1:], left[:-1]), 0.25, atol=0.03)


def test_networks_that_take_two_steps_on_halves_take_one_on_the_sum_to_the_order_of_the_step():
    rng = np.random.default_rng(17)
    n, d, width = 200, 80, 100
    inputs, weights = rng.standard_normal((2, n, d)), rng.standard_normal((width, d)) / np.sqrt(d)
    labels, readout = inputs[:, :, 0], rng.standard_normal(width) / np.sqrt(width)
    rest = readout, function("tanh"), width**-0.5
    whole = gradient_step(inputs.reshape(-1, d), labels.ravel(), weights, *rest).gradient
    left = []
    for eta in (0.4, 0.2, 0.1):
        after = weights
        for sample in range(2):
            after = after + eta * gradient_step(inputs[sample], labels[sample], after, *rest).gradient
        left.append(np.linalg.norm(after - weights - 2 * eta * whole) / np.linalg.norm(2 * eta * whole))
    assert left[0] < 0.1
    assert np.allclose(np.divide(left[1:], left[:-1]), 0.5, atol=0.02)


@pytest.mark.parametrize("size", [5.0, 40.0])
def test_a_second_step_that_vanishes_changes_little(size):
    one = predict(CURVED, SIZES, step_sizes=size, ridges=0.05)
    two = predict(CURVED, SIZES, step_sizes=size, next_step_sizes=1e-3, ridges=0.05)
    assert two.test_error[0, 0] == pytest.approx(one.test_error[0, 0], rel=3e-3)
    assert abs(two.test_error - one.test_error)[0, 0] < two.test_error_bar[0, 0]


@pytest.mark.parametrize("readout", ["rademacher", "constant"])
def test_readouts_of_few_values_have_an_answer(readout):
    problem = CURVED.replaced(readout=readout)
    found = predict(problem, SIZES, step_sizes=5.0, next_step_sizes=5.0, ridges=0.05)
    assert problem.noise_variance < found.test_error[0, 0] < 1.7


def test_all_combinations_are_rows():
    found = predict(CURVED, SIZES, step_sizes=[2.0, 4.0], next_step_sizes=[0.0, 3.0], ridges=0.05)
    assert found.test_error.shape == (4, 1)
    assert [row["next_step_size"] for row in found.rows()] == [0.0, 3.0, 0.0, 3.0]
    assert np.all(np.isfinite(found.test_error))
    assert np.all(found.test_error > CURVED.noise_variance)


@pytest.mark.parametrize(
    ("problem", "options", "words"),
    [
        (CURVED, {"next_step_sizes": [[1.0], [1.0]]}, "two steps"),
        (Problem("relu", "h1", inputs="power(1)"), {"next_step_sizes": 1.0}, "isotropic"),
        (Problem("relu", "h1", step_rule="sign"), {}, "sign steps"),
        (Problem("relu", "h1", fit_sample="step"), {}, "own sample"),
        (Problem("relu", "h1"), {"theory": "staircase", "next_step_sizes": 1.0}, "unified"),
    ],
)
def test_what_the_theory_does_not_know_is_refused_in_words(problem, options, words):
    with pytest.raises(ValueError, match=words):
        predict(problem, Sizes(100, 50, 80), step_sizes=1.0, **options)


# 12 networks each at n, d, N = 1200, 300, 600: activation, teacher, readout, exponents; test and train errors.
ORDER_ONE = [
    ("relu", "t1 + t1*t2", "gaussian", (0.35, 0.35), (1.923, 0.018), (0.801, 0.018)),
    ("tanh", "t1 + 0.7*t1*t2", "gaussian", (0.2, 0.3), (0.8795, 0.0052), (0.499, 0.008)),
    ("relu", "h1 + h2/sqrt(2)", "rademacher", (0.35, 0.15), (1.502, 0.012), (0.650, 0.016)),
    ("softplus", "t1 + t1*t2", "constant", (0.5, 0.3), (1.665, 0.012), (1.109, 0.028)),
]


@pytest.mark.parametrize("row", ORDER_ONE, ids=lambda row: f"{row[0]}-{row[2]}")
def test_two_steps_from_an_output_of_order_one_against_drawn_networks(row):
    activation, teacher, readout, (first, second), test, train = row
    rows = "gaussian" if readout == "rademacher" else "sphere"
    problem = Problem(activation, teacher, 0.3, rows=rows, readout=readout, initial_output="order_one")
    found = predict(
        problem, Sizes(1200, 300, 600), step_exponents=first, next_step_exponents=second, ridges=0.03
    )
    assert found.test_error[0, 0] == pytest.approx(test[0], rel=0.01, abs=2 * test[1])
    assert found.train_error[0, 0] == pytest.approx(train[0], rel=0.01, abs=2 * train[1])
    # The second step undoes a part of what the first has added: from a vanishing output it is another problem.
    still = predict(
        problem.replaced(initial_output="vanishing"),
        Sizes(1200, 300, 600),
        step_exponents=first,
        next_step_exponents=second,
        ridges=0.03,
    )
    assert abs(still.test_error[0, 0] - test[0]) > 5 * test[1]


def test_labels_of_both_samples_have_their_moments():
    problem, sizes = Problem("relu", "h1 + h2/sqrt(2)", noise_std=0.1), Sizes(1719, 297, 586)
    u, weights, _ = readout_rule(problem.readout_law, 0.5, 0)
    found = turn_samples(problem, sizes, 38.0, "structured", Readouts(u, weights))
    labels = found.weights[0] / (2 * problem.activation.hermite(3)[2])
    # As n0 samples contain them: E y^4 is 47.9 without an end, and was 87 by badly spread points.
    assert found.shares @ labels**2 == pytest.approx(problem.label_variance, rel=0.01)
    assert found.shares @ labels**4 == pytest.approx(47.5, rel=0.03)


def test_after_no_step_the_second_gradient_is_that_of_one_step():
    geometry = plane_geometry(CURVED, SIZES, Plane(8, 4, 0.5), "structured", 1)
    u, weights, law = geometry.u, geometry.u_weights, geometry.law
    first = general_step(CURVED, SIZES, np.array([0.0]), "structured", u, law)
    gradient = second_gradient(CURVED, SIZES, first, u, weights)
    # Along t1: c_1 times E dy/dt1 = 1, for all neurons; along t2 nothing; scatter (d/n0) c_1^2 E y^2.
    along = gradient.mean @ np.concatenate([first.cosines[0], first.asides[0]], axis=1).T
    assert np.allclose(along, [0.5, 0.0], atol=1e-9)
    assert np.allclose(gradient.gram, 0.25 * SIZES.step_ratio * CURVED.label_variance, rtol=1e-9)


def test_two_coordinates_carry_the_whole_curve():
    geometry = plane_geometry(CURVED, SIZES, Plane(8, 4, 0.5), "structured", 1)
    law = both_steps(CURVED, SIZES, (5.0, 10.0), "structured", Readouts(geometry.u, geometry.u_weights))
    sizes = np.sqrt((geometry.u_weights[:, None] * law.shared[0] ** 2).sum(axis=0))
    assert sizes[0] > sizes[1] > 0.02
    # Teacher directions are unit vectors in the special directions and the scatter beside them.
    length = (law.cosines[0] ** 2).sum(axis=1) + (law.asides[0] ** 2).sum(axis=1)
    assert np.allclose(length, 1.0)


def test_errors_are_known_where_overlaps_are_not(monkeypatch):
    def fails(self, count):
        raise ConvergenceError("no solution", np.zeros(1), np.zeros(1))

    asked = CURVED, SIZES
    options = {"step_exponents": 0.35, "next_step_exponents": 0.35, "ridges": 0.05}
    whole = predict(*asked, **options)
    monkeypatch.setattr(TwoStepWeights, "leading", fails)
    found = predict(*asked, **options)
    assert found.test_error == pytest.approx(whole.test_error)
    assert np.isnan(found["top1_t1"]).all()
    assert not np.isnan(whole["top1_t1"]).any()


def test_the_bar_grows_with_the_second_step():
    bars = [
        float(found.test_error_bar[0, 0] / found.test_error[0, 0])
        for exponent in (0.1, 0.5)
        for found in [predict(CURVED, SIZES, step_exponents=0.35, next_step_exponents=exponent, ridges=0.05)]
    ]
    assert bars[1] > 1.3 * bars[0]


def test_the_bar_covers_labels_with_a_heavy_tail():
    # 16 drawn networks, ridge 0.05: test error after steps of 0.5 and 0.5 with its standard error.
    problem = Problem("tanh", "h1 + h3/sqrt(6)", noise_std=0.3, rows="sphere")
    found = predict(problem, SIZES, step_exponents=0.5, next_step_exponents=0.5, ridges=0.05)
    assert abs(found.test_error[0, 0] - 1.1101) < found.test_error_bar[0, 0] + 0.0075
    light = predict(
        problem.replaced(teacher="h1"), SIZES, step_exponents=0.5, next_step_exponents=0.5, ridges=0.05
    )
    heavy = found.test_error_bar[0, 0] / found.test_error[0, 0]
    assert heavy > 1.5 * light.test_error_bar[0, 0] / light.test_error[0, 0]
