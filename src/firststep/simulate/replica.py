"""One replica: draw the data and the weights, take the step, fit the readout, measure."""

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

from firststep import arrays as network
from firststep.arrays import Library, Matrix, host
from firststep.compute.memory import calm_memory
from firststep.compute.processes import Blocks
from firststep.gaussian import Array, Function, MultiFunction, expectation
from firststep.results import NETWORK, Measured
from firststep.setting import Problem, Sizes, check_whole, ridges_of, step_sizes_of
from firststep.setting.teacher import leading_terms, term_name
from firststep.simulate.draw import Draw, step_sample_name

EXTRAS = ("spiked", "gaussian", "linear", "weights", "directions", "learned", "degrees", "controls", "double")
# Extras that cannot be summed over blocks of rows.
WHOLE = ("spiked", "gaussian", "linear", "controls")
# With "double", one in so many replicas is computed in float64 as well.
DOUBLED = 16
# Extras that are about one plain gradient step.
ONE_STEP = ("spiked", "gaussian")
TESTS = ("auto", "population", "sample")
# Largest l of the spiked approximations F_l.
SPIKES = 3
# Singular vectors of the weights that the extra "directions" looks at.
TOP = 3
# Errors of which there are gains.
KINDS = ("train", "test")
RULES = {
    "gradient": network.gradient_rule,
    "whitened": network.whitened_rule,
    "sign": network.sign_rule,
    "muon": network.muon_rule,
}


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
) -> Measured:
    """One replica: every step size and ridge on one draw; the unit of work of any larger run.

    Takes the arguments of `simulate`, several steps as `step_sizes` of shape (S, T), a row for each sequence. The
    numbers depend on the arguments alone, not on the process or on the number of BLAS threads around it.

    Examples
    --------
    >>> found = run_replica(Problem("relu", "h1"), Sizes(100, 50, 75), [0, 5], [0.1, 1.0], replica=3)
    >>> found["test_error"].shape
    (2, 2)
    """
    schedule, penalties = _schedule(sizes, step_sizes), ridges_of(ridges)
    names = checked_extras(extras)
    check_options(seed, dtype, test, n_test, names)
    check_training(problem, sizes, schedule, names)
    blocks = checked_blocks(block_rows, 1, names)
    library = checked_library(backend, device)
    with one_thread(library):
        if blocks is None:
            calm_memory()
        draw = Draw(problem, sizes, seed, replica, dtype)
        work = Replica(draw, test, n_test or default_n_test(sizes), blocks, library)
        return work.run(schedule, penalties, names)


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
    return problem.output_law.scale(sizes.width)


def _schedule(sizes: Sizes, step_sizes: ArrayLike) -> Array:
    """Step sizes (S, T), checked, from (S,) for one step or from (S, T)."""
    given = np.asarray(step_sizes, dtype=float)
    if given.ndim != 2:
        return step_sizes_of(sizes, given, None)[:, None]
    if not given.size:
        raise ValueError(f"step sizes must be a number or a non-empty list, got shape {given.shape}")
    return step_sizes_of(sizes, given.ravel(), None).reshape(given.shape)


def _step_sums(
    draw: Draw, library: Library, moved: Matrix | None, number: int, start: int, stop: int, block_rows: int
) -> network.Step:
    """What the rows from start to stop add to the gradient and the direction, at the first or at moved weights."""
    with one_thread(library):
        place = library.place
        weights = place(draw.whitened_weights() if moved is None else moved)
        readout = place(draw.readout())
        gradient, direction = np.zeros(weights.shape), np.zeros(draw.sizes.dim)
        for inputs, labels in draw.rows(step_sample_name(number), start, stop, block_rows):
            arguments = place(inputs), place(labels), weights, readout, draw.problem.activation
            step = network.gradient_step(*arguments, _scale(draw.problem, draw.sizes))
            share = len(labels) / draw.sizes.n_step_samples
            gradient += host(step.gradient) * share
            direction += host(step.direction) * share
        return network.Step(gradient, direction)


