import importlib.util
import json
import math
import re
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from numpy.typing import NDArray

import firststep
from firststep.cli.app import main
from firststep.diagnose import MODELS, Number, diagnose, learning_curve, progress, read_table
from firststep.diagnose.curve import read_paths
from firststep.diagnose.equivalent import Path as RidgePath
from firststep.diagnose.equivalent import fixed_path
from firststep.diagnose.examine import _believed
from firststep.diagnose.expected import Theory
from firststep.diagnose.gaps import stand_ins
from firststep.diagnose.linear import LinearRidge
from firststep.diagnose.measure import folds_of, linear_strength, profile_of, shape_of
from firststep.diagnose.table import numbers_of, prepare
from firststep.diagnose.trend import Trend

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
    assert found.verdict.startswith("Yes: steps lower the error")
    assert "Linear ridge is worse" in found.verdict
    assert found.step_share == 1
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
    assert "The theory of one step expects a fall" in found.verdict


def test_a_theory_that_does_not_describe_the_table_is_silent() -> None:
    measured = dict.fromkeys(MODELS, Number(0.5, 0.01))
    near = dict.fromkeys(MODELS, Number(0.52, 0.01))
    assert _believed(near, measured, ["line"]) == (near, ["line"])
    silent, (line,) = _believed(dict.fromkeys(MODELS, Number(0.9, 0.01)), measured, ["line"])
    assert silent == {}
    assert "does not describe this table" in line
    # A small error needs a narrow bar.
    small = dict.fromkeys(MODELS, Number(0.05, 0.001))
    silent, (line,) = _believed(dict.fromkeys(MODELS, Number(0.05, 0.02)), small, ["line"])
    assert silent == {}
    assert line == "the theory is silent: it knows its own error for linear ridge, 0.050 ± 0.020, too badly"
    # A threshold along one input is no single-index target of Gaussian inputs with few degrees.
    rng = np.random.default_rng(0)
    inputs = rng.uniform(size=(400, 3))
    rough = diagnose(inputs, np.sign(np.sin(20 * inputs[:, 0])), **QUICK)
    assert rough.predicted == {} or "too" in rough.verdict


def test_linear_ridge_is_ridge_regression_on_the_inputs() -> None:
    """Also with about as many inputs as samples, where a turned and stretched copy of them is another model."""
    from sklearn.linear_model import RidgeCV

    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((1200, 150))
    targets = inputs @ rng.standard_normal((150, 2)) / 12 + 0.7 * rng.standard_normal((1200, 2))
    ours = LinearRidge().fit(inputs[:200], targets[:200])
    theirs = RidgeCV(np.geomspace(1, 1e4, 60)).fit(inputs[:200], targets[:200])
    errors = [np.mean((targets[200:] - model.predict(inputs[200:])) ** 2) for model in (ours, theirs)]
    assert errors[0] == pytest.approx(errors[1], rel=0.03)
    constant = np.column_stack([inputs[:50, :2], np.ones(50)])
    assert np.isfinite(LinearRidge().fit(constant, targets[:50]).predict(constant)).all()


def test_noise_gives_no_hope() -> None:
    rng = np.random.default_rng(0)
    nothing = diagnose(rng.standard_normal((200, 10)), rng.standard_normal(200), **QUICK)
    assert nothing.step_size == 0
    assert nothing.verdict.startswith("No: no step is taken")
    assert nothing.linear_strength.value < 0.15
    assert nothing.noise_floor.value > 0.7


def test_all_forms_of_the_report(found: firststep.Diagnosis) -> None:
    plain = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert plain["verdict"] == found.verdict
    assert set(plain["measured"]) == set(MODELS)
    assert "figure" not in plain
    text = str(found)
    for words in (
        "linear part",
        "noise floor",
        "effective dimension",
        "Hermite degrees",
        "R²",
        "in its unit",
    ):
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
            found.append(linear_strength(inputs, target))
        values = np.array([number.value for number in found])
        # At n < d estimates below zero are cut off, which lifts the mean a little.
        assert abs(values.mean() - 0.3) < 0.05
        assert values.std() < 2 * np.mean([number.stderr for number in found])


def test_the_shape_of_the_inputs() -> None:
    rng = np.random.default_rng(0)
    gaussian = rng.standard_normal((2000, 30))
    plain = shape_of(gaussian)
    assert plain.effective_dimension == pytest.approx(30, rel=0.05)
    assert plain.norm_spread == pytest.approx(1, abs=0.2)
    assert plain.notes() == []
    one = gaussian[:, :1] + 0.1 * gaussian
    narrow = shape_of((one - one.mean(0)) / one.std(0))
    assert narrow.effective_dimension < 1.2
    assert "correlated" in narrow.notes()[0]
    heavy = rng.standard_t(3, (2000, 30))
    assert any("tails" in note for note in shape_of((heavy - heavy.mean(0)) / heavy.std(0)).notes())
    # Few samples do not make isotropic inputs look correlated.
    assert shape_of(rng.standard_normal((60, 100))).effective_dimension > 60


