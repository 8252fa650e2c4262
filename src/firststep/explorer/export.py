"""A static version of the page: one file with precomputed numbers, that opens without a server."""

import asyncio
import base64
import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from firststep.explorer import views
from firststep.explorer.pages import SCRIPTS, page_text, palette
from firststep.explorer.pool import Pool
from firststep.explorer.service import Service, finite
from firststep.explorer.state import PRESETS, State, choices, exponents, next_exponents

# Values of n and of the ridge, as factors of a preset's own; every how many positions of the step slider a spectrum is
# computed; and, for presets with a second step, of which there is one n, every how many of the first slider there is
# one, and every how many of the second the spectrum after both.
GRIDS: dict[str, dict[str, Any]] = {
    "small": {"n": (1.0,), "ridge": (1.0,), "every": 15, "second": (60, 15), "presets": (0, 1, -1)},
    "full": {
        "n": (1.0, 1e2),
        "ridge": (0.1, 1.0, 10.0),
        "every": 3,
        "second": (5, 5),
        "presets": range(len(PRESETS)),
    },
}
# Seconds that one answer may take.
PATIENCE = 600.0
# Curves are left out where the theory gives none.
FAILURES = (ArithmeticError, RuntimeError, ValueError, MemoryError)


def write(
    directory: str,
    *,
    size: str = "full",
    workers: int = 2,
    progress: Callable[[int, int], None] | None = None,
) -> int:
    """Write the page with its numbers as `index.html`; its size in bytes.

    Parameters
    ----------
    directory : str
        Where to; made if it is not there.
    size : {"small", "full"}
        How many values are precomputed.
    workers : int
        Computing processes.
    progress : callable, optional
        Called with the parts done and their total.
    """
    place = Path(directory)
    place.mkdir(parents=True, exist_ok=True)
    parts = asyncio.run(_parts(GRIDS[size], workers, progress or (lambda done, total: None)))
    content = page(parts).encode()
    (place / "index.html").write_bytes(content)
    return len(content)


def page(parts: dict[str, Any]) -> str:
    """The page as one file: styles, scripts and numbers inside."""
    packed = {
        name: base64.b64encode(gzip.compress(_json(part).encode(), mtime=0)).decode()
        for name, part in parts.items()
    }
    icon = base64.b64encode(page_text("icon.svg", "").encode()).decode()
    text = page_text("index.html", "").replace(
        'name="firststep-mode" content="live"', 'name="firststep-mode" content="static"'
    )
    styles = f"<style>\n{palette()}{page_text('style.css', '')}</style>"
    code = "\n".join(
        [
            f"<script>{page_text('d3.js', '')}</script>",
            f"<script>window.firststepData = {_json(packed)};</script>",
            f"<script>document.addEventListener('DOMContentLoaded', () => {{\n{bundle()}}});</script>",
        ]
    )
    text = re.sub(r'<link rel="stylesheet"[^>]*>\n', "", text)
    text = re.sub(r"<script (defer|type)[^>]*></script>\n", "", text)
    text = text.replace("page/icon.svg", f"data:image/svg+xml;base64,{icon}")
    return text.replace("</head>", f"{styles}\n{code}\n</head>")


def bundle() -> str:
    """The page's modules as one script, since modules do not load from files."""
    code = "\n".join(page_text(name, "") for name in SCRIPTS)
    code = re.sub(r"^import .*;\n", "", code, flags=re.MULTILINE)
    return re.sub(r"^export ", "", code, flags=re.MULTILINE)


async def _parts(grid: dict[str, Any], workers: int, progress: Callable[[int, int], None]) -> dict[str, Any]:
    """The answers of the server for every place that the page can go to, by name."""
    names = [list(PRESETS)[place] for place in grid["presets"]]
    states = [State(**PRESETS[name]) for name in names]
    offered = choices() | {
        "presets": [
            {"name": name, "state": state.model_dump(exclude={"step_size"})}
            for name, state in zip(names, states, strict=True)
        ],
        # The page's sliders of n and of the ridge move along these.
        "start": {key: grid[key].index(1.0) for key in ("n", "ridge")},
        "grids": [
            {
                "n_samples": [state.n_samples * factor for factor in _factors(state, grid)],
                "ridge": [float(f"{state.ridge * factor:.6g}") for factor in grid["ridge"]],
            }
            for state in states
        ],
    }
    parts: dict[str, Any] = {"choices": offered}
    total = sum(_count(state, grid) for state in states)
    done = 0
    pool = Pool(workers, views.warm_up, time_limit=PATIENCE)
    pool.start()
    # Nobody waits: a busy machine must not leave drafts in the page.
    service = Service(pool, refining_limit=PATIENCE)
    # A refinement's own time limit must not pass while it waits for its turn.
    turns = asyncio.Semaphore(workers)
    try:
        for p, state in enumerate(states):
            async for name, part in _preset(service, state, offered["grids"][p], grid, turns):
                parts[name.format(p)] = part
                progress(done := done + 1, total)
    finally:
        await service.stop()
        await pool.stop()
    return parts


