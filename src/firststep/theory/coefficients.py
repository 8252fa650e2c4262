r"""A neuron's conditional coefficients, given z and its own readout [firststep, unified].

Given :math:`z = x\cdot v/|v|`, v the vector that the step adds to all neurons, and the neuron's readout
:math:`a_j = U_j/\sqrt N`, a feature is a function of a Gaussian with known mean and slope. Functions of z and of U are
expanded in small orthonormal bases; everything the self-consistent equations need is tabulated here, for a batch of
step sizes.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from firststep.gaussian import Array, Function, gauss_hermite, hermite_polynomials, monomial_in_hermite
from firststep.setting import Problem, ReadoutLaw, Sizes
from firststep.theory.covariant_step import Rows, length_dim, step_on
from firststep.theory.label_law import label_parts
from firststep.theory.lengths import Tilt, row_lengths
from firststep.theory.own_component import (
    OWN_NEGLIGIBLE,
    OWN_SPACING,
    OWN_WEIGHT,
    Own,
    Radial,
    opened,
    own_rule,
    radial_rule,
)
from firststep.theory.rest import RestLaw
from firststep.theory.sectors import (
    block_indices,
    directions,
    monomials,
    norm_share,
    product_levels,
    product_weights,
    symmetric_power,
    thinned,
)
from firststep.theory.spread import FACTOR_GROUPS, Spread, multiplied
from firststep.theory.step_law import StepLaw, bulk_law, directions_of, keeps_matrix, plain_step

# Up to this spike the conditional mean is summed as a series, free of the rounding that sqrt(N) would multiply.
SMALL_SPIKE = 0.1
SERIES_TERMS = 60
# And up to this s^2 - 1: the series in it has the radius of convergence one.
SMALL_EXCESS = 0.3
# Functions of rows that are longer than this are no polynomials of U.
SMALL_STRETCH = 0.3
# Spikes below this size change no error by more than about 1e-9.
NEGLIGIBLE_SPIKE = 1e-6
# Degrees, less one, in which W0^T a is taken out of the neurons' random parts: the next is smaller by 1/N.
OUTPUT_DEGREES = 14

# Labels whose variance the nodes of zeta miss by more than this share are given it.
UNRESOLVED = 1e-5
# Hermite degrees of the learned function that are kept.
LEARNED = 16
# Nodes of the polynomials by which a solution is carried to another resolution.
INTERPOLATION_NODES = 6

Values = NDArray[Any]


@dataclass(frozen=True)
class Resolution:
    """How finely the equations are discretised.

    Attributes
    ----------
    nodes : int
        Quadrature nodes of z.
    readout_spacing : float
        Distance of the quadrature nodes of a continuous readout U.
    rest_levels : int
        Quadrature nodes of the law of M.
    negligible : float
        Size below which functions of z are left out; at the default they change no error by more than about 1e-9.
    bent : bool
        Whether the nodes of U are equidistant in asinh U.
    cells : bool
        Average rho over cells around equidistant nodes of z, in which 1/rho is taken as linear. For spectra alone: less
        accurate than the nodes where these are enough.
    """

    nodes: int
    readout_spacing: float
    rest_levels: int
    negligible: float = 1e-7
    cells: bool = False
    bent: bool = False


# More nodes of z than this go into a trapezoid rule: Gauss quadrature would put most of them where the weight is below
# rounding and orthonormal functions are noise.
MOST_GAUSS_NODES = 50
INPUT_REACH = 8.2
# Fewest and most Hermite degrees, in z and in U, of the polynomial branch.
POLYNOMIAL_DEGREES = (8, 48)
# Beyond this spike, in units of the bulk, rounding hides the smaller spikes from a singular value decomposition.
LARGEST_RATIO = 1e6


@dataclass(frozen=True)
class Geometry:
    """What does not depend on the step size: ratios, quadrature, the highest degree, the law of typical directions."""

    problem: Problem
    sizes: Sizes
    rest: str
    highest: int  # P, the highest Hermite degree that has a sector of its own
    dim: int  # d, less one where the neurons' components along z are known
    samples_per_neuron: float  # n/N
    samples_per_dim: float  # n/d
    neurons_per_dim: float  # N/d
    z: Array  # the first coordinate
    others: Array  # further coordinates zeta_2 …, (L - 1, nz)
    weights: Array
    hermite: Array  # normalised Hermite polynomials of z, (K, nz)
    u: Array  # U of each node of the neurons
    u_weights: Array
    readout: Array  # the distinct ones
    own: Own | None  # what else is known of each neuron, at the nodes of u
    radial: Radial | None  # and of each sample: nodes of z are then repeated for each length
    inputs: Array  # the distinct nodes of z
    psi: Array  # orthonormal functions of U, (npsi, nu)
    c: Array
    law: RestLaw
    negligible: float
    cells: bool  # whether 1/rho is taken as linear between the nodes of z, which are equidistant then
    lengths: Array | None = (
        None  # under a covariance: squared lengths that the rows began with, at the nodes of u
    )
    tilt: Tilt | None = None  # the rule that they belong to

    @property
    def coordinates(self) -> Array:
        """zeta, (L, nz)."""
        return np.vstack([self.z[None], self.others])


@dataclass(frozen=True)
class PriorTerm:
    """Functions of the special coordinates that the random weights carry in one degree [firststep, degrees, eq. 5].

    Attributes
    ----------
    factor : float
        N over the number of directions.
    degree : int
        p: the neurons carry them with the coefficients alpha_p.
    places : tuple of (int, int)
        For each monomial the block of its g_e factors and the index of its zeta factors among the shifts.
    covariance : ndarray (S, nu, M, M)
        Between the monomials, without what is spread.
    spread : Spread or None
        Under a covariance: the law of these functions, in units of d over the number of directions.
    """

    factor: float
    degree: int
    places: tuple[tuple[int, int], ...]
    covariance: Array
    spread: Spread | None = None

    def mapped(self, change: Callable[[Array], Array]) -> "PriorTerm":
        """The same with every array changed."""
        spread = self.spread and Spread(change(self.spread.vectors), change(self.spread.stretch))
        return replace(self, covariance=change(self.covariance), spread=spread)


@dataclass(frozen=True)
class Tables:
    """Conditional coefficients for a batch of step sizes, leading axis S, in bases of functions of zeta and of U."""

    h: Array  # orthonormal functions of zeta, (S, K, nz)
    shifts: Array  # multiplication by products of Hermite polynomials of zeta among them, (S, J, K, K)
    psi: Array  # orthonormal functions of U, the constant first, (S, npsi, nu)
    spread: Array  # A_>^2, what is left beyond degree P, (S, nu, nz)
    carried: Array  # alpha of each degree, given the norm of x where that is known, (S, P, nu, K)
    stretch: Array  # c(U, m) at each level of each degree, times d/D_p, (S, L, nu)
    level_weights: Array  # share of each level times D_p/d, (S, L)
    level_degrees: tuple[int, ...]  # p of each level
    by_degree: Array  # alpha_p whatever the norm of x, (S, P, nu, K)
    special_stretch: Array  # c(U, m) at the special nodes, (S, L', nu)
    special_vectors: Array  # the matrix-valued law in the special directions, (S, L', p)
    special_extra: Array  # what the covariance has there besides, (S, nu, p, p)
    spikes: Array  # C, (S, B K, npsi)
    input_bend: Array  # E_u[A3 c(U, m) psi] at the nodes of mu: what the norm of x does, (S, L, npsi, nz)
    bend_weights: Array  # shares of these nodes, (S, L)
    row_bend: Array  # E_z[A3 h] times the spread of the rows' norms, (S, nu, K)
    length_bend: (
        Array  # the same for the length that a row began with, which its spike knows, too, (S, nu, K)
    )
    lean: Array  # E_z[A3 h], what a longer row does, (S, nu, K)
    leaning: Array  # covariance of a row's length with its special components, (S, nu, p)
    leaning_square: Array  # variance of the length that goes with them, (S, nu)
    labels: Array  # E[y h_b(g)|zeta] for each block, (S, B, nz)
    label_square: Array  # E[y^2 | zeta]
    cosines: Array  # (S, k, L)
    asides: Array  # (S, k, ke)
    output_spikes: (
        Array | None
    )  # E[h A1 U (1 + k U m)/s psi^T] at the nodes of mu, in parts, (S, J, L, K, npsi)
    output_powers: Array | None  # sqrt(p! N) c_p N^(-p/2) E[U^p psi], p = 2, 3, …, (S, P, npsi)
    first_places: tuple[tuple[int, int], ...]  # block and shift of each special direction
    blocks: tuple[tuple[int, ...], ...]  # multi-indices of the blocks, those with the norm of x last
    priors: tuple[PriorTerm, ...]

    norm_start: int  # first block that carries the norm of x
    alone: "Tables | None" = field(
        default=None, init=False
    )  # where all points have one step size: its tables

    @property
    def sectors(self) -> list[tuple[Array, slice]]:
        """alpha of each degree, (S, nu, K), and where its levels stand."""
        found, start = [], 0
        for p in range(self.carried.shape[1]):
            end = start + self.level_degrees.count(p + 1)
            found.append((self.carried[:, p], slice(start, end)))
            start = end
        return found

    @cached_property
    def products(self) -> list[Array | None]:
        """Products of two functions carried in each degree, (S, nu, K K), where they are few."""
        return [products_of(self.carried[:, p]) for p in range(self.carried.shape[1])]

    @property
    def cosine(self) -> Array:
        """r, the first teacher direction on the first coordinate, (S,)."""
        return self.cosines[:, 0, 0]

    def without_norm(self, geometry: Geometry, functions: Values) -> Values:
        """Coefficients on h_k(z) h_b(g) of functions of each block, (B, blocks, nz), without those of the norm of x."""
        if geometry.radial is not None and geometry.lengths is None:
            functions = self._from_harmonics(geometry.radial, functions)
        polynomials = hermite_polynomials(geometry.z, LEARNED, normalised=True)
        functions, dim = functions @ (geometry.weights * polynomials).T, geometry.dim
        found = functions[:, : self.norm_start].copy()
        for at, b in enumerate(self.blocks[self.norm_start :], start=self.norm_start):
            for e in range(self.asides.shape[1]):
                higher = tuple(x + 2 * (i == e) for i, x in enumerate(b))
                if higher in self.blocks[: self.norm_start] and (sum(b) == 0 or b[e]):
                    to, share = self.blocks.index(higher), norm_share(sum(higher), dim)
                    found[:, to] = math.sqrt(1 - share) * found[:, to] + math.sqrt(share) * functions[:, at]
        return found

    def _from_harmonics(self, radial: Radial, functions: Values) -> Values:
        """Functions that multiply h_b(g) of one coordinate each, from those that multiply harmonics."""
        found = np.zeros_like(functions)
        nodes = functions.shape[2] // len(radial.square)
        for at, b in enumerate(self.blocks):
            lower = [b] if sum(x > 0 for x in b) > 1 else [c for c in self.blocks if _below(c, b)]
            for c in lower:
                mixed = np.tile(radial.mixing[sum(c), sum(b)], nodes)
                found[:, at] += mixed * functions[:, self.blocks.index(c)]
        return found

    def take(self, index: NDArray[np.intp]) -> "Tables":
        """The same for some of the points; where all have the same, without copies."""
        if self.alone is not None:
            return self.alone.repeat(len(index))
        return self._mapped(lambda part: part[index])

    def repeat(self, count: int) -> "Tables":
        """A single step size for `count` points, without copies, made once."""
        if count not in self._repeated:
            most = max(self._repeated, default=0)
            if count > most:
                # Views of wider ones are ten times as fast to make as these.
                wide = self._mapped(lambda part: np.broadcast_to(part, (2 * count, *part.shape[1:])))
                self._repeated[2 * count], most = wide, 2 * count
                object.__setattr__(wide, "alone", self)
            made = self._repeated[most]._mapped(lambda part: part[:count])
            object.__setattr__(made, "alone", self)
            self._repeated[count] = made
        return self._repeated[count]

    @cached_property
    def _repeated(self) -> "dict[int, Tables]":
        return {}

    def _mapped(self, change: Callable[[Array], Array]) -> "Tables":
        known = {each.name: getattr(self, each.name) for each in fields(self) if each.init}
        parts: Any = {
            name: change(part) if isinstance(part, np.ndarray) else part for name, part in known.items()
        }
        parts["priors"] = tuple(term.mapped(change) for term in self.priors)
        return Tables(**parts)


# Up to so many products of two functions at all nodes of a point sums over nodes are one matrix product with them.
FEW_PRODUCTS = 2**14


def products_of(functions: Array) -> Array | None:
    """f_a f_b at each node, (S, nodes, K K), of functions (S, nodes, K); once, where all points have the same."""
    count, nodes, size = functions.shape
    if count > 1 and functions.strides[0] == 0:
        alone = (functions[0, :, :, None] * functions[0, :, None, :]).reshape(1, nodes, -1)
        return np.broadcast_to(alone, (count, nodes, size * size))
    if nodes * size**2 > FEW_PRODUCTS:
        return None
    return np.asarray((functions[..., :, None] * functions[..., None, :]).reshape(count, nodes, -1))


def _below(lower: tuple[int, ...], index: tuple[int, ...]) -> bool:
    """Whether a block of one coordinate has another's degree, less an even number."""
    return all((i - j) % 2 == 0 and i >= j for i, j in zip(index, lower, strict=True))


