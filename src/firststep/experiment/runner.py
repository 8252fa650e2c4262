"""Run an experiment into a store: theories here, replicas on a backend, nothing computed twice."""

import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

from firststep.compute.speed import multiplication_rate
from firststep.experiment.execution import (
    Backend,
    DaskBackend,
    ExecutorBackend,
    InProcessBackend,
    LocalBackend,
    execute,
    fitting_workers,
)
from firststep.experiment.points import (
    Cell,
    cells_of,
    expand,
    grids,
    missing_spectra,
    missing_tasks,
    predicted_spectrum_spec,
    spectra_cells,
    steps_of,
    theory_cells,
    theory_spec,
)
from firststep.experiment.results import Results, collect, replicas_wanted
from firststep.experiment.schema import Experiment, SimulationSection, SpectraSection, TheorySection
from firststep.experiment.work import MARKS, THEORY, Finished, Task, compute, provenance, solved
from firststep.setting import Sizes
from firststep.simulate import estimate_memory, replica_work
from firststep.store import Entry, Store, subject_key

# Below so many floating-point operations, starting processes costs more than it saves.
SMALL_WORK = 3e9
# Replicas that a plan looks up; a lookup takes some 100 microseconds.
MOST_LOOKED = 20_000
# Seconds after which a run says for which other run it waits.
WAITING_SECONDS = 2.0
# Points of a theory that are computed to learn how long the others take: on a dense curve most are told by a few.
SAMPLED_STEPS, SAMPLED_RIDGES = 25, 4


class Interrupted(Exception):
    """The run was stopped by a signal; what was finished is stored."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.number = number


@dataclass
class Progress:
    """How far a run is; given to the function that shows it."""

    total: int = 0
    done: int = 0
    failed: int = 0
    reused: int = 0
    what: str = ""
    waiting: str = ""
    started: float = field(default_factory=time.monotonic)

    @property
    def rate(self) -> float:
        """Points per second."""
        return self.done / max(time.monotonic() - self.started, 1e-9)

    @property
    def remaining(self) -> float | None:
        """Seconds left, or None before anything is known."""
        return (self.total - self.done - self.failed) / self.rate if self.done else None


@dataclass(frozen=True)
class Plan:
    """What a run would do."""

    points: int
    present: int
    replicas: int
    tasks: int
    seconds: float
    memory_per_worker: int
    failed_before: int
    theory_points: int = 0
    theory_missing: int = 0
    theory_seconds: float = 0.0


class Signals:
    """The first Ctrl-C, SIGTERM or SIGHUP, noted so that the run can end in order; a second one ends it at once."""

    def __init__(self) -> None:
        self.number: int | None = None
        self._computing = False

    def __bool__(self) -> bool:
        return self.number is not None

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note signals while the block runs; one that is ignored, as under nohup, stays so."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        names = [name for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
        wanted = [getattr(signal, name) for name in names]
        before = {
            number: signal.signal(number, self._note)
            for number in wanted
            if number == signal.SIGINT or signal.getsignal(number) is not signal.SIG_IGN
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def computing(self) -> Iterator[None]:
        """A stretch in which nothing is written: a signal ends it where it is."""
        if self:
            raise _Stop
        self._computing = True
        try:
            yield
        finally:
            self._computing = False

    def _note(self, number: int, _: object) -> None:
        if self:
            raise KeyboardInterrupt
        self.number = number
        if self._computing:
            raise _Stop


class _Stop(BaseException):
    """A signal came while something was computed; not an Exception, so that no task is blamed for it."""


@dataclass
class Survey:
    """What a store lacks of an experiment's draws, looked at replica by replica up to a limit."""

    total: int = 0
    tasks: int = 0
    lacking: int = 0
    failed: int = 0
    failed_points: int = 0
    # Replicas by what one of them costs, each with a task that stands for all.
    kinds: dict[tuple[Any, ...], tuple[Task, int]] = field(default_factory=dict)

    def add(self, task: Task, count: int = 1) -> None:
        """Count tasks like this one."""
        self.tasks += count
        self.lacking += count * task.count
        kind = (task.sizes, len(task.step_sizes), task.extras, task.spec.get("dtype"))
        self.kinds[kind] = (task, self.kinds.get(kind, (task, 0))[1] + count)

    @property
    def examples(self) -> list[Task]:
        """One task of each kind."""
        return [task for task, _ in self.kinds.values()]


