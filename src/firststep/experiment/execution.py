"""Where tasks run: processes of this machine, a Dask cluster, or any concurrent.futures executor."""

import logging
import math
import multiprocessing
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    Executor,
    Future,
    ProcessPoolExecutor,
    wait,
)
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any, Protocol

from firststep import __version__
from firststep.experiment.work import Finished, Task, compute
from firststep.simulate import available_memory, estimate_memory
from firststep.store import NUMBERS_VERSION
from firststep.workers import end_with_parent, keep_memory, one_blas_thread

# A task that ends so many workers, the last ones alone in the pool, is given up.
MOST_DEATHS = 3
# Between two looks at signals and at other runs.
WAIT_SECONDS = 0.2
# Between two counts of a cluster's workers.
COUNT_SECONDS = 2.0

logger = logging.getLogger("firststep")


class WorkerLostError(RuntimeError):
    """A task ended every worker that it was given to."""


class Backend(Protocol):
    """An executor with what the driver must know besides."""

    # Whether one death of a worker breaks all that is under way.
    fragile: bool
    # Losses of a task alone in the pool after which it is given up.
    patience: int

    @property
    def workers(self) -> int:
        """Tasks that can run at the same time."""

    def submit(self, task: Task) -> "Future[Finished]":
        """Start a task."""

    def renew(self, alone: bool) -> None:
        """Replace what broke: for one task at a time, or again for all."""

    def close(self, now: bool) -> None:
        """End; `now` does not wait for what is under way."""


class LocalBackend:
    """Spawned processes, one BLAS thread each, that end with the driver."""

    fragile = True
    patience = MOST_DEATHS

    def __init__(self, workers: int, function: Callable[[Task], Finished] = compute) -> None:
        self.workers, self.function = workers, function
        self._size = workers
        self._pool: ProcessPoolExecutor | None = None

    def submit(self, task: Task) -> "Future[Finished]":
        """Start a task; processes are started with the first."""
        with worker_environment():
            if self._pool is not None:
                try:
                    return self._pool.submit(self.function, task)
                except BrokenExecutor:
                    # What was under way in it learns of that by itself.
                    self.close(now=True)
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(self._size, mp_context=context, initializer=start_worker)
            return self._pool.submit(self.function, task)

    def renew(self, alone: bool) -> None:
        """Replace the pool, by a process for one task at a time or by all of them."""
        self.close(now=True)
        self._size = 1 if alone else self.workers

    def close(self, now: bool) -> None:
        """End the processes."""
        pool, self._pool = self._pool, None
        if pool is None:
            return
        processes = list((getattr(pool, "_processes", None) or {}).values())
        if now:
            for process in processes:
                process.terminate()
        pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def worker_environment() -> Iterator[None]:
    """One BLAS thread for processes started here, and no second run of the caller's script in them."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        with one_blas_thread():
            yield
    finally:
        sys.modules["__main__"] = main


def start_worker() -> None:
    """Prepare a worker process: the driver alone answers Ctrl-C, and a worker does not outlive it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    keep_memory()
    end_with_parent()


class InProcessBackend:
    """Everything in this process, one task after another."""

    fragile = False
    patience = 1
    workers = 1

    def submit(self, task: Task) -> "Future[Finished]":
        """Run a task now."""
        future: Future[Finished] = Future()
        try:
            future.set_result(compute(task))
        except Exception as error:
            future.set_exception(error)
        return future

    def renew(self, alone: bool) -> None:
        """Nothing to replace."""

    def close(self, now: bool) -> None:
        """Nothing to end."""


class ExecutorBackend:
    """Any concurrent.futures executor that the user brings."""

    fragile = True
    patience = 1

    def __init__(
        self, executor: Executor, workers: int = 1, function: Callable[[Task], Finished] = compute
    ) -> None:
        self.executor, self.workers, self.function = executor, workers, function

    def submit(self, task: Task) -> "Future[Finished]":
        """Start a task."""
        return self.executor.submit(self.function, task)

    def renew(self, alone: bool) -> None:
        """Raise, since the executor is not ours to replace."""
        raise RuntimeError("the executor broke down; what was finished is stored: run again to go on")

    def close(self, now: bool) -> None:
        """Nothing to end: the executor belongs to the caller."""


