import json
import math
import sys

import numpy as np
import pytest

from firststep import compare as public_compare
from firststep.compare import COMPARED, Comparison, aligned, compare, distance_text, value_text
from firststep.results import Outcome
from firststep.setting import Problem, Sizes
from firststep.simulate import simulate as _simulate  # noqa: F401 - so that it is there to be replaced

PROBLEM = Problem("relu", "h1 + h2/sqrt(2)", noise_std=0.5)
SIZES = Sizes(100, 50, 75)
STEPS, RIDGES = np.array([0.0, 1.0, 10.0]), np.array([0.1, 1.0])


def outcome(source, values, stderr=None, **changes):
    settings = {"problem": PROBLEM, "sizes": SIZES, "step_sizes": STEPS, "ridges": RIDGES} | changes
    plain = {name: np.asarray(value, dtype=float) for name, value in values.items()}
    errors = {name: np.asarray(value, dtype=float) for name, value in (stderr or {}).items()}
    return Outcome(**settings, source=source, values=plain, stderr=errors)


def constructed(offset=0.0):
    """A simulation with standard errors .01 and .02 and a theory that is off by a known amount."""
    base = np.array([[1.0, 2.0], [0.9, 1.9], [0.7, 1.5]])
    gain = base[0] - base
    simulated = outcome(
        "simulation",
        {"train_error": base, "test_error": 2 * base, "train_gain": gain, "test_gain": 2 * gain},
        {
            "train_error": np.full((3, 2), 0.01),
            "test_error": np.full((3, 2), 0.02),
            "train_gain": [[0, 0], [0.001, 0.001], [0.001, 0.001]],
            "test_gain": [[0, 0], [0.002, 0.002], [0.002, 0.002]],
        },
    )
    predicted = outcome(
        "unified",
        {
            "train_error": base + offset,
            "test_error": 2 * base,
            "train_gain": gain,
            "test_gain": 2 * gain - 0.004,
        },
    )
    return Comparison(simulated, {"unified": predicted})


def test_distances_and_relative_differences_are_those_of_the_construction():
    comparison = constructed(offset=0.03)
    np.testing.assert_allclose(comparison.distances("train_error"), -3.0)
    np.testing.assert_allclose(
        comparison.relative_differences("train_error"),
        -0.03 / (comparison.simulated.train_error + 0.03),
    )
    assert np.all(comparison.distances("test_error") == 0)
    np.testing.assert_allclose(comparison.distances("test_gain")[1:], 2.0)
    # Without a step the gain has no spread: a theory that predicts one is infinitely far off.
    assert np.all(np.isposinf(comparison.distances("test_gain")[0]))
    assert np.all(comparison.distances("train_gain") == 0)


def test_summary_has_the_largest_and_the_median_distance():
    base = constructed()
    wrong = dict(base.predicted["unified"].values)
    wrong["train_error"] = wrong["train_error"] + 0.01 * np.array([[1, -2], [3, -4], [5, 60]])
    comparison = Comparison(base.simulated, {"a": outcome("a", wrong), **base.predicted})
    assert comparison.summary()["a"]["train_error"]["largest_distance"] == pytest.approx(60)
    assert comparison.summary()["a"]["train_error"]["median_distance"] == pytest.approx(3.5)
    assert comparison.summary()["unified"]["train_error"]["largest_distance"] == 0
    assert comparison.summary()["unified"]["test_gain"]["largest_distance"] is None


def test_rounding_is_no_difference_but_small_differences_are():
    base = constructed()
    values = dict(base.predicted["unified"].values)
    values["train_gain"] = values["train_gain"] + 1e-13
    assert np.all(Comparison(base.simulated, {"a": outcome("a", values)}).distances("train_gain") == 0)
    values["train_gain"] = values["train_gain"] + 1e-7
    found = Comparison(base.simulated, {"a": outcome("a", values)}).distances("train_gain")
    np.testing.assert_allclose(found[1:], -1e-4, rtol=1e-3)
    assert np.all(np.isneginf(found[0]))


def test_rows_are_tidy_and_json_able():
    comparison = constructed(offset=0.03)
    rows = comparison.rows()
    assert len(rows) == 6
    assert [(row["step_size"], row["ridge"]) for row in rows[:3]] == [(0.0, 0.1), (0.0, 1.0), (1.0, 0.1)]
    assert rows[0]["step_exponent"] is None
    assert rows[4]["step_exponent"] == pytest.approx(0.5)
    assert rows[0]["test_gain_distance"] is None
    last = rows[-1]
    assert last["theory"] == "unified"
    assert last["train_error"] == 1.5
    assert last["train_error_stderr"] == 0.01
    assert last["train_error_predicted"] == 1.53
    assert last["train_error_distance"] == pytest.approx(-3)
    assert last["train_error_relative_difference"] == pytest.approx(-0.03 / 1.53)
    content = json.loads(json.dumps(comparison.to_dict(), allow_nan=False))
    assert content["rows"] == rows
    assert {"problem", "sizes", "theories", "notes", "rows", "summary"} <= set(content)


