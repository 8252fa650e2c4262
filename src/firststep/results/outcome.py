"""Errors for every step size and ridge: what simulation and theory both answer with."""

import difflib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np

from firststep.gaussian import Array
from firststep.results import drawing
from firststep.results.tables import data_frame, dataset
from firststep.results.text import html_table, value_text
from firststep.setting import Problem, Sizes

if TYPE_CHECKING:
    import pandas
    import xarray
    from matplotlib.axes import Axes

# What comes before step_size and step_exponent in the names of the second and later steps.
_LATER = ("next", "third", "fourth", "fifth", "sixth", "seventh", "eighth")


# Values that are parts of others, one for each degree or direction: too many for a glance.
_PARTS = ("residual_", "learned_")


def bar_name(name: str) -> str:
    """The value in which a theory says how far off another may be; the noise changes nothing about it.

    Examples
    --------
    >>> bar_name("train_error"), bar_name("risk")
    ('train_error_bar', 'test_error_bar')
    """
    return f"{'test_error' if name == 'risk' else name}_bar"


def step_names(steps: int) -> list[tuple[str, str]]:
    """Names of the size and the exponent of each step of a sequence.

    Examples
    --------
    >>> step_names(2)
    [('step_size', 'step_exponent'), ('next_step_size', 'next_step_exponent')]
    """
    words = [_LATER[i] if i < len(_LATER) else f"number_{i + 2}" for i in range(steps - 1)]
    prefixes = ["", *(f"{word}_" for word in words)]
    return [(f"{prefix}step_size", f"{prefix}step_exponent") for prefix in prefixes]


