"""Predicted spectra where the simple picture ends: heavy labels, every degree, covariance, several steps."""

import math

import numpy as np
import pytest

from firststep.results import Spectrum
from firststep.setting import Problem, Sizes
from firststep.simulate.spectra import cumulative, kolmogorov_distance, simulate_spectrum
from firststep.theory.spectra import feature_bulk
from firststep.theory.spectra.loose import LAST, _Beside, _places, _Samples, has_islets, with_tail
from firststep.theory.spectra.spectrum import Follower, predict_spectrum

TEACHER = "h1 + h2/sqrt(2)"


def typical(found: Spectrum, count: int) -> list[float]:
    """Where the largest eigenvalues of the bulk lie in the median: at its end, with 1.5 above, 2.5, …"""
    total = found.sizes.n_samples if found.of == "features" else found.sizes.width
    x = np.linspace(*found.edges, 20001)
    above = total * (1 - cumulative(found, x))
    return [found.edges[1], *(float(np.interp(-(k + 0.5), -above, x)) for k in range(1, count))]


@pytest.mark.parametrize(
    ("problem", "sizes", "alpha"),
    [
        (Problem("gelu", "h2"), Sizes(500, 800, 600, 300), 0.5),
        (
            Problem("sin(x) + cos(x)/2", "h1 + h3/sqrt(6)", readout="rademacher"),
            Sizes(500, 680, 700, 366),
            0.463,
        ),
    ],
)
def test_the_largest_labels_make_no_islet(problem: Problem, sizes: Sizes, alpha: float) -> None:
    step = sizes.step_size(alpha)
    found = predict_spectrum(problem, sizes, step, check=False)
    assert len(found.intervals) == 1
    assert not has_islets(found)
    assert float(np.trapezoid(found.density, found.x)) + found.atom == pytest.approx(1, abs=0.003)
    drawn = simulate_spectrum(
        problem, sizes, step, replicas=8, seed=1, bulk=False, overlaps=False, count=0
    ).details["eigenvalues"]
    spikes = len(found.outliers)
    largest = np.array([values[spikes : spikes + 5] for values in drawn])
    expected, middle = np.array(typical(found, 5)), np.median(largest, axis=0)
    assert expected == pytest.approx(middle, rel=0.2)
    assert 1.5 * expected != pytest.approx(middle, rel=0.2)
    assert largest[:, 0].min() < found.edges[1] < largest[:, 0].max()


def test_the_bulk_ends_where_networks_of_this_size_end() -> None:
    # Labels of the third degree, whose tails 600 samples hardly contain.
    problem, sizes = Problem("gelu", "h3", noise_std=0.5), Sizes(600, 300, 450)
    found = predict_spectrum(problem, sizes, step_exponent=0.5, check=False)
    drawn = simulate_spectrum(
        problem, sizes, step_exponent=0.5, replicas=12, seed=3, bulk=False, overlaps=False, count=0
    ).details["eigenvalues"]
    ends = np.array([values[len(found.outliers)] for values in drawn])
    low, high = found.details["end_range"]
    assert found.edges[1] == pytest.approx(np.median(ends), rel=0.2)
    assert 1.4 * found.edges[1] != pytest.approx(np.median(ends), rel=0.2)
    assert ((ends > 0.9 * low) & (ends < 1.1 * high)).mean() >= 0.75


def test_a_bulk_that_ends_in_a_label_moves_evenly_with_the_step() -> None:
    problem, sizes = Problem("gelu", "h3", noise_std=0.5), Sizes(1000, 500, 750)
    follow = Follower("features")
    ends = [follow.spectrum(problem, sizes, sizes.step_size(a)).edges[1] for a in (0.42, 0.44, 0.46, 0.48)]
    growth = np.diff(np.log(ends))
    assert (growth > 0.15).all()
    assert (growth < 0.35).all()


@pytest.mark.parametrize("slope", [0.0, 1.5])
def test_what_a_large_label_has_along_the_step_belongs_to_the_spike(slope: float) -> None:
    dim, count, large = 300, 900, 18.0
    rng = np.random.default_rng(1)
    t = rng.standard_normal(count)
    y = slope * t + rng.standard_normal(count)
    t[0], y[0] = 2.5, large
    ends, turns, whole = [], [], []
    for _ in range(8):
        x = rng.standard_normal((count, dim))
        x[:, 0] = t
        matrix, v = (x.T * y) @ x / count, x.T @ y / count
        v[0] = slope + (v[0] - y @ t / count)
        v /= np.linalg.norm(v)
        beside = np.eye(dim) - np.outer(v, v)
        values, vectors = np.linalg.eigh(beside @ matrix @ beside)
        ends.append(values[-1])
        turns.append(float(v @ matrix @ vectors[:, -1]) ** 2)
        whole.append(np.linalg.eigvalsh(matrix)[-1])
    order = np.argsort(y[1:])
    body = _Samples(y[1:][order], y[1:][order], t[1:][order], np.full(count - 1, 1 / count))
    single = tuple(np.array([x]) for x in (large, large**2, large * t[0], t[0] ** 2))
    place, turned = _places(body, single, dim / count, _Beside(slope, 0.0, count))
    assert place[0] == pytest.approx(np.mean(ends), rel=0.04)
    assert turned[0] == pytest.approx(np.mean(turns), rel=0.25)
    plain = _places(body, single, dim / count, None)[0]
    assert plain[0] == pytest.approx(np.mean(whole), rel=0.04)
    assert plain[0] > 1.05 * place[0]