def test_the_profile_uses_samples_that_did_not_learn_it() -> None:
    rng = np.random.default_rng(1)
    inputs, target = rng.standard_normal((60, 50)), rng.standard_normal(60)
    target = (target - target.mean()) / target.std()
    folds = folds_of(inputs, 5, rng)
    honest = profile_of(inputs, target, [folds], 50.0, Number(0.0, 0.1))
    assert abs(honest.degrees[0].value) < 4 * honest.degrees[0].stderr
    # Its own samples would see a strong linear part in pure noise.
    own = inputs @ (inputs.T @ target)
    assert np.corrcoef(own, target)[0, 1] > 0.5


def test_a_line_along_a_direction_that_is_not_gaussian_has_one_degree() -> None:
    rng = np.random.default_rng(2)
    inputs = np.column_stack(
        [rng.choice([-1.0, 1.0], 800) + 0.2 * rng.standard_normal(800) for _ in range(2)]
    )
    target = 3 * inputs[:, 0] + rng.standard_normal(800)
    inputs, target = (inputs - inputs.mean(0)) / inputs.std(0), (target - target.mean()) / target.std()
    linear = linear_strength(inputs, target)
    found = profile_of(inputs, target, [folds_of(inputs, 5, rng)], 2.0, linear)
    # In normal scores the two heaps of z have a third degree, which is no part of the target besides the line.
    assert found.noise.value == pytest.approx(1 - linear.value, abs=0.01)
    assert found.noise.value > 0.08


def test_equal_rows_share_a_fold() -> None:
    inputs = np.repeat(np.arange(10.0)[:, None], 3, axis=0)
    folds = folds_of(inputs, 4, np.random.default_rng(0))
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
    data = prepare(frame(), "y")
    assert data.names == ("a", "b", "b is blank", "c", "colour=red")
    assert data.inputs.shape == (60, 5)
    assert data.target_name == "y"
    told = " ".join(data.notes)
    for words in (
        "'b' has 1 gaps: they get the median",
        "'colour' becomes a column",
        "'word' is text of 60 different values",
        "constant columns are left out: same",
    ):
        assert words in told
    assert data.inputs[4, 1] == np.median(frame()["b"].dropna())
    series = prepare(frame().drop(columns="y"), frame()["y"])
    np.testing.assert_array_equal(series.inputs, data.inputs)
    dropped = prepare(frame(), "y", drop_missing=True)
    assert len(dropped.inputs) == 59
    assert dropped.names == ("a", "b", "c", "colour=red")
    assert {"'b' has 1 gaps", "1 rows with gaps are left out, as asked"} < set(dropped.notes)


def test_blanks_of_a_text_column_are_a_category() -> None:
    table = frame()
    table.loc[:24, "colour"] = None
    data = prepare(table, "y")
    assert len(data.inputs) == 60
    assert data.names[-2:] == ("colour=red", "colour=(blank)")
    assert data.inputs[:, -1].sum() == 25
    assert any("one of them for its 25 blanks" in note for note in data.notes)


def test_row_numbers_leaks_and_copies_are_left_out_and_can_be_kept() -> None:
    table = frame().assign(
        customer_id=np.random.default_rng(1).permutation(60) + 1000,
        row=np.arange(60),
        down=np.arange(60)[::-1],
        leak=lambda t: 2 * t["y"] + 1,
        again=lambda t: -3 * t["c"],
    )
    data = prepare(table, "y")
    assert not {"customer_id", "row", "down", "leak", "again"} & set(data.names)
    told = " ".join(data.notes)
    for words in (
        "'customer_id' numbers the rows",
        "'row' numbers the rows",
        "'down' numbers the rows",
        "the target in other words, left out: leak",
        "copies of other columns are left out: again",
    ):
        assert words in told
    kept = prepare(table, "y", keep=["row", "leak"])
    assert {"row", "leak"} < set(kept.names)
    with pytest.raises(ValueError, match="every input is the target in other words"):
        prepare(table[["leak", "y"]], "y")


