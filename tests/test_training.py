"""Simulation with a covariance, teachers of several directions, several steps, rules and samples."""

import math
import tracemalloc

import numpy as np
import pytest
from drawn_controls import controls_of

from firststep import Problem, Sizes, simulate
from firststep.gaussian import hermite_polynomials
from firststep.simulate import INTERPRETER_MEMORY, Draw, estimate_memory, run_replica
from firststep.simulate.spectra import gradient_distances, simulate_spectrum

SMALL = Sizes(90, 24, 40, 70)
EQUAL = Sizes(70, 24, 40)
TWO = "levels(0.3, 1.7)"


def written_out(problem, sizes, schedule, ridge, seed=0, test_seed=None):
    """Train error, weights after the steps, readout: the algorithm in the inputs' own coordinates, line by line."""
    draw = Draw(problem, sizes, seed)
    root = np.ones(sizes.dim) if draw.root is None else draw.root
    weights, a = draw.weights(), draw.readout()
    tau = problem.output_law.scale(sizes.width)
    for t, size in enumerate(schedule):
        g, y = draw.step_sample(t + 1 if problem.step_sample == "fresh" else 1)
        x = g * root
        residual = y - tau * problem.activation(x @ weights.T) @ a
        slopes = problem.activation.derivative(x @ weights.T)
        gradient = (a[:, None] * (residual[:, None] * slopes).T) @ x / len(y)
        norm = np.linalg.norm(gradient)
        match problem.step_rule:
            case "whitened":
                gradient = gradient / root**2
            case "sign":
                gradient = np.sign(gradient) * norm / math.sqrt(gradient.size)
            case "muon":
                left, values, right = np.linalg.svd(gradient, full_matrices=False)
                factor = left @ np.diag((values > 1e-10 * values[0]).astype(float)) @ right
                gradient = factor * norm / np.linalg.norm(factor)
        weights = weights + size * gradient
    g, y = draw.fit_sample() if problem.fit_sample == "fresh" else draw.step_sample()
    design = problem.activation((g * root) @ weights.T)
    n = len(y)
    readout = np.linalg.solve(design.T @ design / n + ridge * np.eye(sizes.width), design.T @ y / n)
    train = np.mean((y - design @ readout) ** 2) + ridge * readout @ readout
    rng = np.random.default_rng(99)
    fresh = rng.standard_normal((200_000, sizes.dim))
    labels = problem.teacher.at(fresh @ draw.betas)
    losses = (labels - problem.activation((fresh * root) @ weights.T) @ readout) ** 2
    return (
        train,
        losses.mean() + problem.noise_variance,
        losses.std() / math.sqrt(len(losses)),
        weights * root,
    )