def readout_rule(
    law: ReadoutLaw, spacing: float, degrees: int, bent: bool = False
) -> tuple[Array, Array, Array]:
    """Nodes and weights of U = sqrt(N) a, and orthonormal functions of it with psi_0 = 1 for polynomial spikes."""
    if degrees or law.atoms is not None:
        return law.polynomials(spacing, degrees or len(law.atoms or ()))
    nodes, weights = law.rule(spacing, bent)
    return nodes, weights, np.ones((1, len(nodes)))


def _input_rule(count: int, degrees: int) -> tuple[Array, Array]:
    """Nodes and weights of z."""
    if degrees or count <= MOST_GAUSS_NODES:
        return gauss_hermite(max(count, degrees + count // 2))
    nodes = np.linspace(-INPUT_REACH, INPUT_REACH, count)
    weights = np.exp(-(nodes**2) / 2)
    return nodes, np.asarray(weights / weights.sum())


@lru_cache(maxsize=64)
def geometry_of(
    problem: Problem,
    sizes: Sizes,
    resolution: Resolution,
    rest: str,
    degrees: int,
    highest: int = 1,
    own: bool = False,
) -> Geometry:
    """Everything that the step sizes share; `degrees` > 0 asks for polynomials of z and U as bases.

    With `own` a neuron is known by its own component along z, too [firststep, degrees, eq. 11]; there are no
    polynomials of U then.
    """
    z, weights = _input_rule(resolution.nodes, degrees)
    spacing = max(resolution.readout_spacing, OWN_SPACING) if own else resolution.readout_spacing
    readout, readout_weights, psi = readout_rule(problem.readout_law, spacing, degrees, resolution.bent)
    if own:
        kept = readout_weights > OWN_WEIGHT
        readout, readout_weights = readout[kept], readout_weights[kept] / readout_weights[kept].sum()
    lengths = own and not problem.covariance(sizes.dim).isotropic
    each = own_rule(problem, sizes.dim, own) if not lengths else _row_rule(problem, sizes)
    count = len(each.weights)
    u, u_weights = np.repeat(readout, count), np.outer(readout_weights, each.weights).ravel()
    every = Own(*(np.tile(part, len(readout)) for part in (each.component, each.square, each.weights)))
    dim = sizes.dim - (own and not lengths)
    inputs, radial = z, radial_rule(dim, highest) if own else None
    if lengths:
        radial = radial_rule(length_dim(problem, sizes), highest)
    if radial is not None:
        z, weights = radial.spread(z), np.outer(weights, radial.weights).ravel()
    return Geometry(
        problem=problem,
        sizes=sizes,
        rest=rest,
        highest=highest,
        dim=dim,
        samples_per_neuron=sizes.n_samples / float(sizes.width),
        samples_per_dim=sizes.n_samples / float(dim),
        neurons_per_dim=sizes.width / float(dim),
        z=z,
        others=np.empty((0, len(z))),
        weights=weights,
        hermite=hermite_polynomials(z, degrees, normalised=True),
        u=u,
        u_weights=u_weights,
        readout=readout,
        own=every if own and not lengths else None,
        lengths=every.square if lengths else None,
        tilt=row_lengths(problem, sizes.dim) if lengths else None,
        radial=radial,
        inputs=inputs,
        psi=np.ones((1, len(u))) if own else psi,
        c=problem.activation.hermite(SERIES_TERMS + 1),
        law=bulk_law(problem, sizes, rest, resolution.rest_levels),
        negligible=max(resolution.negligible, OWN_NEGLIGIBLE) if own else resolution.negligible,
        cells=resolution.cells,
    )


def _row_rule(problem: Problem, sizes: Sizes) -> Own:
    """Rows of known lengths, of which nothing else is known."""
    rule = row_lengths(problem, sizes.dim)
    return Own(np.zeros_like(rule.square), rule.square, rule.weights)


def tables_of(geometry: Geometry, step_sizes: Array, rest: str) -> Tables:
    """Conditional coefficients after one step, for a batch of step sizes [firststep, unified, eqs. 4-6]."""
    return tables_from(geometry, law_of(geometry, step_sizes, rest))


def law_of(geometry: Geometry, step_sizes: Array, rest: str) -> StepLaw:
    """The law of one step for a batch of step sizes."""
    problem, sizes = geometry.problem, geometry.sizes
    if keeps_matrix(problem, sizes):
        law = plain_step(problem, sizes, step_sizes, rest, geometry.u, geometry.law)
    else:
        rows = Rows.of(problem, sizes, step_sizes, rest, geometry.u, geometry.lengths, geometry.tilt)
        law = step_on(rows, problem, sizes, step_sizes, rest, geometry.law)
    return law if geometry.own is None else opened(law, geometry.own, sizes.dim)


def special_share(geometry: Geometry, step_sizes: Array, rest: str) -> Array:
    """Largest mean share of a row's squared norm that lies along one special direction, (S,): small in theory."""
    law = law_of(geometry, step_sizes, rest)
    shares = np.einsum("u,buaa->ba", geometry.u_weights, law.special_covariance)
    return np.asarray(shares.max(axis=1) / float(geometry.sizes.dim))


@dataclass(frozen=True)
class _Averages:
    """Averages of the activation given zeta and U, each (S, nu, nz)."""

    by_degree: Array  # A_0, A_1, …, A_P, (P + 1, S, nu, nz)
    beside: Array  # the same for functions of single coordinates, which do not grow with the norm of x
    bend: Array  # A_3 = E[(g^2 - 1) sigma]/2
    spread: Array  # E sigma^2 less the squares of all degrees

    @property
    def mean(self) -> Array:
        return np.asarray(self.by_degree[0])


def tables_from(geometry: Geometry, law: StepLaw) -> Tables:
    r"""Conditional coefficients of the neurons given zeta, for a law of the rows [firststep, unified, eqs. 4-6].

    .. math:: A_p = E[h_p(g)\,\sigma(s g + q\cdot\zeta)],\quad A_>^2 = E\sigma^2 - \sum_{p \le P} A_p^2,
        \quad A_3 = \tfrac{1}{2} E[(g^2 - 1)\,\sigma]

    Functions of zeta and of U are expanded in polynomials if the geometry has them, else in what they span themselves.
    """
    averages = _averages(geometry, law) if geometry.radial is None else _radial_averages(geometry, law)
    places = Places.of(law, geometry)
    if len(geometry.hermite):
        h = np.broadcast_to(geometry.hermite, (len(law.turn), *geometry.hermite.shape))
    else:
        h = _span_of_z(geometry, averages)
    weighted = h * geometry.weights
    spikes, psi, along = _spikes(geometry, law, averages, weighted, places)
    psi_weighted = (psi * geometry.u_weights).swapaxes(1, 2)
    output_spikes = output_powers = None
    if along is not None:
        by_part = along[:, None, None] * law.output_parts[..., None, :]
        output_spikes = by_part @ psi_weighted[:, None, None]
        powers = _output_powers(geometry) @ psi_weighted
        output_powers = powers if geometry.rest != "noise" else np.zeros_like(powers[:, :1])
    across = weighted.swapaxes(1, 2)
    stretch, level_weights, level_degrees = _levels(geometry, law)
    row_bend, length_bend, bent = _norms(geometry, law, averages)
    labels, square = _labels(geometry, law, places)
    return Tables(
        h=h,
        shifts=places.shifts(geometry.coordinates, h, weighted),
        psi=psi,
        spread=averages.spread,
        carried=np.stack([a @ across for a in averages.by_degree[1:]], axis=1),
        stretch=stretch,
        level_weights=level_weights,
        level_degrees=level_degrees,
        by_degree=np.stack([a @ across for a in averages.beside[1:]], axis=1),
        special_stretch=law.special_stretch,
        special_vectors=law.special_vectors,
        special_extra=law.special_extra,
        spikes=spikes,
        input_bend=psi_weighted.swapaxes(1, 2)[:, None] @ bent,
        bend_weights=np.broadcast_to(law.law.weights, (len(law.turn), len(law.law.weights))),
        row_bend=row_bend[..., None] * (averages.bend @ across),
        length_bend=length_bend @ across,
        lean=averages.bend @ across,
        leaning=law.leaning,
        leaning_square=law.leaning_square,
        labels=labels,
        label_square=square + geometry.problem.noise_variance,
        cosines=law.cosines,
        asides=law.asides,
        output_spikes=output_spikes,
        output_powers=output_powers,
        first_places=places.first,
        blocks=places.blocks,
        priors=places.priors(geometry, law),
        norm_start=len(places.indices),
    )


def _averages(geometry: Geometry, law: StepLaw) -> _Averages:
    """Averages of the activation; with sectors of higher degree the rows' variance depends on zeta, too."""
    highest = geometry.highest
    shift = law.shared @ geometry.coordinates
    excess = law.excess[..., None]
    closed = highest > 1 and geometry.own is None
    if closed:
        excess = excess + (1 + excess) * _bulge(geometry, law, geometry.coordinates)
    parts, square, bend = _degrees(geometry, np.sqrt(1 + excess), shift)
    spread = np.maximum(square - (parts**2).sum(axis=0), 0.0)
    if not closed:
        return _Averages(parts, parts, bend, spread)
    # A neuron's projection on a product of coordinates does not know the norm of x, at any finite d.
    beside, _, bend = _degrees(geometry, np.sqrt(1 + law.excess[..., None]), shift)
    return _Averages(parts, beside, bend, spread)


def _bulge(geometry: Geometry, law: StepLaw, coordinates: Array) -> Array:
    """What w·x given zeta has of variance more where |zeta| is large: the neurons' random components along zeta."""
    inside = law.special_covariance[..., : len(coordinates), : len(coordinates)]
    bulge = np.einsum("buac,az,cz->buz", inside, coordinates, coordinates)
    bulge = bulge - np.einsum("buaa->bu", inside)[..., None]
    return np.asarray(np.maximum(bulge / float(geometry.sizes.dim), -0.5))


def _radial_averages(geometry: Geometry, law: StepLaw) -> _Averages:
    """Averages of the activation given z and the length of the rest of x, (…, nz) at the nodes of both."""
    scale = np.broadcast_to(np.sqrt(1 + law.excess)[..., None], (*law.excess.shape, len(geometry.inputs)))
    if geometry.own is not None:
        return _mixed_averages(geometry, law, scale)
    bulging = scale * np.sqrt(1 + _bulge(geometry, law, geometry.inputs[None]))
    assert geometry.radial is not None
    plain, bulged = (_mixed_averages(geometry, law, each) for each in (scale, bulging))
    # The length is that of typical directions: what a neuron carries along single coordinates does not grow with it.
    powers = np.arange(len(plain.beside))[:, None] / 2
    shorter = np.tile(geometry.radial.square**-powers, len(geometry.inputs))[:, None, None]
    return replace(bulged, beside=plain.beside * shorter, bend=plain.bend)


def _mixed_averages(geometry: Geometry, law: StepLaw, scale: Array) -> _Averages:
    """The same for arguments of this scale, (S, nu, nodes of z)."""
    radial, highest = geometry.radial, geometry.highest
    assert radial is not None
    activation, shift = geometry.problem.activation, law.shared @ geometry.inputs[None]
    by_hermite, square = activation.gaussian_expansion(scale, shift, len(radial.mixing))
    by_harmonic = radial.mixed(by_hermite)
    parts, beyond = by_harmonic[: highest + 1], (by_harmonic[highest + 1 :] ** 2).sum(axis=0)
    bend = ((by_hermite[2] / math.sqrt(2))[..., None] * radial.square).reshape(parts.shape[1:])
    # Degrees beyond those that are mixed grow with the length as the whole square does.
    left = np.maximum(square - (by_hermite**2).sum(axis=0), 0.0)
    longer = (scale[..., None] * np.sqrt(radial.square)).reshape(parts.shape[1:])
    squares = activation.gaussian_averages(longer, radial.spread(shift))[2].reshape(*shift.shape, -1)
    grown = squares * (left / (squares @ radial.weights))[..., None]
    return _Averages(parts, parts, bend, beyond + grown.reshape(parts.shape[1:]))


def _label_size(geometry: Geometry, square: Array, weights: Array) -> Array:
    """Factor by which labels at the nodes of zeta have the variance that they have in truth, (S, 1).

    It is one but for teachers with a kink that the nodes do not resolve.
    """
    found, second = square @ weights, geometry.problem.teacher.second_moment
    off = np.abs(found - second) > UNRESOLVED * second
    return np.sqrt(np.divide(second, found, out=np.ones_like(found), where=off & (found > 0)))[:, None]


def _labels(geometry: Geometry, law: StepLaw, places: "Places") -> tuple[Array, Array]:
    """Parts of the labels that multiply each block, (S, B, nz), and their mean square, (S, nz)."""
    count = len(law.cosines)
    if count > 1 and (law.cosines == law.cosines[:1]).all() and (law.asides == law.asides[:1]).all():
        # Without an output of order one the direction of a step does not depend on its size.
        alone = _labels(geometry, replace(law, cosines=law.cosines[:1], asides=law.asides[:1]), places)
        labels, square = (np.repeat(part, count, axis=0) for part in alone)
        return labels, square
    radial, teacher = geometry.radial, geometry.problem.teacher
    if radial is None:
        labels, square = label_parts(teacher, law.cosines, law.asides, geometry.coordinates, places.indices)
        size = _label_size(geometry, square, geometry.weights)
        return places.with_norm(size[..., None] * labels, geometry.dim), size**2 * square
    plain, square = label_parts(teacher, law.cosines, law.asides, geometry.inputs[None], places.indices)
    size = _label_size(geometry, square, geometry.weights.reshape(square.shape[1], -1).sum(axis=1))
    plain, square = size[..., None] * plain, size**2 * square
    if geometry.lengths is not None:
        return radial.spread(plain), radial.spread(square)
    labels = np.zeros((*plain.shape[:2], len(geometry.z)))
    for b, part in zip(places.indices, plain.swapaxes(0, 1), strict=True):
        for lower in places.harmonics(b):
            mixed = radial.mixing[sum(lower), sum(b)]
            labels[:, places.indices.index(lower)] += (part[..., None] * mixed).reshape(len(part), -1)
    # What is left of the square beyond these parts does not know the length.
    known = (labels**2).sum(axis=1)
    mean = known.reshape(*square.shape, -1) @ radial.weights
    return labels, radial.spread(square - mean) + known


def _degrees(geometry: Geometry, scale: Array, shift: Array) -> tuple[Array, Array, Array]:
    """A_0 … A_P, (P + 1, S, nu, nz), E sigma^2 and A_3 of s g + shift."""
    activation, highest = geometry.problem.activation, geometry.highest
    a0, a1, square, bend = _symmetric_averages(activation, scale, shift)
    if geometry.rest == "noise":
        bend = np.full_like(a0, geometry.c[2])
    parts = [a0, a1]
    if highest == 2:
        parts.append(math.sqrt(2) * bend)
    elif highest > 2:
        parts += list(activation.gaussian_hermite(scale, shift, highest + 1)[2:])
    return np.stack(parts), square, bend


def _symmetric_averages(
    activation: Function, scale: Array, shift: Array
) -> tuple[Array, Array, Array, Array]:
    """E f, E[g f], E f^2 and E[(g^2 - 1) f]/2 of s g + shift, each (S, nu, nz)."""
    middle = shift.shape[1] // 2
    # Where a change of sign of both U and zeta changes nothing, half of the nodes of U are enough.
    even = (
        middle > 0
        and np.array_equal(scale, scale[:, ::-1, ::-1])
        and np.array_equal(shift, shift[:, ::-1, ::-1])
    )
    first = middle if even else 0
    parts = list(activation.gaussian_averages(scale[:, first:], shift[:, first:]))
    if even:
        parts = [np.concatenate([x[:, : -middle - 1 : -1, ::-1], x], axis=1) for x in parts]
    a0, a1, square, bend = parts
    return a0, a1, square, bend / 2


def _spikes(
    geometry: Geometry, law: StepLaw, averages: _Averages, weighted: Array, places: "Places"
) -> tuple[Array, Array, Array | None]:
    """C, the functions psi of U that span it, and for an output of order one the linear spike by node."""
    root, u, count = math.sqrt(geometry.sizes.width), geometry.u, len(law.turn)
    basis = weighted.shape[1]
    by_node = np.zeros((count, len(places.blocks), basis, len(u)))
    along = None
    if geometry.problem.output_law.order_one:
        # For an output of order one M turns W0^T a, of which the row has the component a_j: a spike without sqrt(N).
        assert law.output_turn is not None
        slope = (averages.by_degree[1] / np.sqrt(1 + law.excess)[..., None]) * u[:, None]
        along = weighted @ slope.swapaxes(1, 2)
        if geometry.lengths is not None:
            slope = (averages.beside[1] / np.sqrt(1 + law.excess)[..., None]) * u[:, None]
        beside = weighted @ slope.swapaxes(1, 2)
        turned = law.output_turn[:, :, None]
        by_node[:, 0] = turned[:, 0] * ((weighted * geometry.z) @ slope.swapaxes(1, 2))
        for a, (block, _) in enumerate(places.first[1:], start=1):
            by_node[:, block] = beside * (law.along[:, a, None, None] + turned[:, a])
    if law.tilt is not None:
        slope = averages.by_degree[1] / np.sqrt(1 + law.excess)[..., None]
        linear = root * (weighted @ slope.swapaxes(1, 2))
        for a, (block, _) in enumerate(places.first[1:], start=1):
            by_node[:, block] += linear * law.tilt[:, None, :, a]
    if geometry.lengths is not None:
        _add_squares(geometry, law, by_node, weighted @ averages.bend.swapaxes(1, 2), places)
    bent = math.sqrt(2 * geometry.neurons_per_dim) * (weighted @ averages.bend.swapaxes(1, 2))
    if places.norm_block is not None:
        by_node[:, places.norm_block] = bent
    main = root * weighted @ averages.mean.swapaxes(1, 2)
    if len(geometry.hermite):
        psi = np.broadcast_to(geometry.psi, (count, *geometry.psi.shape))
        psi_weighted = (psi * geometry.u_weights).swapaxes(1, 2)
        spikes = by_node @ psi_weighted[:, None]
        polynomial = main @ psi_weighted
        omega = law.shared[:, -1, 0] / u[-1]
        series = np.abs(omega) <= SMALL_SPIKE
        near = np.abs(law.excess[:, None]) <= SMALL_EXCESS
        summed = root * _spike_series(geometry, omega[series], law.excess[series])
        if geometry.highest > 1:
            bulge = (geometry.z**2 - 1) / float(geometry.sizes.dim)
            bulging = (averages.bend * law.special_covariance[..., :1, 0]).swapaxes(1, 2) * near
            summed += root * ((weighted * bulge) @ bulging @ psi_weighted)[series]
        polynomial[series] = summed + ((main * ~near) @ psi_weighted)[series]
        spikes[:, 0] += polynomial
    else:
        by_node[:, 0] += main
        extra = [bent] if along is None else [bent, along, along * u]
        psi = _span_of_u(geometry, np.concatenate([by_node.reshape(count, -1, len(u)), *extra], axis=1))
        spikes = by_node @ (psi * geometry.u_weights).swapaxes(1, 2)[:, None]
    return spikes.reshape(count, len(places.blocks) * basis, -1), psi, along


def _add_squares(geometry: Geometry, law: StepLaw, by_node: Array, bent: Array, places: "Places") -> None:
    """The squares of coordinates beside z, of which an input's length is made, as functions that all neurons share."""
    covariance, coordinates = law.special_covariance, places.coordinates
    for e in range(places.beside):
        index = tuple(2 * (i == e) for i in range(places.beside))
        if index in places.indices:
            own = covariance[:, None, :, coordinates + e, coordinates + e] / float(geometry.sizes.dim)
            by_node[:, places.indices.index(index)] += math.sqrt(2 * geometry.sizes.width) * bent * own


# Levels of a factor, in products of degree 2, 3 and above: of M's law, and of a covariance.
FACTOR_LEVELS = {False: (3, 2), True: (6, 3)}


def _levels(geometry: Geometry, law: StepLaw) -> tuple[Array, Array, tuple[int, ...]]:
    """c(U, m) at the levels of every degree, the levels' weights and their degrees [firststep, degrees, eq. 3]."""
    dim = geometry.dim
    stretch = law.stretch(law.law.nodes, law.law.share)
    parts, weights = [stretch], [law.law.weights]
    anisotropic = not keeps_matrix(geometry.problem, geometry.sizes)
    for p in range(2, geometry.highest + 1):
        nodes, share, shares = _thinned_law(law.law, FACTOR_LEVELS[anisotropic][p > 2])
        factors = law.stretch(nodes, share)
        chosen = product_levels(len(nodes), p)
        products = multiplied(factors, chosen)
        if geometry.lengths is not None:
            found, own = _independent(geometry, law, factors, chosen), product_weights(shares, p)
            products = found * ((own @ products) / (own @ found))[:, None]
        count = directions(dim, p)
        parts.append(products * (dim / count))
        weights.append(product_weights(shares, p) * (count / dim))
    whole = np.concatenate(weights)
    degrees = tuple(p for p, own in enumerate(weights, start=1) for _ in own)
    return np.concatenate(parts, axis=1), np.broadcast_to(whole, (len(stretch), len(whole))), degrees


def _independent(
    geometry: Geometry, law: StepLaw, factors: Array, chosen: Sequence[tuple[int, ...]]
) -> Array:
    """Products with the mean over the rows' lengths that those of independent components have, (S, L, nu).

    Components along two directions are both larger in a longer row, and yet independent; together they have what the
    length gives them, whatever it is.
    """
    count, square = len(geometry.readout), (1 + law.excess)[:, None]

    def mean(values: Array) -> Array:
        by_readout = (values * geometry.u_weights).reshape(*values.shape[:2], count, -1).sum(axis=3)
        return np.asarray(by_readout / geometry.u_weights.reshape(count, -1).sum(axis=1))

    products = multiplied(factors, chosen)
    wanted = multiplied(mean(factors * square), chosen)
    ratio = wanted / mean(products * square ** len(chosen[0]))
    return np.asarray(products * np.repeat(ratio, factors.shape[2] // count, axis=2))


def _thinned_law(law: RestLaw, count: int) -> tuple[Array, Array, Array]:
    """A law with fewer nodes: eigenvalues, the remainder's share there, and weights."""
    if np.ptp(law.nodes) > 0 or len(law.nodes) == 1:
        nodes, weights = thinned(law.nodes, law.weights, count)
        return nodes, np.ones_like(nodes), weights
    share, weights = thinned(law.share, law.weights, count)
    return np.full_like(share, law.nodes[0]), share, weights


def _norms(geometry: Geometry, law: StepLaw, averages: _Averages) -> tuple[Array, Array, Array]:
    """What the rows' norms fluctuate by, (S, nu), what their first lengths do to the means, and the inputs' norms.

    The second has the shape (S, nu, nz), the third (S, L, nu, nz).
    """
    bend = averages.bend
    begun = np.zeros_like(bend)
    weights, stretch = law.law.weights, law.stretch(law.law.nodes, law.law.share)
    if geometry.rest == "noise":
        fluctuation = np.full(law.excess.shape, 0.0 if geometry.problem.row_law.unit_norm else 1.0)
        bent = np.broadcast_to(bend[:, None], (len(bend), len(weights), *bend.shape[1:]))
    else:
        fluctuation = _row_fluctuation(geometry, law, stretch)
        if law.pull is not None and law.pull.any() and geometry.own is None and geometry.lengths is None:
            kept, share = _first_length(geometry, law, stretch)
            fluctuation = fluctuation - kept**2 * share
            slope = averages.by_degree[1] / np.sqrt(1 + law.excess)[..., None]
            moved = law.pull[:, None, None] * slope * (law.shared @ geometry.coordinates)
            begun = math.sqrt(share) * (kept[..., None] * bend + moved)
        # With a block of its own, the norm of x as a whole is no noise: what is left is its spread over the levels.
        common: Array | float = 1.0 if geometry.highest > 1 else 0.0
        if geometry.lengths is not None:
            nodes = law.law.nodes
            common = nodes[:, None] * ((weights * nodes) @ stretch)[:, None] / (weights @ nodes**2)
        bent = bend[:, None] * (stretch - common)[..., None]
    return np.sqrt(np.maximum(fluctuation, 0.0)), begun, bent


def _first_length(geometry: Geometry, law: StepLaw, stretch: Array) -> tuple[Array, float]:
    """Growth of s^2 with the squared length that a row began with, (S, nu), and its variance in units of 2/d."""
    unit = 1.0 if geometry.problem.row_law.unit_norm else 0.0
    if keeps_matrix(geometry.problem, geometry.sizes):
        return law.law.weights @ stretch - law.noise / (1 + law.excess), 1.0 - unit
    second = geometry.problem.covariance(geometry.sizes.dim).moment(2)
    return 1 / (1 + law.excess), max(second - unit, 0.0)


def _row_fluctuation(geometry: Geometry, law: StepLaw, stretch: Array) -> Array:
    """nu(U): the variance of a row's squared norm, in units of 2 s^4/d, (S, nu) [firststep, unified, eq. 13]."""
    weights, u = law.law.weights, geometry.u
    own = law.noise / (1 + law.excess)
    if keeps_matrix(geometry.problem, geometry.sizes):
        # M lengthens a row by another factor than it turns it: the remainder has a part along the row, too.
        surplus = (law.lengthening - 2 * law.turn)[:, None, None] * law.law.nodes[:, None] * u
        stretch = stretch + surplus / (1 + law.excess)[:, None]
        random = np.zeros(law.excess.shape)
    else:
        # Between typical directions: a loud one is not among the levels.
        nodes = law.law.nodes
        square = geometry.problem.label_variance + geometry.problem.output_variance(geometry.sizes)
        power = 1 if geometry.problem.rule.plain else 0
        spread = (weights @ nodes ** (1 + 2 * power) + (weights @ nodes ** (1 + power)) ** 2) / 2
        variance = geometry.sizes.step_ratio * square * spread
        random = variance * (law.lengthening[:, None] * u / (1 + law.excess)) ** 2
    fluctuation = weights @ stretch**2 + random
    if geometry.lengths is not None and geometry.tilt is not None:
        # Of a row whose length was known the step's part alone is left.
        begun = geometry.tilt.variances(law.law.nodes, geometry.lengths) / (1 + law.excess)[:, None]
        return np.asarray(fluctuation - weights @ begun**2)
    if geometry.problem.row_law.unit_norm or geometry.own is not None:
        fluctuation = fluctuation - (weights @ stretch - own) ** 2
    return np.asarray(fluctuation)


@dataclass(frozen=True)
class Places:
    """Where functions of the special coordinates stand: blocks of h_b(g), shifts by h_a(zeta), monomials of both.

    Attributes
    ----------
    coordinates, beside : int
        L, and the number of special directions beside the coordinates.
    highest : int
        P.
    indices : tuple
        Multi-indices b of the blocks of the labels.
    blocks : tuple
        The same, with the blocks that carry the norm of x as well at the end.
    norm_block : int or None
        The first of these.
    """

    coordinates: int
    beside: int
    teaching: int
    highest: int
    indices: tuple[tuple[int, ...], ...]
    dim: int
    radial: bool

    @classmethod
    def of(cls, law: StepLaw, geometry: Geometry) -> "Places":
        """The places that a law of rows asks for."""
        highest = geometry.highest
        coordinates = law.cosines.shape[2]
        beside = law.asides.shape[2]
        teaching = min(beside, law.cosines.shape[1])
        padded = tuple((*b, *[0] * (beside - teaching)) for b in block_indices(teaching, highest))
        others = tuple(tuple(int(i == e) for i in range(beside)) for e in range(teaching, beside))
        radial = geometry.radial is not None
        return cls(coordinates, beside, teaching, highest, padded + others, geometry.dim, radial)

    @property
    def blocks(self) -> tuple[tuple[int, ...], ...]:
        """Multi-indices of all blocks, those that carry the norm of x as well last."""
        norm = (
            [b for b in self.indices if sum(b) <= 1 and not any(b[self.teaching :])]
            if self.highest > 1 and not self.radial
            else []
        )
        return (*self.indices, *norm)

    @property
    def norm_block(self) -> int | None:
        """The first block that carries the norm of x, if any does."""
        return len(self.indices) if self.highest > 1 and not self.radial else None

    @property
    def zeta_indices(self) -> tuple[tuple[int, ...], ...]:
        """Multi-indices of the products of coordinates, in the order of the shifts."""
        return tuple(block_indices(self.coordinates, self.highest))

    @property
    def first(self) -> tuple[tuple[int, int], ...]:
        """Block and shift of each special direction."""
        return self._places(1, self.beside)

    def _places(self, degree: int, beside: int, skipped: int = 0) -> tuple[tuple[int, int], ...]:
        """Block and shift of each monomial in all directions but the first `skipped` and those beyond `beside`."""
        found = []
        for index in monomials(self.coordinates + beside - skipped, degree):
            whole = (*[0] * skipped, *index, *[0] * (self.beside - beside))
            a, b = whole[: self.coordinates], whole[self.coordinates :]
            found.append((self.indices.index(b), self.zeta_indices.index(a)))
        return tuple(found)

    def shifts(self, coordinates: Array, h: Array, weighted: Array) -> Array:
        """Multiplication by h_a(zeta) among the functions h, (S, J, K, K)."""
        polynomials = [hermite_polynomials(row, self.highest + 1, normalised=True) for row in coordinates]
        rows = []
        for a in self.zeta_indices:
            factor = np.ones(coordinates.shape[1])
            for axis, degree in enumerate(a):
                factor = factor * polynomials[axis][degree]
            rows.append((weighted * factor) @ h.swapaxes(1, 2))
        return np.stack(rows, axis=1)

    def harmonics(self, index: tuple[int, ...]) -> list[tuple[int, ...]]:
        """Blocks of the harmonics in h_b(g): of one coordinate all lower ones of its parity, else its own."""
        axes = [e for e, degree in enumerate(index) if degree]
        if len(axes) != 1:
            return [index]
        e, top = axes[0], sum(index)
        return [tuple(q * (i == e) for i in range(len(index))) for q in range(top, -1, -2)]

    def with_norm(self, labels: Array, dim: int) -> Array:
        """The labels' parts with those that the norm of x carries split off [firststep, degrees, eqs. 7-8]."""
        if self.norm_block is None:
            return labels
        labels = labels.copy()
        units = [b for b in self.indices if sum(b) == 1 and not any(b[self.teaching :])]
        extra = np.zeros((len(labels), len(self.blocks) - len(self.indices), labels.shape[2]))
        for unit in units:
            # H_2(g) is its traceless part and the norm of x, H_3(g) its traceless part and g times the norm.
            for degree, block in ((2, 0), (3, 1 + units.index(unit))):
                index = tuple(degree * x for x in unit)
                if index in self.indices:
                    at, share = self.indices.index(index), norm_share(degree, dim)
                    extra[:, block] += math.sqrt(share) * labels[:, at]
                    labels[:, at] *= math.sqrt(1 - share)
        return np.concatenate([labels, extra], axis=1)

    def priors(self, geometry: Geometry, law: StepLaw) -> tuple[PriorTerm, ...]:
        """What the random weights carry in the degrees above the first [firststep, degrees, eq. 5]."""
        found = []
        width, count = geometry.sizes.width, self.coordinates + self.teaching
        # Where neurons are known along z, nothing random lies along it.
        known = 0 if geometry.own is None else 1
        covariance = law.special_covariance[..., known:count, known:count]
        spread = None
        if not keeps_matrix(geometry.problem, geometry.sizes):
            spread = Spread(law.special_vectors[..., :count], law.special_stretch)
        for p in range(2, self.highest + 1):
            size = directions(self.dim, p)
            places = self._places(p, self.teaching, known)
            whole = symmetric_power(covariance, p)
            if spread is None:
                found.append(PriorTerm(width / size, p, places, whole))
                continue
            power = own = spread.power(p, FACTOR_GROUPS[p])
            if geometry.lengths is not None:
                own = spread.power(p, FACTOR_GROUPS[p], partial(_independent, geometry, law))
            scaled = replace(own, stretch=own.stretch * (self.dim / size))
            found.append(PriorTerm(width / size, p, places, whole - power.covariance, scaled))
        if self.highest > 2 and self.norm_block is not None:
            # The trace of degree three: the norm of x times a linear function.
            places = tuple(
                (self.norm_block + (0 if block == 0 else block), shift)
                for block, shift in self._places(1, self.teaching, known)
            )
            found.append(PriorTerm(3 * width / self.dim**2, 3, places, covariance))
        return tuple(found)


def _output_powers(geometry: Geometry) -> Array:
    """sqrt(p! N) c_p (U/sqrt(N))^p for p = 2, 3, …: the neurons' shares in H_p of a typical direction, (P, nu).

    U/sqrt(N) is the cosine between a row and W0^T a; few neurons have readouts for which it would exceed one.
    """
    root = math.sqrt(geometry.sizes.width)
    degrees = np.arange(2, OUTPUT_DEGREES)
    factor = np.array([math.sqrt(math.factorial(p)) * root ** (1 - p) for p in degrees]) * geometry.c[degrees]
    return np.asarray(factor[:, None] * np.clip(geometry.u, -root, root) ** degrees[:, None])


def spike_strength(problem: Problem, sizes: Sizes, step_sizes: Array, rest: str) -> Array:
    """Size of omega: the component of a neuron along z is omega U."""
    return np.asarray(
        np.abs(directions_of(problem, sizes, step_sizes, rest)[0][:, 0]) / math.sqrt(sizes.width)
    )


def _span_of_z(geometry: Geometry, averages: _Averages) -> Array:
    """Orthonormal functions of zeta that span 1, zeta, A0, A3, A_p and their products with zeta^p, without truncation.

    A large spike bends A0 like the activation itself, which Hermite polynomials follow only slowly.
    """
    root_z, root_u = np.sqrt(geometry.weights), np.sqrt(geometry.u_weights)[:, None]
    count, width, coordinates = len(averages.bend), geometry.sizes.width, geometry.coordinates
    first = np.concatenate([np.ones((1, len(root_z))), coordinates])
    columns = [
        np.broadcast_to(first, (count, *first.shape)),
        math.sqrt(width) * averages.mean * root_u,
    ]
    for p in range(1, geometry.highest + 1):
        # What a degree can add shrinks with the number of its directions.
        size = min(1.0, math.sqrt(width / directions(geometry.dim, p))) if p > 1 else 1.0
        # Where neurons are known along z, no product with it is random.
        for a in block_indices(len(coordinates), p) if geometry.own is None else ():
            factor = np.prod(coordinates ** np.array(a)[:, None], axis=0)
            columns.append(size * factor * averages.beside[p] * root_u)
        columns.append(size * averages.by_degree[p] * root_u)
    columns.append(averages.bend * root_u)
    matrix = np.concatenate(columns, axis=1) * root_z
    # Spikes many orders of magnitude apart would hide the small ones: every function counts at unit size at most.
    matrix /= np.maximum(1.0, np.sqrt((matrix**2).sum(axis=2, keepdims=True)))
    sizes, functions = _principal(matrix, geometry.negligible)
    rank = int((sizes > geometry.negligible).sum(axis=1).max())
    return np.asarray(functions[:, :rank] / root_z)


# Sizes of functions so many roots of rounding above it, relative to all together, are told from the matrix of products.
CLEAR = 5.0


def _principal(matrix: Array, least: float) -> tuple[Array, Array]:
    """Singular values and right singular vectors, largest first, of which those below `least` do not matter.

    Where there is room, by the matrix of products, in which sizes below the root of rounding are lost.
    """
    scale = float(np.sqrt(np.einsum("bij,bij->b", matrix, matrix).max()))
    if CLEAR * math.sqrt(np.finfo(float).eps) * scale > least:
        return np.linalg.svd(matrix, full_matrices=False)[1:]
    squares, vectors = np.linalg.eigh(matrix.swapaxes(1, 2) @ matrix)
    return np.sqrt(np.maximum(squares[:, ::-1], 0.0)), vectors.swapaxes(1, 2)[:, ::-1]


def _span_of_u(geometry: Geometry, by_node: Array) -> Array:
    """Orthonormal functions of U, the constant first, that span all spikes; sorted by the size of their spike."""
    root = np.sqrt(geometry.u_weights)
    constant = root / np.linalg.norm(root)
    matrix = by_node * root
    matrix = matrix - (matrix @ constant)[..., None] * constant
    least = max(NEGLIGIBLE_SPIKE, geometry.negligible / 10) if geometry.own is None else geometry.negligible
    # Where neurons are known along z they are many; else functions have to be orthogonal to the constant to all digits.
    room = 0.0 if geometry.own is None else math.inf
    sizes, functions = _principal(matrix, room)
    rank = min(int((sizes > least).sum(axis=1).max()), len(root) - 1)
    # Where a point has fewer spikes than others, what stands in their place may be the constant itself.
    mixed = (np.abs(functions[:, :rank] @ constant) > 1e-6).any(axis=1)
    if mixed.any():
        beside = np.linalg.qr(np.column_stack([constant, np.eye(len(root))]))[0][:, 1:]
        functions = functions[:, :rank].copy()
        functions[mixed] = (_principal(matrix[mixed] @ beside, room)[1] @ beside.T)[:, :rank]
    first = np.broadcast_to(constant, (len(by_node), 1, len(root)))
    return np.asarray(np.concatenate([first, functions[:, :rank]], axis=1) / root)


def _spike_series(geometry: Geometry, omega: Array, excess: Array) -> Array:
    r"""E[h(z) A0(u, z) psi(u)^T] for small spikes, from the Hermite coefficients [firststep, unified, eq. 7].

    .. math:: A_0(u,z) = \sum_{p,j} c_{p+2j} \frac{(p+2j)!}{2^j j!\, p!} (s^2-1)^j (u z)^p

    Orthogonality between z^p and h_k is exact here, so that a large spike cannot leak into the next degree. Neurons
    beyond `SMALL_EXCESS`, for which the series would diverge, are left out.
    """
    u, basis = geometry.u, len(geometry.hermite)
    degrees = np.arange(SERIES_TERMS + 1)
    psi_weighted = (geometry.psi * geometry.u_weights).T
    norms = np.exp([math.lgamma(i + 1) / 2 for i in range(basis)])
    in_z = np.zeros((len(degrees), basis))
    top = min(basis, len(degrees))
    in_z[:, :top] = monomial_in_hermite(len(degrees))[:, :top] * norms[:top]
    near = np.abs(excess)[..., None] <= SMALL_EXCESS
    powers = np.where(near, excess[..., None], 0.0) ** np.arange(SERIES_TERMS // 2 + 1)
    profile = near * (powers @ _series_factors(tuple(geometry.c)).T)
    in_u = np.swapaxes(profile * u[:, None] ** degrees, 1, 2) @ psi_weighted
    return np.asarray((in_z * omega[:, None, None] ** degrees[:, None]).swapaxes(1, 2) @ in_u)


@lru_cache(maxsize=64)
def _series_factors(c: tuple[float, ...]) -> Array:
    """Row p, column j: c_{p+2j} (p+2j)!/(2^j j! p!)."""
    factors = np.zeros((SERIES_TERMS + 1, SERIES_TERMS // 2 + 1))
    for p in range(SERIES_TERMS + 1):
        for j in range((SERIES_TERMS - p) // 2 + 1):
            log = math.lgamma(p + 2 * j + 1) - j * math.log(2) - math.lgamma(j + 1) - math.lgamma(p + 1)
            factors[p, j] = c[p + 2 * j] * math.exp(log)
    return factors


def row_stretch(problem: Problem, sizes: Sizes, step_sizes: Array, rest: str) -> Array:
    r"""Length that the gradient beyond its rank-one part adds to a row with U = 1, in units of the row.

    .. math:: \frac{\eta^2}{N} \frac{d}{n_0} E(y - f_0)^2\, E(\sigma' - c_1)^2 \int m^{2g} d\mu,
        \quad\text{under a root.}
    """
    if rest == "none":
        return np.zeros_like(step_sizes)
    beyond = problem.activation.derivative_second_moment - float(problem.activation.hermite(2)[1]) ** 2
    variance = problem.label_variance + problem.output_variance(sizes)
    variance *= problem.covariance(sizes.dim).moment(2) if problem.rule.plain else 1.0
    return np.asarray(step_sizes * math.sqrt(sizes.step_ratio * variance * max(beyond, 0.0) / sizes.width))


def is_polynomial(spike: Array, sizes: Sizes, stretch: ArrayLike = 0.0) -> NDArray[np.bool_]:
    """Where spikes are small, or so many orders apart that only exact orthogonality of polynomials separates them."""
    small = (spike <= SMALL_SPIKE) & (np.asarray(stretch) <= SMALL_STRETCH)
    return np.asarray(small | (spike * math.sqrt(sizes.width) > LARGEST_RATIO))


def degrees_of(spike: float, sizes: Sizes, least: float = NEGLIGIBLE_SPIKE) -> int:
    """Hermite degrees after which spikes are below `least`: spike k has size sqrt(N k!) omega^k k^(-5/4) or less."""
    low, high = POLYNOMIAL_DEGREES
    for k in range(low, high):
        if spike == 0 or 0.5 * (math.log(sizes.width) + math.lgamma(k + 1)) + k * math.log(spike) < math.log(
            least
        ):
            return k
    return high


def apply(matrix: Values, vector: Values) -> Values:
    """Batched matrix times vector."""
    return np.asarray((matrix @ vector[..., None])[..., 0])


def nodes_around(old: Array, new: Array, most: int) -> NDArray[np.intp]:
    """Places of at most so many of the old nodes around each new point, (new, count)."""
    count = min(most, len(old))
    first = np.clip(np.searchsorted(old, new) - count // 2, 0, len(old) - count)
    return np.asarray(first[:, None] + np.arange(count))


def interpolation(old: Array, new: Array, most: int = INTERPOLATION_NODES) -> Array:
    """Matrix (old, new) of interpolation by polynomials through the nodes around each point, constant outside."""
    at = np.clip(new, old[0], old[-1])
    window = nodes_around(old, at, most)
    matrix = np.zeros((len(old), len(new)))
    matrix[window, np.arange(len(new))[:, None]] = lagrange(old[window], at)
    return matrix


def lagrange(nodes: Array, at: Array) -> Array:
    """Lagrange's polynomials at each point, (new, count), of nodes of its own, (new, count)."""
    # Products over all nodes but the one that they belong to.
    apart = nodes[:, :, None] - nodes[:, None, :]
    ahead = np.broadcast_to((at[:, None] - nodes)[:, None, :], apart.shape)
    itself = np.eye(nodes.shape[1], dtype=bool)
    factors = np.where(itself, 1.0, ahead) / np.where(itself, 1.0, apart)
    return np.asarray(factors.prod(axis=2))
