"""A large task in parts: here or on processes, with its progress, wherever in the call the parts are made."""

# Annotations stay text: what they name takes long to import.
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from firststep.compute.processes import Report

# Fewer parts are done before processes have started; a task smaller than this is done at once.
FEWEST, SMALL = 3, 500


@dataclass(frozen=True)
class _Asked:
    """How the parts of the call under way are to run."""

    workers: int | None
    report: Report


_ASKED: ContextVar[_Asked | None] = ContextVar("parts", default=None)


@contextmanager
def in_parts(
    workers: int | None, progress: bool | Callable[[int, int], object] | None, unit: str, size: int
) -> Iterator[None]:
    """Within this block `run_parts` uses so many processes, by default all cores, and tells how far it is.

    A process that another has started starts none by itself, and shows nothing; no more does a task of small size.
    """
    if size < SMALL:
        yield
        return
    import multiprocessing

    from firststep.compute.processes import reporting

    if multiprocessing.parent_process() is not None:
        workers, progress = workers or 1, progress or False
    with reporting(progress, 0, unit) as report:
        report.size = len
        token = _ASKED.set(_Asked(workers, report))
        try:
            yield
        finally:
            _ASKED.reset(token)


def run_parts(task: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], whole: int) -> list[Any]:
    """Results of a task for each of its argument tuples, the first of which holds the problem, in order.

    `whole` is the sum of their lengths. Outside of `in_parts` they are done one by one in silence.

    Examples
    --------
    >>> told = []
    >>> with in_parts(1, lambda done, total: told.append((done, total)), "numbers", 500):
    ...     run_parts(range, [(0, 2), (2, 5)], 5)
    [range(0, 2), range(2, 5)]
    >>> told
    [(2, 5), (5, 5)]
    """
    asked = _ASKED.get()
    if asked is None:
        return [task(*each) for each in arguments]
    from firststep.compute.processes import choose_workers, run_on_processes

    report, count = asked.report, len(arguments)
    report.total += whole
    workers = choose_workers(arguments[0][0], asked.workers, count, count < FEWEST, count)
    if workers > 1:
        return run_on_processes(workers, task, arguments, report)
    return [report.counted(task(*each)) for each in arguments]
