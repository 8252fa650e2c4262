"""From a checked experiment to points, cells and tasks."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from firststep.experiment.schema import (
    SIZE_NAMES,
    Experiment,
    ExperimentError,
    SimulationSection,
    SpectraSection,
    TheorySection,
    flat,
)
from firststep.experiment.work import MARKS, Task, described
from firststep.setting import FIELDS, Problem, Sizes, stable_key
from firststep.simulate import default_n_test
from firststep.store import NUMBERS_VERSION, Store, subject_key

MOST_POINTS = 2_000_000

Identity = tuple[str, Sizes, tuple[float, ...], float, float]

# Ratios as equations: left = value * right.
RATIO_SIZES = {
    "phi": ("dim", "n_samples"),
    "psi": ("dim", "width"),
    "psi1": ("n_samples", "dim"),
    "psi2": ("width", "dim"),
    "samples_per_width": ("n_samples", "width"),
    "step_samples_per_dim": ("n_step_samples", "dim"),
}


@dataclass(frozen=True)
class Point:
    """One problem, sizes, steps and ridge, with the values of what is swept."""

    problem: Problem
    sizes: Sizes
    step_size: float
    ridge: float
    coordinates: Mapping[str, Any]
    next_steps: tuple[float, ...] = ()

    @property
    def identity(self) -> Identity:
        """What is computed, without its name in the sweep."""
        return (self.problem.key, self.sizes, self.next_steps, self.step_size, self.ridge)


@dataclass(frozen=True)
class Cell:
    """A problem at one size with its later steps, and all pairs of first step and ridge that are asked of it."""

    problem: Problem
    sizes: Sizes
    points: tuple[Point, ...]
    next_steps: tuple[float, ...] = ()

    @property
    def key(self) -> tuple[str, Sizes, tuple[float, ...]]:
        """The cell without its points."""
        return (self.problem.key, self.sizes, self.next_steps)

    @property
    def subject(self) -> dict[str, Any]:
        """The cell as the store knows it."""
        # The spec of a function is not its definition: its key is.
        keys = [function.key for function in self.problem.functions.values()]
        content = {"problem": self.problem.to_dict() | {"keys": keys}, "sizes": self.sizes.to_dict()}
        return content | ({"next_step_sizes": list(self.next_steps)} if self.next_steps else {})

    @property
    def pairs(self) -> tuple[tuple[float, float], ...]:
        """Step sizes and ridges."""
        return tuple((point.step_size, point.ridge) for point in self.points)

    @property
    def name(self) -> str:
        """The cell in a few words."""
        return described(self.problem, self.sizes, self.next_steps)


def resolve_sizes(given: Mapping[str, float]) -> Sizes:
    """Whole sizes from numbers and ratios that determine them.

    Examples
    --------
    >>> resolve_sizes({"n_samples": 1000, "phi": 0.5, "psi": 0.625})
    Sizes(n_samples=1000, dim=500, width=800, n_step_samples=1000)
    """
    known = {
        name: float(given[name]) for name in ("n_samples", "dim", "width", "n_step_samples") if name in given
    }
    open_ratios = {name: float(value) for name, value in given.items() if name in RATIO_SIZES}
    while open_ratios:
        for name, value in open_ratios.items():
            left, right = RATIO_SIZES[name]
            if left in known and right in known:
                raise ValueError(f"{name} contradicts or repeats {left} and {right}: leave one of them out")
            if left in known or right in known:
                new, number = (right, known[left] / value) if left in known else (left, known[right] * value)
                known[new] = float(max(1, round(number)))
                del open_ratios[name]
                break
        else:
            names = ", ".join(open_ratios)
            raise ValueError(f"{names} cannot be used without a number: give n_samples, dim or width")
    missing = [name for name in ("n_samples", "dim", "width") if name not in known]
    if missing:
        means = ", ".join(f"{name} ({SIZE_NAMES[name]})" for name in missing)
        raise ValueError(f"{means} cannot be worked out: give it, or a ratio")
    for name, number in known.items():
        if not number.is_integer() or number < 1:
            raise ValueError(f"{name} must be a whole number of at least 1, got {number:g}")
    # From the user's own integers where there are any: 10**24 is not a float.
    exact = {name: int(given[name]) if name in given else int(number) for name, number in known.items()}
    return Sizes(exact["n_samples"], exact["dim"], exact["width"], cast(int, exact.get("n_step_samples")))


def expand(experiment: Experiment, changes: Mapping[str, Sequence[float]] | None = None) -> tuple[Point, ...]:
    """Every point of the sweep; `changes` replaces swept values, as a theory's curve does."""
    axes = dict(experiment.sweep.axes())
    zipped = [tuple(group) for group in experiment.sweep.zip]
    for name, values in (changes or {}).items():
        if name not in axes:
            raise ExperimentError("theory", [f"curve: {name} is not swept; swept are {', '.join(axes)}"])
        if any(name in group for group in zipped):
            raise ExperimentError("theory", [f"curve: {name} is zipped, so it cannot have values of its own"])
        axes[name] = tuple(values)
    groups = zipped + [(name,) for name in axes if not any(name in group for group in zipped)]
    total = math.prod(len(axes[group[0]]) for group in groups)
    if total > MOST_POINTS:
        raise ExperimentError(
            "sweep", [f"{total} combinations are more than {MOST_POINTS}: sweep fewer values"]
        )
    choices = [
        [dict(zip(group, entry, strict=True)) for entry in zip(*(axes[n] for n in group), strict=True)]
        for group in groups
    ]
    base_problem = experiment.problem.model_dump()
    base_sizes = {name: value for name, value in experiment.sizes.model_dump().items() if value is not None}
    problems: dict[tuple[Any, ...], Problem] = {}
    wrong: dict[str, None] = {}
    points = []
    order = list(axes)
    for combination in itertools.product(*choices):
        chosen = {name: value for entry in combination for name, value in entry.items()}
        chosen = {name: chosen[name] for name in order}
        described = tuple(chosen.get(field.name, base_problem[field.name]) for field in FIELDS)
        try:
            if described not in problems:
                named = {field.name: value for field, value in zip(FIELDS, described, strict=True)}
                problems[described] = Problem.from_dict(named | {"centred": base_problem["centred"]})
            sizes = resolve_sizes(base_sizes | {name: chosen[name] for name in SIZE_NAMES if name in chosen})
            points.append(_point(problems[described], sizes, chosen))
        except (ValueError, TypeError) as error:
            wrong[str(error)] = None
    if wrong:
        raise ExperimentError(experiment.title, wrong)
    return tuple(points)


