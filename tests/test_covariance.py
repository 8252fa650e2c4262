"""Inputs with a covariance: an output of order one, loud directions, cosines, baselines, published numbers."""

import numpy as np
import pytest

from firststep import Problem, Sizes, predict, simulate
from firststep.setting import covariance
from firststep.setting.inputs import Alignment, Inputs
from firststep.simulate import Draw, run_replica
from firststep.theory.bars import BAR_TURNED, spectrum_variance, turned_variance
from firststep.theory.covariant_step import general_step, kept_positive, profiles_of, seen_at_least
from firststep.theory.directions import grouped
from firststep.theory.limits.bounds import best_linear_error, best_linear_ridge, linear_ridge
from firststep.theory.limits.random_features import solve
from firststep.theory.limits.weights import mean_cosine_squared
from firststep.theory.step_law import bulk_law, unlearned_along, unlearned_length

SIZES = Sizes(1000, 500, 750)
TWO = {"inputs": "levels(0.3, 1.7)", "alignment": "weights(0.1, 0.9)"}

# Drawn with 40 networks each (seed 3), n, d, N = 1000, 500, 750, ridge 0.1, noise 0.3, rows on the sphere, alpha 0.1,
# 0.25, 0.4 and 0.5.
ORDER_ONE = [
    ("h1 + h2/2", TWO, [1.0147, 0.8795, 0.8431, 0.8270], [0.0039, 0.0042, 0.0046, 0.0051]),
    ("t1 + 0.7*t1*t2", {}, [1.1531, 1.0604, 1.0599, 1.0791], [0.0044, 0.0042, 0.0046, 0.0051]),
]


@pytest.mark.filterwarnings("ignore::firststep.setting.OutsideTheoryWarning")
@pytest.mark.parametrize("row", ORDER_ONE)
def test_an_output_of_order_one_with_a_covariance_and_with_several_directions(row):
    teacher, words, simulated, stderr = row
    problem = Problem("relu", teacher, 0.3, rows="sphere", initial_output="order_one", **words)
    found = predict(problem, SIZES, step_exponents=[0.1, 0.25, 0.4, 0.5], ridges=0.1).test_error[:, 0]
    assert np.all(np.abs(found - simulated) < 2.5 * np.array(stderr))
    vanishing = problem.replaced(initial_output="vanishing")
    other = predict(vanishing, SIZES, step_exponents=[0.5], ridges=0.1).test_error[0, 0]
    assert abs(other - simulated[-1]) > 3 * stderr[-1]


# 24 drawn networks each of problems that no theory was made for: activation, teacher, rows, readout, inputs, alignment,
# sizes, alpha, ridge; test error and its standard error. The theory was -10.9, 41, 2.0, -2.8, -0.9 and 2.3 % off.
POWER_LAWS = [
    ("relu", "tanh(1.5*x)", "gaussian", "rademacher", 1.07, "typical", (676, 209, 491), 0.37, 0.0216, 0.4742, 0.0071),
    ("selu", "tanh(1.5*x)", "gaussian", "constant", 0.97, "eigenvalues", (583, 289, 283), 0.21, 0.3111, 0.357, 0.0068),
    ("sigmoid(2*x + 0.3)", "relu", "sphere", "gaussian", 1.06, "typical", (598, 197, 258), 0.13, 0.037, 0.3235, 0.0016),
    (
        "gelu", "sigmoid(2*x - 0.5)", "sphere", "gaussian", 1.03, "eigenvalues", (816, 357, 496), 0.43, 0.0578,
        0.1529, 0.0009,
    ),
    ("silu", "relu", "sphere", "gaussian", 0.74, "eigenvalues", (719, 130, 341), 0.23, 0.0235, 0.2526, 0.0015),
    (
        "tanh(x + 0.4)", "sin(x)*softplus(x)", "gaussian", "constant", 0.77, "eigenvalues", (653, 128, 457), 0.2,
        0.0597, 0.2774, 0.0013,
    ),
]  # fmt: skip


