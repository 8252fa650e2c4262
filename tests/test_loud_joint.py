"""The joint law of a covariance and M beside a loud direction: against drawn networks, and where it is nothing."""

import numpy as np
import pytest

from firststep import Problem, Sizes, predict
from firststep.theory import loud
from firststep.theory.directions import grouped
from firststep.theory.loud_joint import BesideLoud, changes
from firststep.theory.unified import best_ridge

SIZES, STEP = Sizes(1000, 500, 750), 31.62


def setting(inputs, activation="relu", **words):
    return Problem(activation, "h1 + h2/2", 0.3, rows="sphere", inputs=inputs, **words)


# 160 drawn networks with control variates, float32, seed 177, alpha 0.5, ridge 0.1: both errors with standard errors,
# and how far M as noise beside the loud direction is off.
DRAWN = [
    ("spiked(10, overlap=0.6)", (0.27824, 0.00129), (0.66427, 0.00226), (-0.054, -0.020)),
    ("spiked(20, overlap=0.8)", (0.18882, 0.00086), (0.45248, 0.00132), (-0.046, -0.009)),
]


@pytest.mark.parametrize("row", DRAWN)
def test_errors_against_drawn_networks(row):
    inputs, *drawn, before = row
    found, plain = (
        predict(setting(inputs), SIZES, step_exponents=0.5, ridges=0.1, theory=theory)
        for theory in ("unified", "leading_order")
    )
    for name, (value, error), off in zip(("train_error", "test_error"), drawn, before, strict=True):
        assert found[name][0, 0] == pytest.approx(value, abs=2 * error + 0.005 * value)
        assert plain[name][0, 0] / value - 1 == pytest.approx(off, abs=0.004)


def test_nothing_changes_where_the_step_leaves_rows_as_they_are():
    assert np.abs(changes(setting("spiked(10, overlap=0.6)"), SIZES, 1e-6, np.array([0.1]))).max() < 1e-6


def test_an_activation_without_a_quadratic_part_sees_little_of_M():
    tanh, relu = (
        changes(setting("spiked(10, overlap=0.6)", name), SIZES, STEP, np.array([0.1]))
        for name in ("tanh", "relu")
    )
    assert np.abs(tanh).max() < 0.002
    assert relu[0, 0] > 0.04


def test_rows_keep_the_length_that_they_have_with_M_as_noise():
    problem = setting("spiked(10, overlap=0.6)")
    nodes = loud.Pull.of(problem, SIZES).nodes(STEP, draft=True)
    here = BesideLoud.of(problem, SIZES, STEP, np.array([0.1]), nodes, 0.0, 0.6)
    law, parts = here.rows.law, here.parts
    square = here.rows.step.moments.square * SIZES.step_ratio
    gained = square * (parts.shares @ parts.turned[0]) + parts.noise[0]
    ours = parts.shares @ parts.begun[0] + parts.shares @ parts.values**2 * gained
    theirs = parts.shares @ law.stretch(here.geometry.law.nodes, here.geometry.law.share)[0]
    # A row that has more along the direction has less beside it that M could turn.
    assert ours == pytest.approx(theirs, rel=0.005)


def test_a_teacher_along_the_direction_has_none_beside_it():
    found = changes(setting("spiked(50, overlap=1)"), SIZES, STEP, np.array([0.1, 1.0]))
    assert np.all(np.isfinite(found))
    near = changes(setting("spiked(50, overlap=0.99999)"), SIZES, STEP, np.array([0.1, 1.0]))
    assert found == pytest.approx(near, abs=1e-4)


def test_details_tell_the_changes_and_gains_have_them():
    problem = setting("spiked(10, overlap=0.6)")
    found = predict(problem, SIZES, step_sizes=[0.0, STEP], ridges=0.1)
    law = found.details["joint_law"]
    assert np.all(law[:, 0] == 0)
    assert law[0, 1, 0] == pytest.approx(0.05, abs=0.01)
    for name in ("train", "test"):
        errors, gains = found[f"{name}_error"][:, 0], found[f"{name}_gain"][:, 0]
        assert gains == pytest.approx(errors[0] - errors, abs=1e-12)
    plain = predict(problem, SIZES, step_sizes=[0.0, STEP], ridges=0.1, theory="leading_order")
    assert "joint_law" not in plain.details


def test_the_best_ridge_has_the_error_that_is_predicted_there():
    problem = setting("spiked(50, overlap=1)")
    best = best_ridge(problem, SIZES, 8.0)
    assert predict(problem, SIZES, 8.0, best.ridge).test_error[0, 0] == pytest.approx(
        best.test_error, rel=1e-9
    )


@pytest.mark.parametrize("inputs", ["power(1)", "spiked(50, overlap=0.3)", "spiked(50, overlap=0)"])
def test_draws_have_the_moments_of_what_a_step_finds(inputs):
    problem = setting(inputs)
    covariance = problem.covariance(SIZES.dim)
    weight = float(grouped(covariance)[2][0])
    draws = np.array(loud.Pull.of(problem, SIZES).of_all(weight, covariance.typical, 8))
    noise, weights, mass = draws.T
    assert mass.sum() == pytest.approx(1)
    pull = loud.Pull.of(problem, SIZES)
    along = pull.signal * np.sqrt(weights / weight) if weight else np.zeros(len(mass))
    wanted = pull.signal**2 + pull.noise**2 if len(mass) > 1 else pull.signal**2
    assert mass @ (along + noise * pull.noise) ** 2 == pytest.approx(wanted, rel=1e-6)


def test_a_step_that_outgrows_the_theory_says_so():
    found = predict(setting("spiked(10, overlap=0.6)"), SIZES, step_exponents=0.6, ridges=0.1)
    assert any("step" in note for note in found.notes)
