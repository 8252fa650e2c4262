"""Whatever is given, there is an answer that is right or a sentence that says why not: never a traceback, never NaN.

A few dozen examples each, the same on every run; `./run fuzz MINUTES` goes on with new ones as long as it is told. What
that finds is kept in corpus/, one file to a case, and tried first.
"""

import json
import math
import os
import re
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, example, given, note
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from firststep import Problem, Sizes, function, predict
from firststep.cli.app import main

pytest.importorskip("pydantic")

from small_experiment import TEXT

from firststep.experiment import ExperimentError, expand, parse
from firststep.setting import OutsideTheoryWarning
from fuzz import strategies as of

CORPUS = Path(__file__).parent / "corpus"
# Set by ./run fuzz: so many examples of each property, other ones on every run.
MANY = int(os.environ.get("FIRSTSTEP_FUZZ", "0"))

# What says nothing to a user: words of Python, of NumPy or of a library in place of a sentence.
NO_SENTENCE = re.compile(
    r"^\(\d+, |Numerical result out of range|Singular matrix|too large to convert|codec can't|Exceeds the limit"
    r"|Traceback|object has no attribute|list index|NoneType|unexpected \w+Error|math range|math domain"
    r"|cannot convert float|scale must be|setting an array element|broadcast",
    re.IGNORECASE,
)


def few(count: int) -> Callable[[Any], Any]:
    """So many examples, or as many as ./run fuzz wants."""
    return hypothesis_settings(
        max_examples=MANY or count,
        derandomize=not MANY,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )


def from_corpus(kind: str) -> Callable[[Any], Any]:
    """The cases found before, as explicit examples."""

    def decorate(test: Any) -> Any:
        for file in sorted(CORPUS.glob(f"{kind}-*")):
            test = example(file.read_bytes().decode("utf-8").removesuffix("\n"))(test)
        return test

    return decorate


def check_sentences(*texts: str) -> None:
    """Fail on an error whose words are not meant for a user."""
    for text in texts:
        assert len(text) > 12, text
        assert not NO_SENTENCE.search(text), text


def test_the_check_of_sentences_rejects_what_is_none() -> None:
    for bad in (
        "(34, 'Numerical result out of range')",
        "Singular matrix",
        "",
        "int too large to convert to float",
    ):
        with pytest.raises(AssertionError):
            check_sentences(bad)
    check_sentences("ridge must be positive, got -1.0")


@from_corpus("expression")
@few(150)
@given(of.expressions() | of.hostile_expressions())
def test_expressions(text: str) -> None:
    note(repr(text))
    try:
        found = function(text)
    except ValueError as error:
        check_sentences(str(error))
        return
    assert math.isfinite(found.second_moment)
    assert found.second_moment >= 0
    # Bessel: no partial sum is above the whole.
    series = found.hermite(12)
    parts = np.array([math.factorial(k) * c * c for k, c in enumerate(series)])
    assert parts.sum() <= found.second_moment * (1 + 1e-9) + 1e-12
    assert function(found.spec).key == found.key, "its spelling reads back as itself"


@few(60)
@given(of.expressions())
def test_averages_agree_with_a_sample(text: str) -> None:
    """The averages of whatever is accepted, against a rule that knows nothing of kinks."""
    try:
        found = function(text, centre=False)
    except ValueError:
        return
    x = (np.arange(400_000) + 0.5) / 400_000
    from scipy.special import ndtri

    with np.errstate(all="ignore"):
        values = found(ndtri(x))
    # Equal shares of the Gaussian do not see its tails: only what does not live there is compared.
    if (
        found.tail(8) < 0.05 * found.second_moment
        and np.abs(values[[0, -1]]).max() ** 2 < found.second_moment * 400
    ):
        assert np.square(values).mean() == pytest.approx(found.second_moment, rel=2e-2, abs=1e-6)


@from_corpus("toml")
@few(150)
@given(of.experiment_files(TEXT))
def test_experiment_files(text: str) -> None:
    try:
        experiment = parse(text)
        points = expand(experiment)
    except ExperimentError as error:
        check_sentences(*error.problems)
        return
    assert all(math.isfinite(point.ridge) and point.ridge > 0 and point.step_size >= 0 for point in points)


@few(150)
@given(st.text(max_size=60) | of.toml_values())
def test_texts_that_are_no_experiment(text: str) -> None:
    with pytest.raises(ExperimentError) as refused:
        parse(text)
    check_sentences(*refused.value.problems)


def invoke(arguments: list[str]) -> tuple[int, str, str]:
    found = CliRunner().invoke(main, arguments)
    if found.exception is not None and not isinstance(found.exception, SystemExit):
        raise found.exception
    return found.exit_code, found.stdout, found.stderr


OPTIONS = (
    "--ridge",
    "--step-size",
    "--step-exponent",
    "--noise-std",
    "--n-samples",
    "--dim",
    "--width",
    "--activation",
)


@from_corpus("options")
@few(60)
@given(st.lists(st.tuples(st.sampled_from(OPTIONS), of.numbers()), min_size=1, max_size=3).map(json.dumps))
def test_options_of_predict(given_options: str) -> None:
    arguments = [word for pair in json.loads(given_options) for word in pair]
    code, out, err = invoke(
        [
            "predict",
            "--json",
            *(["--step-exponent", "0.2"] if "--step" not in given_options else []),
            *arguments,
        ]
    )
    assert code in (0, 1, 2)
    if code:
        check_sentences(err.removeprefix("Error: ").strip())
        return
    for row in json.loads(out)["rows"]:
        for name in ("train_error", "test_error"):
            assert row[name] is not None, (name, arguments)
            assert row[name] >= 0


@few(40)
@given(of.settings())
def test_predictions(given_setting: dict[str, Any]) -> None:
    values = dict(given_setting)
    sizes = Sizes(values.pop("n_samples"), values.pop("dim"), values.pop("width"))
    exponent, ridge = values.pop("step_exponent"), values.pop("ridge")
    problem = Problem(**values)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OutsideTheoryWarning)
        try:
            found = predict(problem, sizes, step_exponents=[exponent], ridges=[ridge])
        except (ValueError, ArithmeticError, RuntimeError) as error:
            check_sentences(str(error))
            return
    test, train = (float(found.values[name].ravel()[0]) for name in ("test_error", "train_error"))
    assert math.isfinite(test)
    assert math.isfinite(train)
    assert train >= 0
    assert test >= problem.noise_std**2 * (1 - 1e-6), "below the noise"
    assert test <= 1e6 * (problem.label_variance + 1)


@from_corpus("table")
@few(25)
@given(of.tables())
def test_tables(text: str) -> None:
    pytest.importorskip("pandas")
    pytest.importorskip("sklearn")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "table.csv"
        file.write_text(text, encoding="utf-8")
        before = file.read_bytes()
        code, out, err = invoke(
            [
                "diagnose",
                str(file),
                "--target",
                "y",
                "--width",
                "20",
                "--folds",
                "2",
                "--repeats",
                "1",
                "--json",
                "-q",
            ]
        )
        assert file.read_bytes() == before
    if code:
        check_sentences(err.removeprefix("Error: ").strip())
        return
    # Strict JSON: neither NaN nor Infinity.
    json.loads(out, parse_constant=lambda word: pytest.fail(f"{word} in the answer"))