class DaskBackend:
    """A Dask cluster: one that the user started, or ``"local"`` for one on this machine.

    Dask itself runs a task again whose worker died, on four workers before it gives up; but it blames all
    tasks that were there. So those are run once more, each alone.
    """

    fragile = False
    patience = 1

    def __init__(
        self,
        address: str,
        workers: int | None = None,
        function: Callable[[Task], Finished] = compute,
        timeout: float = 10.0,
    ) -> None:
        try:
            dask: Any = import_module("distributed")
        except ImportError as error:
            raise ImportError("--scheduler needs dask.distributed: install firststep[dask]") from error
        # Dask tells of a lost connection in tracebacks; we do in a sentence.
        for part in ("client", "core", "utils"):
            logging.getLogger(f"distributed.{part}").setLevel(logging.CRITICAL)
        self._cluster: Any = None
        self._client: Any
        try:
            if address == "local":
                # Who ends a worker is found out here, and a worker that is slow to come back is not given up.
                own = {
                    "distributed.scheduler.allowed-failures": 0,
                    "distributed.deploy.lost-worker-timeout": "1h",
                }
                import_module("dask").config.set(own)
                self.patience = MOST_DEATHS
                with worker_environment():
                    self._cluster = dask.LocalCluster(
                        n_workers=workers or default_workers(),
                        threads_per_worker=1,
                        dashboard_address="127.0.0.1:0",
                    )
                self._client = dask.Client(self._cluster)
            else:
                self._client = dask.Client(address, timeout=timeout)
        except (OSError, ValueError) as error:
            raise RuntimeError(f"no Dask scheduler answers at {address!r}: {error}") from error
        self.address, self.function = address, function
        self._workers, self._counted = 1, -math.inf
        self._check(address, self._client.scheduler_info(n_workers=-1)["workers"])

    @property
    def workers(self) -> int:
        """Threads of all workers; counted again now and then, because a queue starts them one by one."""
        if time.monotonic() - self._counted > COUNT_SECONDS:
            try:
                self._workers = max(1, sum(self._client.nthreads().values()))
            except (OSError, TimeoutError, RuntimeError) as error:
                raise RuntimeError(
                    f"the Dask scheduler {self.address} does not answer any more; what was finished is "
                    "stored: start it again, and run the same command to go on"
                ) from error
            self._counted = time.monotonic()
        return self._workers

    def submit(self, task: Task) -> "Future[Finished]":
        """Start a task.

        Not through Dask's own executor: that never resolves a future whose result was lost with its worker.
        """
        future: Future[Finished] = Future()

        def deliver(remote: Any) -> None:
            try:
                result = remote.result()
            except BaseException as error:
                lost = type(error).__name__ in ("KilledWorker", "CancelledError", "FutureCancelledError")
                future.set_exception(BrokenExecutor(str(error)) if lost else error)
            else:
                future.set_result(result)

        here = worker_version()
        self._client.submit(compute_alike, self.function, here, task, pure=False).add_done_callback(deliver)
        return future

    def renew(self, alone: bool) -> None:
        """Nothing to replace, because Dask restarts its workers; but without a scheduler all is lost."""
        self._counted = -math.inf
        logger.debug("%d workers are left", self.workers)

    def _check(self, address: str, known: dict[str, Any]) -> None:
        """Refuse workers whose numbers would be others."""
        if not known:
            logger.warning("the scheduler %s has no workers yet: the run waits for them", address)
        if any(worker["nthreads"] > 1 for worker in known.values()):
            logger.warning(
                "some workers run several threads; start them with --nthreads 1 for equal last digits"
            )
        here = worker_version()
        for place, there in self._client.run(worker_version).items():
            if there != here:
                self._client.close()
                raise RuntimeError(
                    f"worker {place} has firststep {there[0]}, the driver {here[0]}: install the same"
                )

    def close(self, now: bool) -> None:
        """Leave the cluster, and end it if it is ours."""
        self._client.close()
        if self._cluster is not None:
            self._cluster.close()


