"""The same draws give the same numbers with every array library."""

import importlib
import json
import math
import subprocess
import sys

import numpy as np
import pytest
from click.testing import CliRunner

from firststep import arrays as network
from firststep.arrays import Library
from firststep.arrays.library import BACKENDS, activated, activated_slope
from firststep.cli.app import main
from firststep.cli.options import BACKENDS as OFFERED
from firststep.gaussian import function, names
from firststep.setting import Problem, Sizes
from firststep.simulate import run_replica, simulate

RIDGES = np.logspace(-4, 1, 7)
EVERYTHING = ("spiked", "gaussian", "linear", "weights", "degrees", "controls")
MISSING = {"torch": "PyTorch is large and not part of the test environment: pip install torch"}


@pytest.fixture(params=[name for name in BACKENDS if name != "numpy"])
def library(request):
    pytest.importorskip("array_api_compat", reason="no array-api-compat: pip install array-api-compat")
    pytest.importorskip(request.param, reason=MISSING.get(request.param, f"no {request.param}"))
    return Library(request.param)


def assert_equal_to_rounding(values, expected, tolerance=1e-10):
    """Every entry is within the tolerance, relative to itself or to the largest entry."""
    largest = np.max(np.abs(expected))
    np.testing.assert_allclose(values, expected, rtol=tolerance, atol=tolerance * largest)


def assert_same_values(values, expected, tolerance=1e-10):
    assert values.keys() == expected.keys()
    for name, value in expected.items():
        assert isinstance(values[name], (np.ndarray, np.floating))
        try:
            assert_equal_to_rounding(values[name], value, tolerance)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from None


def test_assert_same_values_rejects_a_wrong_answer():
    right = {"test_error": np.array([1.0, 2.0]), "train_error": np.zeros(1)}
    assert_same_values(right, right)
    with pytest.raises(AssertionError, match="test_error"):
        assert_same_values(right | {"test_error": np.array([1.0, 2.0 + 1e-9])}, right)
    with pytest.raises(AssertionError):
        assert_same_values({"train_error": np.zeros(1)}, right)


def arrays(n=40, d=15, width=25, dtype="float64"):
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((width, d)) / math.sqrt(d)
    readout = rng.standard_normal(width) / math.sqrt(width)
    beta = np.ones(d) / math.sqrt(d)
    inputs = rng.standard_normal((n, d))
    labels = np.tanh(inputs @ beta) + 0.3 * rng.standard_normal(n)
    return [array.astype(dtype) for array in (inputs, labels, weights, readout)], beta


@pytest.mark.parametrize("name", [*(n for n in names() if n != "sign"), "tanh(x + 1)", "hermite(0, 1, 0.5)"])
def test_activations_and_slopes_are_those_of_numpy(library, name):
    points = np.concatenate([np.linspace(-6, 6, 41), [0.0, 30.0, -30.0]]).reshape(4, 11)
    for activation in (function(name), function(name, centre=False)):
        for found, expected in (
            (activated(activation, library.place(points)), activation(points)),
            (activated_slope(activation, library.place(points)), activation.derivative(points)),
        ):
            assert type(found) is type(library.place(points))
            np.testing.assert_allclose(network.host(found), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["relu", "tanh", "h1 + h2/2"])
def test_features_and_gradient_step_stay_in_their_library(library, name):
    activation = function(name)
    drawn, _ = arrays()
    inputs, labels, weights, readout = map(library.place, drawn)
    step = network.gradient_step(inputs, labels, weights, readout, activation, 0.2)
    expected = network.gradient_step(*drawn, activation, 0.2)
    found = network.features(inputs, weights + 2.0 * step.gradient, activation)
    after = network.features_after(inputs @ weights.T, inputs @ step.gradient.T, 2.0, activation)
    design = network.features(drawn[0], drawn[2] + 2.0 * expected.gradient, activation)
    for one, other in (
        (step.gradient, expected.gradient),
        (step.direction, expected.direction),
        (found, design),
        (after, design),
    ):
        assert type(one) is type(inputs)
        assert_equal_to_rounding(network.host(one), other, 1e-12)


@pytest.mark.parametrize("shape", [(60, 40), (40, 60), (420, 300), (300, 420)])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_ridge_path_is_that_of_numpy(library, shape, dtype):
    rng = np.random.default_rng(3)
    design, labels = rng.standard_normal(shape).astype(dtype), rng.standard_normal(shape[0]).astype(dtype)
    tolerance = 1e-10 if dtype == "float64" else 1e-3
    expected = network.ridge_path(design, labels, RIDGES, degrees=True)
    path = network.ridge_path(library.place(design), library.place(labels), RIDGES, degrees=True)
    sums = network.Moments.none(shape[1], library)
    for rows in (slice(0, 17), slice(17, None)):
        sums.add(library.place(design[rows]), library.place(labels[rows]))
    for name in ("coefficients", "train_error", "norm_squared", "degrees_of_freedom"):
        assert_equal_to_rounding(getattr(path, name), getattr(expected, name), tolerance)
    if dtype == "float64" and shape[0] > shape[1]:
        assert_same_values(vars(sums.path(RIDGES, degrees=True)), vars(expected), 1e-9)


def test_ridge_below_rounding_error_is_refused(library):
    design = library.place(np.full((400, 300), 1e3, dtype=np.float32))
    with pytest.raises(ValueError, match=r"ridge \S+e-16 is below the rounding error"):
        network.ridge_path(design, library.place(np.ones(400, dtype=np.float32)), [1e-16, 1e-15])


