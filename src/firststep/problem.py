"""What is studied: the problem, its sizes, and the outcome that simulation and theory both answer with."""

import hashlib
import json
import math
import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any, Self, cast

import numpy as np
from numpy.typing import ArrayLike

from firststep.gaussian import Array, Function, function

ROWS = ("gaussian", "sphere")
READOUTS = ("gaussian", "rademacher", "constant")
INITIAL_OUTPUTS = ("vanishing", "order_one")

# Below this a Hermite coefficient is an averaging error, not a coefficient (built-in averages are right to 1e-10).
NEGLIGIBLE = 1e-9


class OutsideTheoryWarning(UserWarning):
    """The problem is well defined, but an assumption of the theory does not hold."""


def stable_key(content: Mapping[str, Any]) -> str:
    """Short hash of a JSON-able description that is the same on every machine and in every process."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}; got {value!r}")


@dataclass(frozen=True)
class Problem:
    r"""A two-layer network and the single-index teacher it learns from.

    .. math:: y = s(\beta \cdot x) + \varepsilon, \quad x \sim N(0, I_d), \quad
        f(x) = \tau\, a \cdot \sigma(W_0 x)

    Parameters
    ----------
    activation : str, sequence, callable or Function
        :math:`\sigma`: a name (``"relu"``), an expression (``"tanh(2*x)"``), Hermite coefficients or a callable;
        see :func:`firststep.function`. Centred by default: ``"relu"`` means ``max(x, 0) - 1/sqrt(2 pi)``.
    teacher : str, sequence, callable or Function
        :math:`s`, given in the same ways.
    noise_std : float
        Standard deviation of the label noise :math:`\varepsilon`, zero or more.
    rows : {"gaussian", "sphere"}
        First-layer rows :math:`N(0, I/d)` or uniform on the unit sphere.
    readout : {"gaussian", "rademacher", "constant"}
        Second layer at the start: :math:`N(0, 1/N)`, :math:`\pm 1/\sqrt N` or :math:`1/\sqrt N`.
    initial_output : {"vanishing", "order_one"}
        :math:`\tau = 1/\sqrt N`, so that the network starts at zero [Ba22]_, [Cui24]_, or :math:`\tau = 1` [Moniri24]_.

    Examples
    --------
    >>> problem = Problem("relu", "h1 + h2/sqrt(2)", noise_std=0.5)
    >>> print(f"{problem.activation.hermite(2)[1]:.3f}")
    0.500
    """

    activation: Function
    teacher: Function
    noise_std: float = 0.0
    rows: str = "gaussian"
    readout: str = "gaussian"
    initial_output: str = "vanishing"

    def __init__(
        self,
        activation: str | Sequence[float] | Any,
        teacher: str | Sequence[float] | Any,
        noise_std: float = 0.0,
        rows: str = "gaussian",
        readout: str = "gaussian",
        initial_output: str = "vanishing",
    ) -> None:
        _one_of("rows", rows, ROWS)
        _one_of("readout", readout, READOUTS)
        _one_of("initial_output", initial_output, INITIAL_OUTPUTS)
        if isinstance(noise_std, bool) or not isinstance(noise_std, numbers.Real):
            raise TypeError(f"noise_std must be a number, got {noise_std!r}")
        if not (math.isfinite(noise_std) and noise_std >= 0):
            raise ValueError(f"noise_std must be finite and not negative, got {noise_std}")
        values = {
            "activation": function(activation),
            "teacher": function(teacher),
            "noise_std": float(noise_std),
            "rows": rows,
            "readout": readout,
            "initial_output": initial_output,
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)
        # An activation without a usable derivative cannot take a gradient step.
        self.activation.derivative(np.array([0.5]))

    @property
    def noise_variance(self) -> float:
        """Variance of the label noise."""
        return self.noise_std**2

    @property
    def label_variance(self) -> float:
        """E y^2 = c*^2 + noise^2."""
        return self.teacher.second_moment + self.noise_variance

    def output_variance(self, sizes: "Sizes") -> float:
        r"""Limit of the variance of the network's output at the start, over the inputs.

        .. math:: E f_0^2 = E\sigma^2 \;[\; + 2 c_2^2 N/d \text{ if the readout is constant}\;]

        if it is of order one, else 0. A constant readout adds up what all neurons see of the norm of x
        [firststep]; simulated with c_1 = 1, c_2 = 1/2, N/d = 1.5 (limit 2.25): 2.242(12) at d = 1000.

        Examples
        --------
        >>> setting = Problem([0, 1, 0.5], "identity", readout="constant", initial_output="order_one")
        >>> print(f"{setting.output_variance(Sizes(1000, 500, 750)):.2f}")
        2.25
        """
        if self.initial_output == "vanishing":
            return 0.0
        total = self.activation.second_moment
        if self.readout == "constant":
            total += 2 * float(self.activation.hermite(3)[2] ** 2) * sizes.width / sizes.dim
        return total

    def direction_norm_squared(self, sizes: "Sizes") -> float:
        r"""Limit :math:`B^2` of the squared norm of the step direction :math:`X^\top (y - f_0)/n_0`.

        .. math:: B^2 = c_{*1}^2 + \tfrac{d}{n_0}(c_*^2 + \sigma_\varepsilon^2)
            \quad [\;+\; c_1^2 + \tfrac{d}{n_0} E f_0^2 \text{ if the initial output is of order one}\;]

        [Moniri24, Prop. 1]; the bracket is [firststep]. A starting output of order one is a second signal,
        linear in x to leading order, that the gradient subtracts.

        Examples
        --------
        >>> setting = Problem("relu", "identity", noise_std=1, initial_output="order_one")
        >>> print(f"{setting.direction_norm_squared(Sizes(1000, 500, 750)):.2f}")
        2.42
        """
        variance = self.label_variance + self.output_variance(sizes)
        total = float(self.teacher.hermite(2)[1] ** 2) + sizes.step_ratio * variance
        if self.initial_output == "order_one":
            total += float(self.activation.hermite(2)[1] ** 2)
        return total

    def concerns(self, sizes: "Sizes | None" = None) -> tuple[str, ...]:
        """Sentences that say which assumptions of the theory this problem breaks; empty when none.

        Examples
        --------
        >>> print(Problem("relu", "h2").concerns()[0])
        the teacher h2 has no linear part (c*_1 = 0): one gradient step learns nothing about it
        """
        found = []
        c, c_star = self.activation.hermite(2), self.teacher.hermite(2)
        if abs(c_star[1]) < NEGLIGIBLE:
            found.append(
                f"the teacher {self.teacher.spec} has no linear part (c*_1 = 0): "
                "one gradient step learns nothing about it"
            )
        if abs(c[1]) < NEGLIGIBLE:
            found.append(
                f"the activation {self.activation.spec} has no linear part (c_1 = 0): the gradient has no rank-one part"
            )
        for word, what in (("activation", self.activation), ("teacher", self.teacher)):
            if abs(what.hermite(1)[0]) > NEGLIGIBLE:
                found.append(
                    f"the {word} {what.spec} has mean {what.hermite(1)[0]:.3g}; the theory assumes 0: leave centre=True"
                )
        if sizes is not None:
            ratios = {"d/n": sizes.sample_ratio, "d/N": sizes.width_ratio, "d/n0": sizes.step_ratio}
            found += [
                f"{name} = {value:.3g} is far from order one, where the limit theory is accurate"
                for name, value in ratios.items()
                if not 0.01 <= value <= 100
            ]
        return tuple(found)

    def replaced(self, **changes: Any) -> Self:
        """The same problem with some of its fields changed.

        Examples
        --------
        >>> Problem("relu", "identity").replaced(rows="sphere").rows
        'sphere'
        """
        names = ("activation", "teacher", "noise_std", "rows", "readout", "initial_output")
        return type(self)(**({name: getattr(self, name) for name in names} | changes))

    def to_dict(self) -> dict[str, Any]:
        """Plain description from which `from_dict` builds the problem again (callables excepted)."""
        return {
            "activation": self.activation.spec,
            "teacher": self.teacher.spec,
            "centred": [self.activation.centred, self.teacher.centred],
            "noise_std": self.noise_std,
            "rows": self.rows,
            "readout": self.readout,
            "initial_output": self.initial_output,
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """Inverse of `to_dict`."""
        values = dict(content)
        centred = values.pop("centred", [True, True])
        values["activation"] = function(values["activation"], centre=centred[0])
        values["teacher"] = function(values["teacher"], centre=centred[1])
        return cls(**values)

    @property
    def key(self) -> str:
        """Stable hash of the problem: equal for equal problems on every machine."""
        return stable_key(self.to_dict() | {"activation": self.activation.key, "teacher": self.teacher.key})


def check_whole(name: str, value: object, least: int) -> None:
    """Refuse what is not a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name} must be a whole number, got {value!r}")
    if int(value) < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")