CASES = {
    "covariance": ({"inputs": TWO, "alignment": "weights(0.1, 0.9)"}, SMALL, [3.0]),
    "power law": ({"inputs": "power(1)", "alignment": "eigenvalues", "rows": "sphere"}, SMALL, [3.0]),
    "whitened": ({"inputs": "spiked(10, overlap=0.5)", "step_rule": "whitened"}, SMALL, [3.0]),
    "sign": ({"inputs": "power(0.5)", "step_rule": "sign"}, SMALL, [3.0]),
    "muon": ({"inputs": TWO, "step_rule": "muon"}, SMALL, [3.0]),
    "muon, wide": ({"step_rule": "muon"}, Sizes(90, 50, 30, 20), [3.0]),
    "two steps": ({"initial_output": "order_one"}, SMALL, [3.0, 5.0]),
    "three steps": ({"inputs": TWO, "teacher": "t1 + t1*t2 + t1*t2*t3"}, SMALL, [3.0, 5.0, 2.0]),
    "same sample": ({"step_sample": "same", "step_rule": "whitened", "inputs": TWO}, SMALL, [3.0, 5.0]),
    "own sample": ({"fit_sample": "step"}, EQUAL, [3.0]),
    "own sample, two steps": ({"fit_sample": "step", "teacher": "t1 + relu(t1 - t2)"}, EQUAL, [3.0, 4.0]),
    "several directions": (
        {"teacher": "t1 + tanh(t1)*t2", "inputs": TWO, "alignment": "eigenvalues"},
        SMALL,
        [2.0],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_replica_is_the_algorithm_written_out(name):
    options, sizes, steps = CASES[name]
    problem = Problem(**({"activation": "tanh", "teacher": "h1 + h2/2", "noise_std": 0.3} | options))
    train, test, error, weights = written_out(problem, sizes, steps, 0.1)
    found = run_replica(problem, sizes, [steps], 0.1, extras=["directions"])
    assert found["train_error"][0, 0] == pytest.approx(train, rel=1e-10)
    assert found["test_error"][0, 0] == pytest.approx(test, abs=4 * np.hypot(error, found.test_stderr[0, 0]))
    _, values, vectors = np.linalg.svd(weights)
    betas = Draw(problem, sizes).betas
    for i in range(3):
        assert found[f"top{i + 1}_value"][0, 0] == pytest.approx(values[i], rel=1e-7)
        for k in range(betas.shape[1]):
            expected = (vectors[i] @ betas[:, k]) ** 2
            assert found[f"top{i + 1}_t{k + 1}"][0, 0] == pytest.approx(expected, abs=1e-5)


def test_the_comparison_would_see_another_rule():
    problem = Problem("tanh", "h1 + h2/2", 0.3, inputs=TWO, step_rule="whitened")
    train = written_out(problem, SMALL, [3.0], 0.1)[0]
    found = run_replica(problem.replaced(step_rule="gradient"), SMALL, [3.0], 0.1)
    assert found["train_error"][0, 0] != pytest.approx(train, rel=1e-3)


EVERYTHING = ("spiked", "gaussian", "linear", "weights", "directions", "learned", "degrees", "controls")


@pytest.mark.parametrize(
    ("teacher", "names"),
    [
        ("h1 + h3/6", {"t1": (1,), "h3t1": (3,)}),
        ("t1 + t1*t2 + h2(t2)*t1/2", {"t1": (1, 0), "t1_t2": (1, 1), "t1_h2t2": (1, 2)}),
    ],
)
def test_what_was_learned_is_the_fit_projected_on_the_teacher(teacher, names):
    problem = Problem("relu", teacher, 0.3, inputs=TWO)
    found = run_replica(problem, SMALL, [[3.0, 4.0]], [0.1], extras=["learned"])
    assert {name for name in found if name.startswith("learned")} == {f"learned_{name}" for name in names}
    draw = Draw(problem, SMALL)
    weights = written_out(problem, SMALL, [3.0, 4.0], 0.1)[3]
    g, y = draw.fit_sample()
    design, n = problem.activation(g @ weights.T), len(y)
    readout = np.linalg.solve(design.T @ design / n + 0.1 * np.eye(SMALL.width), design.T @ y / n)
    fresh = np.random.default_rng(5).standard_normal((300_000, SMALL.dim))
    fitted, t = problem.activation(fresh @ weights.T) @ readout, fresh @ draw.betas
    for name, index in names.items():
        product = np.prod([hermite_polynomials(t[:, i], 4)[a] for i, a in enumerate(index)], axis=0)
        known = problem.teacher(t if len(index) > 1 else t[:, 0]) * product
        ratio = np.mean(fitted * product) / np.mean(known)
        noise = np.std(fitted * product - ratio * known) / abs(np.mean(known)) / math.sqrt(300_000)
        assert found[f"learned_{name}"][0, 0] == pytest.approx(ratio, abs=4 * noise)


def test_spiked_approximations_with_a_covariance_and_several_directions():
    for teacher in ("h1 + h2/2", "t1 + t1*t2"):
        problem = Problem("tanh", teacher, 0.3, inputs=TWO, alignment="weights(0.1, 0.9)", rows="sphere")
        values = run_replica(problem, Sizes(600, 300, 400), [2.0], [0.1], extras=["spiked", "gaussian"])
        gain = float(values["test_gain"][0, 0])
        close = values["spiked1_test_error"][0, 0]
        assert close == pytest.approx(values["test_error"][0, 0], abs=0.35 * gain)
        assert np.isfinite(values["gaussian3_test_error"]).all()


@pytest.mark.parametrize("inputs", ["levels(1)", "power(0)", "values(2, 2, 2)"])
def test_isotropic_inputs_given_explicitly_change_no_bit(inputs):
    plain = Problem("relu", "h1 + h2/2", 0.3)
    expected = run_replica(plain, SMALL, [0.0, 4.0], [0.1, 1.0], extras=EVERYTHING)
    found = run_replica(plain.replaced(inputs=inputs), SMALL, [0.0, 4.0], [0.1, 1.0], extras=EVERYTHING)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert np.array_equal(found[name], value), name


def test_a_teacher_of_one_direction_written_with_t1_changes_no_bit():
    expected = run_replica(Problem("relu", "h1 + h2/2"), SMALL, [4.0], 0.1)
    found = run_replica(Problem("relu", "t1 + h2(t1)/2"), SMALL, [4.0], 0.1)
    assert all(found[name] == pytest.approx(value, rel=1e-12) for name, value in expected.items())


def test_a_second_direction_that_does_not_matter():
    one = run_replica(Problem("tanh", "t1 + h3(t1)/6", 0.3), SMALL, [[4.0, 3.0]], 0.1)
    two = run_replica(Problem("tanh", "t1 + h3(t1)/6 + 0*t2", 0.3), SMALL, [[4.0, 3.0]], 0.1)
    for name, value in one.items():
        assert two[name] == pytest.approx(value, rel=1e-9), name


@pytest.mark.parametrize("options", [{}, {"inputs": TWO}, {"step_sample": "same", "step_rule": "muon"}])
def test_steps_of_size_zero_are_none(options):
    problem = Problem("relu", "t1 + t1*t2", 0.3, **options)
    one = run_replica(problem, SMALL, [0.0, 4.0], [0.1, 1.0], extras=["directions", "weights", "degrees"])
    for schedule in ([[0.0, 0.0], [4.0, 0.0]], [[0.0, 0.0, 0.0], [4.0, 0.0, 0.0]]):
        two = run_replica(problem, SMALL, schedule, [0.1, 1.0], extras=["directions", "weights", "degrees"])
        assert two.keys() == one.keys()
        for name, value in one.items():
            assert two[name] == pytest.approx(value, rel=1e-9, abs=1e-12), name
    # After a first step of none the second is a step on another sample.
    late = run_replica(problem, SMALL, [[0.0, 4.0]], 0.1)["train_error"][0, 0]
    if problem.step_sample == "same":
        assert late == pytest.approx(one["train_error"][1, 0])
    else:
        assert late != pytest.approx(one["train_error"][1, 0], rel=1e-6)


def test_a_grid_of_steps_equals_its_rows_alone():
    problem = Problem("relu", "t1 + t1*t2", 0.3)
    schedule = np.array([[4.0, 2.0], [0.0, 2.0], [4.0, 0.5], [4.0, 2.0], [1.0, 0.5]])
    every = run_replica(problem, SMALL, schedule, [0.1, 1.0], extras=["directions"])
    for i, row in enumerate(schedule):
        alone = run_replica(problem, SMALL, [row], [0.1, 1.0], extras=["directions"])
        for name, value in alone.items():
            # A one-row answer has its scalars as they are.
            found = every[name][i] if every[name].ndim else every[name]
            assert found == pytest.approx(value[0] if value.ndim else value, rel=1e-8, abs=1e-10), name


def test_simulate_takes_sequences_of_steps():
    problem = Problem("relu", "t1 + t1*t2", 0.3)
    outcome = simulate(
        problem, SMALL, [1.0, 4.0], [0.1], next_step_exponents=[0.2, 0.4], replicas=3, seed=4, workers=1
    )
    assert outcome.schedule.shape == (4, 2)
    assert outcome.next_step_exponents[:2, 0] == pytest.approx([0.2, 0.4])
    assert outcome.test_error.shape == (4, 1)
    samples = outcome.details["samples"]["test_error"]
    expected = run_replica(problem, SMALL, outcome.schedule, [0.1], seed=4, replica=2)["test_error"]
    assert np.array_equal(samples[2], expected)
    assert [row["next_step_size"] for row in outcome.rows()] == outcome.schedule[:, 1].tolist()
    three = simulate(problem, SMALL, 1.0, 0.1, next_step_sizes=[[1.0], [2.0, 3.0]], replicas=1)
    assert three.schedule.tolist() == [[1, 1, 2], [1, 1, 3]]


def test_streams_of_later_steps_are_their_own():
    draw = Draw(Problem("relu", "h1"), SMALL)
    samples = [draw.step_sample(t)[0] for t in (1, 2, 3)] + [draw.fit_sample()[0]]
    firsts = {float(sample[0, 0]) for sample in samples}
    assert len(firsts) == 4
    noisy = Draw(Problem("relu", "h1", noise_std=1.0), SMALL)
    gap = noisy.step_sample(2)[1] - noisy.step_sample(2)[0] @ noisy.beta
    other = noisy.step_sample(3)[1] - noisy.step_sample(3)[0] @ noisy.beta
    assert abs(np.corrcoef(gap, other)[0, 1]) < 0.5
    # The number of a stream is part of the numbers.
    rng = np.random.default_rng(np.random.SeedSequence(entropy=0, spawn_key=(0, 10)))
    assert samples[1][0] == pytest.approx(rng.standard_normal(SMALL.dim))


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("test", ["auto", "sample"])
def test_blocks_of_rows_with_everything(dtype, test):
    options = {"inputs": TWO, "alignment": "eigenvalues", "fit_sample": "step"}
    problem = Problem("tanh", "t1 + t1*t2", 0.3, **options)
    arguments = problem, EQUAL, [[3.0, 2.0], [0.0, 2.0], [3.0, 0.0]], [0.1, 1.0]
    whole = run_replica(*arguments, dtype=dtype, test=test, extras=["directions"])
    blocks = run_replica(*arguments, dtype=dtype, test=test, extras=["directions"], block_rows=17)
    for name, value in whole.items():
        tolerance = 1e-9 if dtype == "float64" else 2e-3
        assert blocks[name] == pytest.approx(value, rel=tolerance, abs=tolerance), name


def test_other_libraries_with_everything():
    pytest.importorskip("array_api_strict")
    for rule in ("gradient", "whitened", "sign", "muon"):
        problem = Problem("tanh", "t1 + relu(t1 - t2)", 0.3, inputs=TWO, step_rule=rule)
        extras = ["directions", "weights", "linear", "degrees", "controls"]
        arguments = problem, SMALL, [[3.0, 2.0], [0.0, 2.0]], [0.1, 1.0]
        expected = run_replica(*arguments, extras=extras)
        found = run_replica(*arguments, extras=extras, backend="array_api_strict")
        for name, value in expected.items():
            assert found[name] == pytest.approx(value, rel=1e-8, abs=1e-10), (rule, name)


@pytest.mark.parametrize(
    ("inputs", "alignment", "dim"),
    [
        (TWO, "weights(0.1, 0.9)", 30),
        ("spiked(10, overlap=0.3)", "typical", 30),
        ("power(1)", "eigenvalues(2)", 30),
    ],
)
def test_the_teacher_has_the_weights_it_was_given(inputs, alignment, dim):
    problem = Problem("relu", "h1", inputs=inputs, alignment=alignment)
    draw = Draw(problem, Sizes(50, dim, 40))
    covariance = problem.covariance(dim)
    ends = np.cumsum([0, *covariance.counts])
    for i, weight in enumerate(covariance.weights):
        assert np.sum(draw.beta[ends[i] : ends[i + 1]] ** 2) == pytest.approx(weight)
    assert draw.root**2 == pytest.approx(covariance.eigenvalues())
    assert draw.whitened_weights() == pytest.approx(draw.weights() * draw.root)


def test_several_directions_have_the_weights_they_were_given():
    problem = Problem("relu", "t1 + t1*t2*t3", inputs=TWO, alignment="weights(0.1, 0.9)")
    draw = Draw(problem, SMALL)
    assert draw.betas.T @ draw.betas == pytest.approx(np.eye(3), abs=1e-12)
    assert np.sum(draw.betas[:12] ** 2, axis=0) == pytest.approx(np.full(3, 0.9))
    # One-dimensional groups cannot hold orthogonal directions: near the weights, and refused where that cannot be.
    power = Draw(problem.replaced(inputs="power(0.5)", alignment="eigenvalues"), Sizes(300, 200, 100))
    assert power.betas.T @ power.betas == pytest.approx(np.eye(3), abs=1e-12)
    assert power.betas[:, 0] ** 2 @ power.root**2 == pytest.approx(
        power.covariance.teacher_moment(1), rel=0.3
    )
    with pytest.raises(ValueError, match="cannot all have these weights"):
        _ = Draw(problem.replaced(inputs="spiked(10, overlap=1)", alignment="typical"), SMALL).betas
    with pytest.raises(ValueError, match="has 3 directions, more than dim=2"):
        _ = Draw(Problem("relu", "t1 + t1*t2*t3"), Sizes(50, 2, 40)).betas


def test_typical_directions_begin_with_the_single_one():
    one, two = Draw(Problem("relu", "h1"), SMALL), Draw(Problem("relu", "t1 + t1*t2"), SMALL)
    assert two.betas[:, 0] == pytest.approx(one.beta, abs=1e-14)
    tilted = Draw(Problem("relu", "3*t1 + 4*t2 + t1*t2"), SMALL)
    assert tilted.beta == pytest.approx(0.6 * tilted.betas[:, 0] + 0.8 * tilted.betas[:, 1])


@pytest.mark.parametrize("rule", ["gradient", "whitened"])
@pytest.mark.parametrize("output", ["vanishing", "order_one"])
def test_direction_of_a_step_meets_its_limit(rule, output):
    options = {"inputs": TWO, "alignment": "weights(0.1, 0.9)", "initial_output": output, "step_rule": rule}
    problem = Problem("relu", "h1 + h2/2", 0.3, **options)
    sizes = Sizes(1200, 400, 600)
    outcome = simulate(problem, sizes, 1.0, 1.0, replicas=6, workers=1, test="sample", n_test=2)
    squared = np.mean(outcome.details["samples"]["direction_norm"] ** 2)
    expected = problem.direction_norm_squared(sizes)
    assert squared == pytest.approx(expected, rel=0.05)
    power = 1 if rule == "gradient" else 0
    slope = problem.covariance(sizes.dim).teacher_moment(power) ** 2
    assert outcome.alignment == pytest.approx(slope / expected, rel=0.08)


def test_the_whitened_step_is_not_misled_by_a_spike():
    found = {}
    for rule in ("gradient", "whitened", "sign", "muon"):
        for strength in (1, 50):
            inputs = f"spiked({strength}, overlap=0)"
            problem = Problem("tanh", "h1", inputs=inputs, step_rule=rule)
            outcome = simulate(
                problem, Sizes(400, 100, 100), 1.0, 1.0, replicas=6, workers=1, test="sample", n_test=2
            )
            found[rule, strength] = float(outcome.alignment)
    assert found["gradient", 50] < 0.7 * found["gradient", 1]
    assert found["whitened", 50] == pytest.approx(found["whitened", 1], abs=0.02)


def test_control_variates_with_several_directions_and_a_covariance_have_known_means():
    for teacher in ("t1 + t1*t2", "t1 + relu(t1 - t2)", "t1*t2"):
        problem = Problem("tanh", teacher, 0.3, inputs=TWO, alignment="weights(0.2, 0.8)")
        controls = np.array([controls_of(problem, Sizes(20, 8, 10), i) for i in range(1500)])
        assert np.abs(controls.mean(axis=0) / (controls.std(axis=0) / math.sqrt(1500))).max() < 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"problem": Problem("relu", "h1", fit_sample="step")},
            "n_step_samples must equal n_samples, got 70 and 90",
        ),
        ({"next_step_sizes": [1.0], "extras": ["spiked"]}, "spiked describe one step along the gradient"),
        ({"problem": Problem("relu", "h1", step_rule="sign"), "extras": ["gaussian"]}, "step_rule='sign'"),
        ({"next_step_sizes": [1.0], "next_step_exponents": [0.3]}, "not both"),
        ({"next_step_sizes": [-1.0]}, "not negative"),
    ],
)
def test_what_cannot_be_is_refused(change, message):
    arguments = {"problem": Problem("relu", "h1"), "sizes": SMALL, "step_sizes": 1.0} | change
    with pytest.raises(ValueError, match=message):
        simulate(**arguments, replicas=1)


