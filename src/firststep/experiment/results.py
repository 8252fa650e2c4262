"""What a store holds of an experiment: outcomes, rows and the distance between theory and simulation."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from firststep.experiment.points import (
    Cell,
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
    theory_spec,
)
from firststep.experiment.schema import Experiment, SimulationSection, TheorySection
from firststep.experiment.work import SPIKES
from firststep.gaussian import Array
from firststep.problem import Outcome
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
        ``"features"``, ``"weights"`` or ``"distances"``.
    drawn : mapping of float to list of mapping
        For each step size the arrays of every replica: ``eigenvalues`` in descending order, ``found`` (number
        of outliers, edge), ``outliers``, ``overlaps`` (outlier, name in `OVERLAPS`), or ``distances``.
    predicted : mapping of float to mapping
        For each step size ``x``, ``density``, ``edges`` (lower, upper, atom), ``outliers`` and ``overlaps``.
    """

    cell: Cell
    of: str
    drawn: Mapping[float, list[dict[str, Array]]]
    predicted: Mapping[float, dict[str, Array]]


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

    def rows(self) -> list[dict[str, Any]]:
        """One flat row for each point and source: what is swept, problem, sizes, then the numbers."""
        sources = [("simulation", outcome) for outcome in self.simulated]
        sources += [(entry.label, outcome) for entry in self.predicted for outcome in entry.points]
        coordinates = {_identity(point): point.coordinates for point in self.points}
        rows = []
        for label, outcome in sources:
            described = {k: v for k, v in outcome.problem.to_dict().items() if k != "centred"}
            for row in outcome.rows():
                pair = (outcome.problem.key, outcome.sizes, row["step_size"], row["ridge"])
                swept = coordinates.get(pair)
                if swept is None:
                    continue
                extra = {"replicas": outcome.details["replicas"]} if label == "simulation" else {}
                rows.append(
                    {"source": label, **described, **outcome.sizes.to_dict(), **swept, **extra, **row}
                )
        return rows

    def agreement(self) -> list[dict[str, Any]]:
        """For each theory and quantity: points compared, and median and largest distance.

        Distances are in standard errors of the simulated mean; `relative` is the largest difference as a
        share of the predicted value. Spikes of spectra are compared with the predicted ones, and Gaussian
        equivalents with the spiked features that they stand for, pair by pair on the same draws.
        """
        found = []
        for entry in self.predicted:
            # Random features are drawn beside networks for what a step does, not as a theory of it.
            if entry.theory.name == "random_features" and any(point.step_size for point in self.points):
                continue
            for quantity in self.experiment.compare:
                pairs = [
                    _distances(simulated, predicted, quantity)
                    for simulated, predicted in _matched(self.simulated, entry.points)
                    if quantity in simulated.stderr and quantity in predicted.values
                ]
                found += _agreement(entry.label, quantity, pairs)
        for result in self.spectra:
            found += _spike_agreement(result)
        if self.experiment.simulation is not None and "gaussian" in self.experiment.simulation.extras:
            found += _gaussian_agreement(self.simulated)
        return found


def _agreement(theory: str, quantity: str, pairs: Sequence[tuple[Any, Any]]) -> list[dict[str, Any]]:
    """Median and largest of distances and relative differences, or nothing where none is known."""
    known = [abs(z) for distances, _ in pairs for z in np.ravel(distances) if math.isfinite(z)]
    shares = [abs(x) for _, relative in pairs for x in np.ravel(relative) if math.isfinite(x)]
    if not known:
        return []
    return [
        {
            "theory": theory,
            "quantity": quantity,
            "points": len(known),
            "median": float(np.median(known)),
            "largest": max(known),
            "relative": max(shares, default=math.nan),
        }
    ]


def _in_stderr(samples: Any, expected: Any) -> tuple[Any, Any]:
    """Distance of the mean over the first axis in standard errors, and as a share of what is expected."""
    samples = np.asarray(samples, float)
    difference = samples.mean(axis=0) - expected
    with np.errstate(divide="ignore", invalid="ignore"):
        stderr = samples.std(axis=0, ddof=1) / math.sqrt(len(samples))
        return difference / stderr, difference / expected


