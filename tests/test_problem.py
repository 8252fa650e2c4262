"""Problem, Sizes and Outcome: what is accepted, converted, said and written."""

import json
import math
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firststep import Outcome, Problem, Sizes, function, predict
from firststep.setting import OutsideTheoryWarning, ridges_of, step_sizes_of
from firststep.theory import THEORIES

SETTING = Problem("relu", "h1 + h2/sqrt(2)", noise_std=0.5)
SIZES = Sizes(1000, 500, 800)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("rows", "uniform", "rows must be one of gaussian, sphere; got 'uniform'"),
        ("readout", "ones", "readout must be one of gaussian, rademacher, constant.*; got 'ones'"),
        ("initial_output", 1, "initial_output must be one of vanishing, order_one; got 1"),
        ("noise_std", -0.1, "noise_std must be finite and not negative, got -0.1"),
        ("noise_std", math.nan, "noise_std must be finite and not negative, got nan"),
        ("noise_std", math.inf, "noise_std must be finite and not negative, got inf"),
    ],
)
def test_bad_values_are_named(name, value, message):
    with pytest.raises(ValueError, match=message):
        Problem("relu", "tanh", **{name: value})


@pytest.mark.parametrize("noise", ["0.1", None, True, 1j])
def test_noise_must_be_a_number(noise):
    with pytest.raises(TypeError, match="noise_std must be a number"):
        Problem("relu", "tanh", noise)


def test_an_activation_needs_a_derivative():
    with pytest.raises(ValueError, match="sign can only be a teacher"):
        Problem("sign", "relu")
    assert Problem("relu", "sign").teacher.second_moment == pytest.approx(1)


def test_a_problem_is_frozen_and_a_key():
    with pytest.raises(AttributeError):
        SETTING.noise_std = 1.0
    same = Problem(function("relu"), "h1 + h2/sqrt(2)", np.float32(0.5))
    assert same == SETTING
    assert hash(same) == hash(SETTING)
    assert same.key == SETTING.key
    assert isinstance(same.noise_std, float)
    changed = [
        Problem("tanh", SETTING.teacher, 0.5),
        Problem("relu", "h1", 0.5),
        Problem("relu", SETTING.teacher, 0.25),
        Problem("relu", SETTING.teacher, 0.5, rows="sphere"),
        Problem("relu", SETTING.teacher, 0.5, readout="constant"),
        Problem("relu", SETTING.teacher, 0.5, initial_output="order_one"),
        Problem(function("relu", centre=False), SETTING.teacher, 0.5),
    ]
    assert len({p.key for p in (SETTING, *changed)}) == 8


def test_keys_are_the_same_in_another_process():
    code = (
        "from firststep import Problem, Sizes; "
        "print(Problem('relu', 'h1 + h2/sqrt(2)', 0.5).key, Sizes(1000, 500, 800).key)"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment()
    )
    assert found.stdout.split() == [SETTING.key, SIZES.key]


def environment():
    path = os.pathsep.join(p for p in sys.path if p)
    return os.environ | {"PYTHONPATH": path, "PYTHONHASHSEED": "7"}


def test_description_and_back():
    for problem in (SETTING, Problem(function("relu", centre=False), [0, 1, 0.5], 0.1, "sphere", "constant")):
        text = json.dumps(problem.to_dict())
        assert Problem.from_dict(json.loads(text)) == problem
        assert Problem.from_dict(json.loads(text)).key == problem.key
        assert pickle.loads(pickle.dumps(problem)) == problem
    del (content := SETTING.to_dict())["centred"]
    assert Problem.from_dict(content) == SETTING
    with pytest.raises(ValueError, match="pass the callable itself"):
        Problem.from_dict(Problem(np.tanh, "relu").to_dict())
    assert "relu" in repr(SETTING)
    assert "noise_std=0.5" in repr(SETTING)


def test_variances():
    assert SETTING.noise_variance == 0.25
    assert SETTING.label_variance == pytest.approx(2.25)
    assert SETTING.output_variance(SIZES) == 0
    assert SETTING.direction_norm_squared(SIZES) == pytest.approx(1 + 0.5 * 2.25)
    # The ratio of the step's own sample.
    assert SETTING.direction_norm_squared(Sizes(1000, 500, 800, 250)) == pytest.approx(1 + 2 * 2.25)


def test_an_output_of_order_one_lengthens_the_direction():
    variance = 0.5 - 0.5 / math.pi
    literal = Problem("relu", "identity", 1, initial_output="order_one")
    assert literal.direction_norm_squared(SIZES) == pytest.approx(1 + 0.25 + 0.5 * (2 + variance))
    assert literal.direction_norm_squared(SIZES) == pytest.approx(2.42, abs=5e-3)
    constant = Problem("relu", "identity", 1, initial_output="order_one", readout="constant")
    added = 2 / (8 * math.pi) * 800 / 500
    assert constant.output_variance(SIZES) == pytest.approx(variance + added)
    assert constant.direction_norm_squared(SIZES) == pytest.approx(2.42042 + 0.5 * added, abs=1e-4)