def survey(experiment: Experiment, store: Store, leave: Collection[str] = ()) -> Survey:
    """Count the draws that are to do, without the tasks in `leave`.

    At most `MOST_LOOKED` replicas are looked up; all further ones count as missing, so that no plan takes minutes.
    """
    found = Survey()
    looked = 0
    for cell, settings, wanted in _wanted(experiment, store):
        first: Task | None = None
        seen = min(wanted, max(100, MOST_LOOKED - looked))
        looked += seen
        for task in _missing(store, cell, settings, range(seen)):
            first = first or task
            if task.key in leave:
                found.failed += 1
                found.failed_points += task.count
            else:
                found.add(task)
        points = len(steps_of(cell)) if isinstance(settings, SpectraSection) else len(set(cell.pairs))
        kinds = len(settings.of) if isinstance(settings, SpectraSection) else 1
        found.total += wanted * points * kinds
        if seen < wanted and first is not None:
            found.add(first, wanted - seen)
    return found


def plan(experiment: Experiment, store: Store, *, jobs: int | None = None, estimate: bool = True) -> Plan:
    """Count what is to do, without doing it.

    Parameters
    ----------
    experiment : Experiment
        From `load` or `parse`.
    store : Store
        Where its points are kept.
    jobs : int, optional
        Processes that the run would have.
    estimate : bool
        Whether to say how long it takes, for which a few points of each theory are computed.
    """
    failures = store.failures()
    found = survey(experiment, store, failures)
    theory = _survey_theory(experiment, store)
    workers = fitting_workers(found.examples, jobs) if found.tasks else 1
    seconds = _seconds(found, store) / workers if estimate else 0.0
    return Plan(
        points=found.total + theory.total,
        present=found.total - found.lacking - found.failed_points + theory.total - theory.lacking,
        replicas=0 if experiment.simulation is None else experiment.simulation.replicas,
        tasks=found.tasks + found.failed,
        seconds=seconds + (theory.seconds() if estimate else 0.0),
        memory_per_worker=max((_memory(task) for task in found.examples), default=0),
        failed_before=found.failed,
        theory_points=theory.total,
        theory_missing=theory.lacking,
        theory_seconds=theory.seconds() if estimate else 0.0,
    )


def _memory(task: Task) -> int:
    return estimate_memory(task.sizes, dtype=task.spec.get("dtype", "float64"), extras=task.extras)


def _seconds(found: Survey, store: Store) -> float:
    """Time of the draws on one worker: as long as those of the same sizes took, or by the work in them."""
    known: dict[Sizes, list[float]] = {}
    rate, seconds = None, 0.0
    for task, count in found.kinds.values():
        if task.sizes not in known:
            known[task.sizes] = store.seconds("simulation", task.sizes.to_dict())
        if known[task.sizes]:
            seconds += count * float(np.median(known[task.sizes]))
        else:
            # Half of what products reach: the rest of a replica is slower.
            rate = rate or 0.5 * multiplication_rate(384, 3, threads=1)
            seconds += count * _work(task) / rate
    return seconds


@dataclass
class TheorySurvey:
    """Solutions of theories that a store lacks, and a small sample of them to be timed."""

    total: int = 0
    lacking: int = 0
    # For each theory and kind of spectrum: something that computes a few points, how many, and how many lack.
    samples: list[tuple[Callable[[], object], int, int]] = field(default_factory=list)
    _seconds: float | None = None

    def seconds(self) -> float:
        """Time of what lacks, at the rate of the samples."""
        if self._seconds is None:
            self._seconds = 0.0
            for sample, count, lacking in self.samples:
                started = time.perf_counter()
                with suppress(ArithmeticError, RuntimeError, ValueError, TypeError):
                    sample()
                    # Once more: what is only made once is not what a thousand points wait for.
                    first, started = time.perf_counter() - started, time.perf_counter()
                    sample()
                    rate = (time.perf_counter() - started) / count
                    self._seconds += first + rate * max(0, lacking - count)
        return self._seconds


