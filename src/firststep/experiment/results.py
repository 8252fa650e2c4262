"""What a store holds of an experiment: outcomes, rows and the distance between theory and simulation."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from firststep.experiment.points import (
    Cell,
    Identity,
    Point,
    cells_of,
    expand,
    grids,
    missing_spectra,
    missing_tasks,
    parts_of,
    predicted_spectrum_spec,
    simulation_spec,
    spectra_cells,
    spectrum_spec,
    steps_of,
    theory_cells,
    theory_points,
    theory_spec,
)
from firststep.experiment.schema import Experiment, SimulationSection, TheorySection
from firststep.experiment.work import FOLLOWED, MARKS, SPIKES
from firststep.gaussian import Array
from firststep.numerics.agreement import WORDS, curve_agreement, normal_distances
from firststep.results import Averages, Distances, DrawnSpectrum, Measured, Outcome, Spectrum, spectrum_of
from firststep.store import Store, subject_key


@dataclass(frozen=True)
class Predicted:
    """One theory of an experiment: its outcomes at the points of the sweep and along its curve."""

    theory: TheorySection
    points: tuple[Outcome, ...]
    curve: tuple[Outcome, ...]

    @property
    def label(self) -> str:
        """Name in legends."""
        return self.theory.label or self.theory.name


@dataclass(frozen=True)
class SpectrumResult:
    """Spectra of one kind for a problem and size: drawn ones and predicted ones, by step size.

    Attributes
    ----------
    of : str
        ``"features"`` or ``"weights"``.
    drawn : mapping of float to sequence of DrawnSpectrum
        For each step size those of every replica.
    predicted : mapping of float to Spectrum
        At the steps of the sweep and of the curve.
    """

    cell: Cell
    of: str
    drawn: Mapping[float, Sequence[DrawnSpectrum]]
    predicted: Mapping[float, Spectrum]

    def simulated(self, count: int | None = None) -> list[Spectrum]:
        """The replicas of each step size together, with so many outliers or those of the median draw."""
        setting = self.cell.problem, self.cell.sizes
        return [
            spectrum_of(draws, *setting, step, self.of, count) for step, draws in self.drawn.items() if draws
        ]


@dataclass(frozen=True)
class DistanceResult:
    """Distances of the features from their approximations for a problem and size, by step size."""

    cell: Cell
    found: Mapping[float, Distances]


@dataclass(frozen=True)
class Results:
    """An experiment as far as it has been computed."""

    experiment: Experiment
    points: tuple[Point, ...]
    simulated: tuple[Outcome, ...]
    predicted: tuple[Predicted, ...]
    expected_replicas: int
    missing: int
    provenance: tuple[Mapping[str, Any], ...]
    failures: tuple[tuple[str, str], ...] = ()
    spectra: tuple[SpectrumResult, ...] = ()
    distances: tuple[DistanceResult, ...] = ()

    def rows(self) -> list[dict[str, Any]]:
        """One flat row for each point and source: what is swept, problem, sizes, then the numbers."""
        sources = [("simulation", outcome) for outcome in self.simulated]
        sources += [(entry.label, outcome) for entry in self.predicted for outcome in entry.points]
        coordinates = {point.identity: point.coordinates for point in self.points}
        rows = []
        for label, outcome in sources:
            described = {k: v for k, v in outcome.problem.to_dict().items() if k != "centred"}
            for row in outcome.rows():
                swept = coordinates.get(identity_of(outcome, row))
                if swept is None:
                    continue
                extra = {"replicas": outcome.details["replicas"]} if label == "simulation" else {}
                rows.append(
                    {"source": label, **described, **outcome.sizes.to_dict(), **swept, **extra, **row}
                )
        return rows

    def agreement(self) -> list[dict[str, Any]]:
        """For each theory and quantity: how many curves agree, and median and largest distance of the points.

        ``words`` counts the curves by "agrees", "finite-size" and "disagrees", ``curves`` has the p-value and
        degrees of freedom of each. Distances are those of normal variables with the p-values of Student's t;
        `relative` is the largest difference as a share of the predicted value. Spikes of spectra are compared
        with the predicted ones, and Gaussian equivalents with the spiked features that they stand for, pair by
        pair on the same draws.
        """
        found = []
        names = self._curve_names()
        keys = {point.identity: tuple(point.coordinates[name] for name in names) for point in self.points}
        for entry in self.predicted:
            # Random features are drawn beside networks for what a step does, not as a theory of it.
            if entry.theory.name == "random_features" and any(point.step_size for point in self.points):
                continue
            for quantity in self.experiment.compare:
                columns = [
                    column
                    for simulated, predicted in _matched(self.simulated, entry.points)
                    if quantity in simulated.stderr and quantity in predicted.values
                    for column in _columns(simulated, predicted, quantity, keys)
                ]
                found += _agreement(entry.label, quantity, columns, names)
        for result in self.spectra:
            found += _spike_agreement(result)
        if self.experiment.simulation is not None and "gaussian" in self.experiment.simulation.extras:
            found += _gaussian_agreement(self.simulated)
        return found

    def main_agreement(self) -> list[dict[str, Any]]:
        """The entries that sum an experiment up: errors against the unified theory, or the first there is."""
        entries = [e for e in self.agreement() if not e["theory"].startswith("Gaussian")]
        theories = [entry["theory"] for entry in entries]
        chosen = "unified" if "unified" in theories else next(iter(theories), None)
        return [e for e in entries if e["theory"] == chosen and "gain" not in e["quantity"]]

    def _curve_names(self) -> list[str]:
        """Swept names that tell one curve from another: all but the horizontal axis and what is zipped with it."""
        axes = self.experiment.sweep.axes()
        asked = [section.x for section in self.experiment.figure if section.x]
        candidates = [*asked, "step_exponent", "step_size"]
        varied = [name for name in candidates if len(axes.get(name, ())) > 1]
        x = varied[0] if varied else max(axes, key=lambda name: len(axes[name]))
        along = {x}.union(*(group for group in self.experiment.sweep.zip if x in group))
        return [name for name, values in axes.items() if name not in along and len(values) > 1]


@dataclass(frozen=True)
class _Column:
    """One point of a curve: its replicas, what was predicted, and the curve it belongs to."""

    curve: tuple[Any, ...]
    samples: Array
    predicted: float
    bar: float = 0.0
    scale: float = math.nan

    @property
    def distance(self) -> float:
        """As a normal distance; NaN where it has no spread."""
        stderr = float(self.samples.std(ddof=1)) / math.sqrt(len(self.samples))
        difference = float(self.samples.mean()) - self.predicted
        if stderr <= 0:
            return math.nan if difference else 0.0
        return float(normal_distances(np.array(difference / stderr), len(self.samples) - 1))

    @property
    def share(self) -> float:
        """Difference as a share of the scale."""
        difference = float(self.samples.mean()) - self.predicted
        return abs(difference) / self.scale if self.scale > 0 else math.nan


def _agreement(
    theory: str, quantity: str, columns: Sequence[_Column], names: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Words of the curves, and median and largest of distances and shares; nothing where none is known."""
    known = [abs(column.distance) for column in columns if math.isfinite(column.distance)]
    shares = [column.share for column in columns if math.isfinite(column.share)]
    if not known:
        return []
    curves = []
    for key in dict.fromkeys(column.curve for column in columns):
        own = [column for column in columns if column.curve == key]
        # Points of a curve share the draws of a replica; where some have more of them, those all have count.
        replicas = min(len(column.samples) for column in own)
        found = curve_agreement(
            np.column_stack([column.samples[:replicas] for column in own]),
            np.array([column.predicted for column in own]),
            np.array([column.bar for column in own]),
        )
        if found is not None:
            curves.append(
                {
                    "curve": dict(zip(names, key, strict=False)),
                    "word": found.word,
                    "p_value": found.p_value,
                    "degrees_of_freedom": list(found.degrees_of_freedom),
                    "points": found.points,
                }
            )
    return [
        {
            "theory": theory,
            "quantity": quantity,
            "points": len(known),
            "median": float(np.median(known)),
            "largest": max(known),
            "relative": max(shares, default=math.nan),
            "words": {word: sum(curve["word"] == word for curve in curves) for word in WORDS},
            "curves": curves,
        }
    ]


