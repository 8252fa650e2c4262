import logging
import math
import os
import pickle
import platform
import signal
import subprocess
import sys
import textwrap
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from drawn_controls import controls_of

from firststep import arrays as network
from firststep.arrays import population
from firststep.compute.processes import Report, run_on_processes
from firststep.gaussian import Function, function
from firststep.results.replicas import Averages, Measured, controlled
from firststep.setting import Problem, Sizes
from firststep.simulate import (
    INTERPRETER_MEMORY,
    Draw,
    available_memory,
    estimate_memory,
    run_replica,
    simulate,
)

QUADRATIC = Problem("relu", "h1 + h2/sqrt(2)", noise_std=0.5)
SMALL = Sizes(60, 30, 45)
EVERYTHING = ("spiked", "gaussian", "linear", "weights", "degrees")


def assert_same(one, other):
    """Every value of the first outcome is in the second, bit for bit."""
    for name, value in one.values.items():
        np.testing.assert_array_equal(value, other.values[name], err_msg=name, strict=True)


def test_assert_same_rejects_the_last_bit():
    outcome = simulate(QUADRATIC, SMALL, 1.0, replicas=2)
    other = simulate(QUADRATIC, SMALL, 1.0, replicas=2)
    other.values["test_error"][0, 0] = np.nextafter(other.values["test_error"][0, 0], 9)
    with pytest.raises(AssertionError):
        assert_same(outcome, other)


# The draw ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", ["gaussian", "sphere"])
@pytest.mark.parametrize("readout", ["gaussian", "rademacher", "constant"])
def test_draw_has_the_laws_it_names(rows, readout):
    draw = Draw(Problem("relu", "h1", rows=rows, readout=readout), Sizes(400, 200, 3000), seed=3)
    norms = np.linalg.norm(draw.weights(), axis=1)
    if rows == "sphere":
        np.testing.assert_allclose(norms, 1.0, rtol=1e-14)
    else:
        assert np.mean(norms**2) == pytest.approx(1, abs=0.01)
        assert np.std(norms**2) == pytest.approx(math.sqrt(2 / 200), rel=0.1)
    scaled = draw.readout() * math.sqrt(3000)
    if readout == "gaussian":
        assert np.mean(scaled**4) == pytest.approx(3, abs=0.5)
    else:
        assert set(np.round(scaled, 12)) == ({1.0} if readout == "constant" else {-1.0, 1.0})
    assert np.linalg.norm(draw.beta) == pytest.approx(1, abs=1e-14)
    inputs, labels = draw.fit_sample()
    np.testing.assert_allclose(labels, inputs @ draw.beta, atol=1e-12)


def test_draw_has_an_independent_stream_for_every_array():
    draw = Draw(QUADRATIC, Sizes(50, 50, 50), seed=3)
    arrays = [
        draw.weights(),
        draw.step_sample()[0],
        draw.fit_sample()[0],
        next(draw.test_blocks(50))[0],
        draw.equivalent_noise(),
    ]
    for i, one in enumerate(arrays):
        for other in arrays[:i]:
            assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < 0.08
    noise = [
        sample[1] - QUADRATIC.teacher(sample[0] @ draw.beta)
        for sample in (draw.step_sample(), draw.fit_sample())
    ]
    assert abs(np.corrcoef(*noise)[0, 1]) < 0.5
    assert np.std(noise) == pytest.approx(0.5, rel=0.3)


def test_both_precisions_see_the_same_draw():
    double, single = (Draw(QUADRATIC, SMALL, seed=3, dtype=dtype) for dtype in ("float64", "float32"))
    for name in ("weights", "readout", "equivalent_noise"):
        array = getattr(single, name)()
        assert array.dtype == np.float32
        np.testing.assert_array_equal(array, getattr(double, name)().astype(np.float32))
    for one, other in zip(single.fit_sample(), double.fit_sample(), strict=True):
        np.testing.assert_array_equal(one, other.astype(np.float32))


def test_test_sample_does_not_depend_on_its_blocks():
    draw = Draw(QUADRATIC, SMALL, seed=3)
    blocks = list(draw.test_blocks(150))
    assert [len(labels) for _, labels in blocks] == [60, 60, 30]
    whole = next(Draw(QUADRATIC, Sizes(150, 30, 45), seed=3).test_blocks(150))
    np.testing.assert_array_equal(np.concatenate([inputs for inputs, _ in blocks]), whole[0])
    np.testing.assert_allclose(np.concatenate([labels for _, labels in blocks]), whole[1], atol=1e-13)


# Same numbers --------------------------------------------------------------------------------------------


def test_workers_change_no_bit():
    arguments = (QUADRATIC, SMALL, [0, 3], [0.1, 0.5, 1.0])
    one = simulate(*arguments, replicas=3, workers=1, extras=EVERYTHING)
    seen = []
    two = simulate(
        *arguments, replicas=3, workers=2, extras=EVERYTHING, progress=lambda *done: seen.append(done)
    )
    assert two.details["workers"] == 2
    assert seen == [(1, 3), (2, 3), (3, 3)]
    assert_same(one, two)
    assert_same(two, one)
    with ThreadPoolExecutor(1) as executor:
        assert_same(one, simulate(*arguments, replicas=3, extras=EVERYTHING, executor=executor))


