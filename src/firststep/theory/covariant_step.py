r"""One step on inputs with any covariance: its vectors, and what it makes of the rows [firststep, covariance].

In whitened coordinates a row begins with the variance m/d along an eigenvector with eigenvalue m, and the step pulls
along S times the teacher's direction.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from firststep.gaussian import Array, Function, gauss_hermite
from firststep.setting import Problem, Sizes
from firststep.theory.directions import (
    LabelMoments,
    Profiles,
    grouped,
    loud_covariance,
    turned_covariance,
)
from firststep.theory.label_law import label_moments
from firststep.theory.lengths import Tilt, row_lengths, slope_parts
from firststep.theory.rest import RestLaw
from firststep.theory.step_law import (
    SHORTEST_ROW,
    StepLaw,
    length_pull,
    output_lost,
    output_of,
    radial_parts,
    unlearned_along,
)


def profiles_of(problem: Problem, sizes: Sizes) -> tuple[Profiles, LabelMoments]:
    """Scalar products of special vectors under the problem's covariance, and the labels' moments.

    Generators are the teacher's directions, W0^T a of an output of order one, and the noise of the step direction.
    """
    values, shares, weights = grouped(problem.covariance(sizes.dim))
    output = output_of(problem, sizes)
    moments = label_moments(problem.teacher, problem.noise_variance, output)
    teachers = problem.teacher.directions
    typical = 1 if output is None else 2
    masses = np.stack([weights] * teachers + [shares] * typical)
    # The output sees W0^T a through the inputs, as S^(1/2) W0^T a.
    profile = np.stack([np.ones_like(values)] * teachers + [np.sqrt(values)] * (typical - 1))
    known = np.zeros((len(profile), *masses.shape))
    known[np.arange(len(profile)), np.arange(len(profile))] = profile
    scatter = np.zeros_like(masses)
    scatter[-1] = 1.0
    noise = sizes.step_ratio * moments.square
    return Profiles(values, masses, known, scatter, sizes.step_ratio, noise), moments


def length_dim(problem: Problem, sizes: Sizes) -> float:
    r"""Dimension d' of the inputs' length beside the special directions V, with the variance 2/d' [firststep].

    .. math:: \frac{d^2}{d'} = \mathrm{tr}\,S^2 - 2\,\mathrm{tr}\,V^\top S^2 V + \mathrm{tr}\,(V^\top S V)^2

    Examples
    --------
    >>> problem = Problem("relu", "h1", inputs="spiked(10, overlap=1)")
    >>> sizes = Sizes(1000, 500, 750)
    >>> print(f"{sizes.dim / problem.covariance(500).moment(2):.0f} {length_dim(problem, sizes):.0f}")
    420 567
    """
    push = push_of(problem, sizes, np.ones(1), "none", np.ones(1), np.ones(1))
    profiles, m = push.profiles, push.profiles.values
    unit = push.direction / np.sqrt(profiles.product(push.direction, push.direction))
    vectors = profiles.orthonormal(unit[None], profiles.known)
    inside = profiles.gram(vectors * m, vectors)
    whole = sizes.dim * float(profiles.masses[-1] @ m**2)
    left = whole - 2 * np.trace(profiles.gram(vectors * m**2, vectors)) + np.sum(inside**2)
    return float(sizes.dim**2 / max(left, 1.0))


# A level of the covariance with fewer directions than this has a place of its own in a spectrum.
FEW_DIRECTIONS = 8.0


def levels_beside(
    problem: Problem, sizes: Sizes, step_size: float, loudest: bool = False
) -> tuple[Array, Array]:
    r"""Eigenvalues of S between typical directions, and their shares: what the special ones have is taken out.

    A loud eigenvector that the step has found is no typical direction. With V the special directions the levels with
    few directions are replaced by the eigenvalues of S between vectors orthogonal to V, as far as these lie beyond the
    other levels [firststep, covariance]. `loudest` counts the loudest eigenvector among V, whatever the step has found.

    Examples
    --------
    >>> problem, sizes = Problem("relu", "h1", inputs="spiked(10, overlap=1)"), Sizes(1000, 500, 750)
    >>> print(levels_beside(problem, sizes, 8.0)[0].round(2))
    [0.98]
    """
    values, shares, _ = grouped(problem.covariance(sizes.dim))
    few = shares * sizes.dim < FEW_DIRECTIONS
    if not few.any() or few.all():
        return values, shares
    push = push_of(problem, sizes, np.array([step_size]), "none", np.ones(1), np.ones(1))
    vectors = frame_of(push)[1][0]
    parts = vectors * np.sqrt(push.profiles.masses)  # (p, G, levels)
    # A level of one direction has one coordinate, whatever it has of each generator.
    single = shares * sizes.dim < 1.5
    largest = np.take_along_axis(parts, np.abs(parts).argmax(axis=1, keepdims=True), axis=1)[:, 0]
    joined = np.copysign(np.sqrt((parts**2).sum(axis=1)), largest)
    coordinates = np.concatenate([joined[:, single], *parts[:, :, ~single].swapaxes(0, 1)], axis=1)
    if loudest:
        coordinates = np.concatenate([np.eye(coordinates.shape[1])[:1], coordinates])
    places = np.concatenate([values[single], *[values[~single]] * parts.shape[1]])
    basis = np.linalg.qr(coordinates.T, mode="complete")[0][:, len(coordinates) :]
    found = np.linalg.eigvalsh((basis.T * places) @ basis)[::-1]
    top, taken = values[~few].max(), parts.shape[1] * np.ones(len(values))
    taken[single] = 1.0
    left = np.where(few, np.maximum(shares - taken / sizes.dim, 0.0), shares)
    beyond = found[found > top * (1 + 1e-9)]
    nodes = np.concatenate([beyond, values[left > 0]])
    weights = np.concatenate([np.full(len(beyond), 1 / sizes.dim), left[left > 0]])
    order = np.argsort(-nodes, kind="stable")
    return nodes[order], weights[order] / weights.sum()


@dataclass(frozen=True)
class Push:
    """What one step does under any covariance, leading axis S.

    Attributes
    ----------
    power : float
        g: 1 for a gradient step, 0 for a whitened one.
    raw, direction : ndarray (G, levels)
        b~, and S^g b~, what the step adds to all neurons.
    shared : ndarray (S, G, levels)
        v, what neurons have in common after it.
    steeper : ndarray (S, nu)
        What a neuron's own length adds to c_1 eta.
    turn, noise, spread : ndarray (S, nu)
        k; kappa^2; what typical directions gain, kappa^2 and M's scatter.
    kept : callable
        What is left of a row along directions with these eigenvalues, (S, nodes, nu).
    excess : ndarray (S, nu)
        s^2 - 1.
    """

    profiles: Profiles
    moments: LabelMoments
    power: float
    raw: Array
    direction: Array
    shared: Array
    steeper: Array
    turn: Array
    noise: Array
    spread: Array
    kept: Callable[[Array], Array]
    excess: Array


def push_of(problem: Problem, sizes: Sizes, step_sizes: Array, rest: str, u: Array, square: Array) -> Push:
    """The vectors and variances of a step on rows of these squared lengths [firststep, covariance, eqs. 1-2]."""
    profiles, moments = profiles_of(problem, sizes)
    c1, m = float(problem.activation.hermite(2)[1]), profiles.values
    power = 1.0 if problem.rule.plain else 0.0
    signal = np.atleast_1d(problem.teacher.gradient_mean)
    order_one = problem.output_law.order_one
    if order_one:
        signal = np.append(signal, -c1)
    raw = np.tensordot(signal, profiles.known, 1) + math.sqrt(profiles.noise) * profiles.scatter
    if rest == "structured":
        raw = raw + bent_slope(problem, sizes, profiles, moments)
    direction = raw * m**power
    shared = step_sizes[:, None, None] * c1 * direction
    if order_one:
        shared = shared + profiles.known[-1]
    slopes = slope_parts(problem, square, rest)
    steeper = np.outer(step_sizes, slopes.first - c1) * (rest == "structured")
    turn = np.outer(step_sizes, slopes.second) / math.sqrt(sizes.width) * (rest == "structured")
    scale = step_sizes**2 / float(sizes.width) * sizes.step_ratio * moments.square
    noise = np.outer(scale, slopes.left)
    spread = turn**2 * square * sizes.step_ratio * moments.square + noise
    shares = profiles.masses[-1]
    excess = square - 1 + spread * u**2 * float(shares @ m ** (2 * power))

    def kept(nodes: Array) -> Array:
        return np.asarray(1 - step_sizes[:, None, None] * unlearned_along(problem, sizes, rest, u, nodes))

    if order_one:
        excess = excess + np.einsum("l,blu->bu", shares * m, kept(m) ** 2 - 1)
        # The component along W0^T a is taken out of the row, whose norm stays what it was.
        excess = np.maximum(excess - u**2 / float(sizes.width), SHORTEST_ROW**2 - 1)
    return Push(profiles, moments, power, raw, direction, shared, steeper, turn, noise, spread, kept, excess)


# Nodes of l and of xi in averages of what a row sees of a teacher along an eigenvector.
SEEN_NODES = 24


def seen_slope(activation: Function, values: Array, dim: int) -> Array:
    r"""How much of a teacher's direction neurons see along eigenvectors with these eigenvalues, (levels,) [firststep].

    .. math:: E\big[l^2\,\sigma'\big(\sqrt{1 - m/d}\,g + \sqrt{m/d}\,\xi\,l\big)\big]
        = c_1 + 6c_3\,\frac md + \dots

    relative to that of an eigenvalue of one: a row's own component along l bends what it sees of it.

    Examples
    --------
    >>> from firststep.gaussian import function
    >>> tanh = function("tanh")
    >>> found, c = seen_slope(tanh, np.array([1.0, 11.0]), 1000), tanh.hermite(4)
    >>> print(found.round(4), round(6 * c[3] / c[1] * 0.01, 4))
    [1.     0.9942] -0.006
    """
    nodes, weights = gauss_hermite(SEEN_NODES)
    own, along = (part.ravel() for part in np.meshgrid(nodes, nodes, indexing="ij"))
    mass = np.outer(weights, weights * nodes**2).ravel()
    share = np.append(values, 1.0) / dim
    scale = np.broadcast_to(np.sqrt(1 - share)[:, None], (len(share), len(own)))
    slope = activation.gaussian_averages(scale, np.outer(np.sqrt(share), own * along))[1] / scale
    found = slope @ mass
    return np.asarray(found[:-1] / found[-1])


def bent_slope(problem: Problem, sizes: Sizes, profiles: Profiles, moments: LabelMoments) -> Array:
    r"""What a row's own components add to the mean of b~, beyond isotropic inputs', (G, levels) [firststep].

    .. math:: \Big(\frac{\text{seen}(m)}{c_1} - 1\Big)\,c_{*1}\theta
        + \Big(18\frac{c_3}{c_1}c_{*3}\,\theta
        + 3\frac{c_3}{c_1}\frac{E[y^2(t^2-1)]}{Ey^2}\,\tilde w\Big)\frac{\theta^\top S\theta - 1}{d}

    with :math:`\text{seen}(m) = c_1 + 6c_3 m/d + \dots` (`seen_slope`); the second part is the gradient's of degree
    two in the row.
    """
    teachers = problem.teacher.directions
    known, signal = profiles.known[:teachers], np.atleast_1d(problem.teacher.gradient_mean)
    bent = np.tensordot(signal, known, 1) * (seen_slope(problem.activation, profiles.values, sizes.dim) - 1)
    c = problem.activation.hermite(4)
    if teachers > 1 or c[1] == 0 or moments.square == 0:
        return np.asarray(bent)
    ratio = float(c[3] / c[1])
    share = (float(profiles.gram(known * profiles.values, known)[0, 0]) - 1) / float(sizes.dim)
    louder = (float(moments.second[0, 0]) - moments.square) / moments.square
    along = 18 * ratio * float(problem.teacher.hermite(4)[3]) * known[0]
    return np.asarray(
        bent + share * (along + 3 * ratio * louder * math.sqrt(profiles.noise) * profiles.scatter)
    )


@dataclass(frozen=True)
class Rows:
    """Rows after a step, of squared lengths that are known or all alike: with those of `Tilt`, each (nu,)."""

    push: Push
    u: Array
    square: Array
    multiplier: Array
    factor: Array
    known: bool

    @classmethod
    def of(
        cls,
        problem: Problem,
        sizes: Sizes,
        step_sizes: Array,
        rest: str,
        u: Array,
        square: Array | None,
        tilt: Tilt | None = None,
    ) -> "Rows":
        """Rows of squared lengths that are among those of `tilt`, by default the rule of the problem's rows."""
        if square is None:
            one = np.ones_like(u)
            return cls(push_of(problem, sizes, step_sizes, rest, u, one), u, one, 0 * one, one, known=False)
        push = push_of(problem, sizes, step_sizes, rest, u, square)
        tilt = tilt or row_lengths(problem, sizes.dim)
        return cls(push, u, square, *tilt.of(square), known=True)

    def variances(self, nodes: Array) -> Array:
        """Of the rows that a step begins with, along directions with these eigenvalues, (nodes, nu)."""
        return np.asarray(nodes[:, None] * self.factor / (1 - self.multiplier * nodes[:, None]))

    def stretch(self, nodes: Array) -> Array:
        """c(U, m), (S, nodes, nu)."""
        push = self.push
        bent = self.variances(nodes) * push.kept(nodes) ** 2 + push.spread[:, None] * self.u**2 * nodes[
            :, None
        ] ** (2 * push.power)
        return np.asarray(bent / (1 + push.excess)[:, None, :])


def general_step(
    problem: Problem,
    sizes: Sizes,
    step_sizes: Array,
    rest: str,
    u: Array,
    law: RestLaw,
    square: Array | None = None,
) -> StepLaw:
    """One step under any covariance on rows of these squared lengths, unknown by default (`step_on`)."""
    rows = Rows.of(problem, sizes, step_sizes, rest, u, square)
    return step_on(rows, problem, sizes, step_sizes, rest, law)


def step_on(
    rows: Rows,
    problem: Problem,
    sizes: Sizes,
    step_sizes: Array,
    rest: str,
    law: RestLaw,
    neighbour: bool = False,
) -> StepLaw:
    r"""One step under any covariance, with teachers of several directions [firststep, covariance, eqs. 1-6].

    .. math:: v = \eta c_1 S^g\Big(\sum_a c_a\theta_a + \tilde w\Big), \quad c = E\nabla s, \quad
        |\tilde w|^2 = \tfrac{d}{n_0} E y^2, \quad
        s^2 c(U, m) = m + (k^2 \overline{m_M^2} + \kappa^2) U^2 m^{2g}

    With an output of order one y is lessened by it, b~ by :math:`c_1 S^{1/2}W_0^\top a`, and the neurons share
    :math:`S^{1/2}W_0^\top a` besides. In typical directions M, which does not commute with S, acts as noise; in the
    special ones its mean and its scatter are kept (`turned_covariance`). `neighbour` asks for one more special
    direction (`frame_of`).
    """
    u, push, root = rows.u, rows.push, math.sqrt(sizes.width)
    m, excess = push.profiles.values, push.excess
    length, vectors, special = frame_of(push, neighbour)
    plain, linear, quadratic = _by_length(rows, vectors)
    inside = (..., slice(-1), slice(-1))
    k_u = (push.turn * u)[..., None, None]
    kept = np.einsum("l,blu->bu", push.profiles.masses[-1] * m, push.kept(m))[..., None, None]
    moved = (kept * k_u * linear + k_u**2 * quadratic)[inside] + _louder(push, vectors, u)
    special_stretch = rows.stretch(np.tile(m, len(push.profiles.masses)))
    moved = kept_positive(special_stretch, special, moved / (1 + excess)[..., None, None])
    overlaps = push.profiles.gram(push.profiles.known[: problem.teacher.directions], vectors)
    along = push.profiles.gram(push.direction[None], vectors)[:, 0]
    squared_slope, radial = radial_parts(problem, rest)
    # What a row has along b~ lengthens it by S^g w, and not by w itself.
    longer = push.profiles.masses[-1] @ (rows.variances(m) * m[:, None] ** push.power)
    change = 2 * radial * step_sizes[:, None] / root * u * longer / (1 + excess)
    leaning = (plain + k_u / 2 * linear)[..., :-1, -1]
    lengthening = 2 * squared_slope * step_sizes / root
    turn = 2 * float(problem.activation.hermite(3)[2]) * step_sizes / root * (rest == "structured")
    pull = length_pull(problem, rest) if not rows.known else 0.0
    return StepLaw(
        shared=((length[:, None] + push.steeper * along[:, :1]) / root * u)[..., None],
        excess=excess,
        noise=push.noise * u**2,
        turn=turn,
        law=law,
        stretch=lambda nodes, share: rows.stretch(nodes),
        special_stretch=special_stretch,
        special_vectors=special,
        special_extra=(rest == "structured") * moved,
        cosines=overlaps[..., :1],
        asides=overlaps[..., 1:],
        output_turn=_output_turn(push, vectors, np.outer(turn, u)) if problem.output_law.order_one else None,
        output_parts=_output_parts(push, law.nodes, u),
        output_lost=output_lost(problem, sizes, step_sizes, law.nodes, u),
        lengthening=lengthening,
        leaning=(change / np.sqrt(1 + excess))[..., None] * leaning,
        leaning_square=change**2 * plain[..., -1, -1],
        along=np.eye(vectors.shape[1])[0] * length[:, None],
        loosening=(lengthening - 2 * turn)[:, None] * linear[..., 0, 0] / 2 * u,
        curving=np.zeros_like(excess),
        pull=pull
        * step_sizes
        * float(problem.activation.hermite(2)[1])
        * along[:, 0]
        / np.maximum(length, 1e-300),
    )


# Of what rows have in special directions, in the harmonic mean over the levels, M leaves at least so much.
LEAST_LEFT = 0.1


def seen_at_least(stretch: Array, vectors: Array) -> Array:
    r"""Inverse of what a fit has of special directions once it resolves all levels, (S, nu, p, p) [firststep].

    .. math:: H^{-1} = \sum_l \frac{v_l v_l^\top}{c_l}

    for the variances c_l, (S, L, nu), and vectors v_l, (S, L, p), of the levels: H is a harmonic mean.
    """
    return np.asarray(np.einsum("blu,bla,blc->buac", 1 / stretch, vectors, vectors))


def kept_positive(stretch: Array, vectors: Array, extra: Array) -> Array:
    r"""What M does in special directions, as far as it leaves the rows something there [firststep, covariance, eq. 11].

    .. math:: f C', \quad f \text{ the largest number up to one with } f C' \ge -0.9\, H

    for C' = `extra`, (S, nu, p, p), and H of `seen_at_least`.
    """
    values, axes = np.linalg.eigh(seen_at_least(stretch, vectors))
    root = (axes * np.sqrt(np.maximum(values, 0.0))[..., None, :]) @ axes.swapaxes(2, 3)
    lowest = np.linalg.eigvalsh(root @ extra @ root)[..., 0]
    factor = np.minimum(1.0, (1 - LEAST_LEFT) / np.maximum(-lowest, 1e-300))
    return np.asarray(extra * factor[..., None, None])


def frame_of(push: Push, neighbour: bool = False) -> tuple[Array, Array, Array]:
    """The length of v, (S,), the special directions, (S, p, G, levels), and their law at the levels, (S, G levels, p).

    With `neighbour` the last one is what S v has beside the others: a row that lies along v has a part along it.
    """
    profiles = push.profiles
    length = np.sqrt(profiles.product(push.shared, push.shared))
    # Without a step v vanishes and its direction is that of the step to come.
    unit = np.where(length[:, None, None] > 0, push.shared, push.direction)
    unit = unit / np.sqrt(profiles.product(unit, unit))[:, None, None]
    groups = [unit[:, None], profiles.known] + [(unit * profiles.values)[:, None]] * neighbour
    vectors = profiles.orthonormal(*groups)
    special = (vectors * np.sqrt(profiles.masses)).transpose(0, 2, 3, 1)
    return length, vectors, special.reshape(len(length), -1, vectors.shape[1])


def _louder(push: Push, vectors: Array, u: Array) -> Array:
    """What the remainder has in the special directions, less what typical directions gain there, (S, nu, p, p)."""
    lifted = vectors * push.profiles.values**push.power
    louder = loud_covariance(push.profiles, push.moments, lifted)[:, None]
    gained = push.spread[..., None, None] * push.profiles.gram(lifted, lifted)[:, None]
    return np.asarray((u**2)[:, None, None] * (push.noise[..., None, None] * louder - gained))


def _by_length(rows: Rows, vectors: Array) -> tuple[Array, Array, Array]:
    """`turned_covariance` in the special directions and along b~, the last, for rows of each length, (S, nu, p, p)."""
    push = rows.push
    raw = np.broadcast_to(push.raw, (len(vectors), 1, *push.raw.shape))
    whole, variances = np.concatenate([vectors, raw], axis=1), rows.variances(push.profiles.values)
    _, first, index = np.unique(rows.square, return_index=True, return_inverse=True)
    parts = [
        turned_covariance(push.profiles, push.moments, whole, push.power, variances[:, at]) for at in first
    ]
    plain, linear, quadratic = (np.stack([part[i] for part in parts], axis=1)[:, index] for i in range(3))
    return plain, linear, quadratic


def _output_turn(push: Push, vectors: Array, turned: Array) -> Array:
    """k U S^g M S^(1/2) W0^T a, less what the row loses of the latter, in the special directions, (S, p, nu)."""
    moved = vectors * push.profiles.values**push.power
    left = push.profiles.seen(moved) @ push.moments.first @ push.profiles.seen(push.profiles.known[-1])
    lost = 1 - push.kept(push.profiles.values)
    begun = push.profiles.known[-1] * push.profiles.masses
    return np.asarray(left[..., None] * turned[:, None] - np.einsum("bpgl,gl,blu->bpu", vectors, begun, lost))


def _output_parts(push: Push, nodes: Array, u: Array) -> Array:
    """S^(1/2) W0^T a, and what M's scatter makes of it, in typical directions, (S, 2, nodes, nu)."""
    scattered = push.turn * math.sqrt(push.profiles.step_ratio * push.moments.square)
    turned = (scattered * u)[:, None] * nodes[:, None] ** push.power
    return np.stack([np.sqrt(nodes)[:, None] * push.kept(nodes), turned], axis=1)
