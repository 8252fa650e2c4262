"""Tables of the neurons' conditional coefficients: special cases, identities, and quadrature from the definition."""

import dataclasses
import math

import numpy as np
import pytest

from firststep import Problem, Sizes
from firststep.gaussian import gauss_hermite, hermite_polynomials
from firststep.theory import coefficients
from firststep.theory.coefficients import Resolution, geometry_of, interpolation, law_of, tables_of
from firststep.theory.sectors import directions

MIXED = "h1 + h2/sqrt(2)"
SIZES = Sizes(90, 40, 60, 70)
FINE = Resolution(24, 0.6, 4)
READOUTS = ["gaussian", "rademacher", "constant", "laplace"]
# Problem and highest degree with a sector, at a step of order one and with functions spanned by themselves.
CASES = {
    "relu": (Problem("relu", MIXED, noise_std=0.3), 1),
    "sphere": (Problem("tanh(2*x)", "h1 + h3/6", rows="sphere"), 3),
    "output": (Problem("softplus", MIXED, readout="rademacher", initial_output="order_one"), 2),
    "covariance": (Problem("gelu", "relu", inputs="levels(0.5, 1.5)"), 2),
    "directions": (Problem("relu", "t1 + t1*t2", readout="laplace"), 2),
}


def made(problem, step=3.0, highest=1, degrees=0, rest="structured"):
    """Geometry, law of the step and tables at one step size."""
    geometry = geometry_of(problem, SIZES, FINE, rest, degrees, highest)
    steps = np.array([step])
    return geometry, law_of(geometry, steps, rest), tables_of(geometry, steps, rest)


def differs(found, wanted, tolerance=1e-10):
    """Largest difference in units of the largest wanted number, where it is beyond the tolerance; else zero."""
    found, wanted = np.broadcast_arrays(found, wanted)
    far = float(np.abs(found - wanted).max()) / max(float(np.abs(wanted).max()), 1.0)
    return far if not far <= tolerance else 0.0


def mean_over(geometry, table):
    """E_u E_z of a table (1, nu, nz)."""
    return float(geometry.u_weights @ table[0] @ geometry.weights)


def defined(activation, scale, shift, degree):
    """E[h_p(g) sigma(s g + q zeta)] as an integral over the argument, with a break at its kink, (nu, nz)."""
    base, base_weights = np.polynomial.legendre.leggauss(500)
    reach = float(np.abs(shift).max() + 9 * scale.max())
    x = np.concatenate([reach * (base - 1) / 2, reach * (base + 1) / 2])
    lengths = np.concatenate([base_weights, base_weights]) * reach / 2
    g = (x - shift[..., None]) / scale[..., None]
    density = np.exp(-(g**2) / 2) / (math.sqrt(2 * math.pi) * scale[..., None])
    return (hermite_polynomials(g, degree + 1, normalised=True)[degree] * density) @ (lengths * activation(x))


def test_the_comparison_rejects():
    assert differs(np.ones(3), np.array([1, 1, 1 + 1e-9])) > 0
    assert differs(np.full(3, np.nan), np.ones(3)) != 0
    assert differs(np.ones(3), np.ones(3)) == 0


@pytest.mark.parametrize("readout", READOUTS)
@pytest.mark.parametrize("activation", ["relu", "tanh", "softplus"])
def test_without_a_step_coefficients_are_those_of_the_activation(activation, readout):
    problem = Problem(activation, MIXED, noise_std=0.3, readout=readout)
    _, law, tables = made(problem, step=0.0, degrees=8)
    c = problem.activation.hermite(3)
    linear = np.zeros(tables.h.shape[1])
    linear[0] = c[1]
    assert not differs(tables.by_degree[0, 0], linear)
    assert not differs(tables.carried[0, 0], linear)
    assert not differs(tables.stretch, 1.0)
    assert not differs(tables.spread, problem.activation.tail(2))
    assert not differs(tables.lean[0, :, 0], c[2])
    assert not differs(tables.spikes, 0.0)
    assert not differs(law.excess, 0.0)
    # Another step has other coefficients, so that the comparisons above could have failed.
    moved = made(problem, step=2.0, degrees=8)[2]
    assert differs(moved.spikes, 0.0) > 1e-3
    assert differs(moved.spread, problem.activation.tail(2)) > 1e-3


