"""The unit of work, as a worker sees it: light to import, because every process does."""

import platform
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import scipy

from firststep import __version__
from firststep.results import Measured, Outcome
from firststep.results.spectrum import STORED
from firststep.setting import OutsideTheoryWarning, Problem, Sizes, stable_key
from firststep.simulate import run_replica
from firststep.store import subject_key

# Eigenvalues whose vectors are followed, and spikes of the approximations F_l.
FOLLOWED = 4
# Kind of a task that a theory solves, and the part under which its numbers are stored.
THEORY = "theory"
SPIKES = (0, 1, 2, 3)
# The array whose presence says that a store has what a spectra's task computes.
MARKS = {"distances": "distances", "features": STORED, "weights": STORED}


def described(problem: Problem, sizes: Sizes, next_steps: Sequence[float] = ()) -> str:
    """A problem at one size in a few words."""
    step = f" n0={sizes.n_step_samples:.12g}" if sizes.n_step_samples != sizes.n_samples else ""
    later = f", next steps {', '.join(f'{size:.6g}' for size in next_steps)}" if next_steps else ""
    return f"{problem.title}, n={sizes.n_samples:.12g} d={sizes.dim:.12g} N={sizes.width:.12g}{step}{later}"


def theory_label(name: str, subject: str) -> str:
    """A theory's task in words."""
    return f"{name} theory of {subject}"


def later_steps(next_steps: Sequence[float]) -> dict[str, Any]:
    """The argument of `predict` and `simulate` for these later steps, where there are some."""
    return {"next_step_sizes": [[size] for size in next_steps]} if next_steps else {}


@dataclass(frozen=True)
class Task:
    """Points of one replica that are still to be computed, all on its draw; the unit of work."""

    spec: Mapping[str, Any]
    problem: Problem
    sizes: Sizes
    step_sizes: tuple[float, ...]
    ridges: tuple[float, ...]
    extras: tuple[str, ...]
    # "errors", "theory", or what the spectra are of.
    kind: str = "errors"
    next_steps: tuple[float, ...] = ()

    @property
    def key(self) -> str:
        """Stable name of the task, for claims and failures."""
        if self.kind == THEORY:
            # One for all grids of a cell, as a theory fails for the problem and not for a step.
            return subject_key(self.spec)
        content = {"steps": self.step_sizes, "ridges": self.ridges, "extras": self.extras, "kind": self.kind}
        return stable_key({"subject": subject_key(self.spec), **content})

    @property
    def label(self) -> str:
        """The task in words."""
        if self.kind == THEORY:
            return theory_label(self.spec["source"], described(self.problem, self.sizes, self.next_steps))
        what = "replica" if self.kind == "errors" else f"spectrum of the {self.kind}, replica"
        return f"{what} {self.spec['replica']} of {described(self.problem, self.sizes, self.next_steps)}"

    @property
    def work(self) -> tuple[Any, ...]:
        """What decides how long the task takes: those with the same take about equally long."""
        shape = len(self.step_sizes), len(self.ridges), len(self.next_steps)
        keys = [function.key for function in self.problem.functions.values()]
        sizes = None if self.kind == THEORY else self.sizes
        return (self.kind, self.spec["source"], sizes, shape, self.extras, self.spec.get("dtype"), *keys)

    @property
    def count(self) -> int:
        """Number of points."""
        return len(self.step_sizes) * max(1, len(self.ridges))


@dataclass(frozen=True)
class Finished:
    """What a worker gives back; only the driver writes."""

    measured: Measured | None
    seconds: float
    provenance: dict[str, Any]
    arrays: dict[tuple[str, float], Any] = field(default_factory=dict)
    predicted: Mapping[str, Any] | None = None

    @property
    def tables(self) -> Mapping[str, Mapping[str, Any]]:
        """Numbers by part and name, as a store keeps them."""
        if self.predicted is not None:
            return {THEORY: self.predicted}
        return self.measured.tables() if self.measured is not None else {}


def compute(task: Task) -> Finished:
    """Run one task: all its step sizes and ridges on one draw, with one BLAS thread."""
    started = time.perf_counter()
    origin = provenance() | {"blas_threads": 1}
    if task.kind == THEORY:
        values = solved(task).values
        return Finished(None, time.perf_counter() - started, provenance(), predicted=values)
    if task.kind != "errors":
        arrays = _spectra(task)
        return Finished(None, time.perf_counter() - started, origin, arrays)
    spec = task.spec
    measured = run_replica(
        task.problem,
        task.sizes,
        # A row for each sequence of steps.
        np.array([(step, *task.next_steps) for step in task.step_sizes]),
        np.array(task.ridges),
        seed=spec["draw_seed"],
        replica=spec["replica"],
        dtype=spec["dtype"],
        test=spec["test"],
        n_test=spec["n_test"],
        extras=task.extras,
    )
    return Finished(measured, time.perf_counter() - started, origin)


def solved(task: Task) -> Outcome:
    """A theory's answer on the task's grid."""
    from firststep.theory import predict

    with warnings.catch_warnings():
        # The outcome's notes say the same, and the report shows them.
        warnings.simplefilter("ignore", OutsideTheoryWarning)
        return predict(
            task.problem,
            task.sizes,
            np.array(task.step_sizes),
            np.array(task.ridges),
            theory=task.spec["source"],
            baselines=True,
            **later_steps(task.next_steps),
            **task.spec["options"],
        )


def _spectra(task: Task) -> dict[tuple[str, float], Any]:
    """One draw's spectrum for each step size, or distances between feature matrices."""
    from firststep.simulate.spectra import feature_distances, simulate_spectrum

    steps, seed = list(task.step_sizes), task.spec["draw_seed"]
    if task.kind == "distances":
        if task.next_steps:
            raise ValueError(
                "distances are those after one step: leave next_step_exponent and next_step_size out"
            )
        found = feature_distances(task.problem, task.sizes, steps, spikes=SPIKES, seed=seed)
        return {("distances", step): found.mean[i] for i, step in enumerate(steps)}
    later: dict[str, Any] = {"next_step_sizes": list(task.next_steps)} if task.next_steps else {}
    spectra = simulate_spectrum(
        task.problem, task.sizes, steps, of=task.kind, seed=seed, count=FOLLOWED, **later
    )
    return {
        (name, step): array
        for step, spectrum in zip(steps, spectra, strict=True)
        for name, array in spectrum.details["draws"][0].to_arrays().items()
    }


@lru_cache(maxsize=1)
def provenance() -> dict[str, Any]:
    """Versions and machine: what a number may depend on in its last digits."""
    from threadpoolctl import threadpool_info  # type: ignore[import-untyped]

    libraries = {
        f"{pool.get('internal_api')} {pool.get('version')} {pool.get('architecture', '')}".strip()
        for pool in threadpool_info()
        if pool.get("user_api") == "blas"
    }
    return {
        "firststep": __version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "blas": sorted(libraries),
        "system": f"{platform.system()} {platform.machine()}",
    }
