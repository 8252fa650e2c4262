r"""Loose eigenvalues: the few largest labels of a step each make an eigenvalue of M of their own [firststep, spectra].

Labels with a tail put the largest eigenvalues of M = X^T diag(y) X/n0 at places that differ from draw to draw. A law of
M with nodes there would give the features' bulk islets that no average over draws has. So the law is that of all but
the largest labels, and what these do is counted: with Stieltjes transform g of the former, a label y makes the
eigenvalue

.. math:: m(y) = \zeta(-1/(\phi_0 y)), \qquad \zeta(g) = E\Big[\frac{y'}{1 + \phi_0 y' g}\Big] - \frac1g ,

and n0 P(Y > y) of them lie beyond it in the mean. But a large label is also a large part of the step direction b, and
what its sample has along b belongs to the spike: beside a spike M counts between directions orthogonal to the shared
vector v, where its eigenvalues are the zeros of

.. math:: G(\zeta) = v^\top (M - \zeta)^{-1} v .
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
# Bisections of an interval.
HALVINGS = 40
# Points of the law of M, and its distances from the real axis, in units of its width, on the way down.
POINTS, DISTANCES = 240, (1.0, 0.3, 0.1, 0.03, 0.01, 3e-3, 1e-3, 3e-4, 1e-4)
# A piece of the bulk with fewer eigenvalues than this is an islet, and the bulk counts as loose.
ISLET = 3.5
# A density that rises by this factor among its last eigenvalues has a lobe there.
RISE = 1.1
# The bulk ends where so many eigenvalues lie beyond in the mean: the largest is as often above as below, exp(-LAST).
LAST = math.log(2)
# Eigenvalues of the body that are smoothed together with the loose ones.
SHORE = 4.0


@dataclass(frozen=True)
class LooseLabels:
    r"""A law of M without the largest labels, and where those put their eigenvalues.

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
    turned : tuple of ndarray (PLACES,)
        :math:`|\hat v\cdot M e|^2` of these eigenvectors e: M turns what rows have along v towards them.
    """

    law: RestLaw
    places: tuple[Array, ...]
    counts: Array
    shares: tuple[Array, ...]
    turned: tuple[Array, ...]

    def beyond(self, score: Callable[[Array, Array, Array], Array], points: int) -> Array:
        """Mean number of loose eigenvalues beyond each of so many points.

        `score` is positive, (points, places), where an eigenvalue m of M with these shares and turns, (places,), makes
        an eigenvalue beyond the point.
        """
        total = np.zeros(points)
        logs, rows = np.log(self.counts), np.arange(points)
        for place in zip(self.places, self.shares, self.turned, strict=True):
            places, heights = place[0], score(*place)
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


def loose_labels(
    problem: Problem, sizes: Sizes, step_size: float, law: RestLaw, levels: int
) -> LooseLabels | None:
    """The largest labels taken out of the law of M; None where there is no such law."""
    if not is_plain(problem, sizes) or problem.label_variance == 0 or len(law.nodes) < 2:
        return None
    power = 1 if np.ptp(law.nodes) > 0 and problem.activation.hermite(3)[2] != 0 else 2
    parted = _parted(problem, sizes, power, _output_share(problem, sizes, step_size))
    if parted is None:
        return None
    nodes, weights = thinned(*parted.law, levels)
    places, turned, counts = parted.places, parted.turned, np.geomspace(RAREST, LOOSE, PLACES)
    if power == 1:
        # The share is a quadratic function of the eigenvalue, as `rest_law` has it.
        quadratic = np.polyfit(law.nodes, law.share, min(2, len(law.nodes) - 1))
        share, shares = (
            np.maximum(np.polyval(quadratic, nodes), 0.0),
            tuple(np.maximum(np.polyval(quadratic, x), 0.0) for x in places),
        )
    else:
        share, shares, nodes = nodes, places, np.full_like(nodes, law.nodes[0])
        places, turned = (np.full(PLACES, law.nodes[0]),), (np.zeros(PLACES),)
    law = replace(law, nodes=nodes, weights=weights, share=share)
    return LooseLabels(law, places, counts, shares, turned)


def _output_share(problem: Problem, sizes: Sizes, step_size: float) -> float | None:
    r"""Squared length of W0^T a in the shared vector, in units of eta c_1; None where the vector makes no spike.

    It makes one from :math:`|v|^2 > \sqrt{N/d}` on [BBP05].
    """
    pull = step_size * float(problem.activation.hermite(2)[1])
    output = (1 / pull - pull / step_size) ** 2 if pull and problem.output_law.order_one else 0.0
    drawn = sizes.step_ratio * (problem.label_variance + problem.output_variance(sizes))
    length = float(problem.teacher.hermite(2)[1]) ** 2 + drawn + output
    return output if pull**2 * length > math.sqrt(sizes.width / sizes.dim) else None


@dataclass(frozen=True)
class _Parted:
    """Points and weights of M without its largest labels, and for each side places and turns of these."""

    law: tuple[Array, Array]
    places: tuple[Array, ...]
    turned: tuple[Array, ...]


@lru_cache(maxsize=16)
def _parted(problem: Problem, sizes: Sizes, power: int, output: float | None) -> _Parted | None:
    """Law of M with all but the largest labels, or their squares, and where those put eigenvalues; at any resolution.

    None where a step has so few samples that all of them are among the largest.
    """
    found = _samples(problem, sizes, power)
    counts = np.geomspace(RAREST, LOOSE, PLACES) / sizes.n_step_samples
    sides = (1.0, -1.0) if power == 1 else (1.0,)
    ends = [found.turned(sign).quantiles(counts) for sign in sides]
    low = -ends[1][0][-1] if power == 1 else -math.inf
    body = (found.m <= ends[0][0][-1]) & (found.m >= low)
    if not body.any():
        return None
    beside = None
    if output is not None:
        # A network has labels up to about the largest in the middle; b has a part of each.
        usual = [found.turned(sign).quantiles(np.array([LAST / sizes.n_step_samples]))[0] for sign in sides]
        others = ~body & (found.m <= usual[0]) & (found.m >= (-usual[1] if power == 1 else -math.inf))
        scatter = sizes.step_ratio * float(found.mass[others] @ found.y[others] ** 2)
        slope = float(problem.teacher.hermite(2)[1])
        beside = _Beside(slope, output + scatter, sizes.n_step_samples)
    found = found.take(body)
    places = [
        _places(found.turned(sign), end, sizes.step_ratio, beside)
        for sign, end in zip(sides, ends, strict=True)
    ]
    return _Parted(
        matrix_law(found.m, found.mass, sizes.step_ratio),
        tuple(sign * place for sign, (place, _) in zip(sides, places, strict=True)),
        tuple(turned for _, turned in places),
    )


@dataclass(frozen=True)
class _Samples:
    """Samples by their weight m in M, in ascending order: labels y, the teacher's coordinate t, probabilities."""

    m: Array
    y: Array
    t: Array
    mass: Array

    def take(self, which: slice | NDArray[np.intp] | NDArray[np.bool_]) -> "_Samples":
        return _Samples(self.m[which], self.y[which], self.t[which], self.mass[which])

    def turned(self, sign: float) -> "_Samples":
        """Those of -M for a negative sign."""
        return self if sign > 0 else _Samples(-self.m, self.y, self.t, self.mass).take(np.s_[::-1])

    def quantiles(self, shares: Array) -> tuple[Array, Array, Array, Array]:
        """Weights beyond which these small shares of the mass lie, and y^2, y t, t^2 of the samples beyond."""
        tail = self.take(np.s_[::-1])
        mass = np.cumsum(tail.mass)
        logs = np.log(np.maximum(mass - tail.mass / 2, 1e-300))
        sums = [
            np.cumsum(tail.mass * x) / np.maximum(mass, 1e-300)
            for x in (tail.y**2, tail.y * tail.t, tail.t**2)
        ]
        # At the quantile itself y is known by m; the mean beyond it is for what it has besides.
        square, cross, along = (np.interp(np.log(shares), logs, x) for x in sums)
        y2 = np.interp(np.log(shares), logs, tail.y**2)
        root = np.sqrt(y2 / np.where(square > 0, square, 1.0))
        return np.interp(np.log(shares), logs, tail.m), y2, cross * root, along


