"""Maps over samples and dimensions: few points are solved, and the others are what they would be alone."""

import math
from itertools import pairwise

import numpy as np
import pytest

from firststep import Problem, Sizes, predict, predict_map
from firststep.compute import parts
from firststep.numerics.fixedpoint import ConvergenceError
from firststep.theory import size_maps
from firststep.theory.size_maps import NAMES, refined

SETTING = Problem("relu", "h1 + h2/sqrt(2)", noise_std=0.5)
SAMPLES, DIMS = np.geomspace(400, 4000, 27).round(), np.geomspace(150, 900, 25).round()
ERRORS = ("train_error", "test_error")


def the_map(**options):
    chosen = {"n_samples": SAMPLES, "dims": DIMS, "width": 1500, "step_exponent": 0.3} | options
    return predict_map(SETTING, **chosen)


@pytest.fixture(scope="module", autouse=True)
def coarser():
    """Start with few points, so that tests are quick."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(size_maps, "COARSEST", 5)
        yield


@pytest.fixture(scope="module")
def whole(coarser):
    return the_map(workers=1, progress=False)


def test_points_between_are_what_they_are_alone(whole):
    assert whole.solved.mean() < 0.3
    assert whole.relative_error.max() <= size_maps.MAP_TOLERANCE
    assert not whole.notes
    rng = np.random.default_rng(0)
    between = rng.permutation(np.argwhere(~whole.solved))[:6]
    for i, j in between:
        sizes = Sizes(int(SAMPLES[i]), int(DIMS[j]), 1500)
        alone = predict(SETTING, sizes, step_exponents=0.3, ridges=0.1)
        for name in ERRORS:
            assert abs(whole[name][i, j] / alone[name][0, 0] - 1) < size_maps.MAP_TOLERANCE
        for name in NAMES:
            assert whole[name][i, j] == pytest.approx(alone[name][0, 0], rel=0.02, abs=2e-3)
    i, j = np.argwhere(whole.solved)[7]
    alone = predict(SETTING, Sizes(int(SAMPLES[i]), int(DIMS[j]), 1500), step_exponents=0.3, ridges=0.1)
    assert whole.test_error[i, j] == pytest.approx(alone.test_error[0, 0], rel=1e-4)


def test_numbers_do_not_depend_on_the_processes(monkeypatch):
    # A map of this size is not worth processes otherwise.
    monkeypatch.setattr(parts, "SMALL", 100)
    axes = {"n_samples": SAMPLES[6:17], "dims": DIMS[10:21]}
    told = []
    here = the_map(**axes, workers=1, progress=False)
    there = the_map(**axes, workers=2, progress=lambda *counts: told.append(counts))
    # Coarse points, refined in two rounds and more, and points between them.
    assert 25 < here.solved.sum() < here.solved.size
    for name, values in here.values.items():
        assert np.array_equal(there[name], values), name
    assert np.array_equal(there.relative_error, here.relative_error)
    assert told[-1] == (here.solved.sum(), here.solved.sum())
    assert all(a <= b for (a, _), (b, _) in pairwise(told))


def looked_up(function, axes, asked):
    """A table's first two values and a third, by place; what is asked for is written down."""

    def solve(pairs):
        asked.extend(pairs)
        found = [function(axes[0][i], axes[1][j]) for i, j in pairs]
        return np.array([[value, 1.0, -value] for value in found])

    return solve


def test_corners_are_solved_and_smooth_parts_are_not(monkeypatch):
    monkeypatch.setattr(size_maps, "COARSEST", 12)
    axes, asked = [np.linspace(0, 1, 129)] * 2, []

    def bent(x, y):
        return math.sin(x) + y**2 + 0.5 * max(x + y - 1.03, 0.0)

    found = refined(axes, looked_up(bent, axes, asked), 1e-3)
    exact = np.array([[bent(x, y) for y in axes[1]] for x in axes[0]])
    assert np.abs(found.values[..., 0] - exact).max() < 2e-3
    assert np.allclose(found.values[..., 2], -found.values[..., 0], rtol=1e-12)
    assert len(asked) == len(set(asked)) == found.solved.sum() < 0.2 * found.solved.size
    far = np.abs(np.add.outer(*axes) - 1.03) > 0.3
    assert found.solved[~far].mean() > 2 * found.solved[far].mean()
    assert (found.error[~found.solved] <= 1e-3).all()
    assert not found.error[found.solved].any()