def test_a_follower_has_no_islets_either() -> None:
    problem = Problem("softplus", "h1 + h3/sqrt(6)")
    found = Follower("weights").spectrum(problem, Sizes(500, 451, 300, 342), 15.0)
    assert not has_islets(found)


def test_a_tail_keeps_the_mass_and_ends_where_its_largest_eigenvalue_does() -> None:
    x = np.linspace(0.0, 1.0, 201)
    density = 6 * x * (1 - x)
    tail = np.linspace(1.0, 5.0, 60)
    beyond = 3 * np.exp(-(tail - 1))
    merged, height, end = with_tail(x, density, tail, beyond, 100.0)
    assert end == pytest.approx(1 + math.log(3 / LAST), abs=0.02)
    assert np.trapezoid(height, merged) == pytest.approx(1, abs=2e-3)
    assert (np.diff(height[-40:]) < 1e-9).all()
    # Less than that is no tail.
    assert with_tail(x, density, tail, 0.1 * beyond, 100.0)[2] == 1.0


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_every_degree_has_its_bulk(activation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    problem, sizes = Problem(activation, TEACHER, rows="sphere"), Sizes(700, 30, 500)
    drawn = simulate_spectrum(problem, sizes, 0.0, replicas=2, overlaps=False)
    found = predict_spectrum(problem, sizes, 0.0)
    linear = found.intervals[-1]
    own = (found.x >= linear[0]) & (found.x <= linear[1])
    assert float(np.trapezoid(found.density[own], found.x[own])) * 700 == pytest.approx(30, abs=0.5)
    eigenvalues = np.mean(drawn.details["eigenvalues"], axis=0)
    assert eigenvalues[0] == pytest.approx(linear[1], rel=0.06)
    assert eigenvalues[29] == pytest.approx(linear[0], rel=0.1)
    assert kolmogorov_distance(drawn, found) < 0.03
    monkeypatch.setattr(feature_bulk, "RESOLVED", math.inf)
    assert kolmogorov_distance(drawn, predict_spectrum(problem, sizes, 0.0)) > 0.03


def test_spikes_stand_between_the_bulks_of_two_degrees() -> None:
    problem, sizes = Problem("relu", TEACHER, noise_std=0.3, rows="sphere"), Sizes(1500, 40, 1000)
    step = sizes.step_size(0.4)
    found = predict_spectrum(problem, sizes, step, check=False)
    drawn = simulate_spectrum(problem, sizes, step, replicas=2, overlaps=False, count=1)
    eigenvalues = np.mean(drawn.details["eigenvalues"], axis=0)
    (low, high) = found.intervals[-2][1], found.intervals[-1][0]
    above = [o for o in found.outliers if o.over_edge > 1]
    among = [o for o in found.outliers if o.over_edge < 1]
    assert len(above) == 1
    assert above[0].eigenvalue == pytest.approx(eigenvalues[0], rel=0.08)
    # After the spike and the linear bulk's other 39: what H_2 of the coordinate makes, and the norm of x.
    assert [o.eigenvalue for o in among] == pytest.approx(eigenvalues[40 : 40 + len(among)], rel=0.1)
    assert len(among) == 2
    assert all(low < o.eigenvalue < high for o in among)
    assert among[1].overlaps["norm"] > 0.3


def test_a_blurred_bulk_of_few_neurons_keeps_its_loudest_directions() -> None:
    # Of 30000 eigenvalues 29700 are zero, and 20 of the others are the linear part's.
    problem, sizes = Problem("relu", TEACHER, noise_std=0.5), Sizes(30_000, 20, 300)
    found = predict_spectrum(problem, sizes, step_exponent=0.3, check=False)
    assert "blurred" in found.details["notes"][0]
    drawn = simulate_spectrum(
        problem, sizes, step_exponent=0.3, replicas=2, bulk=False, overlaps=False, count=0
    ).details["eigenvalues"]
    largest = np.mean([values[:3] for values in drawn], axis=0)
    assert [o.eigenvalue for o in found.outliers] == pytest.approx(largest[:2], rel=0.2)
    assert found.edges[1] == pytest.approx(largest[2], rel=0.15)
    followed = Follower("features").spectrum(problem, sizes, sizes.step_size(0.3))
    assert followed.edges[1] == pytest.approx(found.edges[1], rel=1e-6)