def test_blas_threads_change_no_bit():
    """A replica pins its BLAS to one thread, whatever the process around it was started with."""
    script = textwrap.dedent("""
        import numpy as np
        from firststep import Problem, Sizes
        from firststep.simulate import run_replica
        values = run_replica(Problem("relu", "h1"), Sizes(400, 200, 300), [0, 5], [0.1, 0.2, 0.3])
        print(" ".join(value.tobytes().hex() for value in values.values()))
    """)
    outputs = [
        subprocess.run(
            [sys.executable, "-c", script],
            env=os.environ | {"OPENBLAS_NUM_THREADS": threads},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for threads in ("1", "2")
    ]
    assert outputs[0] == outputs[1]


def test_more_replicas_leave_the_earlier_ones_alone():
    few = simulate(QUADRATIC, SMALL, [0, 3], replicas=2)
    many = simulate(QUADRATIC, SMALL, [0, 3], replicas=4)
    for name, sample in few.details["samples"].items():
        np.testing.assert_array_equal(sample, many.details["samples"][name][:2])
    alone = run_replica(QUADRATIC, SMALL, [0, 3], [0.1], replica=3)
    np.testing.assert_array_equal(alone["test_error"], many.details["samples"]["test_error"][3])


def test_extras_step_sizes_and_test_samples_leave_the_rest_alone():
    plain = simulate(QUADRATIC, SMALL, [3.0], [0.1], replicas=2)
    assert_same(plain, simulate(QUADRATIC, SMALL, [3.0], [0.1], replicas=2, extras=EVERYTHING))
    more = simulate(QUADRATIC, SMALL, [7.0, 0.0, 3.0], [0.1], replicas=2)
    np.testing.assert_array_equal(more.test_error[2], plain.test_error[0])
    np.testing.assert_array_equal(more.train_gain[2], plain.train_gain[0])
    sampled = simulate(QUADRATIC, SMALL, [3.0], [0.1], replicas=2, test="sample", n_test=100)
    np.testing.assert_array_equal(sampled.train_error, plain.train_error)


def test_seeds_and_replicas_differ():
    one, other = (simulate(QUADRATIC, SMALL, 3.0, replicas=2, seed=seed) for seed in (0, 1))
    samples = np.concatenate([one.details["samples"]["train_error"], other.details["samples"]["train_error"]])
    assert len(np.unique(samples)) == 4


# What is computed ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("initial_output", ["vanishing", "order_one"])
@pytest.mark.parametrize("sizes", [SMALL, Sizes(40, 30, 55, 70)])
def test_replica_is_the_algorithm_written_out(sizes, initial_output):
    """The step, the fit and the errors by the textbook, one step size and ridge at a time."""
    problem = Problem("tanh", "relu", noise_std=0.3, initial_output=initial_output)
    values = run_replica(problem, sizes, [0.0, 4.0], [0.05, 0.7, 2.0], seed=5, n_test=500, test="sample")
    draw = Draw(problem, sizes, seed=5)
    w0, a, (x0, y0), (x, y) = draw.weights(), draw.readout(), draw.step_sample(), draw.fit_sample()
    scale = {"vanishing": sizes.width**-0.5, "order_one": 1.0}[initial_output]
    residual = y0 - scale * np.tanh(x0 @ w0.T) @ a
    gradient = (np.outer(a, residual) * (1 - np.tanh(w0 @ x0.T) ** 2)) @ x0 / sizes.n_step_samples
    direction = x0.T @ residual / sizes.n_step_samples
    assert values["direction_norm"] == pytest.approx(np.linalg.norm(direction), rel=1e-12)
    cosine = direction @ draw.beta / np.linalg.norm(direction)
    assert values["alignment"] == pytest.approx(cosine**2, rel=1e-10)
    blocks = list(draw.test_blocks(500))
    x_test, y_test = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
    n = sizes.n_samples
    errors = {}
    for i, step_size in enumerate([0.0, 4.0]):
        w1 = w0 + step_size * gradient
        f, f_test = np.tanh(x @ w1.T), np.tanh(x_test @ w1.T)
        for j, ridge in enumerate([0.05, 0.7, 2.0]):
            fit = np.linalg.solve(f.T @ f + ridge * n * np.eye(sizes.width), f.T @ y)
            mse = np.mean((y - f @ fit) ** 2)
            errors[i, j] = np.mean((y_test - f_test @ fit) ** 2)
            assert values["train_mse"][i, j] == pytest.approx(mse, rel=1e-9)
            assert values["train_error"][i, j] == pytest.approx(mse + ridge * fit @ fit, rel=1e-9)
            assert values["readout_norm_squared"][i, j] == pytest.approx(fit @ fit, rel=1e-9)
            assert values["test_error"][i, j] == pytest.approx(errors[i, j], rel=1e-9)
            assert values["test_gain"][i, j] == pytest.approx(
                errors[0, j] - errors[i, j], rel=1e-7, abs=1e-12
            )


def test_no_step_is_plain_random_features():
    outcome = simulate(QUADRATIC, SMALL, [0.0, 1e-9], [0.1, 1.0, 10.0], replicas=2)
    np.testing.assert_array_equal(outcome.test_gain[0], 0.0)
    np.testing.assert_array_equal(outcome.train_gain[0], 0.0)
    np.testing.assert_allclose(outcome.test_error[1], outcome.test_error[0], rtol=1e-7)
    draw = Draw(QUADRATIC, SMALL)
    inputs, labels = draw.fit_sample()
    design = network.features(inputs, draw.weights(), QUADRATIC.activation)
    path = network.ridge_path(design, labels, [0.1, 1.0, 10.0])
    np.testing.assert_allclose(outcome.details["samples"]["train_error"][0, 0], path.train_error, rtol=1e-12)


def test_identity_activation_is_ridge_regression_on_transformed_inputs():
    """f(x) = a W x: with orthonormal weights and no step, plain ridge regression on the inputs."""
    problem, sizes = Problem("identity", "relu", noise_std=0.3), Sizes(80, 20, 20)
    draw = Draw(problem, sizes)
    inputs, labels = draw.fit_sample()
    rotation = np.linalg.qr(draw.weights())[0]
    path = network.ridge_path(network.features(inputs, rotation, problem.activation), labels, [0.1, 1.0, 3.0])
    linear = network.ridge_path(inputs, labels, [0.1, 1.0, 3.0])
    np.testing.assert_allclose(path.train_error, linear.train_error, rtol=1e-12)
    exact = network.population_test_error(
        path.coefficients, np.eye(20), rotation @ draw.beta, problem.activation, problem.teacher, 0.09
    )
    expected = network.linear_test_error(linear.coefficients, draw.beta, problem.teacher, 0.09)
    np.testing.assert_allclose(exact, expected, rtol=1e-11)
    outcome = simulate(problem, sizes, 0.0, [0.1, 1.0, 3.0], replicas=1, extras="linear")
    np.testing.assert_allclose(outcome.linear_ridge_train_error[0], linear.train_error, rtol=1e-12)
    np.testing.assert_allclose(outcome.linear_ridge_test_error[0], expected, rtol=1e-12)


def test_linear_baseline_on_both_samples_uses_both():
    outcome = simulate(QUADRATIC, Sizes(60, 30, 45, 80), 1.0, [0.1], replicas=1, extras="linear")
    draw = Draw(QUADRATIC, Sizes(60, 30, 45, 80))
    (x0, y0), (x, y) = draw.step_sample(), draw.fit_sample()
    path = network.ridge_path(np.concatenate([x0, x]), np.concatenate([y0, y]), [0.1])
    np.testing.assert_allclose(outcome.linear_ridge_both_train_error[0], path.train_error, rtol=1e-12)


def test_rotating_the_data_leaves_every_error(monkeypatch):
    plain = run_replica(QUADRATIC, SMALL, [0.0, 5.0], [0.1, 1.0, 2.0], n_test=100, extras=EVERYTHING)
    rotation = np.linalg.qr(np.random.default_rng(1).standard_normal((30, 30)))[0]
    draw = Draw(QUADRATIC, SMALL)
    weights, beta, step, fit = draw.weights(), draw.beta, draw.step_sample(), draw.fit_sample()
    monkeypatch.setattr(Draw, "weights", lambda self: weights @ rotation)
    monkeypatch.setattr(Draw, "beta", beta @ rotation)
    monkeypatch.setattr(Draw, "step_sample", lambda self, number=1: (step[0] @ rotation, step[1]))
    monkeypatch.setattr(Draw, "fit_sample", lambda self: (fit[0] @ rotation, fit[1]))
    turned = run_replica(QUADRATIC, SMALL, [0.0, 5.0], [0.1, 1.0, 2.0], n_test=100, extras=EVERYTHING)
    assert plain.keys() == turned.keys()
    for name, value in plain.items():
        np.testing.assert_allclose(turned[name], value, rtol=1e-8, atol=1e-12, err_msg=name)


def test_infinite_ridge_predicts_nothing():
    outcome = simulate(QUADRATIC, SMALL, [0.0, 5.0], [1e12], replicas=2)
    np.testing.assert_allclose(outcome.test_error, QUADRATIC.label_variance, rtol=1e-9)
    squares = [np.mean(Draw(QUADRATIC, SMALL, replica=k).fit_sample()[1] ** 2) for k in range(2)]
    np.testing.assert_allclose(outcome.train_error, np.mean(squares), rtol=1e-9)


@pytest.mark.parametrize("activation", ["relu", "erf", "tanh", "softplus"])
def test_population_and_sampled_test_errors_agree(activation):
    problem, sizes = Problem(activation, "relu", noise_std=0.3), Sizes(200, 100, 150)
    arguments = problem, sizes, [0.0, 3.0, 15.0], [0.05, 0.5]
    exact = simulate(*arguments, replicas=3, test="population")
    sampled = simulate(*arguments, replicas=3, test="sample", n_test=10000)
    assert set(exact.details["test"]) == {"population"}
    assert set(sampled.details["test"]) == {"sample"}
    error = sampled.details["test_stderr"]
    assert np.all(error > 0)
    assert np.all(np.abs(sampled.test_error - exact.test_error) < 4 * error)
    assert np.all(error < 0.02 * exact.test_error)


def test_sampling_is_used_where_nothing_exact_is_known(monkeypatch):
    """With few terms the series fails at the large step only, and the exact error without a step remains."""
    monkeypatch.setattr(population, "SERIES_TERMS", 40)
    problem, sizes = Problem("tanh", "relu", noise_std=0.3), Sizes(200, 100, 150)
    mixed = simulate(problem, sizes, [0.0, 40.0], replicas=2, n_test=10000)
    assert mixed.details["test"] == ["population", "sample"]
    assert any("measured on 10000 samples" in note for note in mixed.notes)
    np.testing.assert_allclose(mixed.test_gain[1], mixed.test_error[0] - mixed.test_error[1], atol=1e-14)
    sampled = simulate(problem, sizes, [0.0, 40.0], replicas=2, n_test=10000, test="sample")
    np.testing.assert_allclose(mixed.test_gain, sampled.test_gain, atol=1e-12)
    monkeypatch.undo()
    exact = simulate(problem, sizes, [0.0, 40.0], replicas=2, test="population")
    assert abs(mixed.test_error[1] - exact.test_error[1]) < 4 * mixed.details["test_stderr"][1]
    monkeypatch.setattr(population, "SERIES_TERMS", 40)
    with pytest.raises(ValueError, match="no exact test error at step size 40"):
        simulate(problem, sizes, [0.0, 40.0], replicas=1, test="population")


def test_spiked_errors_that_are_not_known_are_refused():
    """Two neurons in one dimension are parallel, and tanh has no closed form."""
    problem, sizes = Problem("tanh", "h1", rows="sphere"), Sizes(10, 1, 3)
    assert np.isfinite(simulate(problem, sizes, 0.0, replicas=2).test_error).all()
    with pytest.raises(ValueError, match="no exact test error of F_l"):
        simulate(problem, sizes, 0.0, replicas=2, extras=("spiked",))


@pytest.mark.parametrize("option", [{"dtype": "float16"}, {"test": "exact"}, {"seed": -1}, {"n_test": 0}])
def test_replica_checks_its_options_too(option):
    with pytest.raises(ValueError, match=f"{next(iter(option))} must be"):
        run_replica(QUADRATIC, SMALL, [1.0], [0.1], **option)


@pytest.mark.parametrize("sizes", [Sizes(90, 30, 45, 70), Sizes(40, 30, 60)])
@pytest.mark.parametrize("test", ["population", "sample"])
def test_blocks_of_rows_change_only_the_rounding(sizes, test):
    arguments = QUADRATIC, sizes, [0.0, 5.0], [0.05, 0.3, 1.0]
    options = {"replicas": 2, "test": test, "n_test": 100, "extras": ("weights", "degrees")}
    whole = simulate(*arguments, **options)
    with ThreadPoolExecutor(2) as executor:
        spread = simulate(*arguments, **options, block_rows=17, parts=3, executor=executor)
    for blocks in (simulate(*arguments, **options, block_rows=32), spread):
        assert blocks.values.keys() == whole.values.keys()
        for name, value in whole.values.items():
            np.testing.assert_allclose(blocks.values[name], value, rtol=1e-8, atol=1e-11, err_msg=name)


def test_parts_of_a_replica_run_on_a_dask_cluster():
    distributed = pytest.importorskip("distributed")
    arguments = QUADRATIC, SMALL, [0.0, 5.0], [0.05, 0.3]
    whole = simulate(*arguments, replicas=1)
    options = {"processes": False, "n_workers": 2, "threads_per_worker": 1, "dashboard_address": ":0"}
    with distributed.Client(**options) as client:
        spread = simulate(*arguments, replicas=1, block_rows=13, parts=2, executor=client.get_executor())
    np.testing.assert_allclose(spread.test_error, whole.test_error, rtol=1e-10)


def test_blocks_of_rows_hold_no_more_than_a_block():
    sizes = Sizes(20000, 100, 120)
    tracemalloc.start()
    try:
        run_replica(QUADRATIC, sizes, [1.0], [0.1, 1.0], block_rows=500)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    estimate = estimate_memory(sizes, block_rows=500, n_step_sizes=2) - INTERPRETER_MEMORY
    assert peak < estimate < 3 * peak
    assert estimate < 0.2 * (estimate_memory(sizes) - INTERPRETER_MEMORY)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"parts": 2}, "parts need block_rows"),
        ({"parts": 2, "block_rows": 10}, "parts need an executor"),
        ({"block_rows": 0}, "block_rows must be at least 1"),
        ({"block_rows": 10, "extras": EVERYTHING}, "spiked, gaussian, linear need the samples as a whole"),
    ],
)
def test_blocks_that_cannot_be_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        simulate(QUADRATIC, SMALL, 1.0, **options)