@dataclass(frozen=True)
class _Beside:
    """The vector v in units of eta c_1: slope times beta, a typical part of this squared length, a sum of labels."""

    slope: float
    typical: float
    count: int


def _samples(problem: Problem, sizes: Sizes, power: int) -> _Samples:
    """Samples of a step: labels less the initial output, or for power 2 their squares in units of the mean."""
    teacher = problem.teacher
    t, mass = normal_points(REACH, NODES, getattr(teacher, "kinks", ()))
    y = np.asarray(teacher.at(t[:, None]))
    spread = problem.noise_variance + (
        problem.output_variance(sizes) if problem.output_law.order_one else 0.0
    )
    if spread > 0:
        noise, share = normal_points(REACH, NOISE_NODES)
        y = (y[:, None] + math.sqrt(spread) * noise).ravel()
        t, mass = np.repeat(t, len(noise)), np.outer(mass, share).ravel()
    m = y if power == 1 else y**2 / float(mass @ y**2)
    return _Samples(m, y, t, mass).take(np.argsort(m, kind="stable"))


def _places(
    body: _Samples, ends: tuple[Array, Array, Array, Array], ratio: float, beside: _Beside | None
) -> tuple[Array, Array]:
    """Eigenvalues that samples beyond all others make, from the largest down, and what M turns towards v there.

    Inside the bulk of M they stay at its edge.
    """
    m = ends[0]
    places, turned = np.full(len(m), math.nan), np.zeros(len(m))
    positive = m > max(float(body.m.max()), 0.0) * (1 + 1e-9)
    edge = edge_at(body.m, body.mass, ratio)
    end = float(zeta_at(np.array([edge]), body.m, body.mass, ratio)[0][0])
    if positive.any():
        g = -1 / (ratio * m[positive])
        if beside is not None:
            g, turned[positive] = _orthogonal(body, [x[positive] for x in ends], ratio, beside, edge)
        value, slope = zeta_at(g, body.m, body.mass, ratio)
        places[positive] = np.where(slope > 0, value, math.nan)
    turned[~np.isfinite(places)] = 0.0
    places = np.where(np.isfinite(places), places, end)
    return np.asarray(np.maximum.accumulate(places[::-1])[::-1]), turned