def _point(problem: Problem, sizes: Sizes, chosen: Mapping[str, Any]) -> Point:
    (step,) = _steps(sizes, chosen, "step")
    ridge = float(sizes.ridge_from_cui(chosen["ridge_cui"])) if "ridge_cui" in chosen else chosen["ridge"]
    return Point(problem, sizes, step, float(ridge), chosen, _steps(sizes, chosen, "next_step"))


def _steps(sizes: Sizes, chosen: Mapping[str, Any], name: str) -> tuple[float, ...]:
    """Step sizes from an exponent, a size or a tuple of them; none where the name is not swept."""
    steps = flat([chosen[f"{name}_size"]] if f"{name}_size" in chosen else [])
    for exponent in flat([chosen[f"{name}_exponent"]] if f"{name}_exponent" in chosen else []):
        with np.errstate(over="ignore"):
            steps.append(float(sizes.step_size(exponent)))
        if not math.isfinite(steps[-1]):
            raise ValueError(f"{name}_exponent {exponent:g} makes the step size overflow: lower it")
    return tuple(steps)


def cells_of(points: Sequence[Point]) -> tuple[Cell, ...]:
    """Points by problem, size and later steps, in the order of the sweep."""
    found: dict[tuple[str, Sizes, tuple[float, ...]], list[Point]] = {}
    for point in points:
        found.setdefault((point.problem.key, point.sizes, point.next_steps), []).append(point)
    return tuple(
        Cell(members[0].problem, sizes, tuple(members), later) for (_, sizes, later), members in found.items()
    )


def theory_cells(experiment: Experiment, theory: TheorySection) -> tuple[Cell, ...]:
    """All that a theory is asked for: the points of the sweep and those of its curve."""
    points = theory_points(experiment, theory)
    if theory.curve:
        points = (*points, *theory_points(experiment, theory, theory.curve))
    return cells_of(points)


def theory_points(
    experiment: Experiment, theory: TheorySection, changes: Mapping[str, Sequence[float]] | None = None
) -> tuple[Point, ...]:
    """Points of the sweep, or of a curve, for which a theory is asked."""
    points = expand(experiment, changes)
    for name, values in theory.chosen.items():
        swept = experiment.sweep.axes().get(name, ())
        unknown = [value for value in values if value not in swept]
        if unknown:
            raise ExperimentError(
                "theory", [f"only: {name} is not swept over {unknown[0]!r}; its values are {list(swept)}"]
            )
        points = tuple(point for point in points if point.coordinates[name] in values)
    return points


def grids(pairs: Sequence[tuple[float, float]]) -> list[tuple[tuple[float, ...], tuple[float, ...]]]:
    """Pairs as few full grids of step sizes and ridges: steps with the same ridges go together.

    Grids do not change when the pairs of another grid are taken away. So a run that was stopped computes the
    same lists as one that was not, and lists of ridges are what the last bits of a number depend on.

    Examples
    --------
    >>> grids([(1.0, 0.1), (1.0, 0.2), (2.0, 0.1), (2.0, 0.2), (3.0, 0.2)])
    [((1.0, 2.0), (0.1, 0.2)), ((3.0,), (0.2,))]
    """
    ridges: dict[float, list[float]] = {}
    for step, ridge in pairs:
        ridges.setdefault(step, []).append(ridge)
    steps: dict[tuple[float, ...], list[float]] = {}
    for step, values in ridges.items():
        steps.setdefault(tuple(sorted(set(values))), []).append(step)
    return [(tuple(sorted(members)), values) for values, members in steps.items()]


