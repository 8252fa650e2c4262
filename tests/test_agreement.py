"""Simulation against theory: within four standard errors and a declared bias that shrinks with size."""

import math

import numpy as np
import pytest

from firststep import arrays as network
from firststep.setting import Problem, Sizes
from firststep.simulate import Draw, simulate
from firststep.theory import predict

ERRORS = ("train_error", "test_error")
# So large that the fit is zero: its train error is the sample's mean squared label, whose mean is known.
ENDLESS = 1e12


def excess(sample, predicted, bias):
    """Largest distance of a sample's mean from the limit, in units of what is allowed.

    Allowed are four standard errors of the mean and the declared relative bias of this size.
    """
    mean, stderr = sample.mean(axis=0), sample.std(axis=0, ddof=1) / math.sqrt(len(sample))
    return float(np.max(np.abs(mean - predicted) / (4 * stderr + bias * np.abs(predicted))))


def assert_agrees(sample, predicted, bias):
    """The limit is accepted, and the same limit ten per cent off is not."""
    assert excess(sample, predicted, bias) <= 1
    assert excess(sample, 1.1 * predicted, bias) > 1, "a limit 10 % too high would pass: too few replicas"
    assert excess(sample, 0.9 * predicted, bias) > 1, "a limit 10 % too low would pass: too few replicas"


def controlled(sample, controls):
    """The sample less what its controls (replicas, k), averages of mean zero, explain of it."""
    slopes = np.linalg.lstsq(controls - controls.mean(axis=0), sample - sample.mean(axis=0), rcond=None)[0]
    return sample - controls @ slopes


def test_excess_rejects_wrong_limits_and_accepts_right_ones():
    rng = np.random.default_rng(0)
    sample = 2 + 0.2 * rng.standard_normal((100, 3))
    assert_agrees(sample, np.full(3, 2.0), bias=0.01)
    for wrong in (2.2, 1.8):
        assert excess(sample, np.full(3, wrong), bias=0.01) > 1
        with pytest.raises(AssertionError):
            assert_agrees(sample, np.full(3, wrong), bias=0.01)
    # One wrong entry is enough.
    assert excess(sample, np.array([2.0, 2.2, 2.0]), bias=0.01) > 1
    with pytest.raises(AssertionError, match="too few replicas"):
        assert_agrees(sample[:4], np.full(3, 2.0), bias=0.1)


def test_control_variates_change_no_mean_and_save_noise():
    rng = np.random.default_rng(0)
    controls = rng.standard_normal((400, 2))
    sample = 3 + controls @ np.array([[1.0, 0.0], [0.5, 2.0]]) + 0.1 * rng.standard_normal((400, 2))
    better = controlled(sample, controls)
    assert np.all(better.std(axis=0) < 0.12)
    assert excess(better, np.full(2, 3.0), bias=0.0) <= 1


# Random features -----------------------------------------------------------------------------------------

ACTIVATIONS = ("relu", "tanh", "erf", "softplus", "h1 + h2/4")
RATIOS = ((2.0, 1.5), (0.5, 1.5), (3.0, 0.5), (1.2, 3.0))


def random_feature_errors(activation, ratios, dim, replicas, ridges=(0.1, 1.0), seed=0, **options):
    """Samples and limits of train and test error without a step, for n/d and N/d."""
    problem = Problem(activation, "h1 + h2/sqrt(2)", noise_std=0.5)
    # The gradient is not used here: few samples make it cheap.
    sizes = Sizes(round(ratios[0] * dim), dim, round(ratios[1] * dim), n_step_samples=10)
    outcome = simulate(problem, sizes, 0.0, [*ridges, ENDLESS], replicas=replicas, seed=seed)
    limit = predict(problem, sizes, 0.0, ridges, theory="random_features", **options)
    samples = {name: outcome.details["samples"][name][:, 0] for name in ERRORS}
    excess_labels = samples["train_error"][:, -1:] - problem.label_variance
    return (
        {name: controlled(sample[:, :-1], excess_labels) for name, sample in samples.items()},
        {name: limit.values[name][0] for name in ERRORS},
    )


