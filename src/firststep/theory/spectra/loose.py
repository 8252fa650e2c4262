r"""Loose eigenvalues: the few largest labels of a step each make an eigenvalue of M of their own [firststep, spectra].

Labels with a tail put the largest eigenvalues of M = X^T diag(y) X/n0 at places that differ from draw to draw. A law of
M with nodes there would give the features' bulk islets that no average over draws has. So the law is that of all but
the largest labels, and what these do is counted: with Stieltjes transform g of the former, a label y makes the
eigenvalue

.. math:: m(y) = \zeta(-1/(\phi_0 y)), \qquad \zeta(g) = E\Big[\frac{y'}{1 + \phi_0 y' g}\Big] - \frac1g ,

and n0 P(Y > y) of them lie beyond it in the mean.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from firststep.gaussian import Array
from firststep.results import Spectrum
from firststep.setting import Problem, Sizes
from firststep.theory.matrix_law import edge_at, stieltjes_at, zeta_at
from firststep.theory.rest import REACH, RestLaw, normal_points
from firststep.theory.sectors import thinned
from firststep.theory.step_law import is_plain

# So many of the largest labels on each side are loose; their places are followed up to where this share of one lies.
LOOSE, RAREST, PLACES = 6.0, 0.03, 24
# Nodes between two breaks of the teacher's argument, and of the noise.
NODES, NOISE_NODES = 80, 48
# Points of the law of M, and its distances from the real axis, in units of its width, on the way down.
POINTS, DISTANCES = 240, (1.0, 0.3, 0.1, 0.03, 0.01, 3e-3, 1e-3, 3e-4, 1e-4)
# A piece of the bulk with fewer eigenvalues than this is an islet, and the bulk counts as loose.
ISLET = 3.5
# A density that rises by this factor among its last eigenvalues has a lobe there.
RISE = 1.1
# The bulk ends where so many eigenvalues lie beyond in the mean: the largest is as often above as below.
LAST = 0.5
# Eigenvalues of the body that are smoothed together with the loose ones.
SHORE = 4.0


@dataclass(frozen=True)
class LooseLabels:
    """A law of M without the largest labels, and where those put their eigenvalues.

    Attributes
    ----------
    law : RestLaw
        The law of all but the largest labels, seen from the same special directions as before.
    places : tuple of ndarray (PLACES,)
        Eigenvalues of M that the largest labels make, from the loosest inwards; positive labels, then negative ones.
    counts : ndarray (PLACES,)
        How many lie farther out, in the mean.
    shares : tuple of ndarray (PLACES,)
        Variance of the gradient's remainder along these eigenvectors, in units of its mean.
    """

    law: RestLaw
    places: tuple[Array, ...]
    counts: Array
    shares: tuple[Array, ...]

    def beyond(self, score: Callable[[Array, Array], Array], points: int) -> Array:
        """Mean number of loose eigenvalues beyond each of so many points.

        `score` is positive, (points, places), where an eigenvalue m of M with this share of the remainder, (places,),
        makes an eigenvalue beyond the point.
        """
        total = np.zeros(points)
        logs, rows = np.log(self.counts), np.arange(points)
        for places, shares in zip(self.places, self.shares, strict=True):
            heights = score(places, shares)
            outside = heights > 0
            # Places run from the outermost inwards: the first that lies below the point bounds the count.
            first = np.where(outside.all(axis=1), len(places), (~outside).argmax(axis=1))
            right = np.clip(first, 1, len(places) - 1)
            before, after = heights[rows, right - 1], heights[rows, right]
            share = np.clip(before / np.where(before == after, 1.0, before - after), 0.0, 1.0)
            found = np.exp(logs[right - 1] + share * (logs[right] - logs[right - 1]))
            found = np.where(first == len(places), self.counts[-1], found)
            total += np.where(first == 0, 0.0, found)
        return total


def loose_labels(problem: Problem, sizes: Sizes, law: RestLaw, levels: int) -> LooseLabels | None:
    """The largest labels taken out of the law of M; None where there is no such law."""
    if not is_plain(problem, sizes) or problem.label_variance == 0 or len(law.nodes) < 2:
        return None
    power = 1 if np.ptp(law.nodes) > 0 and problem.activation.hermite(3)[2] != 0 else 2
    parted = _parted(problem, sizes, power)
    if parted is None:
        return None
    nodes, weights = thinned(*parted[0], levels)
    places, counts = parted[1], np.geomspace(RAREST, LOOSE, PLACES)
    if power == 1:
        # The share is a quadratic function of the eigenvalue, as `rest_law` has it.
        quadratic = np.polyfit(law.nodes, law.share, min(2, len(law.nodes) - 1))
        share, shares = (
            np.maximum(np.polyval(quadratic, nodes), 0.0),
            tuple(np.maximum(np.polyval(quadratic, x), 0.0) for x in places),
        )
    else:
        share, shares, nodes = nodes, places, np.full_like(nodes, law.nodes[0])
        places = (np.full(PLACES, law.nodes[0]),)
    return LooseLabels(replace(law, nodes=nodes, weights=weights, share=share), places, counts, shares)


@lru_cache(maxsize=16)
def _parted(
    problem: Problem, sizes: Sizes, power: int
) -> tuple[tuple[Array, Array], tuple[Array, ...]] | None:
    """Law of M with all but the largest labels, or their squares, and where those put eigenvalues; at any resolution.

    None where a step has so few samples that all of them are among the largest.
    """
    labels, mass = _labels(problem, sizes)
    if power == 2:
        labels = labels**2 / float(mass @ labels**2)
        labels, mass = _sorted(labels, mass)
    counts = np.geomspace(RAREST, LOOSE, PLACES)
    sides = (1.0, -1.0) if power == 1 else (1.0,)
    ends = [_quantiles(sign * labels, mass, counts / sizes.n_step_samples) for sign in sides]
    low = -ends[1][-1] if power == 1 else -math.inf
    body = (labels <= ends[0][-1]) & (labels >= low)
    if not body.any():
        return None
    labels, mass = labels[body], mass[body]
    places = tuple(
        sign * _places(sign * labels, mass, end, sizes.step_ratio)
        for sign, end in zip(sides, ends, strict=True)
    )
    return matrix_law(labels, mass, sizes.step_ratio), places


def _labels(problem: Problem, sizes: Sizes) -> tuple[Array, Array]:
    """Labels less the initial output, in ascending order, and their probabilities."""
    teacher = problem.teacher
    t, weights = normal_points(REACH, NODES, getattr(teacher, "kinks", ()))
    labels = np.asarray(teacher.at(t[:, None]))
    spread = problem.noise_variance + (
        problem.output_variance(sizes) if problem.output_law.order_one else 0.0
    )
    if spread > 0:
        noise, share = normal_points(REACH, NOISE_NODES)
        labels = (labels[:, None] + math.sqrt(spread) * noise).ravel()
        weights = np.outer(weights, share).ravel()
    return _sorted(labels, weights)


def _sorted(labels: Array, weights: Array) -> tuple[Array, Array]:
    order = np.argsort(labels, kind="stable")
    return labels[order], weights[order]


def _quantiles(labels: Array, weights: Array, shares: Array) -> Array:
    """Labels beyond which these small shares of the mass lie."""
    order = np.argsort(-labels, kind="stable")
    above = np.cumsum(weights[order]) - weights[order] / 2
    return np.asarray(np.interp(np.log(shares), np.log(np.maximum(above, 1e-300)), labels[order]))


def _places(labels: Array, weights: Array, ends: Array, ratio: float) -> Array:
    """m(y) for labels beyond all others, from the largest down; inside the bulk of M they stay at its edge."""
    places = np.full(len(ends), math.nan)
    positive = ends > max(float(labels.max()), 0.0) * (1 + 1e-9)
    value, slope = zeta_at(-1 / (ratio * ends[positive]), labels, weights, ratio)
    places[positive] = np.where(slope > 0, value, math.nan)
    edge = _edge(labels, weights, ratio)
    return np.asarray(np.maximum.accumulate(np.where(np.isfinite(places), places, edge)[::-1])[::-1])


def _edge(labels: Array, weights: Array, ratio: float) -> float:
    """Upper end of the law."""
    return float(zeta_at(np.array([edge_at(labels, weights, ratio)]), labels, weights, ratio)[0][0])


def matrix_law(labels: Array, weights: Array, ratio: float) -> tuple[Array, Array]:
    """Points and weights of the law of M for these labels, with its eigenvalues at zero."""
    high, low = _edge(labels, weights, ratio), -_edge(-labels, weights, ratio)
    angle = (np.arange(POINTS) + 0.5) * math.pi / POINTS
    x = (low + high) / 2 - (high - low) / 2 * np.cos(angle)
    width = high - low
    g = np.asarray(-1 / (x + 1j * width))
    for distance in DISTANCES:
        g = stieltjes_at(x + 1j * distance * width, g, labels, weights, ratio, 1e-9)
    mass = np.maximum(g.imag, 0.0) / math.pi * np.sin(angle) * (width / 2) * math.pi / POINTS
    zero = max(0.0, 1 - float(weights[labels != 0].sum()) / ratio)
    mass *= (1 - zero) / mass.sum()
    return np.append(x, 0.0), np.append(mass, zero)


def has_islets(found: Spectrum) -> bool:
    """Whether the bulk ends in islets or lobes of a few eigenvalues each: its density rises there."""
    total = found.sizes.n_samples if found.of == "features" else found.sizes.width
    x, density = found.x, found.density
    pieces = (density[1:] + density[:-1]) / 2 * np.diff(x) * float(total)
    beyond = np.append(np.cumsum(pieces[::-1])[::-1], 0.0)
    last = beyond < ISLET
    rises = density[last] > RISE * np.minimum.accumulate(density[last])
    return bool((rises & (beyond[last] > LAST / 2)).any())


def with_tail(
    x: Array, density: Array, tail_x: Array, beyond: Array, total: float
) -> tuple[Array, Array, float]:
    """Body and loose eigenvalues as one density, and its end.

    Parameters
    ----------
    x, density : ndarray (p,)
        The body.
    tail_x, beyond : ndarray (q,)
        Points from the body's end on, and how many of `total` eigenvalues lie beyond each in the mean.
    """
    from scipy.interpolate import PchipInterpolator

    loose = float(beyond[0])
    if loose <= LAST:
        return x, density, float(x[-1])
    falling = np.minimum.accumulate(beyond)
    end = float(np.interp(-LAST, -falling, tail_x))
    inside = tail_x < end
    # The last half of an eigenvalue lies anywhere: it goes to the others.
    outer = (falling[inside] - LAST) * loose / (loose - LAST)
    pieces = (density[1:] + density[:-1]) / 2 * np.diff(x) * total
    body = np.append(np.cumsum(pieces[::-1])[::-1], 0.0)
    body *= (body[0] - loose) / body[0]
    shore = int(np.searchsorted(-body, -SHORE))
    at = np.concatenate([x[shore:-1], tail_x[inside], [end]])
    count = np.concatenate([body[shore:-1] + loose, outer, [0.0]])
    ends = _falling(at, count)
    slope = -PchipInterpolator(at[ends], count[ends])(at, 1) / total
    kept = density[:shore] * (1 - loose / (pieces.sum()))
    return np.append(x[:shore], at), np.append(kept, np.append(np.maximum(slope[:-1], 0.0), 0.0)), end


def _falling(x: Array, count: Array) -> NDArray[np.intp]:
    """Points between which a falling count has a density that falls, too: neighbours pooled where it does not."""
    kept = [0]
    for i in range(1, len(x)):
        while len(kept) > 1:
            before, last = kept[-2], kept[-1]
            left = (count[before] - count[last]) / (x[last] - x[before])
            right = (count[last] - count[i]) / (x[i] - x[last])
            if right <= left:
                break
            kept.pop()
        kept.append(i)
    return np.array(kept)
