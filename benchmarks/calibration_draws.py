"""Draws of calibration problems: simulated, stored as JSON lines, averaged.

A draw is one set of first-layer weights, readout and step sample. To spend time where the randomness is, each draw gets
several samples of the ridge fit, each with several label noises of opposite sign; the standard error is that of the
draws' means, which are independent. Where the package's own simulation is needed (inputs with a covariance, several
steps) a draw is one of its replicas.
"""

import json
import math
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import numpy as np  # noqa: E402 - not before the lines above
from calibration_problems import Case  # noqa: E402
from scipy.linalg import cho_factor, cho_solve  # noqa: E402

from firststep.arrays import NoPopulationError, gradient_step, population_test_error  # noqa: E402
from firststep.gaussian import expectation  # noqa: E402
from firststep.simulate import run_replica  # noqa: E402

QUANTITIES = ("test_error", "train_error", "train_mse")
# Relative standard error of the test error at which a problem is finished, and the draws that are spent on it: fewer
# would let a run of alike draws end a problem too early.
WANTED, FEWEST, MOST = 0.004, 24, 600
# Draws between two looks at the standard error, and seconds after which a problem is left as it is.
BATCH, SECONDS = 8, 240.0
FITS, NOISES, TEST_SAMPLES = 4, 2, 8000

Draw = dict[str, list[float]]


class Simulation:
    """Independent draws of one case, and statistics of exactly known mean that are drawn along."""

    def __init__(self, case: Case, seed: int) -> None:
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

    def draw(self, number: int) -> Draw:
        """One draw: means over its fits of the errors, and the controls."""
        problem, sizes = self.case.problem, self.case.sizes
        activation, teacher = problem.activation, problem.teacher
        rng = np.random.default_rng([20261118, self.seed, self.case.index, sizes.n_samples, number])
        n, d, width, n0 = sizes.n_samples, sizes.dim, sizes.width, sizes.n_step_samples
        weights = np.asarray(problem.row_law.rows(rng.standard_normal((width, d))), dtype=np.float32)
        readout = problem.readout_law.draw(lambda: rng, width) / math.sqrt(width)
        beta = rng.standard_normal(d)
        beta /= np.linalg.norm(beta)
        inputs = rng.standard_normal((n0, d), dtype=np.float32)
        labels = teacher(inputs @ beta) + problem.noise_std * rng.standard_normal(n0)
        scale = problem.output_law.scale(width)
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
        test, control = self._test_error(np.concatenate(coefficients), weights, beta, rng)
        return {
            "test_error": [test],
            "train_error": [float(np.mean(train))],
            "train_mse": [float(np.mean(mse))],
            "controls": [*controls, *np.mean(others, axis=0).tolist(), control],
        }

    def _test_error(
        self, coefficients: Any, weights: Any, beta: Any, rng: np.random.Generator
    ) -> tuple[float, float]:
        """Exact over all inputs where that is known, else on a sample (labels without noise, which is added).

        With it what the mean square of the sample's labels is away from its expectation.
        """
        problem = self.case.problem
        laws = problem.activation, problem.teacher
        gram = (weights @ weights.T).astype(np.float64)
        try:
            errors = population_test_error(coefficients, gram, weights @ beta, *laws, problem.noise_variance)
            return float(errors.mean()), 0.0
        except NoPopulationError:
            inputs = rng.standard_normal((TEST_SAMPLES, weights.shape[1]), dtype=np.float32)
            labels = problem.teacher(inputs @ beta)
            fitted = problem.activation(inputs @ weights.T) @ coefficients.T
            error = float(np.mean((labels[:, None] - fitted) ** 2)) + problem.noise_variance
            return error, float(np.mean(labels**2)) - problem.teacher.second_moment


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


