r"""What a covariance and M make of the rows together: they do not commute [firststep, joint law].

A whitened row is :math:`(1 + kU S^gM)S^{1/2}w` and noise :math:`\kappa U S^g N^{1/2}\xi`, with

.. math:: M = \frac{1}{n_0}\sum_i y_i\,g_ig_i^\top, \qquad N = \frac{1}{n_0}\sum_i\frac{y_i^2}{Ey^2}\,g_ig_i^\top .

Per unit of a neuron's mass it carries :math:`\alpha\alpha^\top\otimes C(U)`, and every C(U) is another matrix. With
:math:`Y = MS^gX` as an unknown of its own and a multiplier Lambda, both are linear in the step's samples, each of which
is then left out in turn.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from firststep.gaussian import Array
from firststep.numerics import fixedpoint
from firststep.theory.directions import Profiles
from firststep.theory.matrix_law import Samples

# Relative change of the samples' answers at which rounds end, and the most of them.
SETTLED, ROUNDS = 1e-9, 200
# Functions of z of which neurons carry less than this, squared and relative to what 1 + B begins with, are left out.
CARRIED = 1e-6


@dataclass(frozen=True)
class RowParts:
    """What rows are made of along eigenvectors, relative to their squared lengths.

    Attributes
    ----------
    values, shares : ndarray (L,)
        Eigenvalues m and their shares mu.
    power : float
        g.
    begun, crossed, turned : ndarray (B, L, nu)
        The variance that a row began with, kU times it, and (kU)^2 times it.
    noise : ndarray (B, nu)
        kappa^2 U^2.
    """

    values: Array
    shares: Array
    power: float
    begun: Array
    crossed: Array
    turned: Array
    noise: Array

    def take(self, index: NDArray[np.intp]) -> "RowParts":
        """Of some of the points."""
        parts = (part[index] for part in (self.begun, self.crossed, self.turned, self.noise))
        return RowParts(self.values, self.shares, self.power, *parts)


def _outer(alpha: Array, factors: Array) -> Array:
    """E_u[f alpha alpha^T], (B, L, K, K), of factors (B, L, nu)."""
    count, nodes, size = alpha.shape
    products = (alpha[..., :, None] * alpha[..., None, :]).reshape(count, nodes, -1)
    return np.asarray((factors @ products).reshape(*factors.shape[:2], size, size))


def _weighted(weights: Array, matrices: Array) -> Array:
    """sum_l w_l A_l, (B, …), of matrices (B, L, …)."""
    return np.asarray(np.tensordot(weights, matrices, axes=(0, 1)))


@dataclass(frozen=True)
class JointLaw:
    r"""The law at given rho and delta, for functions of z in units of P: a batch of B points [firststep, joint law].

    .. math:: \bar H(m) = H_0(m) + L^\top\Sigma L, \quad G = \int L\bar H^{-1}L^\top\,\mathrm d\mu, \quad
        D(y) = C_y(1 + \phi_0 G C_y)^{-1}, \quad \Sigma = E\,D(y)

    Attributes
    ----------
    parts : RowParts
    samples : Samples
        Labels, less the initial output, and what they show of special directions.
    ratio : float
        phi_0 = d/n0.
    root, inverse : ndarray (B, functions, K)
        P^(1/2) and its inverse, on the K functions that neurons carry.
    alpha : ndarray (B, nu, K)
        P^(1/2) alpha.
    mass : ndarray (B, nu)
        Weights of the neurons times 1/(1 + delta).
    resolvents : ndarray (B, L, 3K, 3K)
        1/H, of X, Y and Lambda.
    seen : ndarray (B, L, 2K, 3K)
        L/H: as samples see it.
    green : ndarray (B, 2K, 2K)
        G.
    answers : ndarray (B, samples, 2K, 2K)
        D(y).
    noise : ndarray (B, K, K)
        What 1/H is between X, as the noise sees it.
    """

    parts: RowParts
    samples: Samples
    ratio: float
    root: Array
    inverse: Array
    alpha: Array
    mass: Array
    resolvents: Array
    seen: Array
    green: Array
    answers: Array
    noise: Array

    @property
    def size(self) -> int:
        """K."""
        return int(self.root.shape[2])

    @property
    def energy(self) -> Array:
        """Sigma, (B, 2K, 2K)."""
        return _weighted(self.samples.shares, self.answers)

    def mean(self, resolvents: Array) -> Array:
        """T of typical directions, (B, K, K), from 1/H at the levels: P^-1 less P^-1/2 (1/H) P^-1/2."""
        size = self.size
        left = np.eye(size) - _weighted(self.parts.shares, resolvents[..., :size, :size])
        return np.asarray(self.inverse @ left @ self.inverse.swapaxes(1, 2))

    def carried(self, resolvents: Array) -> Array:
        """d/N of delta's part that is linear in x, (B, nu), from 1/H at the levels."""
        size, parts, alpha = self.size, self.parts, self.alpha

        def forms(matrices: Array) -> Array:
            return np.asarray(((alpha[:, None] @ matrices) * alpha[:, None]).sum(axis=3))

        first, second = slice(0, size), slice(size, 2 * size)
        by_level = (
            parts.begun * forms(resolvents[..., first, first])
            + 2 * parts.crossed * forms(resolvents[..., first, second])
            + parts.turned * forms(resolvents[..., second, second])
        )
        noise = parts.noise * forms(self.noise[:, None])[:, 0]
        return np.asarray(_weighted(parts.shares, by_level) + noise)

    def between(self, generators: "Generators", vectors: Array, turned: Array) -> Array:
        r"""1/H between special vectors, X of (B, q, G, L) and X and Y of (B, r, G, L), (B, q K + 2 r K, …).

        What the step's samples know of the vectors, through coordinates kappa that labels depend on and through the
        step's own noise, a sum over the same samples, is a perturbation of low rank of typical directions
        [firststep, joint law, eqs. 4-6].
        """
        size, count, known = self.size, len(vectors), len(generators.profiles)
        shares, labels = self.samples.shares, self.samples.weights
        # What samples show of kappa alone, with kappa and their label, and of their label alone.
        shown = shares[:, None, None] * self.samples.shown[:, :known, :known]
        seen = np.tensordot(self.answers, shown, axes=(1, 0)).transpose(0, 3, 1, 4, 2)
        seen = seen.reshape(count, known * 2 * size, -1)
        scaled = shares[:, None] * self.samples.shown[:, :known, known]
        mixed = -self.ratio * np.tensordot(self.answers, scaled, axes=(1, 0)).transpose(0, 3, 1, 2)
        mixed = mixed.reshape(count, known * 2 * size, 2 * size)
        own = -(self.ratio**2) * _weighted(shares * labels**2, self.answers)
        excess = seen - np.kron(np.eye(known), self.energy).reshape(seen.shape)
        among = generators.among(self.seen[..., [*range(size), *range(2 * size, 3 * size)]], self.parts)
        whole, double = self.resolvents, 2 * size
        pairs = [
            generators.towards(each, self.seen[..., :wide])
            for each, wide in ((vectors, size), (turned, double))
        ]
        towards, noisy = (np.concatenate(parts, axis=2) for parts in zip(*pairs, strict=True))
        noisy = noisy / np.sqrt(self.ratio * (shares @ labels**2))
        right = np.concatenate([towards, among], axis=2)
        solved = np.linalg.solve(np.eye(known * 2 * size) + among @ excess, right)
        to_known, between_known = np.split(solved, [towards.shape[2]], axis=2)
        cross = to_known.swapaxes(1, 2) @ mixed @ noisy
        mixed_plain = generators.plain(vectors, turned, whole[..., :size, :double])
        found = np.block(
            [
                [generators.plain(vectors, vectors, whole[..., :size, :size]), mixed_plain],
                [
                    mixed_plain.swapaxes(1, 2),
                    generators.plain(turned, turned, whole[..., :double, :double]),
                ],
            ]
        )
        found = found - towards.swapaxes(1, 2) @ excess @ to_known + cross + cross.swapaxes(1, 2)
        inside = own + mixed.swapaxes(1, 2) @ between_known @ mixed
        found = found + noisy.swapaxes(1, 2) @ inside @ noisy
        return np.asarray((found + found.swapaxes(1, 2)) / 2)

    def effective(self, between: Array) -> Array:
        """B_eff of eq. 12 from 1/H between q special directions: P^-1/2 ((1/H)^-1 - 1) P^-1/2, (B, q functions, …)."""
        size = between.shape[1] // self.size
        unit = np.kron(np.eye(size), self.inverse)
        left = np.linalg.inv(between) - np.eye(between.shape[1])
        return np.asarray(unit @ left @ unit.swapaxes(1, 2))