def test_single_precision_is_close_to_double():
    """Within a hundredth of the standard error of eight replicas, and 1e-4 of each value."""
    sizes = Sizes(400, 200, 300)
    for activation in ("relu", "tanh"):
        problem = Problem(activation, "h1 + h2/sqrt(2)", noise_std=0.5)
        arguments = problem, sizes, sizes.step_size([0.0, 0.3, 0.5]), [1e-2, 0.1, 1.0]
        double = simulate(*arguments, replicas=4, extras="degrees")
        single = simulate(*arguments, replicas=4, extras="degrees", dtype="float32")
        for name in ("train_error", "test_error", "train_mse", "readout_norm_squared", "degrees_of_freedom"):
            np.testing.assert_allclose(single.values[name], double.values[name], rtol=1e-4, err_msg=name)
        for name in ("train_error", "test_error"):
            difference = np.abs(single.values[name] - double.values[name])
            assert np.all(difference < 0.01 * double.stderr[name])


def test_mean_and_standard_error_are_those_of_the_samples():
    outcome = simulate(QUADRATIC, SMALL, [0.0, 5.0], [0.1, 1.0], replicas=5, extras=EVERYTHING)
    for name, sample in outcome.details["samples"].items():
        np.testing.assert_allclose(outcome.values[name], sample.mean(axis=0))
        np.testing.assert_allclose(outcome.stderr[name], sample.std(axis=0, ddof=1) / math.sqrt(5))
    paired = outcome.details["samples"]["test_error"]
    np.testing.assert_allclose(outcome.test_gain, (paired[:, :1] - paired).mean(axis=0), atol=1e-14)
    assert outcome.test_error.shape == (2, 2)
    assert outcome.weights_top.shape == (2, 1)
    assert outcome.linear_ridge_test_error.shape == (1, 2)
    assert outcome.direction_norm.shape == ()
    assert len(outcome.rows()) == 4


