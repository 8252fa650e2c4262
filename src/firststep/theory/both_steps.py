r"""The law of the rows after two steps on fresh samples, in two coordinates [firststep, second step].

Neurons share the curve q(U) of `firststep.theory.second_step`; along its two main directions lie the coordinates zeta,
and the argument given zeta is :math:`s(U) g + q(U)\cdot\zeta`.
"""

import math
from dataclasses import dataclass, replace

import numpy as np

from firststep.gaussian import Array, gauss_hermite
from firststep.setting import Problem, Sizes
from firststep.theory.coefficients import Geometry, Resolution, geometry_of, readout_rule
from firststep.theory.second_step import (
    SAMPLE_NODES,
    Readouts,
    after_first,
    isotropic_law,
    random_covariance,
    slopes_after,
)
from firststep.theory.step_law import StepLaw, output_lost
from firststep.theory.turns import no_turn, turn_law, turn_samples

# Coordinates that the neurons share after two steps; what other directions carry counts as row length.
COORDINATES = 2
# Nodes of the law of both turns, in typical directions and for each special one.
LEVELS, SPECIAL_LEVELS = 6, 6
# Size below which functions of the coordinates are left out.
NEGLIGIBLE = 1e-4


def both_steps(
    problem: Problem,
    sizes: Sizes,
    steps: tuple[float, float],
    rest: str,
    readouts: Readouts,
    levels: tuple[int, int] = (LEVELS, SPECIAL_LEVELS),
) -> StepLaw:
    """The law of the rows after two steps, in two coordinates [firststep, second step, eqs. 5-8].

    `levels` are the nodes of the law of both turns, in typical directions and for each special one.
    """
    u, order_one = readouts.u, problem.output_law.order_one
    first, gradient = after_first(problem, sizes, steps[0], rest, readouts)
    known = gradient.mean.shape[1]
    push = steps[1] * u / math.sqrt(sizes.width)
    curve = push[:, None] * np.concatenate([gradient.mean, gradient.scatter], axis=1)
    curve[:, 0] += first.shared[0, :, 0]
    main = _main_directions(curve, readouts)
    shared = curve @ main.T
    left = np.maximum((curve**2).sum(axis=1) - (shared**2).sum(axis=1), 0.0)
    teacher = np.zeros((first.cosines.shape[1], curve.shape[1]))
    teacher[:, :1], teacher[:, 1:known] = first.cosines[0], first.asides[0]
    cosines = teacher @ main.T
    beside, asides = _beside(teacher - cosines @ main)
    special = np.concatenate([main, beside])
    noise = push**2 * gradient.noise + left
    turned = rest == "structured"
    whole = random_covariance(first, gradient, push, turned)
    loud = gradient.loud if turned else gradient.noise[:, None, None] * np.eye(whole.shape[1])
    whole = special @ (whole + (push**2)[:, None, None] * loud) @ special.T
    total = (1 + push * gradient.typical) ** 2 * (1 + first.excess[0]) + noise
    covariance = (whole + left[:, None, None] * np.eye(len(special))) / total[:, None, None]
    turns = no_turn(curve.shape[1])
    if turned:
        samples = turn_samples(problem, sizes, steps[0], rest, readouts)
        turns = turn_law(samples, sizes, steps, *levels)
    variance, vectors, size = turns.variances(u, total), turns.special_vectors @ special.T, len(special)
    special_stretch = variance(turns.special_nodes, turns.special_share) / total
    smooth = np.einsum("lu,la,lc->uac", special_stretch, vectors, vectors)
    return StepLaw(
        shared=shared[None],
        excess=total[None] - 1,
        noise=turns.noise(u, total)[None],
        turn=np.zeros(1),
        law=replace(isotropic_law(), nodes=turns.nodes, weights=turns.weights, share=turns.share),
        stretch=lambda nodes, share: (variance(nodes, share) / total)[None],
        special_stretch=special_stretch[None],
        special_vectors=vectors[None],
        special_extra=(covariance - smooth)[None],
        cosines=cosines[None],
        asides=asides[None],
        output_turn=np.zeros((1, size)) if order_one else None,
        output_parts=(1 + np.outer(turns.nodes, u))[None, None],
        output_lost=np.broadcast_to(
            _output_lost(problem, sizes, steps, first, readouts), (1, len(turns.nodes), len(u))
        ),
        along=np.zeros((1, size)),
        lengthening=np.zeros(1),
        leaning=np.zeros((1, len(u), size)),
        leaning_square=np.zeros((1, len(u))),
        loosening=np.zeros((1, len(u))),
        curving=np.zeros((1, len(u))),
    )


