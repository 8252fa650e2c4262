import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firststep import arrays as network
from firststep.arrays import population
from firststep.arrays import ridge as ridge_module
from firststep.arrays.scaled import ScaledActivation
from firststep.gaussian import Function, function

ACTIVATIONS = ("relu", "erf", "tanh", "softplus", "elu", "identity", "hermite(0, 1, 0.5, 0.2)", "abs", "sin")


def arrays(n=30, d=12, width=20, seed=0):
    rng = np.random.default_rng(seed)
    weights = rng.standard_normal((width, d)) / math.sqrt(d)
    readout = rng.standard_normal(width) / math.sqrt(width)
    beta = rng.standard_normal(d)
    beta /= np.linalg.norm(beta)
    inputs = rng.standard_normal((n, d))
    labels = np.tanh(inputs @ beta) + 0.3 * rng.standard_normal(n)
    return inputs, labels, weights, readout, beta


def assert_within(difference, stderr, limit=4.0):
    """A mean is within `limit` standard errors of zero."""
    assert np.all(np.abs(difference) <= limit * stderr), (
        f"{np.max(np.abs(difference) / stderr):.2f} standard errors"
    )


def test_assert_within_rejects_what_is_too_far():
    with pytest.raises(AssertionError, match=r"5\.00 standard errors"):
        assert_within(np.array([0.1, 0.5]), np.array([0.1, 0.1]))


def test_features_are_the_activation_of_the_products():
    inputs, _, weights, _, _ = arrays()
    relu = function("relu")
    expected = np.maximum(inputs @ weights.T, 0) - 1 / math.sqrt(2 * math.pi)
    np.testing.assert_allclose(network.features(inputs, weights, relu), expected, atol=1e-14)


@pytest.mark.parametrize("name", ["tanh", "erf", "softplus", "relu", "h3"])
@pytest.mark.parametrize("output_scale", [1.0, 20**-0.5, 0.0])
def test_gradient_is_minus_the_slope_of_the_loss(name, output_scale):
    inputs, labels, weights, readout, _ = arrays()
    activation = function(name)
    frozen = labels - output_scale * activation(inputs @ weights.T) @ readout

    # With the residual y - f0 held at its value the step is the gradient of this sum, for every output scale.
    def objective(w):
        return frozen @ (activation(inputs @ w.T) @ readout) / len(labels)

    step = network.gradient_step(inputs, labels, weights, readout, activation, output_scale)
    np.testing.assert_allclose(step.gradient, finite_differences(objective, weights), atol=2e-8)
    np.testing.assert_allclose(step.direction, inputs.T @ frozen / len(labels), atol=1e-14)


def test_gradient_at_output_scale_one_is_that_of_half_the_mean_squared_error():
    inputs, labels, weights, readout, _ = arrays()
    activation = function("tanh")

    def loss(w):
        return np.mean((labels - activation(inputs @ w.T) @ readout) ** 2) / 2

    step = network.gradient_step(inputs, labels, weights, readout, activation, 1.0)
    np.testing.assert_allclose(step.gradient, -finite_differences(loss, weights), atol=1e-9)


def finite_differences(objective, weights, size=1e-5):
    result = np.zeros_like(weights)
    for index in np.ndindex(*weights.shape):
        change = np.zeros_like(weights)
        change[index] = size
        result[index] = (objective(weights + change) - objective(weights - change)) / (2 * size)
    return result


def test_gradient_of_the_identity_has_rank_one():
    inputs, labels, weights, readout, _ = arrays()
    step = network.gradient_step(inputs, labels, weights, readout, function("identity"), 1.0)
    np.testing.assert_allclose(step.gradient, np.outer(readout, step.direction), atol=1e-14)