def test_control_variates_leave_the_mean_and_know_their_error():
    """Few replicas and a strongly nonlinear dependence, where coefficients from all replicas would bias the mean."""
    rng = np.random.default_rng(4)
    controls = rng.standard_normal((8000, 12, 2))
    sample = np.exp(controls[..., :1]) + controls[..., 1:] ** 3 + 0.1 * rng.standard_normal((8000, 12, 1))
    adjusted = np.array([controlled(*pair) for pair in zip(sample, controls, strict=True)])[..., 0]
    error = adjusted.mean(axis=1) - math.exp(0.5)
    assert abs(error.mean()) < 4 * error.std() / math.sqrt(len(error))
    fits = [np.column_stack([np.ones(12), c]) for c in controls]
    biased = [np.linalg.lstsq(fit, y[:, 0], rcond=None)[0][0] for fit, y in zip(fits, sample, strict=True)]
    assert abs(np.mean(biased) - math.exp(0.5)) > 6 * np.std(biased) / math.sqrt(len(biased))


def test_control_variates_of_a_linear_dependence_leave_only_the_rest():
    rng = np.random.default_rng(4)
    controls = rng.standard_normal((200, 3))
    rest = rng.standard_normal((200, 2, 2))
    sample = 1.0 + rest + 5 * controls.sum(axis=1)[:, None, None]
    adjusted = controlled(sample, controls)
    assert adjusted.shape == sample.shape
    np.testing.assert_allclose(adjusted.std(axis=0), rest.std(axis=0), rtol=0.05)
    one = np.column_stack([np.ones(199), controls[1:]])
    slopes = np.linalg.lstsq(one, sample[1:].reshape(199, -1), rcond=None)[0][1:]
    np.testing.assert_allclose(adjusted[0].ravel(), sample[0].ravel() - controls[0] @ slopes, rtol=1e-10)


