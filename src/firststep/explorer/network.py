"""A drawn network to look at: some of its neurons before and after the step, and what is fitted."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from firststep.arrays import Matrix, features_after, gradient_step, host, ridge_path
from firststep.explorer.state import State, exponents
from firststep.explorer.views import _list, axis, size_text
from firststep.gaussian import Array, hermite_polynomials
from firststep.setting import Sizes
from firststep.simulate.draw import Draw
from firststep.simulate.replica import RULES

# Largest of the drawn sizes: a network to look at is drawn in a fraction of a second.
LARGEST = 800
NEURONS, SAMPLES, CLOUD, TEST = 9, 60, 160, 2000
# Steps at which the readout is fitted: every fifth position of the slider.
EVERY = 5
REACH, POINTS = 2.4, 25
DEGREE = 5


def drawn_sizes(sizes: Sizes) -> Sizes:
    """The sizes, or smaller ones of the same ratios; a small dimension stays what it is.

    Examples
    --------
    >>> drawn_sizes(Sizes(10**6, 5 * 10**5, 10**6))
    Sizes(n_samples=800, dim=400, width=800, n_step_samples=800)
    """
    whole = (sizes.n_samples, sizes.dim, sizes.width, sizes.n_step_samples)
    scale = min(1.0, LARGEST / max(whole))
    n, d, width, n0 = (max(round(size * scale), min(size, 20)) for size in whole)
    return Sizes(n, d, width, n0)


def solve_network(state: Mapping[str, Any]) -> dict[str, Any]:
    """One draw of the network at each of the slider's steps, as points to draw.

    The weights after the step are W0 + eta G, so that w·x = before + eta change is left to the page.
    """
    view = State(**state)
    problem, sizes = view.problem, drawn_sizes(view.sizes)
    draw = Draw(problem, sizes, seed=1)
    weights, readout = draw.weights(), draw.readout()
    plain = gradient_step(
        *draw.step_sample(), weights, readout, problem.activation, problem.output_law.scale(sizes.width)
    )
    step = RULES[problem.rule.name](plain, draw.root, readout)
    test, labels = (np.concatenate(parts) for parts in zip(*draw.test_blocks(TEST), strict=True))
    z = test @ step.direction
    z /= z.std()
    order = np.argsort(readout)
    chosen = order[np.linspace(0, sizes.width - 1, NEURONS).round().astype(int)]
    along = step.direction * (np.linalg.norm(step.direction) ** -2) * np.std(test @ step.direction)
    some = np.argsort(z)[np.linspace(0, TEST - 1, SAMPLES).round().astype(int)]
    steps = sizes.step_size(np.array(exponents()))
    fits = _fits(draw, host(step.gradient), test, np.array([0.0, *steps[::EVERY]]), view.ridge)
    at = np.linspace(-REACH, REACH, POINTS)
    curves = _smooth(z, np.column_stack([labels, *fits])) @ hermite_polynomials(at, DEGREE, normalised=True)
    heights = np.concatenate([labels[:CLOUD], curves[0]])
    return {
        "sizes": f"n = {size_text(sizes.n_samples)}, d = {size_text(sizes.dim)}, N = {size_text(sizes.width)}",
        "smaller": sizes.n_samples < view.sizes.n_samples,
        "etas": _list(steps, 6),
        "every": EVERY,
        "readout": _list(readout[chosen] * np.sqrt(sizes.width), 3),
        "z": _list(z[some], 3),
        "before": _list(weights[chosen] @ test[some].T, 3),
        "change": _list(step.gradient[chosen] @ test[some].T, 5),
        # The mean of w·x given z is a line through zero.
        "slopes": {
            "before": _list(weights[chosen] @ along, 4),
            "change": _list(step.gradient[chosen] @ along, 5),
        },
        "cloud": {"z": _list(z[:CLOUD], 3), "labels": _list(labels[:CLOUD], 3)},
        "fits": [_list(fit[:CLOUD], 3) for fit in fits],
        "at": _list(at, 3),
        "teacher": _list(curves[0], 4),
        "fitted": [_list(curve, 4) for curve in curves[1:]],
        "axes": {
            "z": axis("z = x·b/‖b‖", -REACH, REACH, signed=True) | {"domain": [-3.0, 3.0]},
            "label": axis("label y, fit f", float(heights.min()), float(heights.max()), signed=True),
        },
    }


def _fits(draw: Draw, gradient: Array, test: Array, steps: Array, ridge: float) -> list[Array]:
    """The fitted network's output on the test inputs after each of the steps."""
    weights, activation = draw.weights(), draw.problem.activation
    inputs, labels = draw.fit_sample()
    before, change = inputs @ weights.T, inputs @ gradient.T
    test_before, test_change = test @ weights.T, test @ gradient.T
    found = []
    for eta in steps:
        path = ridge_path(features_after(before, change, float(eta), activation), labels, [ridge])
        found.append(features_after(test_before, test_change, float(eta), activation) @ path.coefficients[0])
    return found


def _smooth(z: Matrix, values: Matrix) -> Array:
    """Hermite coefficients in z of each column's mean, by least squares, (columns, degrees)."""
    basis = hermite_polynomials(np.asarray(z, dtype=float), DEGREE, normalised=True).T
    return np.asarray(np.linalg.lstsq(basis, values, rcond=None)[0].T)
