"""Seconds for one predicted spectrum, and how its density moves under refinement.

Run on an idle core: ``OPENBLAS_NUM_THREADS=1 python benchmarks/spectrum.py``. A slider wants half a second.
"""

import time

import numpy as np

from firststep.problem import Problem, Sizes
from firststep.theory import spectrum
from firststep.theory.coefficients import Resolution

FINER = Resolution(24, 0.5, 7)


def main() -> None:
    sizes = Sizes(2000, 1000, 1500)
    print(f"{'problem':34s} {'alpha':>5s} {'cpu s':>6s} {'mass - 1':>9s} {'moved':>8s}  outliers")
    usual = spectrum.RESOLUTION
    for activation in ("relu", "tanh", "softplus"):
        for output in ("vanishing", "order_one"):
            problem = Problem(activation, "h1 + h2/sqrt(2)", 0.5, initial_output=output)
            for of in ("features", "weights"):
                # The first call fills caches that a slider finds full.
                spectrum.predict_spectrum(problem, sizes, 1.0, of=of)
                for alpha in (0.2, 0.4):
                    step = sizes.step_size(alpha)
                    started = time.process_time()
                    found = spectrum.predict_spectrum(problem, sizes, step, of=of)
                    seconds = time.process_time() - started
                    moved = np.nan
                    if of == "features":
                        spectrum.RESOLUTION = FINER
                        x = found.x[2:-2:14]
                        fine = spectrum._FeatureBulk(problem, sizes, step, "structured").approached(x).density
                        spectrum.RESOLUTION = usual
                        moved = float(np.abs(fine - found.density[2:-2:14]).max() / found.density.max())
                    outliers = ", ".join(f"{o.eigenvalue:.2f}" for o in found.outliers)
                    name = f"{activation} {output} {of}"
                    mass = found.details["mass"] - 1
                    print(f"{name:34s} {alpha:5.2f} {seconds:6.2f} {mass:9.1e} {moved:8.1e}  {outliers}")


if __name__ == "__main__":
    main()
