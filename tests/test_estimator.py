import math
import os
import pickle
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
from numpy.typing import NDArray

from firststep.arrays import gradient_step, ridge_path
from firststep.estimator import OneStepClassifier, OneStepFeatures, OneStepRegressor
from firststep.estimator import options as options_module
from firststep.estimator import readout as readout_module
from firststep.estimator import selection as selection_module
from firststep.estimator import step as step_module
from firststep.estimator.bends import bends_of
from firststep.estimator.calibration import calibrated
from firststep.estimator.choice import Choice, choose, judged, ranks
from firststep.estimator.crossed import crossed
from firststep.estimator.directions import Directions, edges, of_function, of_target
from firststep.estimator.family import Learner, average, candidates
from firststep.estimator.readout import Design, ridge, solved
from firststep.estimator.step import SHRINKAGES, Network, Sample, Step, gradient, metric
from firststep.gaussian import function

sklearn = pytest.importorskip("sklearn")
from sklearn.base import clone  # noqa: E402
from sklearn.linear_model import Ridge, RidgeClassifier  # noqa: E402
from sklearn.model_selection import GridSearchCV  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402
from sklearn.preprocessing import StandardScaler  # noqa: E402
from sklearn.utils.estimator_checks import parametrize_with_checks  # noqa: E402

Floats = NDArray[np.float64]
SMALL = {"width": 40, "random_state": 0}


@parametrize_with_checks(
    [
        OneStepRegressor(width=30),
        OneStepRegressor(width=30, split=0.5, whiten=True),
        OneStepRegressor(width=30, whiten=False, dtype="float32", step_size=0.5, ridge=[0.1, 1.0]),
        OneStepClassifier(width=30),
        OneStepFeatures(width=30),
    ]
)
def test_the_contract_of_scikit_learn(estimator, check) -> None:  # type: ignore[no-untyped-def]
    if check.func.__name__ == "check_array_api_input":
        pytest.skip("runs in a process of its own, below")
    check(estimator)


def test_the_array_api_check_passes_too() -> None:
    code = """
from sklearn.utils.estimator_checks import check_estimator
from firststep.estimator import OneStepClassifier, OneStepFeatures, OneStepRegressor
for kind in (OneStepRegressor, OneStepClassifier, OneStepFeatures):
    found = check_estimator(kind(width=20), on_fail=None, on_skip=None)
    (status,) = [row["status"] for row in found if row["check_name"] == "check_array_api_input"]
    assert status == "passed", (kind, status)
"""
    environment = os.environ | {"SCIPY_ARRAY_API": "1"}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)


def draw(n: int = 200, d: int = 8, seed: int = 0) -> tuple[Floats, Floats]:
    rng = np.random.default_rng(seed)
    inputs = rng.standard_normal((n, d))
    return inputs, np.tanh(2 * inputs[:, 0]) + 0.3 * rng.standard_normal(n)


def network(d: int, outputs: int = 1, width: int = 25, bias: float = 0.0) -> Network:
    rng = np.random.default_rng(1)
    return Network(
        rng.standard_normal((width, d)) / np.sqrt(d),
        bias * rng.standard_normal(width),
        rng.standard_normal((width, outputs)) / np.sqrt(width),
        function("tanh"),
    )


def sample(n: int = 60, d: int = 8, outputs: int = 1, seed: int = 0) -> Sample:
    rng = np.random.default_rng(seed)
    return Sample(rng.standard_normal((n, d)), rng.standard_normal((n, outputs)), np.ones(n))


def test_the_gradient_is_the_network_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_module, "BLOCK_ELEMENTS", 25 * 64)
    data, start = sample(200), network(8)
    step = gradient_step(
        data.inputs, data.targets[:, 0], start.weights, start.readout[:, 0], start.activation, 1 / 5
    )
    np.testing.assert_allclose(gradient(data, start) / 200, step.gradient, atol=1e-13)


def test_the_gradient_with_several_targets_is_the_loss_derivative() -> None:
    data, start = sample(outputs=3), network(8, outputs=3, bias=1.0)

    def loss(weights: Floats) -> float:
        values = start.activation(data.inputs @ weights.T + start.biases) @ start.readout / 5
        # The readouts in front carry one more factor sqrt(N) than those in the output [Ba22].
        return float(5 * ((data.targets - values) ** 2).sum() / 2)

    found = gradient(data, start)
    for place in [(0, 0), (7, 3), (24, 7)]:
        shift = np.zeros_like(start.weights)
        shift[place] = 1e-5
        slope = (loss(start.weights + shift) - loss(start.weights - shift)) / 2e-5
        assert found[place] == pytest.approx(-slope, rel=1e-6)


