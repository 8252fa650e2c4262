"""Predicted spectra against known laws, exact moments and themselves."""

import csv
import math
from pathlib import Path

import numpy as np
import pytest
from scipy.integrate import trapezoid

from firststep.gaussian import Array
from firststep.results import Spectrum
from firststep.setting import Problem, Sizes
from firststep.theory import equations
from firststep.theory.coefficients import Resolution, geometry_of, tables_of
from firststep.theory.limits.weights import spiked_weights
from firststep.theory.spectra.feature_bulk import FeatureBulk
from firststep.theory.spectra.spectrum import Follower, critical_steps, expected_outliers, predict_spectrum
from firststep.theory.spectra.weight_bulk import _mean_inverse

DATA = Path(__file__).parent / "data"
TEACHER = "h1 + h2/sqrt(2)"


def integrate(spectrum: Spectrum, power: int) -> float:
    """Moment of the density: the midpoint rule in the angle that unfolds square-root edges."""
    total = 0.0
    for low, high in spectrum.intervals:
        own = (spectrum.x > low) & (spectrum.x < high)
        root = np.sqrt(np.concatenate([[low], spectrum.x[own], [high]]))
        values = 2 * root[1:-1] ** (2 * power + 1) * spectrum.density[own]
        first = values[0] if low == 0 and power == 0 else 0.0
        total += float(trapezoid(np.concatenate([[first], values, [0.0]]), root))
    return total


def marchenko_pastur(x: Array, ratio: float) -> Array:
    """Density of the eigenvalues of X^T X/m, X of shape (m, k) with unit entries and k/m = ratio."""
    low, high = (1 - math.sqrt(ratio)) ** 2, (1 + math.sqrt(ratio)) ** 2
    return np.sqrt(np.maximum((high - x) * (x - low), 0.0)) / (2 * math.pi * ratio * x)


def test_weights_without_a_step_follow_the_published_marchenko_pastur_law() -> None:
    with (DATA / "marchenko_pastur.csv").open() as file:
        rows = [(float(row["x"]), float(row["density"])) for row in csv.DictReader(file)]
    # W W^T with W of shape (N, d) and entries of variance 1/d is the law of ratio N/d.
    found = predict_spectrum(
        Problem("tanh", "identity"), Sizes(1000, 1000, 500), 0.0, of="weights", points=400
    )
    for x, density in rows:
        assert np.interp(x, found.x, found.density) == pytest.approx(density, abs=2e-4)
        assert np.interp(x, found.x, 1.02 * found.density) != pytest.approx(density, abs=2e-4)
    assert found.edges == pytest.approx(((1 - math.sqrt(0.5)) ** 2, (1 + math.sqrt(0.5)) ** 2), rel=1e-4)
    assert not found.outliers


@pytest.mark.parametrize("ratio", [0.2, 1.5, 4.0])
def test_weights_density_is_right_up_to_the_edges(ratio: float) -> None:
    found = predict_spectrum(
        Problem("tanh", "identity"), Sizes(600, 500, int(500 * ratio)), 0.0, of="weights"
    )
    exact = marchenko_pastur(found.x, ratio)
    # The outermost points see an error of 1e-5 in the edges.
    assert np.abs(found.density - exact)[2:-2].max() < 1e-3 * exact.max()
    assert not np.abs(found.density - 1.01 * exact)[2:-2].max() < 1e-3 * exact.max()
    assert found.edges == pytest.approx(((1 - math.sqrt(ratio)) ** 2, (1 + math.sqrt(ratio)) ** 2), rel=1e-4)
    assert found.atom == pytest.approx(max(0.0, 1 - 1 / ratio))
    assert integrate(found, 0) + found.atom == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize(("step", "top", "alignment"), [(3.0, 2.239, 0.119), (5.0, 2.668, 0.399)])
def test_spike_of_the_weights_is_where_the_closed_form_has_it(
    step: float, top: float, alignment: float
) -> None:
    problem, sizes = Problem("tanh", "relu", noise_std=0.3), Sizes(3000, 1500, 2250)
    (spike,) = predict_spectrum(problem, sizes, step, of="weights").outliers
    assert spike.singular_value == pytest.approx(top, abs=1e-3)
    assert spike.overlaps["beta"] == pytest.approx(alignment, abs=1e-3)
    assert not predict_spectrum(problem, sizes, 2.0, of="weights").outliers


