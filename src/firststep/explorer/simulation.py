"""Simulations that the page asks for: in a process of their own, into the store that experiments use."""

import asyncio
import logging
import math
import multiprocessing
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from firststep.compute.processes import end_with_parent
from firststep.experiment.execution import worker_environment
from firststep.explorer.state import State, as_toml, spectra_toml
from firststep.explorer.views import number_text, short
from firststep.results import Outcome
from firststep.store import Store

logger = logging.getLogger("firststep")

# What one simulation may take, in seconds of one core and in bytes.
TIME_BUDGET = 120.0
MEMORY_BUDGET = 2 * 2**30
# Floating-point operations per second that every machine of today reaches on one core.
MODEST_SPEED = 8e9
MOST_REPLICAS = 64
# Numbers of replicas that the page's menu has.
OFFERED = (4, 8, 16, 32)
STEPS, SECOND_STEPS = 11, 6
BINS = 48
# Draws whose eigenvalues are shown.
SPECTRA = 4


class RefusedError(ValueError):
    """A simulation that would not fit, with the reason."""


def check_budget(state: State, replicas: int) -> float:
    """Seconds that a simulation will take, roughly; raises RefusedError where that or the memory is too much.

    Examples
    --------
    >>> check_budget(State(n_samples=200), replicas=8) < 10
    True
    """
    from firststep.simulate import available_memory, estimate_memory, replica_work

    sizes = state.sizes
    if sizes.n_samples > 1e6:
        raise RefusedError(
            f"networks with n = {number_text(float(sizes.n_samples), 3)} do not fit into a computer: lower n, "
            "theory reaches where simulation does not"
        )
    need = estimate_memory(sizes, extras=("weights",))
    limit = min(MEMORY_BUDGET, available_memory() or MEMORY_BUDGET)
    if need > limit:
        raise RefusedError(
            f"one replica would take {need / 2**30:.3g} GiB, and {limit / 2**30:.2g} GiB are allowed here: lower n"
        )
    # After a second step every size of it is a network of its own.
    repeated = SECOND_STEPS if state.next_step_exponent is not None else 1
    seconds = replicas * repeated * replica_work(sizes, STEPS // repeated) / MODEST_SPEED
    if seconds > TIME_BUDGET:
        fitting = [count for count in OFFERED if count * seconds / replicas <= TIME_BUDGET]
        remedy = f"ask for {fitting[-1]} replicas" if fitting else "lower n"
        raise RefusedError(
            f"{replicas} replicas would take about {seconds / 60:.1f} min on one core, and {TIME_BUDGET / 60:.0f} min "
            f"are allowed here: {remedy}, or use the command line, which has no limit"
        )
    return seconds


def points_of(outcome: Outcome) -> dict[str, Any]:
    """Simulated means and standard errors, for drawing."""
    exponents = np.round(outcome.step_exponents, 6).tolist()
    names = {"test": "test_error", "train": "train_error", "alignment": "weights_alignment"}
    result: dict[str, Any] = {"exponents": exponents, "replicas": outcome.details["replicas"]}
    for short_name, name in names.items():
        if name not in outcome.values:
            continue
        mean = outcome.values[name][:, 0]
        error = outcome.stderr[name][:, 0] if name in outcome.stderr else np.full(len(mean), math.nan)
        result[short_name] = {
            "mean": [short(float(value)) for value in mean],
            "stderr": [short(float(value), 3) for value in error],
        }
    return result


def second_points(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Simulated means and standard errors after a second step, for drawing: one outcome for each size of it."""
    names = {"test_error": "test", "train_error": "train"}
    exponents = [round(float(outcome.next_step_exponents[0, 0]), 6) for outcome in outcomes]
    replicas = min(outcome.details["replicas"] for outcome in outcomes)
    result: dict[str, Any] = {"exponents": exponents, "replicas": replicas}
    for name in outcomes[0].values:
        if name in names or name.startswith("top"):
            error = [outcome.stderr.get(name, np.full((1, 1), math.nan))[0, 0] for outcome in outcomes]
            result[names.get(name, name)] = {
                "mean": [short(float(outcome.values[name][0, 0])) for outcome in outcomes],
                "stderr": [short(float(value), 3) for value in error],
            }
    return result


def drawn_points(view: State, outcomes: Sequence[Outcome]) -> dict[str, Any] | None:
    """What a simulation of this state has so far."""
    if not outcomes:
        return None
    return second_points(outcomes) if view.next_step_exponent is not None else points_of(outcomes[0])


def stored(state: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Simulated points that the store already has: after the step and, where one is asked for, after the second."""
    from firststep.experiment import collect, parse
    from firststep.store import open_store

    points: dict[str, Any] = {"points": None, "second": None}
    if not Path(path).exists():
        return points
    view = State(**state)
    asked = {"points": view.model_copy(update={"next_step_exponent": None})}
    if view.next_step_exponent is not None:
        asked["second"] = view
    with open_store(path, read_only=True) as store:
        for name, state_of in asked.items():
            found = collect(store, parse(as_toml(state_of, MOST_REPLICAS, theory=False))).simulated
            points[name] = drawn_points(state_of, found)
    return points


def histogram(values: Any, of: str, total: int) -> dict[str, Any]:
    """Eigenvalues as bars per unit of log10, for drawing over a density.

    Parameters
    ----------
    values : array_like
        Those that are not zero.
    of : str
        Whose they are.
    total : int
        How many there are with those at zero, so that areas are shares of all.
    """
    values = np.asarray(values, dtype=float)
    positive = values[values > 1e-9 * values.max()]
    logs = np.log10(positive)
    low = max(float(logs.min()), float(np.log10(1e-3 * np.quantile(positive, 0.98))))
    edges = np.linspace(low, float(logs.max()) + 1e-6, BINS + 1)
    counts, _ = np.histogram(logs, edges)
    heights = counts / (total * np.diff(edges))
    top = np.sort(positive)[::-1][: 3 * SPECTRA]
    return {
        "of": of,
        "edges": [short(float(edge)) for edge in edges],
        "heights": [short(float(height), 4) for height in heights],
        "top": [short(float(value)) for value in np.log10(top)],
    }


def _spectra(view: State, store: Store) -> list[dict[str, Any]]:
    """Histograms of the features' and the weights' eigenvalues of a few draws, which the store then has."""
    from firststep.experiment import collect, parse, run

    experiment = parse(spectra_toml(view, SPECTRA))
    run(experiment, store, name="explorer", jobs=1)
    totals = {"features": view.sizes.n_samples, "weights": view.sizes.width}
    found = []
    for result in collect(store, experiment).spectra:
        draws = [draw.eigenvalues for step in result.drawn.values() for draw in step]
        if draws:
            found.append(histogram(np.concatenate(draws), result.of, len(draws) * totals[result.of]))
    return found


def _run(connection: Connection, state: Mapping[str, Any], replicas: int, path: str) -> None:
    """Fill the store and report after every replica. SIGTERM ends it in order, and what is finished stays."""
    # Before anything is imported that takes a second: a server that is killed leaves nobody at work.
    end_with_parent()
    from firststep.experiment import Interrupted, Progress, collect, parse, run
    from firststep.store import open_store

    try:
        view = State(**state)
        experiment = parse(as_toml(view, replicas, theory=False))
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with open_store(path) as store:

            def show(progress: Progress) -> None:
                found = collect(store, experiment).simulated
                points = drawn_points(view, found)
                # The whole of a job counts in replicas, of which each size of a second step has its own.
                done = sum(outcome.details["replicas"] for outcome in found)
                done = done // SECOND_STEPS if view.next_step_exponent is not None else done
                connection.send({"done": done, "failed": progress.failed > 0, "points": points})

            show(Progress())
            connection.send({"spectra": _spectra(view, store)})
            run(experiment, store, name="explorer", jobs=1, progress=show)
            show(Progress())
        connection.send({"status": "finished"})
    except Interrupted:
        connection.send({"status": "cancelled"})
    except Exception as error:
        connection.send({"status": "failed", "reason": str(error) or type(error).__name__})


@dataclass
class Job:
    """One simulation, as far as it is."""

    id: str
    state: State
    replicas: int
    seconds: float
    status: str = "running"
    done: int = 0
    reason: str = ""
    points: dict[str, Any] | None = None
    spectra: list[dict[str, Any]] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)

    def to_dict(self) -> dict[str, Any]:
        """For the page."""
        return {
            "id": self.id,
            "status": self.status,
            "replicas": self.replicas,
            "done": self.done,
            "seconds": round(time.monotonic() - self.started, 1),
            "expected_seconds": round(self.seconds, 1),
            "reason": self.reason,
            "state": self.state.model_dump(exclude={"step_size"}),
            "points": self.points,
            "spectra": self.spectra,
        }


class Simulations:
    """At most one simulation at a time; the last few are remembered."""

    def __init__(self, path: str, time_budget: float = TIME_BUDGET) -> None:
        self.path, self.time_budget = path, time_budget
        self.jobs: dict[str, Job] = {}
        self._process: Any = None
        self._watch: asyncio.Task[None] | None = None

    @property
    def running(self) -> Job | None:
        """The one under way, if any."""
        return next((job for job in self.jobs.values() if job.status in ("running", "cancelling")), None)

    def start(self, state: State, replicas: int) -> Job:
        """Start one; raises RefusedError if it would not fit or another is running."""
        from firststep.experiment import parse

        if self.running is not None:
            raise RefusedError("a simulation is running: cancel it or wait for its end")
        # The parsers' own complaints, before a process is started for nothing.
        _ = state.problem
        parse(as_toml(state, replicas, theory=False))
        job = Job(secrets.token_hex(8), state, replicas, check_budget(state, replicas))
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe(duplex=False)
        with worker_environment():
            process = context.Process(
                target=_run, args=(theirs, state.model_dump(), replicas, self.path), daemon=True
            )
            process.start()
        theirs.close()
        self._process = process
        self.jobs[job.id] = job
        while len(self.jobs) > 8:
            self.jobs.pop(next(iter(self.jobs)))
        self._watch = asyncio.create_task(self._follow(job, process, ours))
        return job

    async def _follow(self, job: Job, process: Any, connection: Connection) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                if not await loop.run_in_executor(None, connection.poll, 0.5):
                    # Three times the estimate is no longer an estimate; imports and a loaded machine are not its fault.
                    if time.monotonic() - job.started > 60 + 3 * self.time_budget:
                        job.reason = "it took three times the time allowed and was ended"
                        process.terminate()
                    if process.is_alive() or connection.poll():
                        continue
                    break
                message = connection.recv()
                job.done = message.get("done", job.done)
                job.points = message.get("points") or job.points
                job.spectra = message.get("spectra", job.spectra)
                if message.get("status"):
                    job.status = message["status"]
                    job.reason = message.get("reason", job.reason)
                    break
        except (EOFError, OSError):
            pass
        finally:
            connection.close()
            await loop.run_in_executor(None, process.join, 5)
            if job.status == "cancelling":
                job.status = "cancelled"
            if job.status == "running":
                job.status = "failed"
                job.reason = job.reason or "the simulating process ended, most likely for lack of memory"

    def cancel(self, identity: str) -> Job:
        """Ask one to stop; what it finished stays in the store."""
        job = self.jobs[identity]
        if job.status == "running":
            job.status = "cancelling"
            self._process.terminate()
        return job

    async def stop(self) -> None:
        """End what is under way."""
        job = self.running
        if job is not None:
            self.cancel(job.id)
        if self._watch is not None:
            await asyncio.wait({self._watch}, timeout=5)
