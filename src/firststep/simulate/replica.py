"""One replica: draw the data and the weights, take the step, fit the readout, measure."""

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

from firststep import network
from firststep.gaussian import Array, Function, expectation
from firststep.network import Library, Matrix, host
from firststep.problem import Problem, Sizes, check_whole, ridges_of, step_sizes_of
from firststep.simulate.draw import Draw
from firststep.workers import Blocks

EXTRAS = ("spiked", "gaussian", "linear", "weights", "degrees", "controls")
# Extras that cannot be summed over blocks of rows.
WHOLE = ("spiked", "gaussian", "linear", "controls")
TESTS = ("auto", "population", "sample")
# Largest l of the spiked approximations F_l.
SPIKES = 3


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
    names = checked_extras(extras)
    check_options(seed, dtype, test, n_test)
    blocks = checked_blocks(block_rows, 1, names)
    library = checked_library(backend, device)
    with one_thread(library):
        draw = Draw(problem, sizes, seed, replica, dtype)
        work = Replica(draw, test, n_test or default_n_test(sizes), blocks, library)
        return work.run(steps, penalties, names)


@lru_cache(maxsize=1)
def _blas() -> ThreadpoolController:
    # Made once, because finding the libraries takes longer than a small replica.
    return ThreadpoolController()


@contextmanager
def one_thread(library: Library) -> Iterator[None]:
    """One thread for NumPy's BLAS and for the library."""
    with ExitStack() as limits:
        limits.enter_context(_blas().limit(limits=1))
        limits.enter_context(library.one_thread())
        yield


def checked_library(backend: str, device: str | None) -> Library:
    """The library, once it is known to be there."""
    library = Library(backend, device)
    library.check()
    return library


def _scale(problem: Problem, sizes: Sizes) -> float:
    return sizes.width**-0.5 if problem.initial_output == "vanishing" else 1.0


def _step_sums(draw: Draw, library: Library, start: int, stop: int, block_rows: int) -> network.Step:
    """What the rows from start to stop add to the gradient and the direction."""
    with one_thread(library):
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
    with one_thread(library):
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


class Replica:
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
        """Every value for each step size and ridge."""
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
                try:
                    errors[i] = products.at(step_size).test_error(path.coefficients, *laws)
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


def check_options(seed: int, dtype: str, test: str, n_test: int | None) -> None:
    """Refuse what no replica can be run with."""
    check_whole("seed", seed, 0)
    if dtype not in ("float64", "float32"):
        raise ValueError(f"dtype must be float64 or float32, got {dtype!r}")
    if test not in TESTS:
        raise ValueError(f"test must be one of {', '.join(TESTS)}; got {test!r}")
    if n_test is not None:
        check_whole("n_test", n_test, 2)


def checked_extras(extras: Sequence[str]) -> tuple[str, ...]:
    """The extras as a tuple of names that there are."""
    names = (extras,) if isinstance(extras, str) else tuple(extras)
    for name in names:
        if name not in EXTRAS:
            raise ValueError(f"extras must be among {', '.join(EXTRAS)}; got {name!r}")
    return names


def checked_blocks(
    block_rows: int | None, parts: int, extras: tuple[str, ...], executor: Executor | None = None
) -> Blocks | None:
    """How to go through the samples; None for all of them at once."""
    check_whole("parts", parts, 1)
    if block_rows is None:
        if parts > 1:
            raise ValueError(f"parts need block_rows, the rows of a block; got parts={parts} without")
        return None
    check_whole("block_rows", block_rows, 1)
    whole = [name for name in extras if name in WHOLE]
    if whole:
        raise ValueError(
            f"{', '.join(whole)} need the samples as a whole: leave out block_rows or these extras"
        )
    if parts > 1 and executor is None:
        raise ValueError(f"parts need an executor to run on; got parts={parts} without")
    return Blocks(block_rows, parts, executor)