def test_spike_of_the_weights_for_an_output_of_order_one() -> None:
    problem = Problem("tanh", "h1", noise_std=0.5, initial_output="order_one")
    sizes = Sizes(2000, 1000, 1500)
    exact = spiked_weights(problem, sizes, [4.0, 8.0])
    for i, step in enumerate((4.0, 8.0)):
        (spike,) = predict_spectrum(problem, sizes, step, of="weights", rest="none").outliers
        assert spike.singular_value == pytest.approx(exact.top[i], rel=1e-4)
        assert spike.overlaps["beta"] == pytest.approx(exact.alignment[i], rel=1e-3)


def exact_moments(problem: Problem, sizes: Sizes) -> tuple[float, float]:
    """E tr F F^T/n^2 and the limit of E tr (F F^T)^2/n^3 without a step, by direct calculation.

    The entries have variance v = E sigma^2. Pairs of entries in one row (one column) are correlated through the
    overlap of two weights (inputs): E s(x.w) s(x.w') = c_1^2 w.w' + ..., and the four-cycle through both.
    """
    v, c1 = problem.activation.second_moment, float(problem.activation.hermite(2)[1])
    n, d, width = sizes.n_samples, sizes.dim, sizes.width
    ratio = width / n
    first = v * ratio
    # tr (F F^T)^2/n^3 = sum_{i,k,j,l} F_ij F_kj F_kl F_il/n^3: k = i, l = j, and four distinct indices.
    second = v**2 * ratio**2 + v**2 * ratio + c1**4 * ratio**2 * n / d
    return first, second


@pytest.mark.parametrize("activation", ["tanh", "relu", "identity"])
@pytest.mark.parametrize("sizes", [Sizes(1000, 500, 750), Sizes(1000, 200, 2000), Sizes(800, 1600, 400)])
def test_moments_of_the_density_are_the_traces(activation: str, sizes: Sizes) -> None:
    problem = Problem(activation, TEACHER, rows="sphere")
    found = predict_spectrum(problem, sizes, 0.0)
    for power, exact in enumerate(exact_moments(problem, sizes), start=1):
        assert integrate(found, power) == pytest.approx(exact, rel=1e-3)
        assert integrate(found, power) * 1.01 != pytest.approx(exact, rel=1e-3)
    assert found.details["mass"] == pytest.approx(1, abs=2e-3)


def test_first_moment_after_a_step_is_the_mean_square_of_a_feature() -> None:
    # The bulk and the spikes' outliers share it: outliers add their eigenvalue over n.
    problem, sizes = Problem("tanh", TEACHER, noise_std=0.5), Sizes(2000, 1000, 1500)
    step = 15.0
    found = predict_spectrum(problem, sizes, step)
    size = problem.direction_norm_squared(sizes)
    slope = float(problem.activation.hermite(2)[1])
    rest = problem.activation.derivative_second_moment - slope**2
    u, weights = np.polynomial.hermite_e.hermegauss(60)
    grown = 1 + u**2 * step**2 / sizes.width * (
        slope**2 * size + sizes.step_ratio * problem.label_variance * rest
    )
    squares = problem.activation.gaussian_moments(np.sqrt(grown), np.zeros_like(u))[2]
    exact = float(weights @ squares / weights.sum()) * sizes.width / sizes.n_samples
    total = integrate(found, 1) + sum(o.eigenvalue for o in found.outliers) / sizes.n_samples
    assert total == pytest.approx(exact, rel=5e-3)


def test_linear_network_is_a_product_of_two_random_matrices() -> None:
    # The identity's features X W^T: the Stieltjes transform solves a cubic equation.
    sizes = Sizes(1000, 700, 1300)
    found = predict_spectrum(Problem("identity", "identity"), sizes, 0.0)
    n, d, width = sizes.n_samples, sizes.dim, sizes.width
    for i in range(20, 180, 20):
        x = float(found.x[i])
        # Two Marchenko-Pastur laws, multiplied freely: (N/n)(1 + (n/d) M)(1 + M)(1 + (n/N) M) = x M for the moment
        # generating function M at 1/x, whose imaginary part is pi x times the density.
        z = width / (n * x)
        coefficients = np.polymul(np.polymul([1.0, 1.0], [n / d, 1.0]), [n / width, 1.0]) * z
        coefficients[-2] -= 1.0
        m = max(np.roots(coefficients), key=lambda root: root.imag)
        density = m.imag / (math.pi * x)
        assert found.density[i] == pytest.approx(density, rel=1e-3)


