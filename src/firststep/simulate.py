"""Finite size: draw the data and the weights, take the step, fit the readout, measure."""

import logging
import math
import multiprocessing
import os
import pickle
import platform
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray
from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

from firststep import network
from firststep.gaussian import Array
from firststep.network import Matrix
from firststep.problem import Outcome, Problem, Sizes, ridges_of, step_sizes_of

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
EXTRAS = ("spiked", "gaussian", "linear", "weights", "degrees", "controls")
# Extras that cannot be summed over blocks of rows.
WHOLE = ("spiked", "gaussian", "linear", "controls")
# Replicas from which the eight coefficients of the control variates can be told.
CONTROLLED = 20
TESTS = ("auto", "population", "sample")
# Largest l of the spiked approximations F_l.
SPIKES = 3

# Work below which starting processes costs more than it saves, in floating-point operations.
SMALL_WORK = 3e10
LARGE_MEMORY = 2**30
# What an interpreter with NumPy and SciPy needs by itself, and the blocks that are worked on.
INTERPRETER_MEMORY = 128 * 2**20
SLOW_SECONDS = 2.0

logger = logging.getLogger("firststep")


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


def run_replica(
    problem: Problem,
    sizes: Sizes,
    step_sizes: ArrayLike,
    ridges: ArrayLike,
    *,
    seed: int = 0,
    replica: int = 0,
    dtype: str = "float64",
    test: str = "auto",
    n_test: int | None = None,
    extras: Sequence[str] = (),
    block_rows: int | None = None,
) -> dict[str, Array]:
    """One replica: every step size and ridge on one draw; the unit of work of any larger run.

    Takes the arguments of `simulate` and gives its values for one replica, together with `test_stderr`, the
    error of a sampled test error given the draw (0 where it is exact). The numbers depend on the arguments
    alone, not on the process or on the number of BLAS threads around it.

    Examples
    --------
    >>> values = run_replica(Problem("relu", "h1"), Sizes(100, 50, 75), [0, 5], [0.1, 1.0], replica=3)
    >>> values["test_error"].shape
    (2, 2)
    """
    steps, penalties = step_sizes_of(sizes, step_sizes, None), ridges_of(ridges)
    names = _checked_extras(extras)
    _check_options(seed, dtype, test, n_test)
    blocks = _checked_blocks(block_rows, 1, names)
    with _blas().limit(limits=1):
        draw = Draw(problem, sizes, seed, replica, dtype)
        return _Replica(draw, test, n_test or default_n_test(sizes), blocks).run(steps, penalties, names)


@lru_cache(maxsize=1)
def _blas() -> ThreadpoolController:
    # Made once, because finding the libraries takes longer than a small replica.
    return ThreadpoolController()


