"""Spectra of the weights after two steps: against drawn networks, one step, known limits, and what is refused."""

import json
import math

import numpy as np
import pytest
from click.testing import CliRunner

from firststep import Problem, Sizes, predict_spectrum, simulate_spectrum
from firststep.cli.app import main
from firststep.theory.coefficients import readout_rule
from firststep.theory.label_law import label_moments
from firststep.theory.second_step import Readouts, after_first, output_after, slopes_after
from firststep.theory.spectra.two_steps import (
    TwoStepWeights,
    contained,
    critical_next_step,
    outlier_count,
    rows_after,
)
from firststep.theory.turns import later_points, turn_law, turn_samples

pytestmark = pytest.mark.filterwarnings("ignore::firststep.setting.OutsideTheoryWarning")

CURVED = Problem("relu", "t1 + t1*t2", noise_std=0.3, rows="sphere")
LARGE = Sizes(2000, 1000, 1500)
# 200 drawn networks (benchmarks/steps.py): exponents, both eigenvalues with standard errors; then, of 16 networks, the
# overlaps of t1 and t2 with their vectors.
DRAWN = [
    ((0.34, 0.26), (155.66, 0.19), (5.769, 0.012), (0.639, 0.003), (0.123, 0.009)),
    ((0.34, 0.34), (244.65, 0.26), (10.880, 0.039), (0.661, 0.003), (0.202, 0.006)),
    ((0.5, 0.34), (1213.9, 1.6), (25.892, 0.104), (0.605, 0.004), (0.265, 0.008)),
    ((0.26, 0.5), (1134.5, 1.7), (42.363, 0.213), (0.548, 0.004), (0.197, 0.005)),
    ((0.5, 0.5), (2153.9, 2.1), (240.99, 0.89), (0.679, 0.004), (0.284, 0.006)),
]


def readout():
    u, weights, _ = readout_rule(CURVED.readout_law, 0.3, 0)
    return u, weights


@pytest.mark.parametrize("row", DRAWN)
def test_outliers_against_drawn_weights(row):
    (first, second), *outliers, _, _ = row
    found = predict_spectrum(CURVED, LARGE, step_exponent=first, next_step_exponent=second, of="weights")
    for outlier, (value, _), far in zip(found.outliers, outliers, (0.005, 0.02), strict=True):
        assert outlier.eigenvalue == pytest.approx(value, rel=far)


@pytest.mark.parametrize("row", DRAWN)
def test_overlaps_against_drawn_weights(row):
    (first, second), _, _, t1, t2 = row
    found = predict_spectrum(CURVED, LARGE, step_exponent=first, next_step_exponent=second, of="weights")
    assert len(found.outliers) == 2
    assert found.outliers[0].overlaps["t1"] == pytest.approx(t1[0], abs=0.01 + 2 * t1[1])
    assert found.outliers[1].overlaps["t2"] == pytest.approx(t2[0], abs=0.01 + 2 * t2[1])
    # One step alone has no outlier that knows t2.
    one = predict_spectrum(CURVED, LARGE, step_exponent=first, of="weights")
    assert max(outlier.overlaps["t2"] for outlier in one.outliers) < 0.02


def test_an_outlier_among_the_eigenvalues_of_large_labels():
    # 200 drawn networks. Without the noise's larger share along such labels' inputs it is 13 % too low.
    found = predict_spectrum(CURVED, LARGE, step_exponent=0.18, next_step_exponent=0.5, of="weights")
    assert found.outliers[1].eigenvalue == pytest.approx(21.190, abs=0.02 * 21.19 + 2 * 0.118)


# 400 drawn networks of another problem: both eigenvalues, the second's standard error, and what the theory has without
# the push of readouts and labels that fluctuate, in per cent too much.
OTHERS = [
    ((0.3, 0.4), 189.79, 11.51, 0.044, 2.0),
    ((0.45, 0.35), 355.57, 14.06, 0.042, 1.9),
    ((0.45, 0.5), 781.62, 94.00, 0.30, 2.1),
]


