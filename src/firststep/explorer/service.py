"""What the server answers with: cached, shared between requests, and dropped when overtaken."""

import asyncio
import contextlib
import json
import math
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

import numpy as np

from firststep.explorer import views
from firststep.explorer.network import solve_network
from firststep.explorer.pool import Pool
from firststep.explorer.second import draw_second, solve_second
from firststep.explorer.state import NOT_IN_SPECTRA, State, exponents

# Answers kept: a curve is about 50 kB, a spectrum about 10 kB.
KEPT_CURVES, KEPT_SPECTRA, KEPT_FRAMES = 256, 2048, 256
# Clients for whom something is computed ahead.
MOST_AHEAD = 4
# Seconds without a request after which something is computed ahead.
QUIET = 0.6
# Seconds that a spectrum may be refined for a page.
REFINING_LIMIT = 25.0
# What a moving slider waits for goes first, then what is drawn at rest, then what only the store knows, and last what
# nobody has asked for yet.
URGENT, NORMAL, LAST, AHEAD = range(4)
# Curves: unchecked and interpolated; checked and interpolated, where exact ones take long; as `predict`.
QUALITIES = ("draft", "fair", "exact")
# What both step sliders set.
STEPS = ("step_size", "step_exponent", "next_step_exponent")
# Points that one process then solves before it looks for what is more urgent.
SLOW_POINTS = 4


class Overtaken(Exception):
    """A newer request of the same client and view makes this one pointless."""


