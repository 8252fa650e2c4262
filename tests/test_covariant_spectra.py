"""Spectra after one step under a covariance and with several directions: drawn networks, and the isotropic case."""

import numpy as np
import pytest

from firststep import Problem, Sizes, predict_spectrum, simulate_spectrum
from firststep.theory.spectra.covariant import CovariantWeights, seen_slope
from firststep.theory.spectra.spectrum import Follower, critical_steps
from firststep.theory.spectra.two_steps import TwoStepWeights

SIZES = Sizes(1000, 500, 750)
LEVELS = {"inputs": "levels(0.3, 1.7)", "alignment": "weights(0.1, 0.9)"}


def setting(activation, **inputs):
    return Problem(activation, "h1 + h2/2", 0.3, rows="sphere", **inputs)


# 16 drawn networks each: exponent, eigenvalue with its standard error, overlaps with S^(1/2) beta and the direction.
WEIGHTS = [
    (setting("tanh", **LEVELS), 0.2, (16.204, 0.313), 0.613, 0.923),
    (setting("tanh", **LEVELS), 0.5, (871.6, 20.5), 0.658, 0.998),
    (setting("relu", inputs="power(0.5)"), 0.2, (9.695, 0.249), 0.468, 0.844),
    (setting("relu", inputs="power(1)"), 0.3, (30.89, 1.91), 0.537, 0.960),
    (setting("relu", inputs="spiked(10, overlap=1)"), 0.3, (191.0, 6.5), 0.928, 0.994),
    (setting("relu", inputs="spiked(10, overlap=0)"), 0.3, (30.40, 1.01), 0.526, 0.961),
    (
        setting("relu", inputs="spiked(10, overlap=0)", step_rule="whitened"),
        0.2,
        (9.852, 0.254),
        0.470,
        0.848,
    ),
]


@pytest.mark.parametrize("row", WEIGHTS)
def test_the_weights_outlier_against_drawn_ones(row):
    problem, exponent, (value, error), beta, direction = row
    found = predict_spectrum(problem, SIZES, step_exponent=exponent, of="weights")
    assert len(found.outliers) == 1
    outlier = found.outliers[0]
    assert outlier.eigenvalue == pytest.approx(value, abs=2 * error)
    assert outlier.eigenvalue == pytest.approx(value, rel=0.03)
    assert outlier.overlaps["beta"] == pytest.approx(beta, abs=0.02)
    assert outlier.overlaps["direction"] == pytest.approx(direction, abs=0.02)


# 96 drawn networks each (simulate_spectrum, seed 77), alpha 0.3: eigenvalue and its standard error.
LOUD = [
    ("tanh", "power(1)", 43.97, 1.17),
    ("tanh", "spiked(10, overlap=1)", 265.45, 3.65),
    ("relu", "spiked(50, overlap=1)", 782.82, 11.64),
    ("tanh", "spiked(50, overlap=1)", 1007.99, 13.34),
]


@pytest.mark.parametrize("row", LOUD)
def test_the_weights_outlier_along_a_loud_direction(row):
    activation, inputs, value, error = row
    found = predict_spectrum(setting(activation, inputs=inputs), SIZES, step_exponent=0.3, of="weights")
    assert found.outliers[0].eigenvalue == pytest.approx(value, abs=2 * error)
    assert found.outliers[0].eigenvalue == pytest.approx(value, rel=0.03)


def test_what_neurons_see_along_a_loud_direction():
    problem, shares = setting("h1 + 0.1*h3"), np.array([0.1, 0.01])
    # E[l^2 H_2(w.x)] = 2 m/d, whatever the rest of the row.
    assert np.allclose(
        seen_slope(problem, 500 * shares, 500), (1 + 0.6 * shares) / (1 + 0.6 / 500), rtol=1e-12
    )


def test_an_isotropic_covariance_has_the_spectrum_of_isotropic_inputs():
    problem = setting("relu")
    found = CovariantWeights(problem, SIZES, (8.0, 0.0), "noise").spectrum(100, check=False)
    known = TwoStepWeights(problem, SIZES, (8.0, 0.0), "noise").spectrum(100, check=False)
    assert found.outliers[0].eigenvalue == pytest.approx(known.outliers[0].eigenvalue, rel=1e-9)
    assert found.outliers[0].overlaps["beta"] == pytest.approx(known.outliers[0].overlaps["beta"], abs=1e-9)
    assert np.allclose(found.density, known.density, atol=1e-6)


