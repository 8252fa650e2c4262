"""How many samples, inputs and neurons, and the step sizes and ridges that are studied."""

import math
import numbers
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self, cast

import numpy as np
from numpy.typing import ArrayLike

from firststep.gaussian import Array
from firststep.setting.fields import LARGEST
from firststep.setting.keys import stable_key


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
    if values.max() > LARGEST:
        raise ValueError(f"step sizes must be at most {LARGEST:g}, got {float(values.max()):g}")
    return cast(Array, values)


def later_steps_of(sizes: Sizes, next_step_sizes: ArrayLike, next_step_exponents: ArrayLike) -> Array:
    """Array (T - 1,) of the sizes of one sequence's later steps from either way of giving them; empty for neither."""
    given = np.size(cast(Any, next_step_sizes)), np.size(cast(Any, next_step_exponents))
    if all(given):
        raise ValueError("give either next_step_sizes or next_step_exponents, not both")
    if not any(given):
        return np.empty(0)
    return step_sizes_of(sizes, *((next_step_sizes, None) if given[0] else (None, next_step_exponents)))


def ridges_of(ridges: ArrayLike) -> Array:
    """Array (R,) of ridges lambda, checked."""
    values = np.atleast_1d(np.asarray(ridges, dtype=float))
    if values.ndim != 1 or values.size == 0:
        raise ValueError(f"ridges must be a number or a non-empty list, got shape {values.shape}")
    wrong = values[~(np.isfinite(values) & (values > 0))]
    if wrong.size:
        raise ValueError(f"ridge must be positive and finite, got {float(wrong[0])}")
    # Beyond these, products with sizes and squares leave the range of floating-point numbers.
    wrong = values[(values > LARGEST) | (values < 1 / LARGEST)]
    if wrong.size:
        raise ValueError(f"ridge must be between {1 / LARGEST:g} and {LARGEST:g}, got {float(wrong[0]):g}")
    return cast(Array, values)


def schedule_of(
    sizes: Sizes,
    step_sizes: ArrayLike | None = None,
    step_exponents: ArrayLike | None = None,
    next_step_sizes: Sequence[ArrayLike] | ArrayLike | None = None,
    next_step_exponents: Sequence[ArrayLike] | ArrayLike | None = None,
) -> Array:
    """Array (S, T) of step sizes: one row for each sequence of T steps, the product of the lists given for each step.

    The later steps are a number or a list for a second step, or one such entry for each later step as a list of
    lists.

    Examples
    --------
    >>> schedule_of(Sizes(100, 50, 80), [1.0, 2.0], next_step_sizes=[3.0, 4.0]).tolist()
    [[1.0, 3.0], [1.0, 4.0], [2.0, 3.0], [2.0, 4.0]]
    """
    first = step_sizes_of(sizes, step_sizes, step_exponents)
    if next_step_sizes is not None and next_step_exponents is not None:
        raise ValueError("give either next_step_sizes or next_step_exponents, not both")
    later: Any = next_step_sizes if next_step_exponents is None else next_step_exponents
    if later is None:
        return first[:, None]
    nested = isinstance(later, list | tuple) and any(np.ndim(entry) for entry in later)
    lists = [first]
    for entry in later if nested else [later]:
        sized = (entry, None) if next_step_exponents is None else (None, entry)
        lists.append(step_sizes_of(sizes, *sized))
    return np.stack([axis.ravel() for axis in np.meshgrid(*lists, indexing="ij")], axis=1)