def _size(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not float(value).is_integer():
        raise TypeError(f"{name} must be a whole number, got {value!r}")
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}")
    return int(cast(int, value))


@dataclass(frozen=True)
class Sizes:
    """How many samples, inputs and neurons.

    Parameters
    ----------
    n_samples : int
        n, samples of the ridge fit.
    dim : int
        d, input dimension.
    width : int
        N, neurons of the first layer.
    n_step_samples : int, optional
        n0, samples of the gradient step, independent of the others; `n_samples` when not given.

    Examples
    --------
    >>> sizes = Sizes(n_samples=1000, dim=500, width=750)
    >>> sizes.sample_ratio, round(sizes.width_ratio, 3), round(sizes.step_size(0.5), 3)
    (0.5, 0.667, 31.623)
    """

    n_samples: int
    dim: int
    width: int
    n_step_samples: int = cast(int, None)

    def __post_init__(self) -> None:
        if self.n_step_samples is None:
            object.__setattr__(self, "n_step_samples", self.n_samples)
        for name in ("n_samples", "dim", "width", "n_step_samples"):
            object.__setattr__(self, name, _size(name, getattr(self, name)))

    @property
    def sample_ratio(self) -> float:
        """phi = d/n [Moniri24]."""
        return self.dim / self.n_samples

    @property
    def width_ratio(self) -> float:
        """psi = d/N [Moniri24]."""
        return self.dim / self.width

    @property
    def step_ratio(self) -> float:
        """d/n0, the ratio that the gradient step sees."""
        return self.dim / self.n_step_samples

    def step_size(self, step_exponent: ArrayLike) -> Any:
        """eta = n0^alpha, a float for a float and an array for an array."""
        size = np.power(float(self.n_step_samples), np.asarray(step_exponent, dtype=float))
        return float(size) if size.ndim == 0 else size

    def step_exponent(self, step_size: ArrayLike) -> Any:
        """alpha = log eta / log n0; minus infinity where eta = 0, not a number where n0 = 1."""
        with np.errstate(divide="ignore", invalid="ignore"):
            exponent = np.log(np.asarray(step_size, dtype=float)) / np.log(float(self.n_step_samples))
        return float(exponent) if exponent.ndim == 0 else exponent

    @classmethod
    def from_moniri(cls, n_samples: int, phi: float, psi: float, n_step_samples: int | None = None) -> Self:
        """Sizes from phi = d/n and psi = d/N, rounded to whole numbers [Moniri24].

        Examples
        --------
        >>> Sizes.from_moniri(1000, phi=0.5, psi=0.625)
        Sizes(n_samples=1000, dim=500, width=800, n_step_samples=1000)
        """
        dim = max(1, round(n_samples * _ratio("phi", phi)))
        width = max(1, round(dim / _ratio("psi", psi)))
        return cls(n_samples, dim, width, cast(int, n_step_samples))

    @classmethod
    def from_ba(cls, dim: int, psi1: float, psi2: float, n_step_samples: int | None = None) -> Self:
        """Sizes from psi1 = n/d and psi2 = N/d, rounded to whole numbers [Ba22].

        Examples
        --------
        >>> Sizes.from_ba(512, psi1=5, psi2=2)
        Sizes(n_samples=2560, dim=512, width=1024, n_step_samples=2560)
        """
        n_samples = max(1, round(dim * _ratio("psi1", psi1)))
        width = max(1, round(dim * _ratio("psi2", psi2)))
        return cls(n_samples, dim, width, cast(int, n_step_samples))

    @classmethod
    def from_cui(
        cls, dim: int, sample_ratio: float, width_ratio: float = 1.0, step_ratio: float = 1.0
    ) -> Self:
        """Sizes from n/N, N/d and n0/d, the ratios of the alpha = 1/2 theory [Cui24].

        Examples
        --------
        >>> Sizes.from_cui(2000, sample_ratio=1.6, width_ratio=1, step_ratio=0.5)
        Sizes(n_samples=3200, dim=2000, width=2000, n_step_samples=1000)
        """
        width = max(1, round(dim * _ratio("width_ratio", width_ratio)))
        n_samples = max(1, round(width * _ratio("sample_ratio", sample_ratio)))
        return cls(n_samples, dim, width, max(1, round(dim * _ratio("step_ratio", step_ratio))))

    def ridge_from_cui(self, ridge: ArrayLike) -> Any:
        """Our lambda from the convention ||y - F a||^2/N + lambda_C ||a||^2: lambda = lambda_C N/n [Cui24]."""
        return np.asarray(ridge, dtype=float)[()] * self.width / self.n_samples

    def ridge_to_cui(self, ridge: ArrayLike) -> Any:
        """lambda_C = lambda n/N, the inverse of `ridge_from_cui` [Cui24]."""
        return np.asarray(ridge, dtype=float)[()] * self.n_samples / self.width

    def to_dict(self) -> dict[str, int]:
        """Plain description."""
        return {
            "n_samples": self.n_samples,
            "dim": self.dim,
            "width": self.width,
            "n_step_samples": self.n_step_samples,
        }

    @property
    def key(self) -> str:
        """Stable hash of the sizes."""
        return stable_key(self.to_dict())


