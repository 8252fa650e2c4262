"""The spike of the weights: published values, its threshold, and simulations for both initial outputs."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firststep import Problem, Sizes, predict
from firststep.setting import OutsideTheoryWarning
from firststep.theory.limits.weights import critical_step, spiked_weights, step_values

PUBLISHED = Problem("tanh", "relu", noise_std=0.3)
PUBLISHED_SIZES = Sizes(n_samples=3000, dim=1500, width=2250)
OUTPUTS = ("vanishing", "order_one")


def test_published_values():
    found = spiked_weights(PUBLISHED, PUBLISHED_SIZES, [3, 5])
    assert found.top == pytest.approx([2.239, 2.668], abs=5e-4)
    assert found.alignment == pytest.approx([0.119, 0.399], abs=5e-4)
    outcome = predict(PUBLISHED, PUBLISHED_SIZES, [3.0, 5.0], 0.1, theory="staircase")
    assert outcome.weights_top[:, 0] == pytest.approx([2.239, 2.668], abs=5e-4)
    assert outcome.weights_alignment[:, 0] == pytest.approx([0.119, 0.399], abs=5e-4)


def test_the_published_formula_for_a_vanishing_output():
    # In the form of the papers, with theta = eta c_1 B and psi2 = N/d.
    steps = np.linspace(2.7, 20, 9)
    psi2 = PUBLISHED_SIZES.width / PUBLISHED_SIZES.dim
    length = PUBLISHED.direction_norm_squared(PUBLISHED_SIZES)
    theta2 = (steps * PUBLISHED.activation.hermite(2)[1]) ** 2 * length
    cosine2 = PUBLISHED.teacher.hermite(2)[1] ** 2 / length
    found = spiked_weights(PUBLISHED, PUBLISHED_SIZES, steps)
    assert found.top == pytest.approx(np.sqrt((1 + theta2) * (psi2 + theta2) / theta2))
    assert found.alignment == pytest.approx(cosine2 * (1 - (psi2 + theta2) / (theta2 * (theta2 + 1))))


@pytest.mark.parametrize("output", OUTPUTS)
def test_the_spike_leaves_the_bulk_continuously(output):
    problem = Problem("tanh", "relu", 0.3, initial_output=output)
    critical = critical_step(problem, PUBLISHED_SIZES)
    found = spiked_weights(
        problem, PUBLISHED_SIZES, [0, 0.5 * critical, critical * (1 - 1e-9), critical * (1 + 1e-6)]
    )
    edge = 1 + math.sqrt(1.5)
    assert found.edge == pytest.approx(edge)
    assert found.critical_step == critical
    assert found.top[:3].tolist() == [found.edge] * 3
    assert found.alignment[:3].tolist() == [0] * 3
    assert edge < found.top[3] < edge * (1 + 1e-9)
    assert 0 < found.alignment[3] < 1e-5
    assert found.strength_squared[2] == pytest.approx(math.sqrt(1.5), rel=1e-6)


@given(st.floats(0, 100), st.sampled_from(OUTPUTS), st.sampled_from(["gaussian", "rademacher", "constant"]))
def test_the_overlap_is_one_and_the_top_grows(step, output, readout):
    problem = Problem("relu", "tanh", 0.2, readout=readout, initial_output=output)
    sizes = Sizes(800, 400, 500)
    found = spiked_weights(problem, sizes, [step, step + 1])
    bound = step_values(problem, sizes, 1.0)["alignment"]
    assert np.all((found.alignment >= 0) & (found.alignment <= 1))
    assert found.top[1] >= found.top[0] >= found.edge
    if output == "vanishing":
        assert np.all(found.alignment <= bound)


def test_a_very_large_step_shows_the_direction_itself():
    for output in OUTPUTS:
        problem = Problem("relu", "tanh", 0.2, initial_output=output)
        sizes = Sizes(800, 400, 500)
        found, values = spiked_weights(problem, sizes, 1e6), step_values(problem, sizes, 1e6)
        assert found.top[0] == pytest.approx(1e6 * 0.5 * values["direction_norm"], rel=1e-5)
        assert found.alignment[0] == pytest.approx(values["alignment"], rel=1e-5)


def test_without_a_linear_part_there_is_no_spike():
    sizes = Sizes(800, 400, 500)
    assert critical_step(Problem("h2", "identity"), sizes) == math.inf
    with pytest.warns(OutsideTheoryWarning):
        outcome = predict(Problem("h2", "identity"), sizes, 20.0, 0.1, theory="staircase")
    assert outcome.weights_alignment[0, 0] == 0
    nothing = step_values(Problem("relu", [0.0]), sizes, [5.0])
    assert nothing["direction_norm"] == 0
    assert nothing["alignment"] == 0
    assert critical_step(Problem("relu", [0.0]), sizes) == math.inf
    # The teacher is not seen, but the noise still makes a spike.
    blind = spiked_weights(Problem("relu", "h2", 1.0), sizes, 50.0)
    assert blind.top[0] > blind.edge
    assert blind.alignment[0] == 0


def draw(problem, sizes, step_sizes, seed):
    """|b|^2, squared cosine of b with beta, and for each step size the top singular value and overlap."""
    generator = np.random.default_rng(seed)
    n0, d, width = sizes.n_step_samples, sizes.dim, sizes.width
    weights = generator.standard_normal((width, d)) / math.sqrt(d)
    if problem.rows == "sphere":
        weights /= np.linalg.norm(weights, axis=1, keepdims=True)
    a = {
        "gaussian": generator.standard_normal(width),
        "rademacher": generator.choice([-1.0, 1.0], width),
        "constant": np.ones(width),
    }[problem.readout] / math.sqrt(width)
    inputs = generator.standard_normal((n0, d))
    labels = problem.teacher(inputs[:, 0]) + problem.noise_std * generator.standard_normal(n0)
    before = inputs @ weights.T
    scale = 1.0 if problem.initial_output == "order_one" else 1 / math.sqrt(width)
    left = labels - scale * problem.activation(before) @ a
    gradient = (left[:, None] * problem.activation.derivative(before) * a).T @ inputs / n0
    b = inputs.T @ left / n0
    numbers = [b @ b, b[0] ** 2 / (b @ b)]
    for step in step_sizes:
        moved = weights + step * gradient
        values, vectors = np.linalg.eigh(moved.T @ moved)
        numbers += [math.sqrt(values[-1]), vectors[0, -1] ** 2]
    return numbers


def within(samples, value, bias):
    """Whether the mean of the samples is the value, up to four standard errors and a relative bias."""
    samples = np.asarray(samples)
    stderr = samples.std(ddof=1) / math.sqrt(len(samples))
    return abs(samples.mean() - value) < 4 * stderr + bias * abs(value)


@pytest.mark.parametrize(
    ("output", "readout", "rows"),
    [
        ("vanishing", "gaussian", "gaussian"),
        ("vanishing", "constant", "sphere"),
        ("order_one", "gaussian", "sphere"),
        ("order_one", "rademacher", "gaussian"),
        ("order_one", "constant", "gaussian"),
    ],
)
def test_simulated_spike(output, readout, rows):
    problem = Problem("relu", "tanh(2*x)", 0.3, rows=rows, readout=readout, initial_output=output)
    sizes, steps = Sizes(600, 200, 300, 600), (6.0, 10.0)
    samples = np.array([draw(problem, sizes, steps, seed) for seed in range(64)])
    found, values = spiked_weights(problem, sizes, steps), step_values(problem, sizes, steps)
    wanted = {
        0: values["direction_norm"] ** 2,
        1: values["alignment"],
        2: found.top[0],
        3: found.alignment[0],
        4: found.top[1],
        5: found.alignment[1],
    }
    for column, value in wanted.items():
        assert within(samples[:, column], value, bias=0.015), column
        assert not within(samples[:, column], 1.1 * value, bias=0.015), column
        assert not within(samples[:, column], 0.9 * value, bias=0.015), column
    if output == "order_one":
        # As if the direction were independent of the weights.
        strength = (6.0 * 0.5) ** 2 * float(values["direction_norm"]) ** 2
        naive = math.sqrt((1 + strength) * (1.5 + strength) / strength)
        assert not within(samples[:, 2], naive, bias=0.015)


def test_a_constant_readout_adds_the_norm_of_the_inputs_to_the_output():
    problem = Problem([0, 1, 0.5], "identity", readout="constant", initial_output="order_one")
    sizes = Sizes(500, 250, 500)
    samples = [draw(problem, sizes, (), seed)[0] for seed in range(60)]
    assert within(samples, problem.direction_norm_squared(sizes), bias=0.01)
    plain = Problem([0, 1, 0.5], "identity", readout="gaussian", initial_output="order_one")
    assert not within(samples, plain.direction_norm_squared(sizes), bias=0.01)