def _spike_agreement(result: SpectrumResult) -> list[dict[str, Any]]:
    """Singular values outside the bulk, and the overlap that is predicted to be each one's largest."""
    values: dict[int, list[_Column]] = {}
    overlaps: dict[int, list[_Column]] = {}
    for step, entries in result.drawn.items():
        predicted = result.predicted.get(step)
        if predicted is None or len(entries) < 2:
            continue
        for place, outlier in enumerate(predicted.outliers[:FOLLOWED]):
            top = outlier.singular_value
            drawn = np.array([math.sqrt(entry.eigenvalues[place]) for entry in entries])
            values.setdefault(place, []).append(_Column((), drawn, top, scale=top))
            known = {n: x for n, x in outlier.overlaps.items() if n in entries[0].overlaps[place]}
            name, share = max(known.items(), key=lambda pair: pair[1])
            shares = np.array([entry.overlaps[place][name] for entry in entries])
            overlaps.setdefault(place, []).append(_Column((), shares, share, scale=share))
    found = []
    for place in values:
        found += _agreement("predicted spectrum", f"spike {place + 1}: singular value", values[place])
        found += _agreement("predicted spectrum", f"spike {place + 1}: overlap", overlaps[place])
    return found


def _gaussian_agreement(simulated: Sequence[Outcome]) -> list[dict[str, Any]]:
    found = []
    for spikes in SPIKES:
        for quantity in ("train_error", "test_error"):
            columns = []
            for place, outcome in enumerate(simulated):
                samples = outcome.details["samples"]
                pair = [samples.get(f"{kind}{spikes}_{quantity}") for kind in ("gaussian", "spiked")]
                if pair[0] is not None and pair[1] is not None and len(pair[0]) > 1:
                    means = pair[1].mean(axis=0)
                    # Differences on the same draws, about the mean that they should have.
                    paired = pair[0] - pair[1] + means
                    columns += [
                        _Column((place,), paired[:, i, j], float(means[i, j]), scale=float(means[i, j]))
                        for i, j in np.ndindex(means.shape)
                    ]
            found += _agreement(f"Gaussian equivalent of F_{spikes}", quantity, columns)
    return found