@pytest.mark.parametrize("n", [20, 60])
def test_leave_one_out_is_exact(n: int) -> None:
    data, start = sample(n, outputs=2), network(8, outputs=2)
    ridges = np.array([0.01, 1.0])
    # The penalty n lambda stays when a sample goes.
    found = ridge(Design(data, start), ridges, leave_out=True)
    assert found.left_out is not None
    design = start.activation(data.inputs @ start.weights.T)
    for out in (0, n - 1):
        rest = np.delete(np.arange(n), out)
        for column, value in enumerate(ridges):
            model = Ridge(alpha=n * value).fit(design[rest], data.targets[rest])
            expected = ((data.targets[out] - model.predict(design[[out]])[0]) ** 2).sum()
            assert (found.left_out[out, column] ** 2).sum() == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize("n", [20, 60])
def test_the_readout_is_ridge_regression(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_module, "BLOCK_ELEMENTS", 1)
    monkeypatch.setattr(readout_module, "KEEP_ELEMENTS", 0)
    data, start = sample(n), network(8)
    found = ridge(Design(data, start), np.array([0.1]))
    design = start.activation(data.inputs @ start.weights.T)
    model = Ridge(alpha=0.1 * n).fit(design, data.targets[:, 0])
    np.testing.assert_allclose(found.coefficients[0, :, 0], model.coef_, atol=1e-9)
    np.testing.assert_allclose(found.intercepts[0, 0], model.intercept_, atol=1e-9)
    centred = design - design.mean(axis=0)
    path = ridge_path(centred, data.targets[:, 0] - data.targets.mean(), [0.1])
    np.testing.assert_allclose(found.coefficients[0, :, 0], path.coefficients[0], atol=1e-9)
    largest = np.linalg.svd(centred, compute_uv=False) ** 2 / n
    np.testing.assert_allclose(found.spectrum[:5], largest[:5], rtol=1e-9)


def test_without_a_step_it_is_random_features() -> None:
    inputs, targets = draw()
    model = OneStepRegressor(step_size=0, ridge=0.05, bias=0, scale=1, **SMALL).fit(inputs, targets)
    scaled = StandardScaler().fit_transform(inputs)
    random = np.random.RandomState(0)
    weights = random.standard_normal((40, 8)) / np.sqrt(8)
    design = np.tanh(scaled @ weights.T)
    expected = Ridge(alpha=0.05 * 200).fit(design, targets).predict(design)
    np.testing.assert_allclose(model.predict(inputs), expected, atol=1e-8)


def test_identity_activation_is_linearridge() -> None:
    inputs, targets = draw()
    model = OneStepRegressor(activation="identity", step_size=3.0, ridge=1e-9, **SMALL).fit(inputs, targets)
    scaled = StandardScaler().fit_transform(inputs)
    expected = Ridge(alpha=1e-6).fit(scaled, targets).predict(scaled)
    np.testing.assert_allclose(model.predict(inputs), expected, atol=1e-4)


@pytest.mark.parametrize("split", [None, 0.5])
def test_the_step_is_taken_where_it_helps_and_not_in_noise(split: float | None) -> None:
    inputs, targets = draw(600, 40)
    others, wanted = draw(2000, 40, seed=1)
    model = OneStepRegressor(width=100, random_state=0, split=split).fit(inputs, targets)
    still = OneStepRegressor(width=100, random_state=0, split=split, step_size=0).fit(inputs, targets)
    assert model.step_size_ > 0
    assert model.score(others, wanted) > still.score(others, wanted) + 0.03
    assert abs(model.direction_[0]) > 0.8
    assert np.linalg.norm(model.direction_) == pytest.approx(1)
    noise = np.random.default_rng(2).standard_normal(600)
    refused = OneStepRegressor(width=100, random_state=0, split=split).fit(inputs, noise)
    assert refused.step_size_ == 0


