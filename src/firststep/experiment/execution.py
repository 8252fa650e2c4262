"""Where tasks run: processes of this machine, a Dask cluster, or any concurrent.futures executor."""

import logging
import math
import multiprocessing
import os
import pickle
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    Executor,
    Future,
    ProcessPoolExecutor,
    wait,
)
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any, Protocol

from firststep import __version__
from firststep.compute.processes import end_with_parent, keep_memory, one_blas_thread
from firststep.experiment.work import Finished, Task, compute
from firststep.simulate import available_memory, estimate_memory
from firststep.store import NUMBERS_VERSION

# A task whose connection was lost so often is not tried again in this run; nothing is said against it.
MOST_LOSSES = 5
# A task that ends so many workers, the last ones alone in the pool, is given up.
MOST_DEATHS = 3
# Between two looks at signals and at other runs.
WAIT_SECONDS = 0.2
# Between two counts of a cluster's workers.
COUNT_SECONDS = 2.0
# In which a cluster must hand out a finished result, or say how many workers it has.
RESULT_SECONDS = 20.0
# Quick tasks of one kind are sent together, for so much work and no more of them: beside a network the way there and
# back must be short. What was under way when the driver died is lost.
NEAR_SECONDS, FAR_SECONDS = 0.2, 1.0
MOST_TOGETHER = 500

logger = logging.getLogger("firststep")


class WorkerLostError(RuntimeError):
    """A task ended every worker that it was given to."""


class DisconnectedError(BrokenExecutor):
    """The way to the workers is gone, and what was under way with it: nothing that a task can be blamed for."""


@dataclass(frozen=True)
class Failure:
    """What a task itself raised."""

    error: Exception


Answers = list[Finished | Failure]


class Backend(Protocol):
    """An executor with what the driver must know besides."""

    # Whether one death of a worker breaks all that is under way.
    fragile: bool
    # Losses of a task alone in the pool after which it is given up.
    patience: int
    # Seconds of work that are sent at once, where tasks are shorter; 0 sends every task by itself.
    together: float

    @property
    def workers(self) -> int:
        """Bundles of tasks that can run at the same time."""

    def submit(self, tasks: Sequence[Task]) -> "Future[Answers]":
        """Start some tasks, one after the other on one worker; their answers come in the same order."""

    def renew(self, alone: bool) -> None:
        """Replace what broke: for one task at a time, or again for all."""

    def close(self, now: bool) -> None:
        """End; `now` does not wait for what is under way."""


class LocalBackend:
    """Spawned processes, one BLAS thread each, that end with the driver."""

    fragile = True
    patience = MOST_DEATHS
    together = NEAR_SECONDS

    def __init__(self, workers: int, function: Callable[[Task], Finished] = compute) -> None:
        self.workers, self.function = workers, function
        self._size = workers
        self._pool: ProcessPoolExecutor | None = None

    def submit(self, tasks: Sequence[Task]) -> "Future[Answers]":
        """Start tasks; processes are started with the first."""
        with worker_environment():
            if self._pool is not None:
                try:
                    return self._pool.submit(answers, self.function, tasks)
                except BrokenExecutor:
                    # What was under way in it learns of that by itself.
                    self.close(now=True)
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(self._size, mp_context=context, initializer=start_worker)
            return self._pool.submit(answers, self.function, tasks)

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
    together = 0.0
    workers = 1

    def __init__(self, guard: Callable[[], AbstractContextManager[None]] = nullcontext) -> None:
        self.guard = guard

    def submit(self, tasks: Sequence[Task]) -> "Future[Answers]":
        """Run tasks now."""
        future: Future[Answers] = Future()
        with self.guard():
            found = answers(compute, tasks)
        future.set_result(found)
        return future

    def renew(self, alone: bool) -> None:
        """Nothing to replace."""

    def close(self, now: bool) -> None:
        """Nothing to end."""


