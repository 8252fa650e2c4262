"""Finite size: draw the data and the weights, take the step, fit the readout, measure."""

import math
import platform
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, cast

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray
from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

from firststep import network
from firststep.gaussian import Array, Function, expectation
from firststep.network import Library, Matrix, host
from firststep.problem import Outcome, Problem, Sizes, ridges_of, step_sizes_of
from firststep.workers import Blocks, check_memory, choose_workers, collect, gib, reporting, run_on_processes
from firststep.workers import available_memory as available_memory

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
# Replicas from which the six coefficients of the control variates can be told.
CONTROLLED = 20
TESTS = ("auto", "population", "sample")
# Largest l of the spiked approximations F_l.
SPIKES = 3

# Work below which starting processes costs more than it saves, in floating-point operations.
SMALL_WORK = 3e10
LARGE_MEMORY = 2**30
# What an interpreter with NumPy and SciPy needs by itself, and the blocks that are worked on.
INTERPRETER_MEMORY = 128 * 2**20


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
    backend: str = "numpy",
    device: str | None = None,
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
    library = _checked_library(backend, device)
    with _one_thread(library):
        draw = Draw(problem, sizes, seed, replica, dtype)
        work = _Replica(draw, test, n_test or default_n_test(sizes), blocks, library)
        return work.run(steps, penalties, names)


@lru_cache(maxsize=1)
def _blas() -> ThreadpoolController:
    # Made once, because finding the libraries takes longer than a small replica.
    return ThreadpoolController()


@contextmanager
def _one_thread(library: Library) -> Iterator[None]:
    with ExitStack() as limits:
        limits.enter_context(_blas().limit(limits=1))
        limits.enter_context(library.one_thread())
        yield


def _checked_library(backend: str, device: str | None) -> Library:
    library = Library(backend, device)
    library.check()
    return library


def _scale(problem: Problem, sizes: Sizes) -> float:
    return sizes.width**-0.5 if problem.initial_output == "vanishing" else 1.0


def _step_sums(draw: Draw, library: Library, start: int, stop: int, block_rows: int) -> network.Step:
    """What the rows from start to stop add to the gradient and the direction."""
    with _one_thread(library):
        place = library.place
        weights, readout = place(draw.weights()), place(draw.readout())
        gradient, direction = np.zeros(weights.shape), np.zeros(draw.sizes.dim)
        for inputs, labels in draw.rows("step", start, stop, block_rows):
            arguments = place(inputs), place(labels), weights, readout, draw.problem.activation
            step = network.gradient_step(*arguments, _scale(draw.problem, draw.sizes))
            share = len(labels) / draw.sizes.n_step_samples
            gradient += host(step.gradient) * share
            direction += host(step.direction) * share
        return network.Step(gradient, direction)


def _fit_sums(
    draw: Draw, library: Library, gradient: Matrix, step_sizes: Array, start: int, stop: int, block_rows: int
) -> list[network.Moments]:
    """What the rows from start to stop add to the normal equations of each step size."""
    with _one_thread(library):
        weights, change_weights = library.place(draw.weights()), library.place(gradient)
        sums = [network.Moments.none(draw.sizes.width, library) for _ in step_sizes]
        for drawn, labels in draw.rows("fit", start, stop, block_rows):
            inputs, targets = library.place(drawn), library.place(labels)
            before, change = inputs @ weights.T, inputs @ change_weights.T
            design = None
            for step_size, total in zip(step_sizes, sums, strict=True):
                design = network.features_after(
                    before, change, step_size, draw.problem.activation, out=design
                )
                total.add(design, targets)
        return sums