def _main_directions(curve: Array, readouts: Readouts) -> Array:
    """The directions that carry most of a curve q(U), (COORDINATES, axes)."""
    _, _, axes = np.linalg.svd(np.sqrt(readouts.weights)[:, None] * curve, full_matrices=False)
    # A readout of few values spans fewer directions than there are coordinates.
    main = np.zeros((COORDINATES, curve.shape[1]))
    main[: len(axes)] = axes[:COORDINATES]
    return main


def _output_lost(
    problem: Problem, sizes: Sizes, steps: tuple[float, float], first: StepLaw, readouts: Readouts
) -> Array:
    r"""What two steps take of an output that is called vanishing, in units of U/sqrt(N), (nu,).

    .. math:: x_1 + (1 - x_1)\,\eta_2\tau\,E_z\big[B_0(U, z)\,E_{U'}[U'^2 B_0(U', z)]\big], \qquad
        x_1 = \eta_1 c_1^2\tau

    The second step corrects what the first has left, by the slopes after it [firststep, next order, eq. 7].
    """
    before = np.asarray(output_lost(problem, sizes, np.array([steps[0]]), np.ones(1), readouts.u)[0, 0])
    if problem.output_law.order_one:
        return before
    z, weights = gauss_hermite(SAMPLE_NODES)
    slope = slopes_after(problem, first, z)[0]
    all_neurons = (readouts.weights * readouts.u**2) @ slope
    scale = steps[1] * problem.output_law.scale(sizes.width)
    return np.asarray(before + (1 - before) * scale * (slope @ (weights * all_neurons)))


def _beside(left: Array) -> tuple[Array, Array]:
    """Orthonormal directions of what is left of the teacher's beside the coordinates, and the teacher's in them."""
    found: list[Array] = []
    for row in left:
        vector = row.copy()
        for known in found:
            vector -= (known @ vector) * known
        size = float(np.linalg.norm(vector))
        found.append(vector / size if size > 1e-9 else np.zeros_like(vector))
    beside = np.stack(found)
    return beside, left @ beside.T


@dataclass(frozen=True)
class Plane:
    """Resolution of two coordinates: nodes of the first, which carries most, and of the second, and readout spacing."""

    first: int
    second: int
    spacing: float


def plane_geometry(problem: Problem, sizes: Sizes, plane: Plane, rest: str, highest: int) -> Geometry:
    """Geometry of two coordinates by a product rule."""
    line = geometry_of(problem, sizes, Resolution(plane.first, plane.spacing, 1), rest, 0, highest)
    rules = [gauss_hermite(count) for count in (plane.first, plane.second)]
    first, second = (part.ravel() for part in np.meshgrid(rules[0][0], rules[1][0], indexing="ij"))
    u, u_weights, psi = readout_rule(problem.readout_law, plane.spacing, 0)
    return replace(
        line,
        z=first,
        others=second[None],
        weights=np.outer(rules[0][1], rules[1][1]).ravel(),
        hermite=np.empty((0, len(first))),
        u=u,
        u_weights=u_weights,
        readout=u,
        own=None,
        psi=psi,
        law=isotropic_law(),
        negligible=NEGLIGIBLE,
    )