@pytest.mark.parametrize("row", OTHERS)
def test_outliers_push_each_other_as_readouts_and_labels_fluctuate(row, monkeypatch):
    exponents, first, second, error, without = row
    problem, sizes = Problem("gelu", "t1 + 0.7*t1*t2", noise_std=0.5), Sizes(1200, 400, 500)
    steps = tuple(float(sizes.step_size(exponent)) for exponent in exponents)
    found = [outlier.eigenvalue for outlier in TwoStepWeights(problem, sizes, steps, "structured").above()]
    assert found[0] == pytest.approx(first, rel=0.004)
    assert found[1] == pytest.approx(second, abs=0.005 * second + 2 * error)
    monkeypatch.setattr(TwoStepWeights, "_pushed", lambda *_: 0.0)
    still = [outlier.eigenvalue for outlier in TwoStepWeights(problem, sizes, steps, "structured").above()]
    assert 100 * (still[1] / second - 1) == pytest.approx(without, abs=0.1)


def test_the_push_shrinks_with_the_size():
    moved = []
    for n in (1000, 4000, 16000):
        sizes = Sizes(n, n // 2, 3 * n // 4)
        # Spikes that keep their ratio to the bulk.
        steps = 0.25 * math.sqrt(sizes.width), 0.5 * math.sqrt(sizes.width)
        bulk = TwoStepWeights(CURVED, sizes, steps, "structured")
        pushed = bulk.above()[1].eigenvalue
        bulk._pushed = lambda *_: 0.0
        moved.append(pushed / bulk.above()[1].eigenvalue - 1)
    assert -0.03 < moved[0] < -0.01
    # Faster than labels' tails grow with the samples.
    assert np.all(np.divide(moved[1:], moved[:-1]) < 0.4)


def test_scalar_products_of_sums_over_samples_vary_as_they_do():
    problem, sizes = Problem("tanh", "tanh(t1) + 0.5*tanh(t1*t2)", noise_std=0.3), Sizes(400, 200, 300)
    readouts = Readouts(*readout())
    first, gradient = after_first(problem, sizes, 8.0, "structured", readouts)
    points = later_points(problem, sizes, 8.0, "structured", readouts)
    known, axes = gradient.mean.shape[1], gradient.scatter[:, -2:]
    vectors = np.zeros((gradient.turn.shape[1], 3))
    vectors[[0, 1, -1], 0], vectors[[2, -1, -2], 1], vectors[[-2], 2] = (0.5, 0.3, 0.8), (0.6, -0.5, 0.6), 1.0
    rng = np.random.default_rng(5)
    count, draws = sizes.n_step_samples, []
    # Slopes and outputs are smooth in z: a fine table for all draws.
    grid = np.linspace(-6, 6, 2001)
    slopes = slopes_after(problem, first, grid)[0]
    outputs = output_after(problem, sizes, first, (readouts.u, readouts.weights), grid)[0]
    for _ in range(600):
        x = rng.standard_normal((count, sizes.dim))
        t = x[:, :1] * first.cosines[0, :, 0] + x[:, 1:known] @ first.asides[0].T
        labels = np.asarray(problem.teacher.at(t)) + problem.noise_std * rng.standard_normal(count)
        place = (x[:, 0] - grid[0]) / (grid[1] - grid[0])
        left, share = place.astype(int), place % 1
        slope, output = (
            (1 - share) * values[..., left] + share * values[..., left + 1] for values in (slopes, outputs)
        )
        parts = (axes.T @ slope).T / (axes**2).sum(axis=0) * (labels - output)[:, None]
        sums = parts.T @ x / count
        sums[:, :known] -= points.scatter[:, -2:].T @ (points.shares[:, None] * points.coordinates)
        whole = vectors[-2:].T @ sums
        whole[:, :known] += vectors[:known].T
        draws.append(whole @ whole.T)
    found = np.stack([points.spread(sizes, vectors, own) for own in range(3)])
    assert np.allclose(found, np.var(draws, axis=0), rtol=0.25)


def test_readouts_are_those_that_so_many_neurons_contain():
    u, weights = readout()
    for width in (3, 600, 10**6):
        nodes, shares = contained(u, weights, width)
        assert shares.sum() == pytest.approx(1)
        assert shares @ nodes**2 == pytest.approx(weights @ u**2)
        assert shares[[0, -1]].min() * width >= 0.5
    # Few values stay what they are.
    assert contained(np.array([-1.0, 1.0]), np.array([0.5, 0.5]), 1)[0].tolist() == [-1, 1]


def test_outliers_and_bulk_against_networks_drawn_here():
    sizes = Sizes(600, 300, 450)
    asked = {"step_exponent": 0.4, "next_step_exponent": 0.4, "of": "weights"}
    drawn = simulate_spectrum(CURVED, sizes, replicas=12, count=2, **asked)
    found = predict_spectrum(CURVED, sizes, **asked)
    assert found.details["next_step_sizes"] == drawn.details["next_step_sizes"]
    for k, outlier in enumerate(found.outliers):
        error = drawn.details["stderr"][k]["eigenvalue"]
        value = drawn.outliers[k].eigenvalue
        assert outlier.eigenvalue == pytest.approx(value, abs=0.02 * value + 3 * error)
    bulk = np.concatenate([values[2:] for values in drawn.details["eigenvalues"]])
    # Means of the bulk: the density's and the drawn eigenvalues' (zeros counted, N > d).
    mean = np.trapezoid(found.density * found.x, found.x)
    assert bulk.sum() / (12 * sizes.width) == pytest.approx(mean, rel=0.03)


def test_features_after_two_steps_against_drawn_ones():
    # Eight drawn networks: both outliers with standard errors, and the squared overlap of the first with t1.
    drawn = {0.35: ((46.0, 1.15), (13.35, 0.51), 0.81), 0.5: ((313.3, 6.9), (200.2, 5.6), 0.77)}
    for exponent, (*outliers, overlap) in drawn.items():
        found = predict_spectrum(
            CURVED, Sizes(1500, 300, 600), step_exponent=exponent, next_step_exponents=exponent
        )
        assert len(found.outliers) == 2
        for outlier, (value, error) in zip(found.outliers, outliers, strict=True):
            assert outlier.eigenvalue == pytest.approx(value, abs=2 * error)
        assert found.outliers[0].overlaps["t1"] == pytest.approx(overlap, abs=0.04)
        assert found.outliers[1].overlaps["t2"] > 0.05
        assert "h1" not in found.outliers[0].overlaps


def test_one_step_of_one_direction_is_the_theory_of_one_step():
    problem = Problem("relu", "h1 + h2/2", noise_std=0.3, rows="sphere")
    one = predict_spectrum(problem, LARGE, 8.0, of="weights")
    for schedule in ((8.0, 0.0), (0.0, 8.0)):
        two = predict_spectrum(problem, LARGE, schedule[0], next_step_size=schedule[1], of="weights")
        assert np.array_equal(two.density, one.density)
        assert [o.eigenvalue for o in two.outliers] == [o.eigenvalue for o in one.outliers]
        assert two.details["next_step_sizes"] == [schedule[1]]
    # The equations of two steps themselves, with the first alone or the second alone. The second sees the turn's mean
    # over readouts, which moves the outlier by 0.15 %.
    for pair, far in (((8.0, 0.0), 1e-3), ((1e-6, 8.0), 2e-3)):
        found = TwoStepWeights(problem, LARGE, pair, "structured").spectrum(200, check=False)
        assert found.outliers[0].eigenvalue == pytest.approx(one.outliers[0].eigenvalue, rel=far)
        assert found.outliers[0].overlaps["beta"] == pytest.approx(one.outliers[0].overlaps["beta"], abs=1e-3)
        assert found.edges[1] == pytest.approx(one.edges[1], rel=2e-3)


def test_without_a_turn_the_law_is_that_of_the_noise():
    # An odd activation has no M in the first step: large labels are seen in the remainder's covariance alone.
    problem = Problem("tanh", "t1 + t1*t2", noise_std=0.3, rows="sphere")
    readouts = Readouts(*readout())
    samples = turn_samples(problem, LARGE, 10.0, "structured", readouts)
    law = turn_law(samples, LARGE, (10.0, 0.0), 12, 12)
    assert not law.nodes.any()
    assert law.weights @ law.share == pytest.approx(1, abs=1e-3)
    moments = label_moments(problem.teacher, problem.noise_variance)
    # Along the teacher's directions E[y^2 t^2]/E y^2 of the mean, here for t_1, in z and what is beside it.
    first, _ = after_first(problem, LARGE, 10.0, "structured", readouts)
    t1 = np.concatenate([first.cosines[0, 0], first.asides[0, 0], np.zeros(len(law.special_vectors[0]) - 3)])
    seen = (law.special_vectors @ t1) ** 2
    assert seen.sum() == pytest.approx(1, abs=1e-6)
    assert seen @ law.special_share == pytest.approx(moments.second[0, 0] / moments.square, rel=0.05)


def test_where_the_bulk_ends_large_labels_have_their_eigenvalues():
    # 200 drawn networks: the largest eigenvalue but one, where nothing else stands beside the bulk.
    for first, drawn in ((0.42, 7.00), (0.5, 15.94)):
        found = predict_spectrum(CURVED, LARGE, step_exponent=first, next_step_exponent=0.1, of="weights")
        assert len(found.outliers) == 1
        assert found.edges[-1] == pytest.approx(drawn, rel=0.04)


def test_two_steps_with_vanishing_spike_are_one_on_both_samples():
    # With steps so small that the slope stays what it was, both samples are seen alike: eta (b1 + b2), a step of
    # 2 eta on 2 n0 samples. What is left is of the order of the spike, omega = eta c_1 |b|/sqrt(N).
    problem = Problem("tanh", "h1", noise_std=0.5)
    left = []
    for size in (0.02, 0.01):
        u, weights, _ = readout_rule(problem.readout_law, 0.3, 0)
        both = rows_after(problem, Sizes(2000, 1000, 1500), (size, size), "structured", u, weights)
        one = rows_after(problem, Sizes(2000, 1000, 1500, 4000), (2 * size, 0.0), "structured", u, weights)
        lengths = [np.sqrt(weights @ (rows.curve**2).sum(axis=1)) for rows in (both, one)]
        left.append(abs(lengths[0] / lengths[1] - 1))
        assert left[-1] < size * math.sqrt(1 / 1500) * 5
    assert left[1] < 0.6 * left[0]


def test_the_turn_without_a_first_step_is_the_mean_of_m():
    readouts = Readouts(*readout())
    first, gradient = after_first(CURVED, LARGE, 0.0, "structured", readouts)
    known = gradient.mean.shape[1]
    teacher = np.concatenate([first.cosines[0], first.asides[0]], axis=1)
    # E M = E[y t_a t_b] = [[0, 1], [1, 0]], times 2 c_2.
    slope = 2 * CURVED.activation.hermite(3)[2]
    in_teacher = teacher @ gradient.turn[:, :known, :known] @ teacher.T
    assert np.allclose(in_teacher, slope * np.array([[0, 1], [1, 0]]), atol=1e-8)
    # Without a first step the scatter is along one axis, w, with M w·w = phi_0 E y^3/E y^2 and M w·t_a by E[y^2 t_a].
    moments = label_moments(CURVED.teacher, CURVED.noise_variance)
    rate = LARGE.step_ratio / moments.square
    assert gradient.scatter.shape[1] == 1
    assert np.allclose(gradient.turn[:, known, known], slope * rate * moments.first[-1, -1], atol=1e-8)
    across = gradient.turn[:, known, :known] @ teacher.T
    assert np.allclose(np.abs(across), slope * math.sqrt(rate) * np.abs(moments.first[:2, -1]), atol=1e-8)


def test_the_second_step_is_critical_where_its_outlier_leaves():
    found = critical_next_step(CURVED, LARGE, step_exponent=0.34)
    for factor, count in ((0.9, 1), (1.1, 2)):
        spectrum = predict_spectrum(
            CURVED, LARGE, step_exponent=0.34, next_step_size=factor * found, of="weights"
        )
        assert len(spectrum.outliers) == count
    # An additive teacher of one direction and an odd activation at small steps: nothing leaves.
    assert critical_next_step(Problem("tanh", "h1"), LARGE, step_size=0.1, largest=3.0) == math.inf


@pytest.mark.parametrize(
    ("first", "second", "count"),
    [(0.0, 0.3, 1), (0.3, 0.1, 1), (0.3, 0.3, 2), (0.3, 0.45, 3), (0.2, 0.4, 2)],
)
def test_the_count_of_outliers_in_the_limit(first, second, count):
    # floor(alpha_2/(1/2 - alpha_1)) beside the one that both steps share.
    assert count == 1 + math.floor(second / (0.5 - first) + 1e-9)
    problem = Problem([0, 1, 1, 1, 1, 1, 1], "h1 + h2/2", noise_std=0.3)
    counts = [outlier_count(problem, n, 0.5, 1.0, (first, second)) for n in (1e3, 1e25, 1e30)]
    assert counts[1:] == [count, count]


def test_the_count_refuses_readouts_of_few_values():
    with pytest.raises(ValueError, match="of 2 values"):
        outlier_count(Problem("relu", "h1", readout="rademacher"), 1e6, 0.5, 1.0, (0.3, 0.3))


@pytest.mark.parametrize(
    ("problem", "options", "words"),
    [
        (Problem("relu", "h1", inputs="power(1)"), {"of": "features"}, "isotropic"),
        (Problem("relu", "h1", step_rule="whitened"), {"of": "features"}, "gradient"),
        (CURVED.replaced(initial_output="order_one"), {"of": "features"}, "vanishing"),
        (CURVED, {"of": "weights", "next_step_sizes": [1.0, 1.0]}, "at most two steps"),
        (CURVED.replaced(step_sample="same"), {"of": "weights"}, "fresh sample"),
        (CURVED.replaced(initial_output="order_one"), {"of": "weights"}, "vanishing"),
        (CURVED, {"of": "weights", "rest": "none"}, "structured"),
        (CURVED, {"of": "weights", "next_step_exponent": 0.1}, "not both"),
    ],
)
def test_spectra_that_are_not_derived_are_refused_in_words(problem, options, words):
    with pytest.raises(ValueError, match=words):
        predict_spectrum(problem, Sizes(200, 100, 150), 2.0, **({"next_step_sizes": 1.0} | options))


def test_the_command_has_the_second_step():
    words = "spectrum --teacher t1+t1*t2 --of weights --n-samples 300 --dim 150 --width 200 --json --quiet"
    steps = "--step-exponent 0.5 --next-step-exponent 0.3,0.5 --simulate 1"
    result = CliRunner().invoke(main, f"{words} {steps}".split())
    assert result.exit_code == 0, result.output
    spectra = json.loads(result.stdout)["spectra"]
    assert [spectrum["next_step_sizes"] for spectrum in spectra] == [
        [pytest.approx(300**0.3)],
        [pytest.approx(300**0.5)],
    ]
    assert spectra[1]["outliers"][1]["overlaps"]["t2"] > 0.1
    assert spectra[1]["simulated"]["outliers"]
    third = CliRunner().invoke(
        main, f"{words} --step-exponent 0.5 --next-step-exponent 0.3 --next-step-exponent 0.2".split()
    )
    assert third.exit_code != 0
    assert "at most two steps" in third.output + third.stderr