class ExecutorBackend:
    """Any concurrent.futures executor that the user brings."""

    fragile = True
    patience = 1
    together = NEAR_SECONDS

    def __init__(
        self, executor: Executor, workers: int = 1, function: Callable[[Task], Finished] = compute
    ) -> None:
        self.executor, self.workers, self.function = executor, workers, function

    def submit(self, tasks: Sequence[Task]) -> "Future[Answers]":
        """Start tasks."""
        return self.executor.submit(answers, self.function, tasks)

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
    together = FAR_SECONDS

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
        for name in [*logging.root.manager.loggerDict, "asyncio", "tornado.application"]:
            if name.partition(".")[0] in ("distributed", "tornado", "asyncio"):
                logging.getLogger(name).setLevel(logging.CRITICAL + 1)
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
                if self._client.status != "running":
                    raise OSError(self._client.status)
                cores = self._client.sync(self._client.scheduler.ncores, callback_timeout=RESULT_SECONDS)
                self._workers = max(1, sum(cores.values()))
            except Exception as error:
                # Dask, Tornado and asyncio each have errors of their own for a connection that is gone.
                raise self._gone() from error
            self._counted = time.monotonic()
        return self._workers

    def _gone(self) -> RuntimeError:
        return RuntimeError(
            f"the Dask scheduler {self.address} does not answer any more; what was finished is "
            "stored: start it again, and run the same command to go on"
        )

    def submit(self, tasks: Sequence[Task]) -> "Future[Answers]":
        """Start tasks.

        Not through Dask's own executor: that never resolves a future whose result was lost with its worker.
        """
        future: Future[Answers] = Future()

        def deliver(remote: Any) -> None:
            try:
                # A future that was done may wait again once its scheduler is gone, and this thread with it.
                result = remote.result(timeout=RESULT_SECONDS)
            except BaseException as error:
                future.set_exception(_judged(error))
            else:
                future.set_result(result)

        here = worker_version()
        try:
            sent = self._client.submit(compute_alike, self.function, here, tasks, pure=False)
        except Exception as error:
            raise self._gone() from error
        sent.add_done_callback(deliver)
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
        # Without a scheduler nobody is there to say goodbye to.
        with suppress(Exception):
            self._client.close(timeout=COUNT_SECONDS)
        if self._cluster is not None:
            with suppress(Exception):
                self._cluster.close()


def _judged(error: BaseException) -> BaseException:
    """What an error that Dask itself raises says: a worker that died, a lost connection, or a mistake."""
    name = type(error).__name__
    if name == "KilledWorker":
        return BrokenExecutor(str(error))
    gone = (
        "CommClosedError",
        "CancelledError",
        "FutureCancelledError",
        "FuturesCancelledError",
        "StreamClosedError",
    )
    # The task's own errors come back as a `Failure`, so an error of the system here is one of the connection.
    if name in gone or isinstance(error, OSError | TimeoutError | EOFError):
        return DisconnectedError(str(error))
    return error


def worker_version() -> tuple[str, dict[str, int]]:
    """Version of the package where this runs."""
    return __version__, NUMBERS_VERSION


def compute_alike(
    function: Callable[[Task], Finished], wanted: tuple[str, dict[str, int]], tasks: Sequence[Task]
) -> Answers:
    """Run tasks, unless this worker came late with another version than the driver's."""
    if worker_version() != wanted:
        raise RuntimeError(f"a worker has firststep {__version__}, the driver {wanted[0]}: install the same")
    return answers(function, tasks)


def answers(function: Callable[[Task], Finished], tasks: Sequence[Task]) -> Answers:
    """What each of the tasks gives, or what it raised, on the worker."""
    return [_answer(function, task) for task in tasks]


def _answer(function: Callable[[Task], Finished], task: Task) -> Finished | Failure:
    try:
        return function(task)
    except Exception as error:
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            return Failure(RuntimeError(f"{type(error).__name__}: {error}"))
        return Failure(error)


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
    done: Callable[[Sequence[tuple[Task, Finished]]], None],
    failed: Callable[[Task, BaseException], None],
    claimed: Callable[[Sequence[Task]], Sequence[Task]] = lambda tasks: tasks,
    stopped: Callable[[], bool] = lambda: False,
) -> None:
    """Run tasks until all are done or failed, or until `stopped` says so.

    Quick tasks of one kind go together, and so come back; `claimed` says which of those that are about to be sent may
    be. When a worker dies, what was under way is run again, one task at a time, until it is known which of them
    ends its worker; that one has failed after `MOST_DEATHS` deaths, and the others go on. None among the
    tasks means that there is nothing to start just now.
    """
    queue = _Queue(iter(tasks), backend.together, stopped)
    suspects: deque[Task] = deque()
    trials = _Trials(backend, failed)
    pending: dict[Future[Answers], Sequence[Task]] = {}
    isolated = False
    while queue.left or suspects or pending:
        if stopped():
            for future in pending:
                future.cancel()
            return
        # Also when all is sent: who asks for nothing more would not learn that nobody is there to answer.
        capacity = 2 * backend.workers
        if isolated and not suspects and not pending:
            backend.renew(alone=False)
            isolated = False
        if suspects:
            if not pending:
                suspect = [suspects.popleft()]
                pending[backend.submit(suspect)] = suspect
        elif not isolated:
            while len(pending) < capacity and (bundle := queue.bundle()):
                mine = claimed(bundle)
                if mine:
                    pending[backend.submit(mine)] = mine
        if not pending:
            time.sleep(WAIT_SECONDS if queue.more else 0)
            continue
        alone = len(pending) == 1 and len(next(iter(pending.values()))) == 1
        finished, _ = wait(pending, timeout=WAIT_SECONDS, return_when=FIRST_COMPLETED)
        lost, cut, found = _settled([(pending.pop(future), future) for future in finished], failed)
        if found:
            queue.learn(found)
            done(found)
        if cut:
            queue.again += trials.after_cut(cut)
        if lost:
            if backend.fragile:
                # The others break with it a moment later.
                lost += [task for some in pending.values() for task in some]
                pending.clear()
            suspects += trials.after_death(lost, alone)
            isolated = True