def test_two_theories_give_two_rows_for_each_point():
    base = constructed()
    comparison = Comparison(base.simulated, {"a": base.predicted["unified"], "b": base.predicted["unified"]})
    assert [row["theory"] for row in comparison.rows()] == ["a"] * 6 + ["b"] * 6
    assert "simulation against b" in str(comparison)


def test_quantities_that_one_side_lacks_are_not_compared():
    base = constructed()
    predicted = outcome("a", {"test_error": np.float64(2.0)})
    comparison = Comparison(base.simulated, {"a": predicted})
    assert comparison.quantities == ("test_error",)
    assert comparison.rows()[0]["test_error_predicted"] == 2.0


def test_without_standard_errors_there_is_no_distance():
    base = constructed(offset=0.03)
    single = outcome("simulation", base.simulated.values)
    comparison = Comparison(single, base.predicted)
    assert np.all(np.isnan(comparison.distances("train_error")))
    assert np.all(comparison.distances("test_error") == 0)
    assert comparison.rows()[0]["train_error_distance"] is None
    assert comparison.summary()["unified"]["train_error"]["largest_distance"] is None
    assert "–" in comparison.table()


@pytest.mark.parametrize(
    "change",
    [
        {"problem": Problem("tanh", "h1")},
        {"sizes": Sizes(100, 50, 76)},
        {"step_sizes": np.array([0.0, 1.0, 11.0])},
        {"ridges": np.array([0.1, 2.0])},
    ],
)
def test_answers_to_different_questions_are_refused(change):
    base = constructed()
    other = outcome("unified", base.predicted["unified"].values, **change)
    with pytest.raises(ValueError, match="answers another question"):
        Comparison(base.simulated, {"unified": other})


def test_an_unknown_or_missing_theory_is_named():
    with pytest.raises(ValueError, match="theory must be one of unified; got 'magic'"):
        constructed().distances("train_error", "magic")
    with pytest.raises(ValueError, match="at least one prediction"):
        Comparison(constructed().simulated, {})


def test_tables_are_aligned_and_fit_the_width():
    comparison = constructed(offset=0.03)
    full = comparison.table().split("\n")
    assert len(full) == 7
    assert len({len(line) for line in full}) == 1
    assert "1.000 ± 0.010" in full[1]
    assert "-3.0" in full[1]
    assert "∞" in full[1]
    narrow = comparison.table(width=90).split("\n")
    assert len(narrow[0]) <= 90
    assert "test error" in narrow[0]
    assert "test gain" not in narrow[0]
    assert "train error" in comparison.table(width=5)


def test_representations():
    comparison = constructed(offset=0.03)
    assert repr(comparison) == (
        "Comparison(simulation against unified: 3 step sizes x 2 ridges; "
        "train_error, test_error, train_gain, test_gain)"
    )
    html = comparison._repr_html_()
    assert html.count("<tr>") == 7
    assert "<th>train error</th><th>predicted</th><th>distance</th>" in html


@pytest.mark.parametrize(
    ("value", "stderr", "text"),
    [
        (1.23456789, None, "1.2346"),
        (0.5, None, "0.50000"),
        (12345.0, None, "12345"),
        (1.23456789, 0.0123, "1.235 ± 0.012"),
        (1.23456789, 0.0996, "1.23 ± 0.10"),
        (123.456, 12.3, "123 ± 12"),
        (123456.0, 1230.0, "1.2346e+05 ± 1.2e+03"),
        (0.5, 0.0, "0.5 ± 0"),
        (-0.5, 1e-12, "-0.5 ± 1e-12"),
        (None, None, "–"),
    ],
)
def test_numbers_have_as_many_digits_as_they_deserve(value, stderr, text):
    assert value_text(value, stderr) == text


def test_distances_as_text():
    texts = [distance_text(value) for value in (2.34, -0.04, 0.0, math.inf, -math.inf, math.nan)]
    assert texts == ["+2.3", "-0.0", "0.0", "∞", "-∞", "–"]


