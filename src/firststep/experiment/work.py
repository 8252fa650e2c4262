"""The unit of work, as a worker sees it: light to import, because every process does."""

import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import scipy

from firststep import __version__
from firststep.gaussian import Array
from firststep.problem import Outlier, Problem, Sizes, stable_key
from firststep.simulate import run_replica
from firststep.store import subject_key

# Eigenvalues whose vectors are followed, spikes of the approximations F_l, and the overlaps in their order.
FOLLOWED = 4
SPIKES = (0, 1, 2, 3)
OVERLAPS = {
    "features": ("h0", "h1", "h2", "h3", "h4", "z2", "z3", "beta", "a1", "a2", "a3"),
    "weights": ("beta", "direction", "a1"),
}


def described(problem: Problem, sizes: Sizes) -> str:
    """A problem at one size in a few words."""
    step = f" n0={sizes.n_step_samples:.12g}" if sizes.n_step_samples != sizes.n_samples else ""
    return (
        f"{problem.activation.spec}, teacher {problem.teacher.spec}, noise {problem.noise_std:g}, "
        f"n={sizes.n_samples:.12g} d={sizes.dim:.12g} N={sizes.width:.12g}{step}"
    )


@dataclass(frozen=True)
class Task:
    """Points of one replica that are still to be computed, all on its draw; the unit of work."""

    spec: Mapping[str, Any]
    problem: Problem
    sizes: Sizes
    step_sizes: tuple[float, ...]
    ridges: tuple[float, ...]
    extras: tuple[str, ...]
    # "errors", or what the spectra are of.
    kind: str = "errors"

    @property
    def key(self) -> str:
        """Stable name of the task, for claims and failures."""
        content = {"steps": self.step_sizes, "ridges": self.ridges, "extras": self.extras, "kind": self.kind}
        return stable_key({"subject": subject_key(self.spec), **content})

    @property
    def label(self) -> str:
        """The task in words."""
        what = "replica" if self.kind == "errors" else f"spectrum of the {self.kind}, replica"
        return f"{what} {self.spec['replica']} of {described(self.problem, self.sizes)}"

    @property
    def count(self) -> int:
        """Number of points."""
        return len(self.step_sizes) * max(1, len(self.ridges))


@dataclass(frozen=True)
class Finished:
    """What a worker gives back; only the driver writes."""

    values: dict[str, Array]
    seconds: float
    provenance: dict[str, Any]
    arrays: dict[tuple[str, float], Array] = field(default_factory=dict)


def compute(task: Task) -> Finished:
    """Run one task: all its step sizes and ridges on one draw, with one BLAS thread."""
    started = time.perf_counter()
    origin = provenance() | {"blas_threads": 1}
    if task.kind != "errors":
        arrays = _spectra(task)
        return Finished({}, time.perf_counter() - started, origin, arrays)
    spec = task.spec
    values = run_replica(
        task.problem,
        task.sizes,
        np.array(task.step_sizes),
        np.array(task.ridges),
        seed=spec["draw_seed"],
        replica=spec["replica"],
        dtype=spec["dtype"],
        test=spec["test"],
        n_test=spec["n_test"],
        extras=task.extras,
    )
    return Finished(values, time.perf_counter() - started, origin)


def _spectra(task: Task) -> dict[tuple[str, float], Array]:
    """Eigenvalues, outliers and overlaps for each step size, or distances between feature matrices."""
    from firststep.spectra import feature_distances, simulate_spectrum

    steps, seed = list(task.step_sizes), task.spec["draw_seed"]
    if task.kind == "distances":
        found = feature_distances(task.problem, task.sizes, steps, spikes=SPIKES, seed=seed)
        return {("distances", step): found.mean[i] for i, step in enumerate(steps)}
    spectra = simulate_spectrum(task.problem, task.sizes, steps, of=task.kind, seed=seed, count=FOLLOWED)
    arrays = {}
    for step, spectrum in zip(steps, spectra, strict=True):
        arrays["eigenvalues", step] = np.asarray(spectrum.details["eigenvalues"][0])
        arrays["found", step] = np.array([spectrum.details["counts"][0], spectrum.details["edges"][0]], float)
        arrays |= outlier_arrays(spectrum.outliers, task.kind, step)
    return arrays


def outlier_arrays(outliers: Sequence[Outlier], of: str, step: float) -> dict[tuple[str, float], Array]:
    """The largest eigenvalues and the overlaps of their vectors, as arrays to be stored."""
    names = OVERLAPS[of]
    kept = outliers[:FOLLOWED]
    return {
        ("outliers", step): np.array([outlier.eigenvalue for outlier in kept]),
        ("overlaps", step): np.array([[o.overlaps.get(n, np.nan) for n in names] for o in kept]).reshape(
            -1, len(names)
        ),
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
