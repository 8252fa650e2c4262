"""Finite size: `simulate` averages the errors of replicas, which run one by one or on many workers."""

import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any, cast

import numpy as np
import scipy
from numpy.typing import ArrayLike

from firststep.gaussian import Array
from firststep.problem import Outcome, Problem, Sizes, check_whole, ridges_of, step_sizes_of
from firststep.simulate.draw import Draw as Draw
from firststep.simulate.replica import EXTRAS as EXTRAS
from firststep.simulate.replica import (
    Replica,
    check_options,
    checked_blocks,
    checked_extras,
    checked_library,
    one_thread,
)
from firststep.simulate.replica import default_n_test as default_n_test
from firststep.simulate.replica import run_replica as run_replica
from firststep.workers import available_memory as available_memory
from firststep.workers import check_memory, choose_workers, collect, gib, reporting, run_on_processes

# Replicas from which the six coefficients of the control variates can be told.
CONTROLLED = 20

# Work below which starting processes costs more than it saves, in floating-point operations.
SMALL_WORK = 3e10
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
) -> int:
    """Bytes that one worker needs at its peak, the interpreter included.

    Only in blocks of rows does it grow with the number of step sizes.

    Examples
    --------
    >>> print(f"{estimate_memory(Sizes(2000, 1000, 1500)) / 2**20:.0f} MiB")
    275 MiB
    """
    n, d, width, n0 = sizes.n_samples, sizes.dim, sizes.width, sizes.n_step_samples
    item = np.dtype(dtype).itemsize
    layers = item * 2 * width * d

    def solution(size: int, entry: int = item) -> int:
        # The Gram matrix, the copy that is factorised, two Krylov spaces; all eigenvalues take it in float64.
        return (2 * entry + (8 if "degrees" in extras else 0)) * size**2 + 2 * entry * 256 * size

    phases = []
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


