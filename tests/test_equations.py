"""Derivatives that are written by hand in the equations, entry by entry against complex steps.

A complex step is exact: f(x + i h) has the derivative times h as its imaginary part, and h = 1e-20 leaves no error of
its own. Residuals, forms and q are evaluated by the code that answers; what is compared is written by hand.
"""

import dataclasses

import numpy as np
import pytest

from firststep import Problem, Sizes
from firststep.theory import equations
from firststep.theory.coefficients import Resolution, geometry_of, tables_of

STEP = 1e-20
MIXED = "h1 + h2/sqrt(2)"
COARSE = Resolution(9, 0.9, 3)
# Problem, sizes, what becomes of the rest, degrees of the polynomials (0: the functions' own span), highest sector.
CASES = {
    "plain": (Problem("relu", MIXED, noise_std=0.3), Sizes(90, 40, 60), "structured", 0, 1),
    "polynomials": (Problem("tanh", MIXED, rows="sphere"), Sizes(90, 40, 60), "structured", 8, 2),
    "noise": (Problem("relu", "h1", initial_output="order_one"), Sizes(90, 40, 60), "noise", 0, 1),
    "degrees": (
        Problem("relu", MIXED, noise_std=0.3, rows="sphere"),
        Sizes(300, 20, 200),
        "structured",
        0,
        3,
    ),
    "output": (
        Problem("softplus", "h1 + h3/6", readout="rademacher", initial_output="order_one"),
        Sizes(90, 40, 60),
        "structured",
        0,
        2,
    ),
    "covariance": (
        Problem("gelu", "relu", inputs="levels(0.5, 1.5)", initial_output="order_one"),
        Sizes(90, 40, 60),
        "structured",
        0,
        2,
    ),
    "directions": (Problem("relu", "t1 + t1*t2"), Sizes(90, 40, 60), "structured", 0, 2),
    "leaning": (Problem("tanh(2*x)", "h1"), Sizes(90, 40, 60), "structured", 0, 1),
}
RIDGE = np.array([0.05])


def set_up(name):
    """Geometry and tables at one step size."""
    problem, sizes, rest, degrees, highest = CASES[name]
    geometry = geometry_of(problem, sizes, COARSE, rest, degrees, highest)
    return geometry, tables_of(geometry, np.array([4.0 if degrees == 0 else 0.3]), rest)


def anywhere(geometry):
    """rho and 1 + delta that solve nothing, (1, nz + nu)."""
    values = np.random.default_rng(0).uniform(0.5, 2.0, (1, len(geometry.z) + len(geometry.u)))
    values[:, len(geometry.z) :] += 1
    return values


def at_levels(tables):
    """alpha times the root of c(U, m) at each level, (B, L, nu, K)."""
    of_degree = tables.carried[:, [degree - 1 for degree in tables.level_degrees]]
    return np.sqrt(tables.stretch)[..., None] * of_degree


def residuals(geometry, tables, values, floor):
    """Relative residuals of both equations, (1, nz + nu)."""
    nz = len(geometry.z)
    state = equations.state_at(geometry, tables, values[:, :nz], 1 / values[:, nz:])
    return equations._errors(geometry, state, floor)[0]


def whole_steps(geometry, tables, state, error, reaction):
    """Relative steps of Newton by all unknowns."""
    assert not geometry.cells, reaction
    matrix = equations._newton_matrix(geometry, tables, state, error)
    return np.linalg.solve(matrix, -error[..., None])[..., 0]


def solution(geometry, tables, floor, start):
    """Values at which the residuals vanish; `floor` is lambda n/N, and may be complex and depend on z."""
    nz, values = len(geometry.z), start.astype(np.result_type(start, floor))
    for _ in range(40):
        state = equations.state_at(geometry, tables, values[:, :nz], 1 / values[:, nz:])
        error, reaction = equations._errors(geometry, state, floor)
        if np.abs(error.real).max() < 1e-13 and np.abs(error.imag).max() < 1e-13 * STEP:
            return values
        values = values * np.exp(whole_steps(geometry, tables, state, error, reaction))
    raise AssertionError(f"no solution: {np.abs(error).max()}")


def solved(name):
    """Geometry, tables, lambda n/N at every node, and the solution."""
    geometry, tables = set_up(name)
    guess = equations.first_guess(geometry, RIDGE)
    values = equations.solve_points(geometry, tables, RIDGE, guess, 1e-12, 30).value
    floor = np.full((1, len(geometry.z)), RIDGE[0] * geometry.samples_per_neuron)
    return geometry, tables, floor, solution(geometry, tables, floor, values)


def form(geometry, tables, values):
    """q at any values of the unknowns, (1,)."""
    return equations.answer_at(geometry, tables, values).q


def columns(function, values):
    """Derivatives with respect to the logarithm of every value, one column each."""
    found = []
    for at in range(values.shape[1]):
        moved = values.astype(complex)
        moved[0, at] *= 1 + 1j * STEP
        found.append(np.atleast_1d(function(moved)[0]).imag / STEP)
    return np.stack(found, axis=-1)