@pytest.mark.parametrize("shape", [(30, 20), (20, 30), (25, 25), (1, 4), (4, 1), (1, 1), (5, 2)])
@pytest.mark.parametrize("ridges", [[0.3], [0.1, 2.0], [1e-6, 1e-3, 0.1, 1.0, 1e3], np.logspace(3, -6, 10)])
@pytest.mark.parametrize("side", ["smaller", "samples", "features"])
def test_ridge_path_solves_the_normal_equations_one_by_one(shape, ridges, side):
    rng = np.random.default_rng(3)
    design, labels = rng.standard_normal(shape), rng.standard_normal(shape[0])
    n, width = shape
    path = network.ridge_path(design, labels, ridges, side, degrees=True)
    for i, ridge in enumerate(ridges):
        regular = design.T @ design + ridge * n * np.eye(width)
        expected = np.linalg.solve(regular, design.T @ labels)
        tolerance = 1e-9 if ridge < 1e-4 else 1e-11
        np.testing.assert_allclose(path.coefficients[i], expected, rtol=tolerance, atol=tolerance)
        mse = np.mean((labels - design @ expected) ** 2)
        dual = ridge * labels @ np.linalg.solve(design @ design.T + ridge * n * np.eye(n), labels)
        np.testing.assert_allclose(path.train_mse[i], mse, rtol=1e-7, atol=1e-14)
        np.testing.assert_allclose(path.train_error[i], dual, rtol=1e-8)
        np.testing.assert_allclose(path.norm_squared[i], expected @ expected, rtol=1e-8)
        hat = np.trace(design @ np.linalg.solve(regular, design.T)) / n
        np.testing.assert_allclose(path.degrees_of_freedom[i], hat, rtol=1e-8, atol=1e-14)


@given(
    st.integers(1, 12),
    st.integers(1, 12),
    st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=5),
    st.integers(0, 100),
)
def test_both_sides_of_the_ridge_path_agree(n, width, ridges, seed):
    rng = np.random.default_rng(seed)
    design, labels = rng.standard_normal((n, width)), rng.standard_normal(n)
    one, other = (
        network.ridge_path(design, labels, ridges, side, degrees=True) for side in ("samples", "features")
    )
    for name in ("coefficients", "train_error", "norm_squared", "degrees_of_freedom"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), rtol=1e-6, atol=1e-10)
    assert np.all((one.degrees_of_freedom >= -1e-12) & (one.degrees_of_freedom <= 1 + 1e-12))


def test_ridge_path_does_not_change_its_arguments():
    rng = np.random.default_rng(3)
    design, labels = rng.standard_normal((9, 7)), rng.standard_normal(9)
    before = design.copy(), labels.copy()
    for ridges in ([1.0], [0.1, 0.2, 0.3]):
        network.ridge_path(design, labels, ridges)
        network.ridge_path(design.T, labels[:7], ridges)
    np.testing.assert_array_equal(design, before[0])
    np.testing.assert_array_equal(labels, before[1])


def test_ridge_below_rounding_error_is_refused_and_never_answered_wrongly():
    design = np.ones((4, 3), dtype=np.float32) * np.float32(1e3)
    for ridges in ([1e-16, 1e-15, 1e-14], np.logspace(-16, -10, 10)):
        with pytest.raises(ValueError, match=r"ridge 1e-16 is below the rounding error"):
            network.ridge_path(design, np.ones(4, dtype=np.float32), ridges)


@pytest.mark.parametrize("step_size", [0.0, 4.0])
def test_rescaling_activation_and_ridge_together_leaves_the_errors(step_size):
    """sigma -> c sigma, lambda -> c^2 lambda; the gradient carries a factor c too, so eta -> eta/c."""
    inputs, labels, weights, readout, beta = arrays(d=40)
    teacher, ridges, c = function("relu"), np.array([0.1, 1.0, 5.0]), 3.0
    results = []
    for name, factor in (("h1 + h2/2", 1.0), ("3*h1 + 3*h2/2", c)):
        activation = function(name)
        step = network.gradient_step(inputs, labels, weights, readout, activation, 0.5 / factor)
        after = weights + step_size / factor * step.gradient
        path = network.ridge_path(
            network.features(inputs, after, activation), labels, factor**2 * ridges, degrees=True
        )
        error = network.population_test_error(
            path.coefficients, after @ after.T, after @ beta, activation, teacher, 0.09
        )
        results.append((path.train_error, error, factor**2 * path.norm_squared, path.degrees_of_freedom))
    for one, other in zip(*results, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10)


