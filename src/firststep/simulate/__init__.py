"""Finite size: `simulate` averages the errors of replicas, which run one by one or on many workers."""

# Annotations stay text, so that help(simulate) shows ArrayLike and not what it stands for.
from __future__ import annotations

import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy
from numpy.typing import ArrayLike

from firststep.arrays import Library
from firststep.compute.processes import (
    Blocks,
    Report,
    check_memory,
    choose_workers,
    collect,
    gib,
    reporting,
    run_on_processes,
    submitted,
)
from firststep.compute.processes import available_memory as available_memory
from firststep.gaussian import Array
from firststep.results import Averages, Measured, Outcome
from firststep.setting import Problem, Sizes, check_whole, ridges_of, schedule_of
from firststep.setting.doors import door
from firststep.simulate.draw import Draw as Draw
from firststep.simulate.replica import (
    DOUBLED,
    Replica,
    check_options,
    check_training,
    checked_blocks,
    checked_extras,
    checked_library,
    one_thread,
)
from firststep.simulate.replica import EXTRAS as EXTRAS
from firststep.simulate.replica import default_n_test as default_n_test
from firststep.simulate.replica import run_replica as run_replica

# Replicas from which the six coefficients of the control variates can be told, and how float64's corrections scatter.
LEAST_REPLICAS = {"controls": 20, "double": DOUBLED + 1}

# Work below which starting processes costs more than it saves, in floating-point operations.
SMALL_WORK = 3e10
# Quick replicas go to a worker together, for so much work, but in so many bundles for each worker at least.
BUNDLE_WORK = 1e9
BUNDLES = 4
LARGE_MEMORY = 2**30
# What an interpreter with NumPy and SciPy needs by itself, and the blocks that are worked on.
INTERPRETER_MEMORY = 128 * 2**20


def estimate_memory(
    sizes: Sizes,
    *,
    dtype: str = "float64",
    test: str = "auto",
    extras: Sequence[str] = (),
    block_rows: int | None = None,
    n_step_sizes: int = 1,
    n_steps: int = 1,
    linear_rule: bool = True,
) -> int:
    """Bytes that one worker needs at its peak, the interpreter included.

    Only in blocks of rows does it grow with the number of step sizes. Sequences of `n_steps` keep the weights and the
    samples of all their steps; a rule that is not linear in the gradient works on copies of it.

    Examples
    --------
    >>> print(f"{estimate_memory(Sizes(2000, 1000, 1500)) / 2**20:.0f} MiB")
    275 MiB
    """
    n, d, width, n0 = sizes.n_samples, sizes.dim, sizes.width, sizes.n_step_samples
    item = 8 if "double" in extras else np.dtype(dtype).itemsize
    layers = item * (2 * width * d * n_steps + (n_steps - 1) * n0 * d)

    def solution(size: int, entry: int = item) -> int:
        # The Gram matrix, the copy that is factorised, two Krylov spaces; all eigenvalues take it in float64.
        return (2 * entry + (8 if "degrees" in extras else 0)) * size**2 + 2 * entry * 256 * size

    phases = []
    if not linear_rule:
        phases.append(layers + item * n0 * d + 40 * width * d + 8 * min(width, d) ** 2)
    if "directions" in extras or "learned" in extras:
        phases.append(layers + item * n * d + 16 * width * d + 8 * d**2)
    if test != "sample":
        phases.append(layers + item * width * d + (4 * item + item % 8 * 2) * width**2)
    if block_rows is not None:
        # The labels' and the activation's temporaries count where blocks are small.
        block = item * block_rows * (d + 4 * width) + 2**20
        phases += [
            layers + 16 * width * d + block,
            layers + 8 * (n_step_sizes + 2) * width**2 + block,
            layers + 8 * n_step_sizes * width**2 + solution(width, 8),
        ]
        return INTERPRETER_MEMORY + max(phases)
    inputs, design = item * n * d, item * n * width
    fit = design + solution(min(n, width))
    phases += [layers + item * n0 * (d + width), layers + inputs + 2 * design + fit]
    if test != "population":
        phases.append(layers + 2 * inputs + 4 * design)
    if "linear" in extras:
        phases.append(layers + 2 * item * (n + n0) * d + solution(min(n + n0, d)))
    if "spiked" in extras or "gaussian" in extras:
        phases.append(layers + (8 + item) * (width + n) * d + 2 * design + max(fit, design) + 8 * width**2)
    return INTERPRETER_MEMORY + max(phases)


