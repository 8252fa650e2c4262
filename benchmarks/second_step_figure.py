"""The README's figure of a second step: drawn networks beside the theory. Takes some minutes on two cores.

    python benchmarks/second_step_figure.py [FILE ...]

Every point has networks of its own. How far the points are from the lines is printed.
"""

import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from firststep import Problem, Sizes, predict, simulate
from firststep.figures import Figure, Panel, Series, save
from firststep.setting import OutsideTheoryWarning

TARGETS = [Path(__file__).parent.parent / "docs" / "images" / "second-step-errors.svg"]
PROBLEM = Problem("relu", "t1 + t1*t2", noise_std=0.3, rows="sphere")
SIZES, RIDGE, REPLICAS = Sizes(1500, 300, 600), 0.05, 8
FIRST = (0.2, 0.35, 0.5)
FINE, COARSE = np.linspace(0, 0.5, 26), np.linspace(0.05, 0.5, 7)
QUANTITIES = {"test_error": "test error", "top2_t2": "overlap² of t₂, second vector"}


def panels() -> list[Panel]:
    """One of each quantity: a line and points for every first step, and the error after that one alone."""
    series: dict[str, list[Series]] = {name: [] for name in QUANTITIES}
    for place, first in enumerate(FIRST):
        asked: dict[str, Any] = {"step_exponents": first, "ridges": RIDGE}
        line = predict(PROBLEM, SIZES, **asked, next_step_exponents=FINE)
        there = predict(PROBLEM, SIZES, **asked, next_step_exponents=COARSE)
        alone = float(predict(PROBLEM, SIZES, **asked).test_error[0, 0])
        drawn = [
            simulate(
                PROBLEM,
                SIZES,
                **asked,
                next_step_exponents=[[alpha]],
                replicas=REPLICAS,
                seed=100 * place + number,
                extras=["directions"],
            )
            for number, alpha in enumerate(COARSE)
        ]
        role = f"setting{place + 1}"
        for name, own in series.items():
            found, errors = (
                np.array([getattr(outcome, part)[name].ravel()[0] for outcome in drawn])
                for part in ("values", "stderr")
            )
            label = f"first step α = {first:g}" if name == "top2_t2" else ""
            own.append(Series("line", FINE, line.values[name].ravel(), label=label, role=role))
            own.append(Series("points", COARSE, found, error=errors, role=role))
            off = found - there.values[name].ravel()
            if name == "test_error":
                off, errors = 100 * off / there.test_error.ravel(), 100 * errors / there.test_error.ravel()
            sys.stdout.write(
                f"{name}, first step {first:g}: simulation minus theory {off.min():+.3f} to {off.max():+.3f}, "
                f"standard errors {errors.min():.3f} to {errors.max():.3f}\n"
            )
        series["test_error"].append(Series("hlines", y=np.array([alone]), style="dotted", role=role))
    series["top2_t2"].append(Series("points", label=f"{REPLICAS} networks each", role="simulation"))
    series["top2_t2"].append(Series("line", label="one step alone", style="dotted", role="random_features"))
    ranges = {"test_error": None, "top2_t2": (0.0, 0.7)}
    return [
        Panel(series[name], x_label="exponent α₂ of the second step", y_label=label, y_range=ranges[name])
        for name, label in QUANTITIES.items()
    ]


def main(targets: Sequence[Path]) -> None:
    """Compute, draw, and print how far the points are from the lines."""
    with warnings.catch_warnings():
        # That the first step does not see t2 is the subject.
        warnings.simplefilter("ignore", OutsideTheoryWarning)
        figure = Figure(
            "The second step learns what the first made visible: t₁ + t₁t₂\n"
            "ReLU, noise 0.3, n, d, N = 1500, 300, 600",
            panels(),
        )
    for target in targets:
        save(figure, target)


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]] or TARGETS)
