"""The unified theory's batched solver against the equations as one would first write them down.

    ./run python benchmarks/unified.py

The plain version solves one point after the other: damped iteration from a cold start until nothing moves, Hermite
polynomials of z as basis, the test error as a central difference of q along a ridge that depends on z, and all of it
again with more nodes until the errors are stable to 1e-6, which the batched solver promises too. It treats the rest of
the gradient as independent noise; the batched solver is timed with the same model (`rest="noise"`) and with the
default. They take turns in one run.
"""

import argparse
import json
import math
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import numpy as np  # noqa: E402 - not before the lines above

from firststep import Problem, Sizes, predict  # noqa: E402
from firststep.gaussian import gauss_hermite, hermite_polynomials  # noqa: E402
from firststep.theory.rest import rest_law  # noqa: E402

RESULT = Path(__file__).resolve().parent / "results" / "unified.json"
SIZES = Sizes(1000, 500, 750)


class Plain:
    """One point, Gaussian readout, vanishing initial output, rows of unit norm."""

    def __init__(self, problem: Problem, sizes: Sizes, step_size: float, nodes: int, basis: int) -> None:
        c = problem.activation.hermite(3)
        self.n, self.d, self.width = sizes.n_samples, sizes.dim, sizes.width
        b2 = problem.direction_norm_squared(sizes)
        r = float(problem.teacher.hermite(2)[1]) / math.sqrt(b2)
        self.z, self.wz = gauss_hermite(nodes)
        u, self.wu = gauss_hermite(nodes)
        omega = step_size * c[1] * math.sqrt(b2) / math.sqrt(self.width)
        kappa2 = step_size**2 / self.width * sizes.step_ratio * problem.label_variance
        kappa2 *= problem.activation.derivative_second_moment - c[1] ** 2
        scale = np.sqrt(1 + kappa2 * u**2)[:, None]
        a0, a1, square = problem.activation.gaussian_moments(scale, omega * np.outer(u, self.z))
        self.a2 = square - a0**2 - a1**2
        self.h = hermite_polynomials(self.z, basis, normalised=True)
        self.psi = hermite_polynomials(u, basis, normalised=True)
        self.alpha = (a1 * self.wz) @ self.h.T
        self.c = math.sqrt(self.width) * (self.h * self.wz) @ a0.T @ (self.psi * self.wu).T
        self.quadratic = 2 * float(c[2]) ** 2
        self.j = np.diag(np.sqrt(np.arange(1.0, basis)), 1)
        self.j = self.j + self.j.T
        self.g0, self.g1, label = problem.teacher.gaussian_moments(np.array(math.sqrt(1 - r * r)), r * self.z)
        self.label = label + problem.noise_variance

    def solve(self, ridge: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """rho(z) and delta(u) by damped iteration; the ridge may depend on z."""
        n, d, width, h = self.n, self.d, self.width, self.h
        rho, delta = np.ones_like(self.z), np.ones_like(self.wu)
        one = np.eye(len(h))
        for _ in range(2000):
            p = n / d * (h * self.wz * rho) @ h.T
            y = self.wu / (1 + delta)
            bm = (self.alpha.T * y) @ self.alpha
            t = bm @ np.linalg.inv(one + p @ bm)
            new_rho = 1 / (ridge * n / width + y @ self.a2 + np.einsum("kz,kl,lz->z", h, t, h))
            x = p @ np.linalg.inv(one + bm @ p)
            new_delta = n / width * self.a2 @ (self.wz * rho)
            new_delta = new_delta + d / width * np.einsum("uk,kl,ul->u", self.alpha, x, self.alpha)
            moved = max(
                np.abs(np.sqrt(self.wz) * (new_rho / rho - 1)).max(), np.abs(new_delta / delta - 1).max()
            )
            rho, delta = 0.5 * (rho + new_rho), 0.5 * (delta + new_delta)
            if moved < 1e-11:
                return rho, delta
        raise RuntimeError("no fixed point")

    def q(self, ridge: np.ndarray) -> tuple[float, np.ndarray]:
        """y^T R y, and rho."""
        n, d, width, h = self.n, self.d, self.width, self.h
        rho, delta = self.solve(ridge)
        mass, y = self.wz * rho, self.wu / (1 + delta)
        one = np.eye(len(h))
        p = n / d * (h * mass) @ h.T
        bm = (self.alpha.T * y) @ self.alpha
        t = bm @ np.linalg.inv(one + p @ bm)
        rm = n / width * (h * mass) @ h.T
        gz = width / d * self.j @ bm @ self.j
        dz = np.linalg.solve(one + gz @ rm, gz)
        rz = rm - rm @ dz @ rm
        r0, p1 = n / width * h @ (mass * self.g0), n / d * h @ (mass * self.g1)
        qi = np.linalg.inv((self.psi * y) @ self.psi.T)
        qi[0, 0] += self.quadratic * n / d * mass.sum()
        right = self.c.T @ (r0 - rm @ dz @ r0)
        spikes = right @ np.linalg.solve(qi + self.c.T @ rz @ self.c, right)
        return float(n / width * mass @ self.label - d / width * p1 @ t @ p1 - r0 @ dz @ r0 - spikes), rho

    def errors(self, ridge: float) -> tuple[float, float]:
        """Train and test error."""
        flat = np.full_like(self.z, ridge)
        q, rho = self.q(flat)
        tilt = (self.width / (self.n * rho)) ** 2
        # Far out the weight is nil and the tilt is huge: it must not make the ridge negative.
        tilt = np.minimum(tilt, tilt[np.abs(self.z) < 6].max())
        epsilon = 3e-4 * ridge / tilt.max()
        up, down = (self.q(flat + sign * epsilon * tilt)[0] for sign in (1, -1))
        return ridge * q, -(up - down) / (2 * epsilon)


def plain_errors(problem: Problem, step_size: float, ridge: float) -> tuple[float, float]:
    """Both errors of one point, with more nodes and polynomials until they are stable to 1e-6, as far as that goes."""
    before = (math.inf, math.inf)
    for nodes, basis in ((24, 8), (36, 12), (54, 18), (80, 24)):
        now = Plain(problem, SIZES, step_size, nodes, basis).errors(ridge)
        if max(abs(x / y - 1) for x, y in zip(now, before, strict=True)) < 1e-6:
            break
        before = now
    return now


def timed(call: Callable[[], object]) -> float:
    # Processor time: one thread, and other work on the machine counts less.
    started = time.process_time()
    call()
    return time.process_time() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--plain-points",
        type=int,
        default=12,
        help="how many of the 60 points the plain version solves",
    )
    arguments = parser.parse_args()
    exponents = np.linspace(0.0, 0.5, 60)
    record: dict[str, object] = {"python": platform.python_version(), "numpy": np.__version__, "settings": []}
    rows = []
    for activation in ("relu", "tanh", "gelu"):
        problem = Problem(activation, "h1 + h2/sqrt(2)", noise_std=0.3, rows="sphere")
        chosen = exponents[:: max(1, 60 // arguments.plain_points)]
        steps = SIZES.step_size(chosen)

        def plain() -> list[tuple[float, float]]:
            return [plain_errors(problem, float(step), 0.1) for step in steps]  # noqa: B023

        def batched(rest: str) -> Callable[[], object]:
            return lambda: predict(problem, SIZES, step_exponents=exponents, ridges=0.1, rest=rest)  # noqa: B023

        rest_law.cache_clear()
        first = timed(batched("structured"))
        batched("noise")()
        slow, same, full = [], [], []
        for _ in range(arguments.rounds):
            slow.append(timed(plain) / len(steps))
            same.append(timed(batched("noise")) / len(exponents))
            full.append(timed(batched("structured")) / len(exponents))
        found = predict(problem, SIZES, step_exponents=chosen, ridges=0.1, rest="noise")
        wrong = max(
            abs(value / float(found.values[name][i, 0]) - 1)
            for i, pair in enumerate(plain())
            for name, value in zip(("train_error", "test_error"), pair, strict=True)
        )
        ratios = [a / b for a, b in zip(slow, same, strict=True)]
        row = {
            "activation": activation,
            "plain_seconds_per_point": statistics.median(slow),
            "batched_seconds_per_point": statistics.median(same),
            "ratio": statistics.median(ratios),
            "ratio_range": [min(ratios), max(ratios)],
            "curve_seconds": 60 * statistics.median(full),
            "curve_seconds_range": [60 * min(full), 60 * max(full)],
            "first_curve_seconds": first,
            "largest_difference": wrong,
        }
        rows.append(row)
        print(
            f"{activation:5s} plain {1e3 * row['plain_seconds_per_point']:.0f} ms a point, batched "
            f"{1e3 * row['batched_seconds_per_point']:.2f} ms: {row['ratio']:.0f} times faster "
            f"({min(ratios):.0f}–{max(ratios):.0f}); 60 points, default: {row['curve_seconds']:.2f} s "
            f"({60 * min(full):.2f}–{60 * max(full):.2f}), the first time {first:.2f} s; differ by {wrong:.0e}"
        )
    record["settings"] = rows
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