@pytest.mark.parametrize("sizes", [Sizes(800, 400, 600), Sizes(300, 500, 200, 600)])
@pytest.mark.parametrize(
    "options", [{}, {"step_rule": "muon", "inputs": "power(1)"}, {"step_sample": "same"}]
)
@pytest.mark.parametrize("extras", [(), ("directions", "learned")])
def test_memory_estimate_covers_several_steps_and_rules(sizes, options, extras):
    problem = Problem("relu", "t1 + t1*t2", **options)
    run_replica(problem, SMALL, [[1.0, 2.0]], 0.1)
    tracemalloc.start()
    try:
        run_replica(problem, sizes, [[1.0, 2.0], [1.0, 3.0]], 0.1, extras=extras)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    asked = {"extras": extras, "n_step_sizes": 3, "n_steps": 2, "linear_rule": problem.rule.linear}
    estimate = estimate_memory(sizes, **asked) - INTERPRETER_MEMORY
    assert 0.95 * peak < estimate < 2.2 * peak


def test_a_schedule_is_checked():
    with pytest.raises(ValueError, match="not negative"):
        run_replica(Problem("relu", "h1"), SMALL, [[1.0, -1.0]], 0.1)
    with pytest.raises(ValueError, match="non-empty"):
        run_replica(Problem("relu", "h1"), SMALL, np.empty((0, 2)), 0.1)


