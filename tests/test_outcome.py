"""Outcome: sequences of steps, values by name, files and tables, and the way back."""

import builtins
import json
import math

import numpy as np
import pytest

from firststep import Outcome, Problem, Sizes
from firststep.results.outcome import step_names
from firststep.setting import schedule_of

SETTING, SIZES = Problem("relu", "h1 + h2/2", noise_std=0.3), Sizes(1000, 500, 750)


def outcome(schedule, ridges=(0.1, 0.2, 0.3), missing=False):
    schedule = np.asarray(schedule, dtype=float)
    errors = np.arange(len(schedule) * len(ridges), dtype=float).reshape(len(schedule), -1)
    if missing:
        errors[0, 0] = math.nan
    return Outcome(
        SETTING,
        SIZES,
        schedule[:, 0],
        np.array(ridges),
        source="simulation",
        values={"test_error": errors, "alignment": np.array(0.5)},
        stderr={"test_error": errors / 10},
        notes=("a note",),
        next_step_sizes=schedule[:, 1:],
    )


ONE = [[0.0], [10.0]]
TWO = schedule_of(SIZES, [0.0, 10.0], next_step_sizes=[2.0, 1000.0])
THREE = schedule_of(SIZES, [10.0], next_step_sizes=[[1.0, 2.0], [3.0]])


def test_one_step_has_no_later_ones():
    single = outcome(ONE)
    assert single.next_step_sizes.shape == (2, 0)
    assert single.next_step_exponents.shape == (2, 0)
    assert single.schedule.tolist() == ONE
    assert list(single.rows()[0]) == [
        "step_size",
        "step_exponent",
        "ridge",
        "test_error",
        "alignment",
        "test_error_stderr",
    ]
    assert "next" not in single._repr_html_() + json.dumps(single.to_dict()) + repr(single)
    # Given by position, as before there were several steps.
    assert Outcome(SETTING, SIZES, np.ones(3), np.ones(1), "x", {}).next_step_sizes.shape == (3, 0)


def test_several_steps_are_named():
    double = outcome(TWO)
    assert double.step_sizes.tolist() == [0, 0, 10, 10]
    assert double.schedule.tolist() == TWO.tolist()
    assert double.next_step_exponents[1, 0] == pytest.approx(1.0)
    row = double.rows()[3 * 3 + 1]
    assert (row["step_size"], row["next_step_size"], row["ridge"]) == (10, 1000, 0.2)
    assert row["next_step_exponent"] == pytest.approx(1.0)
    assert double.rows()[0]["step_exponent"] is None
    assert list(row)[:5] == ["step_size", "step_exponent", "next_step_size", "next_step_exponent", "ridge"]
    assert "<th>next_step_size</th>" in double._repr_html_()
    assert repr(double).startswith("Outcome(simulation: 4 sequences of 2 steps x 3 ridges")
    assert outcome(THREE).rows()[0]["third_step_size"] == 3
    assert len({name for names in step_names(12) for name in names}) == 24


def test_later_steps_need_a_row_each():
    with pytest.raises(ValueError, match="a row for each of the 2 step sizes, got shape"):
        Outcome(SETTING, SIZES, np.ones(2), np.ones(1), "x", {}, next_step_sizes=np.ones((3, 1)))


def test_values_by_name():
    single = outcome(ONE)
    assert single["test_error"] is single.values["test_error"]
    assert {"test_error", "alignment", "rows", "ridges"} <= set(dir(single))
    assert single._ipython_key_completions_() == ["test_error", "alignment"]
    with pytest.raises(KeyError, match="no value 'train_error'; there are test_error, alignment"):
        single["train_error"]


@pytest.mark.parametrize("schedule", [ONE, TWO, THREE, [[1.0], [1.0]]])
@pytest.mark.parametrize("ridges", [(0.1,), (0.1, 0.2), (0.5, 0.5)])
def test_saved_and_loaded(schedule, ridges):
    saved = outcome(schedule, ridges, missing=True)
    loaded = Outcome.from_dict(json.loads(json.dumps(saved.to_dict(), allow_nan=False)))
    assert loaded.rows() == saved.rows()
    assert loaded.to_dict() == saved.to_dict()
    assert (loaded.problem, loaded.sizes, loaded.notes) == (saved.problem, saved.sizes, saved.notes)
    assert set(loaded.stderr) == {"test_error"}
    if len({*map(tuple, saved.schedule)}) > 1 and len({*ridges}) > 1:
        assert np.array_equal(loaded.test_error, saved.test_error, equal_nan=True)
        assert loaded.schedule.tolist() == saved.schedule.tolist()


def test_rows_that_are_no_table_are_refused():
    content = outcome(ONE).to_dict()
    del content["rows"][1]
    with pytest.raises(ValueError, match="no table of step sizes by ridges"):
        Outcome.from_dict(content)


def test_as_a_data_frame():
    frame = outcome(TWO, missing=True).to_dataframe()
    assert frame.shape == (12, 8)
    assert frame["next_step_size"][4] == 1000
    assert np.isnan(frame["test_error"][0])
    assert frame["step_exponent"].dtype == float


def test_as_a_dataset():
    single = outcome(ONE).to_xarray()
    assert single["test_error"].dims == ("step_size", "ridge")
    assert float(single["test_error"].sel(step_size=10.0, ridge=0.2)) == 4
    double = outcome(TWO).to_xarray()
    assert double["test_error_stderr"].dims == ("step_size", "next_step_size", "ridge")
    picked = double.sel(step_size=10.0, next_step_size=1000.0, ridge=0.3)
    assert float(picked["test_error"]) == 11
    assert float(picked["next_step_exponent"]) == pytest.approx(1.0)
    assert Problem.from_dict(json.loads(double.attrs["problem"])) == SETTING
    ragged = outcome([[0.0, 1.0], [2.0, 3.0]]).to_xarray()
    assert ragged["test_error"].dims == ("schedule", "ridge")
    assert ragged["next_step_size"].values.tolist() == [1, 3]


@pytest.mark.parametrize(
    ("package", "method", "extra"),
    [("pandas", "to_dataframe", r"firststep\[data\]"), ("xarray", "to_xarray", r"firststep\[export\]")],
)
def test_a_missing_package_is_named(monkeypatch, package, method, extra):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name == package:
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=extra):
        getattr(outcome(ONE), method)()