@pytest.mark.parametrize("readout", READOUTS)
@pytest.mark.parametrize("degrees", [0, 8])
def test_a_linear_network_has_its_argument_as_features(readout, degrees):
    # A_0 = u z, A_1 = s, and nothing beyond.
    geometry, law, tables = made(Problem("identity", MIXED, readout=readout), degrees=degrees)
    assert not differs(tables.spread, 0.0)
    assert not differs(tables.lean, 0.0)
    assert not differs(tables.input_bend, 0.0)
    h = tables.h[0]
    # Functions below 1e-7 are left out where they are spanned by what is there.
    assert not differs(tables.by_degree[0, 0] @ h, np.sqrt(1 + law.excess[0])[:, None], 1e-7)
    mean = h.T @ tables.spikes[0, : len(h)] @ tables.psi[0] / math.sqrt(SIZES.width)
    omega = coefficients.spike_strength(geometry.problem, SIZES, np.array([3.0]), "structured")[0]
    assert not differs(mean.T, omega * np.outer(geometry.u, geometry.z), 1e-6)
    assert differs(mean.T, 1.00001 * omega * np.outer(geometry.u, geometry.z), 1e-6) > 0


@pytest.mark.parametrize("name", CASES)
def test_coefficients_are_the_averages_that_define_them(name):
    problem, highest = CASES[name]
    geometry, law, tables = made(problem, highest=highest)
    scale = np.sqrt(1 + law.excess[0])[:, None] * np.ones_like(geometry.z)
    shift = (law.shared @ geometry.coordinates)[0]
    for degree in range(1, highest + 1):
        exact = defined(problem.activation, scale, shift, degree) @ (tables.h[0] * geometry.weights).T
        assert not differs(tables.by_degree[0, degree - 1], exact, 1e-6)
        assert differs(tables.by_degree[0, degree - 1] * (1 + 1e-4), exact, 1e-6) > 0
    bend = defined(problem.activation, scale, shift, 2) / math.sqrt(2)
    assert not differs(tables.lean[0], bend @ (tables.h[0] * geometry.weights).T, 1e-6)


@pytest.mark.parametrize("name", CASES)
def test_squares_of_all_degrees_and_what_is_left_make_the_second_moment(name):
    problem, _ = CASES[name]
    spreads, wholes = [], []
    for highest in (1, 2, 3):
        geometry, law, tables = made(problem, highest=highest)
        averages = coefficients._averages(geometry, law)
        wholes.append(averages.spread + (averages.by_degree**2).sum(axis=0))
        spreads.append(tables.spread)
        assert (tables.spread >= 0).all()
    # Sectors of their own for more degrees leave less; with sectors of degree two and three the whole is the same.
    assert not differs(wholes[2], wholes[1])
    assert mean_over(geometry, spreads[0]) > mean_over(geometry, spreads[1]) > 0
    assert mean_over(geometry, spreads[1]) >= mean_over(geometry, spreads[2])
    nodes, weights = gauss_hermite(200)
    scale, shift = np.sqrt(1 + law.excess[0]), (law.shared @ geometry.coordinates)[0]
    made_by_hand = (problem.activation(scale[:, None, None] * nodes + shift[..., None]) ** 2) @ weights
    assert not differs(wholes[0][0], made_by_hand, 2e-3)


@pytest.mark.parametrize("name", CASES)
def test_functions_are_orthonormal_and_span_the_mean(name):
    problem, highest = CASES[name]
    geometry, law, tables = made(problem, highest=highest)
    h, psi = tables.h[0], tables.psi[0]
    assert not differs((h * geometry.weights) @ h.T, np.eye(len(h)))
    assert not differs((psi * geometry.u_weights) @ psi.T, np.eye(len(psi)))
    assert not differs(psi[0], 1.0)
    if problem.output_law.order_one:
        return  # The spikes are A_0 and what an output of order one adds to it.
    # In the mean square over z and U: nodes far out have no weight and any value.
    roots = np.sqrt(np.outer(geometry.weights, geometry.u_weights))
    wanted = roots * math.sqrt(SIZES.width) * coefficients._averages(geometry, law).mean[0].T
    assert not differs(roots * (h.T @ tables.spikes[0, : len(h)] @ psi), wanted, 1e-5)
    assert differs(roots * (h[1:].T @ tables.spikes[0, 1 : len(h)] @ psi), wanted, 1e-5) > 0


