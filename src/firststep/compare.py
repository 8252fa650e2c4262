"""Both answers to one question: simulated mean, prediction, and their distance in standard errors."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike

from firststep.gaussian import Array
from firststep.problem import Outcome, Problem, Sizes

COMPARED = ("train_error", "test_error", "train_gain", "test_gain")

# Differences below this share of the error itself are rounding (a step of size 0 gains nothing on both
# sides), and have no distance in standard errors that are rounding too.
ROUNDING = 1e-9


@dataclass(frozen=True, eq=False)
class Comparison:
    """A simulation and the predictions for the same problem, sizes, step sizes and ridges.

    Attributes
    ----------
    simulated : Outcome
        With standard errors, so from at least two replicas.
    predicted : mapping of str to Outcome
        By the name of the theory.

    Examples
    --------
    >>> problem, sizes = Problem("tanh", "identity", noise_std=0.5), Sizes(100, 50, 75)
    >>> both = compare(problem, sizes, [0.0, 2.0], replicas=4, theory=["unified", "random_features"], workers=1)
    >>> both.quantities
    ('train_error', 'test_error', 'train_gain', 'test_gain')
    >>> both.distances("test_error", "unified").shape, len(both.rows())
    ((2, 1), 4)
    """

    simulated: Outcome
    predicted: Mapping[str, Outcome]

    def __post_init__(self) -> None:
        if not self.predicted:
            raise ValueError("a comparison needs at least one prediction")
        for name, outcome in self.predicted.items():
            same = (
                outcome.problem.key == self.simulated.problem.key
                and outcome.sizes == self.simulated.sizes
                and np.array_equal(outcome.step_sizes, self.simulated.step_sizes)
                and np.array_equal(outcome.ridges, self.simulated.ridges)
            )
            if not same:
                raise ValueError(f"the prediction {name!r} answers another question than the simulation")

    @property
    def quantities(self) -> tuple[str, ...]:
        """What is compared: the errors and paired gains that both sides have."""
        sides = (self.simulated, *self.predicted.values())
        return tuple(name for name in COMPARED if all(name in side.values for side in sides))

    @property
    def notes(self) -> tuple[str, ...]:
        """What simulation and theories have to say about the numbers, each once."""
        sides = (*self.predicted.values(), self.simulated)
        return tuple(dict.fromkeys(note for side in sides for note in side.notes))

    def _grid(self, values: Array) -> Array:
        return cast(
            Array, np.broadcast_to(values, (len(self.simulated.step_sizes), len(self.simulated.ridges)))
        )

    def _theory(self, theory: str | None) -> str:
        name = next(iter(self.predicted)) if theory is None else theory
        if name not in self.predicted:
            raise ValueError(f"theory must be one of {', '.join(self.predicted)}; got {name!r}")
        return name

    def differences(self, quantity: str, theory: str | None = None) -> Array:
        """Simulated mean minus prediction, (S, R); rounding counts as 0."""
        simulated = self._grid(self.simulated.values[quantity])
        difference = simulated - self._grid(self.predicted[self._theory(theory)].values[quantity])
        error = self.simulated.values.get(quantity.replace("gain", "error"), simulated)
        scale = np.abs(self._grid(error)) + np.abs(simulated)
        return cast(Array, np.where(np.abs(difference) <= ROUNDING * scale, 0.0, difference))

    def distances(self, quantity: str, theory: str | None = None) -> Array:
        r"""Distance in standard errors, (simulated - predicted)/stderr, of shape (S, R).

        Infinite where a difference has no standard error to be measured by, NaN where nothing was predicted.
        """
        difference = self.differences(quantity, theory)
        if quantity not in self.simulated.stderr:
            return cast(Array, np.where(difference == 0, 0.0, np.full_like(difference, np.nan)))
        stderr = self._grid(self.simulated.stderr[quantity])
        with np.errstate(divide="ignore", invalid="ignore"):
            return cast(Array, np.where(difference == 0, 0.0, difference / stderr))

    def relative_differences(self, quantity: str, theory: str | None = None) -> Array:
        """Simulated minus predicted over the size of the predicted, of shape (S, R); NaN where 0 was predicted."""
        difference = self.differences(quantity, theory)
        predicted = np.abs(self._grid(self.predicted[self._theory(theory)].values[quantity]))
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(predicted > 0, difference / predicted, np.nan)
        return cast(Array, np.where(difference == 0, 0.0, ratio))

    def rows(self) -> list[dict[str, float | str | None]]:
        """One flat row for each theory, step size and ridge, ready for JSON or a table.

        For every compared quantity, say ``test_error``: the simulated mean ``test_error``, its
        ``test_error_stderr``, ``test_error_predicted``, ``test_error_distance`` (in standard errors) and
        ``test_error_relative_difference``. None stands for what does not exist.
        """
        shape = (len(self.simulated.step_sizes), len(self.simulated.ridges))
        exponents = self.simulated.step_exponents
        rows = []
        for theory, predicted in self.predicted.items():
            columns: dict[str, Array] = {}
            for name in self.quantities:
                stderr = self.simulated.stderr.get(name, np.array(np.nan))
                columns[name] = self._grid(self.simulated.values[name])
                columns[f"{name}_stderr"] = self._grid(stderr)
                columns[f"{name}_predicted"] = self._grid(predicted.values[name])
                columns[f"{name}_distance"] = self.distances(name, theory)
                columns[f"{name}_relative_difference"] = self.relative_differences(name, theory)
            for i, j in np.ndindex(shape):
                row: dict[str, float | str | None] = {
                    "theory": theory,
                    "step_size": float(self.simulated.step_sizes[i]),
                    "step_exponent": _finite(exponents[i]),
                    "ridge": float(self.simulated.ridges[j]),
                }
                rows.append(row | {name: _finite(column[i, j]) for name, column in columns.items()})
        return rows

    def summary(self) -> dict[str, dict[str, dict[str, float | None]]]:
        """Largest and median size of the distance in standard errors, for each theory and quantity.

        All points share their draws: ten distances of 2 may well be one surprise, not ten.
        """
        summary: dict[str, dict[str, dict[str, float | None]]] = {}
        for theory in self.predicted:
            summary[theory] = {}
            for name in self.quantities:
                distances = np.abs(self.distances(name, theory))
                distances = distances[~np.isnan(distances)]
                relative = np.abs(self.relative_differences(name, theory))
                relative = relative[~np.isnan(relative)]
                summary[theory][name] = {
                    "largest_distance": _finite(distances.max()) if distances.size else None,
                    "median_distance": _finite(np.median(distances)) if distances.size else None,
                    "largest_relative_difference": _finite(relative.max()) if relative.size else None,
                }
        return summary

    def to_dict(self) -> dict[str, Any]:
        """Problem, sizes, rows and summary as one JSON-able object."""
        return {
            "problem": self.simulated.problem.to_dict(),
            "sizes": self.simulated.sizes.to_dict(),
            "theories": list(self.predicted),
            "notes": list(self.notes),
            "rows": self.rows(),
            "summary": self.summary(),
        }

    def table(self, theory: str | None = None, width: int | None = None) -> str:
        """Text table for people: simulated ± standard error, prediction, distance.

        Parameters
        ----------
        theory : str, optional
            One of the compared theories; the first when not given.
        width : int, optional
            Columns of the terminal; what does not fit is left out.
        """
        name = self._theory(theory)
        rows = [row for row in self.rows() if row["theory"] == name]
        leading = step_columns(rows)
        groups = [
            [
                (what.replace("_", " "), [value_text(row[what], row[f"{what}_stderr"]) for row in rows]),
                ("predicted", [value_text(row[f"{what}_predicted"]) for row in rows]),
                ("distance", [distance_text(distance) for distance in self.distances(what, name).ravel()]),
            ]
            for what in self.quantities
        ]
        return aligned(leading, groups, width)

    def __repr__(self) -> str:
        shape = f"{len(self.simulated.step_sizes)} step sizes x {len(self.simulated.ridges)} ridges"
        names = ", ".join(self.predicted)
        return f"Comparison(simulation against {names}: {shape}; {', '.join(self.quantities)})"

    def __str__(self) -> str:
        return "\n\n".join(f"simulation against {name}\n{self.table(name)}" for name in self.predicted)

    def _repr_html_(self) -> str:
        tables = []
        for theory in self.predicted:
            rows = [row for row in self.rows() if row.pop("theory") == theory]
            head = "".join(f"<th>{escape(name)}</th>" for name in rows[0])
            body = "".join(
                "<tr>"
                + "".join(f"<td>{'–' if v is None else format(v, '.5g')}</td>" for v in row.values())
                + "</tr>"
                for row in rows
            )
            caption = f"simulation against {escape(theory)}; distances in standard errors"
            tables.append(f"<table><caption>{caption}</caption><tr>{head}</tr>{body}</table>")
        return "".join(tables)


def _finite(value: Any) -> float | None:
    return float(value) if math.isfinite(value) else None


def value_text(value: object, stderr: object = None) -> str:
    """A number to five digits, or as many as its standard error allows.

    Examples
    --------
    >>> value_text(1.5), value_text(1.516804, 0.00664), value_text(None)
    ('1.5000', '1.5168 ± 0.0066', '–')
    """
    if not isinstance(value, int | float):
        return "–"
    if not isinstance(stderr, int | float):
        return f"{value:#.5g}".rstrip(".")
    if stderr <= 0:
        return f"{value:.5g} ± 0"
    digits = 1 - math.floor(math.log10(float(f"{stderr:.1e}")))
    if not 0 <= digits <= 7:
        return f"{value:.5g} ± {stderr:.2g}"
    return f"{value:.{digits}f} ± {stderr:.{digits}f}"


def distance_text(distance: float) -> str:
    """Signed distance in standard errors with one decimal.

    Examples
    --------
    >>> distance_text(-1.26), distance_text(0.0), distance_text(float("inf")), distance_text(float("nan"))
    ('-1.3', '0.0', '∞', '–')
    """
    if math.isnan(distance):
        return "–"
    if math.isinf(distance):
        return "∞" if distance > 0 else "-∞"
    return "0.0" if distance == 0 else f"{distance:+.1f}"


def step_columns(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[str]]]:
    """The columns with which every table starts: alpha, eta and lambda."""
    return [
        ("alpha", ["–" if row["step_exponent"] is None else f"{row['step_exponent']:.4g}" for row in rows]),
        ("eta", [f"{row['step_size']:.5g}" for row in rows]),
        ("lambda", [f"{row['ridge']:.4g}" for row in rows]),
    ]


def aligned(
    leading: Sequence[tuple[str, Sequence[str]]],
    groups: Sequence[Sequence[tuple[str, Sequence[str]]]],
    width: int | None = None,
) -> str:
    """Columns of text flush right under their heads.

    To fit a width, lambda is left out if it never changes, then eta, which alpha stands for, then groups from
    the end, but never all of them.

    Examples
    --------
    >>> print(aligned([("eta", ["1", "10"])], [[("error", ["0.5", "0.25"])]]))
    eta  error
      1    0.5
     10   0.25
    """

    def lines(columns: Sequence[tuple[str, Sequence[str]]]) -> list[str]:
        widths = [max(len(head), *(len(entry) for entry in entries)) for head, entries in columns]
        records = [[head for head, _ in columns], *zip(*(entries for _, entries in columns), strict=True)]
        return [
            "  ".join(f"{text:>{w}}" for text, w in zip(record, widths, strict=True)) for record in records
        ]

    first, kept = list(leading), list(groups)
    while True:
        table = lines([*first, *(column for group in kept for column in group)])
        spare = [
            column
            for column in first
            if (column[0] == "lambda" and len(set(column[1])) == 1)
            or (column[0] == "eta" and all(head != "alpha" or "–" not in texts for head, texts in first))
        ]
        if width is None or len(table[0]) <= width or (not spare and len(kept) <= 1):
            return "\n".join(table)
        if spare:
            first.remove(spare[-1])
        else:
            kept.pop()


def compare(
    problem: Problem,
    sizes: Sizes,
    step_sizes: ArrayLike | None = None,
    ridges: ArrayLike = 0.1,
    *,
    step_exponents: ArrayLike | None = None,
    theory: str | Sequence[str] = "unified",
    theory_options: Mapping[str, Mapping[str, Any]] | None = None,
    replicas: int = 8,
    **simulation: Any,
) -> Comparison:
    """Simulate a problem and predict it, for the same step sizes and ridges.

    Parameters
    ----------
    problem, sizes
        What is studied.
    step_sizes : float or array (S,), optional
        eta, zero or more; give these or `step_exponents`.
    ridges : float or array (R,)
        lambda, positive.
    step_exponents : float or array (S,), optional
        alpha, eta = n0^alpha.
    theory : str or sequence of str
        Names that :func:`firststep.predict` knows.
    theory_options : mapping of str to mapping, optional
        Further arguments of `predict`, by the name of the theory.
    replicas : int
        Independent draws, at least 2: a distance needs a standard error.
    **simulation
        Further arguments of :func:`firststep.simulate`, such as `seed`, `workers`, `dtype` and `progress`.

    Returns
    -------
    Comparison
        Both answers, their distances, a table.

    Examples
    --------
    >>> setting = Problem("tanh", "tanh", noise_std=0.3)
    >>> result = compare(setting, Sizes(200, 100, 150), 0.0, theory="random_features", replicas=6)
    >>> bool(abs(result.distances("test_error")[0, 0]) < 4)
    True
    """
    # Here and not above: the tables of this file are also printed where nothing is simulated.
    from firststep.simulate import simulate
    from firststep.theory import predict

    names = [theory] if isinstance(theory, str) else list(theory)
    if not names:
        raise ValueError("theory must name at least one theory, got none")
    if replicas < 2:
        raise ValueError(f"replicas must be at least 2 to have a standard error, got {replicas}")
    options = theory_options or {}
    unknown = sorted(set(options) - set(names))
    if unknown:
        raise ValueError(f"theory_options has {', '.join(unknown)}, but the theories are {', '.join(names)}")
    asked: dict[str, Any] = {"step_sizes": step_sizes, "ridges": ridges, "step_exponents": step_exponents}
    # Theory first: it takes seconds, and a question that it cannot answer should not wait for the simulation.
    predicted = {
        name: predict(problem, sizes, theory=name, **asked, **options.get(name, {}))
        for name in dict.fromkeys(names)
    }
    return Comparison(simulate(problem, sizes, replicas=replicas, **asked, **simulation), predicted)
