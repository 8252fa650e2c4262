r"""How far a prediction may be off at finite size: the terms of its error bar [firststep, degrees, eq. 9]."""

import math

import numpy as np

from firststep.gaussian import Array
from firststep.setting import Problem, Sizes
from firststep.theory.sectors import degree_shares, directions

# Relative errors beyond the orders that are kept, from problems of the calibration's first seeds (docs/calibration.md):
# of 1/n, 1/N and 1/n0; of 1/d; of 1/d in what the degrees above the first change, without a spike and with one; of the
# first degree left out; of the labels' kurtosis over n0; of a row's share along one special direction; of the moments
# of N readouts; of 1/n, 1/N and 1/n0 in what is much smaller than the labels, and between which ratios of the two; of
# the eigenvalues' mean square over d.
BAR_SAMPLES, BAR_DIM, BAR_DEGREES, BAR_SPIKE, BAR_NEXT, BAR_TAILS = 1.7, 0.6, 2.1, 10.0, 0.43, 0.34
BAR_SPECIAL, BAR_READOUT = 1.3, 0.85
# And of what the next order in 1/n changes, where it is known; the leading order's bar is narrower there (seeds of the
# calibration that count as used).
BAR_ORDER, BAR_LEFT = 0.3, 0.8
BAR_SMALL, SMALL_RATIOS, BAR_SPECTRUM = 2.5, (4.0, 30.0), 1.5
# Of the share of a row that the gradient's part linear in the weights makes, where a covariance has it taken as noise
# (calibration `covariance`, seeds 1 to 5).
BAR_TURNED = 0.05
# Of what the joint law of a covariance and the step changes.
BAR_JOINT = 0.15
# Degrees whose moments of the readout are looked at.
READOUT_DEGREES, READOUT_SPACING = (2, 3), 0.5
# Share of the second degree from which on the bar looks at what the degrees change, and the bar that asks for words.
BAR_LOOKS, BAR_SPEAKS = 0.02, 0.1


def size_variance(sizes: Sizes, highest: int) -> float:
    """Square of what the sizes alone may be off by: 1/n, 1/N, 1/n0, 1/d and the first degree left out."""
    # A degree is learned as far as both samples and neurons resolve it.
    share = min(sizes.n_samples, sizes.width) / directions(sizes.dim, highest + 1)
    smallest = min(sizes.n_samples, sizes.width, sizes.n_step_samples)
    return (
        (BAR_SAMPLES / smallest) ** 2 + (BAR_DIM / float(sizes.dim)) ** 2 + (BAR_NEXT * min(share, 1.0)) ** 2
    )


def small_error_variance(problem: Problem, sizes: Sizes, test_error: Array) -> Array:
    """Square of what an error far below the labels' variance may be off by: it is the difference of larger numbers.

    Examples
    --------
    >>> problem = Problem("tanh", "h1")
    >>> found = small_error_variance(problem, Sizes(500, 300, 400), np.array([0.5, 0.05, 0.01]))
    >>> print(np.sqrt(found).round(2))
    [0.   0.1  0.16]
    """
    smallest = float(min(sizes.n_samples, sizes.width, sizes.n_step_samples))
    low, high = SMALL_RATIOS
    beyond = np.clip(problem.label_variance / np.maximum(test_error, 1e-300), low, high) - low
    return np.asarray((BAR_SMALL * beyond / smallest) ** 2)


def spectrum_variance(problem: Problem, sizes: Sizes, known: float = 0.0) -> float:
    """Square of what an uneven spectrum may make errors be off by: few of its directions matter.

    `known` is the share of a row's squared length along a direction that is known and makes no error of this kind.

    Examples
    --------
    >>> spectra = ("isotropic", "levels(0.3, 1.7)", "power(1)")
    >>> problems = [Problem("tanh", "h1", inputs=inputs) for inputs in spectra]
    >>> [round(spectrum_variance(problem, Sizes(1000, 500, 750)) ** 0.5, 4) for problem in problems]
    [0.0, 0.0045, 0.0534]
    """
    covariance = problem.covariance(sizes.dim)
    if covariance.isotropic:
        return 0.0
    return float((BAR_SPECTRUM * (covariance.moment(2) / sizes.dim - known**2)) ** 2)


