"""How far the theory of two steps is from drawn networks: a table of errors, and the weights' outliers on a grid.

Run as ``python benchmarks/steps.py [--draw NETWORKS]``. Without ``--draw`` the saved draws
(benchmarks/results/steps.json) are compared with the theory of today; with it, missing ones are drawn first: networks
of the table, and as many for the whole grid, about four seconds each on one core. What is drawn is kept: stop it at
will.

On the grid means are taken after regression on statistics of the draws whose expectations are known: labels of both
samples have a tail, and without it 200 networks would leave a standard error of one per cent.
"""

import argparse
import json
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse.linalg import eigsh

from firststep import Problem, Sizes, predict, predict_spectrum, simulate
from firststep.arrays import gradient_step

SAVED = Path(__file__).parent / "results" / "steps.json"
PROBLEM = Problem("relu", "t1 + t1*t2", noise_std=0.3, rows="sphere")
TABLE = ((0.35, None), (0.35, 0.35), (0.35, 0.5), (0.5, None), (0.5, 0.5))
TABLE_SIZES, RIDGE, TABLE_REPLICAS = Sizes(1500, 300, 600), 0.05, 80
GRID, GRID_SIZES = (0.1, 0.18, 0.26, 0.34, 0.42, 0.5), Sizes(2000, 1000, 1500)
QUANTITIES = ("train_error", "test_error", "learned_t1", "learned_t1_t2", "top1_t1", "top2_t2")
SEED = 17
# An outlier is compared where the theory has it this far beyond the bulk, in units of its edge. Nearer, it stands among
# eigenvalues that single large labels make, and the second largest eigenvalue of a draw is now the one, now the other.
OUTSIDE = 1.1


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


def drawn_outliers(number: int) -> dict[str, list[float]]:
    """Both largest eigenvalues of a network for all pairs of steps, second step outermost, and its controls."""
    n, d, width = GRID_SIZES.n_step_samples, GRID_SIZES.dim, GRID_SIZES.width
    rng = np.random.default_rng([SEED, number])
    weights = np.asarray(PROBLEM.row_law.rows(rng.standard_normal((width, d))), dtype=np.float32)
    readout = PROBLEM.readout_law.draw(lambda: rng, width)
    samples = []
    for _ in range(2):
        inputs = rng.standard_normal((n, d), dtype=np.float32)
        labels = PROBLEM.teacher.at(inputs[:, :2]) + PROBLEM.noise_std * rng.standard_normal(n)
        samples.append((inputs, labels.astype(np.float32)))
    rest = (readout / np.sqrt(width)).astype(np.float32), PROBLEM.activation, PROBLEM.output_law.scale(width)
    first = gradient_step(*samples[0], weights, *rest).gradient
    found = np.empty((len(GRID), len(GRID), 2))
    for i, exponent in enumerate(GRID):
        before = weights + np.float32(n**exponent) * first
        second = gradient_step(*samples[1], before, *rest).gradient
        for j, later in enumerate(GRID):
            after = before + np.float32(n**later) * second
            gram = (after.T @ after).astype(np.float64)
            values = eigsh(gram, k=2, which="LA", return_eigenvectors=False, tol=1e-6, ncv=20)
            found[j, i] = np.sort(values)[::-1]
    return {"outliers": found.ravel().tolist(), "controls": controls_of(samples, readout)}


def controls_of(samples: list[Any], readout: Any) -> list[float]:
    """Moments of labels and readouts less their expectations, E y^2 = 2.09 and E y^4 = 31.1 among them."""
    v = PROBLEM.noise_variance
    found = [float(np.mean(readout**2)) - 1, float(np.mean(readout**4)) - 3]
    for inputs, labels in samples:
        t1, t2 = inputs[:, 0], inputs[:, 1]
        known = (
            (labels**2, 2 + v),
            (labels**4, 30 + 12 * v + 3 * v**2),
            (t1 * labels, 1),
            (t1 * t2 * labels, 1),
        )
        found += [float(np.mean(x, dtype=np.float64)) - mean for x, mean in known]
    return found


