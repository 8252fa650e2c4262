"""How far the unified theory is from simulation: problems drawn at random, many draws of each, one figure.

    ./run python benchmarks/calibration.py simulate     # resumes where it was stopped
    ./run python benchmarks/calibration.py halves       # the same problems at half the size, fewer draws
    ./run python benchmarks/calibration.py outliers     # those that differ most, at half and at twice the size
    ./run python benchmarks/calibration.py report       # docs/images/calibration.svg and results/calibration.json

A draw is one set of first-layer weights, readout and step sample. To spend time where the randomness is, each draw gets
several samples of the ridge fit, each with several label noises of opposite sign; the standard error is that of the
draws' means, which are independent.
"""

import argparse
import json
import math
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import numpy as np  # noqa: E402 - not before the lines above
from scipy.linalg import cho_factor, cho_solve  # noqa: E402

from firststep import Problem, Sizes, predict  # noqa: E402
from firststep.gaussian import expectation  # noqa: E402
from firststep.network import NoPopulationError, gradient_step, population_test_error  # noqa: E402

HERE = Path(__file__).resolve().parent
DRAWS = HERE / "results" / "calibration_draws.jsonl"
HALVES = HERE / "results" / "calibration_halves.jsonl"
# The problems that differ most, at other sizes.
OUTLIERS = {
    0.5: HERE / "results" / "calibration_outliers_half.jsonl",
    2.0: HERE / "results" / "calibration_outliers_twice.jsonl",
}
OUTLYING = 0.011
RESULT = HERE / "results" / "calibration.json"
FIGURE = HERE.parent / "docs" / "images" / "calibration.svg"

SEED = 20261115
PROBLEMS = 200
# Relative standard error of the test error at which a problem is finished, and the draws that are spent on it: fewer
# would let a run of alike draws end a problem too early.
WANTED, FEWEST, MOST = 0.0038, 20, 200
FITS, NOISES, TEST_SAMPLES = 4, 2, 8000
# Largest product n d N.
LARGEST_WORK = 2.5e9