@door
def simulate(
    problem: Problem,
    sizes: Sizes,
    step_sizes: ArrayLike | None = None,
    ridges: ArrayLike = 0.1,
    *,
    step_exponents: ArrayLike | None = None,
    next_step_sizes: Sequence[ArrayLike] | ArrayLike | None = None,
    next_step_exponents: Sequence[ArrayLike] | ArrayLike | None = None,
    seed: int = 0,
    replicas: int = 8,
    workers: int | None = None,
    dtype: str = "float64",
    test: str = "auto",
    n_test: int | None = None,
    extras: Sequence[str] = (),
    block_rows: int | None = None,
    parts: int = 1,
    executor: Executor | None = None,
    progress: bool | Callable[[int, int], object] | None = None,
    memory_limit: int | None = None,
    backend: str = "numpy",
    device: str | None = None,
) -> Outcome:
    r"""Train and test errors of the network at finite size, averaged over replicas.

    .. math:: W_1 = W_0 + \eta G, \quad F = \sigma(\tilde X W_1^\top), \quad
        \hat a = \arg\min_a \tfrac1n\|\tilde y - F a\|^2 + \lambda\|a\|^2

    Parameters
    ----------
    problem, sizes
        What is studied.
    step_sizes : array_like (S,), optional
        :math:`\eta \ge 0`; give these or `step_exponents`.
    ridges : array_like (R,)
        :math:`\lambda > 0`.
    step_exponents : array_like (S,), optional
        :math:`\alpha`, for :math:`\eta = n_0^\alpha`.
    next_step_sizes, next_step_exponents : array_like or sequence of array_like, optional
        A second step: a number or a list, taken with every first step. For more steps, a list with one such entry for
        each. A later step takes the gradient at the weights that the earlier ones have made, with the same readout, on
        a sample of its own or, with ``Problem(…, step_sample="same")``, on the first step's.
    seed : int
        Same seed, same numbers, for any number of workers.
    replicas : int
        Independent draws; more of them never change the earlier ones.
    workers : int, optional
        Processes, each with one BLAS thread; by default one for each core unless the run is tiny.
    dtype : {"float64", "float32"}
        Precision of data, weights and features. Both see the same draws.
    test : {"auto", "population", "sample"}
        Exact population test error wherever one is known and a test sample elsewhere, or one of the two.
    n_test : int, optional
        Size of a replica's test sample.
    extras : sequence of str
        Further quantities, among "spiked", "gaussian", "linear", "weights", "directions", "learned", "degrees",
        "controls" and "double": the errors of the spiked approximations F_l (``spiked1_train_error``, …; l = 1, 2,
        3); those with the Gaussian equivalent of F_0 (``gaussian0_train_error``, …); of ridge regression on
        the inputs with n and with n0 + n samples (``linear_ridge_test_error``,
        ``linear_ridge_both_test_error``); the top singular value of W1 and the squared overlap of its
        input-side vector with beta (``weights_top``, ``weights_alignment``; for inputs with a covariance S, with
        S^(1/2) beta); the three largest singular values of the whitened weights W S^(1/2) after the last step and the
        squared overlaps of their vectors with each of the teacher's directions (``top1_value``, ``top1_t1``,
        ``top1_t2``, …); of each of the teacher's Hermite coefficients up to degree 4 the share that the fitted
        function has (``learned_t1``, ``learned_h2t1``, ``learned_t1_t2``, …: 0 for nothing, 1 for all); the degrees
        of freedom of the fits as a share of n (``degrees_of_freedom``), which take longer than the fits. With
        "controls" the means and standard errors, but not the samples in `details`, are corrected by control variates:
        by what six averages of known mean over samples and weights explain of the replicas' differences. With
        "double" and ``dtype="float32"`` one replica in 16 is computed in float64 as well, and what that changes is
        added to the means and to their standard errors: means as of float64, at about the price of float32.
    block_rows : int, optional
        Go through the samples in blocks of so many rows: memory is then set by the width, the number of step
        sizes and the block, not by n. The same numbers to rounding; not with the extras that need the samples as
        a whole ("spiked", "gaussian", "linear").
    parts : int
        With `block_rows` and an executor: its tasks are this many parts of a replica's samples in place of whole
        replicas, each summed up where it runs.
    executor : concurrent.futures.Executor, optional
        Where the replicas run instead of on processes of this call; `workers` and memory are then its affair.
    progress : bool or callable, optional
        A bar on the terminal once the run takes longer than two seconds (default), never (False), or a
        function that is called with the number of replicas done and their total.
    memory_limit : int, optional
        Bytes that the run may take; by default what is available. A run that cannot fit is refused.
    backend : {"numpy", "torch", "array_api_strict"}
        Library that computes; all see the same draws, which NumPy makes, and give the same numbers to rounding.
    device : str, optional
        Where torch computes: "cpu" (default), "cuda", … It must know float64. Not tested on a GPU by us.

    Returns
    -------
    Outcome
        With standard errors over replicas, and in `details` the `samples` of each replica.

    Examples
    --------
    >>> outcome = simulate(Problem("relu", "h1"), Sizes(100, 50, 75), [0, 5], replicas=4)
    >>> bool(outcome.test_gain[1, 0] > 3 * outcome.stderr["test_gain"][1, 0])
    True
    """
    started = time.perf_counter()
    schedule = schedule_of(sizes, step_sizes, step_exponents, next_step_sizes, next_step_exponents)
    names = checked_extras(extras)
    check_training(problem, sizes, schedule, names)
    check_options(seed, dtype, test, n_test, names)
    _check_replicas(replicas, names)
    library = checked_library(backend, device)
    if workers is not None:
        check_whole("workers", workers, 1)
    elif device not in (None, "cpu"):
        # One process fills a device; several would share its memory.
        workers = 1
    options: dict[str, Any] = {
        "seed": seed,
        "dtype": dtype,
        "test": test,
        "n_test": n_test or default_n_test(sizes),
        "extras": names,
        "block_rows": block_rows,
        "backend": backend,
        "device": device,
    }
    run = _Run(problem, sizes, schedule, ridges_of(ridges), replicas, options)
    blocks = checked_blocks(block_rows, parts, names, executor)
    with reporting(progress, replicas) as report:
        if blocks is not None and parts > 1:
            results = run.in_parts(blocks, library, report)
        elif executor is not None:
            results = collect(submitted(executor, _task, run.tasks), report)
        else:
            limit = available_memory() if memory_limit is None else memory_limit
            results, workers = run.on_workers(workers, sys.maxsize if limit is None else limit, report)
    about = {"workers": workers, "seconds": time.perf_counter() - started}
    return run.outcome(results, about, library)


