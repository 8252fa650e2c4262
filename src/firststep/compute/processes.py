"""Where replicas run: processes of this machine or an executor, within the memory there is, with their progress."""

import ctypes
import logging
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing.context import BaseContext
from pathlib import Path
from queue import Empty, SimpleQueue
from types import ModuleType
from typing import Any

SLOW_SECONDS = 2.0
# Names of settings in glibc's malloc.h.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3

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


def ensure_memory(need: int, what: str, remedy: str) -> None:
    """Refuse, before anything is allocated, what would not fit into the memory there is.

    Examples
    --------
    >>> try:
    ...     ensure_memory(2**60, "1e9 columns", "drop columns")
    ... except MemoryError as error:
    ...     print(str(error).partition(" and ")[0])
    1e9 columns would take about 1.07e+09 GiB
    """
    limit = available_memory()
    if limit is not None and need > limit:
        raise MemoryError(f"{what} would take about {gib(need)} and {gib(limit)} are available: {remedy}")


def gib(count: int) -> str:
    """Bytes as text.

    Examples
    --------
    >>> gib(3 * 2**29)
    '1.5 GiB'
    """
    return f"{count / 2**30:.3g} GiB"


class Report:
    """Counts finished replicas, or points, and shows them: to a function, on a bar, or not at all."""

    def __init__(
        self, progress: bool | Callable[[int, int], object] | None, total: int, unit: str = "replicas"
    ) -> None:
        self.total, self.done, self.unit = total, 0, unit
        self.call = progress if callable(progress) else None
        self.wanted = progress is True or (progress is None and sys.stderr.isatty())
        self.started = time.monotonic()
        self.bar: Any = None
        # How much a result counts.
        self.size: Callable[[Any], int] = lambda result: 1

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
            columns = TextColumn(self.unit), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
            self.bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self.bar.add_task(self.unit, total=self.total, completed=self.done)
            self.bar.start()

    def counted(self, result: Any) -> Any:
        """Count one finished replica, or the points of a part, and pass its result on."""
        self.done += self.size(result)
        self.tick()
        if self.call is not None:
            self.call(self.done, self.total)
        if self.bar is not None:
            self.bar.update(self.bar.task_ids[0], completed=self.done, total=self.total)
        return result


@contextmanager
def reporting(
    progress: bool | Callable[[int, int], object] | None, total: int, unit: str = "replicas"
) -> Iterator[Report]:
    """Show the progress while the replicas run, and take the bar away after them."""
    report = Report(progress, total, unit)
    try:
        yield report
    finally:
        if report.bar is not None:
            report.bar.stop()


def submitted(
    executor: Executor, task: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], together: int = 1
) -> list[Future[list[Any]]]:
    """Futures of the task for each of its argument tuples, so many of them in one."""
    starts = range(0, len(arguments), together)
    return [executor.submit(_each, task, arguments[start : start + together]) for start in starts]


def _each(task: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
    return [task(*one) for one in arguments]


def collect(futures: list[Future[list[Any]]], report: Report) -> list[Any]:
    """Results in the order of what was submitted; on an error or Ctrl-C what has not started is cancelled."""
    finished: SimpleQueue[Future[list[Any]]] = SimpleQueue()
    try:
        for future in futures:
            future.add_done_callback(finished.put)
        for _ in futures:
            for result in _next(finished, report).result():
                report.counted(result)
        return [result for future in futures for result in future.result()]
    finally:
        for future in futures:
            future.cancel()


def _next(finished: "SimpleQueue[Future[list[Any]]]", report: Report) -> Future[list[Any]]:
    """The next future that is done, while the bar goes on."""
    while True:
        try:
            return finished.get(timeout=0.5)
        except Empty:
            report.tick()


def run_on_processes(
    workers: int,
    task: Callable[..., Any],
    arguments: Sequence[tuple[Any, ...]],
    report: Report,
    together: int = 1,
) -> list[Any]:
    """Results of the task for each of its argument tuples, the first of which holds the problem, in order.

    So many of them go to a worker together, where one alone would take less time than its way there and back.
    """
    pool = ProcessPoolExecutor(workers, mp_context=_context(task.__module__), initializer=_start_worker)
    try:
        with one_blas_thread(), _without_main(arguments[0][0]):
            futures = submitted(pool, task, arguments, together)
        return collect(futures, report)
    except BrokenProcessPool:
        raise RuntimeError(
            f"a worker process died when {report.done} of {report.total} {report.unit} were done, most likely for "
            f"lack of memory: use fewer than {workers} workers, smaller sizes or dtype='float32'. A script that "
            "defines its own activation or teacher must make this call under `if __name__ == '__main__':`"
        ) from None
    except BaseException:
        # Ctrl-C: a running replica may take minutes, so its process is ended rather than waited for.
        for process in list((getattr(pool, "_processes", None) or {}).values()):
            process.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _context(module: str) -> BaseContext:
    """How processes start: where forking is safe, from a server that has imported the module and stays.

    So only the first call waits half a second for NumPy and SciPy. On a Mac, Apple's BLAS does not survive a fork.
    """
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    # Without effect on a server that runs already; processes then import what they need themselves.
    context.set_forkserver_preload([module])
    return context


def _start_worker() -> None:
    # Ctrl-C reaches every process of the terminal: workers end silently, the parent reports.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    keep_memory()
    end_with_parent()


def end_with_parent() -> None:
    """Watch the process that started this one, and end as soon as it does, however that was ended."""
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def keep_memory() -> None:
    """Let this process keep memory that it frees, where the C library is glibc: for processes that do nothing else.

    It would give back most arrays to the kernel, which hands out new pages and fills them with zeros for the next
    ones: 2 to 5 % of a replica. Arrays of more than 32 MiB are still given back, so that no gaps are left for them.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    mallopt(M_TRIM_THRESHOLD, 256 << 20)
    mallopt(M_MMAP_THRESHOLD, 32 << 20)


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Let processes that are started here have one BLAS thread each."""
    names = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(dict.fromkeys(names, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def _without_main(problem: object) -> Iterator[None]:
    """Let processes start without running the user's script, unless the problem uses a function from it."""
    main = sys.modules["__main__"]
    if b"__main__" in pickle.dumps(problem):
        yield
        return
    # New processes are told of the script from here; a script without a `__main__` guard would start itself again.
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