def identity_of(outcome: Outcome, row: Mapping[str, Any]) -> Identity:
    """The identity of the point that a row of a cell's outcome belongs to."""
    # All rows of a cell have the same later steps.
    later = tuple(outcome.next_step_sizes[0].tolist())
    return (outcome.problem.key, outcome.sizes, later, row["step_size"], row["ridge"])


def _matched(left: Sequence[Outcome], right: Sequence[Outcome]) -> Iterator[tuple[Outcome, Outcome]]:
    """Outcomes for the same problem, sizes, steps and ridges."""
    known = {_grid_key(outcome): outcome for outcome in right}
    for outcome in left:
        if _grid_key(outcome) in known:
            yield outcome, known[_grid_key(outcome)]


def _grid_key(outcome: Outcome) -> tuple[Any, ...]:
    return (outcome.problem.key, outcome.sizes, outcome.schedule.tobytes(), outcome.ridges.tobytes())


def _columns(
    simulated: Outcome, predicted: Outcome, quantity: str, keys: Mapping[Identity, tuple[Any, ...]]
) -> Iterator[_Column]:
    """The points of a grid, each with the curve it belongs to."""
    from firststep.compare import Comparison

    comparison = Comparison(simulated, {"theory": predicted})
    samples = comparison.samples(quantity)
    if samples is None:
        return
    means, bars = samples.mean(axis=0), comparison.bars(quantity)
    expected = means - comparison.differences(quantity)
    # A gain's difference is judged by the error it is a gain in: near no step the gain itself is 0.
    scale = np.abs(np.broadcast_to(predicted.values[quantity.replace("gain", "error")], means.shape))
    for i, j in np.ndindex(means.shape):
        row = {"step_size": float(simulated.step_sizes[i]), "ridge": float(simulated.ridges[j])}
        key = keys.get(identity_of(simulated, row))
        if key is not None:
            values = float(expected[i, j]), float(bars[i, j]), float(scale[i, j])
            yield _Column(key, samples[:, i, j], *values)