@pytest.mark.parametrize("n", [160, 900])
def test_the_reported_error_is_honest(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, targets = draw(n, 80)
    others, wanted = draw(4000, 80, seed=1)
    model = OneStepRegressor(width=100, random_state=0).fit(inputs, targets)
    path = model.loo_path_
    assert path["how"].startswith("leave-one-out on two halves")
    reported = path["errors"].min() * targets.var()
    error = np.mean((wanted - model.predict(others)) ** 2)
    # It is the error of half the samples: not below the true one, but by its noise.
    assert 0.9 * error < reported < 1.8 * error
    # Leave-one-out of samples that also took the step is not honest where there are few.
    monkeypatch.setattr(options_module, "LOO_SAMPLES_PER_INPUT", 0)
    deceived = OneStepRegressor(width=100, random_state=0).fit(inputs, targets)
    assert "also took the step" in deceived.loo_path_["how"]
    if n == 160:
        true = np.mean((wanted - deceived.predict(others)) ** 2)
        assert deceived.loo_path_["errors"].min() * targets.var() < 0.75 * true


def test_the_choice_is_the_exact_leave_one_out_of_the_halves() -> None:
    inputs, targets = draw(60, 5)
    model = OneStepRegressor(step_size=[0.0, 3.0], ridge=[0.01, 0.3], whiten=False, bias=0, **SMALL)
    model.fit(inputs, targets)
    scaled = StandardScaler().fit_transform(inputs)
    level = (targets - targets.mean()) / targets.std()
    random = np.random.RandomState(0)
    weights = random.standard_normal((40, 5)) / np.sqrt(5)
    random.standard_normal(40)
    readout = (2 * random.randint(2, size=40) - 1) / np.sqrt(40)
    half = ranks(inputs) % 2 == 0
    tanh = function("tanh")
    squares = np.zeros((2, 2))
    for taker in (half, ~half):
        step = gradient_step(scaled[taker], level[taker], weights, readout, tanh, 1 / np.sqrt(40))
        rows, wanted = scaled[~taker], level[~taker]
        for i, size in enumerate((0.0, 3.0)):
            design = tanh(rows @ (weights + size * step.gradient).T)
            for j, value in enumerate((0.01, 0.3)):
                for out in range(len(rows)):
                    rest = np.delete(np.arange(len(rows)), out)
                    fit = Ridge(alpha=value * len(rows)).fit(design[rest], wanted[rest])
                    squares[i, j] += (wanted[out] - fit.predict(design[[out]])[0]) ** 2 / 60
    np.testing.assert_allclose(model.loo_path_["errors"], squares, rtol=1e-7)


def test_without_a_step_leave_one_out_uses_all_samples() -> None:
    inputs, targets = draw(100, 30)
    still = OneStepRegressor(step_size=0, **SMALL).fit(inputs, targets)
    assert still.loo_path_["how"] == "leave-one-out"
    noise = np.random.default_rng(2).standard_normal(100)
    refused = OneStepRegressor(**SMALL).fit(inputs, noise)
    assert refused.step_size_ == 0
    plain = OneStepRegressor(step_size=0, **SMALL).fit(inputs, noise)
    # A step that is not taken leaves no trace: it is the same model.
    np.testing.assert_array_equal(refused.predict(inputs), plain.predict(inputs))


def test_many_samples_for_each_input_use_leave_one_out(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, targets = draw(400, 3)
    model = OneStepRegressor(**SMALL).fit(inputs, targets)
    assert model.loo_path_["how"] == "leave-one-out, of samples that also took the step; then 5 folds"
    monkeypatch.setattr(selection_module, "SURE", 0.0)
    sure = OneStepRegressor(**SMALL).fit(inputs, targets)
    assert sure.loo_path_["how"] == "leave-one-out, of samples that also took the step"
    others, wanted = draw(3000, 3, seed=1)
    error = np.mean((wanted - model.predict(others)) ** 2)
    assert error == pytest.approx(model.loo_path_["errors"].min() * targets.var(), rel=0.15)


def test_ranks_keep_copies_together_and_halves_are_balanced() -> None:
    inputs = np.random.default_rng(0).integers(0, 3, (400, 3)).astype(float)
    found = ranks(inputs)
    assert len(np.unique(found)) == len(np.unique(inputs, axis=0))
    for row in np.unique(inputs, axis=0):
        assert len(set(found[(inputs == row).all(axis=1)])) == 1
    order = np.random.default_rng(1).permutation(400)
    np.testing.assert_array_equal(ranks(inputs[order]), found[order])
    np.testing.assert_array_equal(ranks(np.array([[0.0], [-0.0]])), [0, 0])
    smooth = ranks(np.random.default_rng(2).standard_normal((1003, 2)))
    assert sorted(np.bincount(smooth % 2)) == [501, 502]
    # The halves know nothing of the values.
    line = np.arange(1000.0)
    assert abs(line[ranks(line[:, None]) % 2 == 0].mean() - line.mean()) < 40


@pytest.mark.parametrize(("n", "d"), [(80, 6), (12, 30)])
def test_the_metric_makes_the_direction_that_of_ridge_regression(n: int, d: int) -> None:
    data = sample(n, d)
    found = metric(data)
    assert found.shrinkage in SHRINKAGES
    pulled = data.inputs.T @ data.targets[:, 0] / n
    expected = Ridge(alpha=found.shrinkage * n, fit_intercept=False).fit(data.inputs, data.targets[:, 0])
    np.testing.assert_allclose(
        found(pulled[None])[0], (1 + found.shrinkage) * expected.coef_, rtol=1e-8, atol=1e-12
    )


def test_the_shrinkage_is_small_for_a_linear_target_and_large_for_noise() -> None:
    data = sample(200, 6)
    linear = Sample(data.inputs, data.inputs[:, :1], data.counts)
    assert metric(linear).shrinkage == SHRINKAGES[0]
    assert metric(data).shrinkage > 0.1


def test_biases_grow_with_the_pre_activations() -> None:
    data, start = sample(), network(8, bias=1.0)
    step = Step(data, start, None, data)
    after = step.network(2 * step.unit, 1)
    before = np.sqrt(np.mean((data.inputs @ start.weights.T) ** 2))
    grown = np.sqrt(np.mean((data.inputs @ after.weights.T) ** 2)) / before
    assert grown > 1.5
    np.testing.assert_allclose(after.biases, grown * start.biases)
    moved = np.sqrt(np.mean((data.inputs @ (after.weights - start.weights).T) ** 2))
    assert moved == pytest.approx(2 * before)
    assert step.network(0.0, 1) is start


def test_the_gradient_of_the_whole_is_the_sum_of_the_halves() -> None:
    data, start = sample(61), network(8)
    parts = [Step(data.at(np.arange(low, 61, 2)), start, None, data) for low in (0, 1)]
    whole = Step(data, start, None, data)
    np.testing.assert_allclose(
        Step(data, start, None, data, (parts[0], parts[1])).first, whole.first, atol=1e-14
    )


def test_a_gain_within_its_noise_is_not_taken() -> None:
    rng = np.random.default_rng(0)
    still = rng.uniform(1, 2, (100, 1))
    ridges, counts = np.ones((2, 1)), np.ones(100)
    steps = np.array([0.0, 1.0])

    def choice(steps: Floats, *squares: Floats) -> Choice:
        return choose(steps, ridges, [judged(square, counts) for square in squares], counts, 1, "")

    clear = choice(steps, still, still - 0.5)
    assert (clear.step, round(clear.gain, 12)) == (1, 0.5)
    doubtful = choice(steps, still, still - 0.02 * rng.standard_normal((100, 1)) - 1e-3)
    assert doubtful.step == 0
    # Without 0 among the candidates the smallest error decides.
    assert choice(np.array([1.0, 2.0]), still, still - 1e-9).step == 1


def test_a_target_without_a_linear_part_is_found_by_the_spectral_step() -> None:
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((3500, 30))
    targets = (inputs[:, 0] ** 2 - 1) / np.sqrt(2) + 0.3 * rng.standard_normal(3500)
    model = OneStepRegressor(width=150, random_state=0).fit(inputs[:1000], targets[:1000])
    still = OneStepRegressor(width=150, random_state=0, step_size=0).fit(inputs[:1000], targets[:1000])
    assert model.n_steps_ >= 1
    assert (
        model.score(inputs[1000:], targets[1000:]) > 0.75 > 0.3 > still.score(inputs[1000:], targets[1000:])
    )


def test_edges_are_those_of_marchenko_and_pastur() -> None:
    low, high = edges(np.ones(50), np.full(50, 0.02), 0.25)
    assert high == pytest.approx((1 + 0.5) ** 2, rel=1e-6)
    assert low == 0
    rng = np.random.default_rng(0)
    rows, labels = rng.standard_normal((3000, 300)), rng.standard_normal(3000)
    values = np.linalg.eigvalsh((rows * labels[:, None]).T @ rows / 3000)
    low, high = edges(labels, np.full(3000, 1 / 3000), 0.1)
    assert values[[0, -1]] == pytest.approx([low, high], rel=0.03)


def test_the_directions_of_a_quadratic_target_are_its_average_gradient() -> None:
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((40_000, 4))
    targets = inputs[:, 0] + 0.5 * (inputs[:, 1] ** 2 - 1)
    data = Sample(inputs, targets[:, None], np.ones(40_000))
    found = of_target(data, metric(data))
    matrix = (found.vectors * found.values) @ found.vectors.T
    np.testing.assert_allclose(np.diag(matrix), [1, 1, 0, 0], atol=0.08)


def test_the_directions_of_a_network_are_its_gradients() -> None:
    data, start = sample(50), network(8, bias=1.0)
    readout = np.random.default_rng(3).standard_normal((25, 1))
    slopes = np.empty((50, 8))
    for column in range(8):
        shift = np.zeros(8)
        shift[column] = 1e-5
        up, down = (start.features(data.inputs + sign * shift) @ readout for sign in (1, -1))
        slopes[:, column] = (up - down)[:, 0] / 2e-5
    found = of_function(data, start, readout)
    np.testing.assert_allclose(
        (found.vectors * found.values) @ found.vectors.T, slopes.T @ slopes / 50, atol=1e-6
    )


def test_a_move_along_all_directions_alike_changes_nothing() -> None:
    start = network(8)
    even = Directions(np.eye(8), np.ones(8)).move(start, 0.9, 1.0)
    np.testing.assert_allclose(even.weights, start.weights, atol=1e-14)
    one = Directions(np.eye(8)[:, :1], np.ones(1)).move(start, 0.5, 2.0)
    np.testing.assert_allclose(one.weights[:, 1], 2 * np.sqrt(0.5) * start.weights[:, 1])
    np.testing.assert_allclose(one.weights[:, 0], 2 * np.sqrt(0.5 + 0.5 * 8) * start.weights[:, 0])


def test_the_average_is_the_weighted_sum_of_its_networks() -> None:
    inputs, targets = draw(300, 3)
    model = OneStepRegressor(**SMALL).fit(inputs, targets)
    weights = model.loo_path_["weights"]
    assert weights.sum() == pytest.approx(1)
    assert len(model.weights_) == 40 * np.count_nonzero(weights)
    # It is better, on samples that were left out, than each of the networks.
    tried, errors = candidates(1, [1.0]), np.array([[2.0], [2.0], [9.0], [9.0]])
    residuals = np.zeros((4, 100, 1))
    residuals[0, ::2] = residuals[1, 1::2] = 2.0
    residuals[2:] = 3.0
    found = average(tried, errors, residuals, np.ones(100), single=False, margin=2.0)
    np.testing.assert_allclose(found.weights, [0.5, 0.5, 0, 0], atol=1e-3)
    assert found.gain == pytest.approx(4 / 2 - 1, abs=0.01)
    strict = average(tried, errors, residuals, np.ones(100), single=False, margin=1e9)
    np.testing.assert_allclose(strict.weights, [1, 0, 0, 0])


def test_steps_are_judged_by_samples_that_had_no_part_in_them() -> None:
    """Labels that are noise: a step and its readout look better on samples that took part, not on others."""
    rng = np.random.default_rng(5)
    inputs, targets = rng.standard_normal((120, 10)), rng.standard_normal((120, 1))
    sample = Sample(inputs, targets, np.ones(120))
    weights = rng.standard_normal((40, 10)) / math.sqrt(10)
    network = Network(weights, rng.standard_normal(40), np.ones((40, 1)), function("tanh"))
    learner = Learner(network, None, sample)
    tried = candidates(2, [0.8])
    learned = learner.learn(sample, metric(sample), 2, tried[:1])
    assert len(learner.guides) == 1
    places = dict.fromkeys(tried, 16)
    found = crossed(learner, sample, np.arange(120), metric, places, tried)
    assert found.shape == (7, 120, 1)
    fitted = [learner.fit(sample, learned[candidate.stage], candidate)[1] for candidate in tried]
    deceived = np.array([readouts.left_out[:, 16] for readouts in fitted])
    # Without a step both are honest; with one, leave-one-out promises more than there is.
    assert np.mean(found[0] ** 2) == pytest.approx(np.mean(deceived[0] ** 2), rel=0.05)
    assert np.mean(deceived[-1] ** 2) < 0.9 * np.mean(targets**2) < 0.9 * np.mean(found[-1] ** 2)
    # A fold is predicted by a fit of the other four.
    inside = np.arange(120) % 5 != 2
    part = sample.at(np.flatnonzero(inside))
    moved = learner.nothing.move(network, 0.0, 0.8)
    grid = learner.grid(moved)[[16]]
    readouts = ridge(Design(part, moved), grid)
    told = moved.features(inputs[~inside]) @ readouts.coefficients[0] + readouts.intercepts[0]
    np.testing.assert_allclose(found[0, ~inside], targets[~inside] - told, atol=1e-10)


def test_the_folds_have_the_last_word(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, targets = draw(200)
    taken = OneStepRegressor(**SMALL).fit(inputs, targets)
    assert taken.n_steps_ > 0
    assert taken.loo_path_["how"].endswith("then 5 folds")
    ratio = taken.loo_path_["gain"] / taken.loo_path_["gain_stderr"]
    monkeypatch.setattr(selection_module, "TAKEN", 1.01 * ratio)
    refused = OneStepRegressor(**SMALL).fit(inputs, targets)
    assert refused.n_steps_ == 0
    still = OneStepRegressor(step_size=0, **SMALL).fit(inputs, targets)
    np.testing.assert_allclose(refused.predict(inputs), still.predict(inputs), rtol=1e-10)
    monkeypatch.setattr(selection_module, "TAKEN", 0.99 * ratio)
    assert OneStepRegressor(**SMALL).fit(inputs, targets).n_steps_ > 0


@pytest.mark.parametrize(("count", "penalty"), [(30, 0.1), (90, 0.1), (30, 1e-30)])
def test_one_ridge_by_cholesky_is_that_of_all_ridges(count: int, penalty: float) -> None:
    rng = np.random.default_rng(0)
    counts = rng.integers(1, 4, count).astype(float)
    sample = Sample(rng.standard_normal((count, 5)), rng.standard_normal((count, 2)), counts)
    network = Network(
        rng.standard_normal((50, 5)), rng.standard_normal(50), np.ones((50, 2)), function("tanh")
    )
    one, all_ = solved(Design(sample, network), penalty), ridge(Design(sample, network), np.array([penalty]))
    others = network.features(rng.standard_normal((7, 5)))
    told, wanted = (others @ found.coefficients[0] + found.intercepts[0] for found in (one, all_))
    np.testing.assert_allclose(told, wanted, rtol=1e-6)


def test_the_order_of_the_samples_plays_no_part() -> None:
    inputs, targets = draw(100)
    order = np.random.default_rng(1).permutation(100)
    first = OneStepRegressor(**SMALL).fit(inputs, targets)
    second = OneStepRegressor(**SMALL).fit(inputs[order], targets[order])
    np.testing.assert_allclose(first.predict(inputs), second.predict(inputs), rtol=1e-9)


def test_many_samples_are_judged_by_some_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, targets = draw(2000, 3)
    whole = OneStepRegressor(**SMALL).fit(inputs, targets)
    monkeypatch.setattr(selection_module, "CHOICE_SAMPLES", 700)
    some = OneStepRegressor(**SMALL).fit(inputs, targets)
    assert some.loo_path_["how"].endswith("on 667 of 2000; then 5 folds")
    others, wanted = draw(2000, 3, seed=1)
    assert some.score(others, wanted) == pytest.approx(whole.score(others, wanted), abs=0.01)


def test_probabilities_are_calibrated() -> None:
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((4000, 3))
    true = 1 / (1 + np.exp(-2 * inputs[:, 0]))
    labels = rng.uniform(size=4000) < true
    model = OneStepClassifier(**SMALL).fit(inputs[:600], labels[:600])
    found = model.predict_proba(inputs[600:])
    np.testing.assert_allclose(found.sum(axis=1), 1)
    assert np.abs(found[:, 1] - true[600:]).mean() < 0.06
    np.testing.assert_array_equal(model.predict(inputs), model.predict_proba(inputs)[:, 1] > 0.5)
    # Outputs that are half as large ask for twice the sharpness.
    outputs, signs = rng.standard_normal((500, 3)), np.eye(3)[rng.integers(0, 3, 500)] * 2 - 1
    once, shift = calibrated(outputs + signs, signs, np.ones(500))
    twice, moved = calibrated((outputs + signs) / 2, signs, np.ones(500))
    assert twice == pytest.approx(2 * once, rel=1e-3)
    np.testing.assert_allclose(moved, shift / 2, atol=1e-3)
    # Twenty samples that are told apart do not tell how surely.
    few = np.repeat([-1.0, 1.0], 10)[:, None]
    sharp, _ = calibrated(few, few, np.ones(20))
    assert 0.97 < 1 / (1 + math.exp(-sharp)) < 0.998
    assert calibrated(10 * few, few, np.ones(20))[0] == pytest.approx(sharp / 10)


def test_several_targets_and_one_column() -> None:
    inputs, targets = draw()
    both = np.column_stack([targets, 100 * targets + 5])
    model = OneStepRegressor(**SMALL).fit(inputs, both)
    assert model.predict(inputs).shape == (200, 2)
    assert model.direction_.shape == (2, 8)
    np.testing.assert_allclose(model.predict(inputs)[:, 1], 100 * model.predict(inputs)[:, 0] + 5, atol=1e-6)
    assert OneStepRegressor(**SMALL).fit(inputs, targets[:, None]).predict(inputs).shape == (200, 1)


def test_classes_of_every_kind() -> None:
    inputs, targets = draw(300)
    labels = np.array(["low", "middle", "high"])[np.digitize(targets, [-0.4, 0.4])]
    model = OneStepClassifier(**SMALL).fit(inputs, labels)
    assert model.classes_.tolist() == ["high", "low", "middle"]
    assert model.decision_function(inputs).shape == (300, 3)
    assert model.score(inputs, labels) > RidgeClassifier().fit(inputs, labels).score(inputs, labels)
    two = OneStepClassifier(**SMALL).fit(inputs, targets > 0)
    np.testing.assert_array_equal(two.predict(inputs), two.decision_function(inputs) > 0)
    with pytest.raises(ValueError, match="one class"):
        OneStepClassifier().fit(inputs, np.zeros(300, dtype=int))


def test_features_for_a_pipeline() -> None:
    inputs, targets = draw()
    labels = np.where(targets > 0, "a", "b")
    by_names = OneStepFeatures(**SMALL).fit(inputs, labels)
    by_codes = OneStepFeatures(target="classes", **SMALL).fit(inputs, (targets <= 0).astype(int))
    np.testing.assert_allclose(by_names.transform(inputs), by_codes.transform(inputs))
    assert (
        OneStepFeatures(dtype="float32", **SMALL).fit(inputs, targets).transform(inputs).dtype == np.float32
    )
    pipe = make_pipeline(OneStepFeatures(**SMALL), Ridge())
    search = GridSearchCV(pipe, {"onestepfeatures__step_size": [0.0, 2.0], "ridge__alpha": [1.0, 10.0]}, cv=3)
    assert search.fit(inputs, targets).best_score_ > 0.5
    with pytest.raises(ValueError, match="target must be one of"):
        OneStepFeatures(target="words").fit(inputs, targets)


def test_pandas_in_and_out_clone_and_pickle() -> None:
    pandas = pytest.importorskip("pandas")
    inputs, targets = draw()
    frame = pandas.DataFrame(inputs, columns=[f"c{i}" for i in range(8)])
    maker = OneStepFeatures(**SMALL).set_output(transform="pandas").fit(frame, pandas.Series(targets))
    out = maker.transform(frame)
    assert list(out.columns[:2]) == ["onestepfeatures0", "onestepfeatures1"]
    assert maker.feature_names_in_.tolist() == list(frame.columns)
    model = OneStepRegressor(activation="tanh(2*x)", **SMALL).fit(frame, targets)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(frame), model.predict(frame))
    assert clone(model).get_params() == model.get_params()


def test_weights_are_counts() -> None:
    inputs, targets = draw(50)
    counts = np.random.default_rng(3).integers(0, 4, 50)
    weighted = OneStepRegressor(**SMALL).fit(inputs, targets, sample_weight=counts)
    repeated = OneStepRegressor(**SMALL).fit(np.repeat(inputs, counts, 0), np.repeat(targets, counts))
    np.testing.assert_allclose(weighted.predict(inputs), repeated.predict(inputs), atol=1e-8)
    # Importances that sum to one are counts of mean one.
    shares = OneStepRegressor(**SMALL).fit(inputs, targets, sample_weight=np.full(50, 0.02))
    plain = OneStepRegressor(**SMALL).fit(inputs, targets)
    np.testing.assert_allclose(shares.predict(inputs), plain.predict(inputs), atol=1e-8)


def test_whitening_ignores_invertible_linear_maps() -> None:
    inputs, targets = draw(300)
    mixing = np.random.default_rng(5).standard_normal((8, 8))
    # Up to the rotation of the principal components: compare what does not depend on the random weights.
    first = OneStepRegressor(whiten=True, **SMALL).fit(inputs, targets)
    second = OneStepRegressor(whiten=True, **SMALL).fit(inputs @ mixing, targets)
    along = [
        (data - data.mean(axis=0)) / model.scale_ @ model.direction_
        for model, data in ((first, inputs), (second, inputs @ mixing))
    ]
    assert abs(np.corrcoef(*along)[0, 1]) == pytest.approx(1, abs=1e-8)


def test_small_and_degenerate_data() -> None:
    inputs, targets = draw(20, 3)
    assert np.isfinite(OneStepRegressor(random_state=0).fit(inputs, targets).predict(inputs)).all()
    constant = np.column_stack([inputs, np.full(20, 7.0)])
    np.testing.assert_allclose(
        OneStepRegressor(step_size=0, ridge=0.1, **SMALL).fit(constant, targets).scale_[3], np.inf
    )
    level = OneStepRegressor(**SMALL).fit(inputs, np.full(20, 3.0))
    np.testing.assert_allclose(level.predict(inputs), 3.0)
    same = OneStepRegressor(**SMALL).fit(np.ones((20, 3)), targets)
    np.testing.assert_allclose(same.predict(np.zeros((2, 3))), targets.mean())
    wide = np.random.default_rng(0).standard_normal((30, 100))
    assert np.isfinite(OneStepRegressor(whiten=True, **SMALL).fit(wide, wide[:, 0]).predict(wide)).all()


def test_more_steps_go_on_from_the_first() -> None:
    inputs, targets = draw()
    one = OneStepRegressor(step_size=1.0, ridge=0.1, **SMALL).fit(inputs, targets)
    two = OneStepRegressor(step_size=1.0, ridge=0.1, n_steps=2, **SMALL).fit(inputs, targets)
    still = OneStepRegressor(step_size=0, ridge=0.1, scale=1, **SMALL).fit(inputs, targets)
    first, second = one.weights_ - still.weights_, two.weights_ - one.weights_
    cosine = (first * second).sum() / np.linalg.norm(first) / np.linalg.norm(second)
    assert 0.9 < cosine < 1 - 1e-6
    assert OneStepRegressor(n_steps=3, **SMALL).fit(inputs, targets).score(inputs, targets) > 0.5


def test_single_precision_gives_the_same_answer() -> None:
    inputs, targets = draw(500, 20)
    double = OneStepRegressor(step_size=2.0, ridge=0.01, **SMALL).fit(inputs, targets)
    single = OneStepRegressor(step_size=2.0, ridge=0.01, dtype="float32", **SMALL).fit(inputs, targets)
    assert single.weights_.dtype == np.float32
    np.testing.assert_allclose(single.predict(inputs), double.predict(inputs), atol=1e-3)


def test_memory_is_bounded_by_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_module, "BLOCK_ELEMENTS", 2**15)
    monkeypatch.setattr(readout_module, "KEEP_ELEMENTS", 0)
    inputs, targets = draw(20000, 4)
    tracemalloc.start()
    OneStepRegressor(width=100, random_state=0, step_size=[0.0, 1.0], ridge=[0.01, 0.1]).fit(inputs, targets)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # The features alone would take 16 MB.
    assert peak < 8e6


def test_blocks_do_not_change_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, targets = draw(500)
    whole = OneStepRegressor(**SMALL).fit(inputs, targets).predict(inputs)
    monkeypatch.setattr(step_module, "BLOCK_ELEMENTS", 64 * 40)
    monkeypatch.setattr(readout_module, "KEEP_ELEMENTS", 0)
    np.testing.assert_allclose(
        OneStepRegressor(**SMALL).fit(inputs, targets).predict(inputs), whole, atol=1e-9
    )


def test_progress_is_shown_when_wanted(capsys: pytest.CaptureFixture[str]) -> None:
    inputs, targets = draw(40)
    OneStepRegressor(**SMALL).fit(inputs, targets)
    assert capsys.readouterr().err == ""
    OneStepRegressor(verbose=True, **SMALL).fit(inputs, targets)
    captured = capsys.readouterr()
    assert "100%" in captured.err
    assert captured.out == ""


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"width": 0}, "width must be a whole number of at least 1, got 0"),
        ({"n_steps": 1.5}, "n_steps must be"),
        ({"dtype": "float16"}, "dtype must be one of float64, float32; got 'float16'"),
        ({"step_size": -1.0}, "step_size must be"),
        ({"step_size": "big"}, "step_size must be"),
        ({"ridge": 0.0}, "ridge must be"),
        ({"ridge": [1.0, np.nan]}, "ridge must be"),
        ({"split": 1.0}, "split must be None or a share"),
        ({"split": 0.99}, "leaves"),
        ({"scale": 0.0}, "scale must be"),
        ({"bias": -1.0}, "bias must be"),
        ({"whiten": "all"}, "whiten must be 'step', True or False"),
        ({"bend": "yes"}, "bend must be .auto., True or False"),
        ({"activation": "sign"}, "sign"),
    ],
)
def test_bad_settings_are_named(setting: dict[str, object], message: str) -> None:
    inputs, targets = draw(30)
    with pytest.raises(ValueError, match=message):
        OneStepRegressor(**setting).fit(inputs, targets)  # type: ignore[arg-type]


