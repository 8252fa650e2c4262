import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from numpy.typing import NDArray

import firststep
from firststep.cli import main
from firststep.diagnose import (
    MODELS,
    Number,
    _folds,
    _linear_strength,
    _prepare,
    _profile,
    _shape,
    diagnose,
    read_table,
)

pytest.importorskip("sklearn")
pd = pytest.importorskip("pandas")

Floats = NDArray[np.float64]
QUICK: dict[str, Any] = {"width": 60, "repeats": 1, "folds": 3}


def single_index(n: int, d: int, noise: float = 0.5, seed: int = 0) -> tuple[Floats, Floats]:
    rng = np.random.default_rng(seed)
    inputs = rng.standard_normal((n, d))
    along = inputs[:, 0]
    return inputs, along + 0.7 * (along**2 - 1) + noise * rng.standard_normal(n)


@pytest.fixture(scope="module")
def found() -> firststep.Diagnosis:
    return diagnose(*single_index(500, 40), **QUICK)


def test_a_single_index_target_is_recognised(found: firststep.Diagnosis) -> None:
    assert found.gain.value > 5 * found.gain.stderr
    assert "One step helps" in found.verdict
    assert "It also beats linear ridge" in found.verdict
    name, size = found.direction[0]
    assert name == "x0"
    assert abs(size) > 0.7
    variance = 1 + 2 * 0.49 + 0.25
    assert abs(found.linear_strength.value - 1 / variance) < 4 * found.linear_strength.stderr
    assert abs(found.noise_floor.value - 0.25 / variance) < 4 * found.noise_floor.stderr
    assert found.degrees[1].value > 4 * found.degrees[1].stderr
    assert found.effective_dimension > 35


def test_theory_and_measurement_agree_on_the_theorys_data(found: firststep.Diagnosis) -> None:
    for model in ("linear_ridge", "random_features"):
        allowed = 3 * math.hypot(found.measured[model].stderr, found.predicted[model].stderr) + 0.05
        assert abs(found.measured[model].value - found.predicted[model].value) < allowed
    # The theory's step and ridge have samples of their own, and its step is bounded: only the order is sure.
    assert found.predicted["one_step"].value < found.predicted["random_features"].value - 0.1


def test_noise_gives_no_hope() -> None:
    rng = np.random.default_rng(0)
    nothing = diagnose(rng.standard_normal((200, 10)), rng.standard_normal(200), **QUICK)
    assert nothing.step_size == 0
    assert "takes no step" in nothing.verdict
    assert nothing.linear_strength.value < 0.15
    assert nothing.noise_floor.value > 0.7
    assert nothing.predicted["one_step"].value > 0.85


def test_all_forms_of_the_report(found: firststep.Diagnosis) -> None:
    plain = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert plain["verdict"] == found.verdict
    assert set(plain["measured"]) == set(MODELS)
    assert "figure" not in plain
    text = str(found)
    for words in ("linear part", "noise floor", "effective dimension", "Hermite degrees", "random features"):
        assert words in text
    page = found.to_html()
    assert page.startswith("<!doctype html>")
    assert "<svg" in page
    # Nothing is fetched: the only addresses are names of XML vocabularies.
    assert not re.findall(r"(?:src|href)=\"(?!#)", page)
    assert found.verdict.replace("'", "&#x27;") in page or found.verdict in page


def test_names_from_the_data_cannot_break_the_page(found: firststep.Diagnosis) -> None:
    from dataclasses import replace

    hostile = replace(found, target="<script>alert(1)</script>", direction=(("<b>", 1.0),))
    page = hostile.to_html()
    assert "<script>" not in page
    assert "<b>" not in page


def test_the_linear_part_is_unbiased_for_few_and_many_samples() -> None:
    for n, d in ((400, 50), (200, 180)):
        found = []
        for seed in range(40):
            rng = np.random.default_rng(seed)
            inputs = rng.standard_normal((n, d))
            target = math.sqrt(0.3) * inputs[:, 0] + math.sqrt(0.7) * rng.standard_normal(n)
            found.append(_linear_strength(inputs, target))
        values = np.array([number.value for number in found])
        # At n < d estimates below zero are cut off, which lifts the mean a little.
        assert abs(values.mean() - 0.3) < 0.05
        assert values.std() < 2 * np.mean([number.stderr for number in found])


def test_the_shape_of_the_inputs() -> None:
    rng = np.random.default_rng(0)
    gaussian = rng.standard_normal((2000, 30))
    plain = _shape(gaussian)
    assert plain.effective_dimension == pytest.approx(30, rel=0.05)
    assert plain.norm_spread == pytest.approx(1, abs=0.2)
    assert plain.notes() == []
    one = gaussian[:, :1] + 0.1 * gaussian
    narrow = _shape((one - one.mean(0)) / one.std(0))
    assert narrow.effective_dimension < 1.2
    assert "correlated" in narrow.notes()[0]
    heavy = rng.standard_t(3, (2000, 30))
    assert any("tails" in note for note in _shape((heavy - heavy.mean(0)) / heavy.std(0)).notes())
    # Few samples do not make isotropic inputs look correlated.
    assert _shape(rng.standard_normal((60, 100))).effective_dimension > 60


def test_the_profile_uses_samples_that_did_not_learn_it() -> None:
    rng = np.random.default_rng(1)
    inputs, target = rng.standard_normal((60, 50)), rng.standard_normal(60)
    target = (target - target.mean()) / target.std()
    folds = _folds(inputs, 5, rng)
    honest = _profile(inputs, target, [folds], 50.0, Number(0.0, 0.1))
    assert abs(honest.degrees[0].value) < 4 * honest.degrees[0].stderr
    # Its own samples would see a strong linear part in pure noise.
    own = inputs @ (inputs.T @ target)
    assert np.corrcoef(own, target)[0, 1] > 0.5