@pytest.mark.parametrize(
    "name", ["covariance", "muon", "two steps", "three steps", "same sample", "own sample"]
)
def test_spectra_are_those_of_the_weights_and_features_written_out(name):
    options, sizes, steps = CASES[name]
    problem = Problem(**({"activation": "tanh", "teacher": "h1 + h2/2", "noise_std": 0.3} | options))
    whitened = written_out(problem, sizes, steps, 0.1)[3]
    draw = Draw(problem, sizes)
    root = np.ones(sizes.dim) if draw.root is None else draw.root
    options = {"next_step_sizes": steps[1:], "count": 2}
    found = simulate_spectrum(problem, sizes, steps[0], "weights", **options)
    _, values, vectors = np.linalg.svd(whitened / root)
    assert found.details["eigenvalues"][0] == pytest.approx(values**2, rel=1e-9)
    if steps[1:]:
        assert found.details["next_step_sizes"] == steps[1:]
    for k, outlier in enumerate(found.outliers):
        signal = draw.beta * root / np.linalg.norm(draw.beta * root)
        assert outlier.overlaps["beta"] == pytest.approx((vectors[k] @ signal) ** 2, abs=1e-6)
        if draw.root is not None:
            turned = vectors[k] * root / np.linalg.norm(vectors[k] * root)
            assert outlier.overlaps["whitened"] == pytest.approx((turned @ draw.beta) ** 2, abs=1e-6)
        if problem.teacher.directions > 1:
            third = draw.betas[:, 2] * root / np.linalg.norm(draw.betas[:, 2] * root)
            assert outlier.overlaps["t3"] == pytest.approx((vectors[k] @ third) ** 2, abs=1e-6)
    inputs = draw.fit_sample()[0] if problem.fit_sample == "fresh" else draw.step_sample()[0]
    design = problem.activation(inputs @ whitened.T) / math.sqrt(sizes.n_samples)
    left, values, _ = np.linalg.svd(design, full_matrices=False)
    found = simulate_spectrum(problem, sizes, steps[0], "features", **options)
    assert found.details["eigenvalues"][0] == pytest.approx(values**2, rel=1e-8, abs=1e-12)
    along = inputs @ draw.beta
    assert found.outliers[0].overlaps["beta"] == pytest.approx(
        (left[:, 0] @ along) ** 2 / (along @ along), abs=1e-6
    )


