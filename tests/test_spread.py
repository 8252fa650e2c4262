"""Products of coordinates that are spread over directions of different variance."""

import numpy as np
import pytest

from firststep import Problem, Sizes
from firststep.theory.coefficients import Places
from firststep.theory.ladder import Way, solve_all
from firststep.theory.limits.degrees import errors, features_of, solve_bulk
from firststep.theory.sectors import symmetric_power
from firststep.theory.spread import Spread

RIDGE = np.array([0.001])


def both_ways(inputs, alignment, sizes, ridge):
    """Test error without a step: by the unified equations, and by those of random features in every degree."""
    words = {"inputs": inputs, "alignment": alignment}
    problem = Problem("relu", "h1 + h2/sqrt(2)", noise_std=0.3, rows="sphere", **words)
    way = Way("structured", 3, own=False)
    unified = solve_all(problem, sizes, np.zeros(1), ridge, way, None).numbers["test_error"][0]
    features = features_of(problem, sizes, 3)
    return unified, errors(features, solve_bulk(features, ridge))["test_error"][0]


@pytest.mark.parametrize("inputs", ["levels(0.1, 1.9)", "levels(0.02, 0.98)"])
def test_what_is_learned_of_a_square_under_a_covariance(inputs, monkeypatch):
    sizes = Sizes(3000, 40, 1500)
    unified, features = both_ways(inputs, "typical", sizes, RIDGE)
    assert unified == pytest.approx(features, rel=1e-7)
    # As if all of it lay in directions of the mean variance.
    plain = Places.priors

    def gathered(self, geometry, law):
        terms = plain(self, geometry, law)
        return tuple(
            type(term)(
                term.factor, term.degree, term.places, symmetric_power(law.special_covariance, term.degree)
            )
            if term.spread is not None
            else term
            for term in terms
        )

    monkeypatch.setattr(Places, "priors", gathered)
    assert both_ways(inputs, "typical", sizes, RIDGE)[0] < 0.92 * features


def test_a_power_law_has_levels_enough():
    unified, features = both_ways("power(1)", "eigenvalues", Sizes(1500, 100, 1000), np.array([0.01]))
    assert unified == pytest.approx(features, rel=0.01)


@pytest.mark.parametrize("degree", [2, 3, 4])
def test_the_law_of_products_has_their_covariance(degree):
    rng = np.random.default_rng(degree)
    # Two levels and three directions, which are orthonormal over both.
    frame = np.linalg.qr(rng.standard_normal((8, 3)))[0]
    stretch = np.repeat(rng.uniform(0.5, 2.0, (1, 2, 5)) * np.array([[[1.0], [3.0]]]), 4, axis=1)
    first = Spread(frame[None], stretch)
    power = first.power(degree, 2)
    assert np.allclose(power.covariance, symmetric_power(first.covariance, degree), rtol=1e-12)
    whole = np.einsum("bja,bjc->bac", power.vectors, power.vectors)[0]
    assert np.allclose(whole, np.eye(len(whole)), atol=1e-12)
