"""The words "agrees", "finite-size" and "disagrees" are called as often as they should be."""

import math

import numpy as np
import pytest
from scipy import stats

from firststep.compare import Comparison, compare
from firststep.numerics.agreement import (
    AGREES,
    DISAGREES,
    FINITE_SIZE,
    LEVEL,
    curve_agreement,
    normal_distances,
    student_p_values,
    words_of,
)
from firststep.results import Outcome
from firststep.setting import Problem, Sizes

CURVES = 2000


def drawn(rng, replicas, points, length):
    """Replicas of a curve whose points are correlated over `length` points and scatter unequally."""
    apart = np.abs(np.subtract.outer(np.arange(points), np.arange(points)))
    root = np.linalg.cholesky(np.exp(-apart / length) + 1e-9 * np.eye(points))
    return rng.standard_normal((replicas, points)) @ root.T * np.geomspace(0.1, 3, points)


def alarms(replicas, points, length, shift=0.0, bar=0.0, curves=200):
    """Share of synthetic curves that are called wrong; the shift and the bar are in standard errors."""
    rng = np.random.default_rng([replicas, points])
    stderr = np.geomspace(0.1, 3, points) / math.sqrt(replicas)
    right = 5 * stderr
    words = [
        curve_agreement(
            right + drawn(rng, replicas, points, length), right - shift * stderr, bar * stderr
        ).word
        for _ in range(curves)
    ]
    return words.count(DISAGREES) / curves


@pytest.mark.parametrize("replicas", [2, 4, 8, 16])
@pytest.mark.parametrize(("points", "length"), [(1, 1), (6, 0.2), (10, 50), (40, 5)])
def test_a_right_curve_is_called_wrong_as_often_as_the_level_says(replicas, points, length):
    """[LGK98]: exact at any number of replicas and points, correlated or not."""
    expected = LEVEL * CURVES
    count = alarms(replicas, points, length, curves=CURVES) * CURVES
    assert count <= expected + 4 * math.sqrt(expected)
    # Not an idle test either: half of the level is spent on a test that is exact.
    assert count >= expected / 2 - 2.5 * math.sqrt(expected / 2) > 0


def test_the_old_rule_called_a_right_curve_wrong_far_too_often():
    """What is mended: with four replicas a distance above 3 standard errors is an ordinary event."""
    rng = np.random.default_rng(1)
    found = [drawn(rng, 4, 10, 5) for _ in range(CURVES)]
    largest = [np.abs(x.mean(axis=0) / (x.std(axis=0, ddof=1) / 2)).max() for x in found]
    assert np.mean(np.array(largest) > 3) > 0.1


@pytest.mark.parametrize("replicas", [4, 8])
def test_a_wrong_curve_is_called_wrong(replicas):
    signs = np.where(np.arange(10) % 2, 1, -1)
    assert alarms(replicas, 10, 10, shift=12.0) > 0.97
    assert alarms(replicas, 10, 10, shift=12.0 * signs) > 0.97
    # One bad point among good ones, which the leading directions miss.
    lone = np.zeros(10)
    lone[4] = 40.0
    assert alarms(replicas, 10, 10, shift=lone) > 0.9


def test_inside_the_bar_is_finite_size_and_beyond_is_wrong():
    assert alarms(8, 10, 10, shift=12.0, bar=12.0) <= 2 * LEVEL
    assert alarms(8, 10, 10, shift=12.0, bar=14.0) <= LEVEL / 2
    assert alarms(8, 10, 10, shift=30.0, bar=14.0) > 0.97
    rng = np.random.default_rng(2)
    samples = drawn(rng, 8, 10, 10)
    stderr = np.geomspace(0.1, 3, 10) / math.sqrt(8)
    assert curve_agreement(samples, 30 * stderr, 32 * stderr).word == FINITE_SIZE


def test_one_point_is_student():
    samples = np.random.default_rng(3).standard_normal((5, 1)) + 1.3
    found = curve_agreement(samples, np.zeros(1))
    expected = stats.ttest_1samp(samples[:, 0], 0.0)
    assert found.p_value == pytest.approx(expected.pvalue)
    assert found.statistic == pytest.approx(expected.statistic**2)
    assert found.degrees_of_freedom == (1, 4)
    assert student_p_values(np.array([expected.statistic]), 4)[0] == pytest.approx(expected.pvalue)


def test_all_directions_are_hotelling():
    """With as many directions as points the leading ones are all: the textbook's T^2."""
    samples = np.random.default_rng(4).standard_normal((12, 3)) + 0.5
    found = curve_agreement(samples, np.zeros(3))
    mean, covariance = samples.mean(axis=0), np.cov(samples.T)
    assert found.statistic == pytest.approx(12 * mean @ np.linalg.solve(covariance, mean))
    assert found.degrees_of_freedom == (3, 9)


def test_normal_distances_have_the_same_probability():
    distances = np.array([-4.0, 0.0, 1.0, 3.18, np.inf, np.nan])
    found = normal_distances(distances, 3)
    np.testing.assert_allclose(2 * stats.norm.sf(np.abs(found[:4])), student_p_values(distances[:4], 3))
    assert found[0] < 0 < found[3] < 2
    assert np.isposinf(found[4])
    assert np.isnan(found[5])
    # Far out a p-value is 0 in floating point; the distance stays finite and large.
    assert 38 < normal_distances(np.array([80.0]), 2000)[0] <= 80


