"""Every degree, any covariance, several directions: the unified theory beyond proportional sizes."""

import math

import numpy as np
import pytest

from firststep import Problem, Sizes, predict, simulate
from firststep.theory import coefficients, own_component
from firststep.theory.coefficients import Resolution, geometry_of, tables_of
from firststep.theory.equations import (
    answer_at,
    first_guess,
    jacobian_at,
    residual_of,
    solve_points,
    state_at,
)
from firststep.theory.sectors import directions, highest_degree, product_weights, symmetric_power, thinned

MIXED = "h1 + h2/sqrt(2)"

# Test errors of an independent simulator, without a step, rows on the sphere, noise 0.3: mean, standard error.
NO_STEP = [
    ("relu", MIXED, (800, 40, 600), 0.01, 1.098, 0.019),
    ("relu", MIXED, (2000, 40, 1500), 0.001, 0.573, 0.006),
    ("softplus", MIXED, (800, 100, 600), 0.01, 1.455, 0.015),
    ("gelu", "relu", (1200, 30, 1000), 0.003, 0.1886, 0.0011),
    ("tanh", "h1 + h3/sqrt(6)", (1500, 30, 1000), 0.003, 1.709, 0.035),
]


def distance(found, simulated, stderr, bar):
    """Difference in units of what the theory's bar and three standard errors allow."""
    return abs(found - simulated) / (bar + 3 * stderr)


@pytest.mark.parametrize("row", NO_STEP)
def test_few_dimensions_with_many_samples(row):
    activation, teacher, sizes, ridge, simulated, stderr = row
    problem = Problem(activation, teacher, noise_std=0.3, rows="sphere")
    found = predict(problem, Sizes(*sizes), 0.0, ridge)
    test, bar = found.test_error[0, 0], found.test_error_bar[0, 0]
    assert distance(test, simulated, stderr, bar) < 1
    assert bar < 0.1 * test
    # The theory of proportional sizes is wrong by more than its bar, and would be caught.
    old = predict(problem, Sizes(*sizes), 0.0, ridge, degrees=1).test_error[0, 0]
    assert abs(old - simulated) > 5 * stderr


# Inputs with the eigenvalues 0.3 and 1.7, nine tenths of the teacher in the upper half; n, d, N = 1000, 500, 750.
COVARIANCE = [
    ("tanh", "h1 + h2/2", [0.95549, 0.86595, 0.85933, 0.87123], [0.00579, 0.00545, 0.00529, 0.00497]),
    ("relu", MIXED, [1.81406, 1.51586, 1.33505, 1.24205], [0.01117, 0.00962, 0.00813, 0.00967]),
]


@pytest.mark.parametrize("row", COVARIANCE)
def test_inputs_with_a_covariance(row):
    activation, teacher, simulated, stderr = row
    words = {"inputs": "levels(0.3, 1.7)", "alignment": "weights(0.1, 0.9)"}
    problem = Problem(activation, teacher, noise_std=0.3, rows="sphere", **words)
    sizes = Sizes(1000, 500, 750)
    steps = [0.0, *sizes.step_size([0.2, 0.35, 0.5])]
    found = predict(problem, sizes, steps, 0.1).test_error[:, 0]
    assert np.all(np.abs(found - simulated) < 2.5 * np.array(stderr))
    isotropic = predict(
        problem.replaced(inputs="isotropic", alignment="typical"), sizes, steps, 0.1
    ).test_error[:, 0]
    assert np.any(np.abs(isotropic - simulated) > 5 * np.array(stderr))


def test_a_power_law_with_every_degree():
    # Simulated with 8 replicas (seed 0), 1/i over twenty levels, without a step and at alpha 0.4.
    levels = ", ".join(f"{1 / i:.6f}" for i in range(1, 21))
    problem = Problem("relu", MIXED, noise_std=0.3, rows="sphere", inputs=f"levels({levels})")
    sizes = Sizes(1500, 100, 1000)
    found = predict(problem, sizes, [0.0, sizes.step_size(0.4)], 0.01).test_error[:, 0]
    simulated, stderr = np.array([1.7040, 1.0872]), np.array([0.0323, 0.0334])
    assert np.all(np.abs(found - simulated) < 2 * stderr)
    first = predict(problem, sizes, 0.0, 0.01, degrees=1).test_error[0, 0]
    assert first - simulated[0] > 8 * stderr[0]