@pytest.mark.parametrize("rest", ["structured", "noise", "none"])
def test_a_louder_activation_with_a_smaller_step_is_the_same_network_scaled(rest):
    one = made(Problem("tanh", MIXED), step=2.0, degrees=8, rest=rest)[2]
    two = made(Problem("3*tanh(x)", MIXED), step=2.0 / 3, degrees=8, rest=rest)[2]
    powers = {"h": 0, "psi": 0, "special_stretch": 0, "special_vectors": 0, "special_extra": 0, "labels": 0}
    powers |= {
        "carried": 1,
        "stretch": 0,
        "spikes": 1,
        "input_bend": 1,
        "row_bend": 1,
        "lean": 1,
        "by_degree": 1,
        "spread": 2,
    }
    powers |= {"leaning": 0, "leaning_square": 0, "level_weights": 0, "cosines": 0, "label_square": 0}
    for table, power in powers.items():
        assert not differs(getattr(two, table), 3.0**power * getattr(one, table), 1e-8), table
    assert differs(two.spread, 3 * one.spread) > 0


@pytest.mark.parametrize("name", CASES)
def test_levels_of_a_degree_are_its_directions(name):
    problem, highest = CASES[name]
    geometry, law, tables = made(problem, highest=highest)
    degrees = np.array(tables.level_degrees)
    for p in range(1, highest + 1):
        share = tables.level_weights[0, degrees == p].sum()
        assert share == pytest.approx(directions(SIZES.dim, p) / SIZES.dim, rel=1e-12)
    # A row's squared norm, all of its typical directions together, is s^2: E c(U, m) = 1. An output of order one has
    # the component along W0^T a taken out of the row.
    whole = law.law.weights @ law.stretch(law.law.nodes, law.law.share)[0]
    taken = geometry.u**2 / SIZES.width if problem.output_law.order_one else 0.0
    assert not differs(whole * (1 + law.excess[0]), 1 + law.excess[0] + taken)


@pytest.mark.parametrize(("rows", "wanted"), [("gaussian", 1.0), ("sphere", 0.0)])
def test_norms_of_rows_fluctuate_before_the_step_if_they_are_gaussian(rows, wanted):
    tables = made(Problem("relu", MIXED, rows=rows), step=0.0, degrees=8)[2]
    # Under a root rounding is 1e-8.
    assert not differs(tables.row_bend, wanted * tables.lean, 1e-7)
    # The step makes those on the sphere fluctuate, too.
    assert differs(made(Problem("relu", MIXED, rows=rows), step=4.0)[2].row_bend, 0.0) > 1e-3


@pytest.mark.parametrize("teacher", ["h1 + h2/sqrt(2)", "h1 + 0.5*h2 + 0.2*h3", "t1 + t1*t2"])
def test_parts_of_the_labels_have_their_second_moment(teacher):
    problem = Problem("relu", teacher, noise_std=0.3)
    geometry, _, tables = made(problem, highest=3)
    square = problem.label_variance - problem.noise_variance
    assert float(tables.label_square[0] @ geometry.weights) == pytest.approx(square + 0.09, rel=1e-10)
    # With blocks up to the teacher's own degree nothing is lost, and the norm of x takes from the others what it has.
    assert float((tables.labels[0] ** 2).sum(axis=0) @ geometry.weights) == pytest.approx(square, rel=1e-10)
    fewer = made(problem, highest=1)[2]
    assert float((fewer.labels[0] ** 2).sum(axis=0) @ geometry.weights) < 0.999 * square


def test_the_series_of_small_spikes_is_the_quadrature():
    problem = Problem("softplus", MIXED)
    geometry, law, _ = made(problem, step=0.5, degrees=10)
    omega = law.shared[:, -1, 0] / geometry.u[-1]
    assert 0 < omega[0] <= coefficients.SMALL_SPIKE
    averages = coefficients._averages(geometry, law)
    psi = geometry.psi * geometry.u_weights
    plain = (geometry.hermite * geometry.weights) @ averages.mean[0].T @ psi.T
    series = coefficients._spike_series(geometry, omega, law.excess)[0]
    assert not differs(series, plain, 1e-12)
    assert differs(coefficients._spike_series(geometry, omega, 1.01 * law.excess)[0], plain, 1e-12) > 0


