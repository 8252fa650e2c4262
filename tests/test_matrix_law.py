"""The law of M seen from several directions: against the law of one direction, drawn matrices, drawn networks."""

import numpy as np
import pytest

from firststep import Problem, Sizes, predict
from firststep.theory.matrix_law import Samples, label_samples, quadrature, several_law
from firststep.theory.rest import rest_law
from firststep.theory.step_law import output_of

pytestmark = pytest.mark.filterwarnings("ignore::firststep.setting.OutsideTheoryWarning")

SIZES = Sizes(1500, 300, 600)


def forms(nodes, vectors, power):
    return (vectors.T * nodes**power) @ vectors


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("output", ["vanishing", "order_one"])
def test_for_one_direction_it_is_the_law_of_one_direction(activation, output):
    problem = Problem(activation, "tanh(2*x)", noise_std=0.3, initial_output=output)
    power = 1 if activation == "relu" else 2
    one = rest_law(
        problem.teacher,
        problem.noise_variance,
        SIZES.step_ratio,
        output_of(problem, SIZES),
        8,
        power,
        SIZES.n_step_samples,
    )
    found = several_law(problem, SIZES, 8)
    for k in range(6):
        size = 1 + abs(one.weights @ one.nodes**k)
        assert found.weights @ found.nodes**k == pytest.approx(one.weights @ one.nodes**k, abs=0.02 * size)
        theirs = forms(one.special_nodes, one.special_vectors, k)
        ours = forms(found.special_nodes, found.special_vectors, k)
        assert np.allclose(ours, theirs, atol=0.02 * (1 + np.abs(theirs).max()))
    assert np.allclose(found.noise_excess, one.noise_excess, atol=0.02)


def test_the_law_of_two_directions_against_drawn_matrices():
    problem = Problem("relu", "t1 + t1*t2", noise_std=0.3)
    rng, dim, samples, drawn = np.random.default_rng(4), 300, 1500, []
    for _ in range(12):
        x = rng.standard_normal((samples, dim))
        y = problem.teacher.at(x[:, :2]) + 0.3 * rng.standard_normal(samples)
        matrix = (x.T * y) @ x / samples
        rest = x.T @ y / samples
        rest[:2] = 0
        special = np.concatenate([np.eye(2, dim), rest[None] / np.linalg.norm(rest)])
        values, vectors = np.linalg.eigh(matrix)
        # The resolvent outside the bulk, which the outliers along t1 ± t2 make, and inside of what a step uses.
        seen = special @ vectors
        drawn.append([(seen / (values - at)) @ seen.T for at in (4.0, -3.0, 1j)])
    mean, stderr = np.mean(drawn, axis=0), np.std(drawn, axis=0, ddof=1) / np.sqrt(len(drawn))
    law = several_law(problem, Sizes(samples, dim, 600), 12)
    for k, at in enumerate((4.0, -3.0, 1j)):
        found = (law.special_vectors.T / (law.special_nodes - at)) @ law.special_vectors
        assert (np.abs(found - mean[k]) < 4 * stderr[k] + 0.02 * np.abs(mean[k]).max()).all()


def test_more_levels_refine_the_fewer():
    samples = label_samples(Problem("relu", "t1 + t1*t2", noise_std=0.3), SIZES).gathered(1500)
    few, many = (quadrature(samples, 0.2, levels) for levels in (6, 12))
    for k in range(11):
        whole = forms(many.special_nodes, many.special_vectors, k)
        assert np.allclose(
            forms(few.special_nodes, few.special_vectors, k), whole, atol=1e-6 * np.abs(whole).max()
        )


def test_samples_put_together_keep_mass_and_mean():
    samples = label_samples(Problem("relu", "t1 + t1*t2", noise_std=0.3), SIZES)
    few = samples.gathered(1500)
    assert isinstance(few, Samples)
    assert len(few.weights) < 150 < len(samples.weights)
    assert few.shares.sum() == pytest.approx(1, abs=1e-12)
    for k in (1, 2):
        assert few.shares @ few.weights**k == pytest.approx(samples.shares @ samples.weights**k, abs=0.01)


# Drawn networks, ridge 0.05: 80 of benchmarks/steps.py, then 40 each; errors after one step with standard errors.
DRAWN = [
    ("relu", "t1 + t1*t2", "vanishing", SIZES, 0.35, (0.787, 0.006), (1.382, 0.004)),
    ("relu", "t1 + t1*t2", "vanishing", SIZES, 0.5, (0.650, 0.005), (1.161, 0.004)),
    ("relu", "t1 + t1*t2", "order_one", Sizes(1200, 300, 600), 0.5, (0.6437, 0.0079), (1.3719, 0.0083)),
    ("tanh", "t1 + 0.7*t1*t2", "vanishing", Sizes(1200, 300, 600), 0.5, (0.4671, 0.0051), (0.7902, 0.0028)),
]


def test_where_a_neurons_own_component_is_known():
    # 16 drawn networks of d = 40 and 100, 10 of d = 200: M mixes z and what is beside it, which must not count twice.
    problem = Problem("relu", "t1 + t1*t2", noise_std=0.3, rows="sphere")
    for sizes, step, drawn, error in (
        (Sizes(1500, 40, 1000), 1500**0.5, 0.2302, 0.0023),
        (Sizes(1500, 100, 600), 1500**0.5, 0.5245, 0.0093),
        (Sizes(3200, 200, 400), 40.0, 0.7271, 0.0133),
    ):
        found = predict(problem, sizes, step_sizes=step, ridges=0.05).test_error[0, 0]
        assert found == pytest.approx(drawn, abs=0.01 * drawn + 2 * error)


@pytest.mark.parametrize("row", DRAWN)
def test_errors_after_one_step_for_two_directions(row):
    activation, teacher, output, sizes, exponent, train, test = row
    problem = Problem(activation, teacher, noise_std=0.3, rows="sphere", initial_output=output)
    found = predict(problem, sizes, step_exponents=exponent, ridges=0.05)
    assert found.train_error[0, 0] == pytest.approx(train[0], abs=2 * train[1])
    assert found.test_error[0, 0] == pytest.approx(test[0], abs=2 * test[1])