def test_numbers_and_dates_that_are_written_as_text() -> None:
    def read(*words: str) -> list[float] | None:
        array = np.array(words, dtype=object)
        found = numbers_of(array, array != "")[0]
        return None if found is None else found.tolist()

    assert read("$1,200", "$950,000") == [1200, 950000]
    assert read("3,5", "-0,25") == [3.5, -0.25]
    assert read("1.234,5 €", "2 €") == [1234.5, 2]
    assert read("12 %", "7.5%") == [12, 7.5]
    assert read("(1,200.50)", "$3.00", "(4)") == [-1200.5, 3, -4]
    assert read("12.5 km", "-7 km", "3km") == [12.5, -7, 3]
    assert read("12 km", "7 m", "3 km") is None
    assert read("red", "blue") is None
    days = pd.date_range("2020-01-01", periods=60)
    table = frame().assign(when=days, written=[f"{day.day:02}/{day.month:02}/{day.year}" for day in days])
    data = prepare(table.assign(when=days[::-1]), "y")
    assert "when (days)" in data.names
    assert data.inputs[:, data.names.index("when (days)")].tolist() == list(range(59, -1, -1))
    assert "'written' holds dates, the day first: it becomes a number of days" in data.notes
    # In the table's order both are the same column: one of them is a copy.
    assert "written (days)" not in prepare(table, "y").names
    for shape in ("%m/%d/%Y", "%d.%m.%Y", "%Y-%m-%d 12:30:00", "%b %d, %Y", "%d-%b-%Y"):
        other = prepare(table.drop(columns="written").assign(other=days.strftime(shape)), "y")
        assert "copies of other columns are left out: other (days)" in other.notes, shape
    # Where no number is beyond 12 it is said that the order is a guess.
    vague = frame().assign(when=[f"{1 + i % 12}/{1 + i // 12}/2020" for i in range(60)])
    assert any("the month first (it could be the day)" in note for note in prepare(vague, "y").notes)


def test_what_stands_for_nothing_is_a_gap() -> None:
    table = frame().assign(odd=[("?" if i % 9 == 0 else f"{i / 7:.2f}") for i in range(60)])
    data = prepare(table, "y")
    assert {"odd", "odd is blank"} < set(data.names)
    assert data.inputs[:, data.names.index("odd is blank")].sum() == 7


def test_words_for_nothing_are_gaps_among_numbers_and_words_among_words() -> None:
    words = ["none" if i % 3 == 0 else "some" for i in range(60)]
    table = frame().assign(odd=[("n/a" if i % 9 == 0 else f"{i / 7:.2f}") for i in range(60)], much=words)
    data = prepare(table, "y")
    assert data.inputs[:, data.names.index("odd is blank")].sum() == 7
    assert "much=some" in data.names
    assert "much=(blank)" not in data.names


def test_codes_for_what_is_missing_are_gaps() -> None:
    ages = 20.0 + np.arange(60) % 50
    assert stand_ins(np.append(ages, [-999.0])) == [-999]
    assert stand_ins(np.append(ages, [-99.0, -99.0, 999.0, 999.0])) == [-99, 999]
    assert stand_ins(np.append(1e5 * ages, [-9999.0])) == [-9999]
    # Once could be chance; -99 beside -80 and 99 beside 90 could be values.
    assert stand_ins(np.append(ages, [999.0])) == []
    assert stand_ins(np.append(ages - 70, [-99.0, -99.0])) == []
    assert stand_ins(np.append(ages, [99.0, 99.0])) == []
    assert stand_ins(np.append(-1e4 * ages, [-9999.0, -9999.0])) == []
    assert stand_ins(np.array([-999.0] * 60 + [1.0, 2.0])) == []
    assert stand_ins(np.full(60, -999.0)) == []
    table = frame()
    table["c"] = table["c"].abs()
    table.loc[::10, "c"] = -999
    table.loc[5, "y"] = -9999
    data = prepare(table, "y")
    assert len(data.inputs) == 59
    told = " ".join(data.notes)
    for words in (
        "'c' has -999 in 6 rows, which looks like a code for what is missing: taken for gaps",
        "'c' has 6 gaps: they get the median",
        "1 of 60 rows have no 'y'",
    ):
        assert words in told
    assert data.inputs[:, data.names.index("c is blank")].sum() == 6
    assert data.inputs[:, data.names.index("c")].min() >= 0
    kept = prepare(table, "y", keep=["c", "y"])
    assert kept.inputs[:, kept.names.index("c")].min() == -999
    assert len(kept.inputs) == 60
    # Of an array, too.
    assert prepare(table[["a", "c"]].to_numpy(), np.arange(60.0)).names == ("x0", "x1", "x1 is blank")


def test_names_that_rows_share_and_suspicious_columns_are_recognised() -> None:
    rng = np.random.default_rng(2)
    table = frame().assign(
        patient_id=rng.permutation(np.repeat(np.arange(30), 2)),
        bent=lambda t: np.exp(3 * t["y"]),
        close=lambda t: t["y"] + 0.05 * rng.standard_normal(60),
    )
    data = prepare(table, "y")
    assert "patient_id" not in data.names
    assert {"bent", "close"} < set(data.names)
    told = " ".join(data.notes)
    for words in (
        "'patient_id' names what a row is about and is left out",
        "suspiciously close to the target, but used: a, bent, close",
    ):
        assert words in told
    kept = prepare(table, "y", keep=["patient_id", "bent"])
    assert "patient_id" in kept.names
    assert not any("bent" in note for note in kept.notes)
    words = frame().assign(
        paid=rng.permutation(60) * 7, covid=rng.integers(0, 40, 60), personId=rng.permutation(60)
    )
    assert {"paid", "covid"} < set(prepare(words, "y").names)
    assert "personId" not in prepare(words, "y").names


