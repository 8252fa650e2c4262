"""How far the theory is from drawn networks under a covariance: spectra, activations and steps in one table.

Run as ``python benchmarks/covariance.py [--draw REPLICAS] [--only WORD]``. Without ``--draw`` the saved draws
(benchmarks/results/covariance.json) are compared with the theory of today; with it missing ones are drawn first, eight
at a time in every row of the table, about a minute for each on one core. What is drawn is kept: stop it at will.
"""

import argparse
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from firststep import Problem, Sizes, predict, simulate

SAVED = Path(__file__).parent / "results" / "covariance.json"
SIZES = Sizes(1000, 500, 750)
EXPONENTS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
RIDGE = 0.1
SPECTRA = {
    "levels(0.3, 1.7)": {"alignment": "weights(0.1, 0.9)"},
    "power(0.5)": {},
    "power(1)": {},
    **{f"spiked({s}, overlap={o})": {} for s in (1, 10, 50) for o in (1, 0)},
    "isotropic": {},
}
ACTIVATIONS = ("tanh", "relu", "softplus")
BATCH, SEED = 8, 16
Row = dict[str, Any]


def problem_of(activation: str, inputs: str, output: str) -> Problem:
    """One row of the table."""
    return Problem(
        activation, "h1 + h2/2", 0.3, rows="sphere", inputs=inputs, initial_output=output, **SPECTRA[inputs]
    )


def draw(problem: Problem, seed: int) -> Row:
    """Mean test errors and cosines of a few drawn networks, with standard errors."""
    found = simulate(problem, SIZES, step_exponents=list(EXPONENTS), ridges=RIDGE, replicas=BATCH, seed=seed)
    return {
        "replicas": BATCH,
        "test": found.test_error[:, 0].tolist(),
        "test_stderr": found.stderr["test_error"][:, 0].tolist(),
        "alignment": [float(found.values["alignment"]), float(found.stderr["alignment"])],
    }


def pooled(old: Row | None, new: Row) -> Row:
    """Means and standard errors of two independent sets of draws together."""
    if old is None:
        return new
    count = old["replicas"] + new["replicas"]
    share = [old["replicas"] / count, new["replicas"] / count]

    def mean(first: list[float], second: list[float]) -> list[float]:
        return [share[0] * a + share[1] * b for a, b in zip(first, second, strict=True)]

    def spread(first: list[float], second: list[float]) -> list[float]:
        return [float(np.hypot(share[0] * a, share[1] * b)) for a, b in zip(first, second, strict=True)]

    return {
        "replicas": count,
        "test": mean(old["test"], new["test"]),
        "test_stderr": spread(old["test_stderr"], new["test_stderr"]),
        "alignment": mean(old["alignment"][:1], new["alignment"][:1])
        + spread(old["alignment"][1:], new["alignment"][1:]),
    }


def drawn_until(rows: dict[str, Problem], replicas: int) -> dict[str, Row]:
    """What is saved, after a batch at a time in every row has brought all of them to so many replicas."""
    saved: dict[str, Row] = json.loads(SAVED.read_text()) if SAVED.exists() else {}
    for goal in range(BATCH, replicas + 1, BATCH):
        for name, problem in rows.items():
            have = saved[name]["replicas"] if name in saved else 0
            if have < goal:
                saved[name] = pooled(saved.get(name), draw(problem, SEED + have // BATCH))
                SAVED.write_text(json.dumps(saved, indent=1) + "\n")
    return saved


def main() -> None:
    reader = argparse.ArgumentParser(description=__doc__)
    reader.add_argument("--draw", type=int, default=0, metavar="REPLICAS")
    reader.add_argument("--only", default="")
    reader.add_argument("--output", default="vanishing")
    given = reader.parse_args()
    warnings.simplefilter("ignore")
    rows = {
        ", ".join([inputs, activation] + [given.output] * (given.output != "vanishing")): problem_of(
            activation, inputs, given.output
        )
        for inputs in SPECTRA
        for activation in ACTIVATIONS
    }
    rows = {name: problem for name, problem in rows.items() if given.only in name}
    saved = drawn_until(rows, given.draw)
    print("| inputs, activation | " + " | ".join(f"α = {x:g}" for x in EXPONENTS) + " | cosine² |")
    print("| --- " * (len(EXPONENTS) + 2) + "|")
    biases, distances = [], []
    for name, problem in rows.items():
        if name not in saved:
            continue
        drawn = {key: np.array(value) for key, value in saved[name].items()}
        theory = predict(problem, SIZES, step_exponents=list(EXPONENTS), ridges=RIDGE)
        bias = theory.test_error[:, 0] / drawn["test"] - 1
        error = drawn["test_stderr"] / drawn["test"]
        cosine = float(theory.values["alignment"]) / drawn["alignment"][0] - 1
        cells = [f"{b:+.1%} ± {e:.1%}" for b, e in zip(bias, error, strict=True)]
        print(f"| {name} | " + " | ".join(cells) + f" | {cosine:+.1%} |", flush=True)
        biases += bias.tolist()
        distances += (bias / error).tolist()
    if not biases:
        print("\nno draws are saved of these rows: add --draw 8")
        return
    size, far = np.abs(biases), np.abs(distances)
    print(f"\nbeyond 1 %: {np.mean(size > 0.01):.0%}, beyond 5 %: {np.mean(size > 0.05):.0%}, ", end="")
    print(f"beyond 2 standard errors: {np.mean(far > 2):.0%} of {len(size)} cells; largest {size.max():.1%}")


if __name__ == "__main__":
    main()
