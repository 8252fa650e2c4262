"""The staircase under a covariance and for teachers of several directions: large spikes, isotropic case, emergence."""

import math

import numpy as np
import pytest

from firststep import Problem, Sizes, predict
from firststep.gaussian import gauss_hermite, hermite_polynomials
from firststep.theory.limits import staircase
from firststep.theory.limits.linear_forms import CovariantTraces, Signal, any_traces, linear_parts
from firststep.theory.limits.random_features import traces_of
from firststep.theory.limits.staircase import (
    constant_variance,
    delta_1,
    lambda_2,
    solve,
    spread,
    teacher_along,
)

# One step sees one direction of a teacher of several: `predict` says so each time.
pytestmark = pytest.mark.filterwarnings("ignore::firststep.setting.OutsideTheoryWarning")

SIZES = Sizes(1000, 500, 800)
LOUD_TEACHER = {"inputs": "levels(0.3, 1.7)", "alignment": "weights(0.2, 0.8)"}
STILL_TEACHER = {"inputs": "levels(0.3, 1.7)", "alignment": "weights(0.8, 0.2)"}
ONE, SEVERAL = "h1 + h2/sqrt(2)", "t1 + 0.5*t2 + 0.7*t1*t2 + 0.3*h2(t1)"
ERRORS = ("train_error", "test_error")
BOTH = {"row_norms": True, "full_gradient": True}


def drawn_directions(problem, sizes, generator):
    """The teacher's directions (d, k) in whitened coordinates, with the covariance's weights on its levels."""
    law = problem.covariance(sizes.dim)
    blocks = [
        math.sqrt(weight)
        * np.linalg.qr(generator.standard_normal((int(count), problem.teacher.directions)))[0]
        for count, weight in zip(law.counts, law.weights, strict=True)
    ]
    return np.concatenate(blocks)


def drawn_labels(problem, inputs, thetas, generator):
    seen = inputs @ thetas
    signal = problem.teacher(seen if thetas.shape[1] > 1 else seen[:, 0])
    return signal + problem.noise_std * generator.standard_normal(len(inputs))


def drawn_start(problem, sizes, seed, equal=False):
    """Generator, whitened rows, readout, the teacher's directions and the step's S^g b~, of one draw.

    `equal` makes all rows as long as the inputs see them, which no rule of rows does under a covariance.
    """
    generator = np.random.default_rng(seed)
    d, width = sizes.dim, sizes.width
    eigenvalues = problem.covariance(d).eigenvalues()
    rows = generator.standard_normal((width, d)) / math.sqrt(d)
    if problem.rows == "sphere":
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    rows = rows * np.sqrt(eigenvalues)
    if equal:
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    readout = generator.standard_normal(width)
    thetas = drawn_directions(problem, sizes, generator)
    inputs = generator.standard_normal((sizes.n_step_samples, d))
    labels = drawn_labels(problem, inputs, thetas, generator)
    if problem.initial_output == "order_one":
        labels = labels - problem.activation(inputs @ rows.T) @ readout / math.sqrt(width)
    step = eigenvalues ** (1 if problem.rule.plain else 0) * (inputs.T @ labels) / len(inputs)
    return generator, rows, readout, thetas, step


def large_spikes(problem, sizes, count, ridge, seed, added=0.0, equal=False):
    """Both errors with 0 … count large spikes z^k in place of the step, (count + 1, 2), and the labels' scatter."""
    generator, rows, readout, thetas, step = drawn_start(problem, sizes, seed, equal)
    samples = []
    for size in (sizes.n_samples, 2000):
        inputs = generator.standard_normal((size, sizes.dim))
        labels = drawn_labels(problem, inputs, thetas, generator)
        samples.append([problem.activation(inputs @ rows.T), inputs @ step / np.linalg.norm(step), labels])
    (features, z, y), (test_features, test_z, test_y) = samples
    found = []
    for power in range(count + 1):
        if power:
            features, test_features = (
                f + 300 * np.outer(at**power + added * (power == 2), readout**power)
                for f, at in ((features, z), (test_features, test_z))
            )
        gram = features.T @ features + ridge * len(y) * np.eye(len(readout))
        fit = np.linalg.solve(gram, features.T @ y)
        train = np.mean((y - features @ fit) ** 2) + ridge * fit @ fit
        found.append([train, np.mean((test_y - test_features @ fit) ** 2)])
    return np.array(found), np.array([np.mean(y**2), np.mean(test_y**2)]) - problem.label_variance