def test_the_target_in_coarser_words_is_remarked_on() -> None:
    rng = np.random.default_rng(3)
    y = rng.standard_normal(200)
    bands = np.array(["cheap", "fair", "dear"], dtype=object)[np.digitize(y, [-0.5, 0.5])]
    strays = bands.copy()
    strays[:2], strays[2:9] = ["dear", "cheap"], None
    table = pd.DataFrame({"x": y + rng.standard_normal(200), "y": y}).assign(
        band=bands,
        noted=strays,
        grade=np.digitize(y, [-1, 0, 1]),
        sign=np.where(y > 0, "up", "down"),
        site=rng.choice(["a", "b", "c"], 200),
        rough=np.digitize(y + 0.3 * rng.standard_normal(200), [-0.5, 0.5]),
    )
    data = prepare(table, "y")
    assert data.suspects == ("band", "noted", "grade", "sign")
    doubted = diagnose(table[["x", "y", "band"]], "y", **QUICK)
    assert doubted.verdict.endswith("Do not believe this if band was made from y: see the notes.")
    note = next(note for note in data.notes if "interval or a class" in note)
    assert note.startswith("suspiciously close to the target, but used: band, noted, grade, sign (")
    assert {"band=dear", "grade"} < set(data.names)
    assert not any("interval or a class" in note for note in prepare(table, "y", keep=list(table)).notes)
    # Of classes: each value of the column has one of them; a copy of the classes is left out, and said once.
    named = table.drop(columns=["band", "noted", "grade", "rough"]).assign(
        y=np.where(y > 0, "yes", "no"), code=np.digitize(y, [-1, 0, 1]).astype(str)
    )
    notes = prepare(named.assign(code="k" + named["code"]), "y").notes
    assert [n.partition("(")[0] for n in notes if "interval or" in n] == [
        "suspiciously close to the target, but used: code "
    ]
    assert any("the target in other words, left out: sign=up" in note for note in notes)
    # Few rows fall into place by chance.
    few = pd.DataFrame({"x": rng.standard_normal(20), "y": np.arange(20.0), "half": ["a"] + ["b"] * 19})
    assert not any("suspiciously" in note for note in prepare(few, "y").notes)


def test_a_target_of_few_whole_numbers_is_remarked_on() -> None:
    grades = frame().assign(y=np.arange(60) % 4)
    assert any("4 different whole numbers and is taken as a number" in n for n in prepare(grades, "y").notes)
    assert not any("whole numbers" in note for note in prepare(frame(), "y").notes)