def test_spectra_of_several_first_steps_before_a_second_one():
    problem = Problem("relu", "t1 + t1*t2", 0.3)
    several = simulate_spectrum(problem, SMALL, [1.0, 4.0], "features", next_step_sizes=3.0, count=1)
    for step, found in zip((1.0, 4.0), several, strict=True):
        alone = simulate_spectrum(problem, SMALL, step, "features", next_step_sizes=[3.0], count=1)
        assert np.array_equal(found.details["eigenvalues"], alone.details["eigenvalues"])
    with pytest.raises(ValueError, match="approximates the features after one step"):
        simulate_spectrum(problem, SMALL, 1.0, "spiked1", next_step_sizes=3.0)
    with pytest.raises(ValueError, match="is that of the gradient"):
        gradient_distances(problem.replaced(step_rule="sign"), SMALL)


def test_the_gradient_is_near_rank_one_with_a_covariance_too():
    problem = Problem("tanh", "h1", inputs=TWO, initial_output="order_one")
    near, far = gradient_distances(problem, Sizes(400, 200, 300)).mean[0]
    whole = (
        simulate_spectrum(problem, Sizes(400, 200, 300), 1.0, "gradient", count=1).outliers[0].singular_value
    )
    assert near < far
    assert near < whole


def check(outcome, index, train, test, gain=None):
    """Within three combined standard errors of an independent simulator's numbers (value, standard error)."""
    for name, wanted in (("train_error", train), ("test_error", test), ("test_gain", gain)):
        if wanted is not None:
            value, error = outcome[name][index, 0], outcome.stderr[name][index, 0]
            assert abs(value - wanted[0]) < 3 * math.hypot(error, wanted[1]), (name, value, wanted)