def _ratio(name: str, value: float) -> float:
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} must be positive and finite, got {value}")
    return float(value)


def step_sizes_of(sizes: Sizes, step_sizes: ArrayLike | None, step_exponents: ArrayLike | None) -> Array:
    """Array (S,) of step sizes eta from either way of giving them, checked."""
    if (step_sizes is None) == (step_exponents is None):
        raise ValueError(
            "give either step_sizes (eta) or step_exponents (alpha, eta = n0^alpha), not both or neither"
        )
    if step_exponents is not None:
        values = np.atleast_1d(np.asarray(sizes.step_size(step_exponents), dtype=float))
    else:
        values = np.atleast_1d(np.asarray(step_sizes, dtype=float))
    if values.ndim != 1 or values.size == 0:
        raise ValueError(f"step sizes must be a number or a non-empty list, got shape {values.shape}")
    wrong = values[~(np.isfinite(values) & (values >= 0))]
    if wrong.size:
        raise ValueError(f"step sizes must be finite and not negative, got {float(wrong[0])}")
    return cast(Array, values)


def ridges_of(ridges: ArrayLike) -> Array:
    """Array (R,) of ridges lambda, checked."""
    values = np.atleast_1d(np.asarray(ridges, dtype=float))
    if values.ndim != 1 or values.size == 0:
        raise ValueError(f"ridges must be a number or a non-empty list, got shape {values.shape}")
    wrong = values[~(np.isfinite(values) & (values > 0))]
    if wrong.size:
        raise ValueError(f"ridge must be positive and finite, got {float(wrong[0])}")
    return cast(Array, values)


