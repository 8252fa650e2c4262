"""How far the theory of two steps is from drawn networks: a table of errors, and the weights' outliers on a grid.

Run as ``python benchmarks/steps.py [--draw REPLICAS]``. Without ``--draw`` the saved draws
(benchmarks/results/steps.json) are compared with the theory of today; with it, missing ones are drawn first: about
twenty minutes on one core for 16 replicas. What is drawn is kept: stop it at will.
"""

import argparse
import json
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from firststep import Problem, Sizes, predict, predict_spectrum, simulate, simulate_spectrum

SAVED = Path(__file__).parent / "results" / "steps.json"
PROBLEM = Problem("relu", "t1 + t1*t2", noise_std=0.3, rows="sphere")
TABLE = ((0.35, None), (0.35, 0.35), (0.35, 0.5), (0.5, None), (0.5, 0.5))
TABLE_SIZES, RIDGE, TABLE_REPLICAS = Sizes(1500, 300, 600), 0.05, 5
GRID, GRID_SIZES = (0.1, 0.18, 0.26, 0.34, 0.42, 0.5), Sizes(2000, 1000, 1500)
QUANTITIES = ("train_error", "test_error", "learned_t1", "learned_t1_t2", "top1_t1", "top2_t2")
SEED = 17


def drawn_errors(first: float, second: float | None, replicas: int) -> dict[str, list[float]]:
    """Means and standard errors of a row of the table."""
    later = {} if second is None else {"next_step_exponents": second}
    found = simulate(
        PROBLEM,
        TABLE_SIZES,
        step_exponents=first,
        ridges=RIDGE,
        replicas=replicas,
        seed=SEED,
        extras=["directions", "learned"],
        **later,
    )
    return {
        name: [float(found.values[name].ravel()[0]), float(found.stderr[name].ravel()[0])]
        for name in QUANTITIES
    }


def drawn_outliers(second: float, replicas: int) -> list[Any]:
    """For each first step both eigenvalues and the overlap of t2 with the second vector, with standard errors."""
    spectra = simulate_spectrum(
        PROBLEM,
        GRID_SIZES,
        step_exponent=list(GRID),
        next_step_exponents=second,
        of="weights",
        replicas=replicas,
        seed=SEED,
        count=2,
        bulk=False,
    )
    return [
        [[o.eigenvalue, spectrum.details["stderr"][k]["eigenvalue"]] for k, o in enumerate(spectrum.outliers)]
        for spectrum in spectra
    ]


def drawn(replicas: int) -> dict[str, Any]:
    """What is saved, after missing draws were made."""
    saved: dict[str, Any] = json.loads(SAVED.read_text()) if SAVED.exists() else {}
    if not replicas:
        return saved
    for first, second in TABLE:
        name = f"errors {first} {second}"
        if name not in saved:
            saved[name] = drawn_errors(first, second, TABLE_REPLICAS * replicas)
            SAVED.write_text(json.dumps(saved, indent=1) + "\n")
    for second in GRID:
        name = f"outliers {second}"
        if name not in saved:
            saved[name] = drawn_outliers(second, replicas)
            SAVED.write_text(json.dumps(saved, indent=1) + "\n")
    return saved


def table_of(saved: dict[str, Any]) -> None:
    """Errors, overlaps and shares: drawn (standard error), theory."""
    print("| steps | " + " | ".join(QUANTITIES) + " |\n" + "| --- " * (len(QUANTITIES) + 1) + "|")
    for first, second in TABLE:
        row = saved.get(f"errors {first} {second}")
        if row is None:
            continue
        # A second step of size zero is none, and has the overlaps.
        later = {"next_step_sizes": 0.0} if second is None else {"next_step_exponents": second}
        theory = predict(PROBLEM, TABLE_SIZES, step_exponents=first, ridges=RIDGE, **later)
        cells = [f"{row[q][0]:.3f}({row[q][1]:.3f}) {theory.values[q].ravel()[0]:.3f}" for q in QUANTITIES]
        print(f"| {first}, {second} | " + " | ".join(cells) + " |", flush=True)


def grid_of(saved: dict[str, Any]) -> None:
    """Relative differences of both outliers in per cent, with those in standard errors."""
    relative: list[list[float]] = [[], []]
    for second in GRID:
        row = saved.get(f"outliers {second}")
        if row is None:
            continue
        cells = []
        for first, pair in zip(GRID, row, strict=True):
            found = predict_spectrum(
                PROBLEM, GRID_SIZES, step_exponent=first, next_step_exponents=second, of="weights"
            )
            texts = []
            for k, outlier in enumerate(found.outliers[:2]):
                value, error = pair[k]
                relative[k].append(outlier.eigenvalue / value - 1)
                texts.append(f"{relative[k][-1]:+.1%} ± {error / value:.1%}")
            cells.append(", ".join(texts))
        print(f"| α₂ = {second} | " + " | ".join(cells) + " |", flush=True)
    for k, values in enumerate(relative):
        if values:
            size = np.abs(values)
            print(f"outlier {k + 1}: {len(size)} cells, median {np.median(size):.1%}, ", end="")
            print(f"within 2 %: {np.mean(size <= 0.02):.0%}, largest {size.max():.1%}")


def curve_time() -> None:
    """Seconds of one core for a curve of 60 second steps."""
    exponents = np.linspace(0.05, 0.5, 60)
    predict(PROBLEM, TABLE_SIZES, step_exponents=0.3, next_step_exponents=0.3, ridges=RIDGE)
    start = time.process_time()
    predict(PROBLEM, TABLE_SIZES, step_exponents=0.35, next_step_exponents=exponents, ridges=RIDGE)
    print(f"60 points of a curve over the second step: {time.process_time() - start:.1f} s of one core")


def main() -> None:
    reader = argparse.ArgumentParser(description=__doc__)
    reader.add_argument("--draw", type=int, default=0, metavar="REPLICAS")
    given = reader.parse_args()
    warnings.simplefilter("ignore")
    saved = drawn(given.draw)
    table_of(saved)
    grid_of(saved)
    curve_time()


if __name__ == "__main__":
    main()
