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
from firststep.explorer.state import PRESETS, State, choices, exponents

# Values of n and of the ridge, as factors of a preset's own, and every how many positions a spectrum is computed.
GRIDS: dict[str, dict[str, Any]] = {
    "small": {"n": (1.0,), "ridge": (1.0,), "every": 15, "presets": 2},
    "full": {"n": (1.0, 1e2), "ridge": (0.1, 1.0, 10.0), "every": 3, "presets": len(PRESETS)},
}
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
    names = list(PRESETS)[: grid["presets"]]
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
                "n_samples": [state.n_samples * factor for factor in grid["n"]],
                "ridge": [float(f"{state.ridge * factor:.6g}") for factor in grid["ridge"]],
            }
            for state in states
        ],
    }
    parts: dict[str, Any] = {"choices": offered}
    total, done = len(states) * (1 + len(grid["n"]) * (len(grid["ridge"]) + 3)), 0
    pool = Pool(workers, views.warm_up, time_limit=600.0)
    pool.start()
    service = Service(pool)
    # A refinement's own time limit must not pass while it waits for its turn.
    turns = asyncio.Semaphore(workers)
    try:
        for p, state in enumerate(states):
            async for name, part in _preset(service, state, offered["grids"][p], grid["every"], turns):
                parts[name.format(p)] = part
                progress(done := done + 1, total)
    finally:
        await service.stop()
        await pool.stop()
    return parts


async def _preset(
    service: Service, state: State, grid: dict[str, Any], every: int, turns: asyncio.Semaphore
) -> Any:
    """Names, with a gap for the preset's number, and what belongs to them."""
    yield "network-{}", await service.network_for(state)
    for i, n in enumerate(grid["n_samples"]):
        at = state.model_copy(update={"n_samples": n})
        for j, ridge in enumerate(grid["ridge"]):
            there = at.model_copy(update={"ridge": ridge})
            yield f"curves-{{}}-{i}-{j}", await service.curves_for(there, "exact")
        for of in ("features", "weights"):
            yield f"spectra-{of}-{{}}-{i}", await _spectra(service, at, of, every, turns)
        try:
            yield f"critical-{{}}-{i}", await service.critical_for(at)
        except FAILURES:
            yield f"critical-{{}}-{i}", {"critical": []}


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