# Eight drawn networks: the outliers of the features with standard errors, and the overlap of the first with beta.
FEATURES = [
    (setting("tanh", **LEVELS), SIZES, 0.3, [(28.295, 0.561)], 0.616),
    (setting("relu", inputs="power(0.5)"), SIZES, 0.3, [(14.595, 0.568)], None),
    (
        Problem("relu", "t1 + t1*t2", 0.3, rows="sphere"),
        Sizes(1500, 300, 600),
        0.4,
        [(33.106, 1.38), (7.468, 0.49)],
        0.69,
    ),
]


@pytest.mark.parametrize("row", FEATURES)
def test_the_features_outliers_against_drawn_ones(row):
    problem, sizes, exponent, outliers, beta = row
    found = predict_spectrum(problem, sizes, step_exponent=exponent)
    assert len(found.outliers) == len(outliers)
    for outlier, (value, error) in zip(found.outliers, outliers, strict=True):
        assert outlier.eigenvalue == pytest.approx(value, abs=2 * error)
    if beta is not None:
        assert found.outliers[0].overlaps["beta"] == pytest.approx(beta, abs=0.02)
    assert found.details["mass"] == pytest.approx(1, abs=2e-3)


def test_critical_steps_and_followed_spectra_know_a_covariance():
    problem = setting("tanh", **LEVELS)
    (critical,) = critical_steps(problem, SIZES, count=1)
    for factor, count in ((0.9, 0), (1.1, 1)):
        assert len(predict_spectrum(problem, SIZES, factor * critical).outliers) == count
    for of in ("features", "weights"):
        follow = Follower(of)
        follow.spectrum(setting("tanh"), SIZES, 8.0)
        here = follow.spectrum(problem, SIZES, 8.0).outliers[0].eigenvalue
        assert here == pytest.approx(
            predict_spectrum(problem, SIZES, 8.0, of=of).outliers[0].eigenvalue, rel=1e-3
        )


def test_a_loud_direction_that_the_step_found_makes_no_islet() -> None:
    sizes = Sizes(500, 250, 375)
    ends = {}
    for inputs in ("spiked(10, overlap=1)", "spiked(10, overlap=0)"):
        problem = Problem("relu", "h1 + h2/sqrt(2)", 0.5, inputs=inputs)
        found = predict_spectrum(problem, sizes, step_exponent=0.3, check=False)
        drawn = simulate_spectrum(
            problem, sizes, step_exponent=0.3, replicas=6, seed=1, bulk=False, overlaps=False, count=0
        ).details["eigenvalues"]
        ends[inputs] = found.edges[1]
        middle = np.median([values[len(found.outliers)] for values in drawn])
        assert found.edges[1] == pytest.approx(middle, rel=0.15)
    # Where the teacher does not lie along it, it has an eigenvalue of its own.
    assert ends["spiked(10, overlap=0)"] > 1.5 * ends["spiked(10, overlap=1)"]


def test_single_directions_of_a_covariance_are_found_beside_the_bulk() -> None:
    problem, sizes = Problem("relu", "h1 + h2/sqrt(2)", 0.5, inputs="power(1)"), Sizes(1000, 500, 750)
    found = predict_spectrum(problem, sizes, step_exponent=0.3, check=False)
    assert not found.details["notes"]
    assert len(found.outliers) == 2
    drawn = simulate_spectrum(
        problem, sizes, step_exponent=0.3, replicas=6, seed=1, bulk=False, overlaps=False, count=0
    ).details["eigenvalues"]
    middle = np.median([values[2:4] for values in drawn], axis=0)
    (last_low, last_high), (low, high) = found.intervals[-1], found.intervals[-2]
    assert (last_low + last_high) / 2 == pytest.approx(middle[0], rel=0.35)
    assert (low + high) / 2 == pytest.approx(middle[1], rel=0.25)