def test_control_variates_save_replicas():
    problem, sizes = Problem("tanh", "h1 + h2/sqrt(2)", noise_std=0.5), Sizes(100, 50, 75)
    arguments = problem, sizes, [0.0, 3.0], [0.1, 1.0]
    plain = simulate(*arguments, replicas=60, workers=1)
    saved = simulate(*arguments, replicas=60, workers=1, extras="controls")
    assert saved.values.keys() == plain.values.keys()
    np.testing.assert_array_equal(
        saved.details["samples"]["test_error"], plain.details["samples"]["test_error"]
    )
    for name in ("train_error", "test_error"):
        assert np.all(np.abs(saved.values[name] - plain.values[name]) < 4 * plain.stderr[name])
    assert np.all(saved.stderr["train_error"] < 0.6 * plain.stderr["train_error"])


def test_corrections_leave_the_mean_of_the_higher_precision_and_know_their_error():
    """Fresh draws each time: the low precision is wrong by a fifth of a standard deviation, and noisily so."""
    rng = np.random.default_rng(4)
    errors, spreads = np.empty((2, 1000))
    for k in range(1000):
        exact = 1.0 + rng.standard_normal(160)
        low = exact - 0.2 - 0.1 * rng.standard_normal(160)
        found = [
            Measured(
                {"network": {"test_error": np.full((1, 1), low[r])}},
                np.zeros((1, 1)),
                correction={"test_error": np.full((1, 1), exact[r] - low[r])} if r % 16 == 0 else None,
            )
            for r in range(160)
        ]
        means = Averages.of(found)
        errors[k], spreads[k] = means.values["test_error"][0, 0] - 1.0, means.stderr["test_error"][0, 0]
    assert abs(errors.mean()) < 4 * errors.std() / math.sqrt(1000)
    assert abs(np.mean((errors / spreads) ** 2) - 1) < 4 * math.sqrt(2 / 1000)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_few_replicas_in_float64_correct_those_in_float32(workers):
    problem, sizes = Problem("tanh", "h1 + h2/sqrt(2)", noise_std=0.5), Sizes(100, 50, 75)
    arguments, extras = (problem, sizes, [0.0, 3.0], [1e-5, 0.1]), ("controls", "linear")
    plain = {
        dtype: simulate(*arguments, replicas=40, workers=1, extras=extras, dtype=dtype)
        for dtype in ("float32", "float64")
    }
    both = simulate(*arguments, replicas=40, workers=workers, extras=(*extras, "double"), dtype="float32")
    assert both.values.keys() == plain["float64"].values.keys()
    for name, value in both.values.items():
        low, exact = (plain[dtype].details["samples"][name][::16] for dtype in ("float32", "float64"))
        np.testing.assert_array_equal(both.details["samples"][name][::16], low)
        change = exact - low
        np.testing.assert_allclose(value, plain["float32"].values[name] + change.mean(axis=0), rtol=1e-14)
        added = change.std(axis=0, ddof=1) / math.sqrt(3)
        np.testing.assert_allclose(
            both.stderr[name], np.hypot(plain["float32"].stderr[name], added), rtol=1e-12
        )
        # What is still missing is what the corrections differ by, which is little of what is uncertain anyway.
        assert np.all(np.abs(value - plain["float64"].values[name]) <= 0.01 * both.stderr[name])