@pytest.mark.filterwarnings("ignore::firststep.setting.OutsideTheoryWarning")
def test_several_directions():
    # Independent simulator: tanh, t1 + 0.7 t1 t2, n, d, N = 1000, 500, 750, ridge 0.05, noise 0.3.
    problem = Problem("tanh", "t1 + 0.7*t1*t2", noise_std=0.3, rows="sphere")
    sizes = Sizes(1000, 500, 750)
    found = predict(problem, sizes, [0.0, *sizes.step_size([0.2, 0.35, 0.5])], 0.05).test_error[:, 0]
    simulated = np.array([1.10694, 0.99310, 0.98761, 1.01541])
    stderr = np.array([0.00684, 0.00547, 0.00542, 0.00556])
    assert np.all(np.abs(found - simulated) < 3 * stderr)


def test_an_isotropic_covariance_in_words_is_the_default():
    problem, sizes = Problem("relu", MIXED, noise_std=0.3), Sizes(300, 100, 200)
    plain = predict(problem, sizes, [0.0, 3.0], 0.1).test_error
    for words in ("levels(1)", "power(0)", "values(2, 2, 2)"):
        assert np.allclose(
            predict(problem.replaced(inputs=words), sizes, [0.0, 3.0], 0.1).test_error, plain, rtol=1e-10
        )


def test_many_dimensions_need_one_degree():
    problem = Problem("relu", MIXED, noise_std=0.3, rows="sphere")
    for dim, least in ((100, 1e-3), (10**7, 0.0)):
        sizes = Sizes(2 * dim, dim, 2 * dim)
        one, two = (predict(problem, sizes, 0.0, 0.1, degrees=p).test_error[0, 0] for p in (1, 2))
        assert least <= abs(one / two - 1) < (1.0 if least else 1e-6)


@pytest.mark.filterwarnings("ignore::firststep.setting.OutsideTheoryWarning")
def test_identity_activation_is_linear_ridge_regression_at_any_ratio():
    problem = Problem("identity", "h1", noise_std=0.5, rows="sphere")
    for samples in (60, 400, 5000):
        sizes = Sizes(samples, 40, 10**7)
        # Features of unit variance are sqrt(N/d) times as long as the inputs.
        found = predict(problem, sizes, 0.0, [0.1, 0.1 * sizes.width / sizes.dim], baselines=True)
        assert found.test_error[0, 1] == pytest.approx(found.linear_ridge_test_error[0, 0], rel=0.02)


def test_numbers_of_directions():
    assert [directions(3, p) for p in range(1, 5)] == [3, 5, 7, 9]
    assert highest_degree(Sizes(1000, 10**6, 1000)) == 1
    assert product_weights(np.array([0.3, 0.7]), 3).sum() == pytest.approx(1)
    rng = np.random.default_rng(0)
    nodes, weights = rng.standard_normal(30), rng.dirichlet(np.ones(30))
    few, shares = thinned(nodes, weights, 4)
    assert [shares @ few**k for k in range(8)] == pytest.approx([weights @ nodes**k for k in range(8)])


def test_symmetric_powers_are_covariances_of_products():
    rng = np.random.default_rng(1)
    root = rng.standard_normal((2, 2))
    c = root @ root.T
    x = rng.standard_normal((400_000, 2)) @ root.T
    # Products of degree two with their mean taken out.
    terms = np.stack([x[:, 0] ** 2 / math.sqrt(2), x[:, 0] * x[:, 1], x[:, 1] ** 2 / math.sqrt(2)])
    assert np.allclose(np.cov(terms), symmetric_power(c, 2), atol=0.05 * np.abs(c).max() ** 2)