def _spike_agreement(result: SpectrumResult) -> list[dict[str, Any]]:
    """Singular values outside the bulk, and the overlap that is predicted to be each one's largest."""
    values: dict[int, list[tuple[Any, Any]]] = {}
    overlaps: dict[int, list[tuple[Any, Any]]] = {}
    for step, entries in result.drawn.items():
        predicted = result.predicted.get(step)
        if predicted is None or len(entries) < 2:
            continue
        for place, eigenvalue in enumerate(predicted["outliers"]):
            drawn = [math.sqrt(entry["outliers"][place]) for entry in entries]
            values.setdefault(place, []).append(_in_stderr(drawn, math.sqrt(eigenvalue)))
            column = int(np.nanargmax(predicted["overlaps"][place]))
            shares = [entry["overlaps"][place, column] for entry in entries]
            overlaps.setdefault(place, []).append(_in_stderr(shares, predicted["overlaps"][place, column]))
    found = []
    for place in values:
        found += _agreement("predicted spectrum", f"spike {place + 1}: singular value", values[place])
        found += _agreement("predicted spectrum", f"spike {place + 1}: overlap", overlaps[place])
    return found


def _gaussian_agreement(simulated: Sequence[Outcome]) -> list[dict[str, Any]]:
    found = []
    for spikes in SPIKES:
        for quantity in ("train_error", "test_error"):
            pairs = []
            for outcome in simulated:
                samples = outcome.details["samples"]
                pair = [samples.get(f"{kind}{spikes}_{quantity}") for kind in ("gaussian", "spiked")]
                if pair[0] is not None and pair[1] is not None and len(pair[0]) > 1:
                    distances, _ = _in_stderr(pair[0] - pair[1], 0.0)
                    pairs.append((distances, (pair[0] - pair[1]).mean(axis=0) / pair[1].mean(axis=0)))
            found += _agreement(f"Gaussian equivalent of F_{spikes}", quantity, pairs)
    return found


def _identity(point: Point) -> tuple[Any, ...]:
    return (point.problem.key, point.sizes, point.step_size, point.ridge)


def _matched(left: Sequence[Outcome], right: Sequence[Outcome]) -> Iterator[tuple[Outcome, Outcome]]:
    """Outcomes for the same problem, sizes, steps and ridges."""
    known = {_grid_key(outcome): outcome for outcome in right}
    for outcome in left:
        if _grid_key(outcome) in known:
            yield outcome, known[_grid_key(outcome)]


def _grid_key(outcome: Outcome) -> tuple[Any, ...]:
    return (outcome.problem.key, outcome.sizes, outcome.step_sizes.tobytes(), outcome.ridges.tobytes())


def _distances(simulated: Outcome, predicted: Outcome, quantity: str) -> tuple[Any, Any]:
    from firststep.compare import Comparison

    comparison = Comparison(simulated, {"theory": predicted})
    error = quantity.replace("gain", "error")
    scale = np.abs(np.broadcast_to(predicted.values[error], comparison.distances(quantity).shape))
    # A gain's difference is judged by the error it is a gain in: near no step the gain itself is 0.
    share = np.divide(
        comparison.differences(quantity), scale, out=np.full_like(scale, np.nan), where=scale > 0
    )
    return comparison.distances(quantity).ravel(), share.ravel()


def simulated_outcome(
    store: Store, cell: Cell, settings: SimulationSection, replicas: Sequence[int]
) -> tuple[list[Outcome], int]:
    """Mean and standard error over the replicas that are complete, for each grid of a cell.

    Also the number of points that are missing.
    """
    found = [store.values(simulation_spec(cell, settings, replica)) for replica in replicas]
    names_wanted = _marks(parts_of(settings.extras))
    outcomes, missing = [], 0
    for steps, ridges in grids(cell.pairs):
        samples: list[dict[str, Any]] = []
        for values in found:
            lacking = [
                (step, ridge)
                for step in steps
                for ridge in ridges
                if not all(
                    any(n.startswith(mark) for n in values.get((step, ridge), ())) for mark in names_wanted
                )
            ]
            missing += len(lacking)
            if lacking:
                continue
            names = values[steps[0], ridges[0]]
            samples.append(
                {
                    name: np.array([[values[s, r].get(name, math.nan) for r in ridges] for s in steps])
                    for name in names
                }
            )
        if samples:
            outcomes.append(_averaged(cell, steps, ridges, samples, settings))
    return outcomes, missing