def grid_means(draws: list[dict[str, list[float]]]) -> tuple[Any, Any]:
    """Means and standard errors (second step, first step, outlier) after regression on the controls."""
    values, controls = (np.array([draw[name] for draw in draws]) for name in ("outliers", "controls"))
    design = np.concatenate([np.ones((len(draws), 1)), controls], axis=1)
    inverse = np.linalg.inv(design.T @ design)
    fit = inverse @ design.T @ values
    left = ((values - design @ fit) ** 2).sum(axis=0) / (len(draws) - design.shape[1])
    shape = (len(GRID), len(GRID), 2)
    return fit[0].reshape(shape), np.sqrt(left * inverse[0, 0]).reshape(shape)


def drawn(replicas: int) -> dict[str, Any]:
    """What is saved, after missing draws were made."""
    saved: dict[str, Any] = json.loads(SAVED.read_text()) if SAVED.exists() else {}
    if not replicas:
        return saved
    for first, second in TABLE:
        name = f"errors {first} {second}"
        if name not in saved:
            saved[name] = drawn_errors(first, second, TABLE_REPLICAS)
            SAVED.write_text(json.dumps(saved) + "\n")
    grid = saved.setdefault("grid", [])
    while len(grid) < replicas:
        draw = drawn_outliers(len(grid))
        grid.append({name: [float(f"{x:.6g}") for x in found] for name, found in draw.items()})
        SAVED.write_text(json.dumps(saved) + "\n")
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
    """Relative differences of both outliers in per cent, with standard errors, and in units of the edge."""
    if not saved.get("grid"):
        return
    means, errors = grid_means(saved["grid"])
    print(f"{len(saved['grid'])} networks; first outlier, then second; columns are first steps")
    compared: list[list[float]] = [[], []]
    for j, second in enumerate(GRID):
        cells = []
        for i, first in enumerate(GRID):
            found = predict_spectrum(
                PROBLEM, GRID_SIZES, step_exponent=first, next_step_exponents=second, of="weights"
            )
            texts = []
            for k, outlier in enumerate(found.outliers[:2]):
                value, error = means[j, i, k], errors[j, i, k]
                difference, beyond = outlier.eigenvalue / value - 1, outlier.eigenvalue / found.edges[-1]
                texts.append(f"{difference:+.1%} ± {error / value:.1%} at {beyond:.2f}")
                if beyond >= OUTSIDE:
                    compared[k].append(abs(difference))
            cells.append(", ".join(texts))
        print(f"| α₂ = {second} | " + " | ".join(cells) + " |", flush=True)
    for k, sizes in enumerate(compared):
        print(
            f"outlier {k + 1}: {len(sizes)} cells beyond {OUTSIDE} edges, median {np.median(sizes):.1%}, ",
            end="",
        )
        print(f"within 2 %: {np.mean(np.array(sizes) <= 0.02):.0%}, largest {max(sizes):.1%}")


def curve_time() -> None:
    """Seconds of one core for a curve of 60 second steps."""
    exponents = np.linspace(0.05, 0.5, 60)
    predict(PROBLEM, TABLE_SIZES, step_exponents=0.3, next_step_exponents=0.3, ridges=RIDGE)
    start = time.process_time()
    predict(PROBLEM, TABLE_SIZES, step_exponents=0.35, next_step_exponents=exponents, ridges=RIDGE)
    print(f"60 points of a curve over the second step: {time.process_time() - start:.1f} s of one core")


def main() -> None:
    reader = argparse.ArgumentParser(description=__doc__)
    reader.add_argument("--draw", type=int, default=0, metavar="NETWORKS")
    given = reader.parse_args()
    warnings.simplefilter("ignore")
    saved = drawn(given.draw)
    table_of(saved)
    grid_of(saved)
    curve_time()


if __name__ == "__main__":
    main()