def turned_variance(problem: Problem, sizes: Sizes, steps: Array) -> Array:
    r"""Square of what M as noise may make errors be off by where it does not commute with a covariance, (S,).

    .. math:: \frac{\tau}{1 + \tau + \kappa^2\int m^{2g}\,\mathrm d\mu}, \qquad
        \tau = k^2\,\frac{d}{n_0}\,E(y - f_0)^2 \int m^{2g}\,\mathrm d\mu

    is its share of a row's squared length.

    Examples
    --------
    >>> sizes, steps = Sizes(1000, 500, 750), np.array([0.0, 5.0, 30.0])
    >>> print(np.sqrt(turned_variance(Problem("relu", "h1 + h2/2", inputs="power(0.5)"), sizes, steps)).round(4))
    [0.     0.0004 0.0092]
    """
    covariance = problem.covariance(sizes.dim)
    if covariance.isotropic:
        return np.zeros(len(steps))
    c = problem.activation.hermite(3)
    linear = 4 * float(c[2]) ** 2
    left = max(problem.activation.derivative_second_moment - float(c[1]) ** 2 - linear, 0.0)
    gained = steps**2 / float(sizes.width) * sizes.step_ratio
    gained = gained * (problem.label_variance + problem.output_variance(sizes))
    gained = gained * (covariance.moment(2) if problem.rule.plain else 1.0)
    return np.asarray((BAR_TURNED * linear * gained / (1 + (linear + left) * gained)) ** 2)


def readout_scatter(problem: Problem, sizes: Sizes) -> float:
    r"""How far the moments of N readouts, which spikes of higher degree go with, are from their law's.

    .. math:: \frac1N\sum_{k=2,3}\frac{k!\,c_k^2}{E\sigma^2}\Big(\frac{E U^{4k}}{(E U^{2k})^2} - 1\Big)

    Examples
    --------
    >>> laws = [Problem("relu", "h1", readout=law) for law in ("gaussian", "rademacher")]
    >>> [round(readout_scatter(problem, Sizes(500, 300, 400)), 4) for problem in laws]
    [0.0062, 0.0]
    """
    nodes, weights = problem.readout_law.rule(READOUT_SPACING)
    activation = problem.activation
    c = activation.hermite(max(READOUT_DEGREES) + 1)
    total = 0.0
    for k in READOUT_DEGREES:
        ratio = float(weights @ nodes ** (4 * k)) / float(weights @ nodes ** (2 * k)) ** 2
        total += math.factorial(k) * float(c[k]) ** 2 / activation.second_moment * (ratio - 1)
    return total / float(sizes.width)


def relative_change(first: Array, last: Array) -> Array:
    """What the degrees above the first change, relative to the larger of the two."""
    return np.asarray(np.abs(first - last) / np.maximum(first, last))


def still_bars(sizes: Sizes, highest: int, change: Array) -> Array:
    """Relative half-widths without a step, of the shape of `change`.

    Examples
    --------
    >>> still_bars(Sizes(2000, 40, 1500), 4, np.array([0.84])).round(3).tolist()
    [0.047]
    """
    looks = highest > 1 and degree_shares(sizes, 2)[1] > BAR_LOOKS
    reach = BAR_DEGREES / float(sizes.dim) if looks else 0.0
    return np.asarray(np.sqrt(size_variance(sizes, highest) + (reach * change) ** 2))


def wide_bar_note(sizes: Sizes, bars: Array) -> tuple[str, ...]:
    """A sentence on bars, relative to the test error, that are wide; none if none is."""
    wide = float(np.max(bars, initial=0.0))
    if not wide > BAR_SPEAKS:
        return ()
    return (
        f"the theory's own error bar is {wide:.0%} of the test error: these sizes are too small for it "
        f"(d = {sizes.dim}, n = {sizes.n_samples}, N = {sizes.width}); simulate instead",
    )
