"""Random problems for the calibration, indexed by kind, seed and number.

Functions are made, not picked from a list: a shape, shifted and scaled, a sum or a product of two, a polynomial. So
nobody can tune a theory to the problems of a seed that has not been looked at.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from firststep import Problem, Sizes, function

KINDS = ("single", "degrees", "covariance", "steps")
# Smallest share of the linear part, |c_1| over the root mean square: without one a step has no direction.
LINEAR = 0.25

NAMES = (
    "relu", "leaky_relu", "gelu", "silu", "softplus", "elu", "tanh", "erf", "sin", "sigmoid", "selu", "abs", "sign",
)  # fmt: skip
SMOOTH = ("tanh", "erf", "sin", "sigmoid", "gelu", "silu", "softplus", "cos")
# Six activations of different kinds, for two steps.
SIX = ("relu", "gelu", "softplus", "tanh", "erf", "sin")
# Teachers of one to three directions.
SEVERAL = (
    "h1 + h2/sqrt(2)",
    "tanh(2*x)",
    "t1 + t1*t2",
    "t1 + 0.7*t1*t2",
    "t1 + t1*t2 + 0.5*h2(t2)",
    "t1 + 0.5*t2*t3",
    "t1 + 0.6*t1*t2 + 0.6*t1*t3",
    "tanh(t1) + 0.5*t1*t2",
)


@dataclass(frozen=True)
class Case:
    """One randomly drawn problem; `later` holds the exponents of the steps after the first."""

    index: int
    problem: Problem
    sizes: Sizes
    step_exponent: float
    ridge: float
    later: tuple[float, ...] = ()

    def scaled(self, factor: float) -> "Case":
        """The same ratios and the same spike strengths eta/sqrt(N) at another size."""
        s = self.sizes
        sizes = Sizes(*(round(factor * x) for x in (s.n_samples, s.dim, s.width, s.n_step_samples)))
        exponents = [
            float(sizes.step_exponent(s.step_size(exponent) * math.sqrt(sizes.width / s.width)))
            for exponent in (self.step_exponent, *self.later)
        ]
        return Case(self.index, self.problem, sizes, exponents[0], self.ridge, tuple(exponents[1:]))

    def to_dict(self) -> dict[str, Any]:
        """What `from_dict` builds the case from."""
        later = {"later": list(self.later)} if self.later else {}
        return {
            "index": self.index,
            "problem": self.problem.to_dict(),
            "sizes": self.sizes.to_dict(),
            "step_exponent": self.step_exponent,
            "ridge": self.ridge,
        } | later

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> "Case":
        """Inverse of `to_dict`."""
        problem, sizes = Problem.from_dict(content["problem"]), Sizes(**content["sizes"])
        later = tuple(content.get("later", ()))
        return cls(content["index"], problem, sizes, content["step_exponent"], content["ridge"], later)

    @property
    def work(self) -> float:
        """Floating-point operations of one fit, roughly."""
        n, d, width = (float(x) for x in (self.sizes.n_samples, self.sizes.dim, self.sizes.width))
        return 2 * (n + self.sizes.n_step_samples) * d * width + n * width * min(n, width)


def case(kind: str, seed: int, index: int) -> Case:
    """Problem number `index` of a kind and seed: a longer list never changes the earlier ones."""
    rng = np.random.default_rng([20261118, KINDS.index(kind), seed, index])
    return {"single": _single, "degrees": _degrees, "covariance": _covariance, "steps": _steps}[kind](
        rng, index
    )


def _pick(rng: np.random.Generator, options: Sequence[Any]) -> Any:
    return options[int(rng.integers(len(options)))]


def _log(rng: np.random.Generator, low: float, high: float) -> float:
    return float(math.exp(rng.uniform(math.log(low), math.log(high))))


def _draw_text(rng: np.random.Generator, *, teacher: bool) -> str:
    """A random expression."""
    scale, shift = round(_log(rng, 0.5, 3), 2), round(float(rng.uniform(-1, 1)), 2)
    sign, weight = _pick(rng, "+-"), round(float(rng.uniform(0.1, 1)), 2)
    form = _pick(rng, ("plain", "shifted", "shifted", "polynomial", "sum", "product"))
    if form == "plain":
        return str(_pick(rng, NAMES))
    if form == "shifted":
        return f"{_pick(rng, NAMES)}({scale:g}*x {sign} {abs(shift):g})"
    if form == "polynomial":
        # Standard deviations of the terms; a teacher may have a small fourth one.
        sizes = rng.uniform(-1, 1, 3) * (0.7, 0.5, 0.2)
        terms = [f"{size / math.sqrt(math.factorial(k)):+.3f}*h{k}" for k, size in enumerate(sizes, 2)]
        return "h1 " + " ".join(terms if teacher and rng.random() < 0.5 else terms[:2])
    if form == "sum":
        return f"{_pick(rng, NAMES)}(x) {sign} {weight:g}*{_pick(rng, SMOOTH)}({scale:g}*x)"
    first = _pick(rng, ("x", "tanh(x)", "erf(x)", "sin(x)", "sigmoid(x)"))
    return f"{first}*{_pick(rng, SMOOTH)}({scale:g}*x {sign} {abs(shift):g})"


def _function(rng: np.random.Generator, *, teacher: bool = False) -> str:
    """A random expression with a linear part."""
    while True:
        text = _draw_text(rng, teacher=teacher)
        # A jump has no gradient.
        if not teacher and "sign" in text.replace("sigmoid", ""):
            continue
        made = function(text)
        if abs(made.hermite(2)[1]) >= LINEAR * math.sqrt(made.second_moment) > 0:
            return text


def _problem(rng: np.random.Generator, **more: Any) -> Problem:
    """Functions, noise and laws."""
    activation = more.pop("activation", None) or _function(rng)
    teacher = more.pop("teacher", None) or _function(rng, teacher=True)
    made = function(teacher) if "t1" not in teacher else None
    deviation = math.sqrt(made.second_moment) if made is not None else 1.0
    return Problem(
        activation,
        teacher,
        # Relative to the labels, which random functions make of any size.
        noise_std=round(deviation * float(rng.uniform(0, 1)), 3) if rng.random() < 0.75 else 0.0,
        rows=_pick(rng, ("gaussian", "sphere")),
        readout=_pick(rng, ("gaussian", "gaussian", "rademacher", "constant")),
        initial_output=_pick(rng, ("vanishing", "order_one")),
        **more,
    )


def _until(make: Callable[[], Case], largest: float, least: int = 1) -> Case:
    """The first whose fit costs at most `largest` operations and that has enough samples and neurons."""
    while True:
        found = make()
        if found.work <= largest and min(found.sizes.n_samples, found.sizes.width) >= least:
            return found


def _single(rng: np.random.Generator, index: int) -> Case:
    """One step at proportional sizes: n about 1000, d/n0 up to 3."""
    problem = _problem(rng)
    exponent, ridge = float(rng.uniform(0, 0.5)), _log(rng, 1e-3, 1) * problem.activation.second_moment

    def make() -> Case:
        n = round(_log(rng, 700, 1400))
        d, width = round(n * _log(rng, 0.4, 2.5)), round(n * _log(rng, 1 / 3, 3))
        n0 = n if rng.random() < 0.3 else round(d / _log(rng, 1 / 3, 3))
        return Case(index, problem, Sizes(n, d, width, n0), exponent, ridge)

    return _until(make, 8e9)


def _degrees(rng: np.random.Generator, index: int) -> Case:
    """One step at any ratio: d from 20 to 1000, n/d and N/d from .3 to 100."""
    problem = _problem(rng)
    exponent, ridge = float(rng.uniform(0, 0.5)), _log(rng, 1e-3, 1) * problem.activation.second_moment

    def make() -> Case:
        d = round(_log(rng, 20, 1000))
        n, width = (round(d * _log(rng, 0.3, 100)) for _ in range(2))
        n0 = n if rng.random() < 0.5 else round(n * _log(rng, 0.5, 2))
        return Case(index, problem, Sizes(n, d, width, n0), exponent, ridge)

    # Below a hundred samples or neurons the draws differ more than any theory of their mean tells.
    return _until(make, 4e9, least=100)


def _covariance(rng: np.random.Generator, index: int) -> Case:
    """One step on inputs with a random spectrum."""
    form = _pick(rng, ("power", "power", "levels", "levels", "spiked"))
    alignment = str(
        _pick(rng, ("typical", "eigenvalues", f"eigenvalues({round(float(rng.uniform(-1, 2)), 2):g})"))
    )
    if form == "power":
        inputs = f"power({round(float(rng.uniform(0.2, 1.2)), 2):g})"
    elif form == "levels":
        count = int(rng.integers(2, 5))
        inputs = f"levels({', '.join(f'{_log(rng, 0.1, 3):.2f}' for _ in range(count))})"
        if rng.random() < 0.5:
            alignment = f"weights({', '.join(f'{x:.2f}' for x in rng.dirichlet(np.ones(count)))})"
    else:
        strengths = [f"{_log(rng, 1, 30):.1f}" for _ in range(int(rng.integers(1, 4)))]
        inputs, alignment = f"spiked({', '.join(strengths)}, overlap={rng.uniform(0, 0.9):.2f})", "typical"
    problem = _problem(rng, inputs=inputs, alignment=alignment)
    exponent, ridge = float(rng.uniform(0, 0.5)), _log(rng, 1e-3, 1) * problem.activation.second_moment

    def make() -> Case:
        n = round(_log(rng, 600, 1500))
        d, width = round(n * _log(rng, 0.1, 1.5)), round(n * _log(rng, 0.3, 2))
        n0 = n if rng.random() < 0.5 else round(n * _log(rng, 0.5, 2))
        return Case(index, problem, Sizes(n, d, width, n0), exponent, ridge)

    return _until(make, 8e9)


def _steps(rng: np.random.Generator, index: int) -> Case:
    """Two steps on fresh samples, teachers of one to three directions."""
    problem = _problem(rng, activation=_pick(rng, SIX), teacher=_pick(rng, SEVERAL))
    exponents = rng.uniform(0.1, 0.5, 2)
    ridge = _log(rng, 1e-2, 1) * problem.activation.second_moment

    def make() -> Case:
        n = round(_log(rng, 800, 2000))
        d, width = max(200, round(n * _log(rng, 0.15, 0.6))), round(n * _log(rng, 0.3, 1))
        return Case(index, problem, Sizes(n, d, width), float(exponents[0]), ridge, (float(exponents[1]),))

    return _until(make, 1e10)