@dataclass(frozen=True, eq=False)
class Outcome:
    """Errors and related numbers for every step size, or sequence of steps, and ridge; simulated or predicted.

    Attributes
    ----------
    problem, sizes
        What was studied.
    step_sizes : ndarray (S,)
        eta, of the first step.
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
    next_step_sizes : ndarray (S, T - 1)
        eta of the second and later steps; without columns for a single step.

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
    next_step_sizes: Array = field(default_factory=lambda: np.empty((0, 0)))

    def __post_init__(self) -> None:
        if not self.next_step_sizes.size:
            object.__setattr__(self, "next_step_sizes", np.empty((len(self.step_sizes), 0)))
        elif self.next_step_sizes.ndim != 2 or len(self.next_step_sizes) != len(self.step_sizes):
            raise ValueError(
                f"next_step_sizes must have a row for each of the {len(self.step_sizes)} step sizes, "
                f"got shape {self.next_step_sizes.shape}"
            )

    def __getattr__(self, name: str) -> Array:
        values = self.__dict__.get("values", {})
        if name in values:
            return cast(Array, values[name])
        raise AttributeError(f"{type(self).__name__} has no {name!r}{_known(name, values)}")

    def __getitem__(self, name: str) -> Array:
        if name in self.values:
            return self.values[name]
        raise KeyError(f"no value {name!r}{_known(name, self.values)}")

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self.values})

    def _ipython_key_completions_(self) -> list[str]:
        return list(self.values)

    @property
    def step_exponents(self) -> Array:
        """alpha = log eta/log n0, shape (S,)."""
        return cast(Array, self.sizes.step_exponent(self.step_sizes))

    @property
    def next_step_exponents(self) -> Array:
        """alpha of the second and later steps, shape (S, T - 1)."""
        return cast(Array, self.sizes.step_exponent(self.next_step_sizes))

    @property
    def schedule(self) -> Array:
        """eta of every step, shape (S, T): a row for each sequence of steps."""
        return np.column_stack([self.step_sizes, self.next_step_sizes])

    def without_noise(self) -> Self:
        """The outcome with the risk in place of the test error: less the variance of the label noise.

        Examples
        --------
        >>> problem, sizes = Problem("relu", "identity", noise_std=0.5), Sizes(1000, 500, 750)
        >>> values = {"test_error": np.array([[0.75]])}
        >>> outcome = Outcome(problem, sizes, np.array([1.0]), np.array([0.1]), source="by hand", values=values)
        >>> outcome.without_noise().risk.tolist()
        [[0.5]]
        """
        if "test_error" not in self.values:
            return self

        def renamed(table: Mapping[str, Any], less: float) -> dict[str, Any]:
            return {
                ("risk" if name == "test_error" else name): entry - less if name == "test_error" else entry
                for name, entry in table.items()
            }

        noise = self.problem.noise_variance
        details = dict(self.details)
        if "samples" in details:
            details["samples"] = renamed(details["samples"], noise)
        return replace(
            self, values=renamed(self.values, noise), stderr=renamed(self.stderr, 0.0), details=details
        )

    def rows(self) -> list[dict[str, float | None]]:
        """One flat row for each pair of step size and ridge, ready for JSON or a table.

        A step size of 0 has no exponent: it is None there. Of several steps the second is named
        `next_step_size`, the third `third_step_size`, and so on.
        """
        schedule = self.schedule
        shape = (len(schedule), len(self.ridges))
        columns = {name: np.broadcast_to(value, shape) for name, value in self.values.items()}
        errors = {f"{name}_stderr": np.broadcast_to(value, shape) for name, value in self.stderr.items()}
        exponents = self.sizes.step_exponent(schedule)
        rows = []
        for i in range(len(schedule)):
            steps: dict[str, float | None] = {}
            for t, (size, exponent) in enumerate(step_names(schedule.shape[1])):
                steps |= {size: float(schedule[i, t]), exponent: _finite(exponents[i, t])}
            for j, ridge in enumerate(self.ridges):
                row = {**steps, "ridge": float(ridge)}
                row |= {name: _finite(column[i, j]) for name, column in (columns | errors).items()}
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

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """Inverse of `to_dict`, from its own result or from what JSON made of it; there are no `details`.

        Examples
        --------
        >>> problem, sizes = Problem("relu", "identity"), Sizes(1000, 500, 750)
        >>> values = {"test_error": np.array([[0.5, 0.6]])}
        >>> outcome = Outcome(problem, sizes, np.array([1.0]), np.array([0.1, 1.0]), source="by hand", values=values)
        >>> Outcome.from_dict(outcome.to_dict()).test_error.tolist()
        [[0.5, 0.6]]
        """
        rows = content["rows"]
        columns = {name: np.array([row[name] for row in rows], dtype=float) for name in rows[0]}
        schedule = []
        for size, exponent in step_names(len(columns)):
            if size not in columns:
                break
            schedule.append(columns.pop(size))
            columns.pop(exponent)
        sequences, ridges = _axes(np.stack(schedule, axis=1), columns.pop("ridge"))
        tables = {name: column.reshape(len(sequences), len(ridges)) for name, column in columns.items()}
        errors = [name for name in tables if name.endswith("_stderr") and name[:-7] in tables]
        return cls(
            Problem.from_dict(content["problem"]),
            Sizes(**content["sizes"]),
            sequences[:, 0],
            ridges,
            content["source"],
            {name: table for name, table in tables.items() if name not in errors},
            {name[:-7]: tables[name] for name in errors},
            tuple(content["notes"]),
            {},
            sequences[:, 1:],
        )

    def to_dataframe(self) -> "pandas.DataFrame":
        """The rows as a pandas data frame; what is missing is NaN."""
        return data_frame(self.rows(), float)

    def to_xarray(self) -> "xarray.Dataset":
        """The values over the named axes step_size, next_step_size, … and ridge, exponents as further labels.

        Sequences of steps that are no grid lie along one axis `schedule`.
        """
        names = step_names(self.schedule.shape[1])
        lists = [list(dict.fromkeys(column)) for column in self.schedule.T.tolist()]
        grid = np.stack([axis.ravel() for axis in np.meshgrid(*lists, indexing="ij")], axis=1)
        coordinates: dict[str, Any] = {"ridge": self.ridges}
        if np.array_equal(grid, self.schedule):
            axes, shape = [size for size, _ in names], [len(values) for values in lists]
            for (size, exponent), values in zip(names, lists, strict=True):
                coordinates |= {size: values, exponent: (size, self.sizes.step_exponent(values))}
        else:
            axes, shape = ["schedule"], [len(self.schedule)]
            for (size, exponent), column in zip(names, self.schedule.T, strict=True):
                coordinates[size] = ("schedule", column)
                coordinates[exponent] = ("schedule", self.sizes.step_exponent(column))
        whole = (len(self.schedule), len(self.ridges))
        tables = {**self.values, **{f"{name}_stderr": value for name, value in self.stderr.items()}}
        cubes = {
            name: ((*axes, "ridge"), np.broadcast_to(value, whole).reshape(*shape, -1))
            for name, value in tables.items()
        }
        described = {"source": self.source, "problem": json.dumps(self.problem.to_dict())}
        return dataset(cubes, coordinates, described | self.sizes.to_dict())

    def __repr__(self) -> str:
        kind = (
            "step sizes" if not self.next_step_sizes.size else f"sequences of {self.schedule.shape[1]} steps"
        )
        shape = f"{len(self.step_sizes)} {kind} x {len(self.ridges)} ridges"
        return f"Outcome({self.source}: {shape}; {_listed(self.values)})"

    def plot(self, ax: Any = None, **options: Any) -> "Axes | tuple[Axes, ...]":
        """Draw the errors against the step exponent, or against the ridge if there is one step size.

        Parameters
        ----------
        ax : Axes or sequence of Axes, optional
            One for each quantity (a single one shows the test error); new ones when not given.
        **options
            ``quantities``, ``theme``, and what `firststep.figures.errors_against_step` takes.

        Returns
        -------
        Axes or tuple of Axes
            Nothing is shown: a notebook does that by itself, a script calls ``plt.show()``.
        """
        return drawing.plot(self, ax, **options)

    def _repr_html_(self) -> str:
        rows = self.rows()
        bars = {bar_name(name) for name in self.values} & set(self.values)
        hidden = bars | {f"{name}_stderr" for name in self.stderr}
        shown = [name for name in rows[0] if name not in hidden and not name.startswith(_PARTS)]
        caption = f"{self.source}: {self.problem.title}"
        if bars:
            caption += "; ± is the theory's estimate of its own finite-size error"
        return html_table(caption, [(name, [_cell(row, name) for row in rows]) for name in shown])


def _listed(names: Iterable[str]) -> str:
    """Names with a comma between them, parts only counted."""
    short = [name for name in names if not name.startswith(_PARTS)]
    families = {family: sum(name.startswith(family) for name in names) for family in _PARTS}
    return ", ".join([*short, *(f"{family}… ({count})" for family, count in families.items() if count)])


def _known(name: str, values: Mapping[str, Any]) -> str:
    """What to ask for in place of a name that there is not."""
    near = [other for other in values if other.startswith(name)] or difflib.get_close_matches(
        name, values, n=1, cutoff=0.8
    )
    return (
        f": did you mean {near[0]}? There are {_listed(values)}" if near else f"; there are {_listed(values)}"
    )


def _cell(row: Mapping[str, float | None], name: str) -> str:
    value = row[name]
    if name.endswith(("step_size", "step_exponent")) or name == "ridge":
        return "–" if value is None else f"{value:.5g}"
    return value_text(value, row.get(f"{name}_stderr", row.get(bar_name(name))))


def _finite(value: float) -> float | None:
    """The number, or None where JSON has none."""
    return float(value) if math.isfinite(value) else None


def _axes(schedule: Array, ridges: Array) -> tuple[Array, Array]:
    """Sequences of steps (S, T) and ridges (R,) of rows in which the ridge runs fastest."""
    total = len(ridges)
    for count in (number for number in range(1, total + 1) if total % number == 0):
        sequences = schedule[::count]
        repeated = np.array_equal(np.repeat(sequences, count, axis=0), schedule)
        if repeated and np.array_equal(np.tile(ridges[:count], total // count), ridges):
            return sequences, ridges[:count]
    raise ValueError("the rows are no table of step sizes by ridges, with the ridge running fastest")