@pytest.mark.parametrize(
    ("problem", "sizes", "said"),
    [
        (SETTING, SIZES, ()),
        (Problem("relu", "h2"), None, ("the teacher h2 has no linear part",)),
        (Problem("cos", "identity"), None, ("the activation cos has no linear part",)),
        (Problem(function("relu", centre=False), "tanh"), None, ("the activation relu has mean 0.399",)),
        (Problem("tanh", function("relu", centre=False)), None, ("the teacher relu has mean 0.399",)),
        (SETTING, Sizes(10, 2000, 3000), ("d/n = 200 is far", "d/n0 = 200 is far")),
        (SETTING, Sizes(1000, 500, 10**6), ("d/N = 0.0005 is far",)),
    ],
)
def test_concerns(problem, sizes, said):
    found = problem.concerns(sizes)
    assert len(found) == len(said)
    assert all(start in sentence for start, sentence in zip(said, found, strict=True))


@pytest.mark.parametrize("value", [2.5, "3", True, None, math.nan, math.inf])
def test_sizes_are_whole_numbers(value):
    with pytest.raises(TypeError, match="dim must be a whole number"):
        Sizes(10, value, 10)


@pytest.mark.parametrize("value", [0, -3])
def test_sizes_are_positive(value):
    with pytest.raises(ValueError, match=f"width must be at least 1, got {value}"):
        Sizes(10, 10, value)


def test_sizes_of_any_size():
    assert Sizes(np.int64(10), 5.0, 7) == Sizes(10, 5, 7, 10)
    assert isinstance(Sizes(np.int64(10), 5.0, 7).dim, int)
    huge = Sizes(10**30, 5 * 10**29, 10**30)
    assert (huge.sample_ratio, huge.width_ratio, huge.step_ratio) == (0.5, 0.5, 0.5)
    assert huge.step_exponent(1e15) == pytest.approx(0.5)
    assert SIZES.key != Sizes(1000, 500, 800, 1001).key
    assert Sizes(**SIZES.to_dict()) == SIZES


@given(st.floats(-0.3, 0.5), st.integers(2, 10**12))
def test_exponents_and_step_sizes_convert_both_ways(exponent, count):
    sizes = Sizes(100, 50, 70, count)
    assert sizes.step_exponent(sizes.step_size(exponent)) == pytest.approx(exponent, abs=1e-12)


def test_exponents_of_arrays():
    sizes = Sizes(100, 50, 70, 10_000)
    assert isinstance(sizes.step_size(0.5), float)
    assert sizes.step_size([0.0, 0.25]) == pytest.approx([1, 10])
    assert sizes.step_exponent([0.0, 1.0]).tolist() == [-math.inf, 0]


def test_ratios_of_each_paper():
    moniri = Sizes.from_moniri(1000, phi=0.5, psi=0.625)
    assert (moniri.sample_ratio, moniri.width_ratio, moniri.step_ratio) == (0.5, 0.625, 0.5)
    ba = Sizes.from_ba(512, psi1=5, psi2=2, n_step_samples=100)
    assert (ba.n_samples / ba.dim, ba.width / ba.dim, ba.n_step_samples) == (5, 2, 100)
    cui = Sizes.from_cui(2000, sample_ratio=1.6, width_ratio=1, step_ratio=0.5)
    assert (cui.n_samples / cui.width, cui.width / cui.dim, cui.n_step_samples / cui.dim) == (1.6, 1, 0.5)
    for make, name in (
        (lambda: Sizes.from_moniri(10, -1, 1), "phi"),
        (lambda: Sizes.from_ba(10, 1, math.inf), "psi2"),
        (lambda: Sizes.from_cui(10, 0), "sample_ratio"),
    ):
        with pytest.raises(ValueError, match=f"{name} must be positive and finite"):
            make()


def test_ridge_of_each_paper():
    sizes = Sizes(3200, 2000, 2000)
    # ||y - F a||^2/N + lambda_C ||a||^2 is n/N times ours.
    assert sizes.ridge_from_cui(0.01) == pytest.approx(0.00625)
    assert sizes.ridge_to_cui(sizes.ridge_from_cui([0.01, 0.2])) == pytest.approx([0.01, 0.2])
    assert isinstance(float(sizes.ridge_from_cui(0.01)), float)


def test_step_sizes_are_given_one_way():
    assert step_sizes_of(SIZES, 2.0, None).tolist() == [2.0]
    assert step_sizes_of(SIZES, None, [0.0, 0.5]) == pytest.approx([1, math.sqrt(1000)])
    for pair in ((None, None), (1.0, 0.1)):
        with pytest.raises(ValueError, match=r"either step_sizes .* or step_exponents"):
            step_sizes_of(SIZES, *pair)
    for wrong in ([-1.0], [math.nan], [math.inf]):
        with pytest.raises(ValueError, match="step sizes must be finite and not negative"):
            step_sizes_of(SIZES, wrong, None)
    for wrong in ([], [[1.0]]):
        with pytest.raises(ValueError, match="number or a non-empty list"):
            step_sizes_of(SIZES, wrong, None)


