"""The figure of the README and of the paper: drawn networks beside the theory. Takes some minutes on two cores.

    python benchmarks/readme_figure.py [FILE ...]

Every point has networks of its own, so that points scatter about the line as their standard errors say; with the same
draws for all they would lie on one side of it together. Control variates (differences of the draws from their known
means) take out much of the luck of the draws. How far the points are from the line is printed.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from firststep import Problem, Sizes, predict, simulate
from firststep.figures import errors_against_step, save
from firststep.theory.limits.bounds import best_linear_error

ROOT = Path(__file__).parent.parent
TARGETS = [ROOT / "docs" / "images" / "errors-against-step.svg", ROOT / "paper" / "errors-against-step.png"]
REPLICAS = 100


def main(targets: Sequence[Path]) -> None:
    """Compute, draw, and print how far the points are from the line."""
    problem = Problem("relu", "h1 + h2/sqrt(2)", noise_std=0.5, rows="sphere")
    sizes, exponents = Sizes(1000, 500, 750), np.linspace(0, 0.5, 11)
    line = predict(problem, sizes, step_exponents=np.linspace(0, 0.5, 101), ridges=0.1)
    windows = [(k - 1) / (2 * k) + 1e-3 for k in range(1, 20)]
    stairs = predict(problem, sizes, step_exponents=windows, ridges=0.1, theory="staircase")
    there = predict(problem, sizes, step_exponents=exponents, ridges=0.1)
    drawn = [
        simulate(
            problem,
            sizes,
            step_exponents=[alpha],
            ridges=0.1,
            replicas=REPLICAS,
            seed=place,
            extras=["controls"],
        )
        for place, alpha in enumerate(exponents)
    ]
    figure = errors_against_step([line, stairs, *drawn], linear=best_linear_error(problem))
    for target in targets:
        save(figure, target)
    for name in ("train_error", "test_error"):
        predicted = there.values[name][:, 0]
        off = 100 * (np.array([outcome.values[name][0, 0] for outcome in drawn]) / predicted - 1)
        error = 100 * np.array([outcome.stderr[name][0, 0] for outcome in drawn]) / predicted
        sys.stdout.write(
            f"{name}: simulation minus theory {off.min():+.2f} to {off.max():+.2f} %, "
            f"standard errors {error.min():.2f} to {error.max():.2f} %\n"
            f"    in standard errors {' '.join(f'{value:+.1f}' for value in off / error)}\n"
        )


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]] or TARGETS)