def _replica(case: Case, seed: int, number: int, dtype: str = "float32") -> Draw:
    """A replica of the package's own simulation with its controls; in float64 where float32 cannot hold the ridge."""
    exponents = (case.step_exponent, *case.later)
    try:
        found = run_replica(
            case.problem,
            case.sizes,
            [[float(case.sizes.step_size(exponent)) for exponent in exponents]],
            [case.ridge],
            seed=20261118 + 1000 * seed + case.index,
            replica=number,
            dtype=dtype,
            extras=("controls",),
        )
    except ValueError as error:
        if dtype == "float64" or "rounding error" not in str(error):
            raise
        return _replica(case, seed, number, "float64")
    result = {name: [float(found[name].ravel()[0])] for name in QUANTITIES}
    return result | {"controls": [] if found.controls is None else found.controls.tolist()}


def drawer(kind: str, seed: int, case: Case) -> Callable[[int], Draw]:
    """What makes draw number i of a case."""
    if kind in ("covariance", "steps"):
        return lambda number: _replica(case, seed, number)
    return Simulation(case, seed).draw


def _design(draws: list[Draw]) -> Any:
    """A column of ones and the controls that vary, each of length one."""
    controls = np.array([draw["controls"] for draw in draws])
    controls = controls[:, controls.std(axis=0) > 0]
    return np.concatenate([np.ones((len(draws), 1)), controls / controls.std(axis=0)], axis=1)


def free_of(draws: list[Draw]) -> int:
    """Degrees of freedom of the standard error of `mean_of`."""
    return len(draws) - int(np.linalg.matrix_rank(_design(draws)))


def mean_of(draws: list[Draw], name: str) -> tuple[float, float]:
    """Mean and standard error over the draws, after regression on the controls."""
    values, design = np.array([draw[name][0] for draw in draws]), _design(draws)
    inverse = np.linalg.pinv(design.T @ design)
    fit = inverse @ design.T @ values
    left = values - design @ fit
    # The intercept's own variance: what is left over, and what the estimated slopes cost.
    return float(fit[0]), math.sqrt(float(left @ left) / free_of(draws) * inverse[0, 0])


def simulate(
    kind: str,
    seed: int,
    cases: Iterable[Case],
    path: Path,
    *,
    most: int = MOST,
    finished: Callable[[], object] | None = None,
) -> None:
    """Draw until every problem is finished; what is there already is kept."""
    path.parent.mkdir(exist_ok=True, parents=True)
    known = read(path)
    # The cheapest first, so that a run that is stopped has seen as many problems as it could.
    for case in sorted(cases, key=lambda case: (case.index not in known, case.work)):
        draws = known.get(case.index, (case, []))[1]
        draw, started, before = drawer(kind, seed, case), time.process_time(), len(draws)
        while len(draws) < most and time.process_time() - started < SECONDS:
            if len(draws) >= FEWEST:
                mean, error = mean_of(draws, "test_error")
                if error < WANTED * mean:
                    break
            first = len(draws)
            draws += [draw(first + i) for i in range(BATCH)]
            new = [
                {name: [float(f"{x:.9g}") for x in found] for name, found in d.items()} for d in draws[first:]
            ]
            line = {"case": case.to_dict(), "first": first, "draws": new}
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        if len(draws) > before:
            mean, error = mean_of(draws, "test_error")
            spent = time.process_time() - started
            print(
                f"{kind} {seed} {case.index:3d} {len(draws):3d} draws {mean:.4f} ± {100 * error / mean:.2f} %"
                f"  {spent:.0f} s",
                flush=True,
            )
            if finished is not None:
                finished()


def read(path: Path) -> dict[int, tuple[Case, list[Draw]]]:
    """Cases and their draws so far, by index."""
    found: dict[int, tuple[Case, list[Draw]]] = {}
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            part = json.loads(line)
            case = Case.from_dict(part["case"])
            draws = found.setdefault(case.index, (case, []))[1]
            if part["first"] == len(draws):
                draws += part["draws"]
    return found