def simulate(
    problem: Problem,
    sizes: Sizes,
    step_sizes: ArrayLike | None = None,
    ridges: ArrayLike = 0.1,
    *,
    step_exponents: ArrayLike | None = None,
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
    extras : sequence of {"spiked", "gaussian", "linear", "weights", "degrees", "controls"}
        Further quantities: the errors of the spiked approximations F_l (``spiked1_train_error``, …; l = 1, 2,
        3); those with the Gaussian equivalent of F_0 (``gaussian0_train_error``, …); of ridge regression on
        the inputs with n and with n0 + n samples (``linear_ridge_test_error``,
        ``linear_ridge_both_test_error``); the top singular value of W1 and the squared overlap of its
        input-side vector with beta (``weights_top``, ``weights_alignment``); the degrees of freedom of the
        fits as a share of n (``degrees_of_freedom``), which take longer than the fits. With "controls" the
        means and standard errors, but not the samples in `details`, are corrected by control variates: by what
        six averages of known mean over samples and weights explain of the replicas' differences.
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
    steps, penalties = step_sizes_of(sizes, step_sizes, step_exponents), ridges_of(ridges)
    names = checked_extras(extras)
    check_whole("replicas", replicas, 1)
    check_options(seed, dtype, test, n_test)
    if "controls" in names and replicas < CONTROLLED:
        raise ValueError(f"controls need at least {CONTROLLED} replicas, got {replicas}")
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
    blocks = checked_blocks(block_rows, parts, names, executor)
    started = time.perf_counter()
    need = estimate_memory(
        sizes, dtype=dtype, test=test, extras=names, block_rows=block_rows, n_step_sizes=len(steps) + 1
    )
    tasks = [(problem, sizes, steps, penalties, options | {"replica": index}) for index in range(replicas)]
    with reporting(progress, replicas) as report:
        if blocks is not None and parts > 1:
            results = []
            for index in range(replicas):
                draw = Draw(problem, sizes, seed, index, dtype)
                with one_thread(library):
                    work = Replica(draw, test, options["n_test"], blocks, library)
                    results.append(report.counted(work.run(steps, penalties, names)))
        elif executor is not None:
            results = collect([executor.submit(_task, *task) for task in tasks], report)
        else:
            limit = available_memory() if memory_limit is None else memory_limit
            limit = sys.maxsize if limit is None else limit
            small = replicas * _work(sizes, len(steps)) < SMALL_WORK
            workers = choose_workers(problem, workers, replicas, small, limit // need)
            check_memory(sizes, workers, need, limit)
            if workers * need > LARGE_MEMORY:
                report.say(f"{replicas} replicas on {workers} workers: {gib(workers * need)} of {gib(limit)}")
            if workers == 1:
                results = [report.counted(_task(*task)) for task in tasks]
            else:
                results = run_on_processes(workers, _task, tasks, report)
    samples = {name: np.stack([result[name] for result in results]) for name in results[0]}
    test_stderr = samples.pop("test_stderr")
    counted = samples
    if "controls" in names:
        controls = samples.pop("controls")
        counted = {name: _controlled(sample, controls) for name, sample in samples.items()}
    values = {name: sample.mean(axis=0) for name, sample in counted.items()}
    stderr = {}
    if replicas > 1:
        stderr = {name: sample.std(axis=0, ddof=1) / np.sqrt(replicas) for name, sample in counted.items()}
    sampled = test_stderr > 0
    notes = list(problem.concerns(sizes))
    if sampled.any():
        notes.append(
            f"test errors of {sampled.any(axis=(0, 2)).sum()} of {len(steps)} step sizes were measured on "
            f"{options['n_test']} samples for each replica"
        )
    details = {
        "replicas": replicas,
        "seed": seed,
        "dtype": dtype,
        "backend": backend,
        "test": np.where(sampled.any(axis=(0, 2)), "sample", "population").tolist(),
        "n_test": options["n_test"],
        "test_stderr": np.sqrt((test_stderr**2).mean(axis=0) / replicas),
        "samples": samples,
        "workers": workers,
        "memory_per_worker": need,
        "seconds": time.perf_counter() - started,
        "versions": {
            "python": platform.python_version(),
            "numpy": np.__version__,
            "scipy": scipy.__version__,
            **library.version(),
        },
    }
    return Outcome(problem, sizes, steps, penalties, "simulation", values, stderr, tuple(notes), details)


def _controlled(sample: Array, controls: Array) -> Array:
    """The sample (replicas, …) less what controls (replicas, q) of mean zero explain of it.

    The coefficients that are used for a replica are those of a regression on all the others, so that the mean
    stays unbiased at any number of replicas.
    """
    values = sample.reshape(len(sample), -1)
    columns = np.column_stack([np.ones(len(sample)), controls])
    # An average that does not vary, such as |W0 beta|^2 in one dimension, explains nothing.
    inverse = np.linalg.pinv(columns.T @ columns, hermitian=True)
    coefficients = inverse @ columns.T @ values
    # Leaving out row i changes the coefficients by -(A^T A)^-1 a_i r_i, with its residual r_i outside the fit.
    leverage = np.einsum("ij,jk,ik->i", columns, inverse, columns)
    outside = (values - columns @ coefficients) / (1 - leverage)[:, None]
    own = np.einsum("ij,jk,ik->i", controls, inverse[1:], columns)
    corrected = values - controls @ coefficients[1:] + own[:, None] * outside
    return cast(Array, corrected.reshape(sample.shape))


def _task(
    problem: Problem, sizes: Sizes, step_sizes: Array, ridges: Array, options: Mapping[str, Any]
) -> dict[str, Array]:
    return run_replica(problem, sizes, step_sizes, ridges, **options)


def _work(sizes: Sizes, n_steps: int) -> float:
    """Floating-point operations of one replica, roughly."""
    n, d, width, n0 = sizes.n_samples, sizes.dim, sizes.width, sizes.n_step_samples
    products = 4.0 * (n0 + n) * d * width + 4.0 * width**2 * d
    return products + (n_steps + 1) * (
        min(n, width) ** 2 * (max(n, width) + 1.5 * min(n, width)) + 60.0 * width**2
    )
