"""Where replicas run: processes of this machine or an executor, within the memory there is, with their progress."""

import logging
import multiprocessing
import os
import pickle
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

SLOW_SECONDS = 2.0

logger = logging.getLogger("firststep")


def available_memory() -> int | None:
    """Bytes that this process may still take, by the machine and by its control group; None where unknown."""
    known = []
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        known += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    except OSError:
        try:
            known.append(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
        except (ValueError, OSError, AttributeError):
            return None
    for group in (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/memory")):
        for limit, usage in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            try:
                free = int((group / limit).read_text()) - int((group / usage).read_text())
                # Cached files count as used but are given up when memory is asked for.
                stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
                known.append(max(0, free + int(stat.get("inactive_file", 0))))
            except (OSError, ValueError):
                continue
    return min(known) if known else None


@dataclass(frozen=True)
class Blocks:
    """How a replica that is not held in memory goes through its samples."""

    rows: int
    parts: int = 1
    executor: Executor | None = None

    def sums(self, function: Callable[..., Any], count: int, *arguments: Any) -> Iterator[Any]:
        """The function's sums over the rows of each part, in order."""
        ends = [count * i // self.parts for i in range(self.parts + 1)]
        tasks = [(*arguments, start, stop, self.rows) for start, stop in pairwise(ends)]
        if self.executor is None:
            return (function(*task) for task in tasks)
        futures = [self.executor.submit(function, *task) for task in tasks]
        return (future.result() for future in futures)


def choose_workers(problem: object, workers: int | None, replicas: int, small: bool, fitting: int) -> int:
    """Number of processes, for the cores there are and the number that fits into memory."""
    if workers is None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return 1 if small or not _picklable(problem) else max(1, min(cores, replicas, fitting))
    if min(workers, replicas) > 1 and not _picklable(problem):
        raise ValueError(
            "the activation or teacher cannot be sent to worker processes: define it at the top of a module "
            "(no lambda), write it as an expression, or use workers=1"
        )
    return min(workers, replicas)


def _picklable(problem: object) -> bool:
    try:
        pickle.dumps(problem)
    except (pickle.PicklingError, AttributeError, TypeError):
        return False
    return True


def check_memory(sizes: object, workers: int, need: int, limit: int) -> None:
    """Refuse a run whose workers cannot all have the memory that they need."""
    if workers * need > limit:
        remedy = f"workers={limit // need}" if limit >= need else "block_rows=1000, smaller sizes"
        raise MemoryError(
            f"{sizes} needs about {gib(need)} for each of {workers} workers, and {gib(limit)} are "
            f"available: use {remedy} or dtype='float32'"
        )


def gib(count: int) -> str:
    """Bytes as text.

    Examples
    --------
    >>> gib(3 * 2**29)
    '1.5 GiB'
    """
    return f"{count / 2**30:.3g} GiB"


class Report:
    """Counts finished replicas and shows them: to a function, on a bar, or not at all."""

    def __init__(self, progress: bool | Callable[[int, int], object] | None, total: int) -> None:
        self.total, self.done = total, 0
        self.call = progress if callable(progress) else None
        self.wanted = progress is True or (progress is None and sys.stderr.isatty())
        self.started = time.monotonic()
        self.bar: Any = None

    def say(self, message: str) -> None:
        """State something before the run, where the bar would be."""
        logger.info(message)
        if self.wanted:
            sys.stderr.write(f"{message}\n")

    def tick(self) -> None:
        """Show the bar once the run is known to be a long one."""
        if not self.wanted:
            return
        if self.bar is None and time.monotonic() - self.started > SLOW_SECONDS:
            try:
                from rich.console import Console
                from rich.progress import (
                    BarColumn,
                    MofNCompleteColumn,
                    Progress,
                    TextColumn,
                    TimeRemainingColumn,
                )
            except ImportError:
                self.wanted = False
                return
            columns = TextColumn("replicas"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
            self.bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self.bar.add_task("replicas", total=self.total, completed=self.done)
            self.bar.start()

    def counted(self, result: Any) -> Any:
        """Count one finished replica and pass its result on."""
        self.done += 1
        self.tick()
        if self.call is not None:
            self.call(self.done, self.total)
        if self.bar is not None:
            self.bar.update(self.bar.task_ids[0], completed=self.done)
        return result


@contextmanager
def reporting(progress: bool | Callable[[int, int], object] | None, total: int) -> Iterator[Report]:
    """Show the progress while the replicas run, and take the bar away after them."""
    report = Report(progress, total)
    try:
        yield report
    finally:
        if report.bar is not None:
            report.bar.stop()


def collect(futures: list[Future[Any]], report: Report) -> list[Any]:
    """Results in the order of the futures; on an error or Ctrl-C those not yet started are cancelled."""
    try:
        pending = set(futures)
        while pending:
            finished, pending = wait(pending, timeout=0.5, return_when=FIRST_COMPLETED)
            report.tick()
            for future in finished:
                report.counted(future.result())
        return [future.result() for future in futures]
    finally:
        for future in futures:
            future.cancel()


def run_on_processes(
    workers: int, task: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], report: Report
) -> list[Any]:
    """Results of the task for each of its argument tuples, the first of which holds the problem, in order."""
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_start_worker)
    try:
        with _without_main(arguments[0][0]):
            futures = [pool.submit(task, *one) for one in arguments]
        return collect(futures, report)
    except BrokenProcessPool:
        raise RuntimeError(
            f"a worker process died when {report.done} of {report.total} replicas were done, most likely for "
            f"lack of memory: use fewer than {workers} workers, smaller sizes or dtype='float32'. A script "
            "that defines its own activation or teacher must call simulate under `if __name__ == '__main__':`"
        ) from None
    except BaseException:
        # Ctrl-C: a running replica may take minutes, so its process is ended rather than waited for.
        for process in list((getattr(pool, "_processes", None) or {}).values()):
            process.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _start_worker() -> None:
    # Ctrl-C reaches every process of the terminal: workers end silently, the parent reports.
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def _without_main(problem: object) -> Iterator[None]:
    """Let processes start without running the user's script, unless the problem uses a function from it."""
    main = sys.modules["__main__"]
    if b"__main__" in pickle.dumps(problem):
        yield
        return
    # Spawned processes look up the script here; a script without a `__main__` guard would start itself again.
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