def test_check_rejects_a_wrong_number():
    outcome = simulate(Problem("relu", "h1", 0.3), SMALL, 1.0, 0.1, replicas=4)
    good = [(float(outcome[name][0, 0]), 0.0) for name in ("train_error", "test_error")]
    check(outcome, 0, *good)
    with pytest.raises(AssertionError):
        check(outcome, 0, good[0], (good[1][0] * 1.5, 0.0))


# Means and standard errors over 40 or 20 replicas of an independent simulator, rows on the sphere, noise 0.3.
@pytest.mark.slow
def test_covariance_meets_an_independent_simulator():
    sizes, options = (
        Sizes(1000, 500, 750),
        {"inputs": TWO, "alignment": "weights(0.1, 0.9)", "rows": "sphere"},
    )
    exponents = [0.2, 0.35, 0.5]
    steps = [0.0, *sizes.step_size(exponents)]
    tanh = simulate(Problem("tanh", "h1 + h2/2", 0.3, **options), sizes, steps, 0.1, replicas=8, seed=5)
    check(tanh, 0, (0.55876, 0.00575), (0.95549, 0.00579))
    check(tanh, 1, (0.47371, 0.00613), (0.86595, 0.00545), (0.08953, 0.00311))
    check(tanh, 2, (0.47501, 0.00624), (0.85933, 0.00529), (0.09616, 0.00346))
    check(tanh, 3, (0.52050, 0.00685), (0.87123, 0.00497), (0.08426, 0.00411))
    relu = simulate(Problem("relu", "h1 + h2/sqrt(2)", 0.3, **options), sizes, steps, 0.1, replicas=8, seed=5)
    check(relu, 0, (0.88220, 0.01212), (1.81406, 0.01117))
    check(relu, 1, (0.72293, 0.01000), (1.51586, 0.00962), (0.29820, 0.00656))
    check(relu, 2, (0.60909, 0.00742), (1.33505, 0.00813), (0.47901, 0.00887))
    check(relu, 3, (0.52504, 0.00651), (1.24205, 0.00967), (0.57201, 0.01029))