def test_a_missing_extra_is_named() -> None:
    code = (
        "import sys; sys.modules['sklearn'] = None\n"
        "import firststep\n"
        "try: firststep.OneStepRegressor\n"
        "except ImportError as error: assert 'firststep[sklearn]' in str(error), error\n"
        "else: raise SystemExit('no error')"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("place", ["X", "y"])
def test_numbers_that_cannot_be_squared_are_named(place):
    rng = np.random.default_rng(0)
    data = {"X": rng.standard_normal((30, 3)), "y": rng.standard_normal(30)}
    data[place][7] = 1e200
    with pytest.raises(ValueError, match=f"{place} has 1e.200 in row 7.*cannot be squared"):
        OneStepRegressor(width=20).fit(data["X"], data["y"])


def lognormal(n: int, kind: str) -> tuple[Floats, Floats]:
    """Skewed inputs, and a target that is smooth in their logarithms, or in themselves."""
    rng = np.random.default_rng(3)
    logs = rng.standard_normal((n, 3))
    seen = logs if kind == "logarithms" else np.exp(logs)
    return np.exp(1.5 * logs), seen[:, 0] + np.tanh(seen[:, 1]) + 0.1 * rng.standard_normal(n)


def test_skewed_inputs_are_bent_where_that_helps() -> None:
    inputs, targets = lognormal(600, "logarithms")
    train, test = slice(0, 300), slice(300, None)
    fits = {
        bend: OneStepRegressor(bend=bend, **SMALL).fit(inputs[train], targets[train])
        for bend in ("auto", False)
    }
    assert fits["auto"].bends_ is not None
    assert (fits["auto"].bends_.strengths > 0).all()
    assert fits[False].bends_ is None
    scores = {bend: model.score(inputs[test], targets[test]) for bend, model in fits.items()}
    assert scores["auto"] > scores[False] + 0.02


def test_even_inputs_two_values_and_given_steps_are_left_as_they_are() -> None:
    inputs, targets = draw(100)
    even = np.concatenate([inputs, -inputs])
    assert bends_of(even, np.ones(len(even))) is None
    flags = (np.arange(100) < 5)[:, None] * np.array([1.0, -3.0]) + 7
    assert bends_of(flags, np.ones(100)) is None
    skewed = np.exp(2 * inputs)
    assert OneStepRegressor(step_size=0.5, ridge=0.1, **SMALL).fit(skewed, targets).bends_ is None
    assert (
        OneStepRegressor(step_size=0.5, ridge=0.1, bend=True, **SMALL).fit(skewed, targets).bends_ is not None
    )


def test_a_bend_is_the_logarithm_of_its_formula_and_goes_on_straight() -> None:
    rng = np.random.default_rng(0)
    right = np.exp(2 * rng.standard_normal(200))
    inputs = np.column_stack([right, 5 - right])
    bends = bends_of(inputs, np.ones(200))
    assert bends is not None
    assert bends.signs.tolist() == [1.0, -1.0]
    assert bends.strengths[0] == bends.strengths[1] > 0
    low, unit, k = right.min(), right.mean() - right.min(), bends.strengths[0]
    np.testing.assert_allclose(bends(inputs)[:, 0], np.log1p(k * (right - low) / unit), rtol=1e-12)
    np.testing.assert_allclose(bends(inputs)[:, 1], -bends(inputs)[:, 0], rtol=1e-9, atol=1e-9)
    below = bends(np.array([[low - unit, 5.0], [low - 2 * unit, 5.0]]))[:, 0]
    np.testing.assert_allclose(below, [-k, -2 * k])
