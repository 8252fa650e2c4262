"""From a slider's event to the new picture, measured in the browser: python benchmarks/explorer.py

Prints median and 90th percentile in milliseconds for the views, each over a drag of one slider; needs chromium.
"""

import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from chromium import SETTLED, chromium, explorer, slide


def drag(page: Any, slider: str, places: list[int], pause: float) -> None:
    for place in places:
        slide(page, slider, place)
        page.wait_for_timeout(pause)


def processor_seconds(parent: int) -> float:
    """Time that a process and its children have computed so far, whatever else the machine does."""
    total = 0
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = file.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == parent or file.parent.name == str(parent):
            total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


def report(name: str, wanted: float, times: list[float]) -> None:
    if not times:
        print(f"{name:58s} nothing was drawn")
        return
    ordered = sorted(times)
    high = ordered[min(len(ordered) - 1, int(0.9 * len(ordered)))]
    middle = statistics.median(times)
    verdict = "met" if middle < wanted else "missed"
    print(
        f"{name:58s} median {middle:6.1f} ms   90 % {high:6.1f} ms   of {len(times):3d}   wanted {wanted:g}: {verdict}"
    )


def main() -> None:
    store = Path(tempfile.mkdtemp()) / "store.db"
    print(f"{os.cpu_count()} cores, load before {os.getloadavg()[0]:.1f}")
    with explorer(store) as (address, server), chromium() as browser:
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.set_default_timeout(120_000)
        page.goto(f"{address}?n_samples=1000")
        page.wait_for_selector(SETTLED)
        page.wait_for_selector("#chart-weights path.bulk")

        def times(name: str) -> list[float]:
            return page.evaluate(f"window.firststepTimings.{name}.splice(0)")

        def clear() -> None:
            for name in ("curves", "spectrum", "local"):
                times(name)

        clear()
        drag(page, "step_exponent", list(range(10, 60)), 40)
        page.wait_for_selector(SETTLED)
        report("views 1 and 3, 61 step sizes, step slider", 100, times("local"))
        page.wait_for_timeout(1000)
        report("spectrum, step slider, new problem", 250, times("spectrum"))
        print("    waiting for the other positions to be computed ahead")
        page.wait_for_timeout(30_000)
        clear()
        drag(page, "step_exponent", list(range(60, 0, -1)), 40)
        page.wait_for_timeout(1000)
        report("spectrum, step slider, some seconds later", 250, times("spectrum"))
        clear()
        before = processor_seconds(server)
        drag(page, "ridge-slider", list(range(20, 50)), 210)
        spent = processor_seconds(server) - before
        page.wait_for_selector(SETTLED)
        print(f"    processor time of a redraw, on all processes: {1e3 * spent / 30:.0f} ms")
        report("views 1 and 3, 61 step sizes, ridge slider, one by one", 100, times("curves"))
        clear()
        drag(page, "noise_std-slider", list(range(1, 40)), 30)
        page.wait_for_selector(SETTLED)
        report("views 1 and 3, 61 step sizes, noise slider, fast drag", 100, times("curves"))
        clear()
        drag(page, "width_per_sample-slider", list(range(3, 19)), 900)
        page.wait_for_selector(SETTLED)
        report("views 1 and 3, 61 step sizes, width slider", 100, times("curves"))
        report("spectrum, width slider", 250, times("spectrum"))
    print(f"load after {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