@pytest.mark.parametrize("name", ["relu", "tanh", "h2", "erf"])
@pytest.mark.parametrize("step_size", [0.0, 3.0])
def test_population_test_error_is_that_of_numpy(library, name, step_size):
    """With a few neurons that are close to each other, which are taken apart from the rest."""
    _, _, weights, readout = arrays(d=300, width=400)[0]
    beta = np.ones(300) / math.sqrt(300)
    weights[::50] += 3 * np.outer(np.where(np.arange(8) % 2, 1, -1), beta)
    gradient = np.random.default_rng(8).standard_normal(weights.shape) / 300
    laws = function(name), function("h1 + h2/sqrt(2)"), 0.1
    coefficients = np.stack([readout, 3 * readout])
    expected = network.WeightProducts.of(weights, gradient, beta).at(step_size)
    found = network.WeightProducts.of(*map(library.place, (weights, gradient, beta))).at(step_size)
    assert type(found.cosines) is type(library.place(weights))
    assert_equal_to_rounding(found.test_error(coefficients, *laws), expected.test_error(coefficients, *laws))


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("sizes", [Sizes(60, 30, 45), Sizes(450, 200, 300), Sizes(300, 200, 400)])
def test_simulation_gives_the_same_numbers(library, activation, sizes):
    problem = Problem(activation, "h1 + h2/sqrt(2)", noise_std=0.5)
    arguments = problem, sizes, [0.0, 3.0, 15.0], RIDGES
    expected = run_replica(*arguments, extras=EVERYTHING, seed=2)
    assert_same_values(run_replica(*arguments, extras=EVERYTHING, seed=2, backend=library.backend), expected)


@pytest.mark.parametrize("options", [{"test": "sample", "n_test": 500}, {"block_rows": 70}])
def test_simulation_gives_the_same_numbers_from_samples_and_blocks(library, options):
    arguments = Problem("tanh", "relu", noise_std=0.5), Sizes(200, 100, 150), [0.0, 5.0], [0.1, 1.0]
    expected = run_replica(*arguments, **options)
    assert_same_values(run_replica(*arguments, **options, backend=library.backend), expected)


def test_single_precision_is_that_of_numpy_to_its_rounding(library):
    arguments = (
        Problem("tanh", "h1 + h2/sqrt(2)", noise_std=0.5),
        Sizes(450, 200, 300),
        [0.0, 5.0],
        [0.1, 1.0],
    )
    expected = run_replica(*arguments, dtype="float32")
    values = run_replica(*arguments, dtype="float32", backend=library.backend)
    for name in ("train_error", "test_error", "readout_norm_squared"):
        assert_equal_to_rounding(values[name], expected[name], 1e-5)


def test_outcome_says_what_computed_it(library):
    arguments = Problem("relu", "h1"), Sizes(40, 20, 30), 1.0
    outcome = simulate(*arguments, replicas=2, workers=2, backend=library.backend)
    assert outcome.details["backend"] == library.backend
    version = importlib.import_module(library.backend).__version__
    assert outcome.details["versions"][library.backend] == version
    assert_same_values(outcome.values, simulate(*arguments, replicas=2).values)


def test_threads_of_torch_are_given_back():
    torch = pytest.importorskip("torch", reason=MISSING["torch"])
    before, seen = torch.get_num_threads(), []
    with Library("torch").one_thread():
        seen.append(torch.get_num_threads())
    assert seen == [1]
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"backend": "numpi"}, "backend must be one of numpy, torch"),
        ({"device": "cuda"}, r"NumPy computes on the cpu, got device='cuda': use backend='torch'"),
    ],
)
def test_wrong_names_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        simulate(Problem("relu", "h1"), Sizes(40, 20, 30), 1.0, **options)


def test_device_that_is_not_there_is_refused():
    pytest.importorskip("torch", reason=MISSING["torch"])
    pytest.importorskip("array_api_compat")
    with pytest.raises(ValueError, match="no arrays on device 'nowhere'"):
        simulate(Problem("relu", "h1"), Sizes(40, 20, 30), 1.0, backend="torch", device="nowhere")


@pytest.mark.parametrize(
    ("missing", "message"), [("array_api_compat", r"firststep\[torch\]"), ("torch", "pip install torch")]
)
def test_library_that_is_missing_is_named(monkeypatch, missing, message):
    pytest.importorskip("array_api_compat")
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ImportError, match=message):
        simulate(Problem("relu", "h1"), Sizes(40, 20, 30), 1.0, backend="torch")


def test_numpy_needs_no_other_library():
    code = (
        "import sys; from firststep import Problem, Sizes, simulate; "
        "simulate(Problem('tanh', 'h1'), Sizes(300, 150, 280), [0, 5], replicas=1, workers=1); "
        "print({'torch', 'array_api_compat', 'array_api_strict'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_command_line_takes_a_backend_and_a_device():
    pytest.importorskip("torch", reason=MISSING["torch"])
    pytest.importorskip("array_api_compat")
    for command in ("simulate", "compare"):
        start = [command, "--n-samples", "40", "--dim", "20", "--width", "30", "--step-size", "1", "--json"]
        plain, other = (
            json.loads(CliRunner().invoke(main, [*start, *options], catch_exceptions=False).stdout)
            for options in ([], ["--backend", "torch", "--device", "cpu"])
        )
        rows, others = ([(key, row[key]) for row in found["rows"] for key in row] for found in (plain, other))
        assert [key for key, _ in rows] == [key for key, _ in others]
        for (key, value), (_, found) in zip(rows, others, strict=True):
            assert found == (pytest.approx(value, rel=1e-9) if isinstance(value, float) else value), key


def test_command_line_names_backends_that_there_are():
    assert set(OFFERED) < set(BACKENDS)