def test_aligned_drops_groups_from_the_end():
    leading, groups = [("a", ["1"])], [[("b", ["2"])], [("c", ["3"])]]
    assert aligned(leading, groups) == "a  b  c\n1  2  3"
    assert aligned(leading, groups, 5) == "a  b\n1  2"
    assert aligned(leading, groups, 1) == "a  b\n1  2"


def test_aligned_drops_what_can_be_told_from_the_rest_first():
    alpha, eta, ridge = ("alpha", ["0", "1"]), ("eta", ["1", "9"]), ("lambda", ["3", "3"])
    group = [[("error", ["5", "6"])]]
    assert aligned([alpha, eta, ridge], group, 20).split("\n")[0].split() == ["alpha", "eta", "error"]
    assert aligned([alpha, eta, ridge], group, 12).split("\n")[0].split() == ["alpha", "error"]
    varied = ("lambda", ["3", "4"])
    assert aligned([alpha, eta, varied], group, 1).split("\n")[0].split() == ["alpha", "lambda", "error"]
    # A step of size 0 has no exponent: eta is needed.
    assert "eta" in aligned([("alpha", ["–", "1"]), eta, ridge], group, 1)


def test_compare_runs_both_sides_on_the_same_grid():
    comparison = compare(
        PROBLEM,
        Sizes(120, 60, 90),
        step_exponents=[0.05, 0.1],
        ridges=[0.1, 1.0],
        theory=["random_features", "staircase", "random_features"],
        replicas=4,
        seed=3,
        workers=1,
        progress=False,
    )
    assert list(comparison.predicted) == ["random_features", "staircase"]
    assert comparison.simulated.details["replicas"] == 4
    assert set(COMPARED) >= set(comparison.quantities) >= {"train_error", "test_error"}
    for theory, predicted in comparison.predicted.items():
        z = (comparison.simulated.test_error - predicted.test_error) / comparison.simulated.stderr[
            "test_error"
        ]
        np.testing.assert_allclose(comparison.distances("test_error", theory), z)
    assert len(comparison.rows()) == 8


def test_compare_without_a_step_agrees_with_random_features():
    comparison = compare(
        PROBLEM, Sizes(300, 150, 225), 0.0, [0.1, 1.0], theory="random_features", replicas=12, workers=1
    )
    for name in ("train_error", "test_error"):
        assert np.abs(comparison.distances(name)).max() < 4
    wrong = {
        name: comparison.predicted["random_features"].values[name] * 1.1
        for name in ("train_error", "test_error")
    }
    rejected = Comparison(
        comparison.simulated, {"wrong": _with(comparison.predicted["random_features"], wrong)}
    )
    assert max(np.abs(rejected.distances(name)).max() for name in wrong) > 4


def _with(given, values):
    return Outcome(given.problem, given.sizes, given.step_sizes, given.ridges, "wrong", values)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"replicas": 1}, "replicas must be at least 2 to have a standard error, got 1"),
        ({"theory": []}, "at least one theory"),
        ({"theory": "magic"}, "magic"),
        ({"theory_options": {"unified": {}}}, "theory_options has unified"),
        ({"step_sizes": None}, "give either step_sizes"),
        ({"ridges": -1.0}, "ridge must be positive"),
    ],
)
def test_bad_questions_are_refused_before_anything_is_simulated(arguments, message, monkeypatch):
    def simulate(*_, **__):
        raise AssertionError("the simulation was started")

    monkeypatch.setattr(sys.modules["firststep.simulate"], "simulate", simulate)
    asked = {"step_sizes": 1.0, "theory": "random_features"} | arguments
    with pytest.raises(ValueError, match=message):
        compare(PROBLEM, SIZES, **asked)


def test_the_package_exports_it():
    assert public_compare is compare


def test_later_steps_are_part_of_the_question():
    base = constructed()
    later = np.array([[1.0], [2.0], [3.0]])
    two = outcome("simulation", base.simulated.values, base.simulated.stderr, next_step_sizes=later)
    with pytest.raises(ValueError, match="answers another question"):
        Comparison(two, base.predicted)
    predicted = outcome("unified", base.predicted["unified"].values, next_step_sizes=later)
    comparison = Comparison(two, {"unified": predicted})
    row = comparison.rows()[-1]
    assert row["next_step_size"] == 3.0
    assert row["next_step_exponent"] == pytest.approx(math.log(3) / math.log(100))
    assert "alpha 2" in comparison.table()
    assert "alpha 2" not in base.table()


def test_a_theory_of_one_step_is_not_compared_with_two():
    with pytest.raises(ValueError, match="sequences of steps"):
        compare(PROBLEM, SIZES, 1.0, next_step_exponents=0.2, theory="staircase", replicas=2)