ACTIVATIONS = (
    "relu", "leaky_relu", "gelu", "silu", "softplus", "elu", "tanh", "erf", "sin", "sigmoid(2*x)", "tanh(2*x)",
)  # fmt: skip
TEACHERS = (
    "h1", "h1 + h2/sqrt(2)", "h1 + h3/sqrt(6)", "relu", "softplus(2*x)", "tanh(2*x)", "erf", "sin(2*x)", "sign",
    "gelu", "h1 + h2/2 - h3/6", "abs + x",
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One randomly drawn problem."""

    index: int
    problem: Problem
    sizes: Sizes
    step_exponent: float
    ridge: float

    def scaled(self, factor: float) -> "Case":
        """The same ratios and the same spike strength eta/sqrt(N) at another size."""
        s = self.sizes
        sizes = Sizes(*(round(factor * x) for x in (s.n_samples, s.dim, s.width, s.n_step_samples)))
        step = s.step_size(self.step_exponent) * math.sqrt(sizes.width / s.width)
        return Case(self.index, self.problem, sizes, float(sizes.step_exponent(step)), self.ridge)


def case(index: int) -> Case:
    """Problem number `index`: a longer list never changes the earlier ones."""
    rng = np.random.default_rng([SEED, index])
    pick = lambda options: options[int(rng.integers(len(options)))]  # noqa: E731
    teacher = pick(TEACHERS)
    problem = Problem(
        pick(ACTIVATIONS),
        "abs(x) + x" if teacher == "abs + x" else teacher,
        noise_std=round(float(rng.uniform(0, 1)), 3) if rng.random() < 0.75 else 0.0,
        rows=pick(("gaussian", "sphere")),
        readout=pick(("gaussian", "gaussian", "rademacher", "constant")),
        initial_output=pick(("vanishing", "order_one")),
    )
    exponent, ridge = float(rng.uniform(0, 0.5)), 10 ** float(rng.uniform(-3, 0))
    while True:
        # Towards the smaller sizes, where the theory has it harder and a replica costs less.
        n = round(800 * 2.5 ** float(rng.random() ** 2))
        d, width = (round(n * 3 ** float(rng.uniform(-1, 1))) for _ in range(2))
        n0 = n if rng.random() < 0.5 else round(n * 2 ** float(rng.uniform(-1, 1)))
        found = Case(index, problem, Sizes(n, d, width, n0), exponent, ridge)
        if work(found) <= LARGEST_WORK:
            return found


def work(case: Case) -> float:
    """n d N, to which the time of a draw is proportional."""
    sizes = case.sizes
    return float(sizes.n_samples) * sizes.dim * sizes.width


class Simulation:
    """Independent draws of one case, and statistics of exactly known mean that are drawn along."""

    def __init__(self, case: Case, seed: int = 0) -> None:
        self.case, self.seed = case, seed
        problem = case.problem
        self.step_size = float(case.sizes.step_size(case.step_exponent))
        self.linear = float(problem.teacher.hermite(2)[1])
        self.square = problem.label_variance
        teacher = problem.teacher
        self.tilted = (
            expectation(lambda t: (teacher(t) * t) ** 2, kinks=teacher.kinks) + problem.noise_variance
        )

    def _controls(self, inputs: Any, labels: Any, beta: Any) -> tuple[Any, list[float]]:
        """X^T y/n, and deviations of y^2, of its component along beta and of its square from their exact means."""
        n, d = inputs.shape
        direction = inputs.T @ labels / n
        norm = ((d - 1) * self.square + self.tilted) / n + (1 - 1 / n) * self.linear**2
        return direction, [
            float(np.mean(labels**2)) - self.square,
            float(direction @ beta) - self.linear,
            float(direction @ direction) - norm,
        ]

    def draw(self, number: int) -> dict[str, list[float]]:
        """One draw: means over its fits of the errors, and the controls."""
        problem, sizes = self.case.problem, self.case.sizes
        activation, teacher = problem.activation, problem.teacher
        rng = np.random.default_rng([SEED, self.case.index, sizes.n_samples, self.seed, number])
        n, d, width, n0 = sizes.n_samples, sizes.dim, sizes.width, sizes.n_step_samples
        weights = rng.standard_normal((width, d), dtype=np.float32)
        weights /= (
            np.linalg.norm(weights, axis=1, keepdims=True) if problem.rows == "sphere" else math.sqrt(d)
        )
        readout = {
            "gaussian": lambda: rng.standard_normal(width),
            "rademacher": lambda: rng.choice([-1.0, 1.0], width),
            "constant": lambda: np.ones(width),
        }[problem.readout]() / math.sqrt(width)
        beta = rng.standard_normal(d)
        beta /= np.linalg.norm(beta)
        inputs = rng.standard_normal((n0, d), dtype=np.float32)
        labels = teacher(inputs @ beta) + problem.noise_std * rng.standard_normal(n0)
        scale = width**-0.5 if problem.initial_output == "vanishing" else 1.0
        step = gradient_step(
            inputs, labels.astype(np.float32), weights, readout.astype(np.float32), activation, scale
        )
        first, controls = self._controls(inputs, labels, beta)
        weights += np.float32(self.step_size) * step.gradient
        coefficients, train, mse, others = [], [], [], []
        for _ in range(FITS):
            inputs = rng.standard_normal((n, d), dtype=np.float32)
            signal = teacher(inputs @ beta)
            noise = problem.noise_std * rng.standard_normal((NOISES if problem.noise_std else 1, n))
            # The cross term of signal and noise cancels between opposite signs.
            targets = np.concatenate([signal + noise, signal - noise]) if problem.noise_std else signal[None]
            fitted, residual = _ridge(
                activation(inputs @ weights.T).astype(np.float64), targets, self.case.ridge
            )
            coefficients.append(fitted)
            mse.append(float(np.mean(residual**2)))
            train.append(mse[-1] + self.case.ridge * float((fitted**2).sum(axis=1).mean()))
            second, more = self._controls(inputs, targets.mean(axis=0), beta)
            square = float(np.mean(targets**2)) - self.square
            others.append([square, more[1], float(first @ second) - self.linear**2])
        test = self._test_error(np.concatenate(coefficients), weights, beta, rng)
        return {
            "test_error": [test],
            "train_error": [float(np.mean(train))],
            "train_mse": [float(np.mean(mse))],
            "controls": [*controls, *np.mean(others, axis=0).tolist()],
        }

    def _test_error(self, coefficients: Any, weights: Any, beta: Any, rng: np.random.Generator) -> float:
        """Exact over all inputs where that is known, else on a sample (labels without noise, which is added)."""
        problem = self.case.problem
        laws = problem.activation, problem.teacher
        gram = (weights @ weights.T).astype(np.float64)
        try:
            errors = population_test_error(coefficients, gram, weights @ beta, *laws, problem.noise_variance)
            return float(errors.mean())
        except NoPopulationError:
            inputs = rng.standard_normal((TEST_SAMPLES, weights.shape[1]), dtype=np.float32)
            labels = problem.teacher(inputs @ beta)
            fitted = problem.activation(inputs @ weights.T) @ coefficients.T
            return float(np.mean((labels[:, None] - fitted) ** 2)) + problem.noise_variance


def _ridge(design: Any, targets: Any, ridge: float) -> tuple[Any, Any]:
    """Readouts (R, N) and residuals (R, n) of the ridge fits of several targets (R, n)."""
    n, width = design.shape
    if n < width:
        gram = design @ design.T
        gram[np.diag_indices(n)] += ridge * n
        dual = cho_solve(
            cho_factor(gram, overwrite_a=True, check_finite=False), targets.T, check_finite=False
        )
        return dual.T @ design, ridge * n * dual.T
    gram = design.T @ design
    gram[np.diag_indices(width)] += ridge * n
    factor = cho_factor(gram, overwrite_a=True, check_finite=False)
    fitted = cho_solve(factor, design.T @ targets.T, check_finite=False).T
    return fitted, targets - fitted @ design.T


def mean_of(draws: list[dict[str, list[float]]], name: str) -> tuple[float, float]:
    """Mean and standard error over the draws, after regression on the controls."""
    values = np.array([draw[name][0] for draw in draws])
    controls = np.array([draw["controls"] for draw in draws])
    count = len(values)
    design = np.concatenate([np.ones((count, 1)), controls], axis=1)
    inverse = np.linalg.pinv(design.T @ design)
    fit = inverse @ design.T @ values
    left = values - design @ fit
    # The intercept's own variance: what is left over, and what the estimated slopes cost.
    return float(fit[0]), math.sqrt(float(left @ left) / (count - design.shape[1]) * inverse[0, 0])


def simulate(indices: Iterable[int], path: Path = DRAWS, factor: float = 1.0, most: int = MOST) -> None:
    """Draw until every problem is finished; what is there already is kept."""
    path.parent.mkdir(exist_ok=True)
    known = _draws(path)
    # The cheapest first, so that a run that is stopped has seen as many problems as it could.
    for index in sorted(indices, key=lambda index: (index not in known, work(case(index)))):
        draws = known.get(index, [])
        simulation = Simulation(case(index) if factor == 1 else case(index).scaled(factor))
        started, before = time.perf_counter(), len(draws)
        while len(draws) < most:
            if len(draws) >= FEWEST:
                mean, error = mean_of(draws, "test_error")
                if error < WANTED * mean:
                    break
            draws.append(simulation.draw(len(draws)))
        if len(draws) > before:
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"index": index, "first": before, "draws": draws[before:]}) + "\n")
            mean, error = mean_of(draws, "test_error")
            spent = time.perf_counter() - started
            print(
                f"{index:3d} {len(draws):3d} draws {mean:.4f} ± {100 * error / mean:.2f} %  {spent:.0f} s",
                flush=True,
            )


def _draws(path: Path) -> dict[int, list[dict[str, list[float]]]]:
    """Draws of each problem so far."""
    found: dict[int, list[dict[str, list[float]]]] = {}
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            part = json.loads(line)
            if part.get("first", 0) == len(found.setdefault(part["index"], [])):
                found[part["index"]] += part["draws"]
    return found


def compared(path: Path, factor: float = 1.0) -> list[dict[str, Any]]:
    """Theory beside simulation, one row for each problem with enough draws."""
    rows = []
    for index, draws in sorted(_draws(path).items()):
        if len(draws) < FEWEST:
            continue
        now = case(index) if factor == 1 else case(index).scaled(factor)
        found = predict(now.problem, now.sizes, step_exponents=now.step_exponent, ridges=now.ridge)
        row: dict[str, Any] = {
            "index": index,
            **now.problem.to_dict(),
            **now.sizes.to_dict(),
            "step_exponent": now.step_exponent,
            "ridge": now.ridge,
            "draws": len(draws),
            "relative_error_of_theory": float(found.details["relative_error"].max()),
        }
        for name in ("test_error", "train_error", "train_mse"):
            mean, error = mean_of(draws, name)
            theory = float(found.values[name][0, 0])
            row |= {name: mean, f"{name}_stderr": error, f"{name}_theory": theory}
            row |= {f"{name}_difference": theory / mean - 1, f"{name}_distance": (theory - mean) / error}
        rows.append(row)
    return rows


def summary(rows: list[dict[str, Any]], name: str = "test_error") -> dict[str, float]:
    """Distribution of relative differences and distances."""
    differences = np.array([row[f"{name}_difference"] for row in rows])
    errors = np.array([row[f"{name}_stderr"] / row[name] for row in rows])
    distances = np.abs([row[f"{name}_distance"] for row in rows])
    return {
        "problems": len(rows),
        "median": float(np.median(np.abs(differences))),
        "share_95": float(np.quantile(np.abs(differences), 0.95)),
        "largest": float(np.abs(differences).max()),
        "mean": float(differences.mean()),
        "largest_stderr": float(errors.max()),
        "median_stderr": float(np.median(errors)),
        "median_distance": float(np.median(distances)),
        "beyond_2": float(np.mean(distances > 2)),
        "beyond_4": float(np.mean(distances > 4)),
        # What is left when the simulation's own scatter is taken out, in quadrature.
        "root_mean_square_without_noise": float(math.sqrt(max(0.0, np.mean(differences**2 - errors**2)))),
    }


def report() -> None:
    """Write the table and draw the figure."""
    rows, halves = compared(DRAWS), compared(HALVES, 0.5)
    both = {row["index"] for row in halves}
    result: dict[str, Any] = {
        "test_error": summary(rows),
        "train_error": summary(rows, "train_error"),
        "halves": {
            "half": summary(halves) if halves else None,
            "full": summary([row for row in rows if row["index"] in both]) if halves else None,
        },
        "rows": rows,
        "rows_at_half_the_size": halves,
        "outliers": {str(factor): compared(path, factor) for factor, path in OUTLIERS.items()},
    }
    RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    _draw(rows)
    for name in ("test_error", "train_error"):
        print(name, json.dumps(result[name], indent=1))
    print("half the size", json.dumps(result["halves"], indent=1))
    for row in sorted(rows, key=lambda row: -abs(row["test_error_difference"]))[:8]:
        print(
            f"{row['index']:3d} {100 * row['test_error_difference']:+.2f} % ± "
            f"{100 * row['test_error_stderr'] / row['test_error']:.2f}  {row['activation']}, {row['teacher']}, "
            f"noise {row['noise_std']}, {row['rows']}, {row['readout']}, {row['initial_output']}, "
            f"n {row['n_samples']}, d {row['dim']}, N {row['width']}, n0 {row['n_step_samples']}, "
            f"alpha {row['step_exponent']:.2f}, "
            f"ridge {row['ridge']:.3g}"
        )
    for factor, found in result["outliers"].items():
        for row in found:
            difference, error = row["test_error_difference"], row["test_error_stderr"] / row["test_error"]
            print(
                f"{row['index']:3d} at {factor} times the size: {100 * difference:+.2f} % ± {100 * error:.2f}"
            )


def _draw(rows: list[dict[str, Any]]) -> None:
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "firststep"
    import matplotlib.pyplot as plt

    colours = {"gaussian": "#0072B2", "rademacher": "#E69F00", "constant": "#009E73"}
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(11, 3.4), layout="constrained")
    for readout, colour in colours.items():
        own = [row for row in rows if row["readout"] == readout]
        left.errorbar(
            [row["step_exponent"] for row in own],
            [100 * row["test_error_difference"] for row in own],
            [100 * row["test_error_stderr"] / row["test_error"] for row in own],
            fmt="o", ms=3.5, lw=0.8, color=colour, label=f"{readout} readout",
        )  # fmt: skip
    left.axhline(0, color="0.3", lw=0.8)
    left.set(xlabel="step exponent α", ylabel="theory / simulation − 1, test error (%)")
    left.legend(frameon=False, fontsize=8)
    share = (np.arange(len(rows)) + 0.5) / len(rows)
    for name, colour in (("test_error", "#0072B2"), ("train_error", "#D55E00")):
        label = name.replace("_", " ")
        middle.step(
            np.sort([100 * abs(row[f"{name}_difference"]) for row in rows]), share, color=colour, label=label
        )
        right.step(np.sort([abs(row[f"{name}_distance"]) for row in rows]), share, color=colour, label=label)
    for goal in (0.5, 2.0):
        middle.axvline(goal, color="0.6", lw=0.8, ls="--")
    middle.set(xlabel="relative difference (%)", ylabel="share of the problems", ylim=(0, 1), xlim=(0, None))
    middle.legend(frameon=False, fontsize=8, loc="lower right")
    grid = np.linspace(0, 4, 200)
    right.plot(grid, [math.erf(x / math.sqrt(2)) for x in grid], color="0.3", lw=1, label="chance alone")
    right.set(xlabel="distance in standard errors", ylim=(0, 1), xlim=(0, 5))
    right.legend(frameon=False, fontsize=8, loc="lower right")
    FIGURE.parent.mkdir(exist_ok=True)
    figure.savefig(FIGURE, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=("simulate", "halves", "outliers", "report"))
    parser.add_argument("--problems", type=int, default=PROBLEMS)
    arguments = parser.parse_args()
    if arguments.command == "simulate":
        simulate(range(arguments.problems))
    elif arguments.command == "halves":
        simulate(range(arguments.problems), HALVES, 0.5, most=60)
    elif arguments.command == "outliers":
        rows = [row for row in compared(DRAWS) if abs(row["test_error_difference"]) > OUTLYING]
        for factor, path in OUTLIERS.items():
            simulate([row["index"] for row in rows], path, factor, most=MOST if factor < 1 else 40)
    else:
        report()


if __name__ == "__main__":
    main()