def _check_replicas(replicas: int, extras: tuple[str, ...]) -> None:
    """Refuse fewer replicas than there must be, at all or for what else is asked for."""
    check_whole("replicas", replicas, 1)
    for name, least in LEAST_REPLICAS.items():
        if name in extras and replicas < least:
            raise ValueError(f"extras={name!r} needs at least {least} replicas, got {replicas}")


@dataclass(frozen=True, eq=False)
class _Run:
    """The replicas of one call: where they run, and what is made of them."""

    problem: Problem
    sizes: Sizes
    schedule: Array
    ridges: Array
    replicas: int
    options: Mapping[str, Any]

    @property
    def tasks(self) -> list[tuple[Problem, Sizes, Array, Array, dict[str, Any]]]:
        """Arguments of the replicas."""
        common = self.problem, self.sizes, self.schedule, self.ridges
        return [(*common, {**self.options, "replica": index}) for index in range(self.replicas)]

    @property
    def need(self) -> int:
        """Bytes that one worker takes."""
        names = ("dtype", "test", "extras", "block_rows")
        counts = {"n_step_sizes": len(self.schedule) + 1, "n_steps": self.schedule.shape[1]}
        rule = self.problem.rule.linear
        return estimate_memory(
            self.sizes, **{name: self.options[name] for name in names}, **counts, linear_rule=rule
        )

    def in_parts(self, blocks: Blocks, library: Library, report: Report) -> list[Measured]:
        """One replica after the other, the parts of each on the executor."""
        results = []
        for index in range(self.replicas):
            draw = Draw(self.problem, self.sizes, self.options["seed"], index, self.options["dtype"])
            with one_thread(library):
                work = Replica(draw, self.options["test"], self.options["n_test"], blocks, library)
                found = work.run(self.schedule, self.ridges, self.options["extras"])
                results.append(report.counted(found))
        return results

    def on_workers(self, wanted: int | None, limit: int, report: Report) -> tuple[list[Measured], int]:
        """Whole replicas here or on processes of this call, and how many of these there were."""
        need = self.need
        # Every sequence of earlier steps has a gradient and products of its own.
        beginnings = len(np.unique(self.schedule[:, :-1], axis=0)) if self.schedule.shape[1] > 1 else 0
        work = replica_work(self.sizes, len(self.schedule), beginnings)
        small = self.replicas * work < SMALL_WORK
        workers = choose_workers(self.problem, wanted, self.replicas, small, limit // need)
        check_memory(self.sizes, workers, need, limit)
        if workers * need > LARGE_MEMORY:
            report.say(
                f"{self.replicas} replicas on {workers} workers: {gib(workers * need)} of {gib(limit)}"
            )
        if workers == 1:
            return [report.counted(_task(*task)) for task in self.tasks], workers
        together = max(1, min(int(BUNDLE_WORK / work), self.replicas // (BUNDLES * workers)))
        return run_on_processes(workers, _task, self.tasks, report, together), workers

    def outcome(self, results: Sequence[Measured], about: Mapping[str, Any], library: Library) -> Outcome:
        """Means and standard errors over the replicas."""
        means = Averages.of(results)
        notes = list(self.problem.concerns(self.sizes))
        if means.sampled.any():
            notes.append(
                f"test errors of {means.sampled.sum()} of {len(self.schedule)} step sizes were measured on "
                f"{self.options['n_test']} samples for each replica"
            )
        details = {
            "replicas": self.replicas,
            **{name: self.options[name] for name in ("seed", "dtype", "backend", "n_test")},
            "test": np.where(means.sampled, "sample", "population").tolist(),
            **means.details,
            "memory_per_worker": self.need,
            **about,
            "versions": {
                "python": platform.python_version(),
                "numpy": np.__version__,
                "scipy": scipy.__version__,
                **library.version(),
            },
        }
        return Outcome(
            self.problem,
            self.sizes,
            self.schedule[:, 0],
            self.ridges,
            "simulation",
            means.values,
            means.stderr,
            tuple(notes),
            details,
            self.schedule[:, 1:],
        )


def _task(
    problem: Problem, sizes: Sizes, step_sizes: Array, ridges: Array, options: Mapping[str, Any]
) -> Measured:
    return run_replica(problem, sizes, step_sizes, ridges, **options)


def replica_work(sizes: Sizes, sequences: int, beginnings: int = 0) -> float:
    """Floating-point operations of one replica, roughly: products, and a Gram matrix for each sequence of steps.

    `beginnings` counts the sequences without their last step, where there are several steps.
    """
    n, d, width, n0 = sizes.n_samples, sizes.dim, sizes.width, sizes.n_step_samples
    small, large = min(n, width), max(n, width)
    products = (1 + beginnings) * (4.0 * (n0 + n) * d * width + 4.0 * width**2 * d)
    return products + (sequences + 1) * (small**2 * (large + 1.5 * small) + 60.0 * width**2)