def spiked_matrix(size, rank, dtype, spike=10.0):
    """A covariance matrix with outliers, like that of features after a large step."""
    rng = np.random.default_rng(6)
    rows = rng.standard_normal((rank, size)) / math.sqrt(rank)
    rows[0] *= spike
    return (rows.T @ rows).astype(dtype), rng.standard_normal(size)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-9), ("float32", 1e-5)])
@pytest.mark.parametrize("rank", [5, 200, 400])
@pytest.mark.parametrize(
    "shifts", [[0.1], [3.0, 0.01, 0.02], np.logspace(-3, 2, 9), [0.5, 0.5], [100.0, 200.0]]
)
def test_krylov_spaces_solve_for_every_shift(dtype, tolerance, rank, shifts):
    matrix, right = spiked_matrix(300, rank, dtype)
    solutions = network.shifted_solve(matrix.copy(), right, np.array(shifts))
    top = np.linalg.norm(matrix, 2)
    for shift, solution in zip(shifts, solutions, strict=True):
        exact = np.linalg.solve(matrix.astype(float) + shift * np.eye(300), right)
        rounding = 3 * np.finfo(dtype).eps * (top + shift) / shift
        assert np.linalg.norm(solution - exact) < max(tolerance, rounding) * np.linalg.norm(exact)


def test_krylov_spaces_reach_tiny_shifts():
    matrix, right = spiked_matrix(300, 400, "float64")
    shifts = np.logspace(-12, 0, 13)
    solutions = network.shifted_solve(matrix.copy(), right, shifts)
    exact = [np.linalg.solve(matrix + shift * np.eye(300), right) for shift in shifts]
    np.testing.assert_allclose(solutions, exact, rtol=1e-7, atol=1e-7)


def test_krylov_spaces_that_stop_short_are_replaced_and_never_used(monkeypatch):
    matrix, right = spiked_matrix(300, 400, "float64")
    monkeypatch.setattr(ridge_module, "KRYLOV_STEPS", 8)
    shifts = np.array([0.01, 0.02, 3.0])
    with pytest.raises(ValueError, match=r"ridge 0\.01 is below the rounding error"):
        network.shifted_solve(matrix.copy(), right, shifts)
    monkeypatch.setattr(ridge_module, "KRYLOV_RANGE", 1.0)
    exact = [np.linalg.solve(matrix + shift * np.eye(300), right) for shift in shifts]
    np.testing.assert_allclose(network.shifted_solve(matrix.copy(), right, shifts), exact, atol=1e-10)


def test_krylov_space_of_the_identity_has_one_dimension():
    right = np.arange(300.0)
    for shifts in ([0.01, 0.02], [1.0, 3.0], [0.01, 5.0]):
        solutions = network.shifted_solve(np.eye(300), right, np.array(shifts))
        np.testing.assert_allclose(solutions, right / (1 + np.array(shifts)[:, None]), rtol=1e-12)


def test_no_labels_have_no_coefficients():
    path = network.ridge_path(np.random.default_rng(0).standard_normal((400, 300)), np.zeros(400), [0.1, 1.0])
    np.testing.assert_array_equal(path.coefficients, 0.0)
    np.testing.assert_array_equal(path.train_error, 0.0)


def test_a_tridiagonal_matrix_serves_every_shift_as_factorisations_do(monkeypatch):
    matrix, right = spiked_matrix(200, 300, "float64", spike=100.0)
    shifts = np.logspace(-6, 3, 10)
    found = network.shifted_solve(matrix.copy(), right, shifts)
    with monkeypatch.context() as patch:
        patch.setattr(ridge_module, "TRIDIAGONAL_RIDGES", 11)
        alone = network.shifted_solve(matrix.copy(), right, shifts)
    assert np.any(found != alone)
    np.testing.assert_allclose(found, alone, rtol=1e-8, atol=1e-12 * np.abs(alone).max())
    # Also for many more shifts than rows.
    many, two = np.logspace(-3, 3, 300), np.array([[2.0, 1.0], [1.0, 3.0]])
    exact = [np.linalg.solve(two + shift * np.eye(2), [1.0, 2.0]) for shift in many]
    np.testing.assert_allclose(
        network.shifted_solve(two.copy(), np.array([1.0, 2.0]), many), exact, rtol=1e-12
    )