def test_progress_tells_the_remaining_time(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter(np.arange(0.0, 100.0, 2.0))
    monkeypatch.setattr(progress, "monotonic", lambda: float(next(clock)))
    with progress.Progress(5, True, _begun=0.0) as shown:
        for _ in range(5):
            shown.tick()
    # At 0, 2, 4, 6 and 8 seconds; after a line at 4 the next is due at 8, when nothing is left.
    assert capsys.readouterr().err == "note: 60% done, about 3 s left\n"
    with progress.Progress(5, False, _begun=0.0) as silent:
        silent.tick(5)
    assert capsys.readouterr().err == ""


def test_the_theory_is_asked_about_a_step_only_where_it_meets_random_features(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[list[float]] = []
    plain = Theory._errors

    def counted(self: Theory, noise: float, step_sizes: list[float]) -> NDArray[np.float64]:
        asked.append(step_sizes)
        return plain(self, noise, step_sizes)

    monkeypatch.setattr(Theory, "_errors", counted)
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((400, 4))
    far = diagnose(inputs, np.tanh(2 * inputs[:, 0]) + inputs[:, 1] * inputs[:, 2], **QUICK)
    assert far.predicted == {}
    assert asked == [[0.0]] * 3


def test_two_classes_are_signs_and_more_have_an_output_each() -> None:
    data = prepare(frame(), "colour")
    assert set(data.targets[:, 0]) == {-1.0, 1.0}
    assert "the target is -1 for blue and 1 for red" in data.notes
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((150, 3))
    labels = np.array(["low", "middle", "high"])[np.digitize(inputs[:, 0], [-0.5, 0.5])]
    three = diagnose(pd.DataFrame(inputs, columns=list("abc")), labels.tolist(), **QUICK)
    assert three.classes == ("high", "low", "middle")
    assert three.measured["one_step"].value < 0.5
    assert three.predicted == {}
    # Three bands of the first input, its middle one between two thresholds: a third would be wrong by guessing.
    assert 0 < three.wrong["one_step"].value < 0.25
    assert f"and {three.wrong['one_step'].value:.1%})".replace("%", " %") in three.verdict
    assert "wrong classes" in three.to_html()
    assert json.loads(json.dumps(three.to_dict()))["wrong"]["one_step"]["value"] > 0
    # One class of three in ten: the level that was taken off must be put back before signs are compared.
    rare = np.where(inputs[:, 0] > 0.9, "rare", "usual")
    two = diagnose(inputs, rare, **QUICK)
    assert two.wrong["one_step"].value < 0.05


def test_the_learning_curve_meets_what_more_samples_do() -> None:
    rng = np.random.default_rng(3)
    inputs = rng.standard_normal((20_000, 30))
    targets = inputs @ rng.standard_normal(30) / 5 + rng.standard_normal(20_000)
    few = learning_curve(inputs[:300], targets[:300], n_samples=[300, 1200], width=50)
    variance = targets[:300].var()
    floor = 1 / variance
    for place, n in enumerate((300, 1200)):
        fits = [
            np.linalg.lstsq(inputs[at : at + n], targets[at : at + n], rcond=None)[0]
            for at in (0, 2000, 4000)
        ]
        true = np.mean([np.mean((targets[10_000:] - inputs[10_000:] @ fit) ** 2) for fit in fits]) / variance
        told = few.errors["linear_ridge"][place]
        # The samples' own noise is the largest part of the difference.
        assert abs(told.value - true) < 1.8 * told.bar
        assert floor - 1.8 * told.bar < told.value
    drop = few.errors["linear_ridge"][0].value - few.errors["linear_ridge"][1].value
    assert drop == pytest.approx(floor * 30 * (1 / 300 - 1 / 1200), rel=0.4)
    assert "Twice the data" in str(learning_curve(inputs[:100], targets[:100], width=20))
    with pytest.raises(ValueError, match="at least 2"):
        learning_curve(inputs[:100], targets[:100], n_samples=[1])


def test_copies_of_rows_play_no_part_in_a_curve() -> None:
    rng = np.random.default_rng(8)
    inputs = rng.standard_normal((100, 3))
    targets = inputs[:, 0] + rng.standard_normal(100)
    once = learning_curve(inputs, targets, width=20, theory=False)
    twice = learning_curve(np.tile(inputs, (2, 1)), np.tile(targets, 2), width=20, theory=False)
    assert (once.copies, twice.copies, twice.used) == (0, 100, 100)
    assert twice.errors["random_features"][1].value == pytest.approx(
        once.errors["random_features"][1].value, rel=0.1
    )
    assert "100 copies of rows play no part here" in twice.to_text()
    # Rows of equal inputs whose targets differ are measurements of their own.
    rough = np.round(inputs[:, :1])
    assert learning_curve(rough, targets, width=20, theory=False).copies == 0


def test_a_curve_says_where_it_is_out_of_sight() -> None:
    rng = np.random.default_rng(0)
    inputs = rng.uniform(-1, 1, (120, 2))
    smooth = learning_curve(inputs, np.sin(3 * inputs[:, 0]) * inputs[:, 1], width=100, theory=False)
    assert "random_features" in smooth.limited
    told = smooth.errors["random_features"]
    assert [value.in_sight for value in told] == [True, True, False, False]
    assert smooth.sentence().startswith("What twice the data would do to the error")
    assert "(?)" in smooth.to_text()
    assert "the error still falls fast" in smooth.to_text()
    few = learning_curve(inputs[:50], inputs[:50] @ [1, 1] + rng.standard_normal(50), width=20, theory=False)
    assert set(few.limited) == {"linear_ridge", "random_features", "one_step"}
    assert "50 samples are too few to tell" in few.sentence()
    scarce = learning_curve(
        inputs[:30], inputs[:30] @ [1, 1] + rng.standard_normal(30), width=20, theory=False
    )
    assert all(math.isfinite(value.value) for value in scarce.errors["linear_ridge"])
    basis = np.linalg.qr(rng.standard_normal((100, 91)))[0]
    path = RidgePath(basis, np.ones(90), rng.standard_normal((100, 1)), np.array([0.01, 0.1]))
    assert math.isnan(path.extend(200)[0].value)


@dataclass(frozen=True)
class KnownPath:
    """A path whose error at the samples used and the equivalent's elsewhere are given."""

    used: int
    error: float
    rate: float
    ends: bool = False

    @property
    def basis(self) -> Any:
        return np.zeros((self.used, 1))

    @property
    def errors(self) -> Any:
        return np.array([self.error])

    def extend(self, n_samples: int) -> tuple[Number, bool]:
        value = self.error * (n_samples / self.used) ** -self.rate
        return Number(value, 0.01 * value), self.ends


def test_a_trend_weighs_what_the_equivalent_says_against_what_was_seen() -> None:
    def trend(fall: float, rate: float, used: int = 400, ends: bool = False) -> Trend:
        return Trend([KnownPath(used, 0.5, rate, ends)], 0.5 * math.exp(fall), used)  # type: ignore[list-item]

    def change(found: Trend, n_samples: int) -> float:
        return math.log(found.at(n_samples).value / 0.5)

    log2 = math.log(2)
    # A half was measured; a slow fall leaves the equivalent alone.
    assert change(trend(0.08, 0.1), 200) == pytest.approx(0.08)
    assert change(trend(0.08, 0.1), 800) == pytest.approx(-0.1 * log2)
    assert change(trend(0.12, 0.05), 800) == pytest.approx(-0.05 * log2)
    # A fast one goes on, for each doubling.
    assert change(trend(0.22, 0.1), 800) == pytest.approx(-0.1 * log2 - 0.5 * (0.22 - 0.1 * log2))
    assert change(trend(0.5, 0.1), 1600) == pytest.approx(-1.0)
    # Of more than was seen a quarter is believed.
    assert change(trend(0.02, 0.1), 800) == pytest.approx(-0.025 * log2 - 0.015)
    assert change(trend(-0.05, 0.1), 800) == pytest.approx(-0.025 * log2)
    # The bar is that of the samples, and grows where both disagree.
    at_once = trend(0.1 * log2, 0.1).at(400)
    assert at_once.bar == pytest.approx(1.645 * 0.01 * 0.5)
    path = KnownPath(200, 0.5, 0.0)
    apart = Trend([path, path], 0.5, 400)  # type: ignore[list-item]
    assert apart.at(400).bar == pytest.approx(1.3 * 1.645 * 0.01 * 0.5 / math.sqrt(2))
    assert trend(0.5, 0.1).at(800).bar > 5 * trend(0.1 * log2, 0.1).at(800).bar
    assert trend(0.1, 0.1).at(800).in_sight
    assert not trend(0.6, 0.1).at(800).in_sight
    assert not trend(0.1, 0.1, used=50).at(100).in_sight
    assert not trend(0.1, 0.1, ends=True).at(800).in_sight
    assert trend(0.6, 0.1).at(400).in_sight
    alone = Trend([KnownPath(30, 0.5, 0.1)], math.nan, 30)  # type: ignore[list-item]
    assert change(alone, 60) == pytest.approx(-0.1 * log2)


def test_where_noise_is_small_a_trend_is_nearer_than_the_equivalent() -> None:
    """More samples teach what fewer could not tell from noise, which the equivalent takes as fixed."""
    from firststep.estimator.step import Sample

    rng = np.random.default_rng(7)

    def drawn(count: int) -> Sample:
        inputs = rng.uniform(-1.7, 1.7, (count, 4))
        smooth = np.sin(1.5 * inputs[:, :2]).sum(axis=1) * inputs[:, 2] + 0.05 * rng.standard_normal(count)
        return Sample(inputs, smooth[:, None], np.ones(count))

    trends = [
        read_paths(drawn(120), (150, "tanh"), np.random.default_rng(0)).trend("random_features")
        for _ in range(6)
    ]
    true = [
        read_paths(drawn(240), (150, "tanh"), np.random.default_rng(0)).trend("random_features").now
        for _ in range(6)
    ]
    wanted = math.log(np.mean(true))
    told = math.log(np.mean([trend.at(240).value for trend in trends]))
    even = math.log(np.mean([trend.paths[0].extend(240)[0].value for trend in trends]))
    assert even > wanted + 0.1
    assert abs(told - wanted) < 0.6 * abs(even - wanted)


def path_of(inputs: Any, targets: Any) -> RidgePath:
    """All ridge fits of linear regression."""
    from firststep.estimator.step import Network, Sample
    from firststep.gaussian import function

    dim = inputs.shape[1]
    linear = Network(np.eye(dim), np.zeros(dim), np.ones((dim, 1)), function("identity"))
    return fixed_path(linear, Sample(inputs, targets[:, None], np.ones(len(inputs))))


def test_a_path_holds_exact_leave_one_out_errors_and_their_variance() -> None:
    rng = np.random.default_rng(1)
    for count in (40, 8):
        inputs = rng.standard_normal((count, 12))
        targets = inputs[:, 0] + rng.standard_normal(count)
        path, place = path_of(inputs, targets), 40
        ridge = path.ridges[place]
        centred = np.column_stack([inputs - inputs.mean(axis=0), np.ones(count)])
        penalty = ridge * count * np.diag([1.0] * 12 + [0.0])
        hat = centred @ np.linalg.solve(centred.T @ centred + penalty, centred.T)
        missed = (targets - hat @ targets) / (1 - np.diag(hat))
        np.testing.assert_allclose(path.squares[:, place], missed**2, rtol=1e-8)
        moves = (hat / (1 - np.diag(hat))[:, None]) ** 2 * missed**2
        spread = (moves.sum() - np.trace(moves)) / count
        assert path.variance(place) == pytest.approx(spread / (spread + np.mean(missed**2)))


def test_a_path_is_tried_on_samples_that_had_no_part() -> None:
    from firststep.estimator.step import Network, Sample
    from firststep.gaussian import function

    rng = np.random.default_rng(2)
    for count in (40, 8):
        inputs, others = rng.standard_normal((count, 12)), rng.standard_normal((30, 12))
        targets, wanted = rng.standard_normal((count, 2)), rng.standard_normal((30, 2))
        linear = Network(np.eye(12), np.zeros(12), np.ones((12, 1)), function("identity"))
        path = fixed_path(
            linear, Sample(inputs, targets, np.ones(count)), Sample(others, wanted, np.ones(30))
        )
        mean, level = inputs.mean(axis=0), targets.mean(axis=0)
        for place in (30, 45, 60):
            gram = (inputs - mean).T @ (inputs - mean) / count + path.ridges[place] * np.eye(12)
            fit = np.linalg.solve(gram, (inputs - mean).T @ (targets - level) / count)
            true = np.mean((wanted - level - (others - mean) @ fit) ** 2)
            assert path.outside is not None
            assert path.outside[place] == pytest.approx(true, rel=1e-6)


def test_half_of_the_samples_err_as_drawn_anew() -> None:
    """The lowest of a few noisy errors is too low: errors of all halves are averaged before the best is taken."""
    from firststep.estimator.step import Sample

    rng = np.random.default_rng(5)

    def drawn(count: int) -> Sample:
        inputs = rng.standard_normal((count, 5))
        targets = inputs[:, 0] + rng.standard_normal(count)
        return Sample(inputs, targets[:, None], np.ones(count))

    # The best ridge at 20 samples, on many others.
    wide, fits = drawn(500), []
    for _ in range(200):
        few = drawn(20)
        x, y = few.inputs - few.inputs.mean(axis=0), few.targets - few.targets.mean()
        ridges = np.geomspace(0.01, 3, 13)
        slopes = [np.linalg.solve(x.T @ x / 20 + r * np.eye(5), x.T @ y / 20)[:, 0] for r in ridges]
        told = (wide.inputs - few.inputs.mean(axis=0)) @ np.array(slopes).T + few.targets.mean()
        fits.append(np.mean((wide.targets - told) ** 2, axis=0))
    true = np.mean(fits, axis=0).min()
    reads = [read_paths(drawn(40), (10, "tanh"), np.random.default_rng(0)) for _ in range(30)]
    assert np.mean([read.half["linear_ridge"] for read in reads]) == pytest.approx(true, rel=0.12)


def test_errors_that_are_largest_where_samples_are_few_fall_faster() -> None:
    """Degrees of freedom alone miss this: the variance's share is df_2/n for Gaussian inputs, and more for others."""
    rng = np.random.default_rng(2)

    def drawn(count: int, spread: float) -> RidgePath:
        inputs = rng.standard_normal((count, 40)) * np.exp(spread * rng.standard_normal(count))[:, None]
        noise = rng.standard_normal(count) * np.linalg.norm(inputs, axis=1) ** (2 * spread)
        return path_of(inputs, inputs[:, 0] + noise)

    for spread, low, high in ((0.0, 0.9, 1.1), (0.5, 1.2, 2.0)):
        paths = [drawn(200, spread) for _ in range(20)]
        ratios = [path.variance(30) / (path.freedom[1][30] / 200) for path in paths]
        assert low < np.mean(ratios) < high
    told = np.mean([path.extend(800)[0].value for path in paths])
    true = np.mean([drawn(800, 0.5).errors.min() for _ in range(12)])
    assert told == pytest.approx(true, rel=0.08)


def test_a_curve_has_widths_ridges_and_the_theory_beside_it() -> None:
    rng = np.random.default_rng(4)
    inputs = rng.standard_normal((300, 12))
    targets = np.tanh(inputs[:, 0] + inputs[:, 1]) + 0.5 * rng.standard_normal(300)
    curve = learning_curve(inputs, targets, width=60)
    assert [width for width, _ in curve.widths] == [30, 60, 120]
    known = [row for row in curve.ridges if math.isfinite(row[2])]
    assert len(known) > 5
    # More samples never ask for more ridge, and cost nothing at the largest.
    assert known[-1][2] == pytest.approx(known[-1][1], rel=0.02)
    assert min(row[2] for row in known) < min(row[1] for row in known)
    assert len(curve.theory) == 4
    assert curve.theory[1].value == pytest.approx(curve.errors["random_features"][1].value, rel=0.25)
    assert json.loads(json.dumps(curve.to_dict()))["theory"][0]["stderr"] > 0
    assert "theory, no step" in curve.to_text()
    for told, words in (
        (Number(curve.errors["random_features"][1].value, 0.3), "too badly"),
        (Number(3.0, 0.01), "does not describe this table"),
    ):
        doubted = replace(curve, theory=(told,) * 4).to_text()
        assert words in doubted
        assert "theory, no step" not in doubted
    three = np.digitize(inputs[:, 0], [-0.5, 0.5])
    told = diagnose(inputs, np.array(list("abc"))[three], curve=True, **QUICK).curve
    assert told is not None
    assert told.theory == ()
    assert told.errors["linear_ridge"][1].value < 0.7


@pytest.mark.parametrize(
    ("inputs", "target", "message"),
    [
        (frame(), "price", "there is no column 'price'; the columns are a, b, c"),
        (frame(), "color", r"there is no column 'color' \(perhaps 'colour'\?\)"),
        (frame(), "word", "text with 60 different values"),
        (frame(), "same", "is constant"),
        (frame().head(10), "y", "at least 20 rows with a target are needed, got 10"),
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
    with pytest.raises(ValueError, match=r"must be one of \.csv, \.tsv"):
        read_table(tmp_path / "data.json")
    (tmp_path / "data.xlsx").write_bytes(b"")
    if importlib.util.find_spec("openpyxl") is None:
        with pytest.raises(ImportError, match="openpyxl"):
            read_table(tmp_path / "data.xlsx")
    (tmp_path / "bad.parquet").write_text("no table")
    with pytest.raises(ValueError, match="cannot be read"):
        read_table(tmp_path / "bad.parquet")
    (tmp_path / "empty.csv").write_text("")
    with pytest.raises(ValueError, match="cannot be read"):
        read_table(tmp_path / "empty.csv")
    (tmp_path / "titled.csv").write_text("Prices, 2020\n\na,b,c\n1,2,3\n4,5,6\n")
    with pytest.raises(ValueError, match="a line stands above the names of the columns, 'Prices, 2020'"):
        read_table(tmp_path / "titled.csv")
    (tmp_path / "bare.csv").write_text("1.5,2\n2.5,3\n")
    with pytest.raises(ValueError, match="write the names of the columns above the first row"):
        prepare(read_table(tmp_path / "bare.csv"), "y")


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        ("a;b;c\n1,5;2;x\n2,5;3;y\n", "utf-8"),
        ("a\tb\tc\n1,5\t2\tx\n2,5\t3\ty\n", "utf-8-sig"),
        ('a,b,c\n"1,5",2,x\n"2,5",3,y\n', "utf-16"),
        ("a|b|c\n1,5|2|x\n2,5|3|ü\n", "cp1252"),
        (" a ;b;c \n1,5;2,5;3,5\n2,5;3,5;4,5\n", "utf-8"),
    ],
)
def test_separators_and_encodings_are_recognised(tmp_path: Path, text: str, encoding: str) -> None:
    (tmp_path / "data.csv").write_text(text, encoding=encoding)
    table = read_table(tmp_path / "data.csv")
    assert list(table.columns) == ["a", "b", "c"]
    words = table["a"].astype(str).to_numpy(dtype=object)
    found = numbers_of(words, words != "")[0]
    assert found is not None
    assert found.tolist() == [1.5, 2.5]


def test_packed_tables_are_unpacked(tmp_path: Path) -> None:
    table = frame().drop(columns="same")
    for name in ("data.csv.gz", "data.csv.bz2", "data.csv.xz", "data.zip", "data.gz"):
        table.to_csv(tmp_path / name, index=False)
        found = read_table(tmp_path / name)
        pd.testing.assert_frame_equal(found, read_table(tmp_path / "data.csv.gz"))
        assert list(found.columns) == list(table.columns)
    with zipfile.ZipFile(tmp_path / "mac.zip", "w") as archive:
        archive.writestr("folder/data.csv", "a;b\n1,5;2\n2,5;3\n")
        archive.writestr("__MACOSX/folder/._data.csv", "no table")
        archive.writestr("README.md", "what is what")
    assert list(read_table(tmp_path / "mac.zip").columns) == ["a", "b"]
    with zipfile.ZipFile(tmp_path / "two.zip", "w") as archive:
        archive.writestr("one.csv", "a")
        archive.writestr("two.csv", "a")
    with pytest.raises(ValueError, match=r"2 tables \(one.csv, two.csv\), one is wanted: unpack the one"):
        read_table(tmp_path / "two.zip")
    with pytest.raises(ValueError, match=r"must be one of \.csv"):
        read_table(tmp_path / "data.json.gz")
    whole = (tmp_path / "data.csv.gz").read_bytes()
    for name, held in (("cut.csv.gz", whole[:200]), ("bad.zip", b"no archive"), ("bad.csv.xz", b"no")):
        (tmp_path / name).write_bytes(held)
        with pytest.raises(ValueError, match="cannot be read as a table"):
            read_table(tmp_path / name)


def test_numbers_are_written_with_the_digits_they_deserve() -> None:
    assert str(Number(0.33333, 0.0123)) == "0.333 ± 0.012"
    assert str(Number(12.3456, 1.5)) == "12.3 ± 1.5"
    assert str(Number(0.5)) == "0.5"
    assert str(Number(2.13e-6, 8.4e-7)) == "2.1e-06 ± 8e-07"
