"""How far the theory is from drawn networks under a covariance: spectra, activations and steps in one table.

Run as ``python benchmarks/covariance.py [--draw REPLICAS] [--only WORD]``. Without ``--draw`` the saved draws
(benchmarks/results/covariance.json) are compared with the theory of today; with it rows that have fewer replicas are
drawn anew first, half a minute for 160 on two cores. What is drawn is kept: stop it at will.
"""

import argparse
import json
import math
import warnings
import zlib
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
# Replicas of the goal, whose standard error a bias is held against.
USUAL = 40
Row = dict[str, Any]


def problem_of(activation: str, inputs: str, output: str) -> Problem:
    """One row of the table."""
    return Problem(
        activation, "h1 + h2/2", 0.3, rows="sphere", inputs=inputs, initial_output=output, **SPECTRA[inputs]
    )


def draw(name: str, problem: Problem, replicas: int) -> Row:
    """Mean errors and cosines of drawn networks, with standard errors; rows have draws of their own."""
    found = simulate(
        problem,
        SIZES,
        step_exponents=list(EXPONENTS),
        ridges=RIDGE,
        replicas=replicas,
        seed=zlib.crc32(name.encode()),
        dtype="float32",
        extras=["controls"],
    )
    return {
        "replicas": replicas,
        "test": found.test_error[:, 0].tolist(),
        "test_stderr": found.stderr["test_error"][:, 0].tolist(),
        "train": found.train_error[:, 0].tolist(),
        "train_stderr": found.stderr["train_error"][:, 0].tolist(),
        "alignment": [float(found.values["alignment"]), float(found.stderr["alignment"])],
    }


def drawn(rows: dict[str, Problem], replicas: int) -> dict[str, Row]:
    """What is saved, after rows that have fewer replicas were drawn."""
    saved: dict[str, Row] = json.loads(SAVED.read_text()) if SAVED.exists() else {}
    for name, problem in rows.items():
        if name not in saved or saved[name]["replicas"] < replicas:
            saved[name] = draw(name, problem, replicas)
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
    saved = drawn(rows, given.draw)
    print("| inputs, activation | " + " | ".join(f"α = {x:g}" for x in EXPONENTS) + " | cosine² |")
    print("| --- " * (len(EXPONENTS) + 2) + "|")
    biases, distances = [], []
    for name, problem in rows.items():
        if name not in saved:
            continue
        row = {key: np.array(value) for key, value in saved[name].items()}
        theory = predict(problem, SIZES, step_exponents=list(EXPONENTS), ridges=RIDGE)
        bias = theory.test_error[:, 0] / row["test"] - 1
        error = row["test_stderr"] / row["test"]
        cosine = float(theory.values["alignment"]) / row["alignment"][0] - 1
        cells = [f"{b:+.1%} ± {e:.1%}" for b, e in zip(bias, error, strict=True)]
        print(f"| {name} | " + " | ".join(cells) + f" | {cosine:+.1%} |", flush=True)
        biases += bias.tolist()
        distances += (bias / (error * math.sqrt(row["replicas"] / USUAL))).tolist()
    if not biases:
        print("\nno draws are saved of these rows: add --draw 8")
        return
    size, far = np.abs(biases), np.abs(distances)
    print(f"\nbeyond 1 %: {np.mean(size > 0.01):.0%}, beyond 5 %: {np.mean(size > 0.05):.0%}, ", end="")
    print(f"beyond 2 standard errors of {USUAL} replicas: {np.mean(far > 2):.0%}, ", end="")
    print(f"of {len(size)} cells; largest {size.max():.1%}")


if __name__ == "__main__":
    main()