def _survey_theory(experiment: Experiment, store: Store) -> TheorySurvey:
    found = TheorySurvey()
    for theory in experiment.theory:
        lacking, hardest = 0, None
        for cell in theory_cells(experiment, theory):
            wanted = set(cell.pairs)
            missing = wanted - store.present(theory_spec(cell, theory.name, theory.options), "theory")
            found.total += len(wanted)
            lacking += len(missing)
            if missing and hardest is None:
                hardest = (cell, sorted(missing))
        if hardest is not None:
            cell, pairs = hardest
            steps, ridges = max(grids(pairs), key=lambda grid: len(grid[0]) * len(grid[1]))
            steps = steps[:: max(1, len(steps) // SAMPLED_STEPS)]
            spec = theory_spec(cell, theory.name, theory.options)
            some = ridges[:SAMPLED_RIDGES]
            task = Task(spec, cell.problem, cell.sizes, steps, some, (), THEORY, cell.next_steps)
            sample = partial(solved, task)
            found.samples.append((sample, task.count, lacking))
        found.lacking += lacking
    _survey_spectra(experiment, store, found)
    return found


def _survey_spectra(experiment: Experiment, store: Store, found: TheorySurvey) -> None:
    if experiment.spectra is None:
        return
    from firststep.theory.spectra.spectrum import predict_spectrum

    for of in experiment.spectra.of:
        if of == "distances":
            continue
        lacking, sample = 0, None
        for cell in spectra_cells(experiment):
            there = store.array_names(predicted_spectrum_spec(cell, of))
            steps = [step for step in steps_of(cell) if (MARKS[of], step) not in there]
            found.total += len(steps_of(cell))
            lacking += len(steps)
            if steps and sample is None:
                middle = steps[len(steps) // 2]
                sample = partial(predict_spectrum, cell.problem, cell.sizes, middle, of=of)
        found.lacking += lacking
        if sample is not None:
            found.samples.append((sample, 1, lacking))


def _work(task: Task) -> float:
    """Floating-point operations of a task, roughly."""
    return replica_work(task.sizes, len(task.step_sizes), len(task.step_sizes) if task.next_steps else 0)


def _wanted(
    experiment: Experiment, store: Store
) -> Iterator[tuple[Cell, SimulationSection | SpectraSection, int]]:
    """Cells with how they are to be drawn and how often, spectra first."""
    cells = cells_of(expand(experiment))
    if experiment.spectra is not None:
        for cell in cells:
            yield cell, experiment.spectra, experiment.spectra.replicas
    if experiment.simulation is not None:
        for cell in cells:
            yield cell, experiment.simulation, replicas_wanted(store, cell, experiment.simulation)


def _missing(
    store: Store, cell: Cell, settings: SimulationSection | SpectraSection, replicas: range
) -> Iterator[Task]:
    if isinstance(settings, SpectraSection):
        return missing_spectra(store, cell, settings, replicas)
    return missing_tasks(store, cell, settings, replicas)


def _tasks(experiment: Experiment, store: Store) -> Iterator[Task]:
    """What is to be drawn, one task at a time: a million of them would not fit."""
    for cell, settings, wanted in _wanted(experiment, store):
        yield from _missing(store, cell, settings, range(wanted))


def run(
    experiment: Experiment,
    store: Store,
    *,
    name: str = "experiment",
    jobs: int | None = None,
    scheduler: str | None = None,
    executor: Executor | None = None,
    retry_failed: bool = False,
    progress: Callable[[Progress], None] | None = None,
    document: str = "",
) -> Results:
    """Compute what the store does not have of an experiment, and give back everything that it has.

    Parameters
    ----------
    experiment : Experiment
        From `load` or `parse`.
    store : Store
        Where points are kept; two runs may use it at once.
    name : str
        Under which the store remembers the experiment.
    jobs : int, optional
        Processes on this machine, each with one BLAS thread; one for each core unless given. 1 computes here.
    scheduler : str, optional
        Address of a Dask scheduler, or ``"local"`` for a Dask cluster on this machine.
    executor : concurrent.futures.Executor, optional
        Where tasks run instead.
    retry_failed : bool
        Whether to try tasks again that have failed before.
    progress : callable, optional
        Called with a `Progress` after every change.
    document : str
        Text to remember the experiment by, so that a report can be made from the store alone.

    Raises
    ------
    Interrupted
        After Ctrl-C or SIGTERM; what was finished is stored, and running again goes on from there.
    """
    store.remember(experiment.key, name, document)
    signals = Signals()
    with suppress(_Stop), signals.noted():
        state = Progress()
        show = progress or (lambda _: None)
        place = _Place(jobs, scheduler, executor)
        _predict_all(experiment, store, state, show, signals, place)
        _predict_spectra(experiment, store, signals)
        _simulate_all(experiment, store, state, show, signals, place, retry_failed)
    store.check_place()
    if signals.number is not None:
        raise Interrupted(signals.number)
    return collect(store, experiment)


def _predict_all(
    experiment: Experiment,
    store: Store,
    state: Progress,
    show: Callable[[Progress], None],
    signals: Signals,
    place: "_Place",
) -> None:
    """Theories are quick: the driver computes them itself, unless there is a cluster or an executor to do it."""
    for theory in experiment.theory:
        with signals.computing():
            cells = theory_cells(experiment, theory)
        tasks = _theory_tasks(store, theory, cells)
        if place.elsewhere:
            _predict_elsewhere(theory, tasks, store, state, show, signals, place)
            continue
        failed: set[str] = set()
        for task in tasks:
            if signals:
                return
            if task.key in failed:
                continue
            state.what = f"{theory.name} theory"
            show(state)
            try:
                with signals.computing():
                    finished = compute(task)
            except (ArithmeticError, RuntimeError, ValueError, TypeError) as error:
                store.fail(task.key, task.label, f"{type(error).__name__}: {error}")
                failed.add(task.key)
            else:
                store.add_all([written(task, finished)])
                store.forgive([task.key])


def _theory_tasks(store: Store, theory: TheorySection, cells: Sequence[Cell]) -> Iterator[Task]:
    """What the store lacks of a theory, a task for each grid."""
    for cell in cells:
        spec = theory_spec(cell, theory.name, theory.options)
        there = store.present(spec, "theory")
        lacking = [pair for pair in dict.fromkeys(cell.pairs) if pair not in there]
        for steps, ridges in grids(lacking):
            yield Task(spec, cell.problem, cell.sizes, steps, ridges, (), THEORY, cell.next_steps)


def _predict_elsewhere(
    theory: TheorySection,
    tasks: Iterator[Task],
    store: Store,
    state: Progress,
    show: Callable[[Progress], None],
    signals: Signals,
    place: "_Place",
) -> None:
    """A theory's tasks on the workers of the draws."""
    first = next(tasks, None)
    if first is None:
        return
    state.what = f"{theory.name} theory"
    show(state)
    backend, interrupted = place.open(Survey(), signals), True
    try:
        _Round(store, backend, state, show, signals, set()).run(_guarded(chain([first], tasks), signals))
        interrupted = bool(signals)
    finally:
        backend.close(now=interrupted)


def written(task: Task, finished: Finished) -> Entry:
    """What a finished task adds to the store."""
    return Entry(
        task.spec,
        finished.tables,
        task.step_sizes,
        task.ridges,
        arrays=finished.arrays,
        provenance=finished.provenance,
        seconds=finished.seconds,
    )


def _predict_spectra(experiment: Experiment, store: Store, signals: Signals) -> None:
    """Densities, outliers and overlaps at the steps of the sweep and of the curve."""
    if experiment.spectra is None:
        return
    from firststep.theory.spectra.spectrum import predict_spectrum

    for of in experiment.spectra.of:
        if of == "distances":
            continue
        with signals.computing():
            cells = spectra_cells(experiment)
        for cell in cells:
            spec = predicted_spectrum_spec(cell, of)
            there = store.array_names(spec)
            for step in steps_of(cell):
                if signals or (MARKS[of], step) in there:
                    continue
                task, started = f"{subject_key(spec)} {step!r}", time.perf_counter()
                try:
                    later: dict[str, Any] = (
                        {"next_step_sizes": list(cell.next_steps)} if cell.next_steps else {}
                    )
                    with signals.computing():
                        found = predict_spectrum(cell.problem, cell.sizes, step, of=of, **later)
                except (ArithmeticError, RuntimeError, ValueError) as error:
                    label = f"predicted spectrum of the {of} at step size {step:g} of {cell.name}"
                    store.fail(task, label, f"{type(error).__name__}: {error}")
                    continue
                store.add_parts(
                    spec,
                    {},
                    [step],
                    [],
                    arrays={(name, step): array for name, array in found.to_arrays().items()},
                    provenance=provenance(),
                    seconds=time.perf_counter() - started,
                )
                store.forgive([task])


@dataclass(frozen=True)
class _Place:
    """Where to compute."""

    jobs: int | None
    scheduler: str | None
    executor: Executor | None

    @property
    def elsewhere(self) -> bool:
        """Whether there are workers that this run did not start."""
        return self.executor is not None or self.scheduler is not None

    def open(self, found: Survey, signals: Signals) -> Backend:
        """The backend for what is to do."""
        if self.executor is not None:
            return ExecutorBackend(self.executor)
        if self.scheduler is not None:
            return DaskBackend(self.scheduler, self.jobs)
        workers = min(fitting_workers(found.examples, self.jobs), found.tasks)
        whole = sum(count * _work(task) for task, count in found.kinds.values())
        if workers == 1 or (self.jobs is None and whole < SMALL_WORK):
            return InProcessBackend(signals.computing)
        return LocalBackend(workers)


def _simulate_all(
    experiment: Experiment,
    store: Store,
    state: Progress,
    show: Callable[[Progress], None],
    signals: Signals,
    place: _Place,
    retry_failed: bool,
) -> None:
    """Rounds of tasks, until every cell has the replicas that it needs."""
    backend: Backend | None = None
    interrupted = True
    # Tasks that are left alone: those that failed before, unless they are wanted again, and those that fail now.
    leave: set[str] = set() if retry_failed else set(store.failures())
    try:
        while not signals:
            with signals.computing():
                found = survey(experiment, store, leave)
            if not found.tasks:
                break
            backend = backend or place.open(found, signals)
            state.total = state.done + state.failed + found.lacking
            state.what = "replicas"
            show(state)
            todo = _guarded((t for t in _tasks(experiment, store) if t.key not in leave), signals)
            if not _Round(store, backend, state, show, signals, leave).run(todo):
                break
        interrupted = bool(signals)
    finally:
        if backend is not None:
            backend.close(now=interrupted)


def _guarded(tasks: Iterator[Task], signals: Signals) -> Iterator[Task]:
    """The tasks; a signal is heard while the next one is looked for."""
    while not signals:
        with signals.computing():
            task = next(tasks, None)
        if task is None:
            return
        yield task


@dataclass
class _Round:
    """One pass through what is to be drawn."""

    store: Store
    backend: Backend
    state: Progress
    show: Callable[[Progress], None]
    signals: Signals
    leave: set[str]
    offers: int = 0
    # Tasks that other runs are at.
    held: list[Task] = field(default_factory=list)

    def run(self, tasks: Iterator[Task]) -> int:
        """Draw, write and note failures; the number of tasks that there were."""
        execute(
            self._offered(tasks),
            self.backend,
            done=self._write,
            failed=self._give_up,
            claimed=self._claimed,
            stopped=lambda: bool(self.signals),
        )
        return self.offers

    def _write(self, found: Sequence[tuple[Task, Finished]]) -> None:
        """Write what came together in one transaction."""
        self.store.add_all([written(task, finished) for task, finished in found])
        self.state.done += sum(task.count for task, _ in found)
        self.show(self.state)

    def _claimed(self, tasks: Sequence[Task]) -> list[Task]:
        """Those of the tasks that no other run is at; the others are held."""
        free = self.store.claim_all([task.key for task in tasks])
        self.held += [task for task in tasks if task.key not in free]
        return [task for task in tasks if task.key in free]

    def _give_up(self, task: Task, error: BaseException) -> None:
        self.store.fail(task.key, task.label, f"{type(error).__name__}: {error}")
        self.leave.add(task.key)
        self.state.failed += task.count
        self.show(self.state)

    def _offered(self, tasks: Iterator[Task]) -> Iterator[Task | None]:
        """All tasks; then those that other runs hold, in case they are not finished, or None to wait."""
        known = self.store.failures()
        for task in tasks:
            self.offers += 1
            if known and known.pop(task.key, None) is not None:
                self.store.forgive([task.key])
            yield task
        # What was offered last is claimed before anyone looks at what others hold.
        yield None
        waiting, held = time.monotonic(), self.held
        while held and not self.signals:
            for task in list(held):
                if _is_done(self.store, task) or task.key in self.store.failures():
                    held.remove(task)
                    self.state.done += task.count
                    self.show(self.state)
                elif self.store.claim(task.key):
                    held.remove(task)
                    yield task
            if held and time.monotonic() - waiting > WAITING_SECONDS:
                self._tell(held)
            yield None
        self.state.waiting = ""

    def _tell(self, held: Sequence[Task]) -> None:
        """Say for whom the run waits."""
        holders = sorted({who for task in held if (who := self.store.holder(task.key))})
        text = f"waiting for {' and '.join(holders)}, which has {len(held)} of the tasks" if holders else ""
        if text != self.state.waiting:
            self.state.waiting = text
            self.show(self.state)


def _is_done(store: Store, task: Task) -> bool:
    if task.kind != "errors":
        return {(MARKS[task.kind], step) for step in task.step_sizes} <= store.array_names(task.spec)
    there = store.present(task.spec, "network")
    return all((step, ridge) in there for step in task.step_sizes for ridge in task.ridges)