CASES = {
    "degrees": (Problem("relu", MIXED, noise_std=0.3, rows="sphere"), Sizes(300, 20, 200), 3),
    "output": (
        Problem("softplus", "h1 + h3/6", readout="rademacher", initial_output="order_one"),
        Sizes(90, 40, 60),
        2,
    ),
    "covariance": (Problem("gelu", "relu", inputs="levels(0.5, 1.5)"), Sizes(90, 40, 60), 2),
    "directions": (Problem("relu", "t1 + t1*t2"), Sizes(90, 40, 60), 2),
}


def at_solution(name):
    problem, sizes, highest = CASES[name]
    geometry = geometry_of(problem, sizes, Resolution(9, 0.9, 3), "structured", 0, highest)
    tables = tables_of(geometry, np.array([4.0]), "structured")
    start = np.full((1, len(geometry.z) + len(geometry.u)), 1.5)
    ridge = np.array([0.05])
    return geometry, tables, solve_points(geometry, tables, ridge, start, 1e-12, 30).value, ridge


@pytest.mark.parametrize("name", CASES)
def test_every_entry_of_the_jacobian_is_the_complex_step(name):
    geometry, tables, values, ridge = at_solution(name)
    nz, step = len(geometry.z), 1e-20
    exact = jacobian_at(geometry, tables, state_at(geometry, tables, values[:, :nz], 1 / values[:, nz:]))[0]
    for column in range(values.shape[1]):
        moved = values.astype(complex)
        moved[0, column] *= 1 + 1j * step
        state = state_at(geometry, tables, moved[:, :nz], 1 / moved[:, nz:])
        floor = ridge * geometry.samples_per_neuron
        samples = state.rho * (floor + state.bulk)
        neurons = -(1 + state.delta) * state.y
        found = np.concatenate([samples, neurons], axis=1)[0].imag / step
        assert np.allclose(found, exact[:, column], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", CASES)
def test_the_slope_is_the_derivative_of_q(name):
    geometry, tables, values, ridge = at_solution(name)
    step = 1e-20
    tilted = ridge * (1 + 1j * step)
    moved = solve_points(geometry, tables, tilted, values.astype(complex), 1e-12, 0).value
    answer = answer_at(geometry, tables, values)
    q = answer_at(geometry, tables, moved).q
    assert residual_of(geometry, answer.state, ridge).max() < 1e-10
    assert q.imag[0] / (ridge[0] * step) == pytest.approx(answer.slope[0], rel=1e-8)


def test_a_bar_too_wide_is_said_in_words():
    problem = Problem("relu", MIXED, noise_std=0.3, rows="sphere")
    found = predict(problem, Sizes(40, 8, 30), 1.0, 0.1)
    assert any("error bar" in note for note in found.notes)
    assert found.test_error_bar[0, 0] > 0.1 * found.test_error[0, 0]


def test_only_the_theory_of_proportional_sizes_says_where_it_ends():
    problem = Problem("relu", MIXED, noise_std=0.3, rows="sphere")
    for theory in ("random_features", "staircase"):
        for sizes, told in ((Sizes(2000, 40, 1500), theory == "staircase"), (Sizes(1000, 500, 750), False)):
            found = predict(problem, sizes, 1.0, 0.1, theory=theory)
            assert any("quadratic part" in note for note in found.notes) is told


NUMBERS = ("train_error", "test_error", "train_mse", "readout_norm_squared", "degrees_of_freedom")


@pytest.mark.parametrize("rows", ["gaussian", "sphere"])
@pytest.mark.parametrize("sizes", [(1200, 30, 1000), (3000, 60, 500), (700, 300, 900)])
def test_random_features_are_the_unified_theory_without_a_step(rows, sizes, monkeypatch):
    # Two programs: one solves for functions of z and U, the other for a number of each degree. Of z the first keeps
    # eight polynomials, which leaves 1e-6 at d = 30; here it gets twelve. A neuron's own component is left unknown.
    monkeypatch.setattr(coefficients, "POLYNOMIAL_DEGREES", (12, 48))
    monkeypatch.setattr(own_component, "OPEN_SHARE", np.inf)
    for activation, teacher in (("relu", MIXED), ("tanh", "h1 + h3/sqrt(6)"), ("softplus", "sin(2*x)")):
        problem = Problem(activation, teacher, 0.3, rows, initial_output="order_one")
        asked = problem, Sizes(*sizes), 0.0, [0.001, 0.1]
        unified, plain = (predict(*asked, theory=theory) for theory in ("leading_order", "random_features"))
        assert plain.details["degrees"] == unified.details["degrees"] > 1
        for name in NUMBERS:
            assert plain[name] == pytest.approx(unified[name], rel=1e-7)
        assert plain.test_error_bar == pytest.approx(unified.test_error_bar, rel=1e-5)
        one = predict(*asked, theory="random_features", degrees=1)
        assert np.abs(one.test_error / plain.test_error - 1).max() > 1e-4


@pytest.mark.parametrize("rows", ["gaussian", "sphere"])
def test_random_features_with_few_dimensions_are_the_limit_of_small_steps(rows):
    problem = Problem("relu", MIXED, 0.3, rows)
    sizes = Sizes(1200, 30, 1000)
    plain = predict(problem, sizes, 0.0, [0.001, 0.1], theory="random_features")
    for step, rel in ((0.0, 1e-9), (1e-3, 1e-3)):
        unified = predict(problem, sizes, step, [0.001, 0.1], theory="leading_order")
        for name in ("train_error", "test_error"):
            assert plain[name] == pytest.approx(unified[name], rel=rel)


@pytest.mark.parametrize(("samples", "exponent"), [(1000, 0.191), (400, 0.149)])
def test_small_and_large_spikes_meet_without_a_jump(samples, exponent):
    # Where the spike passes SMALL_SPIKE, its series gives way to quadrature.
    problem, sizes = Problem("relu", MIXED, 0.3, "sphere"), Sizes(samples, samples // 2, 3 * samples // 4)
    exponents = np.linspace(exponent - 0.01, exponent + 0.01, 9)
    spikes = coefficients.spike_strength(problem, sizes, samples**exponents, "structured")
    assert spikes[0] < coefficients.SMALL_SPIKE < spikes[-1]
    error = predict(problem, sizes, step_exponents=exponents, ridges=0.1).test_error[:, 0]
    assert np.abs(np.diff(error, 2)).max() < 1e-4 * error[0]


@pytest.mark.parametrize("output", ["vanishing", "order_one"])
def test_small_spikes_of_long_rows_meet_without_a_jump(output):
    # A small c_1 and a large c_2: rows get long before the spike passes SMALL_SPIKE, and a series in s^2 - 1 diverges.
    problem = Problem("abs(0.63*x + 0.17)", "gelu", 0.194, initial_output=output)
    sizes, exponents = Sizes(1087, 490, 2185), np.linspace(0.48, 0.6, 13)
    spikes = coefficients.spike_strength(problem, sizes, 1087**exponents, "structured")
    assert spikes[0] < coefficients.SMALL_SPIKE < spikes[-1]
    error = predict(problem, sizes, step_exponents=exponents, ridges=0.0081).test_error[:, 0]
    assert np.abs(np.diff(error, 2)).max() < 3e-3 * error[0]
    # Simulated at 0.4936: 0.5121(11) and, of other draws, 0.5099(11); at twice the size 0.4842(12).
    if output == "order_one":
        at = [predict(problem, Sizes(1087 * k, 490 * k, 2185 * k), 31.54 * k**0.5, 0.00813) for k in (1, 2)]
        assert at[0].test_error[0, 0] == pytest.approx(0.511, rel=0.005)
        assert at[1].test_error[0, 0] == pytest.approx(0.4842, rel=0.0075)


def test_random_features_tend_to_one_degree():
    problem, far = Problem("relu", MIXED, 0.3), []
    for dim in (10**3, 10**5, 10**7):
        asked = problem, Sizes(2 * dim, dim, 3 * dim), 0.0, 0.01
        one, three = (predict(*asked, theory="random_features", degrees=p) for p in (1, 3))
        far.append(max(float(np.abs(three[name] / one[name] - 1).max()) for name in NUMBERS))
    assert far[0] > 1e-3
    assert far[1] == pytest.approx(far[0] / 100, rel=0.1)
    assert far[2] == pytest.approx(far[1] / 100, rel=0.1)


def test_a_jump_of_the_teacher_does_no_harm_to_random_features():
    # With many step samples z is the teacher's own direction, in which the labels jump.
    problem = Problem("gelu", "sign", noise_std=0.3)
    near, exact = (
        predict(problem, Sizes(2000, 40, 1000, n0), 0.0, 0.01, theory="random_features").test_error[0, 0]
        for n0 in (10**7, 10**12)
    )
    assert near == pytest.approx(exact, rel=1e-5)


@pytest.mark.parametrize("degrees", [0, 7, 1.5, True])
def test_degrees_are_checked(degrees):
    for theory in ("unified", "random_features"):
        with pytest.raises(ValueError, match="degrees must be a whole number from 1 to 6"):
            predict(Problem("relu", "h1"), Sizes(100, 50, 60), 0.0, theory=theory, degrees=degrees)


@pytest.mark.parametrize("name", ["degrees", "output"])
def test_without_a_step_the_parts_of_the_fit_make_the_test_error(name):
    problem, sizes, highest = CASES[name]
    geometry = geometry_of(problem, sizes, Resolution(24, 0.5, 3), "structured", 0, highest)
    tables, ridge = tables_of(geometry, np.zeros(1), "structured"), np.array([0.05])
    if problem.output_law.order_one:
        tables = tables_of(geometry, np.array([1e-3]), "structured")
    found = answer_at(
        geometry, tables, solve_points(geometry, tables, ridge, first_guess(geometry, ridge), 1e-12, 9).value
    )
    learned = found.learned[0]
    left = tables.label_square[0] + ((learned - 2 * tables.labels[0]) * learned).sum(axis=0)
    assert np.all(found.scatter >= 0)
    assert found.scatter.shape == (1, highest + 1)
    within = 1e-9 if name == "degrees" else 1e-2
    assert geometry.weights @ left + found.scatter.sum() == pytest.approx(found.test_error[0], rel=within)


def test_what_each_degree_has_learned_is_what_drawn_networks_have():
    # relu's parts of degree one and two are a vector and a matrix made of the weights.
    problem, sizes, ridge = Problem("relu", MIXED, noise_std=0.3, rows="sphere"), Sizes(400, 40, 300), 0.02
    n, d, width = 400, 40, 300
    c = problem.activation.hermite(3)
    rng, drawn = np.random.default_rng(2), []
    for _ in range(24):
        w = rng.standard_normal((width, d))
        w /= np.linalg.norm(w, axis=1, keepdims=True)
        x = rng.standard_normal((n, d))
        y = problem.teacher(x[:, 0]) + 0.3 * rng.standard_normal(n)
        features = problem.activation(x @ w.T)
        a = np.linalg.solve(features.T @ features + ridge * n * np.eye(width), features.T @ y)
        vector, matrix = c[1] * a @ w, c[2] * (a[:, None] * w).T @ w
        spread = matrix - np.trace(matrix) / d * np.eye(d)
        drawn.append(
            [
                vector[0],
                2 * matrix[0, 0] / (2 * problem.teacher.hermite(3)[2]),
                vector[1:] @ vector[1:],
                2 * ((spread**2).sum() - spread[0, 0] ** 2),
            ]
        )
    mean, stderr = np.mean(drawn, axis=0), np.std(drawn, axis=0, ddof=1) / math.sqrt(len(drawn))
    found = predict(problem, sizes, 0.0, ridge)
    names = ("learned_t1", "learned_h2t1", "residual_spread_degree_1", "residual_spread_degree_2")
    told = np.array([found[name][0, 0] for name in names])
    assert np.all(np.abs(told - mean) < 3 * stderr + 0.04 * mean)
    assert np.all(np.abs(1.3 * told - mean) > 3 * stderr + 0.04 * mean)
    simulated = simulate(problem, Sizes(60, 20, 40), 0.0, 0.1, extras=("learned",), replicas=2, workers=1)
    assert {"learned_t1", "learned_h2t1"} == {k for k in simulated.values if k.startswith("learned")}