@dataclass(frozen=True)
class Generators:
    """Directions of which special vectors are made, and what the step's samples know of them.

    Attributes
    ----------
    profiles : ndarray (K, L)
        kappa, coordinates that labels depend on: functions of S applied to one generator each.
    places : tuple of int
        Those generators.
    masses : ndarray (G, L)
        Spectral weights of all generators; the last one is the step's noise.
    """

    profiles: Array
    places: tuple[int, ...]
    masses: Array

    @classmethod
    def of(cls, profiles: Profiles) -> "Generators":
        """Each known vector belongs to one generator."""
        places = [int(np.abs(known).sum(axis=1).argmax()) for known in profiles.known]
        chosen = np.stack([known[at] for known, at in zip(profiles.known, places, strict=True)])
        return cls(chosen, tuple(places), profiles.masses)

    def among(self, seen: Array, parts: RowParts) -> Array:
        """kappa^T L (1/H) L^T kappa, (B, 2K known, 2K known)."""
        count, size = len(self.places), seen.shape[2]
        half = size // 2
        scale = np.ones((len(parts.values), size))
        scale[:, :half] = parts.values[:, None] ** parts.power
        square = seen * scale[:, None, :]
        found = np.zeros((len(seen), count, size, count, size))
        for a, first in enumerate(self.places):
            for c, second in enumerate(self.places):
                if first == second:
                    weights = self.masses[first] * self.profiles[a] * self.profiles[c]
                    found[:, a, :, c, :] = _weighted(weights, square)
        return found.reshape(len(seen), count * size, -1)

    def towards(self, vectors: Array, seen: Array) -> tuple[Array, Array]:
        """L/H from kappa to vectors, (B, 2K known, K q), and from the step's noise, (B, 2K, K q), in units of it."""
        count, size = seen.shape[2:]
        to_known = [
            np.einsum("bql,blij->biqj", self.masses[at] * profile * vectors[:, :, at], seen)
            for profile, at in zip(self.profiles, self.places, strict=True)
        ]
        noisy = np.einsum("bql,blij->biqj", self.masses[-1] * vectors[:, :, -1], seen)
        flat = (len(seen), count, size * vectors.shape[1])
        found = np.stack([part.reshape(flat) for part in to_known], axis=1)
        return found.reshape(len(seen), len(to_known) * count, size * vectors.shape[1]), noisy.reshape(flat)

    def plain(self, first: Array, second: Array, resolvents: Array) -> Array:
        """1/H between vectors as if no sample knew of them, (B, rows q, columns r)."""
        weights = np.einsum("bqgl,brgl,gl->bqrl", first, second, self.masses)
        found = np.einsum("bqrl,blij->bqirj", weights, resolvents)
        rows, columns = first.shape[1] * resolvents.shape[2], second.shape[1] * resolvents.shape[3]
        return np.asarray(found.reshape(len(first), rows, columns))