def test_the_settings_of_the_paper_have_these_outliers() -> None:
    problem = Problem("relu", TEACHER, noise_std=0.5, initial_output="order_one")
    sizes = Sizes(2000, 1000, 1500)
    for exponent, wanted in ((0.2, [3.84]), (0.3, [15.08, 2.12]), (0.4, [68.4, 15.16])):
        found = predict_spectrum(problem, sizes, sizes.step_size(exponent))
        assert [o.eigenvalue for o in found.outliers] == pytest.approx(wanted, rel=5e-3)
        assert all(o.over_edge == pytest.approx(o.eigenvalue / found.edges[1]) for o in found.outliers)
    first, second = found.outliers
    # The first spike is linear in z and in a, the second quadratic.
    assert first.overlaps["h1"] > 0.99
    assert first.overlaps["a1"] > 0.98
    assert second.overlaps["z2"] > 0.85
    assert second.overlaps["a2"] > 0.9
    assert second.overlaps["h1"] < 1e-3
    assert second.overlaps["z2"] <= 1
    assert sum(first.overlaps[f"h{k}"] for k in range(5)) <= 1


def test_scaling_the_activation_scales_the_spectrum() -> None:
    sizes = Sizes(600, 300, 400)
    one = predict_spectrum(Problem([0, 1, 0.3, 0.2], "identity", 0.5), sizes, 8.0)
    two = predict_spectrum(Problem([0, 2, 0.6, 0.4], "identity", 0.5), sizes, 4.0)
    assert two.edges == pytest.approx(tuple(4 * edge for edge in one.edges), rel=1e-3)
    assert [o.eigenvalue for o in two.outliers] == pytest.approx(
        [4 * o.eigenvalue for o in one.outliers], rel=1e-4
    )


@pytest.mark.parametrize("rows", ["gaussian", "sphere"])
@pytest.mark.parametrize("readout", ["gaussian", "rademacher", "constant"])
@pytest.mark.parametrize("initial_output", ["vanishing", "order_one"])
def test_every_kind_of_problem_has_a_density_of_mass_one(
    rows: str, readout: str, initial_output: str
) -> None:
    problem = Problem("softplus", TEACHER, 0.3, rows=rows, readout=readout, initial_output=initial_output)
    for step in (0.0, 20.0):
        found = predict_spectrum(problem, Sizes(600, 300, 400), step, points=80)
        assert found.details["mass"] == pytest.approx(1, abs=3e-3)
        assert integrate(found, 0) + found.atom == pytest.approx(1, abs=1e-2)
        assert np.all(found.density >= 0)
        assert found.edges[0] < found.edges[1]


@pytest.mark.parametrize("width", [990, 1000, 1010])
def test_hard_edge(width: int) -> None:
    found = predict_spectrum(Problem("relu", "identity", rows="sphere"), Sizes(1000, 500, width), 0.0)
    assert found.details["mass"] == pytest.approx(1, abs=2e-3)
    assert found.edges[0] < 1e-4
    assert (found.edges[0] == 0) == (width == 1000)


def test_few_dimensions_split_the_bulk() -> None:
    found = predict_spectrum(Problem("tanh", "identity"), Sizes(1000, 100, 5000), 0.0)
    assert len(found.intervals) == 2
    low, high = found.intervals
    assert low[1] < high[0]
    # The upper piece holds the linear part: d eigenvalues of n.
    upper = (found.x > high[0]) & (found.x < high[1])
    root = np.sqrt(found.x[upper])
    assert trapezoid(2 * root * found.density[upper], root) == pytest.approx(0.1, rel=0.01)


def test_counting_and_critical_steps() -> None:
    problem, sizes = Problem("tanh", "identity", noise_std=0.5), Sizes(1000, 500, 750)
    (first,) = critical_steps(problem, sizes, count=1)
    assert expected_outliers(problem, sizes, 0.95 * first) == 0
    assert expected_outliers(problem, sizes, 1.05 * first) == 1
    # tanh is odd: a second spike needs z^3, which this step size does not reach.
    assert critical_steps(problem, sizes, count=2, largest=2 * first)[1] == math.inf


def test_bad_arguments_are_named() -> None:
    setting = Problem("tanh", "identity"), Sizes(100, 50, 75)
    with pytest.raises(ValueError, match="of must be one of features, weights"):
        predict_spectrum(*setting, 1.0, of="gradient")
    with pytest.raises(ValueError, match="step sizes must be finite and not negative, got -1"):
        predict_spectrum(*setting, -1.0)
    with pytest.raises(ValueError, match="points must be at least 10"):
        predict_spectrum(*setting, 1.0, points=3)


