"""A few processes that compute for the server: one BLAS thread each, a time limit, and a queue that forgets."""

import asyncio
import itertools
import logging
import multiprocessing
import os
import pickle
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from firststep.experiment.execution import start_worker, worker_environment

logger = logging.getLogger("firststep")

# A request that takes longer is given up, and its process ended.
TIME_LIMIT = 20.0
# Address space of a worker beyond what the imports take, in bytes.
MEMORY_LIMIT = 3 * 2**30
# Requests that may wait; more are turned away.
LONGEST_QUEUE = 200
# A worker that has not started by then is replaced.
START_LIMIT = 60.0


class TooSlowError(RuntimeError):
    """A computation took longer than the time limit."""


class BusyError(RuntimeError):
    """Too much is waiting."""


class LostError(RuntimeError):
    """A worker ended in the middle of a computation."""


def _answer(
    connection: Connection, prepare: Callable[[], Any] | None, memory: int | None, patience: int
) -> None:
    """What a worker process does: prepare, then answer calls until the pipe closes."""
    start_worker()
    if patience and hasattr(os, "nice"):
        os.nice(patience)
    if prepare is not None:
        try:
            prepare()
        except Exception as error:
            # Not fatal: the first request that meets the same thing tells the user.
            logger.warning("a computing process could not warm up: %s", error)
    if memory is not None:
        _limit_memory(memory)
    connection.send((True, "ready"))
    while True:
        try:
            function, arguments = connection.recv()
        except (EOFError, OSError):
            return
        try:
            reply: tuple[bool, Any] = (True, function(*arguments))
        except Exception as error:
            reply = (False, _sendable(error))
        connection.send(reply)


def _sendable(error: Exception) -> Exception:
    """The error itself, or one of the same family with its words where it does not survive the journey."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        family = (ValueError, ArithmeticError, MemoryError, LookupError, RuntimeError)
        return next((kind for kind in family if isinstance(error, kind)), RuntimeError)(str(error))
    return error


def _limit_memory(extra: int) -> None:
    try:
        import resource
        from pathlib import Path

        now = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + extra, resource.getrlimit(resource.RLIMIT_AS)[1]))
    except (ImportError, OSError, ValueError):
        # Not every system has this limit; the sizes of a request are capped besides.
        return


class _Worker:
    """One process and the pipe to it."""

    def __init__(self, prepare: Callable[[], Any] | None, memory: int | None, patience: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        with worker_environment():
            self.process = context.Process(
                target=_answer, args=(theirs, prepare, memory, patience), daemon=True
            )
            self.process.start()
        theirs.close()
        self.ready = False

    def call(self, function: Callable[..., Any], arguments: tuple[Any, ...], limit: float) -> Any:
        """Run a function there; raises what it raises, TooSlowError, or LostError."""
        try:
            if not self.ready:
                # Imports do not count as computing.
                if not self.connection.poll(START_LIMIT):
                    raise TooSlowError(f"a computing process did not start within {START_LIMIT:g} s")
                self.connection.recv()
                self.ready = True
            self.connection.send((function, arguments))
            if not self.connection.poll(limit):
                raise TooSlowError(
                    f"this takes more than the {limit:g} s that the page allows; the command line has no limit"
                )
            good, value = self.connection.recv()
        except (EOFError, OSError) as error:
            raise LostError("the computing process ended, most likely for lack of memory") from error
        if good:
            return value
        raise value

    def end(self) -> None:
        """End the process."""
        self.connection.close()
        if self.process.is_alive():
            self.process.terminate()
        self.process.join(5)


@dataclass(order=True)
class _Call:
    priority: int
    number: int
    function: Callable[..., Any] = field(compare=False)
    arguments: tuple[Any, ...] = field(compare=False)
    future: "asyncio.Future[Any]" = field(compare=False)


class Pool:
    """Processes behind a queue with priorities; a call whose future is cancelled is never started.

    Parameters
    ----------
    count : int
        Processes.
    prepare : callable, optional
        Run once in each process at its start.
    time_limit : float
        Seconds that one call may take.
    memory_limit : int, optional
        Bytes that a process may take beyond its imports.
    patience : int
        How far the processes stand back for others ("nice").
    """

    def __init__(
        self,
        count: int = 2,
        prepare: Callable[[], Any] | None = None,
        time_limit: float = TIME_LIMIT,
        memory_limit: int | None = MEMORY_LIMIT,
        patience: int = 0,
    ) -> None:
        self.count, self.prepare = count, prepare
        self.time_limit, self.memory_limit, self.patience = time_limit, memory_limit, patience
        self._numbers = itertools.count()
        self._queue: asyncio.PriorityQueue[_Call] = asyncio.PriorityQueue()
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="explorer")
        self._workers: list[_Worker | None] = [None] * count
        self._loops: list[asyncio.Task[None]] = []
        self.started = 0
        self.last = 0.0

    def start(self) -> None:
        """Start the processes; they prepare while the server already listens."""
        for index in range(self.count):
            self._workers[index] = _Worker(self.prepare, self.memory_limit, self.patience)
            self._loops.append(asyncio.create_task(self._serve(index)))

    async def call(self, function: Callable[..., Any], *arguments: Any, priority: int = 1) -> Any:
        """Run a function of a module in one of the processes; the smallest priority goes first."""
        if self._queue.qsize() >= LONGEST_QUEUE:
            raise BusyError("too many requests are waiting: try again in a moment")
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.last = time.monotonic()
        self._queue.put_nowait(_Call(priority, next(self._numbers), function, arguments, future))
        return await future

    @property
    def quiet(self) -> float:
        """Seconds since it was last asked for something."""
        return time.monotonic() - self.last

    async def _serve(self, index: int) -> None:
        loop = asyncio.get_running_loop()
        while True:
            call = await self._queue.get()
            if call.future.done():
                continue
            worker = self._workers[index]
            if worker is None:
                worker = self._workers[index] = _Worker(self.prepare, self.memory_limit, self.patience)
            self.started += 1
            try:
                value = await loop.run_in_executor(
                    self._threads, worker.call, call.function, call.arguments, self.time_limit
                )
            except asyncio.CancelledError:
                raise
            except BaseException as error:
                if isinstance(error, TooSlowError | LostError):
                    worker.end()
                    self._workers[index] = None
                if not call.future.done():
                    call.future.set_exception(error)
            else:
                if not call.future.done():
                    call.future.set_result(value)

    async def stop(self) -> None:
        """End all processes."""
        for task in self._loops:
            task.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        for worker in self._workers:
            if worker is not None:
                worker.end()
        self._threads.shutdown(wait=True, cancel_futures=True)