@dataclass(frozen=True, eq=False)
class Outcome:
    """Errors and related numbers for every step size and ridge, from simulation or from theory.

    Attributes
    ----------
    problem, sizes
        What was studied.
    step_sizes : ndarray (S,)
        eta.
    ridges : ndarray (R,)
        lambda.
    source : str
        ``"simulation"`` or the name of the theory.
    values : mapping of str to ndarray
        Each broadcasts to (S, R); also reached as attributes, ``outcome.test_error``. `train_error` contains the
        penalty and `test_error` the noise; the other names are in the table of quantities of the notation page.
    stderr : mapping of str to ndarray
        Standard errors of `values`, for simulations of at least two replicas.
    notes : tuple of str
        What the reader of the numbers should know: assumptions broken, resolution reached.
    details : mapping
        What else the source reports (replicas, seed, residuals, iterations, samples of each replica).

    Examples
    --------
    >>> problem, sizes = Problem("relu", "identity"), Sizes(1000, 500, 750)
    >>> values = {"test_error": np.array([[0.5, 0.6]])}
    >>> outcome = Outcome(problem, sizes, np.array([1.0]), np.array([0.1, 1.0]), source="by hand", values=values)
    >>> float(outcome.test_error[0, 1]), outcome.rows()[0]["test_error"]
    (0.6, 0.5)
    """

    problem: Problem
    sizes: Sizes
    step_sizes: Array
    ridges: Array
    source: str
    values: Mapping[str, Array]
    stderr: Mapping[str, Array] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Array:
        values = self.__dict__.get("values", {})
        if name in values:
            return cast(Array, values[name])
        raise AttributeError(f"{type(self).__name__} has no {name!r}; it has the values {', '.join(values)}")

    @property
    def step_exponents(self) -> Array:
        """alpha = log eta/log n0, shape (S,)."""
        return cast(Array, self.sizes.step_exponent(self.step_sizes))

    def rows(self) -> list[dict[str, float | None]]:
        """One flat row for each pair of step size and ridge, ready for JSON or a table.

        A step size of 0 has no exponent: it is None there.
        """
        shape = (len(self.step_sizes), len(self.ridges))
        columns = {name: np.broadcast_to(value, shape) for name, value in self.values.items()}
        errors = {f"{name}_stderr": np.broadcast_to(value, shape) for name, value in self.stderr.items()}
        exponents = self.step_exponents
        rows = []
        for i, step_size in enumerate(self.step_sizes):
            for j, ridge in enumerate(self.ridges):
                row: dict[str, float | None] = {
                    "step_size": float(step_size),
                    "step_exponent": float(exponents[i]) if math.isfinite(exponents[i]) else None,
                    "ridge": float(ridge),
                }
                for name, column in (columns | errors).items():
                    row[name] = float(column[i, j]) if math.isfinite(column[i, j]) else None
                rows.append(row)
        return rows

    def to_dict(self) -> dict[str, Any]:
        """Problem, sizes and rows as one JSON-able object."""
        return {
            "source": self.source,
            "problem": self.problem.to_dict(),
            "sizes": self.sizes.to_dict(),
            "notes": list(self.notes),
            "rows": self.rows(),
        }

    def __repr__(self) -> str:
        shape = f"{len(self.step_sizes)} step sizes x {len(self.ridges)} ridges"
        return f"Outcome({self.source}: {shape}; {', '.join(self.values)})"

    def _repr_html_(self) -> str:
        rows = self.rows()
        head = "".join(f"<th>{escape(name)}</th>" for name in rows[0])
        body = "".join(
            "<tr>"
            + "".join(f"<td>{'–' if v is None else format(v, '.5g')}</td>" for v in row.values())
            + "</tr>"
            for row in rows
        )
        return f"<table><caption>{escape(self.source)}</caption><tr>{head}</tr>{body}</table>"