def joint_law(
    alpha: Array,
    mass: Array,
    p: Array,
    parts: RowParts,
    samples: Samples,
    ratio: float,
    near: JointLaw | None = None,
) -> JointLaw:
    """The law from the neurons' linear coefficients (B, nu, K), their masses (B, nu) and P (B, K, K).

    Rounds start from the answers of a law nearby, or from M as noise.
    """
    root, inverse = _carried_roots(alpha, mass, p, parts)
    alpha = alpha @ root
    size, labels, shares = alpha.shape[2], samples.weights, samples.shares
    begun, crossed, turned = (
        _outer(alpha, part * mass[:, None]) for part in (parts.begun, parts.crossed, parts.turned)
    )
    loud = _outer(alpha, (parts.noise * mass)[:, None])[:, 0]
    plain = _pencil(begun, crossed, turned)
    square = float(shares @ labels**2)
    coupling = _coupling(labels, square, loud)
    scale = np.ones((len(parts.values), 2 * size))
    scale[:, :size] = parts.values[:, None] ** parts.power
    of_samples = np.r_[0:size, 2 * size : 3 * size]
    energy = np.zeros((len(alpha), 2 * size, 2 * size))
    if near is None:
        energy[:, :size, :size] = ratio * square * _weighted(parts.shares, turned) + loud
    else:
        # In its units of P.
        unit = np.zeros((len(energy), 2 * near.size, 2 * size))
        before = near.size
        unit[:, :before, :size] = near.inverse.swapaxes(1, 2) @ root
        unit[:, before:, size:] = near.root.swapaxes(1, 2) @ inverse
        energy = unit.swapaxes(1, 2) @ near.energy @ unit
    for _ in range(ROUNDS):
        whole = plain.copy()
        whole[:, :, of_samples[:, None], of_samples] += (
            scale[:, :, None] * energy[:, None] * scale[:, None, :]
        )
        resolvents = np.asarray(np.linalg.inv(whole), dtype=np.float64)
        seen = scale[:, :, None] * resolvents[:, :, of_samples]
        green = _weighted(parts.shares, seen[..., of_samples] * scale[:, None, :])
        damped = np.linalg.inv(np.eye(2 * size) + ratio * green[:, None] @ coupling)
        answers = coupling @ damped
        last, energy = energy, _weighted(shares, answers)
        energy = (energy + energy.swapaxes(1, 2)) / 2
        change = float(np.abs(energy - last).max() / np.abs(energy).max())
        if change < SETTLED:
            break
    else:
        raise fixedpoint.ConvergenceError(
            "the joint law of the covariance and the step did not settle: lower the step size",
            energy,
            np.array([change]),
        )
    noise = _weighted(shares * labels**2 / square, damped @ green[:, None])[:, :size, :size]
    return JointLaw(
        parts, samples, ratio, root, inverse, alpha, mass, resolvents, seen, green, answers, noise
    )