class _Replica:
    """The parts of one replica's work, which share its draw."""

    def __init__(self, draw: Draw, test: str, n_test: int, blocks: Blocks | None, library: Library) -> None:
        self.draw, self.problem, self.sizes = draw, draw.problem, draw.sizes
        self.test, self.n_test, self.blocks, self.library = test, n_test, blocks, library
        # Drawn by NumPy for every library, so that all see the same numbers.
        self.weights, self.readout = library.place(draw.weights()), library.place(draw.readout())
        self.beta = draw.beta

    def _placed(self, sample: tuple[Matrix, Matrix]) -> tuple[Any, Any]:
        return self.library.place(sample[0]), self.library.place(sample[1])

    def run(self, step_sizes: Array, ridges: Array, extras: tuple[str, ...]) -> dict[str, Array]:
        if self.blocks is not None:
            return self._run_blocks(self.blocks, step_sizes, ridges, extras)
        step_inputs, step_labels = self._placed(self.draw.step_sample())
        scale = _scale(self.problem, self.sizes)
        step = network.gradient_step(
            step_inputs, step_labels, self.weights, self.readout, self.problem.activation, scale
        )
        result, direction = self._direction(step)
        inputs, labels = self._placed(self.draw.fit_sample())
        if "controls" in extras:
            result["controls"] = self._controls(step_inputs, step_labels, inputs, labels)
        if "linear" in extras:
            both = network.joined(step_inputs, inputs), network.joined(step_labels, labels)
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
            noise = self.library.place(self.draw.equivalent_noise())
            model = network.gaussian_equivalent(inputs, noise, *self._model_arguments(direction))
            del noise
            path, error = model.fit(labels, ridges)
            result |= {"gaussian0_train_error": path.train_error[None], "gaussian0_test_error": error[None]}
            result |= self._spikes("gaussian", model, labels, step_sizes, ridges)
        return result

    def _run_blocks(
        self, blocks: Blocks, step_sizes: Array, ridges: Array, extras: tuple[str, ...]
    ) -> dict[str, Array]:
        """The same from sums over blocks of rows: the samples are never held as a whole."""
        gradient, direction = np.zeros(self.weights.shape), np.zeros(self.sizes.dim)
        for part in blocks.sums(_step_sums, self.sizes.n_step_samples, self.draw, self.library):
            gradient += part.gradient
            direction += part.direction
        drawn = gradient.astype(self.draw.dtype, copy=False)
        step = network.Step(self.library.place(drawn), direction)
        result, _ = self._direction(step)
        run = _with_no_step(step_sizes)
        totals: list[network.Moments] = []
        for sums in blocks.sums(_fit_sums, self.sizes.n_samples, self.draw, self.library, drawn, run):
            totals = [one.plus(other) for one, other in zip(totals, sums, strict=True)] if totals else sums
        paths = [total.path(ridges, degrees="degrees" in extras) for total in totals]
        result |= self._errors(step, step_sizes, paths)
        if "weights" in extras:
            result |= self._weights(step, step_sizes)
        return result

    def _direction(self, step: network.Step) -> tuple[dict[str, Array], Array]:
        direction = host(step.direction)
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
        design = None
        paths = []
        for step_size in run:
            design = network.features_after(before, change, step_size, self.problem.activation, out=design)
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
            beta = network.like(self.beta, self.weights)
            products = network.WeightProducts.of(self.weights, step.gradient, beta)
            laws = problem.activation, problem.teacher, problem.noise_variance
            for i, (step_size, path) in enumerate(zip(step_sizes, paths, strict=True)):
                gram, overlaps = products.at(step_size)
                try:
                    errors[i] = network.population_test_error(path.coefficients, gram, overlaps, *laws)
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
        for sample in self.draw.test_blocks(self.n_test, rows):
            losses = self._losses(*self._placed(sample), step, step_sizes, paths, wanted)
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
        losses = np.zeros((len(paths), len(paths[0].train_error), labels.shape[0]))
        design = None
        for i in np.flatnonzero(wanted):
            design = network.features_after(
                before, change, step_sizes[i], self.problem.activation, out=design
            )
            losses[i] = network.losses(labels, paths[i].coefficients, design)
        return losses

    def _controls(self, step_inputs: Matrix, step_labels: Matrix, inputs: Matrix, labels: Matrix) -> Array:
        """Averages over the draw whose means are known, less these: few, because each costs a coefficient."""
        beta, teacher, sizes = self.beta, self.problem.teacher, self.sizes
        slope, count = float(teacher.hermite(2)[1]), sizes.n_step_samples
        direction = host(step_inputs.T @ step_labels) / count
        seen = host(self.weights @ network.like(beta, self.weights))
        along, y = host(inputs @ network.like(beta, inputs)), host(labels)
        # E|b|^2 for b = X^T y/n0, from E y^2 |x|^2 for one sample and c*_1^2 for two.
        square = _label_square_along(teacher) + self.problem.noise_variance
        square += (sizes.dim - 1) * self.problem.label_variance
        return np.array(
            [
                direction @ beta - slope,
                direction @ direction - square / count - (1 - 1 / count) * slope**2,
                seen @ seen * sizes.dim / sizes.width - 1,
                np.mean(y**2) - self.problem.label_variance,
                np.mean(along * y) - slope,
                np.mean(along**2) - 1,
            ]
        )

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


