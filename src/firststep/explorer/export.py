"""A static version of the page: the same files with precomputed numbers, for any web space."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from firststep import __version__
from firststep.explorer import views
from firststep.explorer.app import PAGE_FILES, page_text, palette
from firststep.explorer.service import Service, finite
from firststep.explorer.state import PRESETS, State, choices, exponents
from firststep.explorer.workers import Pool

# Values of n and of the ridge, as factors of a preset's own, and every how many positions a spectrum is computed.
GRIDS: dict[str, dict[str, Any]] = {
    "small": {"n": (1.0,), "ridge": (1.0,), "every": 15, "presets": 2},
    "full": {"n": (1.0, 1e2, 1e6), "ridge": (0.1, 1.0, 10.0), "every": 3, "presets": len(PRESETS)},
}


def write(
    directory: str,
    *,
    size: str = "full",
    workers: int = 2,
    progress: Callable[[int, int], None] | None = None,
) -> int:
    """Write the page and its numbers; the number of files written.

    Parameters
    ----------
    directory : str
        Where to; made if it is not there.
    size : {"small", "full"}
        How many values are precomputed.
    workers : int
        Computing processes.
    progress : callable, optional
        Called with the files done and their total.
    """
    return asyncio.run(_write(Path(directory), GRIDS[size], workers, progress or (lambda done, total: None)))


async def _write(
    place: Path, grid: dict[str, Any], workers: int, progress: Callable[[int, int], None]
) -> int:
    data, page = place / "data", place / "page"
    for folder in (data, page):
        folder.mkdir(parents=True, exist_ok=True)
    text = page_text("index.html", "").replace(
        'name="firststep-mode" content="live"', 'name="firststep-mode" content="static"'
    )
    (place / "index.html").write_text(text, encoding="utf-8")
    (page / "palette.css").write_text(palette(), encoding="utf-8")
    for name in PAGE_FILES:
        (page / name).write_text(page_text(name, ""), encoding="utf-8")
    names = list(PRESETS)[: grid["presets"]]
    states = [State(**PRESETS[name]) for name in names]
    middle = {key: grid[key].index(1.0) for key in ("n", "ridge")}
    offered = choices() | {
        "presets": [
            {"name": name, "state": state.model_dump(exclude={"step_size"})}
            for name, state in zip(names, states, strict=True)
        ],
        # The page's sliders of n and of the ridge move along these factors.
        "start": middle,
        "version": __version__,
    }
    offered["grids"] = [
        {
            "n_samples": [state.n_samples * factor for factor in grid["n"]],
            "ridge": [float(f"{state.ridge * factor:.6g}") for factor in grid["ridge"]],
        }
        for state in states
    ]
    _save(data / "choices.json", offered)
    total = len(states) * len(grid["n"]) * (len(grid["ridge"]) + 2)
    done = 0
    pool = Pool(workers, views.warm_up, time_limit=120.0)
    pool.start()
    service = Service(pool)
    try:
        for p, state in enumerate(states):
            for i, n in enumerate(offered["grids"][p]["n_samples"]):
                for j, ridge in enumerate(offered["grids"][p]["ridge"]):
                    at = state.model_copy(update={"n_samples": n, "ridge": ridge})
                    _save(data / f"curves-{p}-{i}-{j}.json", await service.curves_for(at, draft=False))
                    progress(done := done + 1, total)
                for of in ("features", "weights"):
                    at = state.model_copy(update={"n_samples": n})
                    _save(data / f"spectra-{of}-{p}-{i}.json", await _spectra(service, at, of, grid["every"]))
                    progress(done := done + 1, total)
    finally:
        await service.stop()
        await pool.stop()
    return sum(file.is_file() for file in place.rglob("*"))


async def _spectra(service: Service, state: State, of: str, every: int) -> dict[str, Any]:
    """Spectra at some positions of the slider, and for each position the nearest of them."""
    positions = exponents()
    asked = list(range(0, len(positions), every))

    async def one(index: int) -> dict[str, Any] | None:
        try:
            return await service.spectrum_for(
                state.model_copy(update={"step_exponent": positions[index]}), of, draft=True
            )
        except (ArithmeticError, RuntimeError, ValueError, MemoryError):
            return None

    found = await asyncio.gather(*(one(index) for index in asked))
    known = [(index, spectrum) for index, spectrum in zip(asked, found, strict=True) if spectrum is not None]
    nearest = [
        min(range(len(known)), key=lambda k: abs(known[k][0] - position)) if known else None
        for position in range(len(positions))
    ]
    return {"spectra": [spectrum for _, spectrum in known], "nearest": nearest}


def _save(file: Path, content: Any) -> None:
    file.write_text(json.dumps(finite(content), separators=(",", ":"), allow_nan=False), encoding="utf-8")