@pytest.mark.parametrize("ratios", RATIOS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_random_features_have_the_errors_of_the_limit(activation, ratios):
    dim = 120
    samples, limits = random_feature_errors(activation, ratios, dim, replicas=80)
    for name in ERRORS:
        assert_agrees(samples[name], limits[name], bias=4 / dim)


def test_bias_of_random_features_shrinks_with_size():
    """With one degree it is visible at d = 25, beyond four standard errors, and falls as 1/d."""
    deviations = {}
    for dim, replicas in ((25, 800), (100, 300)):
        samples, limits = random_feature_errors("relu", (2.0, 1.5), dim, replicas, degrees=1)
        sample, limit = samples["train_error"][:, 0], limits["train_error"][0]
        stderr = sample.std(ddof=1) / math.sqrt(replicas)
        deviations[dim] = (sample.mean() / limit - 1, stderr / limit)
        assert excess(sample, limit, bias=4 / dim) <= 1
    assert abs(deviations[25][0]) > 4 * deviations[25][1]
    difference = deviations[100][0] - deviations[25][0] / 4
    assert abs(difference) < 4 * math.hypot(deviations[100][1], deviations[25][1] / 4)


@pytest.mark.slow
@pytest.mark.parametrize("ratios", RATIOS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_large_random_features_have_the_errors_of_the_limit(activation, ratios):
    dim = 600
    samples, limits = random_feature_errors(
        activation, ratios, dim, replicas=24, ridges=(0.01, 0.1, 1.0), seed=1
    )
    for name in ERRORS:
        assert_agrees(samples[name], limits[name], bias=4 / dim)


# The staircase -------------------------------------------------------------------------------------------


def staircase_errors(problem, sizes, ridges, replicas, spikes, seed=0, strength=1e3):
    """Samples (replicas, l + 1, R) of both errors of F_0 … F_l with spikes far stronger than the bulk.

    And controls: mean squares of the labels and of their non-linear part, less their known means.
    """
    samples = {name: [] for name in ERRORS}
    controls = []
    slope = problem.teacher.hermite(2)[1]
    known = np.array([problem.label_variance, problem.label_variance - slope**2])
    for replica in range(replicas):
        draw = Draw(problem, sizes, seed, replica)
        weights, readout = draw.weights(), draw.readout()
        scale = sizes.width**-0.5 if problem.initial_output == "vanishing" else 1.0
        step = network.gradient_step(*draw.step_sample(), weights, readout, problem.activation, scale)
        inputs, targets = draw.fit_sample()
        laws = problem.activation, problem.teacher, problem.noise_variance
        before = network.OneStep(weights, readout, step.direction, draw.beta, *laws)
        model = network.spiked_network(inputs, before, spikes)
        # Present are the degrees of the activation; in units of z^k U^k every spike has the same strength.
        powers = np.arange(1, spikes + 1)
        present = np.abs(problem.activation.hermite(spikes + 1)[1:]) > 1e-9
        strengths = present * strength * (math.sqrt(sizes.width) / np.linalg.norm(step.direction)) ** powers
        fits = [model.fit(targets, ridges, strengths[:count]) for count in range(spikes + 1)]
        samples["train_error"].append([path.train_error for path, _ in fits])
        samples["test_error"].append([error for _, error in fits])
        rest = targets - slope * inputs @ draw.beta
        controls.append([np.mean(targets**2), np.mean(rest**2)] - known)
    return {name: np.array(sample) for name, sample in samples.items()}, np.array(controls)


STAIRCASES = {
    "relu, unit rows": (Problem("relu", "h1 + h2/sqrt(2)", 0.5, rows="sphere"), 2),
    "relu, gaussian rows": (Problem("relu", "h1 + h2/sqrt(2)", 0.5), 2),
    "relu, output of order one": (
        Problem("relu", "h1 + h2/sqrt(2)", 0.5, "sphere", initial_output="order_one"),
        2,
    ),
    "three spikes": (Problem("tanh(x + 0.7)", "h1 + h2/2 + h3/4", 0.5, rows="sphere"), 3),
}


def staircase_sizes(dim):
    # Many samples for the step give a direction so good that every height is well above the noise.
    return Sizes(4 * dim, dim, round(1.5 * dim), n_step_samples=6 * dim)


def staircase_limits(problem, sizes, ridges, count):
    limit = predict(problem, sizes, 1.0, ridges, theory="staircase", n_spikes=count, row_norms=True)
    return {name: limit.values[name][0] for name in ERRORS}


@pytest.mark.parametrize("case", STAIRCASES)
def test_infinite_spikes_have_the_errors_of_the_staircase(case):
    problem, spikes = STAIRCASES[case]
    dim, ridges = 150, (0.1, 3.0)
    sizes = staircase_sizes(dim)
    samples, controls = staircase_errors(problem, sizes, ridges, 40 * (spikes - 1), spikes)
    limits = [staircase_limits(problem, sizes, ridges, count) for count in range(spikes + 1)]
    for count in range(1, spikes + 1):
        for name in ERRORS:
            assert_agrees(controlled(samples[name][:, count], controls), limits[count][name], bias=4 / dim)
            # The height of the step, on the same draws: neither one spike more nor one fewer explains it.
            height = samples[name][:, count - 1] - samples[name][:, count]
            expected = limits[count - 1][name] - limits[count][name]
            allowed = 4 / dim * limits[0][name] / expected
            assert excess(height, expected, allowed) <= 1
            assert excess(height, 0 * expected, 0.0) > 1


@pytest.mark.slow
@pytest.mark.parametrize("case", STAIRCASES)
def test_bias_of_the_staircase_shrinks_with_size(case):
    problem, spikes = STAIRCASES[case]
    ridges = (0.1, 3.0)
    for dim, replicas in ((75, 400), (300, 120)):
        sizes = staircase_sizes(dim)
        samples, controls = staircase_errors(problem, sizes, ridges, replicas, spikes, seed=1)
        for count in range(1, spikes + 1):
            limits = staircase_limits(problem, sizes, ridges, count)
            for name in ERRORS:
                sample = controlled(samples[name][:, count], controls)
                assert excess(sample, limits[name], bias=4 / dim) <= 1
                if dim == 300:
                    assert_agrees(sample, limits[name], bias=4 / dim)


def test_row_norms_make_the_difference_that_the_limit_says():
    """Gaussian rows are a leading-order gain over unit rows from the second spike on, on the same draws."""
    dim, ridges, replicas = 100, (0.1,), 60
    sizes = staircase_sizes(dim)
    gaussian, unit = (STAIRCASES[name][0] for name in ("relu, gaussian rows", "relu, unit rows"))
    samples = [staircase_errors(problem, sizes, ridges, replicas, 2)[0] for problem in (gaussian, unit)]
    for name in ERRORS:
        gain = (samples[1][name] - samples[0][name])[:, 2]
        expected = (
            staircase_limits(unit, sizes, ridges, 2)[name]
            - staircase_limits(gaussian, sizes, ridges, 2)[name]
        )
        assert excess(gain, expected, bias=20 / dim) <= 1
        assert excess(gain, 0 * expected, bias=0.0) > 1


# The step ------------------------------------------------------------------------------------------------

STEPS = {
    "vanishing": Problem("tanh", "relu", 0.3),
    "order one": Problem("tanh", "relu", 0.3, initial_output="order_one"),
    "vanishing, relu": Problem("relu", "h1 + h2/sqrt(2)", 0.5, rows="sphere"),
    "order one, relu": Problem("relu", "h1", 1.0, initial_output="order_one", readout="rademacher"),
}
STEP_NAMES = ("direction_norm", "alignment", "weights_top", "weights_alignment")


def step_outcomes(problem, dim, replicas, step_sizes, seed=0):
    sizes = Sizes(10, dim, round(1.5 * dim), n_step_samples=4 * dim)
    outcome = simulate(
        problem,
        sizes,
        step_sizes,
        1.0,
        replicas=replicas,
        extras=("weights",),
        test="sample",
        n_test=2,
        seed=seed,
    )
    return outcome.details["samples"], predict(
        problem, sizes, step_sizes, 1.0, theory="staircase", n_spikes=0
    ).values


@pytest.mark.filterwarnings("ignore::firststep.setting.OutsideTheoryWarning")
@pytest.mark.parametrize("case", STEPS)
def test_step_direction_and_spike_of_the_weights_are_those_of_the_limit(case):
    dim = 120
    samples, limits = step_outcomes(STEPS[case], dim, 320, [5.0, 8.0])
    for name in STEP_NAMES:
        assert_agrees(samples[name], limits[name], bias=3 / dim)


@pytest.mark.filterwarnings("ignore::firststep.setting.OutsideTheoryWarning")
@pytest.mark.parametrize("case", ["vanishing", "order one"])
def test_weights_keep_their_bulk_below_the_critical_step(case):
    """The top value is the edge, up to fluctuations of order d^(-2/3); its vector knows nothing of beta."""
    dim = 200
    samples, limits = step_outcomes(STEPS[case], dim, 30, [0.0, 0.3])
    assert np.all(limits["weights_alignment"] == 0)
    assert excess(samples["weights_top"], limits["weights_top"], bias=2 * dim ** (-2 / 3)) <= 1
    assert excess(samples["weights_alignment"][:, 0], 1 / dim, bias=0.0) <= 1
    assert samples["weights_alignment"].mean() < 5 / dim


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::firststep.setting.OutsideTheoryWarning")
@pytest.mark.parametrize("case", STEPS)
def test_bias_of_the_step_shrinks_with_size(case):
    for dim, replicas in ((75, 400), (600, 40)):
        samples, limits = step_outcomes(STEPS[case], dim, replicas, [5.0, 8.0], seed=1)
        for name in STEP_NAMES:
            assert excess(samples[name], limits[name], bias=3 / dim) <= 1
            if dim == 600:
                assert_agrees(samples[name], limits[name], bias=3 / dim)