def worker_version() -> tuple[str, dict[str, int]]:
    """Version of the package where this runs."""
    return __version__, NUMBERS_VERSION


def compute_alike(
    function: Callable[[Task], Finished], wanted: tuple[str, dict[str, int]], task: Task
) -> Finished:
    """Run a task, unless this worker came late with another version than the driver's."""
    if worker_version() != wanted:
        raise RuntimeError(f"a worker has firststep {__version__}, the driver {wanted[0]}: install the same")
    return function(task)


def default_workers() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def fitting_workers(tasks: Iterable[Task], wanted: int | None) -> int:
    """Workers for these tasks: one for each core unless said otherwise, as many as fit into memory."""
    need = max(
        (estimate_memory(t.sizes, dtype=t.spec.get("dtype", "float64"), extras=t.extras) for t in tasks),
        default=0,
    )
    limit = available_memory()
    fitting = wanted or default_workers()
    if need and limit is not None:
        if need > limit:
            raise MemoryError(
                f"the largest task needs about {need / 2**30:.3g} GiB and {limit / 2**30:.3g} GiB are "
                "available: use smaller sizes or dtype = 'float32'"
            )
        if wanted is not None and wanted * need > limit:
            raise MemoryError(
                f"{wanted} workers need about {wanted * need / 2**30:.3g} GiB and {limit / 2**30:.3g} GiB "
                f"are available: use --jobs {limit // need}"
            )
        fitting = max(1, min(fitting, limit // need))
    return fitting


def execute(
    tasks: Iterable[Task | None],
    backend: Backend,
    *,
    done: Callable[[Task, Finished], None],
    failed: Callable[[Task, BaseException], None],
    stopped: Callable[[], bool] = lambda: False,
) -> None:
    """Run tasks until all are done or failed, or until `stopped` says so.

    When a worker dies, what was under way is run again, one task at a time, until it is known which of them
    ends its worker; that one has failed after `MOST_DEATHS` deaths, and the others go on. None among the
    tasks means that there is nothing to start just now.
    """
    queue = iter(tasks)
    suspects: deque[Task] = deque()
    deaths: dict[str, int] = {}
    pending: dict[Future[Finished], Task] = {}
    more, isolated = True, False
    while more or suspects or pending:
        if stopped():
            for future in pending:
                future.cancel()
            return
        if isolated and not suspects and not pending:
            backend.renew(alone=False)
            isolated = False
        if suspects:
            if not pending:
                suspect = suspects.popleft()
                pending[backend.submit(suspect)] = suspect
        elif not isolated:
            while more and len(pending) < 2 * backend.workers:
                try:
                    task = next(queue)
                except StopIteration:
                    more = False
                    break
                if task is None or stopped():
                    break
                pending[backend.submit(task)] = task
        if not pending:
            time.sleep(WAIT_SECONDS if more else 0)
            continue
        alone = len(pending) == 1
        finished, _ = wait(pending, timeout=WAIT_SECONDS, return_when=FIRST_COMPLETED)
        lost = []
        for future in finished:
            task = pending.pop(future)
            try:
                result = future.result()
            except BrokenExecutor:
                lost.append(task)
            except Exception as error:
                failed(task, error)
            else:
                done(task, result)
        if lost:
            if backend.fragile:
                # The others break with it a moment later.
                lost += list(pending.values())
                pending.clear()
            backend.renew(alone=True)
            isolated = True
            for task in lost:
                deaths[task.key] = deaths.get(task.key, 0) + (1 if alone else 0)
                if deaths[task.key] >= backend.patience:
                    failed(task, WorkerLostError("ended every worker that it was given to, alone as well"))
                else:
                    suspects.append(task)