def simulated_outcome(
    store: Store, cell: Cell, settings: SimulationSection, replicas: Sequence[int]
) -> tuple[list[Outcome], int]:
    """Mean and standard error over the replicas that are complete, for each grid of a cell.

    Also the number of points that are missing.
    """
    wanted = parts_of(settings.extras)
    stored = [store.parts(simulation_spec(cell, settings, replica)) for replica in replicas]
    outcomes, missing = [], 0
    for steps, ridges in grids(cell.pairs):
        complete = []
        for parts in stored:
            lacking = parts.lacking(wanted, steps, ridges)
            missing += lacking
            if not lacking:
                tables = {part: parts.table(part, steps, ridges) for part in wanted}
                complete.append(Measured.from_tables(tables))
        if complete:
            means = Averages.of(complete)
            details = {"replicas": len(complete), "seed": settings.seed, "dtype": settings.dtype}
            further = {"stderr": means.stderr, "details": details | means.details}
            outcomes.append(_outcome(cell, steps, ridges, "simulation", means.values, **further))
    return outcomes, missing


def _outcome(
    cell: Cell,
    steps: Sequence[float],
    ridges: Sequence[float],
    source: str,
    values: Mapping[str, Array],
    **further: Any,
) -> Outcome:
    """Values of a cell at a grid of first steps and ridges."""
    later = np.tile(np.array(cell.next_steps, dtype=float), (len(steps), 1))
    return Outcome(
        cell.problem,
        cell.sizes,
        np.array(steps),
        np.array(ridges),
        source,
        values,
        next_step_sizes=later,
        **further,
    )


def predicted_outcomes(
    store: Store, cells: Sequence[Cell], theory: TheorySection
) -> tuple[list[Outcome], int]:
    """A theory's outcomes as far as they are stored, and the number of points that are missing."""
    outcomes, missing = [], 0
    for cell in cells:
        stored = store.parts(theory_spec(cell, theory.name, theory.options))
        for steps, ridges in grids(cell.pairs):
            lacking = stored.lacking(["theory"], steps, ridges)
            missing += lacking
            if not lacking:
                table = stored.table("theory", steps, ridges)
                outcomes.append(_outcome(cell, steps, ridges, theory.name, table))
    return outcomes, missing


def replicas_wanted(store: Store, cell: Cell, settings: SimulationSection) -> int:
    """Replicas that a cell needs as far as the store can tell; grows until the target is met.

    The decision after k replicas looks at the first k only, so it is the same however they were computed.
    """
    count = settings.replicas
    if settings.target_stderr is None or settings.max_replicas is None:
        return count
    while count < settings.max_replicas:
        outcomes, missing = simulated_outcome(store, cell, settings, range(count))
        if missing or not outcomes:
            return count
        if settings.target_quantity not in outcomes[0].stderr:
            raise ValueError(
                f"target_quantity {settings.target_quantity!r} is not simulated; there are "
                f"{', '.join(outcomes[0].stderr)}"
            )
        worst = max(float(np.max(outcome.stderr[settings.target_quantity])) for outcome in outcomes)
        if worst <= settings.target_stderr:
            return count
        # At most doubled, because the standard error of a few replicas is itself uncertain.
        wanted = math.ceil(count * (worst / settings.target_stderr) ** 2)
        count = min(settings.max_replicas, max(count + 1, min(wanted, 2 * count)))
    return count


