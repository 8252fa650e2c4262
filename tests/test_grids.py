"""Dense curves and grids, solved in part: what lies between is what it is alone, or it is solved."""

import numpy as np
import pytest

from firststep import Problem, Sizes, predict
from firststep.theory import grids, ladder, unified
from firststep.theory.coefficients import lagrange
from firststep.theory.grids import Axis, Grid, Thinned, sparse

SETTING, SIZES = Problem("relu", "h1 + h2/sqrt(2)", noise_std=0.5), Sizes(2000, 1000, 1500)
ERRORS = ("train_error", "test_error")


def axis_of(count=60, every=4):
    values = np.linspace(0.0, 3.8, count)
    return Axis.of(values, np.unique(np.append(np.arange(0, count, every), count - 1)))


def missed_and_told(axis, function):
    known = function(axis.values[axis.solved])[:, None]
    told = (axis.weights().T @ known)[:, 0]
    return axis.missed(known)[:, 0], np.abs(told - function(axis.values))


@pytest.mark.parametrize(
    "function", [np.sin, np.exp, lambda x: 1 / (1 + (x - 2) ** 2), lambda x: np.arctan(2 * (x - 1))]
)
def test_what_polynomials_miss_is_known_from_the_solved_values(function):
    axis = axis_of()
    missed, off = missed_and_told(axis, function)
    assert not axis.whole
    assert (off <= 3 * missed + 1e-14).all()
    assert (off[missed < 1e-6] < 1e-6).all()
    assert (missed[axis.solved] == 0).all()
    # The estimate is no wild one: it would not have everything solved.
    assert missed.max() < 50 * off.max() + 1e-12


def test_polynomials_are_told_exactly():
    axis = axis_of()
    missed, off = missed_and_told(axis, lambda x: (x - 1) ** 7 - x**3)
    assert off.max() < 1e-9
    assert missed.max() < 1e-9
    missed, off = missed_and_told(axis, lambda x: (x - 1) ** 9)
    assert missed.max() > off.max() > 1e-6


def test_a_kink_and_a_jump_are_seen_around_them_and_nowhere_else():
    axis, at = axis_of(120), 1.73
    near = np.abs(axis.values - at) < 0.2
    for function in (lambda x: 1e-3 * np.abs(x - at), lambda x: 1e-3 * (x > at)):
        missed, off = missed_and_told(axis, function)
        between = np.setdiff1d(np.arange(120), axis.solved)
        assert missed[between][near[between]].min() > 1e-6
        assert (off[missed <= 1e-6] < 1e-4 * 1e-3).all() or (off[missed <= 1e-6] <= 1e-5).all()
    assert np.isnan(axis.missed(np.full((len(axis.solved), 1), np.nan))).any()


def test_lagrange_is_one_at_its_own_node_and_sums_to_one():
    nodes = np.array([[0.0, 1.0, 3.0], [2.0, 5.0, 6.0]])
    assert np.allclose(lagrange(nodes, np.array([1.0, 6.0])), [[0, 1, 0], [0, 0, 1]])
    assert np.allclose(lagrange(nodes, np.array([0.3, 9.0])).sum(axis=1), 1)
    assert np.allclose((lagrange(nodes, np.array([2.0, 4.0])) * nodes**2).sum(axis=1), [4.0, 16.0])


def test_sparse_values_keep_those_that_lead_and_leave_no_wide_gap():
    values = np.concatenate([[0.0], np.linspace(1, 3, 41)])
    leads = np.array([0, 1, 21, 41])
    chosen = sparse(values, leads, 0.21)
    assert set(leads) <= set(chosen)
    assert np.diff(values[chosen])[1:].max() < 0.21 + 0.05 + 1e-9
    assert len(chosen) < 15


def test_a_grid_is_thinned_in_both_directions_or_in_one_or_not():
    steps, ridges = np.expm1(np.linspace(0.5, 3.5, 50)), np.geomspace(1e-3, 10, 60)

    def thinned(steps, ridges, tolerance=1e-6):
        flat = (m.ravel() for m in np.meshgrid(steps, ridges, indexing="ij"))
        grid = Grid.of(*flat)
        return Thinned.of(grid, *grid.sparse(tolerance))

    both = thinned(steps, ridges)
    assert not both.steps.whole
    assert not both.ridges.whole
    assert both.solved.sum() == len(both.steps.solved) * len(both.ridges.solved)
    one = thinned(steps, ridges[::12])
    assert one.ridges.whole
    assert not one.steps.whole
    assert thinned(steps[::6], ridges[::12]) is None
    # A sharper tolerance asks for more.
    assert len(thinned(steps, ridges, 3e-7).ridges.solved) > len(both.ridges.solved)
    x, y = np.log1p(both.grid.steps), np.log(both.grid.ridges)
    table = np.empty(both.grid.places.size)
    table[both.grid.places] = np.sin(x)[:, None] * np.exp(y / 4)
    told, missed = both.told(table[:, None])[:, 0], both.missed(table[:, None])
    assert np.abs(told - table).max() < 1e-6
    assert (np.abs(told - table) <= missed + 1e-13).all()
    assert (missed[both.solved] == 0).all()