def spiked_design(count, width, spike, seed=6):
    """Features with an outlier, as after a large step, and labels."""
    rng = np.random.default_rng(seed)
    design = rng.standard_normal((count, width)) + spike * np.outer(
        rng.standard_normal(count), rng.standard_normal(width) / math.sqrt(width)
    )
    return design, design[:, 0] + rng.standard_normal(count)


@pytest.mark.parametrize("shape", [(700, 300), (300, 420), (500, 500)])
@pytest.mark.parametrize("spike", [0.0, 30.0])
@pytest.mark.parametrize("ridges", [[1e-3], [1e-3, 0.1], [0.03, 1e-2, 10.0], [2.0, 2.0]])
@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e25])
def test_a_gram_matrix_in_float32_gives_the_fits_of_float64(monkeypatch, shape, spike, ridges, scale):
    monkeypatch.setattr(ridge_module, "REFINED_ROWS", 1)
    design, labels = spiked_design(*shape, spike)
    count = shape[0]
    found = ridge_module._refined_solve(design, design.T @ labels * scale, count * np.array(ridges))
    assert found is not None
    for ridge, solution, product in zip(ridges, *found, strict=True):
        exact = scale * np.linalg.solve(
            design.T @ design + ridge * count * np.eye(shape[1]), design.T @ labels
        )
        assert np.linalg.norm(solution - exact) < 1e-9 * np.linalg.norm(exact)
        np.testing.assert_allclose(product, design @ solution, atol=1e-12 * np.linalg.norm(product))
    # The same by the door that replicas use, in which whichever side is smaller is refined.
    path = network.ridge_path(design, labels, ridges)
    monkeypatch.setattr(ridge_module, "REFINED_ROWS", 10**9)
    plain = network.ridge_path(design, labels, ridges)
    assert np.any(path.coefficients != plain.coefficients)
    np.testing.assert_allclose(path.train_error, plain.train_error, rtol=1e-9)
    np.testing.assert_allclose(path.train_mse, plain.train_mse, rtol=1e-7)
    differences = np.linalg.norm(path.coefficients - plain.coefficients, axis=1)
    assert np.all(differences < 2e-9 * np.linalg.norm(plain.coefficients, axis=1))