def drawn_errors(problem, sizes, count, ridge, replicas, added=0.0):
    """Samples (replicas, count + 1, 2), less what the draws' mean squares of the labels explain."""
    draws = [large_spikes(problem, sizes, count, ridge, seed, added) for seed in range(replicas)]
    values, controls = (np.array([draw[i] for draw in draws]) for i in (0, 1))
    flat = values.reshape(replicas, -1)
    slopes = np.linalg.lstsq(controls - controls.mean(axis=0), flat - flat.mean(axis=0), rcond=None)[0]
    return (flat - controls @ slopes).reshape(values.shape)


def within(samples, value, bias):
    """Whether the mean of the samples is the value, up to four standard errors and a relative bias."""
    stderr = np.std(samples, axis=0, ddof=1) / math.sqrt(len(samples))
    return np.abs(np.mean(samples, axis=0) - value) < 4 * stderr + bias * np.abs(value)


CASES = {
    "one direction": (Problem("relu", ONE, 0.3, "sphere", **LOUD_TEACHER), False),
    "several": (Problem("relu", SEVERAL, 0.3, step_rule="whitened", **LOUD_TEACHER), True),
    "order one": (
        Problem("relu", SEVERAL, 0.3, "sphere", initial_output="order_one", **STILL_TEACHER),
        True,
    ),
    "whitened, order one": (
        Problem("relu", ONE, 0.3, initial_output="order_one", step_rule="whitened", **STILL_TEACHER),
        False,
    ),
    "isotropic": (Problem("relu", SEVERAL, 0.3, "sphere"), True),
}


