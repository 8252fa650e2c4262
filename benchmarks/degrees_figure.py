"""The figure of every degree: test error against n with few dimensions, drawn and predicted.

Run as ``python benchmarks/degrees_figure.py [FILE]``; three minutes on two cores.
"""

import sys
import warnings

import numpy as np

from firststep import Problem, Sizes, predict, simulate

DIM, WIDTH, RIDGE = 30, 600, 0.003
SAMPLES = np.unique(np.geomspace(15, 3000, 13).astype(int))
FINE = np.unique(np.geomspace(15, 3000, 45).astype(int))
EXPONENTS = {"no step": None, "one step, α = 0.35": 0.35}
COLOURS = {"no step": "#0072B2", "one step, α = 0.35": "#D55E00"}


def point(problem: Problem, samples: int, exponent: float | None, **options: object) -> tuple[float, float]:
    """Predicted test error and its bar; the step's sample has 3000 rows at every n."""
    sizes = Sizes(int(samples), DIM, WIDTH, 3000)
    step = 0.0 if exponent is None else sizes.step_size(exponent)
    found = predict(problem, sizes, step, RIDGE, **options)
    return float(found.test_error[0, 0]), float(found.test_error_bar[0, 0])


def main() -> None:
    from matplotlib.figure import Figure

    warnings.simplefilter("ignore")
    problem = Problem("relu", "h1 + h2/sqrt(2)", noise_std=0.3, rows="sphere")
    figure = Figure(figsize=(7.2, 3.9), layout="constrained")
    axes = figure.subplots()
    for name, exponent in EXPONENTS.items():
        colour = COLOURS[name]
        values = np.array([point(problem, n, exponent) for n in FINE])
        axes.plot(FINE, values[:, 0], color=colour, label=f"{name}: every degree")
        axes.fill_between(
            FINE, values[:, 0] - values[:, 1], values[:, 0] + values[:, 1], color=colour, alpha=0.15, lw=0
        )
        old = [point(problem, n, exponent, degrees=1)[0] for n in FINE]
        axes.plot(FINE, old, color=colour, ls=":", label=f"{name}: proportional theory")
        means = []
        for n in SAMPLES:
            sizes = Sizes(int(n), DIM, WIDTH, 3000)
            step = 0.0 if exponent is None else sizes.step_size(exponent)
            drawn = simulate(problem, sizes, step_sizes=step, ridges=RIDGE, replicas=24, seed=1)
            means.append((drawn.test_error[0, 0], drawn.stderr["test_error"][0, 0]))
            print(name, n, means[-1], point(problem, n, exponent))
        means = np.array(means)
        axes.errorbar(
            SAMPLES, means[:, 0], means[:, 1], fmt="o", ms=4, color=colour, label=f"{name}: drawn networks"
        )
    for degree, count in ((1, DIM), (2, DIM * (DIM + 1) // 2 - 1)):
        axes.axvline(count, color="0.6", lw=0.8, ls="--")
        axes.annotate(
            f"n = D{'₁₂'[degree - 1]}",
            (count, 1.02),
            xycoords=("data", "axes fraction"),
            ha="center",
            fontsize=8,
        )
    axes.set(xscale="log", yscale="log", xlabel="samples n", ylabel="test error")
    axes.set_yticks([0.3, 0.5, 1, 2, 4], ["0.3", "0.5", "1", "2", "4"])
    axes.set_xticks([30, 100, 300, 1000, 3000], ["30", "100", "300", "1000", "3000"])
    axes.minorticks_off()
    axes.set_title(f"ReLU, d = {DIM}, N = {WIDTH}, H₁ + H₂/√2, noise 0.3, ridge {RIDGE}", fontsize=9, pad=16)
    axes.legend(fontsize=7, frameon=False)
    figure.savefig(
        sys.argv[1] if len(sys.argv) > 1 else "docs/images/every-degree.svg", metadata={"Date": None}
    )


if __name__ == "__main__":
    main()