def _orthogonal(
    body: _Samples, single: list[Array], ratio: float, beside: _Beside, edge: float
) -> tuple[Array, Array]:
    r"""g at the eigenvalues of M between directions orthogonal to v with one sample besides, and their turn to v.

    With D = 1/(1 + phi_0 m g) and averages over all samples, the single one having the probability 1/n0,

    .. math:: G = \phi_0 g\,E[y^2 D] + \tau g + \frac{(c_{*1} - \phi_0 g E[m y t D])^2}{E[m t^2 D] - \zeta}

    [firststep, unified, eqs. 21-23], tau being what v has of W0^T a and of the other large labels. Where
    G = 0, e = (M - zeta)^{-1} v is an eigenvector and M e has the part v beyond zeta e, so that the turn is
    |v|^2/G'(zeta).
    """
    m, y2, yt, t2 = single

    def seen(g: Array) -> Array:
        damped = body.mass / (1 + ratio * np.multiply.outer(g, body.m))
        own = 1 / (beside.count * (1 + ratio * m * g))
        square = damped @ body.y**2 + own * y2
        cross = damped @ (body.m * body.y * body.t) + own * m * yt
        along = damped @ (body.m * body.t**2) + own * m * t2
        zeta = damped @ body.m - 1 / g
        left = (beside.slope - ratio * g * cross) ** 2 / (along - zeta)
        return np.asarray(ratio * g * square + beside.typical * g + left)

    # G falls from infinity, where the single sample has its own eigenvalue, to negative values at the edge.
    high, low = -1 / (ratio * m) * (1 + 1e-9), np.full(len(m), edge)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        above = seen(middle) > 0
        high, low = np.where(above, middle, high), np.where(above, low, middle)
    g = (low + high) / 2
    near = g * 1e-5
    growth = (seen(g + near) - seen(g - near)) / (2 * near)
    length = beside.slope**2 + beside.typical + ratio * (float(body.mass @ body.y**2) + y2 / beside.count)
    slope = zeta_at(g, body.m, body.mass, ratio)[1]
    inside = (growth > 0) & (slope > 0)
    return g, np.where(inside, length * slope / np.where(inside, growth, 1.0), 0.0)


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
    # What lies beyond the end lies anywhere: it goes to the others, mostly to the next.
    outer = falling[inside] - LAST**2 / falling[inside]
    outer *= loose / (loose - LAST**2 / loose)
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
