"""Pictures of the theory chapters, in light and dark.

Run as ``python docs/images/theory_figures.py [NAME ...]``, with names of `PICTURES`; some minutes on two cores for all
of them. Each says how far drawn networks are from the theory.
"""

import math
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from firststep import Outcome, Problem, Sizes, function, predict, simulate
from firststep.figures import Figure, Panel, Series, save, setting_roles
from firststep.gaussian import hermite_polynomials
from firststep.setting import OutsideTheoryWarning

HERE = Path(__file__).parent
SIZES, RIDGE, REPLICAS = Sizes(800, 400, 600), 0.1, 24
FINE, COARSE = np.linspace(0, 0.5, 41), np.linspace(0, 0.5, 11)
TOLD = f"n, d, N = {SIZES.n_samples}, {SIZES.dim}, {SIZES.width}, ridge {RIDGE}"
STEP = "step exponent α = log η / log n₀"


@dataclass(frozen=True)
class Drawn:
    """Means and standard errors of drawn networks, by name."""

    values: Mapping[str, Any]
    stderr: Mapping[str, Any]


def table(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Outcomes of one step each, one after the other."""
    return {
        name: np.array([row[name][0, 0] for row in rows]) for name in rows[0] if np.ndim(rows[0][name]) == 2
    }


def lines_and_points(
    exponents: tuple[Any, Any], found: tuple[Outcome, Outcome | Drawn], name: str, label: str, role: str
) -> list[Series]:
    """The theory's line and the drawn networks' points of one setting; says how far they are from each other."""
    fine, coarse = exponents
    line, drawn = found
    values, errors = drawn.values[name].ravel(), drawn.stderr[name].ravel()
    there = np.interp(coarse, fine, line.values[name].ravel())
    off, scale = values - there, np.maximum(np.abs(there), 0.05)
    sys.stdout.write(f"{label or name}: largest distance {100 * np.abs(off / scale).max():.1f} %\n")
    return [
        Series("line", fine, line.values[name].ravel(), label=label, role=role),
        Series("points", coarse, values, error=errors, role=role),
    ]


DRAWN = Series("points", label=f"{REPLICAS} drawn networks ± 1 standard error", role="linear")


def hermite() -> Figure:
    """Polynomials, and the variance of some activations in each degree."""
    x = np.linspace(-3, 3, 121)
    values = hermite_polynomials(x, 5, normalised=True)
    roles = setting_roles(4, ordered=True)
    shapes = [
        Series("line", x, values[k], label=f"h{'₁₂₃₄'[k - 1]} = H{'₁₂₃₄'[k - 1]}/√{k}!", role=roles[k - 1])
        for k in range(1, 5)
    ]
    names = ("relu", "tanh", "softplus")
    factorials = np.sqrt([math.factorial(k) for k in range(7)])
    shares: list[Series] = []
    for place, name in enumerate(names):
        parts = (function(name).hermite(7) * factorials) ** 2
        for k in range(1, 7):
            left = k - 0.36 + 0.24 * place
            share = parts[k] / function(name).second_moment
            label = name if k == 1 else ""
            shares.append(
                Series("bars", (left, left + 0.22), (share,), label=label, role=f"setting{place + 1}")
            )
    return Figure(
        "Degrees of a function of a Gaussian variable",
        [
            Panel(shapes, x_label="x", y_label="polynomial of norm one", y_range=(-4, 4)),
            Panel(shares, x_label="degree k", y_label="share of the variance", y_range=(0, 1)),
        ],
    )


def covariance() -> Figure:
    """Test errors under a covariance, with the teacher in large, typical and all alike directions."""
    settings = {
        "isotropic": {},
        "0.3 and 1.7, teacher typical": {"inputs": "levels(0.3, 1.7)"},
        "0.3 and 1.7, teacher in the large": {"inputs": "levels(0.3, 1.7)", "alignment": "weights(0.1, 0.9)"},
    }
    series = []
    for place, (label, more) in enumerate(settings.items()):
        problem = Problem("relu", "h1 + h2/2", noise_std=0.3, rows="sphere", **more)
        line = predict(problem, SIZES, step_exponents=FINE, ridges=RIDGE)
        drawn = simulate(problem, SIZES, step_exponents=COARSE, ridges=RIDGE, replicas=REPLICAS, seed=0)
        role = f"setting{place + 1}"
        series += lines_and_points((FINE, COARSE), (line, drawn), "test_error", label, role)
    title = f"Eigenvalues of the inputs and the teacher's directions\nReLU, H₁ + H₂/2, noise 0.3, {TOLD}"
    return Figure(title, [Panel([*series, DRAWN], x_label=STEP, y_label="test error")])


def joint_law() -> Figure:
    """Errors under a power law with the joint law of covariance and step, and with M as noise."""
    problem = Problem("silu(2*x)", "softplus(x) + 0.4*tanh(x)", rows="sphere", inputs="power(0.7)")
    drawn = simulate(problem, SIZES, step_exponents=COARSE, ridges=RIDGE, replicas=4 * REPLICAS, seed=0)
    ways = {
        "unified": ("the joint law", "solid", "theory"),
        "leading_order": ("M as noise", "dashed", "staircase"),
    }
    panels = []
    for name in ("train_error", "test_error"):
        series = []
        for theory, (label, style, role) in ways.items():
            line = predict(problem, SIZES, step_exponents=FINE, ridges=RIDGE, theory=theory)
            label = label if name == "test_error" else ""
            series.append(Series("line", FINE, line.values[name][:, 0], label=label, style=style, role=role))
            off = drawn.values[name][:, 0] / np.interp(COARSE, FINE, line.values[name][:, 0]) - 1
            sys.stdout.write(f"{name}, {theory}: {100 * off.min():+.1f} to {100 * off.max():+.1f} %\n")
        error = drawn.stderr[name][:, 0]
        label = f"{4 * REPLICAS} drawn networks ± 1 standard error" if name == "test_error" else ""
        series.append(
            Series("points", COARSE, drawn.values[name][:, 0], error=error, label=label, role="simulation")
        )
        panels.append(Panel(series, x_label=STEP, y_label=name.replace("_", " ")))
    title = "Eigenvalues that fall as a power, i to the −0.7, and a step that M turns"
    return Figure(f"{title}\nSiLU(2x), teacher softplus + 0.4 tanh, {TOLD}", panels)


def second_step() -> Figure:
    """What a second step does to the test error and to the directions, for a teacher that one step sees half."""
    problem = Problem("relu", "t1 + t1*t2", noise_std=0.3, rows="sphere")
    steps: dict[str, Any] = {"step_exponents": 0.35, "ridges": RIDGE}
    drawing: dict[str, Any] = {"replicas": REPLICAS, "seed": 0, "extras": ["directions"]}
    with warnings.catch_warnings():
        # That the first step does not see t2 is the subject.
        warnings.simplefilter("ignore", OutsideTheoryWarning)
        line = predict(problem, SIZES, **steps, next_step_exponents=FINE)
        alone = predict(problem, SIZES, **steps)
        drawn = [
            simulate(problem, SIZES, **steps, **drawing, next_step_exponents=[[alpha]])
            for alpha in COARSE[::2]
        ]
    both = Drawn(*(table([getattr(each, part) for each in drawn]) for part in ("values", "stderr")))
    at = (FINE, COARSE[::2])
    errors = lines_and_points(at, (line, both), "test_error", "", "theory")
    errors.append(Series("hlines", y=alone.test_error.ravel(), style="dashed", role="random_features"))
    overlaps: list[Series] = []
    for place, (name, label) in enumerate(
        {"top1_t1": "first vector of the weights: t₁", "top2_t2": "second vector: t₂"}.items()
    ):
        overlaps += lines_and_points(at, (line, both), name, label, f"setting{place + 1}")
    overlaps.append(Series("line", label="one step alone", style="dashed", role="random_features"))
    next_step = "exponent α₂ of the second step"
    return Figure(
        f"t₁ + t₁t₂ after a first step of α = 0.35\nReLU, noise 0.3, {TOLD}",
        [
            Panel(errors, x_label=next_step, y_label="test error"),
            Panel([*overlaps, DRAWN], x_label=next_step, y_label="squared overlap", y_range=(0, 1)),
        ],
    )


def unified() -> Figure:
    """What becomes of the gradient beyond its spike: its structure kept, taken as noise, left out."""
    problem = Problem("relu", "h1 + h2/sqrt(2)", noise_std=0.3, rows="sphere")
    drawn = simulate(problem, SIZES, step_exponents=COARSE, ridges=RIDGE, replicas=REPLICAS, seed=0)
    ways = {
        "structured": ("the whole gradient", "solid", "theory"),
        "noise": ("its rest as noise", "dashed", "staircase"),
        "none": ("its spike alone", "dotted", "linear"),
    }
    panels = []
    for name in ("train_error", "test_error"):
        series = []
        for rest, (label, style, role) in ways.items():
            line = predict(problem, SIZES, step_exponents=FINE, ridges=RIDGE, rest=rest)
            label = label if name == "test_error" else ""
            series.append(Series("line", FINE, line.values[name][:, 0], label=label, style=style, role=role))
            off = drawn.values[name][:, 0] / np.interp(COARSE, FINE, line.values[name][:, 0]) - 1
            sys.stdout.write(f"{name}, {rest}: {100 * off.min():+.1f} to {100 * off.max():+.1f} %\n")
        error = drawn.stderr[name][:, 0]
        label = DRAWN.label if name == "test_error" else ""
        series.append(
            Series("points", COARSE, drawn.values[name][:, 0], error=error, label=label, role="simulation")
        )
        panels.append(Panel(series, x_label=STEP, y_label=name.replace("_", " ")))
    return Figure(
        f"What becomes of the gradient beyond its spike\nReLU, H₁ + H₂/√2, noise 0.3, {TOLD}", panels
    )


PICTURES: dict[str, Callable[[], Figure]] = {
    "hermite": hermite,
    "covariance": covariance,
    "joint-law": joint_law,
    "second-step": second_step,
    "unified": unified,
}


def main(names: Sequence[str]) -> None:
    """Draw each of these into two files beside this one."""
    for name in names:
        figure = PICTURES[name]()
        for theme in ("light", "dark"):
            save(figure, HERE / f"{name}-{theme}.svg", theme=theme)


if __name__ == "__main__":
    main(sys.argv[1:] or list(PICTURES))