@pytest.mark.slow
def test_several_directions_and_own_samples_meet_an_independent_simulator():
    sizes = Sizes(1000, 500, 750)
    steps = [0.0, *sizes.step_size([0.2, 0.35, 0.5])]
    multi = simulate(
        Problem("tanh", "t1 + 0.7*t1*t2", 0.3, rows="sphere"), sizes, steps, 0.05, replicas=8, seed=5
    )
    check(multi, 0, (0.49415, 0.00589), (1.10694, 0.00684))
    check(multi, 1, (0.41800, 0.00546), (0.99310, 0.00547), (0.11384, 0.00326))
    check(multi, 2, (0.40899, 0.00555), (0.98761, 0.00542), (0.11933, 0.00385))
    check(multi, 3, (0.43186, 0.00602), (1.01541, 0.00556), (0.09152, 0.00437))
    own = Problem("relu", "h1 + h2/sqrt(2)", 0.3, rows="sphere", fit_sample="step")
    same = simulate(own, sizes, steps, 0.1, replicas=8, seed=5)
    check(same, 0, (0.92104, 0.01467), (1.99028, 0.01253))
    check(same, 1, (0.40872, 0.00646), (1.69063, 0.00897), (0.29965, 0.00929))
    check(same, 2, (0.32121, 0.00508), (1.57234, 0.00837), (0.41793, 0.00969))
    check(same, 3, (0.26436, 0.00359), (1.53906, 0.00922), (0.45121, 0.01021))


