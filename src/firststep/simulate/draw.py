"""The random arrays of a replica, each from a stream of its own."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import cast

import numpy as np

from firststep.gaussian import Array
from firststep.network import Matrix
from firststep.problem import Problem, Sizes

# The order is part of the numbers: append, never insert.
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


@dataclass(frozen=True)
class Draw:
    """The random arrays of one replica, each from its own stream, made when asked for.

    An array depends on the seed, the replica and its own shape and kind only: not on step sizes or ridges,
    nor on which other arrays are drawn. Both precisions see the same numbers.

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
        key = (self.replica, STREAMS.index(name))
        return np.random.default_rng(np.random.SeedSequence(entropy=self.seed, spawn_key=key))

    def _blocks(self, rng: np.random.Generator, rows: int, columns: int) -> Iterator[tuple[slice, Array]]:
        """Standard normal rows in float64, a block at a time, which stays in the cache."""
        block = max(1, 2**15 // columns)
        for start in range(0, rows, block):
            stop = min(rows, start + block)
            yield slice(start, stop), rng.standard_normal((stop - start, columns))

    @cached_property
    def beta(self) -> Array:
        """The teacher's direction, uniform on the unit sphere, float64."""
        direction = self._stream("beta").standard_normal(self.sizes.dim)
        return cast(Array, direction / np.linalg.norm(direction))

    def weights(self) -> Matrix:
        """W0 (N, d)."""
        result = np.empty((self.sizes.width, self.sizes.dim), dtype=self.dtype)
        for rows, block in self._blocks(self._stream("weights"), *result.shape):
            if self.problem.rows == "sphere":
                result[rows] = block / np.linalg.norm(block, axis=1, keepdims=True)
            else:
                result[rows] = block * self.sizes.dim**-0.5
        return result

    def readout(self) -> Matrix:
        """Readout a (N,) before the step."""
        size = self.sizes.width
        if self.problem.readout == "constant":
            values = np.ones(size)
        elif self.problem.readout == "rademacher":
            values = self._stream("readout").choice([-1.0, 1.0], size)
        else:
            values = self._stream("readout").standard_normal(size)
        return np.asarray(values / math.sqrt(size), dtype=self.dtype)

    def rows(self, sample: str, start: int, stop: int, block_rows: int) -> Iterator[tuple[Matrix, Matrix]]:
        """Inputs and labels of rows start … stop of the "step" or "fit" sample, in blocks."""
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
        projections = np.empty(count)
        for rows, block in self._blocks(rng, *inputs.shape):
            inputs[rows], projections[rows] = block, block @ self.beta
        labels = self.problem.teacher(projections) + self.problem.noise_std * noise.standard_normal(count)
        return inputs, np.asarray(labels, dtype=self.dtype)

    def step_sample(self) -> tuple[Matrix, Matrix]:
        """Inputs (n0, d) and labels (n0,) of the gradient step."""
        return self._sample(self._stream("step"), self._stream("step_noise"), self.sizes.n_step_samples)

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