def _spectra(store: Store, experiment: Experiment) -> tuple[list[SpectrumResult], list[DistanceResult], int]:
    """Spectra and distances as far as they are stored, and the number of those that are missing."""
    settings = experiment.spectra
    if settings is None:
        return [], [], 0
    spectra, distances, missing = [], [], 0
    finer = {cell.key: cell for cell in spectra_cells(experiment)}
    for cell in cells_of(expand(experiment)):
        for of in settings.of:
            specs = [spectrum_spec(cell, of, settings, replica) for replica in range(settings.replicas)]
            stored = [_arrays_by_step(store, spec, of) for spec in specs]
            drawn = {step: [arrays[step] for arrays in stored if step in arrays] for step in steps_of(cell)}
            missing += sum(len(specs) - len(entries) for entries in drawn.values())
            if of == "distances":
                distances.append(DistanceResult(cell, _distances(drawn)))
                continue
            known = _arrays_by_step(store, predicted_spectrum_spec(cell, of), of)
            wanted = steps_of(finer[cell.key])
            predicted = {
                step: Spectrum.from_arrays(known[step], cell.problem, cell.sizes, step, of)
                for step in wanted
                if step in known
            }
            missing += len(wanted) - len(predicted)
            draws = {step: [DrawnSpectrum.from_arrays(one) for one in all_] for step, all_ in drawn.items()}
            spectra.append(SpectrumResult(cell, of, draws, predicted))
    return spectra, distances, missing


def _distances(drawn: Mapping[float, Sequence[Mapping[str, Any]]]) -> dict[float, Distances]:
    names = tuple(f"spiked{count}" for count in SPIKES)
    return {
        step: Distances.of(names, np.stack([entry["distances"][None] for entry in entries]))
        for step, entries in drawn.items()
        if entries
    }


def _failed_predictions(
    experiment: Experiment, known: Mapping[str, tuple[str, str]]
) -> list[tuple[str, str]]:
    settings = experiment.spectra
    names = [
        f"{subject_key(predicted_spectrum_spec(cell, of))} {step!r}"
        for of in (settings.of if settings is not None else ())
        for cell in spectra_cells(experiment)
        for step in steps_of(cell)
    ]
    return [known[name] for name in names if name in known]


def _arrays_by_step(store: Store, spec: Mapping[str, Any], of: str) -> dict[float, dict[str, Any]]:
    """Arrays of a subject for each step size that is complete."""
    by_step: dict[float, dict[str, Any]] = {}
    for (name, step), array in store.arrays(spec).items():
        by_step.setdefault(step, {})[name] = array
    return {step: arrays for step, arrays in by_step.items() if MARKS[of] in arrays}


def collect(store: Store, experiment: Experiment) -> Results:
    """Everything that the store holds of an experiment."""
    points = expand(experiment)
    cells = cells_of(points)
    simulated: list[Outcome] = []
    missing = expected = 0
    origins: dict[str, Mapping[str, Any]] = {}
    known = store.failures()
    failures: list[tuple[str, str]] = []
    if experiment.simulation is not None:
        settings = experiment.simulation
        for cell in cells:
            wanted = replicas_wanted(store, cell, settings)
            expected = max(expected, wanted)
            outcomes, lacking = simulated_outcome(store, cell, settings, range(wanted))
            simulated += outcomes
            missing += lacking
            if lacking and known:
                tasks = missing_tasks(store, cell, settings, range(wanted))
                failures += [known[task.key] for task in tasks if task.key in known]
        for origin in store.provenance(simulation_spec(cells[0], settings, 0)):
            origins[str(origin)] = origin
    predicted = []
    for theory in experiment.theory:
        asked = cells_of(theory_points(experiment, theory))
        at_points, lacking = predicted_outcomes(store, asked, theory)
        along, more = (at_points, 0)
        if theory.curve:
            along, more = predicted_outcomes(
                store, cells_of(theory_points(experiment, theory, theory.curve)), theory
            )
        predicted.append(Predicted(theory, tuple(at_points), tuple(along)))
        missing += lacking + more
        if lacking + more and known:
            specs = (
                theory_spec(cell, theory.name, theory.options) for cell in theory_cells(experiment, theory)
            )
            failures += [known[key] for key in map(subject_key, specs) if key in known]
    spectra, distances, lacking = _spectra(store, experiment)
    missing += lacking
    if lacking and known and experiment.spectra is not None:
        waiting = (t for cell in cells for t in missing_spectra(store, cell, experiment.spectra))
        failures += [known[task.key] for task in waiting if task.key in known]
        failures += _failed_predictions(experiment, known)
    return Results(
        experiment,
        points,
        tuple(simulated),
        tuple(predicted),
        expected,
        missing,
        tuple(origins.values()),
        tuple(failures),
        tuple(spectra),
        tuple(distances),
    )