def test_tolerance_zero_and_small_tables_are_solved_everywhere():
    for count, tolerance in ((40, 0.0), (9, 1e-3)):
        axes, asked = [np.linspace(0, 1, count)] * 2, []
        found = refined(axes, looked_up(lambda x, y: math.exp(x * y), axes, asked), tolerance)
        assert found.solved.all()
        assert len(asked) == count**2
        assert np.allclose(found.values[..., 0], np.exp(np.multiply.outer(*axes)), rtol=1e-12)


def test_widths_and_step_samples_broadcast():
    widths = np.array([[300, 400]])
    found = the_map(
        n_samples=[200, 300], dims=[100, 150], width=widths, n_step_samples=250, step_exponent=0.4
    )
    assert found.widths.tolist() == [[300, 400], [300, 400]]
    assert (found.n_step_samples == 250).all()
    assert np.allclose(found.step_sizes, 250**0.4)
    alone = predict(SETTING, Sizes(300, 150, 400, 250), step_exponents=0.4, ridges=0.1)
    assert found.test_error[1, 1] == pytest.approx(alone.test_error[0, 0], rel=1e-4)
    rows = found.rows()
    assert len(rows) == 4
    assert rows[3]["test_error"] == found.test_error[1, 1]
    assert (rows[1]["n_samples"], rows[1]["dim"], rows[1]["width"]) == (200, 150, 400)
    xarray = pytest.importorskip("xarray")
    data = found.to_xarray()
    assert isinstance(data, xarray.Dataset)
    assert data.test_error.sel(n_samples=300, dim=150).item() == found.test_error[1, 1]
    assert len(found.to_dataframe()) == 4


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"n_samples": [300, 200]}, "n_samples must be positive and rise"),
        ({"dims": [0, 5]}, "dims must be positive and rise"),
        ({"dims": [10.5]}, "dims must be a list of whole numbers"),
        ({"width": [1, 2, 3]}, "width must be one number or broadcast"),
        ({"n_step_samples": [[1, 2, 3]]}, "n_step_samples must be one number or broadcast"),
        ({"step_exponent": [0.1, 0.2]}, "a map has one step size"),
        ({"ridge": [0.1, 0.2]}, "one ridge"),
        ({"ridge": 0.0}, "ridge must be positive"),
        ({"tolerance": -1.0}, "tolerance must be zero or positive"),
        ({"step_size": 1.0}, "give either step_sizes"),
        ({"workers": 0}, "workers must be at least 1"),
    ],
)
def test_what_is_no_map_is_refused(options, words):
    with pytest.raises(ValueError, match=words):
        the_map(**options)


def test_a_point_without_an_answer_is_named(monkeypatch):
    def refuse(*args, **kwargs):
        raise ConvergenceError("no solution: raise ridge", np.zeros(1), np.ones(1))

    monkeypatch.setattr(size_maps, "predict", refuse)
    with pytest.raises(ConvergenceError, match=r"n_samples=200, dim=100, .*no solution: raise ridge"):
        the_map(n_samples=[200], dims=[100], width=300)


def test_unknown_names_are_refused_and_values_are_attributes():
    found = the_map(n_samples=[200, 300], dims=[100, 150, 200], width=300)
    with pytest.raises(TypeError, match="did you mean dims"):
        predict_map(SETTING, n_samples=[100], dimss=[50], width=10, step_size=1.0)
    assert found.test_error is found["test_error"]
    with pytest.raises(AttributeError, match="did you mean test_error"):
        _ = found.test_eror
    with pytest.raises(KeyError, match="there are train_error"):
        found["nothing"]
    assert "2 numbers of samples x 3 dimensions" in repr(found)


def test_a_wide_bar_is_told_in_words_with_its_place():
    problem = Problem("relu", "h1 + h2/sqrt(2)", 0.3)
    settings = {"width": 300, "step_exponent": 0.4, "workers": 1, "progress": False}
    found = predict_map(problem, n_samples=[60, 600], dims=[3, 200], **settings)
    (note,) = (note for note in found.notes if "error bar" in note)
    assert "d = 3, n = " in note
    assert not predict_map(problem, n_samples=[600, 700], dims=[200, 250], **settings).notes