def draw_seed(sizes: Sizes, problem: Problem, seed: int) -> int:
    """Seed of what is drawn: sizes, the fields that decide what is drawn, and the user's seed; nothing else enters.

    So a longer sweep, more replicas, later steps or another activation, teacher, noise or ridge meets the same draws.

    Examples
    --------
    >>> sizes = Sizes(100, 50, 75)
    >>> draw_seed(sizes, Problem("relu", "h1"), 0) == draw_seed(sizes, Problem("tanh", "h2", 0.5), 0)
    True
    """
    drawn = {field.name: getattr(problem, field.name) for field in FIELDS if field.drawn}
    return int(stable_key({"sizes": sizes.to_dict(), "seed": seed, **drawn})[:12], 16)


def simulation_spec(cell: Cell, settings: SimulationSection, replica: int) -> dict[str, Any]:
    """What a replica's points are stored under: the draw, and how it is measured."""
    return {
        "source": "simulation",
        "numbers": NUMBERS_VERSION["simulation"],
        **cell.subject,
        "seed": settings.seed,
        "draw_seed": draw_seed(cell.sizes, cell.problem, settings.seed),
        "replica": replica,
        "dtype": settings.dtype,
        "test": settings.test,
        "n_test": settings.n_test or default_n_test(cell.sizes),
    }


def theory_spec(cell: Cell, name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """What a theory's points are stored under."""
    return {
        "source": name,
        "numbers": NUMBERS_VERSION[name],
        **cell.subject,
        "options": dict(options),
    }


def spectrum_spec(cell: Cell, of: str, settings: SpectraSection, replica: int) -> dict[str, Any]:
    """What a replica's spectra are stored under; its draw is one of its own."""
    drawn = {"draw": draw_seed(cell.sizes, cell.problem, settings.seed), "replica": replica}
    return {
        "source": "spectrum",
        "numbers": NUMBERS_VERSION["spectrum"],
        "of": of,
        **cell.subject,
        "seed": settings.seed,
        "draw_seed": int(stable_key(drawn)[:12], 16),
        "replica": replica,
    }


def predicted_spectrum_spec(cell: Cell, of: str) -> dict[str, Any]:
    """What predicted spectra are stored under."""
    return {
        "source": "predicted_spectrum",
        "numbers": NUMBERS_VERSION["predicted_spectrum"],
        "of": of,
        **cell.subject,
    }


def steps_of(cell: Cell) -> tuple[float, ...]:
    """The cell's step sizes."""
    return tuple(sorted({point.step_size for point in cell.points}))


def spectra_cells(experiment: Experiment) -> tuple[Cell, ...]:
    """The sweep's cells with the finer steps of the predicted spectra added."""
    points = expand(experiment)
    curve = experiment.spectra.curve if experiment.spectra is not None else None
    if curve is not None:
        name = "step_exponent" if experiment.sweep.step_exponent is not None else "step_size"
        points = (*points, *expand(experiment, {name: curve}))
    return cells_of(points)


def missing_spectra(
    store: Store, cell: Cell, settings: SpectraSection, replicas: Sequence[int] | None = None
) -> Iterator[Task]:
    """Tasks for the spectra that the store does not have."""
    for of in settings.of:
        mark = MARKS[of]
        for replica in range(settings.replicas) if replicas is None else replicas:
            spec = spectrum_spec(cell, of, settings, replica)
            there = store.array_names(spec)
            steps = tuple(step for step in steps_of(cell) if (mark, step) not in there)
            if steps:
                yield Task(spec, cell.problem, cell.sizes, steps, (), (), of, cell.next_steps)


def parts_of(extras: Sequence[str]) -> tuple[str, ...]:
    """Parts under which a replica's numbers are stored: the network's own, and one for each extra."""
    return ("network", *extras)


def missing_tasks(
    store: Store, cell: Cell, settings: SimulationSection, replicas: Sequence[int]
) -> Iterator[Task]:
    """Tasks for the points of these replicas that the store does not have."""
    for replica in replicas:
        spec = simulation_spec(cell, settings, replica)
        key = subject_key(spec)
        lacking: dict[tuple[float, float], list[str]] = {}
        for part in parts_of(settings.extras):
            there = store.present_by_key(key, part)
            for pair in dict.fromkeys(cell.pairs):
                if pair not in there:
                    lacking.setdefault(pair, []).append(part)
        by_extras: dict[tuple[str, ...], list[tuple[float, float]]] = {}
        for pair, parts in lacking.items():
            by_extras.setdefault(tuple(part for part in parts if part != "network"), []).append(pair)
        for extras, pairs in by_extras.items():
            for steps, ridges in grids(pairs):
                yield Task(spec, cell.problem, cell.sizes, steps, ridges, extras, next_steps=cell.next_steps)