class _Queue:
    """Tasks in the bundles in which they are sent: as many of one kind as make up some seconds of work."""

    def __init__(self, tasks: Iterator[Task | None], seconds: float, stopped: Callable[[], bool]) -> None:
        self.tasks, self.seconds, self.stopped = tasks, seconds, stopped
        # Tasks that are to be sent again.
        self.again: deque[Task] = deque()
        self.more = True
        self._next: Task | None = None
        self._known: dict[tuple[Any, ...], float] = {}

    @property
    def left(self) -> bool:
        """Whether there may be more to start."""
        return self.more or bool(self.again) or self._next is not None

    def bundle(self) -> list[Task]:
        """Tasks for one worker; none where there is nothing to start just now."""
        found: list[Task] = []
        size = 1
        while len(found) < size and (task := self._taken()) is not None:
            if found and task.work != found[0].work:
                self._next = task
                break
            found.append(task)
            spent = self._known.get(task.work)
            if spent is not None and self.seconds:
                size = min(MOST_TOGETHER, max(1, int(self.seconds / max(spent, 1e-9))))
        return found

    def _taken(self) -> Task | None:
        if self._next is not None:
            task, self._next = self._next, None
            return task
        if self.again:
            return self.again.popleft()
        if not self.more or self.stopped():
            return None
        try:
            return next(self.tasks)
        except StopIteration:
            self.more = False
            return None

    def learn(self, found: Sequence[tuple[Task, Finished]]) -> None:
        """Take note of how long tasks took."""
        for task, finished in found:
            before = self._known.get(task.work, finished.seconds)
            # The first ones on a worker import and fill caches.
            self._known[task.work] = min(finished.seconds, 0.7 * before + 0.3 * finished.seconds)


def _settled(
    finished: Iterable[tuple[Sequence[Task], Future[Answers]]],
    failed: Callable[[Task, BaseException], None],
) -> tuple[list[Task], list[Task], list[tuple[Task, Finished]]]:
    """Report what failed; tasks whose worker died, those whose connection was lost, and what is done."""
    lost: list[Task] = []
    cut: list[Task] = []
    found: list[tuple[Task, Finished]] = []
    for tasks, future in finished:
        try:
            results = future.result()
        except DisconnectedError:
            cut += tasks
        except BrokenExecutor:
            lost += tasks
        except Exception as error:
            for task in tasks:
                failed(task, error)
        else:
            for task, result in zip(tasks, results, strict=True):
                if isinstance(result, Failure):
                    failed(task, result.error)
                else:
                    found.append((task, result))
    return lost, cut, found


class _Trials:
    """How often each task was lost, and what follows from it."""

    def __init__(self, backend: Backend, failed: Callable[[Task, BaseException], None]) -> None:
        self.backend, self.failed = backend, failed
        self._deaths: dict[str, int] = {}
        self._losses: dict[str, int] = {}

    def after_death(self, tasks: Iterable[Task], alone: bool) -> Iterator[Task]:
        """Tasks to be tried again, one at a time, after their worker died; the others have failed."""
        self.backend.renew(alone=True)
        for task in tasks:
            self._deaths[task.key] = self._deaths.get(task.key, 0) + (1 if alone else 0)
            if self._deaths[task.key] >= self.backend.patience:
                self.failed(task, WorkerLostError("ended every worker that it was given to, alone as well"))
            else:
                yield task

    def after_cut(self, tasks: Iterable[Task]) -> Iterator[Task]:
        """Tasks to be sent again after the connection was lost; raises where there is none any more."""
        self.backend.renew(alone=False)
        for task in tasks:
            self._losses[task.key] = self._losses.get(task.key, 0) + 1
            if self._losses[task.key] >= MOST_LOSSES:
                raise RuntimeError(
                    f"the connection to the workers was lost {MOST_LOSSES} times; what was finished is stored: "
                    "look at the scheduler, and run the same command to go on"
                )
            yield task