def _marks(parts: Sequence[str]) -> list[str]:
    """How the names of each part's numbers begin."""
    marks = {"network": "test_error", "linear": "linear_ridge", "weights": "weights_"}
    return [marks.get(part, part) for part in parts]


def _averaged(
    cell: Cell,
    steps: Sequence[float],
    ridges: Sequence[float],
    samples: Sequence[Mapping[str, Any]],
    settings: SimulationSection,
) -> Outcome:
    count = len(samples)
    names = [name for name in samples[0] if all(name in sample for sample in samples)]
    stacked = {name: np.stack([sample[name] for sample in samples]) for name in names}
    test_stderr = stacked.pop("test_stderr", np.zeros(1))
    values = {name: sample.mean(axis=0) for name, sample in stacked.items()}
    stderr = {}
    if count > 1:
        stderr = {name: sample.std(axis=0, ddof=1) / math.sqrt(count) for name, sample in stacked.items()}
    details = {
        "replicas": count,
        "seed": settings.seed,
        "dtype": settings.dtype,
        "test_stderr": np.sqrt((test_stderr**2).mean(axis=0) / count),
        "samples": stacked,
    }
    return Outcome(
        cell.problem, cell.sizes, np.array(steps), np.array(ridges), "simulation", values, stderr, (), details
    )


def predicted_outcomes(
    store: Store, cells: Sequence[Cell], theory: TheorySection
) -> tuple[list[Outcome], int]:
    """A theory's outcomes as far as they are stored, and the number of points that are missing."""
    outcomes, missing = [], 0
    for cell in cells:
        values = store.values(theory_spec(cell, theory.name, theory.options))
        for steps, ridges in grids(cell.pairs):
            lacking = sum((s, r) not in values for s in steps for r in ridges)
            missing += lacking
            if lacking:
                continue
            names = values[steps[0], ridges[0]]
            arrays = {
                name: np.array([[values[s, r].get(name, math.nan) for r in ridges] for s in steps])
                for name in names
            }
            outcomes.append(
                Outcome(cell.problem, cell.sizes, np.array(steps), np.array(ridges), theory.name, arrays)
            )
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


def _spectra(store: Store, experiment: Experiment) -> tuple[list[SpectrumResult], int]:
    settings = experiment.spectra
    if settings is None:
        return [], 0
    found, missing = [], 0
    finer = {(cell.problem.key, cell.sizes): cell for cell in spectra_cells(experiment)}
    for cell in cells_of(expand(experiment)):
        for of in settings.of:
            drawn: dict[float, list[dict[str, Array]]] = {step: [] for step in steps_of(cell)}
            for replica in range(settings.replicas):
                by_step = _arrays_by_step(store, spectrum_spec(cell, of, settings, replica))
                for step, entries in drawn.items():
                    if step in by_step:
                        entries.append(by_step[step])
                    else:
                        missing += 1
            predicted: dict[float, dict[str, Array]] = {}
            if of != "distances":
                known = _arrays_by_step(store, predicted_spectrum_spec(cell, of))
                wanted = steps_of(finer[cell.problem.key, cell.sizes])
                predicted = {step: known[step] for step in wanted if step in known}
                missing += len(wanted) - len(predicted)
            found.append(SpectrumResult(cell, of, drawn, predicted))
    return found, missing


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


def _arrays_by_step(store: Store, spec: Mapping[str, Any]) -> dict[float, dict[str, Array]]:
    by_step: dict[float, dict[str, Array]] = {}
    for (name, step), array in store.arrays(spec).items():
        by_step.setdefault(step, {})[name] = array
    return by_step


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
        at_points, lacking = predicted_outcomes(store, cells, theory)
        along, more = (at_points, 0)
        if theory.curve:
            along, more = predicted_outcomes(store, cells_of(expand(experiment, theory.curve)), theory)
        predicted.append(Predicted(theory, tuple(at_points), tuple(along)))
        missing += lacking + more
        if lacking + more and known:
            specs = (
                theory_spec(cell, theory.name, theory.options) for cell in theory_cells(experiment, theory)
            )
            failures += [known[key] for key in map(subject_key, specs) if key in known]
    spectra, lacking = _spectra(store, experiment)
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
    )