def test_description_is_json_of_the_documented_form() -> None:
    found = predict_spectrum(Problem("tanh", "identity"), Sizes(200, 100, 150), 8.0, points=20).to_dict()
    assert set(found) >= {"bulk", "edges", "outliers"}
    assert set(found["bulk"]) == {"x", "density"}
    assert set(found["outliers"][0]) >= {"eigenvalue", "singular_value", "overlaps"}


@pytest.mark.parametrize("readout", ["gaussian", "rademacher", "constant"])
def test_steps_from_products_of_functions_are_newton_steps(readout):
    problem = Problem("relu", "h1 + h2/sqrt(2)", 0.5, readout=readout)
    geometry = geometry_of(problem, Sizes(1000, 900, 3000), Resolution(60, 0.5, 6, 1e-3), "structured", 0)
    tables = tables_of(geometry, np.array([40.0]), "structured").repeat(2)
    rng = np.random.default_rng(0)
    rho = rng.uniform(0.5, 1, (2, 60)) + 1j * rng.uniform(0, 1, (2, 60))
    y = rng.uniform(0.5, 1, (2, len(geometry.u))) - 1j * rng.uniform(0, 1, (2, len(geometry.u)))
    state = equations.state_at(geometry, tables, rho, y)
    errors = equations._errors(geometry, state, np.array([[0.1 + 0.1j], [0.3 + 0.1j]]))
    short = equations._reduced_steps(geometry, tables, state, *errors)
    whole = np.linalg.solve(
        equations._newton_matrix(geometry, tables, state, errors[0]), -errors[0][..., None]
    )[..., 0]
    np.testing.assert_allclose(short, whole, rtol=0, atol=1e-12)
    # The two ways are not one and the same.
    assert not np.array_equal(short, whole)


def test_cells_average_the_inverse_of_a_linear_function():
    problem = Problem("relu", "h1", 0.5, readout="constant")
    sizes, resolution = Sizes(1000, 900, 3000), Resolution(60, 0.5, 6, 1e-3, cells=True)
    geometry = geometry_of(problem, sizes, resolution, "structured", 0)
    below = (2 + geometry.z - 0.01j)[None]
    rho, reaction = equations._resolved(geometry, below)
    spacing = geometry.z[1] - geometry.z[0]
    nodes, weights = np.polynomial.legendre.leggauss(200)
    inside = below[0][:, None] + spacing / 2 * nodes
    average = (1 / inside) @ weights / 2
    np.testing.assert_allclose(rho[0], average, rtol=1e-6)
    np.testing.assert_allclose((rho * reaction)[0], (1 / inside**2) @ weights / 2, rtol=1e-4)
    # Where the function is steep the value at the node is far from the average.
    assert np.abs(1 / below[0] / average - 1).max() > 0.5


@pytest.mark.parametrize(
    ("of", "activation", "readout", "steps"),
    [
        ("features", "relu", "gaussian", (4.0, 8.0, 8.5, 2.0)),
        ("features", "tanh", "constant", (4.0, 8.0, 8.5)),
        # From these starts Newton's method finds solutions with an imaginary part of the wrong sign.
        ("weights", "relu", "gaussian", (4.0, 8.0)),
        ("weights", "gelu", "rademacher", (11.2, 15.8)),
    ],
)
def test_a_spectrum_does_not_depend_on_the_one_before_it(of, activation, readout, steps):
    problem = Problem(activation, TEACHER, 0.5, readout=readout)
    sizes, follow = Sizes(1000, 500, 750), Follower(of)
    for step in steps:
        found = follow.spectrum(problem, sizes, step, 80)
        alone = predict_spectrum(problem, sizes, step, of, points=80, check=False)
        np.testing.assert_allclose(found.edges, alone.edges, rtol=1e-9)
        np.testing.assert_allclose(found.density, alone.density, rtol=0, atol=1e-9 * alone.density.max())
        np.testing.assert_allclose(
            [o.eigenvalue for o in found.outliers], [o.eigenvalue for o in alone.outliers], rtol=1e-9
        )


def test_density_says_how_accurate_it_is():
    sizes = Sizes(600, 300, 450)
    usual = predict_spectrum(Problem("relu", "h1 + h2/sqrt(2)", 0.5), sizes, 20.0)
    assert usual.details["accuracy"] < 1e-3
    draft = predict_spectrum(Problem("relu", "h1 + h2/sqrt(2)", 0.5), sizes, 20.0, check=False)
    assert np.isnan(draft.details["accuracy"])
    np.testing.assert_allclose(
        [o.eigenvalue for o in draft.outliers], [o.eigenvalue for o in usual.outliers], rtol=1e-3
    )
    # Samples with bands of their own: the nodes alone do not resolve them, and that is seen.
    hard = FeatureBulk(
        Problem("relu", "h1", 0.5, readout="constant"), Sizes(300, 300, 1800), 40.0, "structured"
    )
    found = hard.settled(rounds=0).spectrum(60)
    assert found.details["accuracy"] > 1e-2