def wrong_entries(found, exact):
    """How many entries are off by more than 1e-8 of themselves, those below 1e-13 of the largest left out."""
    return int((np.abs(found - exact) > 1e-8 * np.abs(exact) + 1e-13 * np.abs(exact).max()).sum())


def hand_written_jacobian(geometry, tables, values, floor):
    """`jacobian_at`, with what Newton adds to its diagonal where the residuals do not vanish."""
    nz = len(geometry.z)
    state = equations.state_at(geometry, tables, values[:, :nz], 1 / values[:, nz:])
    error = equations._errors(geometry, state, floor)[0][0]
    return equations.jacobian_at(geometry, tables, state)[0] + np.diag(np.r_[error[:nz], -error[nz:]])


def gradient(geometry, tables, values, by_hand=None):
    """The hand-written gradient of q; `by_hand` are tables that it alone sees."""
    forms = equations.forms_at(geometry, tables, values)
    fit, _ = equations._fit(geometry, tables, forms)
    return equations._gradient(geometry, by_hand or tables, forms, fit)[0]


@pytest.mark.parametrize("name", CASES)
def test_every_entry_of_the_jacobian(name):
    geometry, tables = set_up(name)
    values, floor = anywhere(geometry), np.array([[0.07]])
    exact = columns(lambda moved: residuals(geometry, tables, moved, floor), values)
    found = hand_written_jacobian(geometry, tables, values, floor)
    assert wrong_entries(found, exact) == 0
    # No entry, in any of the four blocks, can be wrong by a millionth and pass, but for those that are nothing.
    for changed in (found * (1 + 1e-6), found * (1 - 1e-6)):
        nothing = np.abs(exact) < 1e-6 * np.abs(exact).max()
        assert wrong_entries(changed, exact) >= (~nothing).sum() > 0.5 * exact.size


@pytest.mark.parametrize("name", CASES)
def test_every_entry_of_the_gradient_of_q(name):
    geometry, tables, _, values = solved(name)
    exact = columns(lambda moved: form(geometry, tables, moved), values)[0]
    found = gradient(geometry, tables, values)
    assert wrong_entries(found, exact) == 0
    assert wrong_entries(found * (1 + 1e-6), exact) > 0.5 * exact.size


# Terms of the gradient, with a problem in which they play a part.
TERMS = {
    "label_square": "plain",
    "labels": "plain",
    "input_bend": "plain",
    "row_bend": "plain",
    "special_extra": "plain",
    "special_stretch": "plain",
    "lean": "leaning",
    "leaning": "leaning",
    "leaning_square": "leaning",
    "output_powers": "covariance",
    "output_spikes": "output",
    "priors": "degrees",
}


@pytest.mark.parametrize("term", TERMS)
def test_a_gradient_without_one_of_its_terms_is_rejected(term):
    geometry, tables, _, values = solved(TERMS[term])
    exact = columns(lambda moved: form(geometry, tables, moved), values)[0]
    missing = () if term == "priors" else np.zeros_like(getattr(tables, term))
    found = gradient(geometry, tables, values, dataclasses.replace(tables, **{term: missing}))
    assert wrong_entries(found, exact) > 0


@pytest.mark.parametrize("name", CASES)
def test_steps_from_products_of_functions_of_z_are_newtons(name):
    geometry, tables = set_up(name)
    values, nz = anywhere(geometry), len(geometry.z)
    state = equations.state_at(geometry, tables, values[:, :nz], 1 / values[:, nz:])
    error, reaction = equations._errors(geometry, state, np.array([[0.07]]))
    exact = -np.linalg.solve(columns(lambda v: residuals(geometry, tables, v, 0.07), values), error[0])
    # Steps of relative size one are made of terms that are larger: fewer digits are left than in the Jacobian.
    for find in (equations._reduced_steps, whole_steps):
        assert np.allclose(find(geometry, tables, state, error, reaction)[0], exact, rtol=1e-7, atol=1e-9)
    wrong = equations._reduced_steps(geometry, tables, state, error, reaction * (1 + 1e-5))[0]
    assert not np.allclose(wrong, exact, rtol=1e-7, atol=1e-9)


def test_a_last_step_with_the_derivative_before_leaves_what_is_told(monkeypatch):
    geometry, tables = set_up("plain")
    ridge, taken, find = np.array([0.07]), [], equations._newton_matrix
    floor = ridge[:, None] * geometry.samples_per_neuron
    exact = solution(geometry, tables, floor, equations.first_guess(geometry, ridge))
    start = exact * np.exp(1e-4 * np.sin(np.arange(exact.size)))
    monkeypatch.setattr(equations, "_newton_matrix", lambda *all: (taken.append(1), find(*all))[1])
    for share, saved in ((0.0, 0), (equations.CHORD, 1)):
        monkeypatch.setattr(equations, "CHORD", share)
        taken.clear()
        found = equations.solve_points(geometry, tables, ridge, start, 1e-5, 0)
        assert len(taken) == found.iterations - saved
        assert np.abs(found.value / exact - 1).max() < 1e-9
    # It is taken only where the step before left little.
    assert equations._may_be_chord(np.array([1e-7]), np.array([1e-2]), 1e-5)
    assert not equations._may_be_chord(np.array([1e-6]), np.array([1e-5]), 1e-5)
    assert not equations._may_be_chord(np.array([1e-4]), np.array([1.0]), 1e-5)


