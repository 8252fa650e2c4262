"""Seconds for one predicted spectrum, and how its density moves under refinement.

    ./run python benchmarks/spectrum.py             # a table of problems at n = 2000
    ./run python benchmarks/spectrum.py --hard      # all readouts, ratios up to 3, up to eta = sqrt(N)

A slider wants half a second of an idle core. The density is compared with one at twice the resolution, which is
approached from the complex plane anew; differences are in units of the density's maximum.
"""

import argparse
import os
import time
from dataclasses import replace

for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import numpy as np  # noqa: E402 - not before the lines above

from firststep import Problem, Sizes, Spectrum, predict_spectrum  # noqa: E402
from firststep.theory.feature_bulk import FeatureBulk  # noqa: E402

TEACHER, NOISE = "h1 + h2/sqrt(2)", 0.5
# A point in so many is solved again.
EVERY = 13
SIZES = ((2000, 1000, 1500), (1000, 1000, 3000), (3000, 1000, 1000), (1000, 333, 1000), (600, 1800, 900))


def moved(found: Spectrum) -> float:
    """Largest change of the density when solved at twice the resolution, in units of its maximum."""
    used = found.details["resolution"]
    finer = replace(
        used,
        nodes=2 * used.nodes,
        readout_spacing=max(used.readout_spacing / 2, 0.12),
        rest_levels=min(2 * used.rest_levels, used.rest_levels + 16),
        negligible=used.negligible / 10,
    )
    bulk = FeatureBulk(found.problem, found.sizes, found.step_size, "structured", resolution=finer)
    some = slice(5, None, EVERY)
    again = bulk.approached(found.x[some]).density
    return float(np.abs(again - found.density[some]).max() / found.density.max())


def show(problem: Problem, sizes: Sizes, alpha: float, of: str) -> None:
    """One line of the table."""
    started = time.process_time()
    found = predict_spectrum(problem, sizes, sizes.step_size(alpha), of=of)
    seconds = time.process_time() - started
    change = moved(found) if of == "features" else np.nan
    outliers = ", ".join(f"{outlier.eigenvalue:.4g}" for outlier in found.outliers)
    shape = f"{sizes.n_samples}, {sizes.dim}, {sizes.width}"
    name = f"{problem.activation.spec}, {problem.readout}, {problem.initial_output}, {of}"
    details = found.details
    print(
        f"{name:42s} {shape:16s} {alpha:5.2f} {seconds:6.2f} {details['mass'] - 1:9.1e} "
        f"{details['accuracy']:8.0e} {change:8.0e}  {outliers}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hard", action="store_true", help="problems whose bulk is hard to resolve")
    arguments = parser.parse_args()
    print(
        f"{'problem':42s} {'n, d, N':16s} {'alpha':>5s} {'cpu s':>6s} {'mass - 1':>9s} {'claimed':>8s} "
        f"{'moved':>8s}  outliers"
    )
    if arguments.hard:
        for alpha in (0.2, 0.35, 0.5):
            for activation in ("relu", "tanh", "softplus"):
                for readout in ("gaussian", "rademacher", "constant"):
                    problem = Problem(activation, TEACHER, NOISE, readout=readout)
                    for shape in SIZES:
                        show(problem, Sizes(*shape), alpha, "features")
        return
    sizes = Sizes(*SIZES[0])
    for activation in ("relu", "tanh", "softplus"):
        for output in ("vanishing", "order_one"):
            problem = Problem(activation, TEACHER, NOISE, initial_output=output)
            for of in ("features", "weights"):
                # The first call fills caches that a slider finds full.
                predict_spectrum(problem, sizes, 1.0, of=of)
                for alpha in (0.2, 0.4):
                    show(problem, sizes, alpha, of)


if __name__ == "__main__":
    main()