@pytest.mark.parametrize("case", CASES)
def test_large_spikes_simulated(case):
    problem, full = CASES[case]
    dim = 150
    sizes = Sizes(4 * dim, dim, 3 * dim // 2, 6 * dim)
    added = spread(problem, sizes) if full else 0.0
    samples = drawn_errors(problem, sizes, 2, 0.1, 60, added)
    found = solve(problem, sizes, np.ones(3), 0.1, n_spikes=[0, 1, 2], row_norms=True, full_gradient=full)
    wanted = np.stack([found.values[name][:, 0] for name in ERRORS], axis=1)
    assert np.all(within(samples, wanted, 4 / dim))
    for wrong in (0.88, 1.12):
        assert not np.any(within(samples, wrong * wanted, 4 / dim))
    gains, heights = samples[:, :1] - samples[:, 1:], wanted[:1] - wanted[1:]
    assert np.all(within(gains, heights, 8 / dim))
    for wrong in (0.75, 1.25):
        assert not np.any(within(gains, wrong * heights, 8 / dim))


def test_the_constant_of_rows_under_a_covariance():
    # Unit rows are of different lengths as the inputs see them; the second spike is cheaper for it.
    # Same draws, rows of equal length or not: the difference is seen far more sharply than either error.
    problem, sizes = CASES["one direction"][0], Sizes(600, 150, 225, 900)
    draws = [
        [large_spikes(problem, sizes, 2, 0.1, seed, equal=equal)[0][2] for equal in (True, False)]
        for seed in range(40)
    ]
    saved = np.array([equal - plain for equal, plain in draws])
    published, whole = (solve(problem, sizes, 1.0, 0.1, n_spikes=2, row_norms=r) for r in (False, True))
    told = np.array([published.values[name][0, 0] - whole.values[name][0, 0] for name in ERRORS])
    assert np.all(within(saved, told, 0.2))
    for wrong in (0.0, 2.0):
        assert not np.any(within(saved, wrong * told, 0.2))
    assert "row_norms=True" in published.notes[0]
    assert constant_variance(problem.replaced(inputs="isotropic", alignment="typical"), sizes) == 0
    # The mean of the features over inputs, which is c_2 (w^T S w - 1).
    for rows in ("sphere", "gaussian"):
        found = []
        for seed in range(4):
            weights = drawn_start(problem.replaced(rows=rows), Sizes(10, 400, 4000, 10), seed)[1]
            found.append(np.var(np.sum(weights**2, axis=1)) * 400)
        c2 = float(problem.activation.hermite(3)[2])
        wanted = constant_variance(problem.replaced(rows=rows), Sizes(10, 400, 4000, 10))
        assert within(c2**2 * np.array(found), wanted, 0.03)
        assert not within(c2**2 * np.array(found), 1.2 * wanted, 0.03)


def test_a_step_can_do_harm_to_the_test_error():
    # The teacher lives where eigenvalues are large, and the whitened step's noise where they are small.
    problem = Problem(
        "tanh",
        "h1",
        0.0,
        "sphere",
        step_rule="whitened",
        inputs="levels(1.9, 0.1)",
        alignment="weights(0.999, 0.001)",
    )
    sizes = Sizes(800, 200, 1200, 100)
    found = solve(problem, sizes, 1.0, 0.3, n_spikes=1)
    draws = np.array([large_spikes(problem, sizes, 1, 0.3, seed)[0] for seed in range(12)])
    gains = draws[:, 0] - draws[:, 1]
    told = np.array([found.train_gain[0, 0], found.test_gain[0, 0]])
    assert told[1] < 0 < told[0]
    assert np.all(within(gains, told, 0.1))
    assert not np.any(within(gains, 0 * told, 0.1))


@pytest.mark.parametrize("output", ["vanishing", "order_one"])
@pytest.mark.parametrize("rule", ["gradient", "whitened"])
def test_the_direction_of_drawn_steps(rule, output):
    problem = Problem("relu", SEVERAL, 0.5, initial_output=output, step_rule=rule, **LOUD_TEACHER)
    sizes = Sizes(400, 400, 600, 800)
    signal = Signal.of(problem, sizes)
    lengths, cosines = [], []
    for seed in range(40):
        _, _, _, thetas, step = drawn_start(problem, sizes, seed)
        lengths.append([np.sum(part**2) for part in np.split(step, 2)])
        cosines.append(thetas.T @ step / np.linalg.norm(step))
    assert np.all(within(lengths, signal.step, 0.02))
    assert not np.any(within(lengths, 1.15 * signal.step, 0.02))
    assert np.all(within(cosines, signal.cosines, 0.02))
    assert signal.step.sum() == pytest.approx(problem.direction_norm_squared(sizes), rel=1e-14)


def test_explicit_eigenvalues_of_one_are_isotropic():
    for teacher in (ONE, SEVERAL):
        problem = Problem("relu", teacher, 0.5)
        same = problem.replaced(inputs="levels(1, 1)")
        near = problem.replaced(inputs="levels(1, 1.000001)")
        for options in ({}, BOTH):
            words = {"ridges": [1e-6, 0.05, 10.0], "theory": "staircase", **options}
            wanted, found, close = (
                predict(p, SIZES, step_exponents=[-1, 0.1, 0.3, 0.35], **words).values
                for p in (problem, same, near)
            )
            for name in (*ERRORS, "train_mse", "readout_norm_squared", "train_gain", "test_gain"):
                np.testing.assert_allclose(found[name], wanted[name], rtol=1e-10)
                np.testing.assert_allclose(close[name], wanted[name], rtol=1e-5, atol=1e-12)


def test_equations_under_a_covariance_have_the_isotropic_traces(monkeypatch):
    problem = Problem("relu", ONE, 0.5)
    wanted = solve(problem, SIZES, np.ones(3), [1e-6, 0.05, 10.0], n_spikes=[0, 1, 2], **BOTH)
    monkeypatch.setattr(staircase, "any_traces", CovariantTraces.of)
    found = solve(problem, SIZES, np.ones(3), [1e-6, 0.05, 10.0], n_spikes=[0, 1, 2], **BOTH)
    for name, values in wanted.values.items():
        np.testing.assert_allclose(found.values[name], values, rtol=1e-9)
    # At any ridge; a large one leaves 1 - lambda t_1 less accurate.
    for sizes in (SIZES, Sizes(300, 900, 500), Sizes(500, 500, 500)):
        for ridge in 10.0 ** np.arange(-10, 5, 2):
            plain, here = (f(problem, sizes, ridge) for f in (traces_of, CovariantTraces.of))
            for left, right in zip(plain.along(0.25), here.along(0.25), strict=True):
                np.testing.assert_allclose(left, right, rtol=1e-7)
            np.testing.assert_allclose(plain.degrees_of_freedom, here.degrees_of_freedom, rtol=1e-7)


@pytest.mark.parametrize("inputs", ["levels(0.3, 1.7)", "power(1)", "levels(0.01, 2)"])
@pytest.mark.parametrize("activation", ["relu", "identity"])
def test_derivatives_in_the_ridge(inputs, activation):
    problem = Problem(activation, "h1", 0.3, inputs=inputs, initial_output="order_one")
    ridge, h = 0.1, 1e-5
    c1 = float(problem.activation.hermite(2)[1])
    signal = Signal.of(problem, SIZES)
    at = [CovariantTraces.of(problem, SIZES, ridge * (1 + s * h)) for s in (0, 1, -1)]
    for free in (False, True):
        parts = [linear_parts(signal, traces, c1, free) for traces in at]
        for which in range(1 + free):
            (value, slope, penalised), above, below = (part[which] for part in parts)
            assert (above[0] - below[0]) / (2 * h * ridge) == pytest.approx(slope, rel=1e-5)
            moved = ((1 + h) * above[0] - (1 - h) * below[0]) / (2 * h)
            assert moved == pytest.approx(penalised, rel=1e-5)
            assert value > 0
        whole, split = linear_parts(signal, at[0], c1, False)[0], parts[0]
        assert split[0][0] + split[1][0] == pytest.approx(whole[0], rel=1e-13)


@pytest.mark.parametrize("activation", ["relu", "tanh", "identity", "h2"])
@pytest.mark.parametrize("inputs", ["levels(0.01, 2)", "power(2)", "spiked(1000)"])
def test_any_ridge_and_any_covariance_are_solved(activation, inputs):
    problem = Problem(activation, "h1 + h2/2", 0.5, inputs=inputs)
    for sizes in (SIZES, Sizes(300, 900, 500), Sizes(500, 500, 500)):
        for ridge in (1e-12, 1e-4, 1e6):
            found = solve(problem, sizes, np.ones(2), ridge, n_spikes=[0, 3], **BOTH)
            assert np.all(found.test_error > 0)
            assert np.all(found.train_gain >= 0)


def test_coefficients_of_the_teacher_along_z():
    x, weights = gauss_hermite(12)
    t1, t2, g = (part.ravel() for part in np.meshgrid(x, x, x))
    mass = np.einsum("i,j,k->ijk", weights, weights, weights).ravel()
    for words in ({}, LOUD_TEACHER, {**STILL_TEACHER, "step_rule": "whitened"}):
        problem = Problem("relu", SEVERAL, 0.5, **words)
        cosines = Signal.of(problem, SIZES).cosines
        assert 0 < cosines @ cosines < 1
        z = cosines[0] * t1 + cosines[1] * t2 + math.sqrt(1 - cosines @ cosines) * g
        labels = problem.teacher(np.stack([t1, t2], axis=1))
        wanted = [
            np.sum(mass * labels * h) / math.factorial(k) for k, h in enumerate(hermite_polynomials(z, 5))
        ]
        assert teacher_along(problem, SIZES, 5) == pytest.approx(np.array(wanted), abs=1e-12)


def test_turning_the_directions_of_the_teacher_changes_nothing():
    first, second = "(0.6*t1 + 0.8*t2)", "(0.6*t2 - 0.8*t1)"
    for words in ({}, {**LOUD_TEACHER, "initial_output": "order_one"}):
        plain, turned = (
            Problem("relu", f"{a} + 0.5*{a}*{b} + 0.3*{a}*{a}*{b}", 0.3, **words)
            for a, b in (("t1", "t2"), (first, second))
        )
        single, several = (Problem("relu", t, 0.3, **words) for t in ("h1 + h2/2", "t1 + h2(t1)/2 + 0*t2"))
        for one, other in ((plain, turned), (single, several)):
            found = [solve(p, SIZES, np.ones(4), 0.05, n_spikes=range(4), **BOTH) for p in (one, other)]
            for name, values in found[0].values.items():
                np.testing.assert_allclose(found[1].values[name], values, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("rule", ["gradient", "whitened"])
def test_more_spikes_never_hurt_the_train_error(rule):
    generator = np.random.default_rng(0)
    for teacher in (ONE, SEVERAL, "h2 + h3"):
        for options in ({}, BOTH):
            low = generator.uniform(0.01, 0.9)
            words = {"inputs": f"levels({low}, 2)", "alignment": f"weights({low}, {1 - low})"}
            problem = Problem("softplus(x) + tanh(x)", teacher, 0.3, step_rule=rule, **words)
            found = solve(problem, SIZES, np.ones(6), [1e-4, 0.1, 100.0], n_spikes=range(6), **options)
            assert np.all(np.diff(found.train_gain, axis=0) >= -1e-14)
            assert np.all(found.train_gain[0] == 0)
            assert np.all(found.train_error > 0)
            assert np.all(found.train_mse <= found.train_error)
            if teacher == "h2 + h3":
                assert np.all(found.train_gain == 0)


def differences(found, wanted):
    return max(np.abs(found.values[name] / wanted.values[name] - 1).max() for name in ERRORS)


EMERGING = {
    "covariance": {"teacher": "h1 + h2/sqrt(2) + h3/3", **LOUD_TEACHER},
    "whitened, several": {"teacher": SEVERAL, "step_rule": "whitened", **STILL_TEACHER},
    "isotropic, several": {"teacher": SEVERAL},
}


@pytest.mark.parametrize("output", ["vanishing", "order_one"])
@pytest.mark.parametrize("rows", ["gaussian", "sphere"])
@pytest.mark.parametrize("case", EMERGING)
def test_the_staircase_emerges(case, rows, output):
    problem = Problem("softplus", noise_std=0.3, rows=rows, initial_output=output, **EMERGING[case])
    far, published = [], []
    for n in (10**10, 10**14, 10**17):
        sizes = Sizes(n, n // 2, 3 * n // 4)
        words = {"step_exponents": 0.29, "ridges": 0.1}
        found = predict(problem, sizes, **words, theory="leading_order")
        far.append(differences(found, predict(problem, sizes, **words, theory="staircase", **BOTH)))
        published.append(differences(found, predict(problem, sizes, **words, theory="staircase")))
    assert far[2] < 0.5 * far[1] < 0.2 * far[0]
    assert far[2] < 0.002
    assert far[2] < 0.6 * published[2]


def test_what_is_outside_the_limit_is_said():
    loud, several = "not small against d", "t1 + t1*t2"
    for inputs, said in (("spiked(50)", True), ("levels(0.3, 1.7)", False), ("isotropic", False)):
        for teacher in ("h1", several):
            problem = Problem("tanh", teacher, 0.3, inputs=inputs)
            found = predict(problem, Sizes(1000, 500, 750), step_exponents=0.1, theory="staircase")
            assert any(loud in note for note in found.notes) == said
    for formula in (delta_1, lambda_2):
        with pytest.raises(ValueError, match="isotropic inputs: use solve"):
            formula(Problem("relu", ONE, 0.5, **LOUD_TEACHER), SIZES, 0.1)
    assert any_traces(Problem("relu", ONE, **LOUD_TEACHER), SIZES, 0.1).t1 > 0
