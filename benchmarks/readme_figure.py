"""The figure of the README and of the paper: 200 drawn networks beside the theory. Takes some two minutes on two cores.

    python benchmarks/readme_figure.py [FILE ...]

Control variates (differences of the draws from their known means) take out most of what all points have in common, the
luck of the draws; what is left of the distance to the line is the theory's own, and is printed.
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


def main(targets: Sequence[Path]) -> None:
    """Compute, draw, and print how far the points are from the line."""
    problem = Problem("relu", "h1 + h2/sqrt(2)", noise_std=0.5, rows="sphere")
    sizes, exponents = Sizes(1000, 500, 750), np.linspace(0, 0.5, 11)
    drawn = simulate(
        problem, sizes, step_exponents=exponents, ridges=0.1, replicas=200, seed=0, extras=["controls"]
    )
    line = predict(problem, sizes, step_exponents=np.linspace(0, 0.5, 101), ridges=0.1)
    windows = [(k - 1) / (2 * k) + 1e-3 for k in range(1, 20)]
    stairs = predict(problem, sizes, step_exponents=windows, ridges=0.1, theory="staircase")
    figure = errors_against_step([line, stairs, drawn], linear=best_linear_error(problem))
    for target in targets:
        save(figure, target)
    there = predict(problem, sizes, step_exponents=exponents, ridges=0.1)
    for name in ("train_error", "test_error"):
        off = 100 * (drawn[name] / there[name] - 1)[:, 0]
        error = 100 * (drawn.stderr[name] / there[name])[:, 0]
        sys.stdout.write(
            f"{name}: simulation minus theory {off.min():+.2f} to {off.max():+.2f} %, "
            f"standard errors {error.min():.2f} to {error.max():.2f} %\n"
        )


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]] or TARGETS)
