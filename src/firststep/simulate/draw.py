"""The random arrays of a replica, each from a stream of its own."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import cast

import numpy as np

from firststep.arrays import Matrix
from firststep.gaussian import Array, MultiFunction
from firststep.setting import Covariance, Problem, Sizes

# The order is part of the numbers: append, never insert. Behind these come those of the second and later steps, each
# with its noise: step2, step2_noise, step3, …
STREAMS = (
    "step",
    "step_noise",
    "fit",
    "fit_noise",
    "weights",
    "readout",
    "beta",
    "test",
    "test_noise",
    "equivalent",
)


def step_sample_name(number: int) -> str:
    """Stream of the inputs of a step, counted from 1."""
    return "step" if number == 1 else f"step{number}"


def _stream_number(name: str) -> int:
    if name in STREAMS:
        return STREAMS.index(name)
    plain = name.removesuffix("_noise")
    return len(STREAMS) + 2 * (int(plain.removeprefix("step")) - 2) + (plain != name)


@dataclass(frozen=True)
class Draw:
    """The random arrays of one replica, each from its own stream, made when asked for.

    Inputs are whitened: with a covariance S they are the g of x = S^(1/2) g, in the eigenbasis of S, where S^(1/2) is
    the product with `root`. An array depends on the seed, the replica and its own shape and kind only: not on step
    sizes or ridges, nor on which other arrays are drawn. Both precisions see the same numbers.

    Examples
    --------
    >>> problem, sizes = Problem("relu", "h1"), Sizes(20, 10, 15)
    >>> first, second = Draw(problem, sizes, seed=1), Draw(problem, sizes, seed=1, replica=1)
    >>> bool(np.all(first.weights() == first.weights())), bool(np.any(first.weights() == second.weights()))
    (True, False)
    """

    problem: Problem
    sizes: Sizes
    seed: int = 0
    replica: int = 0
    dtype: str = "float64"

    def _stream(self, name: str) -> np.random.Generator:
        key = (self.replica, _stream_number(name))
        return np.random.default_rng(np.random.SeedSequence(entropy=self.seed, spawn_key=key))

    def _blocks(self, rng: np.random.Generator, rows: int, columns: int) -> Iterator[tuple[slice, Array]]:
        """Standard normal rows in float64, a block at a time, which stays in the cache."""
        block = max(1, 2**15 // columns)
        for start in range(0, rows, block):
            stop = min(rows, start + block)
            yield slice(start, stop), rng.standard_normal((stop - start, columns))

    @cached_property
    def covariance(self) -> Covariance:
        """Eigenvalues of the inputs' covariance."""
        return self.problem.covariance(self.sizes.dim)

    @cached_property
    def root(self) -> Array | None:
        """Roots of all eigenvalues (d,), in whose basis everything is drawn; None for isotropic inputs."""
        return None if self.covariance.isotropic else np.sqrt(self.covariance.eigenvalues())

    @cached_property
    def betas(self) -> Array:
        """The teacher's directions in whitened coordinates, orthonormal columns (d, k), float64."""
        raw = self._stream("beta").standard_normal((self.problem.teacher.directions, self.sizes.dim))
        if len(raw) > self.sizes.dim:
            raise ValueError(
                f"{self.problem.teacher.label} has {len(raw)} directions, more than dim={self.sizes.dim}"
            )
        if not self.covariance.typical:
            return _shared_out(raw, self.covariance).T
        if len(raw) == 1:
            return np.asarray((raw[0] / np.linalg.norm(raw[0]))[:, None])
        frame, triangle = np.linalg.qr(raw.T)
        return np.asarray(frame * np.sign(np.diagonal(triangle)))

    @cached_property
    def beta(self) -> Array:
        """The teacher's direction (d,) of unit length; of several, the one that a step sees (t1 if it sees none)."""
        teacher = self.problem.teacher
        seen = teacher.first_direction if isinstance(teacher, MultiFunction) else None
        return self.betas[:, 0].copy() if seen is None else self.betas @ seen

    def weights(self) -> Matrix:
        """W0 (N, d), as it acts on the inputs themselves."""
        result = np.empty((self.sizes.width, self.sizes.dim), dtype=self.dtype)
        for rows, block in self._blocks(self._stream("weights"), *result.shape):
            result[rows] = self.problem.row_law.rows(block)
        return result

    def whitened_weights(self) -> Matrix:
        """W0 S^(1/2), as it acts on the whitened inputs."""
        weights = self.weights()
        if self.root is not None:
            weights *= self.root.astype(weights.dtype)
        return weights

    def readout(self) -> Matrix:
        """Readout a (N,) before the step."""
        size = self.sizes.width
        values = self.problem.readout_law.draw(lambda: self._stream("readout"), size)
        return np.asarray(values / math.sqrt(size), dtype=self.dtype)

    def rows(self, sample: str, start: int, stop: int, block_rows: int) -> Iterator[tuple[Matrix, Matrix]]:
        """Inputs and labels of rows start … stop of the "step", "step2", … or "fit" sample, in blocks."""
        rng, noise = self._stream(sample), self._stream(f"{sample}_noise")
        # The streams have no shorter way to a row than through those before it.
        for _ in self._blocks(rng, start, self.sizes.dim):
            pass
        noise.standard_normal(start)
        for first in range(start, stop, block_rows):
            yield self._sample(rng, noise, min(block_rows, stop - first))

    def _sample(
        self, rng: np.random.Generator, noise: np.random.Generator, count: int
    ) -> tuple[Matrix, Matrix]:
        inputs = np.empty((count, self.sizes.dim), dtype=self.dtype)
        teacher = self.problem.teacher
        along = self.betas if isinstance(teacher, MultiFunction) else self.beta
        projections = np.empty((count, *along.shape[1:]))
        for rows, block in self._blocks(rng, *inputs.shape):
            inputs[rows], projections[rows] = block, block @ along
        labels = teacher(projections) + self.problem.noise_std * noise.standard_normal(count)
        return inputs, np.asarray(labels, dtype=self.dtype)

    def step_sample(self, number: int = 1) -> tuple[Matrix, Matrix]:
        """Inputs (n0, d) and labels (n0,) of a gradient step, the first by default."""
        name = step_sample_name(number)
        return self._sample(self._stream(name), self._stream(f"{name}_noise"), self.sizes.n_step_samples)

    def fit_sample(self) -> tuple[Matrix, Matrix]:
        """Inputs (n, d) and labels (n,) of the ridge fit."""
        return self._sample(self._stream("fit"), self._stream("fit_noise"), self.sizes.n_samples)

    def test_blocks(self, count: int, block_rows: int | None = None) -> Iterator[tuple[Matrix, Matrix]]:
        """Inputs and labels of `count` test samples, in blocks of at most n rows or of the given size."""
        return self.rows("test", 0, count, block_rows or self.sizes.n_samples)

    def equivalent_noise(self) -> Matrix:
        """Standard normal matrix (n, N), the independent part of the Gaussian equivalent's features."""
        result = np.empty((self.sizes.n_samples, self.sizes.width), dtype=self.dtype)
        for rows, block in self._blocks(self._stream("equivalent"), *result.shape):
            result[rows] = block
        return result


def _shared_out(raw: Array, covariance: Covariance) -> Array:
    """Orthonormal rows (k, d) from standard normal ones, with the covariance's weights in each group of eigenvalues."""
    result = np.empty_like(raw)
    ends = np.cumsum([0, *covariance.counts.astype(int)])
    for start, stop, weight in zip(ends[:-1], ends[1:], covariance.weights, strict=True):
        block = raw[:, start:stop]
        if 1 < len(raw) <= stop - start:
            block = np.linalg.qr(block.T)[0].T
        else:
            block = block / np.linalg.norm(block, axis=1, keepdims=True)
        result[:, start:stop] = block * math.sqrt(weight)
    if len(raw) == 1:
        return result
    # Where a group has fewer directions than the teacher, its parts of them are not orthogonal.
    values, vectors = np.linalg.eigh(result @ result.T)
    if values[0] < 0.1:
        raise ValueError(
            f"{len(raw)} directions of the teacher cannot all have these weights among the eigenvalues, some of which "
            "stand for a single direction: use alignment='typical', or a teacher of one direction"
        )
    return cast(Array, (vectors / np.sqrt(values)) @ vectors.T @ result)