def test_points_without_spread_or_prediction():
    samples = np.random.default_rng(5).standard_normal((6, 4))
    samples[:, 0] = 2.0
    same = curve_agreement(samples, np.array([2.0, 0, 0, np.nan]))
    assert (same.word, same.points) == (AGREES, 3)
    assert curve_agreement(samples, np.array([2.1, 0, 0, 0.0])).word == DISAGREES
    assert curve_agreement(samples, np.full(4, np.nan)) is None
    with pytest.raises(ValueError, match="at least 2 replicas"):
        curve_agreement(samples[:1], np.zeros(4))


def test_words_of_points():
    differences = np.array([0.0, 3.0, 3.0, 30.0, np.nan, 1.0, 1.0])
    stderr = np.array([1.0, 1.0, 1.0, 1.0, 1.0, 0.0, np.nan])
    bars = np.array([0.0, 0.0, 2.0, 2.0, 0.0, 0.0, 0.0])
    assert words_of(differences, stderr, bars, math.inf) == [
        AGREES, DISAGREES, FINITE_SIZE, DISAGREES, None, DISAGREES, None,
    ]  # fmt: skip
    assert words_of(differences[1:2], stderr[1:2], bars[1:2], 3) == [AGREES]


def synthetic(samples, predicted, bar=None, stderr=None):
    """A comparison of samples (replicas, steps, ridges) with a prediction of the test error."""
    problem, sizes = Problem("tanh", "h1"), Sizes(100, 50, 75)
    grid = np.arange(1.0, samples.shape[1] + 1), np.geomspace(0.1, 1, samples.shape[2])
    if stderr is None:
        stderr = samples.std(axis=0, ddof=1) / math.sqrt(len(samples))
    details = {"replicas": len(samples), "samples": {"test_error": samples}}
    values = {"test_error": samples.mean(axis=0)}
    simulated = Outcome(problem, sizes, *grid, "simulation", values, {"test_error": stderr}, (), details)
    values = {"test_error": predicted} | ({} if bar is None else {"test_error_bar": bar})
    return Comparison(simulated, {"unified": Outcome(problem, sizes, *grid, "unified", values)})


def test_a_comparison_has_one_word_for_all_points_and_one_for_each():
    samples = 5 + 0.1 * np.random.default_rng(6).standard_normal((4, 3, 2))
    right = synthetic(samples, np.full((3, 2), 5.0))
    wrong = synthetic(samples, np.full((3, 2), 7.0))
    barred = synthetic(samples, np.full((3, 2), 7.0), np.full((3, 2), 2.2))
    assert [both.summary()["unified"]["test_error"]["word"] for both in (right, wrong, barred)] == [
        AGREES, DISAGREES, FINITE_SIZE,
    ]  # fmt: skip
    summary = wrong.summary()["unified"]["test_error"]
    assert summary["degrees_of_freedom"] == [1, 3]
    assert summary["p_value"] < LEVEL
    assert summary["words"] == {DISAGREES: 6}
    row = barred.rows()[0]
    assert row["test_error_word"] == FINITE_SIZE
    assert row["test_error_bar"] == pytest.approx(2.2)
    assert 0 < row["test_error_p_value"] < LEVEL
    assert "test_error_bar" not in right.rows()[0]
    assert right.legend() == ""
    assert wrong.table().count("!") == 6
    assert barred.table().count("~") == 6
    assert "test error disagrees (p < 0.001)" in wrong.verdict()
    assert wrong.curve("test_error", ridge=0).points == 3


def test_control_variates_keep_their_smaller_spread():
    samples = 5 + np.random.default_rng(7).standard_normal((8, 3, 1))
    stated = np.full((3, 1), 0.01)
    assert synthetic(samples, np.full((3, 1), 5.5)).curve("test_error").word == AGREES
    found = synthetic(samples, samples.mean(axis=0) + 0.2, stderr=stated)
    assert found.curve("test_error").word == DISAGREES
    np.testing.assert_allclose(found.samples("test_error").std(axis=0, ddof=1) / math.sqrt(8), stated)


@pytest.mark.parametrize(
    ("replicas", "seed", "quantity"), [(4, 1, "test_gain"), (4, 2, "test_gain"), (8, 0, "test_error")]
)
def test_the_unified_theory_agrees_and_the_staircase_does_not(replicas, seed, quantity):
    """At n = 1000 with few replicas: the limit's staircase is far from a network of this size."""
    found = compare(
        Problem("relu", "h1 + h2/sqrt(2)", noise_std=0.5, rows="sphere"),
        Sizes(1000, 500, 750),
        step_exponents=[0.1, 0.2, 0.3, 0.4, 0.45],
        theory=["unified", "staircase"],
        replicas=replicas,
        seed=seed,
        dtype="float32",
        workers=1,
        progress=False,
    )
    summary = found.summary()
    assert {entry["word"] for entry in summary["unified"].values()} <= {AGREES, FINITE_SIZE}
    assert summary["staircase"][quantity]["word"] == DISAGREES
