"""Eigenvalues of features or weights, predicted or simulated."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from firststep.gaussian import Array
from firststep.results import drawing
from firststep.results.tables import data_frame, dataset
from firststep.setting import Problem, Sizes

if TYPE_CHECKING:
    import pandas
    import xarray
    from matplotlib.axes import Axes


# The array whose presence says that a store has a spectrum.
STORED = "overlap_names"


def overlaps_to(overlaps: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """Overlaps of several vectors as an array and the names of its columns; NaN where one has no such overlap."""
    names = list(dict.fromkeys(name for one in overlaps for name in one))
    table = np.array([[one.get(name, math.nan) for name in names] for one in overlaps])
    return {"overlaps": table.reshape(len(overlaps), len(names)), STORED: np.array(names, dtype=np.str_)}


def overlaps_from(arrays: Mapping[str, Any]) -> list[dict[str, float]]:
    """Inverse of `overlaps_to`."""
    names = arrays[STORED].tolist()
    return [
        {name: value for name, value in zip(names, row, strict=True) if not math.isnan(value)}
        for row in arrays["overlaps"].tolist()
    ]


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
class LabelOutliers:
    """Eigenvalues outside the bulk of the label-weighted second moment X^T diag(y) X/n0, predicted or measured.

    Attributes
    ----------
    edges : (float, float)
        Lower and upper end of the bulk.
    eigenvalues : ndarray (m,)
        Outside the bulk, largest first; of both signs.
    overlaps : ndarray (m, k)
        Squared overlap of each eigenvector with each direction of the teacher, or with those that were given.
    captured : ndarray (m,)
        Share of each eigenvector within the space of these directions.
    vectors : ndarray (m, d) or None
        The eigenvectors, if measured.

    Examples
    --------
    >>> from firststep.theory.spectra.label_matrix import label_outliers
    >>> found = label_outliers(Problem("relu", "h2", noise_std=0.3), Sizes(1000, 100, 10, 2000))
    >>> print(f"{found.eigenvalues[0] / found.edges[1]:.1f} {found.captured[0]:.2f}")
    2.4 0.87
    """

    edges: tuple[float, float]
    eigenvalues: Array
    overlaps: Array
    captured: Array
    vectors: Array | None = None


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
    >>> from firststep.theory.spectra.spectrum import predict_spectrum
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

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """Inverse of `to_dict`, from its own result or from what JSON made of it; there are no `details`.

        Examples
        --------
        >>> from firststep.theory.spectra.spectrum import predict_spectrum
        >>> found = predict_spectrum(Problem("tanh", "identity"), Sizes(200, 100, 150), step_size=4.0, points=20)
        >>> Spectrum.from_dict(found.to_dict()).outliers == found.outliers
        True
        """
        lower, upper = content["edges"]
        return cls(
            Problem.from_dict(content["problem"]),
            Sizes(**content["sizes"]),
            content["step_size"],
            content["of"],
            content["source"],
            np.array(content["bulk"]["x"]),
            np.array(content["bulk"]["density"]),
            (lower, upper),
            tuple((low, high) for low, high in content["intervals"]),
            content["atom"],
            tuple(Outlier(**entry) for entry in content["outliers"]),
        )

    def to_dataframe(self) -> "pandas.DataFrame":
        """A row for each point of the bulk and for each outlier, told apart by `part`; what is missing is NaN."""
        bulk = [
            {"part": "bulk", "eigenvalue": x, "density": density}
            for x, density in zip(self.x.tolist(), self.density.tolist(), strict=True)
        ]
        outliers = [
            {"part": "outlier", "eigenvalue": one.eigenvalue, "over_edge": one.over_edge}
            | {f"overlap_{name}": value for name, value in one.overlaps.items()}
            for one in self.outliers
        ]
        return data_frame([*bulk, *outliers])

    def to_xarray(self) -> "xarray.Dataset":
        """The density over the eigenvalue, and the outliers with their overlaps over their number."""
        arrays = self.to_arrays()
        facts = {
            "source": self.source,
            "of": self.of,
            "problem": json.dumps(self.problem.to_dict()),
            "step_size": self.step_size,
            "atom": self.atom,
            "edges": list(self.edges),
        }
        return dataset(
            {
                "density": ("eigenvalue", self.density),
                "outlier_eigenvalue": ("outlier", arrays["outliers"][:, 0]),
                "over_edge": ("outlier", arrays["outliers"][:, 1]),
                "overlaps": (("outlier", "vector"), arrays["overlaps"]),
            },
            {
                "eigenvalue": self.x,
                "outlier": np.arange(1, len(self.outliers) + 1),
                "vector": arrays[STORED],
            },
            facts | self.sizes.to_dict(),
        )

    def to_arrays(self) -> dict[str, Any]:
        """Bulk, edges and outliers as named arrays, for a store; `details` are left out."""
        tops = np.array([(outlier.eigenvalue, outlier.over_edge) for outlier in self.outliers])
        return {
            "x": self.x,
            "density": self.density,
            "edges": np.array([*self.edges, self.atom]),
            "intervals": np.array(self.intervals).reshape(-1, 2),
            "outliers": tops.reshape(-1, 2),
        } | overlaps_to([outlier.overlaps for outlier in self.outliers])

    @classmethod
    def from_arrays(
        cls,
        arrays: Mapping[str, Any],
        problem: Problem,
        sizes: Sizes,
        step_size: float,
        of: str,
        source: str = "unified",
    ) -> Self:
        """Inverse of `to_arrays`, for what was studied."""
        lower, upper, atom = arrays["edges"].tolist()
        outliers = [
            Outlier(value, math.sqrt(value), overlaps, over)
            for (value, over), overlaps in zip(
                arrays["outliers"].tolist(), overlaps_from(arrays), strict=True
            )
        ]
        intervals = tuple((low, high) for low, high in arrays["intervals"].tolist())
        return cls(
            problem, sizes, step_size, of, source,
            arrays["x"], arrays["density"], (lower, upper), intervals, atom, tuple(outliers),
        )  # fmt: skip

    def plot(self, ax: Any = None, **options: Any) -> "Axes | tuple[Axes, ...]":
        """Draw the bulk and its outliers into the given axes or new ones and give them back."""
        return drawing.plot(self, ax, **options)

    def _repr_svg_(self) -> str | None:
        return drawing.picture(self)

    def __repr__(self) -> str:
        found = ", ".join(f"{outlier.eigenvalue:.4g}" for outlier in self.outliers) or "none"
        return (
            f"Spectrum({self.source} of the {self.of} at step_size={self.step_size:.4g}: "
            f"bulk {self.edges[0]:.4g} … {self.edges[1]:.4g}, outliers {found})"
        )