@pytest.mark.parametrize("rows", ["gaussian", "sphere"])
@pytest.mark.parametrize("teacher", ["h1 + h2/sqrt(2)", "relu"])
def test_control_variates_have_known_means(rows, teacher):
    problem = Problem("tanh", function(teacher, centre=False), noise_std=0.5, rows=rows)
    sizes = Sizes(30, 12, 20, 25)
    drawn = [controls_of(problem, sizes, k) for k in range(400)]
    whole = run_replica(problem, sizes, [0.0], [1.0], replica=7, extras="controls")
    np.testing.assert_array_equal(drawn[7], whole.controls)
    spread = np.std(drawn, axis=0)
    assert np.all(spread > 1e-3)
    assert np.all(np.abs(np.mean(drawn, axis=0)) < 4 * spread / math.sqrt(400))


def test_control_variates_that_do_not_vary_explain_nothing():
    """In one dimension every row on the sphere is plus or minus the teacher's direction."""
    rng = np.random.default_rng(4)
    sample, controls = rng.standard_normal((30, 2)), rng.standard_normal((30, 3))
    controls[:, 1] = 0.0
    np.testing.assert_allclose(
        controlled(sample, controls), controlled(sample, controls[:, [0, 2]]), rtol=1e-10
    )
    problem, sizes = Problem("relu", "h1", noise_std=0.5, rows="sphere"), Sizes(60, 1, 5)
    saved = simulate(problem, sizes, 0.0, replicas=20, workers=1, extras="controls")
    assert np.isfinite(saved.stderr["test_error"]).all()


def test_one_replica_has_no_standard_error():
    outcome = simulate(QUADRATIC, SMALL, 1.0, replicas=1)
    assert outcome.stderr == {}
    assert outcome.details["samples"]["test_error"].shape == (1, 1, 1)


def test_step_exponents_are_powers_of_the_step_samples():
    sizes = Sizes(60, 30, 45, 80)
    one = simulate(QUADRATIC, sizes, step_exponents=[0.25, 0.5], replicas=1)
    np.testing.assert_allclose(one.step_sizes, [80**0.25, 80**0.5])
    assert_same(one, simulate(QUADRATIC, sizes, one.step_sizes, replicas=1))


def test_weights_extra_is_the_full_decomposition():
    values = run_replica(QUADRATIC, SMALL, [0.0, 20.0], [0.1], extras=("weights",))
    draw = Draw(QUADRATIC, SMALL)
    step = network.gradient_step(
        *draw.step_sample(), draw.weights(), draw.readout(), QUADRATIC.activation, 45**-0.5
    )
    for i, step_size in enumerate([0.0, 20.0]):
        _, singular, right = np.linalg.svd(draw.weights() + step_size * step.gradient)
        assert values["weights_top"][i, 0] == pytest.approx(singular[0], rel=1e-10)
        assert values["weights_alignment"][i, 0] == pytest.approx((right[0] @ draw.beta) ** 2, abs=1e-7)


def test_spiked_approximation_comes_close_to_the_network_and_closer_with_each_spike():
    """On the same draws, at a step where the first two spikes matter."""
    sizes = Sizes(400, 200, 300)
    outcome = simulate(QUADRATIC, sizes, step_exponents=[0.3], replicas=4, extras=("spiked",))
    distances = [abs(outcome.values[f"spiked{k}_test_error"] - outcome.test_error).item() for k in (1, 2)]
    assert distances[1] < 0.6 * distances[0]
    assert distances[1] < 0.25 * outcome.test_gain.item()
    # The third coefficient of relu is zero.
    np.testing.assert_allclose(outcome.spiked3_test_error, outcome.spiked2_test_error, rtol=1e-10)


def test_gaussian_equivalent_has_the_errors_of_random_features():
    sizes = Sizes(400, 200, 300)
    outcome = simulate(QUADRATIC, sizes, [0.0], [0.1, 1.0], replicas=6, extras=("gaussian",))
    samples = outcome.details["samples"]
    for name in ("train_error", "test_error"):
        difference = samples[f"gaussian0_{name}"] - samples[name]
        stderr = difference.std(axis=0, ddof=1) / math.sqrt(6)
        assert np.all(np.abs(difference.mean(axis=0)) < 4 * stderr + 2 / sizes.dim * outcome.values[name])


