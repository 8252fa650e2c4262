"""What goes wrong is told in a sentence with its remedy, before anything is computed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from firststep import (
    Problem,
    Sizes,
    diagnose,
    function,
    predict,
    predict_spectrum,
    simulate,
    simulate_spectrum,
)
from firststep.cli.app import main
from firststep.cli.output import sentence
from firststep.setting import OutsideTheoryWarning

pytest.importorskip("pydantic")

from small_experiment import TEXT

from firststep.experiment import ExperimentError, load, parse

SIZES = Sizes(60, 30, 40)
PROBLEM = Problem("relu", "h1")


@pytest.mark.parametrize("answer", [simulate, predict])
def test_numbers_that_cannot_be_computed_with_are_refused(answer) -> None:
    for ridge in (1e308, 1e-300):
        with pytest.raises(ValueError, match=r"ridge must be between 1e-100 and 1e\+100, got"):
            answer(PROBLEM, SIZES, step_sizes=[1.0], ridges=[ridge])
    with pytest.raises(ValueError, match=r"step sizes must be at most 1e\+100"):
        answer(PROBLEM, SIZES, step_sizes=[1e300])
    with pytest.raises(ValueError, match=r"noise_std must be at most 1e\+100"):
        Problem("relu", "h1", noise_std=1e200)


def test_a_spectrum_has_a_limit_of_points() -> None:
    with pytest.raises(ValueError, match="at most 100000, got 1000000000"):
        predict_spectrum(PROBLEM, SIZES, 1.0, points=10**9)


def test_a_negative_zero_has_no_key_of_its_own() -> None:
    assert Problem("relu", "h1", noise_std=-0.0).key == PROBLEM.key
    assert parse(TEXT.replace("0.3", "-0.0")).problem.model_dump()["noise_std"] == 0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("n_samples = 60", f"n_samples = {'9' * 5000}"), "a number has more than 4300 digits"),
        (
            ('name = "staircase"', 'name = "unified"\noptions = { tolerence = 1e-5 }'),
            "the unified theory takes no tolerence: did you mean tolerance",
        ),
        (("replicas = 3", 'replicas = 3\nextras = "weights"'), "must be a list, got 'weights'"),
        (("title", f"{'[' * 3000}\ntitle"), "not valid TOML"),
    ],
)
def test_mistakes_of_an_experiment_file_are_found_before_it_runs(change: tuple[str, str], said: str) -> None:
    with pytest.raises(ExperimentError, match=said):
        parse(TEXT.replace(*change))


def test_a_file_in_another_encoding_is_named(tmp_path: Path) -> None:
    file = tmp_path / "latin.toml"
    file.write_bytes(b'title = "\xe9"')
    with pytest.raises(ExperimentError, match=r"latin\.toml is not UTF-8 text \(byte 9\)"):
        load(file)
    file.write_bytes(b"\xef\xbb\xbf" + TEXT.encode())
    assert load(file).title == "An example"


def test_words_of_python_become_sentences() -> None:
    for error, said in {
        OverflowError(34, "Numerical result out of range"): "a number is too large to compute with",
        np.linalg.LinAlgError("Singular matrix"): "raise the ridge",
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid"): "save it as UTF-8",
        MemoryError(): "not enough memory; use smaller sizes",
        MemoryError("9 GiB are missing: use fewer rows"): "memory: 9 GiB are missing: use fewer rows",
        ZeroDivisionError("float division by zero"): "vanished",
        ValueError("ridge must be positive"): "ridge must be positive",
    }.items():
        assert said in sentence(error)
        assert sentence(error).count("use ") <= 1
    found = CliRunner().invoke(main, ["run", "no-such.toml"])
    assert found.exit_code == 2


def noisy(change: Callable[[Any, Any], None]) -> tuple[Any, Any]:
    """A table of 40 rows and two columns with one thing wrong, and its target."""
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((40, 2))
    target = inputs[:, 0] + 0.1 * rng.standard_normal(40)
    change(inputs, target)
    return inputs, target


def put(which: str, value: float, *place: Any) -> Callable[[Any, Any], None]:
    def change(inputs: Any, target: Any) -> None:
        (inputs if which == "inputs" else target)[place] = value

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (put("inputs", 1e200, 7, 1), r"'x1' has 1e\+200 in row 8 of the data, which cannot be squared"),
        (put("target", -1e300, 7), r"'y' has -1e\+300 in row 8 of the data, which cannot be squared"),
        (put("inputs", 1e-200, slice(None), 0), "'x0' has no number above 1e-200, whose square is none"),
    ],
)
def test_a_table_whose_squares_are_none_is_refused(change: Callable[[Any, Any], None], said: str) -> None:
    pytest.importorskip("sklearn")
    with pytest.raises(ValueError, match=said):
        diagnose(*noisy(change))


def test_one_row_that_decides_is_said() -> None:
    pytest.importorskip("sklearn")
    told = diagnose(*noisy(put("inputs", 1e12, 7, 1)), width=20, folds=2, repeats=1)
    assert any(note.startswith("row 8 of the data, with 1e+12, makes 100 %") for note in told.notes), (
        told.notes
    )
    assert "Linear ridge fails on some rows (R² -" in told.verdict
    told = diagnose(*noisy(put("inputs", 1.0, 7, 1)), width=20, folds=2, repeats=1)
    assert not any("decides" in note for note in told.notes)


def test_options_and_widths_of_a_diagnosis_have_limits() -> None:
    pytest.importorskip("sklearn")
    pandas = pytest.importorskip("pandas")
    inputs, target = noisy(put("inputs", 0.0, 0, 0))
    for options, said in (
        ({"repeats": 0}, "repeats must be a whole number of at least 1, got 0"),
        ({"folds": 1}, "folds must be a whole number of at least 2, got 1"),
        ({"width": 0}, "width must be a whole number of at least 1, got 0"),
    ):
        with pytest.raises(ValueError, match=said):
            diagnose(inputs, target, **options)
    with pytest.raises(ValueError, match="2 columns are called 'a': give each a name of its own"):
        diagnose(pandas.DataFrame(inputs, columns=["a", "a"]), target)
    with pytest.raises(ValueError, match="the table has 100000 columns, and at most 10000 are diagnosed"):
        diagnose(np.broadcast_to(inputs[:, :1], (40, 100_000)), target)


def test_a_drawn_spectrum_that_does_not_fit_is_refused_before_it_is_drawn() -> None:
    for of in ("features", "weights"):
        with pytest.raises(
            MemoryError, match=r"a drawn spectrum of .* would take about .* GiB and .* available"
        ):
            simulate_spectrum(Problem("relu", "h1"), Sizes(10**6, 10**6, 10**6), 1.0, of=of)


def test_callables_are_named_in_sentences_without_the_prefix_for_programs() -> None:
    def bent(x: np.ndarray) -> np.ndarray:
        return x**2

    problem = Problem(np.tanh, bent)
    assert problem.teacher.spec == "callable:bent"
    sizes = Sizes(200, 100, 150)
    with pytest.warns(OutsideTheoryWarning, match="the teacher bent has no linear part"):
        outcome = predict(problem, sizes, step_exponents=0.2, ridges=0.1)
    assert not any("callable:" in note for note in outcome.notes)
    with pytest.raises(ValueError, match=r"^the activation flat is constant: "):
        Problem(function(lambda x: 0 * x + 1, name="flat"), "h1")