def test_ridges_are_positive():
    assert ridges_of(0.1).tolist() == [0.1]
    for wrong in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="ridge must be positive and finite"):
            ridges_of([0.1, wrong])
    with pytest.raises(ValueError, match="ridges must be a number or a non-empty list"):
        ridges_of([])


@pytest.fixture
def outcome():
    return Outcome(
        SETTING,
        SIZES,
        np.array([0.0, 10.0]),
        np.array([0.1, 0.2, 0.3]),
        source="simulation",
        values={
            "train_error": np.arange(6.0).reshape(2, 3),
            "weights_top": np.array([[2.0], [3.0]]),
            "linear_ridge_test_error": np.array([[7.0, 8.0, math.nan]]),
            "alignment": np.array(0.5),
        },
        stderr={"train_error": np.full((2, 3), 0.25)},
        notes=("a note",),
    )


def test_rows(outcome):
    rows = outcome.rows()
    assert len(rows) == 6
    assert rows[4] == {
        "step_size": 10.0,
        "step_exponent": pytest.approx(1 / 3),
        "ridge": 0.2,
        "train_error": 4.0,
        "weights_top": 3.0,
        "linear_ridge_test_error": 8.0,
        "alignment": 0.5,
        "train_error_stderr": 0.25,
    }
    # No step has no exponent, and JSON has no word for what is not a number.
    assert rows[0]["step_exponent"] is None
    assert rows[2]["linear_ridge_test_error"] is None


def test_outcome_as_json(outcome):
    content = json.loads(json.dumps(outcome.to_dict(), allow_nan=False))
    assert content["problem"]["activation"] == "relu"
    assert content["sizes"] == {"n_samples": 1000, "dim": 500, "width": 800, "n_step_samples": 1000}
    assert content["source"] == "simulation"
    assert content["notes"] == ["a note"]
    assert len(content["rows"]) == 6


def test_outcome_to_look_at(outcome):
    assert repr(outcome).startswith("Outcome(simulation: 2 step sizes x 3 ridges; train_error")
    html = outcome._repr_html_()
    assert html.count("<tr>") == 7
    assert f"<caption>simulation: {outcome.problem.title}</caption>" in html
    assert "nan" not in html
    assert outcome.weights_top[1, 0] == 3
    assert outcome.step_exponents == pytest.approx([-math.inf, 1 / 3])
    with pytest.raises(AttributeError, match="no 'test_error'; there are train_error, weights_top"):
        _ = outcome.test_error
    assert pickle.loads(pickle.dumps(outcome)).rows() == outcome.rows()


def test_predict_names_the_theories():
    with pytest.raises(
        ValueError,
        match="theory must be one of unified, leading_order, staircase, random_features; got 'limit'",
    ):
        predict(SETTING, SIZES, 0.0, theory="limit")
    assert THEORIES == ("unified", "leading_order", "staircase", "random_features")


def test_predict_says_once_what_is_outside_the_theory():
    with pytest.warns(OutsideTheoryWarning) as caught:
        found = predict(Problem("relu", "h2"), Sizes(10, 2000, 3000), 0.0, theory="staircase")
    assert len(caught) == len(found.notes) == 3
    # The warning points at the caller, not into the package.
    assert caught[0].filename == __file__


def test_predict_is_quiet_inside_the_theory():
    found = predict(SETTING, SIZES, step_exponents=[0.1, 0.2], theory="random_features")
    assert found.notes == ()
    assert found.ridges.tolist() == [0.1]
    assert found.step_exponents == pytest.approx([0.1, 0.2])


@pytest.mark.parametrize("constant", ["0*x", [1.0], "2 + 0*h1"])
def test_a_constant_activation_is_refused(constant):
    with pytest.raises(ValueError, match="is constant"):
        Problem(constant, "h1")


@pytest.mark.parametrize(
    ("fields", "unknown"),
    [
        ({"step_rule": "sign"}, "sign steps: simulate them"),
        ({"fit_sample": "step"}, "a fit on the step's own sample: simulate it"),
    ],
)
@pytest.mark.parametrize("theory", ["unified", "staircase", "random_features"])
def test_what_no_theory_knows_is_refused_in_words(fields: dict[str, str], unknown: str, theory: str) -> None:
    with pytest.raises(ValueError, match=f"the {theory} theory does not know {unknown}"):
        predict(Problem("relu", "h1", **fields), Sizes(200, 100, 150), [1.0], theory=theory)


@pytest.mark.parametrize("words", ["isotropic", "power(0)", "levels(2, 2)", "values(3)"])
def test_isotropic_inputs_are_known_by_any_words(words: str) -> None:
    problem = Problem("relu", "h1", inputs=words)
    assert problem.isotropic
    assert problem.covariance(10).isotropic
    assert not Problem("relu", "h1", inputs="power(1)").isotropic