# Running it ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"replicas": 0}, "replicas must be at least 1, got 0"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
        ({"workers": 0}, "workers must be at least 1"),
        ({"dtype": "float16"}, "dtype must be float64 or float32"),
        ({"test": "exact"}, "test must be one of auto, population, sample"),
        ({"n_test": 1}, "n_test must be at least 2"),
        ({"extras": "controls"}, "extras='controls' needs at least 20 replicas, got 8"),
        ({"extras": "double", "dtype": "float32"}, "extras='double' needs at least 17 replicas, got 8"),
        ({"extras": "double"}, "double corrects what dtype='float32' leaves out; got dtype='float64'"),
        ({"extras": ("spikes",)}, "extras must be among spiked, .*, controls, double; got 'spikes'"),
        ({"ridges": [0.1, -1.0]}, "ridge must be positive"),
        ({"step_sizes": [-1.0]}, "step sizes must be finite and not negative"),
        ({"step_exponents": [0.1]}, "not both"),
    ],
)
def test_bad_input_is_refused_with_what_is_wanted(change, message):
    with pytest.raises(ValueError, match=message):
        simulate(**({"problem": QUADRATIC, "sizes": SMALL, "step_sizes": 1.0} | change))


@pytest.mark.parametrize("change", [{"replicas": 2.5}, {"seed": "0"}, {"workers": True}])
def test_numbers_that_must_be_whole_are(change):
    with pytest.raises(TypeError, match="must be a whole number"):
        simulate(QUADRATIC, SMALL, 1.0, **change)


def test_progress_function_sees_every_replica():
    seen = []
    simulate(QUADRATIC, SMALL, 1.0, replicas=3, workers=1, progress=lambda *done: seen.append(done))
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_quick_replicas_go_together_and_are_counted_one_by_one(monkeypatch):
    asked, seen = [], []

    def sent(workers, task, arguments, report, together):
        asked.append(together)
        return run_on_processes(workers, task, arguments, report, together)

    monkeypatch.setattr(sys.modules["firststep.simulate"], "run_on_processes", sent)
    one = simulate(QUADRATIC, SMALL, 1.0, replicas=25, workers=1)
    two = simulate(QUADRATIC, SMALL, 1.0, replicas=25, workers=2, progress=lambda *done: seen.append(done))
    np.testing.assert_array_equal(one.details["samples"]["test_error"], two.details["samples"]["test_error"])
    assert asked == [3]
    assert seen == [(count, 25) for count in range(1, 26)]
    # What takes its time goes alone.
    simulate(QUADRATIC, Sizes(700, 500, 600), 1.0, replicas=8, workers=2)
    assert asked[1:] == [1]


def test_progress_bar_comes_late_on_a_terminal_and_never_elsewhere(monkeypatch, capsys):
    simulate(QUADRATIC, SMALL, 1.0, replicas=2)
    report = Report(True, 4)
    report.tick()
    assert report.bar is None
    report.started -= 10
    report.counted({})
    assert report.bar.tasks[0].completed == 1
    report.bar.stop()
    silent = Report(False, 4)
    silent.started -= 10
    silent.counted({})
    assert silent.bar is None
    assert capsys.readouterr().out == ""


def test_lambda_runs_here_and_is_refused_by_workers():
    problem = Problem(function(lambda x: np.tanh(x), derivative=lambda x: 1 - np.tanh(x) ** 2), "h1")
    assert np.isfinite(simulate(problem, SMALL, 1.0, replicas=2).test_error).all()
    with pytest.raises(ValueError, match="cannot be sent to worker processes"):
        simulate(problem, SMALL, 1.0, replicas=2, workers=2)