@pytest.mark.slow
def test_two_steps_meet_an_independent_simulator():
    sizes = Sizes(1500, 300, 600)
    problem = Problem("relu", "t1 + t1*t2", 0.3, rows="sphere")
    options = {"replicas": 8, "seed": 5, "extras": ["directions"]}
    outcome = simulate(
        problem, sizes, step_exponents=[0.35, 0.5], next_step_exponents=[0.35, 0.5], ridges=0.05, **options
    )
    check(outcome, 0, (0.58708, 0.00885), (1.02979, 0.01174), (0.67824, 0.01356))
    check(outcome, 1, (0.48472, 0.00751), (0.87044, 0.00852), (0.83759, 0.01337))
    check(outcome, 3, (0.40296, 0.00557), (0.73397, 0.00780), (0.97405, 0.01296))
    # Overlaps of the first vector with t1 and of the second with t2, and the largest singular values.
    for index, first, second, top in (
        (0, 0.83, 0.431, 13.193),
        (1, 0.787, 0.485, 26.084),
        (3, 0.846, 0.583, 33.605),
    ):
        assert outcome.top1_t1[index, 0] == pytest.approx(first, abs=0.03)
        assert outcome.top2_t2[index, 0] == pytest.approx(second, abs=0.08)
        assert outcome.top1_value[index, 0] == pytest.approx(top, rel=0.05)