def _fit_sums(
    draw: Draw, library: Library, layer: "Layer", moved: bool, start: int, stop: int, block_rows: int
) -> list[network.Moments]:
    """What the rows from start to stop add to the normal equations of each step size."""
    with one_thread(library):
        weights = library.place(layer.weights if moved else draw.whitened_weights())
        change_weights = library.place(layer.change)
        sums = [network.Moments.none(draw.sizes.width, library) for _ in layer.sizes]
        sample = "fit" if draw.problem.fitted_on.fresh else "step"
        for drawn, labels in draw.rows(sample, start, stop, block_rows):
            inputs, targets = library.place(drawn), library.place(labels)
            before, change = inputs @ weights.T, inputs @ change_weights.T
            design = None
            for step_size, total in zip(layer.sizes, sums, strict=True):
                design = network.features_after(
                    before, change, step_size, draw.problem.activation, out=design
                )
                total.add(design, targets)
        return sums


@dataclass(frozen=True, eq=False)
class Layer:
    """The whitened first layer before its last step and what that adds: W + eta change for several eta.

    Attributes
    ----------
    weights, change : ndarray (N, d)
        Before the last step, and the step of size one.
    sizes : ndarray
        Sizes of the last step, ascending, each once.
    """

    weights: Matrix
    change: Matrix
    sizes: Array

    def after(self, step_size: float) -> Array:
        """Weights after a step, as NumPy's in float64."""
        return host(self.weights) + step_size * host(self.change)


@dataclass(frozen=True, eq=False)
class Untrained:
    """The network without any step, to which gains refer."""

    layer: Layer
    path: network.RidgePath
    exact: Array | None


@dataclass(eq=False)
class _Table:
    """What is measured for every row of a schedule, filled layer by layer."""

    test_stderr: Array
    parts: dict[str, dict[str, Array]] = field(default_factory=dict)

    def fill(
        self, parts: dict[str, dict[str, Array]], rows: NDArray[np.intp], places: NDArray[np.intp]
    ) -> None:
        """Write what was found at these places of a layer into rows."""
        for part, values in parts.items():
            kept = self.parts.setdefault(part, {})
            for name, value in values.items():
                whole = np.empty((len(self.test_stderr), *value.shape[1:]))
                kept.setdefault(name, whole)[rows] = value[places]