@pytest.mark.parametrize(
    ("readout", "dim", "width", "step"),
    [
        ("gaussian", 10, 3000, 0.0),
        ("rademacher", 17, 2705, 0.6),
        ("constant", 22, 9000, 9.0),
        ("gaussian", 3180, 12, 5.0),
    ],
)
def test_weights_of_extreme_shapes(readout: str, dim: int, width: int, step: float) -> None:
    problem = Problem("gelu", "h2", noise_std=1.0, rows="sphere", readout=readout)
    found = predict_spectrum(problem, Sizes(400, dim, width, 800), step, of="weights")
    assert found.details["mass"] == pytest.approx(1, abs=0.003)
    if step == 0:
        ratio = dim / width
        assert found.edges == pytest.approx(
            ((1 - ratio**0.5) ** 2 / ratio, (1 + ratio**0.5) ** 2 / ratio), rel=1e-4
        )


def test_neurons_of_many_dimensions_have_the_law_of_their_lengths() -> None:
    # With d far above N the rows are orthogonal: W W^T has their squared lengths 1 + (kappa U)^2 as eigenvalues.
    problem = Problem("tanh", "h1", noise_std=1.0, rows="sphere")
    found = predict_spectrum(problem, Sizes(500, 12000, 40, 12000), 40.0, of="weights")
    share = problem.activation.derivative_second_moment - float(problem.activation.hermite(2)[1]) ** 2
    kappa = 40.0 * math.sqrt(2 * share / 40)
    inside = found.x < 1 + (2 * kappa) ** 2
    below = float(trapezoid(found.density[inside], found.x[inside]))
    assert below == pytest.approx(math.erf(2 / math.sqrt(2)), abs=0.02)
    assert abs(below - math.erf(1.5 / math.sqrt(2))) > 0.05


def test_density_vanishes_at_the_ends_of_its_pieces() -> None:
    found = predict_spectrum(Problem("softplus", "relu", rows="sphere"), Sizes(4712, 272, 9611), 0.4)
    assert len(found.intervals) == 2
    for low, high in found.intervals:
        assert found.density[found.x == low] == found.density[found.x == high] == 0
    line = float(trapezoid(found.density, found.x)) + found.atom
    assert line == pytest.approx(1, abs=0.01)


def test_averages_over_cells_and_their_derivatives() -> None:
    rng = np.random.default_rng(2)
    start, end = rng.standard_normal((2, 1, 6)) + 1j * rng.uniform(0.1, 1, (2, 1, 6))
    start[0, :2] = end[0, :2] * (1 + 1e-4)
    value, by_start, by_end = _mean_inverse(start, end)
    share = (np.arange(4000)[:, None] + 0.5) / 4000
    assert np.allclose(value, (1 / (start + share * (end - start))).mean(axis=0), atol=1e-6)
    step = 1e-6
    assert np.allclose(by_start, (_mean_inverse(start + step, end)[0] - value) / step, rtol=1e-4, atol=1e-4)
    assert np.allclose(by_end, (_mean_inverse(start, end + step)[0] - value) / step, rtol=1e-4, atol=1e-4)
    assert not np.allclose(by_start, by_end, rtol=1e-2)


def test_the_way_to_the_real_axis_is_gone_once(monkeypatch):
    problem, sizes = Problem("relu", "h1 + h2/sqrt(2)", noise_std=0.5), Sizes(2000, 1000, 1500)
    step, gone = float(sizes.step_size(0.4)), []
    approached = FeatureBulk.approached
    monkeypatch.setattr(
        FeatureBulk, "approached", lambda self, x: (gone.append(len(x)), approached(self, x))[1]
    )
    found = predict_spectrum(problem, sizes, step)
    assert len(gone) == 1
    # A scan that begins anew finds the same.
    settled = FeatureBulk.settled

    def forgetful(self, *rounds):
        bulk = settled(self, *rounds)
        bulk.begun = None
        return bulk

    monkeypatch.setattr(FeatureBulk, "settled", forgetful)
    again = predict_spectrum(problem, sizes, step)
    assert len(gone) == 3
    np.testing.assert_allclose(again.density, found.density, rtol=1e-8, atol=1e-10)
    assert again.details["accuracy"] == pytest.approx(found.details["accuracy"], rel=1e-6)
