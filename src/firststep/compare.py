"""Both answers to one question: simulated mean, prediction, their distance, and whether they agree."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import ArrayLike

from firststep.gaussian import Array
from firststep.numerics.agreement import (
    DISAGREES,
    FINITE_SIZE,
    Agreement,
    curve_agreement,
    normal_distances,
    probability_text,
    student_p_values,
    words_of,
)
from firststep.results import Outcome, drawing
from firststep.results.outcome import bar_name, step_names
from firststep.results.tables import beside, data_frame
from firststep.results.text import html_table
from firststep.results.text import value_text as value_text
from firststep.setting import Problem, Sizes
from firststep.setting.doors import door

if TYPE_CHECKING:
    import pandas
    import xarray
    from matplotlib.axes import Axes

_Column = tuple[str, list[str]]

COMPARED = ("train_error", "test_error", "risk", "train_gain", "test_gain")

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
                and np.array_equal(outcome.schedule, self.simulated.schedule)
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

    @property
    def _shape(self) -> tuple[int, int]:
        return len(self.simulated.step_sizes), len(self.simulated.ridges)

    def _grid(self, values: Array) -> Array:
        return cast(Array, np.broadcast_to(values, self._shape))

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

        With few replicas the standard error is itself uncertain, and 3 is no surprise: see `normal_distances`.
        Infinite where a difference has no standard error to be measured by, NaN where nothing was predicted.
        """
        difference = self.differences(quantity, theory)
        if quantity not in self.simulated.stderr:
            return cast(Array, np.where(difference == 0, 0.0, np.full_like(difference, np.nan)))
        stderr = self._grid(self.simulated.stderr[quantity])
        with np.errstate(divide="ignore", invalid="ignore"):
            return cast(Array, np.where(difference == 0, 0.0, difference / stderr))

    @property
    def degrees_of_freedom(self) -> float:
        """Of a point's standard error: replicas less one; infinite where the number of replicas is not known."""
        replicas = self.simulated.details.get("replicas")
        return float(replicas - 1) if replicas else math.inf

    def p_values(self, quantity: str, theory: str | None = None) -> Array:
        """Chance that a right prediction is at least as far off, by Student's t, of shape (S, R)."""
        return student_p_values(self.distances(quantity, theory), self.degrees_of_freedom)

    def normal_distances(self, quantity: str, theory: str | None = None) -> Array:
        """Distances of a normal variable with the same p-values, (S, R): what a distance of few replicas is worth."""
        return normal_distances(self.distances(quantity, theory), self.degrees_of_freedom)

    def bars(self, quantity: str, theory: str | None = None) -> Array:
        """Half-widths of the theory's own error bar, (S, R); 0 where it states none.

        Of a gain it is that of the error after the step.
        """
        values = self.predicted[self._theory(theory)].values
        bar = values.get(bar_name(quantity), values.get(bar_name(quantity.replace("gain", "error"))))
        return np.zeros(self._shape) if bar is None else np.nan_to_num(self._grid(bar))

    def words(self, quantity: str, theory: str | None = None) -> list[list[str | None]]:
        """For each step size and ridge "agrees", "finite-size" or "disagrees"; None where nothing is known."""
        stderr = self.simulated.stderr.get(quantity, np.array(np.nan))
        found = words_of(
            self.differences(quantity, theory),
            self._grid(stderr),
            self.bars(quantity, theory),
            self.degrees_of_freedom,
        )
        count = self._shape[1]
        return [found[i * count : (i + 1) * count] for i in range(self._shape[0])]

    def samples(self, quantity: str) -> Array | None:
        """Each replica's values, (replicas, S, R), with the mean and standard error that the outcome states."""
        stored = self.simulated.details.get("samples", {}).get(quantity)
        if stored is None or len(stored) < 2 or quantity not in self.simulated.stderr:
            return None
        drawn = np.broadcast_to(stored, (len(stored), *self._shape))
        # Control variates move the mean and shrink the spread; the correlations stay.
        spread = drawn.std(axis=0, ddof=1) / math.sqrt(len(drawn))
        stderr = self._grid(self.simulated.stderr[quantity])
        shrunk = np.divide(stderr, spread, out=np.ones_like(spread), where=spread > 0)
        mean = self._grid(self.simulated.values[quantity])
        return cast(Array, mean + (drawn - drawn.mean(axis=0)) * shrunk)

    def curve(
        self, quantity: str, theory: str | None = None, ridge: int | slice = slice(None)
    ) -> Agreement | None:
        """Agreement of all points, which share their draws, as one number.

        Parameters
        ----------
        quantity : str
            One of `quantities`.
        theory : str, optional
            One of the compared theories; the first when not given.
        ridge : int or slice
            Only the points of these ridges, by their position.

        Returns
        -------
        Agreement or None
            None if the samples of the replicas are not known.
        """
        samples = self.samples(quantity)
        if samples is None:
            return None
        # Rounding must not count where there is no spread: the predicted value moves onto the mean there.
        predicted = self._grid(self.simulated.values[quantity]) - self.differences(quantity, theory)
        chosen = (slice(None), ridge)
        return curve_agreement(
            samples[(slice(None), *chosen)].reshape(len(samples), -1),
            predicted[chosen].ravel(),
            self.bars(quantity, theory)[chosen].ravel(),
        )

    def relative_differences(self, quantity: str, theory: str | None = None) -> Array:
        """Simulated minus predicted over the size of the predicted, of shape (S, R); NaN where 0 was predicted."""
        difference = self.differences(quantity, theory)
        predicted = np.abs(self._grid(self.predicted[self._theory(theory)].values[quantity]))
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(predicted > 0, difference / predicted, np.nan)
        return cast(Array, np.where(difference == 0, 0.0, ratio))

    def without_noise(self) -> Comparison:
        """The comparison with risks, test errors without the noise of the labels, on both sides."""
        return Comparison(
            self.simulated.without_noise(),
            {name: outcome.without_noise() for name, outcome in self.predicted.items()},
        )

    def rows(self) -> list[dict[str, float | str | None]]:
        """One flat row for each theory, step size and ridge, ready for JSON or a table.

        For every compared quantity, say ``test_error``: the simulated mean ``test_error``, its
        ``test_error_stderr``, ``test_error_predicted``, its ``test_error_bar`` where the theory states one,
        ``test_error_distance`` (in standard errors), ``test_error_relative_difference``,
        ``test_error_p_value`` (Student's t) and ``test_error_word``. None stands for what does not exist.
        """
        schedule = self.simulated.schedule
        exponents = self.simulated.sizes.step_exponent(schedule)
        names = step_names(schedule.shape[1])
        rows = []
        for theory, predicted in self.predicted.items():
            columns: dict[str, Array] = {}
            words = {name: self.words(name, theory) for name in self.quantities}
            for name in self.quantities:
                stderr = self.simulated.stderr.get(name, np.array(np.nan))
                columns[name] = self._grid(self.simulated.values[name])
                columns[f"{name}_stderr"] = self._grid(stderr)
                columns[f"{name}_predicted"] = self._grid(predicted.values[name])
                columns[f"{name}_distance"] = self.distances(name, theory)
                columns[f"{name}_relative_difference"] = self.relative_differences(name, theory)
                columns[f"{name}_p_value"] = self.p_values(name, theory)
                if self.bars(name, theory).any():
                    columns[f"{name}_bar"] = self.bars(name, theory)
            for i, j in np.ndindex(self._shape):
                row: dict[str, float | str | None] = {"theory": theory}
                for t, (size, exponent) in enumerate(names):
                    row |= {size: float(schedule[i, t]), exponent: _finite(exponents[i, t])}
                row["ridge"] = float(self.simulated.ridges[j])
                row |= {name: _finite(column[i, j]) for name, column in columns.items()}
                rows.append(row | {f"{name}_word": words[name][i][j] for name in self.quantities})
        return rows

    def summary(self) -> dict[str, dict[str, dict[str, Any]]]:
        """Agreement of all points together, for each theory and quantity, and the sizes of their distances.

        ``word``, ``p_value``, ``distance`` (that of a normal variable with this p-value) and
        ``degrees_of_freedom`` are of one test of all points, which share their draws; ``words`` counts the
        points by their word. ``largest_distance`` and ``median_distance`` are in standard errors, ``replicas``
        less one being their degrees of freedom.
        """
        summary: dict[str, dict[str, dict[str, Any]]] = {}
        for theory in self.predicted:
            summary[theory] = {}
            for name in self.quantities:
                distances = np.abs(self.distances(name, theory))
                distances = distances[~np.isnan(distances)]
                relative = np.abs(self.relative_differences(name, theory))
                relative = relative[~np.isnan(relative)]
                words = [word for row in self.words(name, theory) for word in row if word is not None]
                found = self.curve(name, theory)
                summary[theory][name] = {
                    "largest_distance": _finite(distances.max()) if distances.size else None,
                    "median_distance": _finite(np.median(distances)) if distances.size else None,
                    "largest_relative_difference": _finite(relative.max()) if relative.size else None,
                    "word": found.word if found else None,
                    "p_value": found.p_value if found else None,
                    "distance": _finite(found.distance) if found else None,
                    "degrees_of_freedom": list(found.degrees_of_freedom) if found else None,
                    "replicas": self.simulated.details.get("replicas"),
                    "words": {word: words.count(word) for word in dict.fromkeys(words)},
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

    def to_dataframe(self) -> pandas.DataFrame:
        """The rows as a pandas data frame; what is missing is NaN."""
        return data_frame(self.rows())

    def to_xarray(self) -> xarray.Dataset:
        """The compared quantities of all answers along an axis `source`, over the axes of an outcome.

        Standard errors of the simulation are there as ``test_error_stderr``, without that axis.
        """
        answers = {"simulation": self.simulated} | dict(self.predicted)
        return beside({name: answer.to_xarray() for name, answer in answers.items()}, self.quantities)

    def table(self, theory: str | None = None, width: int | None = None) -> str:
        """Text table for people: simulated ± standard error, prediction, distance.

        A point that disagrees has a ! behind its distance, one inside the theory's own error bar a ~.

        The distance is that of a normal variable with the same probability, so that 2 means the same for any
        number of replicas.

        Parameters
        ----------
        theory : str, optional
            One of the compared theories; the first when not given.
        width : int, optional
            Columns of the terminal; what does not fit is left out.
        """
        leading, groups = self._parts(self._theory(theory))
        return aligned(leading, groups, width)

    def _parts(self, name: str) -> tuple[list[_Column], list[list[_Column]]]:
        """The columns of a table: steps and ridge, and for each quantity a group of three."""
        rows = [row for row in self.rows() if row["theory"] == name]
        groups: list[list[_Column]] = [
            [
                (what.replace("_", " "), [value_text(row[what], row[f"{what}_stderr"]) for row in rows]),
                ("predicted", [value_text(row[f"{what}_predicted"]) for row in rows]),
                ("distance", self._distance_texts(what, name)),
            ]
            for what in self.quantities
        ]
        return step_columns(rows), groups

    def _columns(self, name: str) -> list[_Column]:
        leading, groups = self._parts(name)
        return [*leading, *(column for group in groups for column in group)]

    def _distance_texts(self, quantity: str, theory: str) -> list[str]:
        words = [word for row in self.words(quantity, theory) for word in row]
        texts = map(distance_text, self.normal_distances(quantity, theory).ravel())
        marks = {DISAGREES: "!", FINITE_SIZE: "~"}
        # Where there are marks, all distances keep a place for one, so that the numbers stay flush.
        blank = " " if any(word in marks for word in words) else ""
        return [
            text + (marks.get(word, blank) if word else blank)
            for text, word in zip(texts, words, strict=True)
        ]

    def verdict(self, theory: str | None = None) -> str:
        """One line for people: a word for each quantity, with the p-value of all points together."""
        parts = []
        for what, found in self.summary()[self._theory(theory)].items():
            if found["word"] is not None:
                parts.append(
                    f"{what.replace('_', ' ')} {found['word']} ({probability_text(found['p_value'])})"
                )
        replicas = self.simulated.details.get("replicas")
        return (
            f"{', '.join(parts)}; all points together, {replicas} replicas" if parts else "no standard errors"
        )

    def legend(self, theory: str | None = None) -> str:
        """What the marks of the table mean; empty where it has none."""
        words = {
            word for name in self.quantities for row in self.words(name, self._theory(theory)) for word in row
        }
        said = {DISAGREES: "! disagrees", FINITE_SIZE: "~ inside the theory's own error bar (finite-size)"}
        return ", ".join(text for word, text in said.items() if word in words)

    def __repr__(self) -> str:
        shape = f"{len(self.simulated.step_sizes)} step sizes x {len(self.simulated.ridges)} ridges"
        names = ", ".join(self.predicted)
        return f"Comparison(simulation against {names}: {shape}; {', '.join(self.quantities)})"

    def __str__(self) -> str:
        return "\n\n".join(f"simulation against {name}\n{self.table(name)}" for name in self.predicted)

    def plot(self, ax: Any = None, **options: Any) -> Axes | tuple[Axes, ...]:
        """Draw theories as lines and the simulation as points with one standard error.

        Parameters
        ----------
        ax : Axes or sequence of Axes, optional
            One for each quantity (a single one shows the test error); new ones when not given.
        **options
            ``quantities``, ``theme``, and what `firststep.figures.errors_against_step` takes.

        Returns
        -------
        Axes or tuple of Axes
            Nothing is shown.
        """
        return drawing.plot(self, ax, **options)

    def _repr_html_(self) -> str:
        return "".join(
            html_table(f"simulation against {name}: {self.verdict(name)}", self._columns(name))
            for name in self.predicted
        )


def _finite(value: Any) -> float | None:
    return float(value) if math.isfinite(value) else None


def distance_text(distance: float) -> str:
    """Signed distance with one decimal.

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
    """The columns with which every table starts: alpha and eta, alpha of later steps, and lambda.

    Examples
    --------
    >>> step_columns([{"step_exponent": 0.5, "step_size": 10.0, "next_step_exponent": 0.25, "ridge": 0.1}])
    [('alpha', ['0.5']), ('eta', ['10']), ('alpha 2', ['0.25']), ('lambda', ['0.1'])]
    """

    def exponents(name: str) -> list[str]:
        return ["–" if row[name] is None else f"{row[name]:.4g}" for row in rows]

    first, *later = [name for name in rows[0] if name.endswith("step_exponent")]
    return [
        ("alpha", exponents(first)),
        ("eta", [f"{row['step_size']:.5g}" for row in rows]),
        *((f"alpha {place}", exponents(name)) for place, name in enumerate(later, start=2)),
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


@door
def compare(
    problem: Problem,
    sizes: Sizes,
    step_sizes: ArrayLike | None = None,
    ridges: ArrayLike = 0.1,
    *,
    step_exponents: ArrayLike | None = None,
    next_step_sizes: Sequence[ArrayLike] | ArrayLike | None = None,
    next_step_exponents: Sequence[ArrayLike] | ArrayLike | None = None,
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
    next_step_sizes, next_step_exponents : array_like or sequence of array_like, optional
        Of the second and later steps, as :func:`firststep.simulate` takes them; for theories that know them.
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
        Both answers, their distances, a word for each point and for all together, a table.

    Examples
    --------
    >>> setting = Problem("tanh", "tanh", noise_std=0.3)
    >>> result = compare(setting, Sizes(200, 100, 150), 0.0, theory="random_features", replicas=6)
    >>> result.curve("test_error").word
    'agrees'
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
    later = {"next_step_sizes": next_step_sizes, "next_step_exponents": next_step_exponents}
    asked |= {name: value for name, value in later.items() if value is not None}
    # Theory first: it takes seconds, and a question that it cannot answer should not wait for the simulation.
    predicted = {
        name: predict(problem, sizes, theory=name, **asked, **options.get(name, {}))
        for name in dict.fromkeys(names)
    }
    return Comparison(simulate(problem, sizes, replicas=replicas, **asked, **simulation), predicted)