def test_script_without_a_main_guard_can_use_workers(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "from firststep import Problem, Sizes, simulate\n"
        "print('once')\n"
        "outcome = simulate(Problem('relu', 'h1'), Sizes(40, 20, 30), 1.0, replicas=2, workers=2)\n"
        "print(outcome.details['workers'])\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["once", "2"]


def printed(tmp_path, code):
    """What a script prints; it runs with its own multiprocessing, and BLAS threads as the user's are."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(code))
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, check=True, env=environment
    )
    return done.stdout.split()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere processes are not forked")
def test_workers_of_all_calls_come_from_one_server_and_start_one_blas_thread(tmp_path):
    code = """
        import os
        from pathlib import Path
        from firststep import Problem, Sizes, simulate
        from firststep.compute.processes import Report, run_on_processes

        simulate(Problem("relu", "h1"), Sizes(40, 20, 30), 1.0, replicas=2, workers=2)
        asked = [(Path("/proc/self/status"),)] * 3
        parents = set()
        for _ in range(2):
            for status in run_on_processes(2, Path.read_text, asked, Report(False, 3)):
                parents.add(status.split("PPid:")[1].split()[0])
        (threads,) = run_on_processes(1, os.getenv, [("OPENBLAS_NUM_THREADS",)], Report(False, 1))
        print(len(parents), str(os.getpid()) in parents, threads, os.getenv("OPENBLAS_NUM_THREADS"))
    """
    assert printed(tmp_path, code) == ["1", "False", "1", "None"]


def test_a_problem_from_the_script_reaches_the_workers(tmp_path):
    code = """
        import numpy as np
        from firststep import Problem, Sizes, function, simulate

        def bent(x):
            return np.tanh(x)

        if __name__ == "__main__":
            problem = Problem(function(bent), "h1")
            one, two = (simulate(problem, Sizes(40, 20, 30), 1.0, replicas=2, workers=w) for w in (1, 2))
            print(two.details["workers"], np.array_equal(one.test_error, two.test_error))
    """
    assert printed(tmp_path, code) == ["2", "True"]


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told")
@pytest.mark.parametrize("kept", [True, False])
def test_workers_keep_memory_that_they_free(kept, tmp_path):
    """New pages are faults: many for arrays that come and go, unless their memory stays in the process."""
    code = f"""
        import resource
        import numpy as np
        from firststep.compute.processes import keep_memory

        if {kept}:
            keep_memory()

        def come_and_go():
            arrays = [np.ones(400_000) for _ in range(5)]
            return sum(array[-1] for array in arrays)

        come_and_go()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(10):
            come_and_go()
        print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    """
    (faults,) = printed(tmp_path, code)
    assert int(faults) < 200 if kept else int(faults) > 1000


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_workers_end_with_the_process_that_started_them(sent, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "from firststep import Problem, Sizes, simulate\n"
        "ready = lambda done, _: done == 1 and print('ready', flush=True)\n"
        "setting = Problem('relu', 'h1'), Sizes(1000, 500, 750), [0, 1, 2]\n"
        "simulate(*setting, replicas=1000, workers=2, progress=ready)\n"
    )
    process = subprocess.Popen(
        [sys.executable, script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    # The workers are at work, with a thousand replicas before them.
    assert process.stdout.readline() == "ready\n"
    process.send_signal(sent)
    _, errors = process.communicate(timeout=20)
    assert process.returncode != 0
    assert sent == signal.SIGKILL or errors.strip().endswith("KeyboardInterrupt")
    assert group_is_gone(process.pid)


def group_is_gone(group, seconds=10.0):
    """Whether the last process of a group ends in time (multiprocessing's own helper outlives its parent briefly)."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


def test_group_is_gone_sees_a_process_that_is_left():
    process = subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True
    )
    assert not group_is_gone(process.pid, seconds=0.2)
    process.communicate(b"\n")
    assert group_is_gone(process.pid)


class Deadly(Function):
    """A teacher that ends whatever process it is sent to."""

    def __reduce__(self):
        return os._exit, (9,)


def test_dead_worker_is_named():
    relu = function("relu")
    problem = Problem(relu, Deadly(*(getattr(relu, name) for name in relu.__dataclass_fields__)))
    with pytest.raises(RuntimeError, match="a worker process died when 0 of 2 replicas were done"):
        simulate(problem, SMALL, 1.0, replicas=2, workers=2)


def test_error_in_a_worker_is_raised_as_it_is(monkeypatch):
    tiny = Sizes(4, 2, 3)
    with pytest.raises(ValueError, match="rounding error"):
        simulate(Problem("h3", "h1"), tiny, [1e6], [1e-15], replicas=2, workers=2, dtype="float32")


# Memory --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sizes", [Sizes(1000, 500, 750), Sizes(300, 200, 1500), Sizes(2000, 300, 300), Sizes(500, 300, 300, 4000)]
)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("options", [{}, {"test": "sample"}, {"extras": EVERYTHING}])
def test_memory_estimate_covers_what_is_used(sizes, dtype, options):
    tracemalloc.start()
    try:
        run_replica(
            QUADRATIC, sizes, [1.0], [0.1, 0.2, 0.3], dtype=dtype, n_test=2 * sizes.n_samples, **options
        )
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    estimate = estimate_memory(sizes, dtype=dtype, **options)
    assert peak < estimate
    assert estimate - INTERPRETER_MEMORY < 2 * peak


def test_run_that_cannot_fit_is_refused_before_it_starts():
    huge = Sizes(200_000, 100_000, 150_000)
    with pytest.raises(
        MemoryError,
        match=r"needs about .* GiB .* are available: use block_rows=1000, smaller sizes or dtype='float32'",
    ):
        simulate(QUADRATIC, huge, 1.0)
    need = estimate_memory(SMALL)
    with pytest.raises(MemoryError, match="use workers=2"):
        simulate(QUADRATIC, SMALL, 1.0, replicas=4, workers=3, memory_limit=2 * need)
    assert simulate(QUADRATIC, SMALL, 1.0, replicas=2, memory_limit=need).details["workers"] == 1


def test_large_run_states_its_memory(monkeypatch, caplog):
    monkeypatch.setattr(sys.modules["firststep.simulate"], "LARGE_MEMORY", 1)
    with caplog.at_level(logging.INFO, logger="firststep"):
        simulate(QUADRATIC, SMALL, 1.0, replicas=2, memory_limit=2**30)
    assert caplog.messages == ["2 replicas on 1 workers: 0.125 GiB of 1 GiB"]


def test_available_memory_is_plausible():
    assert 2**24 < available_memory() < 2**50


def test_outcome_can_be_pickled():
    outcome = simulate(QUADRATIC, SMALL, 1.0, replicas=2)
    assert_same(outcome, pickle.loads(pickle.dumps(outcome)))