def test_equal_rows_share_a_fold() -> None:
    inputs = np.repeat(np.arange(10.0)[:, None], 3, axis=0)
    folds = _folds(inputs, 4, np.random.default_rng(0))
    assert all(len(set(folds[3 * i : 3 * i + 3])) == 1 for i in range(10))


def frame() -> Any:
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.standard_normal((60, 3)), columns=["a", "b", "c"])
    table["colour"] = np.where(rng.uniform(size=60) < 0.5, "red", "blue")
    table["word"] = [f"w{i}" for i in range(60)]
    table["same"] = 3.0
    table["y"] = table["a"] + 0.1 * rng.standard_normal(60)
    table.loc[4, "b"] = np.nan
    return table


def test_tables_are_made_into_numbers_and_it_is_said() -> None:
    data = _prepare(frame(), "y")
    assert data.names == ("a", "b", "c", "colour=red")
    assert data.inputs.shape == (59, 4)
    assert data.target_name == "y"
    told = " ".join(data.notes)
    for words in (
        "1 of 60 rows",
        "'colour' becomes 1",
        "left out: word",
        "constant columns are left out: same",
    ):
        assert words in told
    series = _prepare(frame().drop(columns="y"), frame()["y"])
    np.testing.assert_array_equal(series.inputs, data.inputs)


def test_two_classes_are_signs() -> None:
    data = _prepare(frame(), "colour")
    assert set(data.target) == {-1.0, 1.0}
    assert "the target is -1 for blue and 1 for red" in data.notes


@pytest.mark.parametrize(
    ("inputs", "target", "message"),
    [
        (frame(), "price", "there is no column 'price'; the columns are a, b, c"),
        (frame(), "color", r"there is no column 'color' \(perhaps 'colour'\?\)"),
        (frame(), "word", "text with 60 different values"),
        (frame(), "same", "is constant"),
        (frame().head(10), "y", "at least 20 complete rows are needed, got 9: the column 'b' has 1 gaps"),
        (frame()[["same", "y"]], "y", "no input varies"),
        (frame()[["word", "y"]], "y", "no column holds numbers"),
        (np.ones((30, 2)), "y", "X is not a data frame"),
        (np.ones(30), np.ones(30), "two dimensions"),
        ([["a"]] * 30, np.ones(30), "pandas data frame"),
        (np.ones((30, 2)), np.ones(20), "30 rows and y has 20"),
        (np.ones((30, 2)), np.ones((30, 2)), "one by one"),
    ],
)
def test_what_cannot_be_diagnosed_is_named(inputs: Any, target: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        diagnose(inputs, target)


def test_fewer_samples_than_inputs_and_duplicates_are_told() -> None:
    inputs, target = single_index(40, 60)
    few = diagnose(inputs, target, **QUICK)
    assert any("fewer than 60 inputs" in note for note in few.notes)
    twice = diagnose(np.vstack([inputs[:, :5]] * 2), np.concatenate([target, target]), **QUICK)
    assert any("40 rows have the same inputs" in note for note in twice.notes)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["diagnose", *arguments])


def test_the_command(tmp_path: Path) -> None:
    inputs, target = single_index(150, 5)
    table = pd.DataFrame(inputs, columns=list("abcde")).assign(label=target, junk=1.0)
    table.to_csv(tmp_path / "data.csv", index=False)
    table.to_parquet(tmp_path / "data.parquet")
    options = ["--target", "label", "--drop", "junk", "--width", "40", "--folds", "3", "--repeats", "1"]
    page = tmp_path / "report.html"
    shown = run(str(tmp_path / "data.csv"), *options, "--html", str(page))
    assert shown.exit_code == 0, shown.output
    assert "150 samples, 5 inputs; target label" in shown.stdout
    assert "<svg" in page.read_text()
    assert "report written" in shown.stderr
    as_json = run(str(tmp_path / "data.parquet"), *options, "--json")
    assert json.loads(as_json.stdout)["n_samples"] == 150
    # The same table gives the same numbers from both kinds of file.
    assert json.loads(as_json.stdout)["verdict"] in shown.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--target", "price"], "there is no column 'price'"),
        (["--target", "y", "--drop", "z"], "--drop: there is no column 'z'"),
        (["--target", "y", "--drop", "y"], "is also to be dropped"),
        (["--target", "y", "--html", "no/such/page.html"], "does not exist"),
        ([], "--target"),
    ],
)
def test_mistakes_at_the_command(tmp_path: Path, arguments: list[str], message: str) -> None:
    frame().to_csv(tmp_path / "data.csv", index=False)
    failed = run(str(tmp_path / "data.csv"), *arguments)
    assert failed.exit_code == 2
    assert message in failed.stderr


def test_files_that_are_no_tables(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no file"):
        read_table(tmp_path / "missing.csv")
    with pytest.raises(ValueError, match=r"\.csv, \.tsv or \.parquet"):
        read_table(tmp_path / "data.xlsx")
    (tmp_path / "bad.parquet").write_text("no table")
    with pytest.raises(ValueError, match="cannot be read"):
        read_table(tmp_path / "bad.parquet")
    (tmp_path / "empty.csv").write_text("")
    with pytest.raises(ValueError, match="cannot be read"):
        read_table(tmp_path / "empty.csv")


def test_numbers_are_written_with_the_digits_they_deserve() -> None:
    assert str(Number(0.33333, 0.0123)) == "0.333 ± 0.012"
    assert str(Number(12.3456, 1.5)) == "12.3 ± 1.5"
    assert str(Number(0.5)) == "0.5"