@dataclass(frozen=True)
class _Blocks:
    """How a replica that is not held in memory goes through its samples."""

    rows: int
    parts: int = 1
    executor: Executor | None = None

    def sums(self, function: Callable[..., Any], count: int, *arguments: Any) -> Iterator[Any]:
        """The function's sums over the rows of each part, in order."""
        ends = [count * i // self.parts for i in range(self.parts + 1)]
        tasks = [(*arguments, start, stop, self.rows) for start, stop in pairwise(ends)]
        if self.executor is None:
            return (function(*task) for task in tasks)
        futures = [self.executor.submit(function, *task) for task in tasks]
        return (future.result() for future in futures)


def _scale(problem: Problem, sizes: Sizes) -> float:
    return sizes.width**-0.5 if problem.initial_output == "vanishing" else 1.0


def _step_sums(draw: Draw, start: int, stop: int, block_rows: int) -> network.Step:
    """What the rows from start to stop add to the gradient and the direction."""
    with _blas().limit(limits=1):
        weights, readout = draw.weights(), draw.readout()
        gradient, direction = np.zeros(weights.shape), np.zeros(draw.sizes.dim)
        for inputs, labels in draw.rows("step", start, stop, block_rows):
            arguments = inputs, labels, weights, readout, draw.problem.activation
            step = network.gradient_step(*arguments, _scale(draw.problem, draw.sizes))
            gradient += step.gradient * (len(labels) / draw.sizes.n_step_samples)
            direction += step.direction * (len(labels) / draw.sizes.n_step_samples)
        return network.Step(gradient, direction)


def _fit_sums(
    draw: Draw, gradient: Matrix, step_sizes: Array, start: int, stop: int, block_rows: int
) -> list[network.Moments]:
    """What the rows from start to stop add to the normal equations of each step size."""
    with _blas().limit(limits=1):
        weights = draw.weights()
        sums = [network.Moments.none(draw.sizes.width) for _ in step_sizes]
        for inputs, labels in draw.rows("fit", start, stop, block_rows):
            before, change = inputs @ weights.T, inputs @ gradient.T
            design = np.empty_like(before)
            for step_size, total in zip(step_sizes, sums, strict=True):
                network.features_after(before, change, step_size, draw.problem.activation, out=design)
                total.add(design, labels)
        return sums


class _Replica:
    """The parts of one replica's work, which share its draw."""

    def __init__(self, draw: Draw, test: str, n_test: int, blocks: _Blocks | None = None) -> None:
        self.draw, self.problem, self.sizes = draw, draw.problem, draw.sizes
        self.test, self.n_test, self.blocks = test, n_test, blocks
        self.weights, self.readout, self.beta = draw.weights(), draw.readout(), draw.beta

    def run(self, step_sizes: Array, ridges: Array, extras: tuple[str, ...]) -> dict[str, Array]:
        if self.blocks is not None:
            return self._run_blocks(self.blocks, step_sizes, ridges, extras)
        step_inputs, step_labels = self.draw.step_sample()
        scale = _scale(self.problem, self.sizes)
        step = network.gradient_step(
            step_inputs, step_labels, self.weights, self.readout, self.problem.activation, scale
        )
        result, direction = self._direction(step)
        inputs, labels = self.draw.fit_sample()
        if "controls" in extras:
            samples = (step_inputs, step_labels), (inputs, labels)
            result["controls"] = np.concatenate([self._controls(*sample) for sample in samples])
        if "linear" in extras:
            both = np.concatenate([step_inputs, inputs]), np.concatenate([step_labels, labels])
            result |= self._linear("linear_ridge", inputs, labels, ridges)
            result |= self._linear("linear_ridge_both", *both, ridges)
            del both
        del step_inputs, step_labels
        run = _with_no_step(step_sizes)
        result |= self._errors(step, step_sizes, self._paths(inputs, labels, step, run, ridges, extras))
        if "weights" in extras:
            result |= self._weights(step, step_sizes)
        if "spiked" in extras:
            model = network.spiked_network(inputs, *self._model_arguments(direction))
            result |= self._spikes("spiked", model, labels, step_sizes, ridges)
        if "gaussian" in extras:
            noise = self.draw.equivalent_noise()
            model = network.gaussian_equivalent(inputs, noise, *self._model_arguments(direction))
            del noise
            path, error = model.fit(labels, ridges)
            result |= {"gaussian0_train_error": path.train_error[None], "gaussian0_test_error": error[None]}
            result |= self._spikes("gaussian", model, labels, step_sizes, ridges)
        return result

    def _run_blocks(
        self, blocks: _Blocks, step_sizes: Array, ridges: Array, extras: tuple[str, ...]
    ) -> dict[str, Array]:
        """The same from sums over blocks of rows: the samples are never held as a whole."""
        gradient, direction = np.zeros(self.weights.shape), np.zeros(self.sizes.dim)
        for part in blocks.sums(_step_sums, self.sizes.n_step_samples, self.draw):
            gradient += part.gradient
            direction += part.direction
        step = network.Step(gradient.astype(self.weights.dtype, copy=False), direction)
        result, _ = self._direction(step)
        run = _with_no_step(step_sizes)
        totals: list[network.Moments] = []
        for sums in blocks.sums(_fit_sums, self.sizes.n_samples, self.draw, step.gradient, run):
            totals = [one.plus(other) for one, other in zip(totals, sums, strict=True)] if totals else sums
        paths = [total.path(ridges, degrees="degrees" in extras) for total in totals]
        result |= self._errors(step, step_sizes, paths)
        if "weights" in extras:
            result |= self._weights(step, step_sizes)
        return result

    def _direction(self, step: network.Step) -> tuple[dict[str, Array], Array]:
        direction = step.direction.astype(np.float64)
        norm = float(np.linalg.norm(direction))
        alignment = (direction @ self.beta / norm) ** 2 if norm else 0.0
        return {"direction_norm": np.array(norm), "alignment": np.array(alignment)}, direction

    def _paths(
        self,
        inputs: Matrix,
        labels: Matrix,
        step: network.Step,
        run: Array,
        ridges: Array,
        extras: tuple[str, ...],
    ) -> list[network.RidgePath]:
        before, change = inputs @ self.weights.T, inputs @ step.gradient.T
        design = np.empty_like(before)
        paths = []
        for step_size in run:
            network.features_after(before, change, step_size, self.problem.activation, out=design)
            paths.append(network.ridge_path(design, labels, ridges, degrees="degrees" in extras))
        return paths

    def _errors(
        self, step: network.Step, step_sizes: Array, paths: list[network.RidgePath]
    ) -> dict[str, Array]:
        run = _with_no_step(step_sizes)
        test_error, test_stderr = self._test_errors(step, run, paths)
        train_error = np.array([path.train_error for path in paths])
        values = {
            "train_error": train_error,
            "test_error": test_error,
            "train_gain": train_error[0] - train_error,
            "test_gain": test_error[0] - test_error,
            "train_mse": np.array([path.train_mse for path in paths]),
            "readout_norm_squared": np.array([path.norm_squared for path in paths]),
            "test_stderr": test_stderr,
        }
        if paths[0].degrees_of_freedom is not None:
            values["degrees_of_freedom"] = np.array([path.degrees_of_freedom for path in paths])
        asked = np.searchsorted(run, step_sizes)
        return {name: value[asked] for name, value in values.items()}

    def _test_errors(
        self, step: network.Step, step_sizes: Array, paths: list[network.RidgePath]
    ) -> tuple[Array, Array]:
        """Test errors (S, R), exact where they can be, and their own standard errors; the first step is 0."""
        problem = self.problem
        errors = np.zeros((len(paths), len(paths[0].train_error)))
        stderr, missing = np.zeros_like(errors), np.full(len(paths), self.test == "sample")
        if self.test != "sample":
            beta = self.beta.astype(self.weights.dtype)
            products = network.WeightProducts.of(self.weights, step.gradient, beta)
            laws = problem.activation, problem.teacher, problem.noise_variance
            for i, (step_size, path) in enumerate(zip(step_sizes, paths, strict=True)):
                try:
                    errors[i] = products.test_error(step_size, path.coefficients, *laws)
                except network.NoPopulationError as reason:
                    missing[i] = True
                    if self.test == "population":
                        raise ValueError(
                            f"no exact test error at step size {step_size:g}: {reason}; use test='auto'"
                        ) from None
        if missing.any():
            sampled, sampled_stderr, gain_stderr = self._sampled_errors(
                step, step_sizes, paths, missing.copy()
            )
            if missing[0]:
                errors[missing], stderr[missing] = sampled[missing], sampled_stderr[missing]
            else:
                # The exact error without a step is a control variate: only the gain has to be sampled.
                errors[missing] = errors[0] + sampled[missing] - sampled[0]
                stderr[missing] = gain_stderr[missing]
        return errors, stderr

    def _sampled_errors(
        self, step: network.Step, step_sizes: Array, paths: list[network.RidgePath], wanted: NDArray[np.bool_]
    ) -> tuple[Array, Array, Array]:
        """Mean squared errors (S, R) on a test sample, their standard errors, and those of the gains."""
        wanted[0] = True
        shape = (len(paths), len(paths[0].train_error))
        means, squares, gain_squares = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        rows = self.blocks.rows if self.blocks is not None else None
        for inputs, labels in self.draw.test_blocks(self.n_test, rows):
            losses = self._losses(inputs, labels, step, step_sizes, paths, wanted)
            means += losses.sum(axis=2) / self.n_test
            squares += (losses**2).sum(axis=2) / self.n_test
            gain_squares += ((losses[0] - losses) ** 2).sum(axis=2) / self.n_test
        free = self.n_test - 1
        stderr = np.sqrt(np.maximum(squares - means**2, 0.0) / free)
        gain_stderr = np.sqrt(np.maximum(gain_squares - (means[0] - means) ** 2, 0.0) / free)
        return means, stderr, gain_stderr

    def _losses(
        self,
        inputs: Matrix,
        labels: Matrix,
        step: network.Step,
        step_sizes: Array,
        paths: list[network.RidgePath],
        wanted: NDArray[np.bool_],
    ) -> Array:
        """Squared errors (S, R, samples) of the wanted step sizes, 0 for the others."""
        before, change = inputs @ self.weights.T, inputs @ step.gradient.T
        losses = np.zeros((len(paths), len(paths[0].train_error), len(labels)))
        design = np.empty_like(before)
        for i in np.flatnonzero(wanted):
            network.features_after(before, change, step_sizes[i], self.problem.activation, out=design)
            losses[i] = (labels - paths[i].coefficients.astype(design.dtype) @ design.T) ** 2
        return losses

    def _controls(self, inputs: Matrix, labels: Matrix) -> Array:
        """Averages over a sample whose means are known, less these."""
        along, y = inputs.astype(np.float64, copy=False) @ self.beta, labels.astype(np.float64)
        first, second = self.problem.teacher.hermite(3)[1:]
        parts = (
            y**2 - self.problem.label_variance,
            along * y - first,
            along**2 - 1,
            (along**2 - 1) * y - 2 * second,
        )
        return np.array([part.mean() for part in parts])

    def _linear(self, name: str, inputs: Matrix, labels: Matrix, ridges: Array) -> dict[str, Array]:
        path = network.ridge_path(inputs, labels, ridges)
        problem = self.problem
        error = network.linear_test_error(
            path.coefficients, self.beta, problem.teacher, problem.noise_variance
        )
        return {f"{name}_train_error": path.train_error[None], f"{name}_test_error": error[None]}

    def _weights(self, step: network.Step, step_sizes: Array) -> dict[str, Array]:
        tops = [network.top_singular(self.weights, step.gradient, step_size) for step_size in step_sizes]
        return {
            "weights_top": np.array([[value] for value, _ in tops]),
            "weights_alignment": np.array([[(vector @ self.beta) ** 2] for _, vector in tops]),
        }

    def _model_arguments(self, direction: Array) -> tuple[Any, ...]:
        problem = self.problem
        laws = problem.activation, problem.teacher, problem.noise_variance
        return self.weights, self.readout, direction, self.beta, *laws, SPIKES

    def _spikes(
        self, name: str, model: network.SpikedModel, labels: Matrix, step_sizes: Array, ridges: Array
    ) -> dict[str, Array]:
        """Train and test errors (S, R) of F_l for l = 1 … SPIKES."""
        result: dict[str, Array] = {}
        for count in range(1, SPIKES + 1):
            train, test = [], []
            for step_size in step_sizes:
                strengths = network.spike_coefficients(self.problem.activation, step_size, count)
                try:
                    path, error = model.fit(labels, ridges, strengths)
                except network.NoPopulationError as reason:
                    raise ValueError(f"no exact test error of F_l: {reason}; leave out {name!r}") from None
                train.append(path.train_error)
                test.append(error)
            result |= {
                f"{name}{count}_train_error": np.array(train),
                f"{name}{count}_test_error": np.array(test),
            }
        return result


def _with_no_step(step_sizes: Array) -> Array:
    """The step sizes in order, each once, and zero before them: the gains are differences on the same draw."""
    return np.unique(np.append(step_sizes, 0.0))


def default_n_test(sizes: Sizes) -> int:
    """Test samples of a replica, so many that its draw matters more than they do."""
    return max(4000, 4 * sizes.n_samples)


def estimate_memory(
    sizes: Sizes,
    *,
    dtype: str = "float64",
    test: str = "auto",
    extras: Sequence[str] = (),
    block_rows: int | None = None,
    n_step_sizes: int = 1,
) -> int:
    """Bytes that one worker needs at its peak, the interpreter included.

    Only in blocks of rows does it grow with the number of step sizes.

    Examples
    --------
    >>> print(f"{estimate_memory(Sizes(2000, 1000, 1500)) / 2**20:.0f} MiB")
    273 MiB
    """
    n, d, width, n0 = sizes.n_samples, sizes.dim, sizes.width, sizes.n_step_samples
    item = np.dtype(dtype).itemsize
    layers = item * 2 * width * d

    def solution(size: int, entry: int = item) -> int:
        # The Gram matrix, the copy that is factorised, Krylov vectors; all eigenvalues take it in float64.
        return (2 * entry + (8 if "degrees" in extras else 0)) * size**2 + entry * 256 * size

    phases = []
    if test != "sample":
        phases.append(layers + item * width * d + (4 * item + item % 8 * 2) * width**2)
    if block_rows is not None:
        # The labels' and the activation's temporaries count where blocks are small.
        block = item * block_rows * (d + 4 * width) + 2**20
        phases += [
            layers + 16 * width * d + block,
            layers + 8 * (n_step_sizes + 2) * width**2 + block,
            layers + 8 * n_step_sizes * width**2 + solution(width, 8),
        ]
        return INTERPRETER_MEMORY + max(phases)
    inputs, design = item * n * d, item * n * width
    fit = design + solution(min(n, width))
    phases += [layers + item * n0 * (d + width), layers + inputs + 2 * design + fit]
    if test != "population":
        phases.append(layers + 2 * inputs + 4 * design)
    if "linear" in extras:
        phases.append(layers + 2 * item * (n + n0) * d + solution(min(n + n0, d)))
    if "spiked" in extras or "gaussian" in extras:
        phases.append(layers + (8 + item) * (width + n) * d + 2 * design + max(fit, design) + 8 * width**2)
    return INTERPRETER_MEMORY + max(phases)


def available_memory() -> int | None:
    """Bytes that this process may still take, by the machine and by its control group; None where unknown."""
    known = []
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        known += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    except OSError:
        try:
            known.append(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
        except (ValueError, OSError, AttributeError):
            return None
    for group in (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/memory")):
        for limit, usage in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            try:
                free = int((group / limit).read_text()) - int((group / usage).read_text())
                # Cached files count as used but are given up when memory is asked for.
                stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
                known.append(max(0, free + int(stat.get("inactive_file", 0))))
            except (OSError, ValueError):
                continue
    return min(known) if known else None


def simulate(
    problem: Problem,
    sizes: Sizes,
    step_sizes: ArrayLike | None = None,
    ridges: ArrayLike = 0.1,
    *,
    step_exponents: ArrayLike | None = None,
    seed: int = 0,
    replicas: int = 8,
    workers: int | None = None,
    dtype: str = "float64",
    test: str = "auto",
    n_test: int | None = None,
    extras: Sequence[str] = (),
    block_rows: int | None = None,
    parts: int = 1,
    executor: Executor | None = None,
    progress: bool | Callable[[int, int], object] | None = None,
    memory_limit: int | None = None,
) -> Outcome:
    r"""Train and test errors of the network at finite size, averaged over replicas.

    .. math:: W_1 = W_0 + \eta G, \quad F = \sigma(\tilde X W_1^\top), \quad
        \hat a = \arg\min_a \tfrac1n\|\tilde y - F a\|^2 + \lambda\|a\|^2

    Parameters
    ----------
    problem, sizes
        What is studied.
    step_sizes : array_like (S,), optional
        :math:`\eta \ge 0`; give these or `step_exponents`.
    ridges : array_like (R,)
        :math:`\lambda > 0`.
    step_exponents : array_like (S,), optional
        :math:`\alpha`, for :math:`\eta = n_0^\alpha`.
    seed : int
        Same seed, same numbers, for any number of workers.
    replicas : int
        Independent draws; more of them never change the earlier ones.
    workers : int, optional
        Processes, each with one BLAS thread; by default one for each core unless the run is tiny.
    dtype : {"float64", "float32"}
        Precision of data, weights and features. Both see the same draws.
    test : {"auto", "population", "sample"}
        Exact population test error wherever one is known and a test sample elsewhere, or one of the two.
    n_test : int, optional
        Size of a replica's test sample.
    extras : sequence of {"spiked", "gaussian", "linear", "weights", "degrees", "controls"}
        Further quantities: the errors of the spiked approximations F_l (``spiked1_train_error``, …; l = 1, 2,
        3); those with the Gaussian equivalent of F_0 (``gaussian0_train_error``, …); of ridge regression on
        the inputs with n and with n0 + n samples (``linear_ridge_test_error``,
        ``linear_ridge_both_test_error``); the top singular value of W1 and the squared overlap of its
        input-side vector with beta (``weights_top``, ``weights_alignment``); the degrees of freedom of the
        fits as a share of n (``degrees_of_freedom``), which take longer than the fits. With "controls" the
        means and standard errors, but not the samples in `details`, are corrected by control variates: by what
        eight averages of known mean over the two samples explain of the replicas' differences.
    block_rows : int, optional
        Go through the samples in blocks of so many rows: memory is then set by the width, the number of step
        sizes and the block, not by n. The same numbers to rounding; not with the extras that need the samples as
        a whole ("spiked", "gaussian", "linear").
    parts : int
        With `block_rows` and an executor: its tasks are this many parts of a replica's samples in place of whole
        replicas, each summed up where it runs.
    executor : concurrent.futures.Executor, optional
        Where the replicas run instead of on processes of this call; `workers` and memory are then its affair.
    progress : bool or callable, optional
        A bar on the terminal once the run takes longer than two seconds (default), never (False), or a
        function that is called with the number of replicas done and their total.
    memory_limit : int, optional
        Bytes that the run may take; by default what is available. A run that cannot fit is refused.

    Returns
    -------
    Outcome
        With standard errors over replicas, and in `details` the `samples` of each replica.

    Examples
    --------
    >>> outcome = simulate(Problem("relu", "h1"), Sizes(100, 50, 75), [0, 5], replicas=4)
    >>> bool(outcome.test_gain[1, 0] > 3 * outcome.stderr["test_gain"][1, 0])
    True
    """
    steps, penalties = step_sizes_of(sizes, step_sizes, step_exponents), ridges_of(ridges)
    names = _checked_extras(extras)
    _check_whole("replicas", replicas, 1)
    _check_options(seed, dtype, test, n_test)
    if "controls" in names and replicas < CONTROLLED:
        raise ValueError(f"controls need at least {CONTROLLED} replicas, got {replicas}")
    if workers is not None:
        _check_whole("workers", workers, 1)
    options: dict[str, Any] = {
        "seed": seed,
        "dtype": dtype,
        "test": test,
        "n_test": n_test or default_n_test(sizes),
        "extras": names,
        "block_rows": block_rows,
    }
    blocks = _checked_blocks(block_rows, parts, names, executor)
    started = time.perf_counter()
    need = estimate_memory(
        sizes, dtype=dtype, test=test, extras=names, block_rows=block_rows, n_step_sizes=len(steps) + 1
    )
    tasks = [(problem, sizes, steps, penalties, options | {"replica": index}) for index in range(replicas)]
    with _reporting(progress, replicas) as report:
        if blocks is not None and parts > 1:
            results = []
            for index in range(replicas):
                draw = Draw(problem, sizes, seed, index, dtype)
                with _blas().limit(limits=1):
                    work = _Replica(draw, test, options["n_test"], blocks)
                    results.append(report.counted(work.run(steps, penalties, names)))
        elif executor is not None:
            results = _collect([executor.submit(_task, *task) for task in tasks], report)
        else:
            limit = available_memory() if memory_limit is None else memory_limit
            limit = sys.maxsize if limit is None else limit
            small = replicas * _work(sizes, len(steps)) < SMALL_WORK
            workers = _choose_workers(problem, workers, replicas, small, limit // need)
            _check_memory(sizes, workers, need, limit)
            if workers * need > LARGE_MEMORY:
                report.say(
                    f"{replicas} replicas on {workers} workers: {_gib(workers * need)} of {_gib(limit)}"
                )
            if workers == 1:
                results = [report.counted(_task(*task)) for task in tasks]
            else:
                results = _run_on_processes(workers, tasks, report)
    samples = {name: np.stack([result[name] for result in results]) for name in results[0]}
    test_stderr = samples.pop("test_stderr")
    counted = samples
    if "controls" in names:
        controls = samples.pop("controls")
        counted = {name: _controlled(sample, controls) for name, sample in samples.items()}
    values = {name: sample.mean(axis=0) for name, sample in counted.items()}
    stderr = {}
    if replicas > 1:
        stderr = {name: sample.std(axis=0, ddof=1) / np.sqrt(replicas) for name, sample in counted.items()}
    sampled = test_stderr > 0
    notes = list(problem.concerns(sizes))
    if sampled.any():
        notes.append(
            f"test errors of {sampled.any(axis=(0, 2)).sum()} of {len(steps)} step sizes were measured on "
            f"{options['n_test']} samples for each replica"
        )
    details = {
        "replicas": replicas,
        "seed": seed,
        "dtype": dtype,
        "test": np.where(sampled.any(axis=(0, 2)), "sample", "population").tolist(),
        "n_test": options["n_test"],
        "test_stderr": np.sqrt((test_stderr**2).mean(axis=0) / replicas),
        "samples": samples,
        "workers": workers,
        "memory_per_worker": need,
        "seconds": time.perf_counter() - started,
        "versions": {
            "python": platform.python_version(),
            "numpy": np.__version__,
            "scipy": scipy.__version__,
        },
    }
    return Outcome(problem, sizes, steps, penalties, "simulation", values, stderr, tuple(notes), details)


def _controlled(sample: Array, controls: Array) -> Array:
    """The sample (replicas, …) less what controls (replicas, q) of mean zero explain of it.

    The coefficients that are used for a replica are those of a regression on all the others, so that the mean
    stays unbiased at any number of replicas.
    """
    values = sample.reshape(len(sample), -1)
    columns = np.column_stack([np.ones(len(sample)), controls])
    inverse = np.linalg.inv(columns.T @ columns)
    coefficients = inverse @ columns.T @ values
    # Leaving out row i changes the coefficients by -(A^T A)^-1 a_i r_i, with its residual r_i outside the fit.
    leverage = np.einsum("ij,jk,ik->i", columns, inverse, columns)
    outside = (values - columns @ coefficients) / (1 - leverage)[:, None]
    own = np.einsum("ij,jk,ik->i", controls, inverse[1:], columns)
    corrected = values - controls @ coefficients[1:] + own[:, None] * outside
    return cast(Array, corrected.reshape(sample.shape))


def _check_whole(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} must be a whole number, got {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")


def _check_options(seed: int, dtype: str, test: str, n_test: int | None) -> None:
    _check_whole("seed", seed, 0)
    if dtype not in ("float64", "float32"):
        raise ValueError(f"dtype must be float64 or float32, got {dtype!r}")
    if test not in TESTS:
        raise ValueError(f"test must be one of {', '.join(TESTS)}; got {test!r}")
    if n_test is not None:
        _check_whole("n_test", n_test, 2)


def _checked_extras(extras: Sequence[str]) -> tuple[str, ...]:
    names = (extras,) if isinstance(extras, str) else tuple(extras)
    for name in names:
        if name not in EXTRAS:
            raise ValueError(f"extras must be among {', '.join(EXTRAS)}; got {name!r}")
    return names


def _checked_blocks(
    block_rows: int | None, parts: int, extras: tuple[str, ...], executor: Executor | None = None
) -> _Blocks | None:
    _check_whole("parts", parts, 1)
    if block_rows is None:
        if parts > 1:
            raise ValueError(f"parts need block_rows, the rows of a block; got parts={parts} without")
        return None
    _check_whole("block_rows", block_rows, 1)
    whole = [name for name in extras if name in WHOLE]
    if whole:
        raise ValueError(
            f"{', '.join(whole)} need the samples as a whole: leave out block_rows or these extras"
        )
    if parts > 1 and executor is None:
        raise ValueError(f"parts need an executor to run on; got parts={parts} without")
    return _Blocks(block_rows, parts, executor)


def _task(
    problem: Problem, sizes: Sizes, step_sizes: Array, ridges: Array, options: Mapping[str, Any]
) -> dict[str, Array]:
    return run_replica(problem, sizes, step_sizes, ridges, **options)


def _work(sizes: Sizes, n_steps: int) -> float:
    """Floating-point operations of one replica, roughly."""
    n, d, width, n0 = sizes.n_samples, sizes.dim, sizes.width, sizes.n_step_samples
    products = 4.0 * (n0 + n) * d * width + 4.0 * width**2 * d
    return products + (n_steps + 1) * (
        min(n, width) ** 2 * (max(n, width) + 1.5 * min(n, width)) + 60.0 * width**2
    )


def _choose_workers(problem: Problem, workers: int | None, replicas: int, small: bool, fitting: int) -> int:
    """Number of processes, for the cores there are and the number that fits into memory."""
    if workers is None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return 1 if small or not _picklable(problem) else max(1, min(cores, replicas, fitting))
    if min(workers, replicas) > 1 and not _picklable(problem):
        raise ValueError(
            "the activation or teacher cannot be sent to worker processes: define it at the top of a module "
            "(no lambda), write it as an expression, or use workers=1"
        )
    return min(workers, replicas)


def _picklable(problem: Problem) -> bool:
    try:
        pickle.dumps(problem)
    except (pickle.PicklingError, AttributeError, TypeError):
        return False
    return True


def _check_memory(sizes: Sizes, workers: int, need: int, limit: int) -> None:
    if workers * need > limit:
        remedy = f"workers={limit // need}" if limit >= need else "block_rows=1000, smaller sizes"
        raise MemoryError(
            f"{sizes} needs about {_gib(need)} for each of {workers} workers, and {_gib(limit)} are "
            f"available: use {remedy} or dtype='float32'"
        )


def _gib(count: int) -> str:
    return f"{count / 2**30:.3g} GiB"


class _Report:
    """Counts finished replicas and shows them: to a function, on a bar, or not at all."""

    def __init__(self, progress: bool | Callable[[int, int], object] | None, total: int) -> None:
        self.total, self.done = total, 0
        self.call = progress if callable(progress) else None
        self.wanted = progress is True or (progress is None and sys.stderr.isatty())
        self.started = time.monotonic()
        self.bar: Any = None

    def say(self, message: str) -> None:
        """State something before the run, where the bar would be."""
        logger.info(message)
        if self.wanted:
            sys.stderr.write(f"{message}\n")

    def tick(self) -> None:
        """Show the bar once the run is known to be a long one."""
        if not self.wanted:
            return
        if self.bar is None and time.monotonic() - self.started > SLOW_SECONDS:
            try:
                from rich.console import Console
                from rich.progress import (
                    BarColumn,
                    MofNCompleteColumn,
                    Progress,
                    TextColumn,
                    TimeRemainingColumn,
                )
            except ImportError:
                self.wanted = False
                return
            columns = TextColumn("replicas"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
            self.bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self.bar.add_task("replicas", total=self.total, completed=self.done)
            self.bar.start()

    def counted(self, result: dict[str, Array]) -> dict[str, Array]:
        """Count one finished replica and pass its result on."""
        self.done += 1
        self.tick()
        if self.call is not None:
            self.call(self.done, self.total)
        if self.bar is not None:
            self.bar.update(self.bar.task_ids[0], completed=self.done)
        return result


@contextmanager
def _reporting(progress: bool | Callable[[int, int], object] | None, total: int) -> Iterator[_Report]:
    report = _Report(progress, total)
    try:
        yield report
    finally:
        if report.bar is not None:
            report.bar.stop()


def _collect(futures: list[Future[dict[str, Array]]], report: _Report) -> list[dict[str, Array]]:
    """Results in the order of the futures; on an error or Ctrl-C those not yet started are cancelled."""
    try:
        pending = set(futures)
        while pending:
            finished, pending = wait(pending, timeout=0.5, return_when=FIRST_COMPLETED)
            report.tick()
            for future in finished:
                report.counted(future.result())
        return [future.result() for future in futures]
    finally:
        for future in futures:
            future.cancel()


def _run_on_processes(
    workers: int, tasks: Sequence[tuple[Any, ...]], report: _Report
) -> list[dict[str, Array]]:
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_start_worker)
    try:
        with _without_main(tasks[0][0]):
            futures = [pool.submit(_task, *task) for task in tasks]
        return _collect(futures, report)
    except BrokenProcessPool:
        raise RuntimeError(
            f"a worker process died when {report.done} of {report.total} replicas were done, most likely for "
            f"lack of memory: use fewer than {workers} workers, smaller sizes or dtype='float32'. A script "
            "that defines its own activation or teacher must call simulate under `if __name__ == '__main__':`"
        ) from None
    except BaseException:
        # Ctrl-C: a running replica may take minutes, so its process is ended rather than waited for.
        for process in list((getattr(pool, "_processes", None) or {}).values()):
            process.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _start_worker() -> None:
    # Ctrl-C reaches every process of the terminal: workers end silently, the parent reports.
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def _without_main(problem: Problem) -> Iterator[None]:
    """Let processes start without running the user's script, unless the problem uses a function from it."""
    main = sys.modules["__main__"]
    if b"__main__" in pickle.dumps(problem):
        yield
        return
    # Spawned processes look up the script here; a script without a `__main__` guard would start itself again.
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
