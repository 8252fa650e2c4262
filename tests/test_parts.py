"""Maps in parts: the same numbers wherever the parts are solved, with their progress."""

import math
from itertools import pairwise

import numpy as np
import pytest

from firststep import Problem, Sizes, predict
from firststep.cli import output
from firststep.compute.parts import SMALL, in_parts, run_parts
from firststep.theory import ladder

SETTING, SIZES = Problem("relu", "h1 + h2/sqrt(2)", noise_std=0.5), Sizes(2000, 1000, 1500)
EXPONENTS, RIDGES = np.linspace(0, 0.5, 33), np.logspace(-3, 1, 16)
ERRORS = ("train_error", "test_error")


def the_map(**options):
    return predict(SETTING, SIZES, step_exponents=EXPONENTS, ridges=RIDGES, **options)


@pytest.fixture(scope="module")
def whole():
    return the_map()


def largest_change(found, wanted):
    return max(float(np.abs(found[name] / wanted[name] - 1).max()) for name in ERRORS)


def test_parts_have_the_numbers_of_the_whole_wherever_they_are_solved(monkeypatch, whole):
    monkeypatch.setattr(ladder, "PART", 150)
    told = []
    here = the_map(workers=1, progress=lambda *counts: told.append(counts))
    points = (len(EXPONENTS) + 1) * len(RIDGES)
    assert len(told) == math.ceil(points / 150)
    assert told[-1] == (points, points)
    assert all(a < b for (a, _), (b, _) in pairwise(told))
    # Each part is accurate to 1e-6, as the whole is.
    assert 0 < largest_change(here, whole) < 2e-6
    there = the_map(workers=2, progress=False)
    for name, values in here.values.items():
        assert np.array_equal(there[name], values), name
    assert there.notes == here.notes == whole.notes


def test_parts_that_are_told_between_solved_points_do_not_depend_on_the_workers(monkeypatch):
    monkeypatch.setattr(ladder, "PART", 500)
    exponents, ridges = np.linspace(0, 0.5, 24), np.logspace(-3, 1, 60)
    here, there = (
        predict(SETTING, SIZES, step_exponents=exponents, ridges=ridges, workers=workers, progress=False)
        for workers in (1, 2)
    )
    assert here.details["interpolated"].mean() > 0.3
    for name, values in here.values.items():
        assert np.array_equal(there[name], values), name
    assert np.array_equal(here.details["interpolated"], there.details["interpolated"])
    monkeypatch.setattr(ladder, "FEWEST_THINNED", 10**9)
    solved = predict(SETTING, SIZES, step_exponents=exponents, ridges=ridges, workers=1, progress=False)
    assert largest_change(here, solved) < 3e-6


def test_parts_are_neighbours_along_the_longer_axis():
    steps, ridges = (m.ravel() for m in np.meshgrid(np.arange(40.0), [3.0, 1.0, 2.0], indexing="ij"))
    parts = ladder._parts(steps, ridges, 60)
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(120))
    assert [np.unique(steps[part]).tolist() for part in parts] == [
        list(range(20)),
        list(range(20, 40)),
    ]
    assert all(len(np.unique(ridges[part])) == 3 for part in parts)
    assert len(ladder._parts(ridges, steps, 60)) == 2
    assert len(ladder._parts(steps, ridges, 1)) == 40 // ladder.LEAST_VALUES
    assert len(ladder._parts(steps[:3], ridges[:3], 1)) == 1


def test_few_points_and_other_processes_say_nothing():
    told = []
    with in_parts(None, lambda *counts: told.append(counts), "points", SMALL - 1):
        assert run_parts(pow, [(2, 3), (2, 4)], 2) == [8, 16]
    assert told == []
    with pytest.raises(ValueError, match="workers must be"):
        predict(SETTING, SIZES, 1.0, workers=0)


def test_an_error_in_a_part_is_that_of_the_whole():
    with pytest.raises(ZeroDivisionError), in_parts(2, False, "points", SMALL):
        run_parts(divmod, [(1, 1), (1, 0), (1, 1)], 6)


def test_waiting_shows_how_much_is_done(monkeypatch, capsys):
    monkeypatch.setattr(output, "PATIENCE", 0.05)
    with output.waiting("a map") as told:
        told(1, 4)
        output.time.sleep(0.3)
    assert capsys.readouterr().err == "note: computing a map, 25 %, 0 s so far\n"
    monkeypatch.setattr(output.sys.stderr, "isatty", lambda: True, raising=False)
    with output.waiting("a map") as told:
        told(1, 2)
        output.time.sleep(0.3)
    assert f"{'█' * 12}{'░' * 12} 50 %" in capsys.readouterr().err
