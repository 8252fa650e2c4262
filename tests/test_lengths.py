"""Rows and inputs of known lengths under a covariance."""

import numpy as np

from firststep import Problem, Sizes, predict
from firststep.theory import ladder, own_component
from firststep.theory.lengths import row_lengths, slope_parts

# An activation whose slope changes much with a row's length, and few dimensions.
WORDS = ("h1 - 0.3*h3", "h1", 0.2)
TWO = "levels(0.3, 1.7)"


def test_rows_of_a_known_length_have_it_and_on_average_the_covariance():
    for rows in ("gaussian", "sphere"):
        problem = Problem(*WORDS, rows=rows, inputs=TWO)
        covariance, rule = problem.covariance(100), row_lengths(problem, 100)
        variances = rule.variances(covariance.values, rule.square)
        np.testing.assert_allclose(covariance.shares @ variances, rule.square, rtol=1e-9)
        np.testing.assert_allclose(variances @ rule.weights, covariance.values, rtol=0.02)
        longer = variances[:, np.argsort(rule.square)] / np.sort(rule.square)
        assert np.all(np.diff(longer[0]) > 0)
        assert np.all(np.diff(longer[1]) < 0)
    assert len(row_lengths(problem.replaced(inputs="levels(0.9, 1.1)"), 500).square) == 1


def test_parts_of_the_slope_at_a_length():
    problem, square = Problem("h1 + h2/2 - 0.3*h3", "h1"), np.array([0.7, 1.0, 1.4])
    found = slope_parts(problem, square, "structured")
    np.testing.assert_allclose(found.first, 1 - 0.9 * (square - 1), rtol=1e-9)
    np.testing.assert_allclose(found.second, 1.0, rtol=1e-9)
    # 0.9^2 E (l^2 g^2 - l^2)^2 is left beyond the mean and the linear part.
    np.testing.assert_allclose(found.left, 2 * (0.9 * square) ** 2, rtol=1e-9)


def test_errors_of_few_dimensions_under_a_covariance(monkeypatch):
    # Drawn with 300 networks (seed 3, controls): without a step and after one of size 8.
    simulated, stderr = np.array([0.5623, 0.6646]), np.array([0.0027, 0.0038])
    problem, sizes = Problem(*WORDS, rows="sphere", inputs=TWO), Sizes(400, 100, 600)
    found = predict(problem, sizes, [0.0, 8.0], 0.01, theory="leading_order").test_error[:, 0]
    assert np.all(np.abs(found - simulated) < 0.05 * simulated + 2 * stderr)
    monkeypatch.setattr(ladder, "knows_own", lambda *_: False)
    without = predict(problem, sizes, [0.0, 8.0], 0.01, theory="leading_order").test_error[:, 0]
    assert abs(without[0] / simulated[0] - 1) > 1.5 * abs(found[0] / simulated[0] - 1)
    assert abs(without[1] / simulated[1] - 1) > 2 * abs(found[1] / simulated[1] - 1)


def test_lengths_are_known_where_no_single_direction_makes_them():
    sizes = Sizes(1000, 300, 750)
    known = {
        inputs: own_component.knows_own(Problem(*WORDS, inputs=inputs), sizes, 2, "structured")
        for inputs in ("isotropic", "levels(0.9, 1.1)", TWO, "power(0.7)", "power(1)")
    }
    assert known == {
        "isotropic": False,
        "levels(0.9, 1.1)": False,
        TWO: True,
        "power(0.7)": True,
        "power(1)": False,
    }