def test_a_gram_matrix_in_float32_is_summed_over_rows_that_fit(monkeypatch):
    design = spiked_design(1300, 300, 3.0)[0]
    gram = ridge_module._single_gram(design)
    assert gram.dtype == np.float32
    np.testing.assert_allclose(gram, design.T @ design, rtol=1e-4, atol=1e-3)
    monkeypatch.setattr(ridge_module, "CHUNK_BYTES", 1)
    applied, products = ridge_module._applied(design[:50], design[50:52])
    np.testing.assert_allclose(products, design[50:52] @ design[:50].T, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(applied, products @ design[:50], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("spike", "ridges", "scale"), [(0.0, [1e-12, 1.0], 1.0), (1e4, [1e-2], 1.0), (0.0, [1e50], 1e25)]
)
def test_what_float32_cannot_hold_is_solved_in_float64(spike, ridges, scale):
    """Ridges below its rounding errors, and features whose squares it does not have."""
    design, labels = spiked_design(400, 300, spike)
    design *= scale
    assert ridge_module._refined_solve(design, design.T @ labels, 400 * np.array(ridges)) is None
    path = network.ridge_path(design, labels, ridges)
    for ridge, found in zip(ridges, path.coefficients, strict=True):
        exact = np.linalg.solve(design.T @ design + 400 * ridge * np.eye(300), design.T @ labels)
        np.testing.assert_allclose(found, exact, rtol=1e-4, atol=1e-7 * np.abs(exact).max())


def test_a_refinement_that_does_not_converge_is_never_used(monkeypatch):
    design, labels = spiked_design(400, 300, 3.0)
    moment, shifts = design.T @ labels, np.array([4.0, 400.0])
    assert ridge_module._refined_solve(design, moment, shifts) is not None
    with monkeypatch.context() as patch:
        patch.setattr(ridge_module, "REFINED_ROUNDS", 1)
        assert ridge_module._refined_solve(design, moment, shifts) is None
    # A Gram matrix of other features: the residuals know.
    with monkeypatch.context() as patch:
        other = spiked_design(400, 300, 3.0, seed=7)[0].astype(np.float32)
        patch.setattr(ridge_module, "_single_gram", lambda factor: other.T @ other)
        assert ridge_module._refined_solve(design, moment, shifts) is None
    with monkeypatch.context() as patch:
        patch.setattr(ridge_module, "_conjugate", lambda multiply, right, *rest: np.full_like(right, np.nan))
        assert ridge_module._refined_solve(design, moment, shifts) is None
    # Conjugate gradients want a positive matrix, and give up on one that takes too many of them.
    for value in (-1.0, 0.0):
        found = ridge_module._conjugate(
            lambda v, value=value: value * v, np.ones(3, np.float32), 0.0, 1.0, 1e-4
        )
        assert np.isnan(found).all()
    slow = np.linspace(1e-6, 1, 3000, dtype=np.float32)
    assert np.isnan(ridge_module._conjugate(lambda v: slow * v, np.ones_like(slow), 0.0, 1.0, 1e-6)).all()


def test_moments_add_up_to_the_fit_of_all_rows():
    rng = np.random.default_rng(3)
    design, labels = rng.standard_normal((50, 20)), rng.standard_normal(50)
    one, other = network.Moments.none(20), network.Moments.none(20)
    one.add(design[:7], labels[:7])
    one.add(design[7:30], labels[7:30])
    other.add(design[30:], labels[30:])
    path = one.plus(other).path([0.1, 2.0], degrees=True)
    whole = network.ridge_path(design, labels, [0.1, 2.0], degrees=True)
    for name in ("coefficients", "train_error", "train_mse", "norm_squared", "degrees_of_freedom"):
        np.testing.assert_allclose(getattr(path, name), getattr(whole, name), rtol=1e-11, err_msg=name)


def test_features_after_a_step_are_those_of_the_weights_after_it():
    inputs, _, weights, _, _ = arrays()
    gradient = np.random.default_rng(8).standard_normal(weights.shape)
    for dtype, tolerance in (("float64", 1e-13), ("float32", 1e-5)):
        x, w, g = (array.astype(dtype) for array in (inputs, weights, gradient))
        after = network.features_after(x @ w.T, x @ g.T, 0.7, function("tanh"))
        assert after.dtype == dtype
        np.testing.assert_allclose(after, np.tanh(inputs @ (weights + 0.7 * gradient).T), atol=tolerance)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_tanh_features_are_right_to_rounding_of_one_at_any_size(dtype):
    points = np.linspace(-120, 120, 4001, dtype=dtype)[:, None]
    found = network.features_after(points, np.zeros_like(points), 0.0, function("tanh"))
    assert found.dtype == dtype
    np.testing.assert_allclose(found, np.tanh(points.astype(np.float64)), atol=2 * np.finfo(dtype).eps)


def test_unknown_side_is_refused():
    with pytest.raises(ValueError, match="side must be"):
        network.ridge_path(np.ones((2, 2)), np.ones(2), [1.0], "left")


@pytest.mark.parametrize("name", ["relu", "erf", "identity", "abs", "h2", "sin"])
@pytest.mark.parametrize("teacher", ["h1 + h2/sqrt(2)", "relu", "sign", "tanh"])
def test_series_and_closed_form_give_the_same_test_error(name, teacher, monkeypatch):
    """Random features are nearly orthogonal, so the series converges for every activation."""
    _, _, weights, readout, beta = arrays(d=60, width=40)
    gram, overlaps = weights @ weights.T, weights @ beta
    arguments = np.stack([readout, 3 * readout]), gram, overlaps, function(name), function(teacher), 0.1
    closed = network.population_test_error(*arguments)
    monkeypatch.setattr(Function, "has_covariance", False)
    np.testing.assert_allclose(network.population_test_error(*arguments), closed, rtol=1e-9)


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("teacher", ["relu", "h1 + h2/sqrt(2)", "sign"])
def test_population_test_error_is_the_mean_over_a_large_sample(name, teacher):
    """After a large step, with a kinked and a discontinuous teacher, for unequal norms and large cosines."""
    _, _, weights, readout, beta = arrays(d=30, width=25)
    weights = weights + 1.5 * np.outer(np.sqrt(25) * readout, 0.8 * beta + 0.6 * weights[0])
    activation, target = function(name), function(teacher)
    coefficients = np.stack([readout, 0.3 * readout + 0.1])
    exact = network.population_test_error(
        coefficients, weights @ weights.T, weights @ beta, activation, target, 0.04
    )
    rng = np.random.default_rng(11)
    inputs = rng.standard_normal((60000, 30))
    labels = target(inputs @ beta) + 0.2 * rng.standard_normal(len(inputs))
    losses = (labels - coefficients @ activation(inputs @ weights.T).T) ** 2
    assert_within(losses.mean(axis=1) - exact, losses.std(axis=1) / math.sqrt(len(inputs)))


@pytest.mark.parametrize("name", ["relu", "erf", "tanh", "h2"])
@pytest.mark.parametrize("teacher", ["h1 + h2/sqrt(2)", "sin(2*x)"])
def test_neurons_close_to_each_other_are_taken_apart_from_the_rest(name, teacher, monkeypatch):
    _, _, weights, readout, beta = arrays(d=300, width=400)
    weights[::50] += 3 * np.outer(np.where(np.arange(8) % 2, 1, -1), beta)
    gram, overlaps = weights @ weights.T, weights @ beta
    arguments = np.stack([readout, 3 * readout]), gram, overlaps, function(name), function(teacher), 0.1
    terms, blocks = [], population._series_blocks

    def recorded(cosines, series, variance):
        terms.append(len(series))
        return blocks(cosines, series, variance)

    monkeypatch.setattr(population, "_series_blocks", recorded)
    apart = network.population_test_error(*arguments)
    monkeypatch.setattr(population, "SERIES_SIZE", 1000)
    together = network.population_test_error(*arguments)
    np.testing.assert_allclose(apart, together, rtol=1e-11)
    # The second time by the closed form, or by as many terms as the closest pair needs.
    assert len(terms) == (1 if function(name).has_covariance else 2)
    assert terms[0] < 40
    assert terms[0] < terms[-1] or len(terms) == 1


@pytest.mark.parametrize("name", ["relu", "tanh"])
@pytest.mark.parametrize("width", [60, 500])
def test_population_test_error_reads_no_entry_far_below_the_diagonal(name, width):
    """Blocks of rows begin at their first diagonal element; `WeightProducts.at` sets nothing else."""
    _, _, weights, readout, beta = arrays(d=300, width=width)
    weights[::50] += 3 * np.outer(np.where(np.arange(width // 50 + (width % 50 > 0)) % 2, 1, -1), beta)
    gradient = np.random.default_rng(8).standard_normal(weights.shape) / 300
    arguments = weights @ beta + 0.5 * gradient @ beta, function(name), function("h1 + h2/sqrt(2)"), 0.1
    after = weights + 0.5 * gradient
    exact = network.population_test_error(readout, after @ after.T, *arguments)
    for dtype, tolerance in (("float64", 1e-10), ("float32", 1e-5)):
        given = (array.astype(dtype) for array in (weights, gradient, beta))
        neurons = network.WeightProducts.of(*given).at(0.5)
        assert neurons.cosines.dtype == dtype
        np.testing.assert_allclose(neurons.overlaps, arguments[0], atol=tolerance)
        blank, gram = np.full((2, width, width), np.nan, dtype=dtype)
        for part in population._triangle(width):
            blank[part], gram[part] = neurons.cosines[part], (after @ after.T)[part]
        found = replace(neurons, cosines=blank).test_error(readout, *arguments[1:])
        np.testing.assert_allclose(found, exact, rtol=tolerance)
        found = network.population_test_error(readout, gram, *arguments)
        np.testing.assert_allclose(found, exact, rtol=tolerance)


@pytest.mark.parametrize(
    ("name", "chain", "alone"),
    [
        ("tanh", range(1, 8, 2), ()),
        ("abs", range(0, 9, 2), ()),
        ("relu", range(0, 9, 2), (1,)),
        ("sigmoid", range(1, 8, 2), (0,)),
        ("h2 + h3 + h4 + h5", range(2, 6), ()),
        ("h3", range(3, 4, 2), ()),
        ("h2 + h3", range(2, 3, 2), (3,)),
        ("0*x", range(1), ()),
    ],
)
def test_terms_of_the_series_are_those_that_matter(name, chain, alone):
    activation = function(name, centre=False)
    used = population._used(activation.hermite(9)[:, None])
    assert (used.chain, used.alone) == (chain, alone)
    rng = np.random.default_rng(6)
    rho, rows, columns = rng.uniform(-0.9, 0.9, (4, 5)), rng.uniform(0.5, 2.0, 4), rng.uniform(0.5, 2.0, 5)
    left, right = (activation.hermite_of_scaled(scales, 9).T for scales in (rows, columns))
    expected = sum(np.multiply.outer(left[k], right[k]) * rho**k for k in range(9))
    found = population._series_block(
        rho, left.copy(), right.copy(), population._used(np.hstack([left, right]))
    )
    np.testing.assert_allclose(found, expected, atol=1e-14)


def test_population_test_error_of_parallel_neurons_without_closed_form_is_refused():
    weights = np.array([[1.0, 0.0], [1.0, 1e-9], [0.0, 1.0]])
    with pytest.raises(network.NoPopulationError, match="tanh"):
        network.population_test_error(
            np.ones((1, 3)), weights @ weights.T, weights[:, 0], function("tanh"), function("h1"), 0.0
        )


@pytest.mark.parametrize("name", ["relu", "tanh"])
def test_population_test_error_of_dead_neurons_is_that_of_the_rest(name):
    weights = np.array([[0.8, 0.6], [0.0, 0.0]])
    activation, teacher = function(name, centre=False), function("h1")
    both = network.population_test_error(
        np.ones((1, 2)), weights @ weights.T, weights[:, 0], activation, teacher, 0.0
    )
    alone = network.population_test_error(
        np.ones((1, 1)), np.ones((1, 1)), np.array([0.8]), activation, teacher, 0.0
    )
    np.testing.assert_allclose(both, alone, rtol=1e-12)


def test_interpolated_series_is_the_series_at_every_scale():
    scales = np.random.default_rng(5).uniform(0.7, 4.0, 200)
    # The last two vary too fast for the interpolation, which has to notice.
    for name in ("tanh", "elu", "softplus", "relu", "tanh(x + 1)", "sin(12*x)", "tanh(30*x - 20)"):
        activation = function(name)
        direct = activation.hermite_of_scaled(scales, 30)
        scaled = ScaledActivation(activation, scales)
        np.testing.assert_allclose(scaled.series(30), direct, atol=1e-11)
        variance = activation.gaussian_moments(scales, 0.0)[2]
        np.testing.assert_allclose(scaled.variance, variance, rtol=1e-11)


def test_weight_products_give_the_neurons_after_any_step():
    _, _, weights, _, beta = arrays()
    gradient = np.random.default_rng(8).standard_normal(weights.shape)
    products = network.WeightProducts.of(weights, gradient, beta)
    for step_size in (0.0, 0.7, 40.0):
        after = weights + step_size * gradient
        neurons, scales = products.at(step_size), np.linalg.norm(after, axis=1)
        cosines = after @ after.T / np.outer(scales, scales) - np.eye(len(after))
        np.testing.assert_allclose(neurons.scales, scales, rtol=1e-11)
        np.testing.assert_allclose(neurons.overlaps, after @ beta, rtol=1e-11, atol=1e-11)
        np.testing.assert_allclose(np.triu(neurons.cosines), np.triu(cosines), atol=1e-11)
        np.testing.assert_allclose(neurons.peaks, np.abs(cosines).max(axis=0), rtol=1e-11)


def test_linear_test_error_is_the_mean_over_a_large_sample():
    beta = np.array([0.6, 0.8, 0.0])
    w = np.array([[0.5, 0.1, -0.3], [0.0, 0.0, 0.0]])
    teacher = function("relu")
    rng = np.random.default_rng(2)
    inputs = rng.standard_normal((100000, 3))
    losses = (teacher(inputs @ beta) + 0.5 * rng.standard_normal(len(inputs)) - w @ inputs.T) ** 2
    exact = network.linear_test_error(w, beta, teacher, 0.25)
    assert_within(losses.mean(axis=1) - exact, losses.std(axis=1) / math.sqrt(len(inputs)))


@pytest.mark.parametrize("count", [1, 3])
def test_one_spike_is_all_that_a_step_adds_to_a_linear_network(count):
    inputs, labels, weights, readout, beta = arrays()
    activation = function("identity")
    step = network.gradient_step(inputs, labels, weights, readout, activation, 0.0)
    before = network.OneStep(weights, readout, step.direction, beta, activation, function("tanh"), 0.09)
    model = network.spiked_network(inputs, before)
    after = network.features(inputs, weights + 2.5 * step.gradient, activation)
    np.testing.assert_allclose(
        model.features(network.spike_coefficients(activation, 2.5, count)), after, atol=1e-12
    )


@pytest.mark.parametrize("name", ["relu", "tanh"])
@pytest.mark.parametrize("kind", ["network", "gaussian"])
def test_spiked_models_have_the_test_error_of_a_large_sample(name, kind):
    inputs, labels, weights, readout, beta = arrays(n=60, d=30, width=25)
    activation, teacher = function(name), function("h1 + h2/sqrt(2) + h3")
    direction = 0.9 * beta + 0.1 * np.random.default_rng(9).standard_normal(30)
    strengths = np.array([3.0, -2.0, 1.5])
    rng = np.random.default_rng(12)
    fresh = rng.standard_normal((200000, 30))
    before = network.OneStep(weights, readout, direction, beta, activation, teacher, 0.09)
    if kind == "network":
        model = network.spiked_network(inputs, before)
        design = activation(fresh @ weights.T)
    else:
        model = network.gaussian_equivalent(inputs, rng.standard_normal((60, 25)), before)
        design = activation.hermite(2)[1] * fresh @ weights.T
        design += math.sqrt(activation.tail(2)) * rng.standard_normal(design.shape)
    path, exact = model.fit(labels, [0.1, 1.0, 10.0], strengths)
    for k, strength in enumerate(strengths, start=1):
        design += strength * np.outer((fresh @ direction) ** k, readout**k)
    targets = teacher(fresh @ beta) + 0.3 * rng.standard_normal(len(fresh))
    losses = (targets - path.coefficients @ design.T) ** 2
    assert_within(losses.mean(axis=1) - exact, losses.std(axis=1) / math.sqrt(len(fresh)))
    assert np.max(np.abs(model.base_error(path.coefficients) - exact)) > 0.01


def test_spiked_model_refuses_more_spikes_than_it_was_made_for():
    inputs, labels, weights, readout, beta = arrays()
    before = network.OneStep(weights, readout, beta, beta, function("relu"), function("h1"), 0.0)
    model = network.spiked_network(inputs, before, spikes=1)
    with pytest.raises(ValueError, match="made for 1 spikes, got 2"):
        model.fit(labels, [1.0], [1.0, 1.0])


@pytest.mark.parametrize("shape", [(5, 8), (40, 30), (30, 60)])
def test_top_singular_value_and_vector_are_those_of_the_full_decomposition(shape):
    rng = np.random.default_rng(4)
    weights, gradient = rng.standard_normal(shape), rng.standard_normal(shape)
    value, vector = network.top_singular(weights, gradient, 0.5)
    _, values, right = np.linalg.svd(weights + 0.5 * gradient)
    assert value == pytest.approx(values[0], rel=1e-10)
    assert abs(vector @ right[0]) == pytest.approx(1.0, abs=1e-8)
    assert network.top_singular(weights, gradient, 0.5)[0] == value
