"""Run an experiment into a store: theories here, replicas on a backend, nothing computed twice."""

import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

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
    parts_of,
    predicted_spectrum_spec,
    spectra_cells,
    steps_of,
    theory_cells,
    theory_spec,
)
from firststep.experiment.results import Results, collect, replicas_wanted
from firststep.experiment.schema import Experiment, TheorySection
from firststep.experiment.work import Finished, Task, outlier_arrays, provenance
from firststep.problem import OutsideTheoryWarning, Sizes
from firststep.simulate import estimate_memory
from firststep.store import Store, subject_key
from firststep.theory import predict

# Below so many floating-point operations, starting processes costs more than it saves.
SMALL_WORK = 3e9


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


@contextmanager
def _signals(caught: list[int]) -> Iterator[None]:
    """Note the first Ctrl-C or SIGTERM so that the run can end in order; a second one ends it at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def note(number: int, _: object) -> None:
        if caught:
            raise KeyboardInterrupt
        caught.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def plan(experiment: Experiment, store: Store, *, jobs: int | None = None) -> Plan:
    """Count what is to do, without doing it."""
    tasks = list(_tasks(experiment, store))
    points = expand(experiment)
    replicas = 0 if experiment.simulation is None else experiment.simulation.replicas
    total = len(points) * replicas
    lacking = sum(task.count for task in tasks)
    if experiment.spectra is not None:
        steps = sum(len(steps_of(cell)) for cell in cells_of(points))
        total += steps * experiment.spectra.replicas * len(experiment.spectra.of)
    failures = store.failures()
    seconds = 0.0
    rate = None
    known: dict[Sizes, list[float]] = {}
    for task in tasks:
        if task.sizes not in known:
            known[task.sizes] = store.seconds("simulation", task.sizes.to_dict())
        if known[task.sizes]:
            seconds += float(np.median(known[task.sizes]))
        else:
            rate = rate or _speed()
            seconds += work(task.sizes, len(task.step_sizes)) / rate
    workers = fitting_workers(tasks, jobs) if tasks else 1
    need = max((estimate_memory(t.sizes, extras=t.extras) for t in tasks), default=0)
    lacking_theory = _missing_theory(experiment, store)
    return Plan(
        total + lacking_theory[1],
        total - lacking + lacking_theory[1] - lacking_theory[0],
        replicas,
        len(tasks),
        seconds / workers,
        need,
        sum(task.key in failures for task in tasks),
    )


def work(sizes: Sizes, n_steps: int) -> float:
    """Floating-point operations of a replica, roughly: products, and a Gram matrix for each step size."""
    n, d, width, n0 = sizes.n_samples, sizes.dim, sizes.width, sizes.n_step_samples
    small, large = min(n, width), max(n, width)
    products = 4.0 * (n0 + n) * d * width + 4.0 * width**2 * d
    return products + (n_steps + 1) * (small**2 * (large + 1.5 * small) + 60.0 * width**2)


def _speed() -> float:
    """Floating-point operations per second of one thread, measured on the spot and taken at half."""
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    size = 384
    matrix = np.full((size, size), 0.5)
    with threadpool_limits(1):
        matrix @ matrix
        started = time.perf_counter()
        for _ in range(3):
            matrix @ matrix
        spent = time.perf_counter() - started
    return 0.5 * 3 * 2 * size**3 / spent


def _tasks(experiment: Experiment, store: Store) -> Iterator[Task]:
    cells = cells_of(expand(experiment))
    if experiment.spectra is not None:
        for cell in cells:
            yield from missing_spectra(store, cell, experiment.spectra)
    if experiment.simulation is None:
        return
    for cell in cells:
        wanted = replicas_wanted(store, cell, experiment.simulation)
        yield from missing_tasks(store, cell, experiment.simulation, range(wanted))


def _missing_theory(experiment: Experiment, store: Store) -> tuple[int, int]:
    """Points of theories that are missing, and all of them."""
    missing = total = 0
    for theory in experiment.theory:
        for cell in theory_cells(experiment, theory):
            wanted = set(cell.pairs)
            total += len(wanted)
            missing += len(wanted - store.present(theory_spec(cell, theory.name, theory.options), "theory"))
    return missing, total


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
    caught: list[int] = []
    with _signals(caught):
        state = Progress()
        show = progress or (lambda _: None)
        _predict_all(experiment, store, state, show, caught)
        _predict_spectra(experiment, store, caught)
        _simulate_all(experiment, store, state, show, caught, _Place(jobs, scheduler, executor), retry_failed)
    if caught:
        raise Interrupted(caught[0])
    return collect(store, experiment)


def _predict_all(
    experiment: Experiment, store: Store, state: Progress, show: Callable[[Progress], None], caught: list[int]
) -> None:
    """Theories are quick: the driver computes them itself."""
    for theory in experiment.theory:
        for cell in theory_cells(experiment, theory):
            if caught:
                return
            spec = theory_spec(cell, theory.name, theory.options)
            there = store.present(spec, "theory")
            lacking = [pair for pair in dict.fromkeys(cell.pairs) if pair not in there]
            if not lacking:
                continue
            state.what = f"{theory.name} theory"
            show(state)
            task = subject_key(spec)
            try:
                for steps, ridges in grids(lacking):
                    _predict(store, cell, theory, spec, steps, ridges)
            except (ArithmeticError, RuntimeError, ValueError, TypeError) as error:
                label = f"{theory.name} theory of {cell.name}"
                store.fail(task, label, f"{type(error).__name__}: {error}")
            else:
                store.forgive([task])


def _predict_spectra(experiment: Experiment, store: Store, caught: list[int]) -> None:
    """Densities, outliers and overlaps at the steps of the sweep and of the curve."""
    if experiment.spectra is None:
        return
    from firststep.theory.spectrum import predict_spectrum

    for of in experiment.spectra.of:
        if of == "distances":
            continue
        for cell in spectra_cells(experiment):
            spec = predicted_spectrum_spec(cell, of)
            there = store.array_names(spec)
            for step in steps_of(cell):
                if caught or ("outliers", step) in there:
                    continue
                task, started = f"{subject_key(spec)} {step!r}", time.perf_counter()
                try:
                    found = predict_spectrum(cell.problem, cell.sizes, step, of=of)
                except (ArithmeticError, RuntimeError, ValueError) as error:
                    label = f"predicted spectrum of the {of} at step size {step:g} of {cell.name}"
                    store.fail(task, label, f"{type(error).__name__}: {error}")
                    continue
                arrays = outlier_arrays(found.outliers, of, step)
                arrays["x", step], arrays["density", step] = found.x, found.density
                arrays["edges", step] = np.array([*found.edges, found.atom])
                store.add_parts(
                    spec,
                    {},
                    [step],
                    [],
                    arrays=arrays,
                    provenance=provenance(),
                    seconds=time.perf_counter() - started,
                )
                store.forgive([task])


def _predict(
    store: Store,
    cell: Cell,
    theory: TheorySection,
    spec: dict[str, Any],
    steps: Sequence[float],
    ridges: Sequence[float],
) -> None:
    started = time.perf_counter()
    with warnings.catch_warnings():
        # The outcome's notes say the same, and the report shows them.
        warnings.simplefilter("ignore", OutsideTheoryWarning)
        outcome = predict(
            cell.problem,
            cell.sizes,
            np.array(steps),
            np.array(ridges),
            theory=theory.name,
            baselines=True,
            **theory.options,
        )
    seconds = time.perf_counter() - started
    store.add(spec, "theory", steps, ridges, outcome.values, provenance=provenance(), seconds=seconds)


@dataclass(frozen=True)
class _Place:
    """Where to compute."""

    jobs: int | None
    scheduler: str | None
    executor: Executor | None

    def open(self, tasks: Sequence[Task]) -> Backend:
        """The backend for these tasks."""
        if self.executor is not None:
            return ExecutorBackend(self.executor)
        if self.scheduler is not None:
            return DaskBackend(self.scheduler, self.jobs)
        workers = min(fitting_workers(tasks, self.jobs), len(tasks))
        small = sum(work(task.sizes, len(task.step_sizes)) for task in tasks) < SMALL_WORK
        if workers == 1 or (self.jobs is None and small):
            return InProcessBackend()
        return LocalBackend(workers)


def _simulate_all(
    experiment: Experiment,
    store: Store,
    state: Progress,
    show: Callable[[Progress], None],
    caught: list[int],
    place: _Place,
    retry_failed: bool,
) -> None:
    """Rounds of tasks, until every cell has the replicas that it needs."""
    backend: Backend | None = None
    interrupted = True
    try:
        failed: set[str] = set()
        while not caught:
            tasks = list(_tasks(experiment, store))
            if retry_failed and not failed:
                store.forgive([task.key for task in tasks])
            known = store.failures()
            tasks = [task for task in tasks if task.key not in known]
            if not tasks:
                break
            backend = backend or place.open(tasks)
            state.total = state.done + state.failed + sum(task.count for task in tasks)
            state.what = "replicas"
            show(state)
            failed |= _run_round(tasks, store, backend, state, show, caught)
        interrupted = bool(caught)
    finally:
        if backend is not None:
            backend.close(now=interrupted)


def _run_round(
    tasks: Sequence[Task],
    store: Store,
    backend: Backend,
    state: Progress,
    show: Callable[[Progress], None],
    caught: list[int],
) -> set[str]:
    failed: set[str] = set()

    def write(task: Task, finished: Finished) -> None:
        parts = split_parts(finished.values, task.extras) if task.kind == "errors" else {}
        store.add_parts(
            task.spec,
            parts,
            task.step_sizes,
            task.ridges,
            arrays=finished.arrays,
            provenance=finished.provenance,
            seconds=finished.seconds,
        )
        state.done += task.count
        show(state)

    def give_up(task: Task, error: BaseException) -> None:
        store.fail(task.key, task.label, f"{type(error).__name__}: {error}")
        failed.add(task.key)
        state.failed += task.count
        show(state)

    def offered() -> Iterator[Task | None]:
        """Tasks that no other run is at; then theirs, in case they are not finished, or None to wait."""
        held = []
        for task in tasks:
            if store.claim(task.key):
                yield task
            else:
                held.append(task)
        while held and not caught:
            for task in list(held):
                if _is_done(store, task) or task.key in store.failures():
                    held.remove(task)
                    state.done += task.count
                    show(state)
                elif store.claim(task.key):
                    held.remove(task)
                    yield task
            yield None

    execute(offered(), backend, done=write, failed=give_up, stopped=lambda: bool(caught))
    return failed


def _is_done(store: Store, task: Task) -> bool:
    if task.kind != "errors":
        mark = "distances" if task.kind == "distances" else "outliers"
        return {(mark, step) for step in task.step_sizes} <= store.array_names(task.spec)
    there = store.present(task.spec, "network")
    return all((step, ridge) in there for step in task.step_sizes for ridge in task.ridges)


def split_parts(values: dict[str, Any], extras: Sequence[str]) -> dict[str, dict[str, Any]]:
    """A replica's numbers by the part that they belong to.

    Examples
    --------
    >>> split_parts({"test_error": 1, "spiked1_test_error": 2}, ["spiked"])
    {'network': {'test_error': 1}, 'spiked': {'spiked1_test_error': 2}}
    """
    parts: dict[str, dict[str, Any]] = {part: {} for part in parts_of(extras)}
    for name, value in values.items():
        owner = next((extra for extra in extras if name.startswith(extra)), "network")
        parts[owner][name] = value
    return parts