@pytest.mark.parametrize("name", CASES)
def test_slopes_by_the_ridge_are_derivatives(name):
    geometry, tables = set_up(name)
    ridge, nz = np.array([0.07]), len(geometry.z)

    def logarithms(ridge):
        floor = (ridge * geometry.samples_per_neuron)[:, None]
        values = solution(geometry, tables, floor, equations.first_guess(geometry, ridge.real))
        return np.log(np.concatenate([1 / values[:, :nz] - floor, values[:, nz:]], axis=1)), values

    values = logarithms(ridge)[1]
    slopes = equations.response_at(geometry, tables, values).slopes()
    exact = logarithms(ridge * (1 + 1j * STEP))[0].imag / STEP
    assert np.allclose(slopes, exact, rtol=1e-7, atol=1e-9)
    assert not np.allclose(slopes, exact * (1 + 1e-5), rtol=1e-7, atol=1e-9)


def test_the_reaction_of_cells_is_a_derivative():
    problem, sizes, rest, _, _ = CASES["plain"]
    cells = dataclasses.replace(COARSE, nodes=60, cells=True)
    geometry = geometry_of(problem, sizes, cells, rest, 0, 1)
    below = 1 + np.random.default_rng(1).uniform(0.2, 3.0, (1, len(geometry.z)))
    # The third cell is flat to rounding, so that the series is asked, too.
    below[0, 2:5] = below[0, 3]
    moved = equations._resolved(geometry, below + 1j * STEP)[0]
    rho, reaction = equations._resolved(geometry, below)
    assert wrong_entries(-(moved.imag / STEP) / rho, reaction) == 0
    assert wrong_entries(-(moved.imag / STEP) / rho, 1 / below) > 0


@pytest.mark.parametrize("name", CASES)
def test_slope_and_test_error_are_derivatives_of_q_along_ridges(name):
    geometry, tables, floor, values = solved(name)
    answer = equations.answer_at(geometry, tables, values)
    npn, rho = geometry.samples_per_neuron, values[:, : len(geometry.z)]

    def along(change):
        """dq when the ridge of every sample grows by a function of z."""
        moved = solution(geometry, tables, floor + 1j * STEP * npn * change, values)
        return form(geometry, tables, moved)[0].imag / STEP

    assert answer.slope[0] == pytest.approx(along(np.ones_like(rho)), rel=1e-9)
    assert answer.test_error[0] == pytest.approx(-along(1 / (npn * rho) ** 2), rel=1e-9)
    # A ridge that is the same for all samples, as in generalised cross-validation, would be another number.
    mean = float(geometry.weights @ rho[0])
    assert answer.test_error[0] != pytest.approx(-along(np.ones_like(rho)) / (npn * mean) ** 2, rel=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_scatter_is_the_derivative_of_q_along_a_penalty_on_a_degree(name, monkeypatch):
    geometry, tables, floor, values = solved(name)
    plain, degrees = equations.state_at, np.array(tables.level_degrees)
    h, mu, uw = tables.h, tables.level_weights, geometry.u_weights
    alpha = at_levels(tables)

    def with_penalty(degree):
        """Both equations with P + epsilon in the levels of one degree; beyond them all, with epsilon in delta."""

        def state_at(geometry, tables, rho, y):
            state = plain(geometry, tables, rho, y)
            if degree > geometry.highest:
                beyond = 1j * STEP / geometry.neurons_per_dim * tables.spread @ geometry.weights
                return dataclasses.replace(state, delta=state.delta + beyond)
            more = 1j * STEP * (degrees == degree)[None, :, None, None] * np.eye(h.shape[1])
            p = state.p[:, None] + more
            b = np.einsum("blui,bu,bluj->blij", alpha, uw * y, alpha)
            s = np.linalg.inv(np.eye(h.shape[1]) + b @ p)
            bulk = state.bulk + np.einsum("bl,blij,biz,bjz->bz", mu, s @ b - state.t, h, h)
            forms = np.einsum("bl,blui,blij,bluj->bu", mu, alpha, p @ s - state.x, alpha)
            return dataclasses.replace(state, bulk=bulk, delta=state.delta + forms / geometry.neurons_per_dim)

        return state_at

    found = []
    for degree in range(1, geometry.highest + 2):
        with monkeypatch.context() as patched:
            patched.setattr(equations, "state_at", with_penalty(degree))
            moved = solution(geometry, tables, floor + 0j, values)
        found.append(geometry.neurons_per_dim * form(geometry, tables, moved)[0].imag / STEP)
    assert equations.answer_at(geometry, tables, values).scatter[0] == pytest.approx(found, rel=1e-8)
    assert min(found) > 0