class Replica:
    """The parts of one replica's work, which share its draw; everything is in whitened coordinates."""

    def __init__(self, draw: Draw, test: str, n_test: int, blocks: Blocks | None, library: Library) -> None:
        self.draw, self.problem, self.sizes = draw, draw.problem, draw.sizes
        self.test, self.n_test, self.blocks, self.library = test, n_test, blocks, library
        # Drawn by NumPy for every library, so that all see the same numbers.
        self.weights, self.readout = library.place(draw.whitened_weights()), library.place(draw.readout())
        self.beta = draw.beta
        # What test errors need: the direction, or the columns of several.
        self.directions = draw.betas if self.problem.teacher.directions > 1 else draw.beta
        self._samples: dict[int, tuple[Any, Any]] = {}

    def _placed(self, sample: tuple[Matrix, Matrix]) -> tuple[Any, Any]:
        return self.library.place(sample[0]), self.library.place(sample[1])

    def _step_sample(self, number: int) -> tuple[Any, Any]:
        """The sample of a step, kept because every sequence of steps asks for it again."""
        used = number if self.problem.later_samples.fresh else 1
        if used not in self._samples:
            self._samples[used] = self._placed(self.draw.step_sample(used))
        return self._samples[used]

    def _step(self, weights: Matrix, number: int) -> network.Step:
        """The step of size one at the given weights, by the problem's rule."""
        if self.blocks is None:
            inputs, labels = self._step_sample(number)
            laws = self.problem.activation, _scale(self.problem, self.sizes)
            step = network.gradient_step(inputs, labels, weights, self.readout, *laws)
        else:
            used = number if self.problem.later_samples.fresh else 1
            moved = None if number == 1 else self._fetched(weights)
            step = self._summed_step(self.blocks, moved, used)
        return RULES[self.problem.rule.name](step, self.draw.root, self.readout)

    def _fetched(self, matrix: Matrix) -> Matrix:
        """NumPy's own, in the draw's precision, as tasks on other processes take it."""
        return host(matrix).astype(self.draw.dtype, copy=False)

    def _summed_step(self, blocks: Blocks, moved: Matrix | None, number: int) -> network.Step:
        gradient, direction = np.zeros(self.weights.shape), np.zeros(self.sizes.dim)
        arguments = self.draw, self.library, moved, number
        for part in blocks.sums(_step_sums, self.sizes.n_step_samples, *arguments):
            gradient += part.gradient
            direction += part.direction
        return network.Step(self.library.place(gradient.astype(self.draw.dtype, copy=False)), direction)

    def run(self, schedule: Array, ridges: Array, extras: tuple[str, ...]) -> Measured:
        """Every value for each sequence of steps and ridge."""
        step = self._step(self.weights, 1)
        about, direction = self._direction(step)
        sample: tuple[Any, Any] | None = None
        parts: dict[str, dict[str, Array]] = {}
        controls = None
        if self.blocks is None:
            sample = self._fit_sample()
            if "controls" in extras:
                controls = self._controls(*self._step_sample(1), *sample)
            if "linear" in extras:
                parts["linear"] = self._linear_fits(*sample, ridges)
            # What no later step asks for is not kept.
            if schedule.shape[1] == 1 or self.problem.later_samples.fresh:
                self._samples.clear()
        table = self._measured(step, schedule, sample, ridges, extras)
        if sample is not None:
            parts |= self._models(*sample, direction, schedule[:, 0], ridges, extras)
        network_part = {NETWORK: about | table.parts.pop(NETWORK)}
        found = Measured(network_part | table.parts | parts, table.test_stderr, controls)
        if "double" in extras and self.draw.replica % DOUBLED == 0:
            return replace(found, correction=self._correction(found, schedule, ridges, extras))
        return found

    def _correction(
        self, found: Measured, schedule: Array, ridges: Array, extras: tuple[str, ...]
    ) -> dict[str, Array]:
        """What float64 changes in the numbers of this draw."""
        draw = replace(self.draw, dtype="float64")
        twin = Replica(draw, self.test, self.n_test, self.blocks, self.library)
        exact = twin.run(
            schedule, ridges, tuple(name for name in extras if name not in ("double", "controls"))
        )
        return {name: exact[name] - found[name] for name in found}

    def _fit_sample(self) -> tuple[Any, Any]:
        if self.problem.fitted_on.fresh:
            return self._placed(self.draw.fit_sample())
        return self._step_sample(1)

    def _linear_fits(self, inputs: Matrix, labels: Matrix, ridges: Array) -> dict[str, Array]:
        """Ridge regression on the inputs, with the fit's samples and with those of the step as well."""
        both = inputs, labels
        if self.problem.fitted_on.fresh:
            step_inputs, step_labels = self._step_sample(1)
            both = network.joined(step_inputs, inputs), network.joined(step_labels, labels)
        alone = self._linear("linear_ridge", inputs, labels, ridges)
        return alone | self._linear("linear_ridge_both", *both, ridges)

    def _models(
        self,
        inputs: Matrix,
        labels: Matrix,
        direction: Array,
        step_sizes: Array,
        ridges: Array,
        extras: tuple[str, ...],
    ) -> dict[str, dict[str, Array]]:
        """Extras about approximations of the features after one step."""
        result: dict[str, dict[str, Array]] = {}
        if "spiked" in extras:
            model = network.spiked_network(inputs, self._before(direction), SPIKES)
            result["spiked"] = self._spikes("spiked", model, labels, step_sizes, ridges)
        if "gaussian" in extras:
            noise = self.library.place(self.draw.equivalent_noise())
            model = network.gaussian_equivalent(inputs, noise, self._before(direction), SPIKES)
            del noise
            path, error = model.fit(labels, ridges)
            plain = {"gaussian0_train_error": path.train_error[None], "gaussian0_test_error": error[None]}
            result["gaussian"] = plain | self._spikes("gaussian", model, labels, step_sizes, ridges)
        return result

    def _layers(self, step: network.Step, schedule: Array) -> Iterator[tuple[Layer, NDArray[np.intp]]]:
        """First layers before their last step, each with the rows of the schedule that end there."""

        def walk(weights: Matrix, change: Matrix, rows: NDArray[np.intp], done: int) -> Iterator[Any]:
            column = schedule[rows, done]
            if done == schedule.shape[1] - 1:
                yield Layer(weights, change, np.unique(column)), rows
                return
            for size in np.unique(column):
                moved = weights + float(size) * change
                fresh = self._step(moved, done + 2).gradient
                yield from walk(moved, fresh, rows[column == size], done + 1)

        yield from walk(self.weights, step.gradient, np.arange(len(schedule)), 0)

    def _measured(
        self,
        step: network.Step,
        schedule: Array,
        sample: tuple[Any, Any] | None,
        ridges: Array,
        extras: tuple[str, ...],
    ) -> "_Table":
        """Errors, and what is asked about fits and weights, for every row of the schedule."""
        degrees = "degrees" in extras
        table = _Table(np.empty((len(schedule), len(ridges))))
        untrained: Untrained | None = None
        zero: dict[str, Array] = {}
        if schedule.shape[1] > 1:
            layer = Layer(self.weights, step.gradient, np.zeros(1))
            paths = self._paths(layer, sample, ridges, degrees)
            zero, spread = self._errors(layer, paths, None)
            exact = zero["test_error"][0] if not spread.any() else None
            untrained = Untrained(layer, paths[0], exact)
        for layer, rows in self._layers(step, schedule):
            asked = layer
            if untrained is None:
                # The gains are differences on the same draw.
                layer = replace(layer, sizes=np.unique(np.append(layer.sizes, 0.0)))
            paths = self._paths(layer, sample, ridges, degrees)
            errors, spread = self._errors(layer, paths, untrained)
            if untrained is None:
                zero = errors
            errors |= {f"{kind}_gain": zero[f"{kind}_error"][0] - errors[f"{kind}_error"] for kind in KINDS}
            places = np.searchsorted(layer.sizes, schedule[rows, -1])
            table.test_stderr[rows] = spread[places]
            table.fill({NETWORK: errors, **self._about_fits(layer, paths, extras)}, rows, places)
            places = np.searchsorted(asked.sizes, schedule[rows, -1])
            table.fill(self._about_weights(asked, extras), rows, places)
        return table

    def _about_fits(
        self, layer: Layer, paths: list[network.RidgePath], extras: tuple[str, ...]
    ) -> dict[str, dict[str, Array]]:
        """The extras about the fits, a row for every size of the last step."""
        parts = {}
        if "degrees" in extras:
            parts["degrees"] = {"degrees_of_freedom": np.array([path.degrees_of_freedom for path in paths])}
        if "learned" in extras:
            parts["learned"] = self._learned(layer, paths)
        return parts

    def _learned(self, layer: Layer, paths: list[network.RidgePath]) -> dict[str, Array]:
        """Of each of the teacher's Hermite coefficients, the share that the fitted function has."""
        terms = leading_terms(self.problem.teacher)
        betas, activation = self.draw.betas, self.problem.activation
        tables = [
            network.captured(path.coefficients, layer.after(size), betas, activation, list(terms))
            for size, path in zip(layer.sizes, paths, strict=True)
        ]
        return {
            f"learned_{term_name(index)}": np.array([table[i] for table in tables]) / terms[index]
            for i, index in enumerate(terms)
        }

    def _direction(self, step: network.Step) -> tuple[dict[str, Array], Array]:
        direction = host(step.direction)
        norm = float(np.linalg.norm(direction))
        alignment = (direction @ self.beta / norm) ** 2 if norm else 0.0
        return {"direction_norm": np.array(norm), "alignment": np.array(alignment)}, direction

    def _paths(
        self, layer: Layer, sample: tuple[Any, Any] | None, ridges: Array, degrees: bool
    ) -> list[network.RidgePath]:
        """The fits for every size of the last step."""
        if sample is None:
            assert self.blocks is not None
            return self._summed_paths(self.blocks, layer, ridges, degrees)
        inputs, labels = sample
        before, change = inputs @ layer.weights.T, inputs @ layer.change.T
        design = None
        paths = []
        for step_size in layer.sizes:
            design = network.features_after(before, change, step_size, self.problem.activation, out=design)
            paths.append(network.ridge_path(design, labels, ridges, degrees=degrees))
        return paths

    def _summed_paths(
        self, blocks: Blocks, layer: Layer, ridges: Array, degrees: bool
    ) -> list[network.RidgePath]:
        """The same from sums over blocks of rows: the samples are never held as a whole."""
        moved = layer.weights is not self.weights
        # What a worker can draw itself is not sent to it.
        kept = self._fetched(layer.weights) if moved else np.empty((0, 0))
        sent = Layer(kept, self._fetched(layer.change), layer.sizes)
        totals: list[network.Moments] = []
        for sums in blocks.sums(_fit_sums, self.sizes.n_samples, self.draw, self.library, sent, moved):
            totals = [one.plus(other) for one, other in zip(totals, sums, strict=True)] if totals else sums
        return [total.path(ridges, degrees=degrees) for total in totals]

    def _errors(
        self, layer: Layer, paths: list[network.RidgePath], untrained: Untrained | None
    ) -> tuple[dict[str, Array], Array]:
        """Errors and norms (S, R) by name, and the errors of sampled test errors."""
        test_error, test_stderr = self._test_errors(layer, paths, untrained)
        values = {
            "train_error": np.array([path.train_error for path in paths]),
            "test_error": test_error,
            "train_mse": np.array([path.train_mse for path in paths]),
            "readout_norm_squared": np.array([path.norm_squared for path in paths]),
        }
        return values, test_stderr

    def _test_errors(
        self, layer: Layer, paths: list[network.RidgePath], untrained: Untrained | None
    ) -> tuple[Array, Array]:
        """Test errors (S, R), exact where they can be, and their own standard errors.

        Gains refer to `untrained`, or to the first size, which is then 0.
        """
        problem = self.problem
        errors = np.zeros((len(paths), len(paths[0].train_error)))
        stderr, missing = np.zeros_like(errors), np.full(len(paths), self.test == "sample")
        if self.test != "sample":
            beta = network.like(self.directions, self.weights)
            products = network.WeightProducts.of(layer.weights, layer.change, beta)
            laws = problem.activation, problem.teacher, problem.noise_variance
            for i, (step_size, path) in enumerate(zip(layer.sizes, paths, strict=True)):
                try:
                    errors[i] = products.at(step_size).test_error(path.coefficients, *laws)
                except network.NoPopulationError as reason:
                    missing[i] = True
                    if self.test == "population":
                        raise ValueError(
                            f"no exact test error at step size {step_size:g}: {reason}; use test='auto'"
                        ) from None
        if missing.any():
            exact = (None if missing[0] else errors[0]) if untrained is None else untrained.exact
            base, sampled, sampled_stderr, gain_stderr = self._sampled_errors(
                layer, paths, missing.copy(), untrained
            )
            if exact is None:
                errors[missing], stderr[missing] = sampled[missing], sampled_stderr[missing]
            else:
                # The exact error without a step is a control variate: only the gain has to be sampled.
                errors[missing] = exact + sampled[missing] - base
                stderr[missing] = gain_stderr[missing]
        return errors, stderr

    def _sampled_errors(
        self,
        layer: Layer,
        paths: list[network.RidgePath],
        wanted: NDArray[np.bool_],
        untrained: Untrained | None,
    ) -> tuple[Array, Array, Array, Array]:
        """Mean squared errors on a test sample, untrained (R,) and (S, R), standard errors, and those of the gains."""
        if untrained is None:
            wanted[0] = True
        shape = (len(paths), len(paths[0].train_error))
        means, squares, gain_squares = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        base = np.zeros(shape[1])
        rows = self.blocks.rows if self.blocks is not None else None
        for sample in self.draw.test_blocks(self.n_test, rows):
            placed = self._placed(sample)
            losses = self._losses(*placed, layer, paths, wanted)
            first = losses[0]
            if untrained is not None:
                first = self._losses(*placed, untrained.layer, [untrained.path], np.ones(1, dtype=bool))[0]
            base += first.sum(axis=1) / self.n_test
            means += losses.sum(axis=2) / self.n_test
            squares += (losses**2).sum(axis=2) / self.n_test
            gain_squares += ((first - losses) ** 2).sum(axis=2) / self.n_test
        free = self.n_test - 1
        stderr = np.sqrt(np.maximum(squares - means**2, 0.0) / free)
        gain_stderr = np.sqrt(np.maximum(gain_squares - (base - means) ** 2, 0.0) / free)
        return base, means, stderr, gain_stderr

    def _losses(
        self,
        inputs: Matrix,
        labels: Matrix,
        layer: Layer,
        paths: list[network.RidgePath],
        wanted: NDArray[np.bool_],
    ) -> Array:
        """Squared errors (S, R, samples) of the wanted step sizes, 0 for the others."""
        before, change = inputs @ layer.weights.T, inputs @ layer.change.T
        losses = np.zeros((len(paths), len(paths[0].train_error), labels.shape[0]))
        design = None
        for i in np.flatnonzero(wanted):
            design = network.features_after(
                before, change, layer.sizes[i], self.problem.activation, out=design
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
        special = teacher.directions
        square = _label_square_along(teacher) + special * self.problem.noise_variance
        square += (sizes.dim - special) * self.problem.label_variance
        return np.array(
            [
                direction @ beta - slope,
                direction @ direction - square / count - (1 - 1 / count) * slope**2,
                seen @ seen * sizes.dim / sizes.width - self.draw.covariance.teacher_moment(1),
                np.mean(y**2) - self.problem.label_variance,
                np.mean(along * y) - slope,
                np.mean(along**2) - 1,
            ]
        )

    def _linear(self, name: str, inputs: Matrix, labels: Matrix, ridges: Array) -> dict[str, Array]:
        # Samples are kept in whitened coordinates; the regression is on x = S^(1/2) g.
        root = 1.0 if self.draw.root is None else self.draw.root
        if self.draw.root is not None:
            inputs = inputs * network.like(self.draw.root, inputs)
        path = network.ridge_path(inputs, labels, ridges)
        problem = self.problem
        error = network.linear_test_error(
            path.coefficients * root, self.directions, problem.teacher, problem.noise_variance
        )
        return {f"{name}_train_error": path.train_error[None], f"{name}_test_error": error[None]}

    def _about_weights(self, layer: Layer, extras: tuple[str, ...]) -> dict[str, dict[str, Array]]:
        """The extras about the weights, a row for every size of the last step."""
        parts: dict[str, dict[str, Array]] = {}
        if "weights" in extras:
            root = 1.0 if self.draw.root is None else self.draw.root
            plain = host(layer.weights) / root, host(layer.change) / root
            tops = [network.top_singular(*plain, step_size) for step_size in layer.sizes]
            # E x y lies along S^(1/2) beta.
            seen = self.beta * root
            seen = seen / np.linalg.norm(seen) if self.draw.root is not None else seen
            parts["weights"] = {
                "weights_top": np.array([[value] for value, _ in tops]),
                "weights_alignment": np.array([[(vector @ seen) ** 2] for _, vector in tops]),
            }
        if "directions" in extras:
            found = [network.top_directions(layer.after(step_size), TOP) for step_size in layer.sizes]
            values: dict[str, Array] = {}
            for i in range(TOP):
                values[f"top{i + 1}_value"] = np.array([[sizes[i]] for sizes, _ in found])
                for k, beta in enumerate(self.draw.betas.T):
                    squares = [[(vectors[i] @ beta) ** 2] for _, vectors in found]
                    values[f"top{i + 1}_t{k + 1}"] = np.array(squares)
            parts["directions"] = values
        return parts

    def _before(self, direction: Array) -> network.OneStep:
        problem = self.problem
        laws = problem.activation, problem.teacher, problem.noise_variance
        return network.OneStep(self.weights, self.readout, direction, self.directions, *laws)

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
def _label_square_along(teacher: Function | MultiFunction) -> float:
    """E s(t)^2 |t|^2."""
    if isinstance(teacher, MultiFunction):
        return teacher.square_with_norm
    return expectation(lambda z: np.square(teacher(z) * z), teacher.kinks, tolerance=1e-9)


def default_n_test(sizes: Sizes) -> int:
    """Test samples of a replica, so many that its draw matters more than they do."""
    return max(4000, 4 * sizes.n_samples)


def check_options(seed: int, dtype: str, test: str, n_test: int | None, extras: tuple[str, ...] = ()) -> None:
    """Refuse what no replica can be run with."""
    check_whole("seed", seed, 0)
    if dtype not in ("float64", "float32"):
        raise ValueError(f"dtype must be float64 or float32, got {dtype!r}")
    if "double" in extras and dtype != "float32":
        raise ValueError(f"double corrects what dtype='float32' leaves out; got dtype={dtype!r}")
    if test not in TESTS:
        raise ValueError(f"test must be one of {', '.join(TESTS)}; got {test!r}")
    if n_test is not None:
        check_whole("n_test", n_test, 2)


def check_training(problem: Problem, sizes: Sizes, schedule: Array, extras: tuple[str, ...]) -> None:
    """Refuse samples that do not fit, and extras that are about one plain step where there are others."""
    if not problem.fitted_on.fresh and sizes.n_step_samples != sizes.n_samples:
        raise ValueError(
            f"fit_sample={problem.fitted_on.name!r} fits on the step's own sample: n_step_samples must equal "
            f"n_samples, got {sizes.n_step_samples} and {sizes.n_samples}"
        )
    single = [name for name in extras if name in ONE_STEP]
    if single and (schedule.shape[1] > 1 or not problem.rule.linear):
        raise ValueError(
            f"{', '.join(single)} describe one step along the gradient: leave them out for several steps or "
            f"step_rule={problem.rule.name!r}"
        )


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