@pytest.mark.parametrize("readout", ["gaussian", "laplace"])
@pytest.mark.parametrize("highest", [1, 2])
def test_the_series_ends_where_long_rows_would_make_it_diverge(readout, highest):
    # s^2 - 1 passes one, the radius of convergence, at the largest readouts, though the spike is small.
    problem = Problem("abs(x + 0.1)", MIXED, readout=readout)
    geometry, law, tables = made(problem, step=2.0, degrees=12, highest=highest)
    assert 0 < law.shared[0, -1, 0] / geometry.u[-1] <= coefficients.SMALL_SPIKE
    assert law.excess.max() > 1
    averages = coefficients._averages(geometry, law)
    plain = (geometry.hermite * geometry.weights) @ averages.mean[0].T @ (geometry.psi * geometry.u_weights).T
    found = tables.spikes[0, : len(geometry.hermite)] / math.sqrt(SIZES.width)
    # With sectors the rows' variance grows with z^2 - 1, to first order in the series.
    assert not differs(found, plain, 1e-9 if highest == 1 else 2e-3)


@pytest.mark.parametrize("readout", ["gaussian", "rademacher", "laplace"])
def test_half_of_the_nodes_are_enough_where_signs_do_not_matter(readout):
    geometry, law, _ = made(Problem("softplus", MIXED, readout=readout), rest="none")
    shift = law.shared @ geometry.coordinates
    scale = np.sqrt(1 + law.excess[..., None]) * np.ones_like(shift)
    activation = geometry.problem.activation
    short = coefficients._symmetric_averages(activation, scale, shift)
    a0, a1, square, bend = activation.gaussian_averages(scale, shift)
    for found, wanted in zip(short, (a0, a1, square, bend / 2), strict=True):
        assert not differs(found, wanted, 1e-13)
    # Rows that M lengthens on one side only are not even in U: all nodes are asked.
    uneven = scale * np.linspace(1, 1.1, scale.shape[1])[:, None]
    found = coefficients._symmetric_averages(activation, uneven, shift)[1]
    assert not differs(found, activation.gaussian_averages(uneven, shift)[1], 1e-13)


@pytest.mark.parametrize("table", ["carried", "stretch", "by_degree", "spread", "lean", "spikes", "labels"])
def test_a_wrong_entry_of_a_table_is_found(table):
    problem, highest = CASES["relu"]
    tables = made(problem, highest=highest)[2]
    array = getattr(tables, table).copy()
    largest = np.unravel_index(np.abs(array).argmax(), array.shape)
    array[largest] *= 1 + 1e-6
    wrong = dataclasses.replace(tables, **{table: array})
    assert differs(getattr(wrong, table), getattr(tables, table)) > 0


def test_some_points_and_repeated_points():
    geometry = geometry_of(CASES["output"][0], SIZES, FINE, "structured", 0, 2)
    tables = tables_of(geometry, np.array([1.0, 3.0]), "structured")
    alone = tables.take(np.array([1]))
    for name, part in vars(tables).items():
        if isinstance(part, np.ndarray):
            assert np.array_equal(getattr(alone, name)[0], part[1])
            assert getattr(alone.repeat(3), name).shape == (3, *part.shape[1:])
    for term, whole in zip(alone.priors, tables.priors, strict=True):
        assert np.array_equal(term.covariance[0], whole.covariance[1])


def test_interpolation_is_exact_for_polynomials_and_constant_outside():
    old, new = gauss_hermite(12)[0], np.linspace(-2.0, 2.0, 7)
    for degree in range(coefficients.INTERPOLATION_NODES):
        assert not differs(old**degree @ interpolation(old, new), new**degree)
    assert differs(old**9 @ interpolation(old, new), new**9) > 0
    assert np.allclose(old @ interpolation(old, np.array([-99.0, 99.0])), [old[0], old[-1]])
