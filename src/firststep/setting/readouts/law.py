"""What every law of the readout can say of itself."""

import math
from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np

from firststep.gaussian import Array


class ReadoutLaw:
    r"""Law of :math:`U_j = \sqrt N a_j`, independent for each neuron, with :math:`E U^2 = 1`.

    A law that takes finitely many values sets `atoms` and `shares`; a continuous one sets `density` and `reach`.
    """

    atoms: ClassVar[tuple[float, ...] | None] = None
    shares: ClassVar[tuple[float, ...]] = ()
    reach: ClassVar[float] = math.inf

    def draw(self, rng: Callable[[], "np.random.Generator"], count: int) -> Array:
        """`count` values of U; `rng` opens the stream, which a law without randomness leaves alone."""
        raise NotImplementedError

    def density(self, u: Array) -> Array:
        """Density of a continuous law, up to a factor."""
        raise NotImplementedError

    def rule(self, spacing: float, bent: bool = False) -> tuple[Array, Array]:
        """Nodes and weights of averages over U: the atoms, or a trapezoid rule in U, or in asinh U if `bent`.

        Row lengths as functions of U have branch points on the imaginary axis, which slow Gauss quadrature. In asinh U
        these are further away, and half as many nodes reach as far.
        """
        if self.atoms is not None:
            return np.array(self.atoms), np.array(self.shares)
        half = math.ceil((math.asinh(self.reach) if bent else self.reach) / spacing)
        at = spacing * np.arange(-half, half + 1, dtype=float)
        nodes = np.sinh(at) if bent else at
        weights = self.density(nodes) * (np.cosh(at) if bent else 1.0)
        return nodes, np.asarray(weights / weights.sum())

    def polynomials(self, spacing: float, degrees: int) -> tuple[Array, Array, Array]:
        """Nodes, weights and orthonormal polynomials of U, the constant first, shape (degrees, nodes)."""
        nodes, weights = self.rule(spacing)
        count = min(degrees, len(nodes))
        # Lanczos with full orthogonalisation: monomials would be dependent to rounding beyond degree ten.
        basis = np.ones((count, len(nodes)))
        for k in range(1, count):
            fresh = nodes * basis[k - 1]
            for _ in range(2):
                fresh = fresh - basis[:k].T @ (basis[:k] @ (weights * fresh))
            basis[k] = fresh / math.sqrt(float(weights @ fresh**2))
        return nodes, weights, basis

    def distinct_powers(self, degrees: Sequence[int]) -> tuple[int, ...]:
        """Of these degrees, ascending, those whose power of U is no combination of the powers before it."""
        if self.atoms is None:
            return tuple(dict.fromkeys(degrees))
        kept: list[int] = []
        for degree in dict.fromkeys(degrees):
            powers = np.array(self.atoms)[:, None] ** np.array([*kept, degree])
            if np.linalg.matrix_rank(powers) > len(kept):
                kept.append(degree)
        return tuple(kept)

    @property
    def mean(self) -> float:
        """E U."""
        nodes, weights = self.rule(0.25)
        return float(weights @ nodes)