CURVES = {
    "relu": (SETTING, SIZES, 0.1),
    "few dimensions, gaussian rows": (Problem("relu", "h1 + h2/sqrt(2) + h3/sqrt(6)", 0.3), Sizes(600, 40, 400), 0.1),
    "few dimensions, sphere": (Problem("tanh", "h1 + h3", 0.3, rows="sphere"), Sizes(400, 50, 300), 0.03),
    "constant readout": (Problem("gelu", "tanh(2*x)", 0.2, readout="constant"), Sizes(900, 450, 600), 0.05),
    "output of order one": (Problem("tanh", "relu", 0.5, initial_output="order_one"), Sizes(900, 600, 450), 0.03),
    "a sharp peak": (Problem("relu", "h1 + h2/2", 0.3), Sizes(800, 400, 800), 1e-5),
    "a staircase": (Problem("tanh", "relu", 0.3, rows="sphere"), Sizes(10**8, 10**7, 10**7), 1e-3),
}  # fmt: skip


@pytest.mark.parametrize("name", CURVES)
def test_a_dense_curve_is_what_its_points_are_when_all_are_solved(name, monkeypatch):
    problem, sizes, ridge = CURVES[name]
    exponents = np.linspace(0.0, 0.5, 240 if name == "a staircase" else 90)
    curve = predict(problem, sizes, step_exponents=exponents, ridges=ridge)
    told, tolerance = curve.details["interpolated"], curve.details["tolerance"]
    assert told.mean() > 0.25
    assert not told[[0, -1]].any()
    assert curve.details["relative_error"].max() <= tolerance
    monkeypatch.setattr(ladder, "FEWEST_THINNED", 10**9)
    solved = predict(problem, sizes, step_exponents=exponents, ridges=ridge)
    assert not solved.details["interpolated"].any()
    few = sizes.dim < 100
    for quantity in (*ERRORS, "train_mse", "readout_norm_squared", "degrees_of_freedom", "residual_spread"):
        np.testing.assert_allclose(curve[quantity], solved[quantity], rtol=(1 if few else 4) * tolerance)
    np.testing.assert_allclose(
        curve.details["learned"], solved.details["learned"], atol=(1 if few else 10) * tolerance
    )


def test_points_of_a_dense_grid_are_what_they_are_alone():
    exponents, ridges = np.linspace(0.1, 0.5, 60), np.geomspace(1e-3, 1, 40)
    grid = unified.solve(SETTING, SIZES, SIZES.step_size(exponents), ridges)
    told = grid.details["interpolated"]
    assert told.mean() > 0.6
    for i, j in np.argwhere(told)[:: told.sum() // 12]:
        alone = unified.solve(SETTING, SIZES, SIZES.step_size(exponents[[i]]), ridges[[j]], tolerance=1e-8)
        for error in ERRORS:
            assert abs(grid[error][i, j] / alone[error][0, 0] - 1) < 3 * ladder.TOLERANCE


def test_a_tolerance_that_is_asked_for_is_kept():
    exponents = np.linspace(0.05, 0.45, 60)
    steps, ridges = SIZES.step_size(exponents), np.array([0.1])
    exact = unified.solve(SETTING, SIZES, steps, ridges, tolerance=1e-9)
    shares = []
    for tolerance in (1e-3, 1e-5, 1e-7):
        found = unified.solve(SETTING, SIZES, steps, ridges, tolerance=tolerance)
        shares.append(found.details["interpolated"].mean())
        assert found.details["relative_error"].max() <= tolerance
        for error in ERRORS:
            assert np.abs(found[error] / exact[error] - 1).max() < tolerance
    assert shares[0] > shares[1] > shares[2]


@pytest.mark.parametrize("place", [1.0, 1.9, 3.3])
def test_a_kink_made_on_purpose_is_solved(place, monkeypatch):
    level = ladder._Ladder.level

    def bent(self, rung, steps, *rest):
        found = level(self, rung, steps, *rest)
        found.numbers["test_error"] *= 1 + 0.01 * np.abs(np.log1p(steps) - place)
        return found

    exponents = np.linspace(0.0, 0.5, 120)
    smooth = predict(SETTING, SIZES, step_exponents=exponents, ridges=0.1)
    monkeypatch.setattr(ladder._Ladder, "level", bent)
    found = predict(SETTING, SIZES, step_exponents=exponents, ridges=0.1)
    at = np.log1p(SIZES.step_size(exponents))
    told = found.details["interpolated"][:, 0]
    assert not told[np.abs(at - place) < 0.1].any()
    assert told[np.abs(at - place) > 0.8].mean() > 0.4
    wanted = smooth.test_error[:, 0] * (1 + 0.01 * np.abs(at - place))
    assert np.abs(found.test_error[:, 0] / wanted - 1).max() < 2e-5
    # Without a look at what polynomials miss it would have been smoothed away.
    monkeypatch.setattr(grids, "CAUTION", 0.0)
    smoothed = predict(SETTING, SIZES, step_exponents=exponents, ridges=0.1)
    assert np.abs(smoothed.test_error[:, 0] / wanted - 1).max() > 1e-4


def test_drafts_are_told_too(monkeypatch):
    steps = SIZES.step_size(np.linspace(0.0, 0.5, 61))
    draft = unified.solve(SETTING, SIZES, steps, np.array([0.1]), tolerance=np.inf)
    assert draft.details["interpolated"].mean() > 0.5
    monkeypatch.setattr(ladder, "FEWEST_THINNED", 10**9)
    solved = unified.solve(SETTING, SIZES, steps, np.array([0.1]), tolerance=np.inf)
    for error in ERRORS:
        assert np.abs(draft[error] / solved[error] - 1).max() < ladder.MOST_TOLD