@lru_cache(maxsize=64)
def _label_square_along(teacher: Function) -> float:
    """E s(z)^2 z^2."""
    return expectation(lambda z: np.square(teacher(z) * z), teacher.kinks, tolerance=1e-9)


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
    275 MiB
    """
    n, d, width, n0 = sizes.n_samples, sizes.dim, sizes.width, sizes.n_step_samples
    item = np.dtype(dtype).itemsize
    layers = item * 2 * width * d

    def solution(size: int, entry: int = item) -> int:
        # The Gram matrix, the copy that is factorised, two Krylov spaces; all eigenvalues take it in float64.
        return (2 * entry + (8 if "degrees" in extras else 0)) * size**2 + 2 * entry * 256 * size

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
    backend: str = "numpy",
    device: str | None = None,
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
        six averages of known mean over samples and weights explain of the replicas' differences.
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
    backend : {"numpy", "torch", "array_api_strict"}
        Library that computes; all see the same draws, which NumPy makes, and give the same numbers to rounding.
    device : str, optional
        Where torch computes: "cpu" (default), "cuda", … It must know float64. Not tested on a GPU by us.

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
    library = _checked_library(backend, device)
    if workers is not None:
        _check_whole("workers", workers, 1)
    elif device not in (None, "cpu"):
        # One process fills a device; several would share its memory.
        workers = 1
    options: dict[str, Any] = {
        "seed": seed,
        "dtype": dtype,
        "test": test,
        "n_test": n_test or default_n_test(sizes),
        "extras": names,
        "block_rows": block_rows,
        "backend": backend,
        "device": device,
    }
    blocks = _checked_blocks(block_rows, parts, names, executor)
    started = time.perf_counter()
    need = estimate_memory(
        sizes, dtype=dtype, test=test, extras=names, block_rows=block_rows, n_step_sizes=len(steps) + 1
    )
    tasks = [(problem, sizes, steps, penalties, options | {"replica": index}) for index in range(replicas)]
    with reporting(progress, replicas) as report:
        if blocks is not None and parts > 1:
            results = []
            for index in range(replicas):
                draw = Draw(problem, sizes, seed, index, dtype)
                with _one_thread(library):
                    work = _Replica(draw, test, options["n_test"], blocks, library)
                    results.append(report.counted(work.run(steps, penalties, names)))
        elif executor is not None:
            results = collect([executor.submit(_task, *task) for task in tasks], report)
        else:
            limit = available_memory() if memory_limit is None else memory_limit
            limit = sys.maxsize if limit is None else limit
            small = replicas * _work(sizes, len(steps)) < SMALL_WORK
            workers = choose_workers(problem, workers, replicas, small, limit // need)
            check_memory(sizes, workers, need, limit)
            if workers * need > LARGE_MEMORY:
                report.say(f"{replicas} replicas on {workers} workers: {gib(workers * need)} of {gib(limit)}")
            if workers == 1:
                results = [report.counted(_task(*task)) for task in tasks]
            else:
                results = run_on_processes(workers, _task, tasks, report)
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
        "backend": backend,
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
            **library.version(),
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
    # An average that does not vary, such as |W0 beta|^2 in one dimension, explains nothing.
    inverse = np.linalg.pinv(columns.T @ columns, hermitian=True)
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
) -> Blocks | None:
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
    return Blocks(block_rows, parts, executor)


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
