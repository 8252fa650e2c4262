"""Errors over a plane of samples and dimensions, at one step size and ridge each."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from firststep.gaussian import Array
from firststep.results.tables import data_frame, dataset
from firststep.setting import Problem

if TYPE_CHECKING:
    import pandas
    import xarray


@dataclass(frozen=True, eq=False)
class SizeMap:
    """What a theory predicts for every number of samples n and every dimension d.

    Attributes
    ----------
    problem : Problem
        What was studied.
    n_samples, dims : ndarray (A,), (B,)
        n and d.
    widths, n_step_samples : ndarray (A, B)
        N and n0 of each point.
    step_sizes : ndarray (A, B)
        eta of each point.
    ridge : float
        lambda.
    values : mapping of str to ndarray (A, B)
        Also reached as attributes, ``found.test_error``; the names are those of `Outcome`.
    solved : ndarray of bool (A, B)
        Where the theory itself was solved; what lies between is interpolated.
    relative_error : ndarray (A, B)
        Estimated relative error of both errors against the theory solved there to the last digit.
    notes : tuple of str
        What the reader of the numbers should know.

    Examples
    --------
    >>> one = np.ones((1, 2))
    >>> found = SizeMap(Problem("relu", "h1"), np.array([100]), np.array([40, 50]), 80 * one, 100 * one, one, 0.1,
    ...     {"test_error": 0.5 * one}, one > 0, 1e-6 * one)
    >>> float(found.test_error[0, 1]), found.rows()[1]["dim"]
    (0.5, 50.0)
    """

    problem: Problem
    n_samples: Array
    dims: Array
    widths: Array
    n_step_samples: Array
    step_sizes: Array
    ridge: float
    values: Mapping[str, Array]
    solved: NDArray[np.bool_]
    relative_error: Array
    notes: tuple[str, ...] = ()

    def __getattr__(self, name: str) -> Array:
        values = self.__dict__.get("values", {})
        if name in values:
            return cast(Array, values[name])
        near = difflib.get_close_matches(name, values, n=1)
        hint = f": did you mean {near[0]}?" if near else ""
        raise AttributeError(f"{type(self).__name__} has no {name!r}{hint}")

    def __getitem__(self, name: str) -> Array:
        if name in self.values:
            return self.values[name]
        raise KeyError(f"no value {name!r}; there are {', '.join(self.values)}")

    @property
    def _columns(self) -> dict[str, Array]:
        """Everything that each point has, (A, B)."""
        sizes = {"width": self.widths, "n_step_samples": self.n_step_samples, "step_size": self.step_sizes}
        return {**sizes, **self.values, "relative_error": self.relative_error}

    def rows(self) -> list[dict[str, float]]:
        """One flat row for each point, the dimension running fastest."""
        return [
            {"n_samples": float(n), "dim": float(d), "ridge": self.ridge}
            | {name: float(values[i, j]) for name, values in self._columns.items()}
            for i, n in enumerate(self.n_samples)
            for j, d in enumerate(self.dims)
        ]

    def to_dataframe(self) -> "pandas.DataFrame":
        """The rows as a pandas data frame."""
        return data_frame(self.rows(), float)

    def to_xarray(self) -> "xarray.Dataset":
        """The values over the named axes n_samples and dim."""
        axes = ("n_samples", "dim")
        tables: dict[str, Any] = {name: (axes, values) for name, values in self._columns.items()}
        coordinates = {"n_samples": self.n_samples, "dim": self.dims}
        return dataset(tables, coordinates, {"problem": self.problem.title, "ridge": self.ridge})

    def __repr__(self) -> str:
        shape = f"{len(self.n_samples)} numbers of samples x {len(self.dims)} dimensions"
        return f"SizeMap({shape}, {int(self.solved.sum())} solved; {', '.join(self.values)})"