@dataclass(frozen=True)
class Outlier:
    """An eigenvalue outside the bulk.

    Attributes
    ----------
    eigenvalue, singular_value : float
        Of F F^T/n and F/sqrt(n), or of W W^T and W.
    overlaps : mapping of str to float
        Squared overlaps of its singular vector; the names are in the notation page.
    over_edge : float
        The eigenvalue in units of the bulk's upper edge.
    """

    eigenvalue: float
    singular_value: float
    overlaps: Mapping[str, float]
    over_edge: float

    def to_dict(self) -> dict[str, Any]:
        """Plain description."""
        return {
            "eigenvalue": self.eigenvalue,
            "singular_value": self.singular_value,
            "over_edge": self.over_edge,
            "overlaps": dict(self.overlaps),
        }


@dataclass(frozen=True, eq=False)
class Spectrum:
    """Eigenvalues of the features F F^T/n or of the weights W W^T after the step, predicted or simulated.

    Attributes
    ----------
    problem, sizes, step_size
        What was studied.
    of : str
        ``"features"`` or ``"weights"``.
    source : str
        ``"simulation"`` or ``"unified"``.
    x, density : ndarray
        The bulk: a density for a theory, a histogram's midpoints and heights for a simulation. Together with
        `atom` it integrates to one.
    edges : (float, float)
        Lower and upper end of the bulk.
    intervals : tuple of (float, float)
        The bulk's pieces, from left to right; most bulks have one.
    atom : float
        Share of eigenvalues that are exactly zero.
    outliers : tuple of Outlier
        From the largest down.
    details : mapping
        What else the source reports: all eigenvalues of each draw, overlaps of both singular vectors, residuals.

    Examples
    --------
    >>> from firststep.theory.spectrum import predict_spectrum
    >>> spectrum = predict_spectrum(Problem("tanh", "identity"), Sizes(200, 100, 150), step_size=4.0, points=20)
    >>> len(spectrum.outliers), spectrum.outliers[0].over_edge > 1
    (1, True)
    """

    problem: Problem
    sizes: Sizes
    step_size: float
    of: str
    source: str
    x: Array
    density: Array
    edges: tuple[float, float]
    intervals: tuple[tuple[float, float], ...]
    atom: float
    outliers: tuple[Outlier, ...]
    details: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Bulk, edges and outliers as one JSON-able object."""
        return {
            "source": self.source,
            "of": self.of,
            "problem": self.problem.to_dict(),
            "sizes": self.sizes.to_dict(),
            "step_size": self.step_size,
            "bulk": {"x": self.x.tolist(), "density": self.density.tolist()},
            "edges": list(self.edges),
            "intervals": [list(pair) for pair in self.intervals],
            "atom": self.atom,
            "outliers": [outlier.to_dict() for outlier in self.outliers],
        }

    def __repr__(self) -> str:
        found = ", ".join(f"{outlier.eigenvalue:.4g}" for outlier in self.outliers) or "none"
        return (
            f"Spectrum({self.source} of the {self.of} at step_size={self.step_size:.4g}: "
            f"bulk {self.edges[0]:.4g} … {self.edges[1]:.4g}, outliers {found})"
        )