def _factors(state: State, grid: dict[str, Any]) -> tuple[float, ...]:
    """Factors of a preset's n."""
    factors: tuple[float, ...] = grid["n"] if state.next_step_exponent is None else (1.0,)
    return factors


def _count(state: State, grid: dict[str, Any]) -> int:
    """Parts of a preset."""
    each = len(grid["ridge"]) + 3 + (0 if state.next_step_exponent is None else 3)
    return 1 + len(_factors(state, grid)) * each


async def _preset(
    service: Service, state: State, grid: dict[str, Any], how: dict[str, Any], turns: asyncio.Semaphore
) -> Any:
    """Names, with a gap for the preset's number, and what belongs to them."""
    yield "network-{}", await service.network_for(state)
    for i, n in enumerate(grid["n_samples"]):
        whole = state.model_copy(update={"n_samples": n})
        at = whole.model_copy(update={"next_step_exponent": None})
        for j, ridge in enumerate(grid["ridge"]):
            there = at.model_copy(update={"ridge": ridge})
            yield f"curves-{{}}-{i}-{j}", await service.curves_for(there, "exact")
        for of in ("features", "weights"):
            yield f"spectra-{of}-{{}}-{i}", await _spectra(service, at, of, how["every"], turns)
        try:
            yield f"critical-{{}}-{i}", await service.critical_for(at)
        except FAILURES:
            yield f"critical-{{}}-{i}", {"critical": []}
        if state.next_step_exponent is None:
            continue
        yield f"second-{{}}-{i}", await _second(service, whole, grid["ridge"], how["second"][0], turns)
        for of in ("features", "weights"):
            yield f"both-{of}-{{}}-{i}", await _both(service, whole, of, how["second"], turns)


def _nearest(count: int, every: int) -> list[int]:
    """For each of so many positions the nearest of every how many of them, counted."""
    chosen = range(0, count, every)
    return [min(range(len(chosen)), key=lambda k: abs(chosen[k] - place)) for place in range(count)]


async def _second(
    service: Service, state: State, ridges: list[float], every: int, turns: asyncio.Semaphore
) -> dict[str, Any]:
    """A second step of every size after some first ones, for each ridge."""

    async def one(alpha: float, ridge: float) -> dict[str, Any]:
        async with turns:
            return await service.second_for(state.model_copy(update={"step_exponent": alpha, "ridge": ridge}))

    chosen = exponents()[::every]
    found = await asyncio.gather(*(one(alpha, ridge) for alpha in chosen for ridge in ridges))
    steps = [found[k : k + len(ridges)] for k in range(0, len(found), len(ridges))]
    return {"steps": steps, "nearest": _nearest(len(exponents()), every)}


async def _both(
    service: Service, state: State, of: str, every: tuple[int, int], turns: asyncio.Semaphore
) -> dict[str, Any]:
    """Spectra after both steps at some positions of both sliders."""

    async def one(alpha: float, later: float) -> dict[str, Any] | None:
        async with turns:
            there = state.model_copy(update={"step_exponent": alpha, "next_step_exponent": later})
            try:
                return await service.spectrum_for(there, of, draft=True)
            except FAILURES:
                return None

    first, second = exponents()[:: every[0]], next_exponents()[:: every[1]]
    found = await asyncio.gather(*(one(alpha, later) for alpha in first for later in second))
    return {
        "spectra": [found[k : k + len(second)] for k in range(0, len(found), len(second))],
        "nearest": _nearest(len(exponents()), every[0]),
        "nearest_next": _nearest(len(next_exponents()), every[1]),
    }


async def _spectra(
    service: Service, state: State, of: str, every: int, turns: asyncio.Semaphore
) -> dict[str, Any]:
    """Refined spectra at some positions of the slider, and for each position the nearest of them."""
    positions = exponents()
    asked = list(range(0, len(positions), every))

    async def one(index: int) -> dict[str, Any] | None:
        async with turns:
            try:
                there = state.model_copy(update={"step_exponent": positions[index]})
                return await service.spectrum_for(there, of, draft=False)
            except FAILURES:
                return None

    found = await asyncio.gather(*(one(index) for index in asked))
    known = [(index, spectrum) for index, spectrum in zip(asked, found, strict=True) if spectrum is not None]
    nearest = [
        min(range(len(known)), key=lambda k: abs(known[k][0] - position)) if known else None
        for position in range(len(positions))
    ]
    return {"spectra": [spectrum for _, spectrum in known], "nearest": nearest}


def _json(content: Any) -> str:
    # A closing tag inside a string would end the script.
    return json.dumps(finite(content), separators=(",", ":"), allow_nan=False).replace("</", "<\\/")