def _carried_roots(alpha: Array, mass: Array, p: Array, parts: RowParts) -> tuple[Array, Array]:
    """P^(1/2) and its inverse on the functions that neurons carry, (B, functions, K): the others see no rows."""
    values, vectors = np.linalg.eigh(p)
    roots = np.sqrt(values)[:, None, :]
    root, inverse = (vectors * roots) @ vectors.swapaxes(1, 2), (vectors / roots) @ vectors.swapaxes(1, 2)
    variance = (parts.begun + parts.turned).max(axis=1) + parts.noise
    carried = alpha @ root * np.sqrt(mass * variance)[..., None]
    squares, basis = np.linalg.eigh(carried.swapaxes(1, 2) @ carried)
    first = int((squares > CARRIED * np.maximum(1.0, squares[:, -1:])).any(axis=0).argmax())
    return np.asarray(root @ basis[..., first:]), np.asarray(inverse @ basis[..., first:])


def _coupling(labels: Array, square: float, loud: Array) -> Array:
    """C_y: what a sample adds to the pencil between S^g X and Lambda, (B, samples, 2K, 2K)."""
    size = loud.shape[1]
    found = np.zeros((len(loud), len(labels), 2 * size, 2 * size))
    places = np.arange(size)
    found[:, :, places, size + places] = found[:, :, size + places, places] = -labels[:, None]
    found[:, :, :size, :size] = (labels**2 / square)[:, None, None] * loud[:, None]
    return found


def _pencil(begun: Array, crossed: Array, turned: Array) -> Array:
    r"""H_0 at each level, (B, L, 3K, 3K), of X, Y and Lambda [firststep, joint law, eq. 2].

    .. math:: H_0 = \begin{pmatrix} 1 + B_{00} & B_{01} & 0 \\ B_{01} & B_{11} & 1 \\ 0 & 1 & 0 \end{pmatrix}
    """
    size = begun.shape[-1]
    unit, none = (np.broadcast_to(part, begun.shape) for part in (np.eye(size), np.zeros((size, size))))
    return np.block([[unit + begun, crossed, none], [crossed, turned, unit], [none, unit, none]])