@pytest.mark.parametrize("row", POWER_LAWS, ids=lambda row: row[0])
def test_an_output_of_order_one_under_power_laws(row):
    activation, teacher, rows, readout, exponent, alignment, sizes, alpha, ridge, drawn, error = row
    problem = Problem(
        activation, teacher, 0.3, rows, readout, "order_one", inputs=f"power({exponent})", alignment=alignment
    )
    found = predict(problem, Sizes(*sizes), step_exponents=alpha, ridges=ridge)
    assert found.test_error[0, 0] == pytest.approx(drawn, abs=0.015 * drawn + 2 * error)
    assert abs(found.test_error[0, 0] - drawn) < found.test_error_bar[0, 0] + 2 * error


def test_a_row_of_an_output_of_order_one_loses_most_along_loud_directions():
    # Without M and noise a row becomes (1 - epsilon S) of itself, in special directions as in typical ones.
    problem = Problem(
        "h1 + 0.3*h3", "h1", initial_output="order_one", inputs="power(0.8)", readout="rademacher"
    )
    sizes, u, steps = Sizes(500, 250, 300), np.array([-1.0, 1.0]), np.array([1.5])
    law = general_step(problem, sizes, steps, "structured", u, bulk_law(problem, sizes, "structured", 5))
    moments = profiles_of(problem, sizes)[1]
    values = grouped(problem.covariance(sizes.dim))[0]
    lost = 1.5 * unlearned_along(problem, sizes, "structured", u, values)[:, 1]
    assert lost[0] > 0.1
    vectors = law.special_vectors[0]
    m, kept = (np.tile(row, len(vectors) // len(values)) for row in (values, 1 - lost))
    wanted = (vectors.T * (m * kept**2)) @ vectors
    # What is left is the remainder's: no more than its variance along the loudest direction times that of labels.
    scale = law.noise[0, 1] * (vectors.T * m**2) @ vectors * moments.second[-1, -1] / moments.square**2
    left = law.special_covariance[0, 1] * (1 + law.excess[0, 1]) - wanted
    assert np.all(np.linalg.eigvalsh(left) > -1e-9)
    assert np.all(np.linalg.eigvalsh(scale - left) > -1e-9)


@pytest.mark.parametrize("activation", ["gelu", "relu", "h1 + 0.4*h2 + 0.1*h4"])
def test_what_the_others_output_takes_off_a_row(activation):
    # A constant readout's output E sigma(w.x) of many rows in minus the gradient, E[F(|x|^2/d) sigma'(w.x) x], drawn.
    rng, dim, blocks = np.random.default_rng(3), 40, 12
    words = {"readout": "constant", "initial_output": "order_one", "inputs": "power(0.6)"}
    problem = Problem(activation, "h1", **words)
    sizes, m, u = Sizes(100, dim, 10**7), problem.covariance(dim).eigenvalues(), np.ones(1)
    law, c = problem.activation, problem.activation.hermite(5)
    rows, pulled = rng.standard_normal((400, dim)) * np.sqrt(m / dim), np.zeros((400, dim))
    for _ in range(blocks):
        inputs = rng.standard_normal((20_000, dim))
        length = np.sqrt(inputs**2 @ m / dim)
        output = law.gaussian_averages(length, np.zeros_like(length))[0]
        pulled += (law.derivative(inputs @ rows.T).T * output) @ inputs / (20_000 * blocks)
    drawn = [m[at] * np.polyfit(rows[:, at], pulled[:, at], 1)[0] for at in range(2)]
    found = unlearned_along(problem, sizes, "structured", u, m)[:2, 0]
    assert np.allclose(drawn, found, rtol=0.3)
    assert drawn[0] == pytest.approx(found[0], rel=0.08)
    # To first order in m/d it is a quarter more, or less.
    first = m[:2] * (4 * c[2] ** 2 * m[:2] + 24 * c[2] * c[4] * (m**2).mean()) / dim
    assert np.all(np.abs(found / drawn - 1) < 0.6 * np.abs(first / drawn - 1))


def test_what_the_others_output_takes_off_a_row_of_isotropic_inputs():
    words = {"readout": "constant", "initial_output": "order_one", "inputs": "levels(1, 1.000001)"}
    problem, sizes, u = Problem("gelu", "h1", **words), Sizes(100, 4000, 10**7), np.ones(1)
    known = unlearned_length(problem.replaced(inputs="isotropic"), sizes, "structured", u)
    assert unlearned_along(problem, sizes, "structured", u, np.ones(1))[0] == pytest.approx(known, rel=2e-3)


def test_what_m_takes_leaves_the_rows_something():
    vectors = np.linalg.qr(np.random.default_rng(0).standard_normal((6, 2)))[0][None]
    stretch = np.array([20.0, 5.0, 1.0, 0.5, 0.2, 0.1])[None, :, None] * np.ones(3)
    least = np.linalg.inv(seen_at_least(stretch, vectors))
    matrix = np.array([[-1.0, 0.4], [0.4, 0.5]])
    extra = np.array([0.01, 1.0, 30.0])[None, :, None, None] * matrix
    found = kept_positive(stretch, vectors, extra)
    assert np.allclose(found[:, 0], extra[:, 0], rtol=1e-14)
    root = np.linalg.inv(np.linalg.cholesky(least))
    left = np.linalg.eigvalsh(root @ (least + found) @ root.swapaxes(2, 3))
    assert np.all(left > 0.1 - 1e-9)
    assert np.allclose(left[0, 2].min(), 0.1)


def test_a_longer_row_is_pulled_further_with_an_output_of_order_one_too():
    # A small step, after which most of what the neurons share is W0^T a still.
    problem = Problem("h1 - 0.2*h3", "h1 + h2/2", 0.3, rows="gaussian", initial_output="order_one")
    near = problem.replaced(inputs="levels(0.999999, 1.000001)")
    sizes = Sizes(500, 250, 375)
    found, plain = (
        predict(p, sizes, step_exponents=0.1, ridges=0.1, theory="leading_order").test_error
        for p in (near, problem)
    )
    np.testing.assert_allclose(found, plain, rtol=1e-5)


def test_a_covariance_that_tends_to_isotropic_tends_to_the_default():
    # Without a quadratic part of the activation M plays no role, and both laws of the step are the same.
    problem = Problem("tanh", "h1 + h2/2", 0.3, rows="sphere", initial_output="order_one")
    near = problem.replaced(inputs="levels(0.999999, 1.000001)")
    sizes = Sizes(500, 250, 375)
    # Under a covariance alone rows are known along the step, which is of relative order 1/d.
    for theory, distance in (("leading_order", 1e-4), ("unified", 3e-3)):
        found, plain = (
            predict(p, sizes, step_exponents=[0.1, 0.4], ridges=0.1, theory=theory).test_error
            for p in (near, problem)
        )
        np.testing.assert_allclose(found, plain, rtol=distance)


# n, ridge and theoretical test error of random features without activation on Gaussian inputs, saved in the repository
# dkarkada/more-is-better, commit 838c664: x in R^10000, y = sum_i v_i x_i + noise, v_i^2 = i^-1.5, noise variance 0.5;
# 256 features F diag(i^-0.75) x, F_ij ~ N(0, 1/256); the kernel K + ridge.
PUBLISHED = [
    (10, 0.001, 1.8619),
    (10, 0.01, 1.85763),
    (10, 0.1, 1.82462),
    (10, 1, 1.78319),
    (10, 10, 2.2097),
    (10, 100, 2.88765),
    (12, 0.001, 1.79271),
    (12, 0.01, 1.78775),
    (12, 0.1, 1.75007),
    (12, 1, 1.70288),
    (12, 10, 2.12482),
    (12, 100, 2.85214),
    (15, 0.001, 1.71549),
    (15, 0.01, 1.70948),
    (15, 0.1, 1.66492),
    (15, 1, 1.60979),
    (15, 10, 2.0213),
    (15, 100, 2.80174),
    (25, 0.001, 1.57515),
    (25, 0.01, 1.56528),
    (25, 0.1, 1.49766),
    (25, 1, 1.42013),
    (25, 10, 1.79463),
    (25, 100, 2.65491),
    (100, 0.001, 1.64002),
    (100, 0.01, 1.55063),
    (100, 0.1, 1.23464),
    (100, 1, 1.06146),
    (100, 10, 1.31276),
    (100, 100, 2.07577),
    (1000, 0.001, 0.944762),
    (1000, 0.01, 0.935487),
    (1000, 0.1, 0.877145),
    (1000, 1, 0.797928),
    (1000, 10, 0.891566),
    (1000, 100, 1.25414),
    (10000, 0.001, 0.722201),
    (10000, 0.01, 0.722158),
    (10000, 0.1, 0.721743),
    (10000, 1, 0.719644),
    (10000, 10, 0.737641),
    (10000, 100, 0.873296),
]


def test_published_theory_of_random_features_with_a_power_law():
    dim, width = 10_000, 256
    total = float((np.arange(1, dim + 1) ** -1.5).sum())
    problem = Problem("identity", [0, total**0.5], 0.5**0.5, inputs="power(1.5)", alignment="eigenvalues")
    found = [
        solve(problem, Sizes(n, dim, width), 0.0, ridge * width / (total * n)).test_error[0, 0]
        for n, ridge, _ in PUBLISHED
    ]
    published = np.array([row[2] for row in PUBLISHED])
    np.testing.assert_allclose(found, published, rtol=1e-4)
    other = problem.replaced(alignment="typical")
    wrong = solve(other, Sizes(1000, dim, width), 0.0, 0.1).test_error[0, 0]
    right = solve(problem, Sizes(1000, dim, width), 0.0, 0.1).test_error[0, 0]
    assert abs(wrong / right - 1) > 0.1


@pytest.mark.parametrize(("activation", "degrees"), [("tanh", 1), ("tanh", 2), ("tanh", 3), ("relu", 1)])
@pytest.mark.parametrize("teacher", ["h1 + h2/2", "t1 + 0.7*t1*t2"])
@pytest.mark.filterwarnings("ignore::firststep.setting.OutsideTheoryWarning")
def test_random_features_are_the_unified_theory_without_a_step(activation, degrees, teacher):
    problem = Problem(activation, teacher, 0.3, rows="sphere", inputs="levels(0.3, 1.7)")
    both = [
        predict(problem, Sizes(200, 200, 150), 0.0, [0.01, 0.1], theory=theory, degrees=degrees)
        for theory in ("random_features", "unified")
    ]
    for name in ("train_error", "test_error", "train_mse", "degrees_of_freedom"):
        np.testing.assert_allclose(both[0].values[name], both[1].values[name], rtol=1e-6)


def test_products_of_eigenvalues_against_drawn_networks():
    # 40 networks, seed 1: 0.8495(54) and 0.7372(39). The mean of the products, not their law, gives 0.64 and 0.61.
    words = {"inputs": "power(1)", "alignment": "eigenvalues"}
    problem = Problem("relu", "h1 + h2/sqrt(2)", 0.3, rows="sphere", **words)
    found = solve(problem, Sizes(1500, 100, 1000), 0.0, [0.01, 0.1])
    off = np.abs(found.test_error[0] - [0.8495, 0.7372])
    assert np.all(off < found.values["test_error_bar"][0] + 2 * np.array([0.0054, 0.0039]))
    assert np.all(off < 0.04 * np.array([0.8495, 0.7372]))


def test_an_isotropic_covariance_given_in_numbers_is_the_default():
    sizes = Sizes(120, 60, 90)
    plain = Problem("relu", "h1 + h2/2", 0.3)
    given = plain.replaced(inputs=[2.0] * 60)
    drawn = [simulate(p, sizes, step_exponents=[0.0, 0.4], replicas=2, seed=5) for p in (plain, given)]
    for name, values in drawn[0].values.items():
        assert np.array_equal(values, drawn[1].values[name]), name
    for theory in ("unified", "random_features"):
        found = [predict(p, sizes, step_exponents=[0.0, 0.4], theory=theory) for p in (plain, given)]
        np.testing.assert_allclose(found[0].test_error, found[1].test_error, rtol=1e-10)


def test_the_order_of_the_eigenvectors_does_not_matter():
    sizes = Sizes(200, 100, 150)
    found = [
        predict(
            Problem("relu", "h1 + h2/2", 0.3, inputs=inputs, alignment=weights),
            sizes,
            0.0,
            theory="random_features",
        )
        for inputs, weights in (
            ("levels(0.3, 1.7)", "weights(0.1, 0.9)"),
            ("levels(1.7, 0.3)", "weights(0.9, 0.1)"),
        )
    ]
    np.testing.assert_allclose(found[0].test_error, found[1].test_error, rtol=1e-12)


# Means of 400 draws of X^T y, n0 = 1000, d = 500, teacher h1 + h2/2, noise 0.3, and their standard errors.
COSINES = [
    ("power(0.5)", "typical", "gradient", 0.31852, 0.00245),
    ("power(1)", "typical", "gradient", 0.04534, 0.00114),
    ("spiked(50, overlap=0)", "typical", "gradient", 0.29669, 0.00836),
    ("spiked(10, overlap=0)", "typical", "gradient", 0.51218, 0.00283),
    ("power(1)", "eigenvalues", "gradient", 0.32965, 0.00086),
    ("power(1)", "typical", "whitened", 0.55683, 0.00111),
]


@pytest.mark.parametrize("row", COSINES)
def test_the_mean_cosine_of_the_step(row):
    inputs, alignment, rule, simulated, stderr = row
    words = {"inputs": inputs, "alignment": alignment, "step_rule": rule}
    found = mean_cosine_squared(Problem("tanh", "h1 + h2/2", 0.3, **words), SIZES)
    assert abs(found - simulated) < 2 * stderr
    assert abs(1.2 * found - simulated) > 2 * stderr


# Means of 100 fits drawn apart from the package, n, d = 400, 200, noise 0.3, ridges 0.01 and 0.1: train, test.
RIDGES = [
    (
        "h1 + h2/2",
        "power(1)",
        "eigenvalues",
        [0.31395, 0.44630, 1.07867, 0.84347],
        [0.0050, 0.0062, 0.0095, 0.0046],
    ),
    (
        "t1 + 0.7*t1*t2",
        "levels(0.3, 1.7)",
        "typical",
        [0.32411, 0.49160, 1.07698, 0.94093],
        [0.0035, 0.0046, 0.0075, 0.0044],
    ),
]


@pytest.mark.parametrize("row", RIDGES)
def test_ridge_regression_on_inputs_with_a_covariance(row):
    teacher, inputs, alignment, simulated, stderr = row
    problem, sizes = Problem("tanh", teacher, 0.3, inputs=inputs, alignment=alignment), Sizes(400, 200, 100)
    found = linear_ridge(problem, sizes, [0.01, 0.1])
    values = np.concatenate([found.train_error, found.test_error])
    assert np.all(np.abs(values - simulated) < 2 * np.array(stderr))
    assert np.any(np.abs(1.05 * values - simulated) > 2 * np.array(stderr))
    best = best_linear_ridge(problem, sizes)
    others = linear_ridge(problem, sizes, best.ridge[0] * np.array([0.9, 1.1])).test_error
    assert best_linear_error(problem) < best.test_error[0] < others.min()


# A power law in very many dimensions.


@pytest.mark.parametrize("exponent", [0.5, 1.0, 2.0])
def test_a_long_spectrum_in_groups_has_the_moments_of_the_whole(
    exponent: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = covariance.covariance_of.__wrapped__
    words = Inputs.parse(f"power({exponent})"), Alignment.parse("eigenvalues"), 100_000
    whole = made(*words)
    assert len(whole.values) == 100_000
    monkeypatch.setattr(covariance, "MOST_SINGLE", 50_000)
    for law in (made(*words), whole.condensed()):
        assert len(law.values) < 11_000
        assert law.counts.sum() == 100_000
        for power in (-1.0, 0.5, 1.0, 2.0):
            assert law.moment(power) == pytest.approx(whole.moment(power), rel=1e-5)
            assert law.teacher_moment(power) == pytest.approx(whole.teacher_moment(power), rel=1e-5)


def test_a_power_law_in_1e11_dimensions_is_predicted() -> None:
    found = [
        predict(
            Problem("tanh", "h1 + h3/6", 0.1, inputs="power(0.5)"),
            Sizes(d // 30, d, d // 13),
            [0.0, 1.0],
            [1e-3],
        ).test_error
        for d in (10**9, 10**11)
    ]
    np.testing.assert_allclose(found[0], found[1], rtol=1e-3)


@pytest.mark.parametrize("rule", ["gradient", "whitened"])
def test_rotating_everything_changes_nothing(rule):
    # The same network, drawn in the eigenbasis by the package and in any other basis here.
    words = {"inputs": "power(0.7)", "alignment": "eigenvalues", "step_rule": rule}
    problem, sizes = Problem("relu", "h1 + h2/2", 0.3, **words), Sizes(60, 30, 40)
    draw, step, ridge = Draw(problem, sizes, 4), 3.0, 0.1
    eigenvalues = problem.covariance(30).eigenvalues()
    turn = np.linalg.qr(np.random.default_rng(0).standard_normal((30, 30)))[0]
    covariance = (turn * eigenvalues) @ turn.T
    (before, first), (inputs, labels) = (
        ((sample * np.sqrt(eigenvalues)) @ turn.T, y) for sample, y in (draw.step_sample(), draw.fit_sample())
    )
    weights, activation = draw.weights() @ turn.T, problem.activation
    output = problem.output_law.scale(sizes.width) * activation(before @ weights.T) @ draw.readout()
    slopes = activation.derivative(before @ weights.T) * (first - output)[:, None]
    gradient = draw.readout()[:, None] * (slopes.T @ before) / sizes.n_step_samples
    if rule == "whitened":
        gradient = np.linalg.solve(covariance, gradient.T).T
    features = activation(inputs @ (weights + step * gradient).T)
    gram = features.T @ features / len(labels) + ridge * np.eye(sizes.width)
    readout = np.linalg.solve(gram, features.T @ labels / len(labels))
    wanted = np.mean((features @ readout - labels) ** 2) + ridge * readout @ readout
    found = run_replica(problem, sizes, [step], [ridge], seed=4)["train_error"][0, 0]
    assert found == pytest.approx(wanted, rel=1e-9)


def test_bars_know_how_much_of_a_row_is_turned_and_the_dimension_beside_a_known_direction():
    sizes, steps = Sizes(1000, 500, 750), np.array([1.0, 10.0, 1e5])
    problem = Problem("relu", "h1 + h2/2", inputs="levels(0.3, 1.7)")
    found = np.sqrt(turned_variance(problem, sizes, steps)) / BAR_TURNED
    # Between M's part and the remainder, at the largest step, as their slopes' mean squares are.
    c, whole = problem.activation.hermite(3), problem.activation.derivative_second_moment
    assert found[2] == pytest.approx(4 * c[2] ** 2 / (whole - c[1] ** 2), rel=1e-3)
    assert found[0] < found[1] < found[2]
    assert np.all(turned_variance(problem.replaced(inputs="isotropic"), sizes, steps) == 0)
    assert np.all(turned_variance(problem.replaced(activation="tanh"), sizes, steps) == 0)
    spiked = problem.replaced(inputs="spiked(50)")
    share = float(spiked.covariance(500).values[0]) / 500
    beside = [spectrum_variance(p, sizes, s) ** 0.5 for p, s in ((spiked, share), (problem, 0.0))]
    assert beside[0] < beside[1] < spectrum_variance(spiked, sizes) ** 0.5