class Cache:
    """The most recently used answers, and those under way, so that nothing is computed twice."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._done: OrderedDict[str, Any] = OrderedDict()
        self._under_way: dict[str, asyncio.Task[Any]] = {}
        self._waiting: dict[str, int] = {}

    def get(self, key: str) -> Any:
        """A finished answer, or None."""
        if key in self._done:
            self._done.move_to_end(key)
        return self._done.get(key)

    async def fetch(self, key: str, make: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """The answer; computed if need be, and given up when nobody waits for it any more."""
        found = self.get(key)
        if found is not None:
            return found
        task = self._under_way.get(key)
        if task is None:
            task = self._under_way[key] = asyncio.create_task(make())
        self._waiting[key] = self._waiting.get(key, 0) + 1
        try:
            value = await asyncio.shield(task)
        except asyncio.CancelledError:
            if self._waiting[key] == 1:
                task.cancel()
            raise
        finally:
            self._waiting[key] -= 1
            if not self._waiting[key]:
                del self._waiting[key]
                if self._under_way.get(key) is task:
                    del self._under_way[key]
        self.put(key, value)
        return value

    def put(self, key: str, value: Any) -> None:
        """Keep an answer that came another way."""
        self._done[key] = value
        while len(self._done) > self.size:
            self._done.popitem(last=False)


def _key(content: Mapping[str, Any], *more: Any) -> str:
    return json.dumps([dict(sorted(content.items())), *more], separators=(",", ":"))


def _spectrum_key(state: State, of: str, quality: str) -> str:
    return _key(state.model_dump(exclude={*NOT_IN_SPECTRA, "step_size"}), of, quality)


class Service:
    """Curves and spectra for states, through the pool.

    Parameters
    ----------
    pool : Pool
        For drafts of the curves, which follow a moving slider.
    patient : Pool, optional
        For spectra and for curves at rest, in processes that stand back for the former; the same pool if not given.
    background : Pool, optional
        For spectra at rest, and for what somebody may ask next; without it nothing is computed ahead.
    refining_limit : float
        Seconds that a spectrum may be refined.
    """

    def __init__(
        self,
        pool: Pool,
        patient: Pool | None = None,
        background: Pool | None = None,
        refining_limit: float = REFINING_LIMIT,
    ) -> None:
        self.pool, self.patient, self.background = pool, patient or pool, background
        self.refining_limit = refining_limit
        self.curves = Cache(KEPT_CURVES)
        self.frames = Cache(KEPT_FRAMES)
        self.spectra = Cache(KEPT_SPECTRA)
        self._latest: dict[tuple[str, str], asyncio.Task[Any]] = {}
        self._ahead: OrderedDict[str, asyncio.Task[None]] = OrderedDict()

    async def newest(self, client: str, view: str, work: Awaitable[Any]) -> Any:
        """Await something on behalf of a client's view; an earlier one for the same view is dropped."""
        task = asyncio.ensure_future(work)
        owner = (client, view)
        before = self._latest.pop(owner, None)
        if before is not None:
            before.cancel()
        self._latest[owner] = task
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            overtaken = task.cancelled()
            task.cancel()
            if overtaken:
                raise Overtaken from None
            raise
        finally:
            if self._latest.get(owner) is task:
                del self._latest[owner]

    async def curves_for(self, state: State, quality: str) -> dict[str, Any]:
        """Views 1 and 3 and the alignment of view 5, for every position of the step slider; as good as is known.

        `quality` is one of `QUALITIES`; the answer names the next better one as `finer`, where there is one. Where
        exact curves take long, only the chosen position is exact in the end, and the curves are fair.
        """
        content, slow = state.without_step(), views.slow(state)
        kept = QUALITIES[:2] if slow else QUALITIES[::2]
        better = (self.curves.get(_key(content, name)) for name in reversed(kept))
        found: dict[str, Any] | None = next((each for each in better if each is not None), None)
        wanted = quality if quality == "draft" else kept[-1]
        if found is None or kept.index(found["quality"]) < kept.index(wanted):
            found = await self.curves.fetch(_key(content, wanted), lambda: self._curves(state, wanted))
        # The cached answer does not know the position on the curve.
        alone = slow and quality == "exact"
        here = None if state.step_exponent in exponents() and not alone else await self._between(state)
        if alone:
            found = found | {"draft": False, "finer": None}
        shown = state.model_dump(exclude={"step_size"})
        return found | {"state": shown, "here": here, "copy": views.texts(state)}

    async def _between(self, state: State) -> dict[str, Any]:
        """What is shown at an exponent that is not one of the slider's positions."""
        frame = await self.frame_for(state)

        async def solve() -> dict[str, Any]:
            alpha = state.step_exponent
            solved = await self.pool.call(
                views.solve_points, state.model_dump(), [None, alpha], views.EXACT, priority=URGENT
            )
            curves = {
                name: np.array(solved[name][1:], dtype=float) for name in views.SOLVED if name in solved
            }
            (entry,) = views.positions(frame, curves, solved["test"][0], np.array([alpha]))
            return entry

        found: dict[str, Any] = await self.curves.fetch(_key(state.model_dump(), "here"), solve)
        return found

    async def frame_for(self, state: State) -> dict[str, Any]:
        """What surrounds the curves."""
        content = state.without_step()
        found: dict[str, Any] = await self.frames.fetch(
            _key(content), lambda: self.pool.call(views.solve_frame, state.model_dump(), priority=URGENT)
        )
        return found

    async def _curves(self, state: State, quality: str) -> dict[str, Any]:
        nodes = np.array(exponents()) if quality == "exact" else views.draft_nodes(state.n_samples)
        asked: list[float | None] = [None, *nodes.tolist()]
        # A draft is one batch, beside the frame. Otherwise easy and hard points are shared out evenly, in small parts
        # that can be dropped soon.
        tolerance, priority, pool, parts = {
            "draft": (views.DRAFT, URGENT, self.pool, 1),
            "fair": (views.FAIR, NORMAL, self.pool, math.ceil(len(asked) / SLOW_POINTS)),
            "exact": (views.EXACT, NORMAL, self.patient, 2 * self.patient.count),
        }[quality]
        described = state.model_dump()
        solved = [
            pool.call(views.solve_points, described, asked[i::parts], tolerance, priority=priority)
            for i in range(parts)
        ]
        frame, *found = await _together(self.frame_for(state), *solved)
        joined: dict[str, Any] = {"notes": sorted({note for part in found for note in part["notes"]})}
        for name in views.SOLVED:
            # Error bars only where every part has them.
            if not all(name in part for part in found):
                continue
            values: list[Any] = [None] * len(asked)
            for i, part in enumerate(found):
                values[i::parts] = part[name]
            joined[name] = values
        drawn = views.assemble(state, frame, joined, nodes, draft=quality != "exact")
        finer = {"draft": "fair" if views.slow(state) else "exact", "fair": "exact"}.get(quality)
        return drawn | {"quality": quality, "finer": finer}

    async def spectrum_for(self, state: State, of: str, draft: bool) -> dict[str, Any]:
        """Views 2 and 4: the spectrum at one step size; a draft also where refining it fails or takes too long."""
        key = _spectrum_key(state, of, "exact")
        found: dict[str, Any] | None = self.spectra.get(key)
        if found is None and not draft:
            # One that is being refined must not keep the next draft waiting.
            pool = self.background or self.patient
            with contextlib.suppress(TimeoutError, ArithmeticError, RuntimeError, MemoryError):
                async with asyncio.timeout(self.refining_limit):
                    found = await self.spectra.fetch(
                        key, lambda: self._spectrum(pool, state, of, draft=False, priority=NORMAL)
                    )
        if found is None:
            found = await self.spectra.fetch(
                _spectrum_key(state, of, "draft"),
                lambda: self._spectrum(self.patient, state, of, draft=True, priority=URGENT),
            )
        return dict(found)

    async def _spectrum(
        self, pool: Pool, state: State, of: str, *, draft: bool, priority: int
    ) -> dict[str, Any]:
        found = await pool.call(views.solve_spectrum, state.model_dump(), of, not draft, priority=priority)
        return views.draw_spectrum(state, of, found, draft and not found["final"])

    async def critical_for(self, state: State) -> dict[str, Any]:
        """Where spikes leave the bulk; nobody waits for it."""
        content = _key(state.model_dump(exclude={*NOT_IN_SPECTRA, *STEPS}), "critical")
        pool = self.background or self.patient
        found: dict[str, Any] = await self.spectra.fetch(
            content, lambda: pool.call(views.solve_critical, state.model_dump(), priority=LAST)
        )
        return found

    async def second_for(self, state: State) -> dict[str, Any]:
        """Errors and overlaps after a second step of every size."""
        content = state.model_dump(exclude={"step_size", "next_step_exponent"})

        async def solve() -> dict[str, Any]:
            found = await self.patient.call(solve_second, state.model_dump(), priority=NORMAL)
            return draw_second(state, found)

        answer: dict[str, Any] = await self.curves.fetch(_key(content, "second"), solve)
        return answer

    async def network_for(self, state: State) -> dict[str, Any]:
        """A drawn network."""
        content = _key(state.without_step(), "network")
        found: dict[str, Any] = await self.frames.fetch(
            content, lambda: self.patient.call(solve_network, state.model_dump(), priority=NORMAL)
        )
        return found

    def look_ahead(self, client: str, state: State) -> None:
        """Compute the spectra at the slider's other positions, nearest first, when the processor is free.

        Not those after two steps, of which each takes seconds.
        """
        if self.background is None or state.next_step_exponent is not None:
            return
        content = _key(state.model_dump(exclude={*NOT_IN_SPECTRA, *STEPS}))
        before = self._ahead.get(client)
        if before is not None and before.get_name() == content:
            return
        if before is not None:
            before.cancel()
        self._ahead[client] = asyncio.create_task(self._look_ahead(self.background, state), name=content)
        self._ahead.move_to_end(client)
        while len(self._ahead) > MOST_AHEAD:
            self._ahead.popitem(last=False)[1].cancel()

    async def _look_ahead(self, background: Pool, state: State) -> None:
        near = sorted(exponents(), key=lambda alpha: (abs(alpha - state.step_exponent), alpha))
        for alpha in near:
            there = state.model_copy(update={"step_exponent": alpha})
            for of in ("features", "weights"):
                key = _spectrum_key(there, of, "draft")
                if self.spectra.get(key) is not None:
                    continue
                while min(self.pool.quiet, self.patient.quiet) < QUIET:
                    await asyncio.sleep(QUIET / 3)
                # Not shared with those who wait for the same thing: this process stands back for all others.
                try:
                    found = await self._spectrum(background, there, of, draft=True, priority=AHEAD)
                except (ArithmeticError, RuntimeError, ValueError, MemoryError):
                    continue
                self.spectra.put(key, found)

    async def stop(self) -> None:
        """Give up everything under way."""
        tasks = [*self._ahead.values(), *self._latest.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _together(*work: Coroutine[Any, Any, Any]) -> list[Any]:
    """Results of all; when one fails or the wait is given up, the others are not computed for nothing."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()


def finite(value: Any) -> Any:
    """The same with None for numbers that JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [finite(entry) for entry in value]
    return value
