"""The function of one Gaussian variable, and the ways to make one."""

import hashlib
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike

from firststep.gaussian.averages import (
    _checked_moments,
    _higher_coefficients,
    _Mesh,
    _mesh_coefficients,
    _settled_mesh,
    _vetted,
)
from firststep.gaussian.expressions import (
    _X,
    MAX_CONSTANT,
    MAX_KINKS,
    MAX_TEXT,
    _fold,
    _known,
    _number,
    _parse,
    _refuse,
    _series_numbers,
    _shape_of,
    _spell,
    _suggest,
)
from firststep.gaussian.kinks import find_kinks
from firststep.gaussian.rules import (
    _BLOCK,
    Array,
    Averages,
    Elementwise,
    Moments,
    expectation,
    hermite_polynomials,
)
from firststep.gaussian.shapes import _builtins, _polynomial, _Shape

MAX_SERIES = 61


class Spelled:
    """What a function is known by: two are equal when their keys are."""

    __slots__ = ()
    spec: str
    centred: bool
    key: str

    @property
    def label(self) -> str:
        """The spec for people: without the prefix that tells programs that text cannot bring a callable back."""
        return self.spec.removeprefix("callable:")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.spec!r}, {'centred' if self.centred else 'not centred'})"

    def __eq__(self, other: object) -> bool:
        return self.key == other.key if isinstance(other, type(self)) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.key)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Function(Spelled):
    r"""A function of one variable with its Gaussian averages; made by :func:`function`, never by hand.

    .. math:: f(z) = \sum_k c_k H_k(z), \qquad c_k = E[f(Z) H_k(Z)]/k!

    Two functions are equal when their keys are. Averages are computed when first asked for, and kept.

    Parameters
    ----------
    spec : str
        Canonical spelling, which :func:`function` reads back (for a Python callable, ``"callable:<name>"``).
    centred : bool
        Whether the mean is subtracted, so that :math:`c_0 = 0`.
    key : str
        Short hash, the same on every machine.
    kinks : tuple of float
        Points where the function or one of its derivatives jumps.

    Examples
    --------
    >>> relu = function("relu")
    >>> relu
    Function('relu', centred)
    >>> relu(np.array([-1.0, 1.0])).round(4).tolist()
    [-0.3989, 0.6011]
    """

    spec: str
    centred: bool
    key: str
    kinks: tuple[float, ...]
    _shape: _Shape
    _origin: tuple[Any, ...]
    _cache: dict[Any, Any] = field(default_factory=dict)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, self._origin

    def __call__(self, x: Any) -> Any:
        """Values f(x), in the shape and floating dtype of x, less the mean if the function is centred."""
        points = _floating(x)
        values = self._shape.value(points)
        if self._offset:
            values -= self._offset
        return values if values.dtype == points.dtype else values.astype(points.dtype)

    @property
    def directions(self) -> int:
        """Directions of the input that the function looks at: one."""
        return 1

    def at(self, points: Any) -> Any:
        """Values (n,) at points (n, 1): as a teacher of several directions is called."""
        return self(points[:, 0])

    def derivative(self, x: Any) -> Any:
        """Values of f'(x), in the shape and floating dtype of x; at a kink, some value between its two sides.

        For a callable without a derivative of its own this is a sixth-order difference, right to about 1e-9
        for functions that vary on the unit scale.

        Examples
        --------
        >>> function("relu").derivative(np.array([-1.0, 2.0])).tolist()
        [0.0, 1.0]
        """
        if self._shape.no_slope:
            raise ValueError(self._shape.no_slope)
        points = _floating(x)
        return self._shape.slope(points).astype(points.dtype, copy=False)

    @property
    def gradient_mean(self) -> Array:
        """E of the gradient, (1,)."""
        return np.array([float(self.hermite(2)[1])])

    @property
    def mean(self) -> float:
        """E f(Z) of the function as it is before centring."""
        known = self._cache.get("mean")
        if known is None:
            known = self._cache["mean"] = float(self._normalised(1)[0])
        return cast(float, known)

    @property
    def _offset(self) -> float:
        return self.mean if self.centred else 0.0

    @property
    def _mesh(self) -> _Mesh:
        mesh = self._cache.get("mesh")
        if mesh is None:
            mesh = self._cache["mesh"] = _settled_mesh(self._shape, self.spec)
        assert isinstance(mesh, _Mesh)
        return mesh

    def _normalised(self, count: int) -> Array:
        """E[f h_k] before centring, k < count; computed 64 at a time, so that asking again is cheap."""
        known = self._cache.get("coefficients")
        if known is None or known.size < count:
            size, unit = 64 * math.ceil(count / 64), np.ones(1)
            if self._shape.coefficients is not None:
                known = self._shape.coefficients(unit, size)[0]
            else:
                known = _mesh_coefficients(self._shape, self._mesh, unit, size)[0]
            self._cache["coefficients"] = known
        return np.asarray(known[:count])

    def hermite(self, count: int) -> Array:
        r"""Hermite coefficients :math:`c_0, \dots, c_{count-1}` of the function, centred if it is.

        .. math:: c_k = E[f(Z) H_k(Z)]/k!

        Parameters
        ----------
        count : int
            How many, starting with degree 0.

        Returns
        -------
        ndarray of shape (count,)

        Examples
        --------
        >>> function("relu").hermite(5).round(4).tolist()
        [0.0, 0.5, 0.1995, 0.0, -0.0166]
        """
        if count < 0:
            raise ValueError(f"count must be zero or more, got {count}")
        known = self._cache.get("hermite")
        if known is None or known.size < count:
            known = self._cache["hermite"] = self._series(64 * math.ceil(count / 64))
        return np.array(known[:count])

    def _series(self, count: int) -> Array:
        """Hermite coefficients of :meth:`hermite`, computed anew."""
        if self._shape.polynomial is not None:
            out = np.zeros(count)
            out[: len(self._shape.polynomial)] = self._shape.polynomial[:count]
        else:
            out = self._normalised(count) / _root_factorials(count)
        if self.centred:
            out[:1] = 0.0
        return out

    @property
    def second_moment(self) -> float:
        """E f(Z)^2, the sum of k! c_k^2 over all k."""
        return self.tail(0)

    def tail(self, k: int) -> float:
        r"""What the degrees from k on contribute to the second moment.

        .. math:: \sum_{j \ge k} j!\, c_j^2 = E\Big(f(Z) - \sum_{j < k} c_j H_j(Z)\Big)^2

        Small tails are computed as the average on the right, so that they keep their digits.

        Parameters
        ----------
        k : int
            First degree that counts.

        Returns
        -------
        float

        Examples
        --------
        >>> print(f"{function('relu').tail(2):.12f}")
        0.090845056908
        """
        if k < 0:
            raise ValueError(f"the first degree must be zero or more, got {k}")
        if self.centred:
            k = max(k, 1)
        if ("tail", k) not in self._cache:
            if self._shape.polynomial is not None:
                series = enumerate(self._shape.polynomial)
                value = float(sum(math.factorial(j) * c * c for j, c in series if j >= k))
            else:
                value = self._rest(k)
            self._cache["tail", k] = value
        return float(self._cache["tail", k])

    def _rest(self, k: int) -> float:
        """E (f - sum_{j<k} c_j H_j)^2 of a function that is no polynomial."""
        nodes, weights = self._mesh.rule(self.kinks)
        with np.errstate(all="ignore"):
            square = float(np.square(self._shape.value(nodes)) @ weights)
        plain = square - float(np.sum(np.square(self._normalised(k))))
        # The average below goes to 2 sqrt(k), where h_k^2 phi ends: beyond the range of floats for large k.
        if plain > 1e-3 * square or k > 200:
            return max(plain, 0.0)
        mesh = replace(self._mesh, reach=max(self._mesh.reach, 2 * math.sqrt(k) + 11))
        nodes, weights = mesh.rule(self.kinks)
        with np.errstate(all="ignore"):
            known = self._normalised(k) @ hermite_polynomials(nodes, k, normalised=True)
            rest = self._shape.value(nodes) - known
            return float(np.sum(np.square(rest * np.sqrt(weights))))

    @property
    def derivative_second_moment(self) -> float:
        """E f'(Z)^2, the sum of k k! c_k^2; raises for functions that jump."""
        if "slope" not in self._cache:
            if self._shape.polynomial is not None:
                value = sum(k * math.factorial(k) * c * c for k, c in enumerate(self._shape.polynomial))
            else:
                value = expectation(lambda z: np.square(self.derivative(z)), self.kinks, tolerance=1e-11)
            self._cache["slope"] = float(value)
        return float(self._cache["slope"])

    def gaussian_moments(self, scale: ArrayLike, shift: ArrayLike) -> Moments:
        r"""Averages of the function of a scaled and shifted Gaussian.

        .. math:: E f(sg + t), \quad E[g f(sg + t)], \quad E f(sg + t)^2, \qquad g \sim N(0, 1)

        Right to 1e-12, relative to the larger of 1 and the value, for scales up to 10 and shifts up to 40.

        Parameters
        ----------
        scale : array_like
            s, zero or more.
        shift : array_like
            t; broadcast against the scale.

        Returns
        -------
        tuple of three ndarray
            Of the broadcast shape.

        Examples
        --------
        >>> [round(float(m), 6) for m in function("tanh").gaussian_moments(1.0, 0.5)]
        [0.295453, 0.561993, 0.438007]
        """
        return self.gaussian_averages(scale, shift)[:3]

    def gaussian_averages(self, scale: ArrayLike, shift: ArrayLike) -> Averages:
        r"""The three of :meth:`gaussian_moments`, and how the function bends, from one evaluation.

        .. math:: E[(g^2 - 1) f(sg + t)] = s^2 E f''(sg + t)

        Examples
        --------
        >>> print(f"{function('tanh').gaussian_averages(1.0, 0.5)[3]:.6f}")
        -0.168089
        """
        s, t = np.broadcast_arrays(np.asarray(scale, dtype=np.float64), np.asarray(shift, dtype=np.float64))
        if not (np.isfinite(s) & (s >= 0)).all():
            raise ValueError(
                f"scale must be finite and zero or more, got {s[~(np.isfinite(s) & (s >= 0))][0]}"
            )
        if not np.isfinite(t).all():
            raise ValueError(f"shift must be finite, got {t[~np.isfinite(t)][0]}")
        if self._shape.moments is not None:
            m0, m1, m2, bend = self._shape.moments(s, t)
        else:
            flat = _checked_moments(self._shape, self._mesh, s.ravel(), t.ravel(), self.spec)
            m0, m1, m2, bend = (m.reshape(s.shape) for m in flat)
        if self._offset:
            m2 = m2 - self._offset * (2 * m0 - self._offset)
            m0 = m0 - self._offset
        return m0, m1, m2, bend

    def gaussian_hermite(self, scale: ArrayLike, shift: ArrayLike, count: int) -> Array:
        r"""Normalised Hermite coefficients of the function of a scaled and shifted Gaussian, along a new first axis.

        .. math:: a_k(s, t) = E[h_k(g)\, f(s g + t)], \qquad k < \text{count}

        The first three are those of :meth:`gaussian_averages`; the others have a closed form for relu, leaky_relu and
        abs, and are else sums over a rule that is split at the kinks, right to about 1e-9 for functions that vary on
        the scale of one.

        Examples
        --------
        >>> function("relu").gaussian_hermite(1.0, 1.0, 4).round(4).tolist()
        [0.6844, 0.8413, 0.1711, -0.0988]
        """
        return self.gaussian_expansion(scale, shift, count)[0]

    def gaussian_expansion(self, scale: ArrayLike, shift: ArrayLike, count: int) -> tuple[Array, Array]:
        """Coefficients as of :meth:`gaussian_hermite`, and E f^2, from one evaluation."""
        s, t = np.broadcast_arrays(np.asarray(scale, dtype=np.float64), np.asarray(shift, dtype=np.float64))
        m0, m1, square, bend = self.gaussian_averages(s, t)
        found = [m0, m1, bend / math.sqrt(2)][:count]
        if count > 3:
            found += list(_higher_coefficients(self._shape, s, t, count))
        return np.stack(found), square

    @property
    def has_covariance(self) -> bool:
        """Whether :meth:`covariance` has a closed form for this function."""
        return self._shape.product is not None

    def covariance(self, v1: ArrayLike, cov: ArrayLike, v2: ArrayLike) -> Array:
        r"""Average of the function at two correlated Gaussians, in closed form.

        .. math:: E f(x_1) f(x_2), \qquad
            (x_1, x_2) \sim N\left(0, \begin{pmatrix} v_1 & c \\ c & v_2 \end{pmatrix}\right)

        Arc-cosine kernels [ChoSaul09] for relu, leaky_relu, abs and relu2, arcsine kernels [Williams98] for
        erf, sign and gelu, exponentials for sin and cos, a sum over degrees for polynomials.

        Parameters
        ----------
        v1, cov, v2 : array_like
            Variances and covariance, broadcast against each other: of shape (N, 1), (N, N) and (1, N), say.

        Returns
        -------
        ndarray
            Of the broadcast shape.

        Examples
        --------
        >>> print(f"{function('erf').covariance(1.0, 0.5, 1.0):.6f}")
        0.216347
        """
        if self._shape.product is None:
            raise ValueError(
                f"{self.label} has no closed-form covariance: sum over degrees of hermite_of_scaled instead"
            )
        left, middle, right = (np.asarray(v, dtype=np.float64) for v in (v1, cov, v2))
        if not ((left >= 0).all() and (right >= 0).all()):
            raise ValueError(f"variances must be zero or more, got {min(left.min(), right.min())}")
        shape = np.broadcast_shapes(left.shape, middle.shape, right.shape)
        means = [self.gaussian_moments(np.sqrt(v), 0.0)[0] for v in (left, right)] if self._offset else []
        out = np.empty(shape or 1)
        # Blocks of rows keep the temporaries of the formulas in the cache.
        block = max(1, _BLOCK * len(out) // max(1, out.size))
        for start in range(0, len(out), block):
            part = slice(start, start + block)
            a, c, b, *m = (
                v[part] if v.ndim == len(shape) > 0 and v.shape[0] > 1 else v
                for v in (left, middle, right, *means)
            )
            if not (np.abs(c) <= np.sqrt(a) * np.sqrt(b) * (1 + 1e-8) + 1e-300).all():
                raise ValueError("no two Gaussians have this covariance: |cov| must be at most sqrt(v1 v2)")
            out[part] = self._shape.product(a, c, b)
            if m:
                out[part] -= self._offset * (m[0] + m[1] + self._offset)
        return out.reshape(shape)

    def hermite_of_scaled(self, scale: ArrayLike, count: int) -> Array:
        r"""Normalised Hermite coefficients of the function of a scaled Gaussian, for each scale.

        .. math:: a_k(s) = E[f(sg) h_k(g)], \qquad E f(x_1) f(x_2) = \sum_k a_k(s_1)\, a_k(s_2)\, \rho^k

        for centred Gaussians with standard deviations s1, s2 and correlation rho, whatever the function.

        Parameters
        ----------
        scale : array_like
            Scales s, zero or more; taken as a flat list.
        count : int
            How many degrees, starting with 0; right to 1e-12 up to 200 and beyond.

        Returns
        -------
        ndarray of shape (len(scale), count)

        Examples
        --------
        >>> function("tanh").hermite_of_scaled([1.0, 2.0], 4).round(4).tolist()
        [[0.0, 0.6057, 0.0, -0.1484], [0.0, 0.7295, 0.0, -0.2507]]
        """
        scales = np.ravel(np.asarray(scale, dtype=np.float64))
        if not (np.isfinite(scales) & (scales >= 0)).all():
            raise ValueError("scales must be finite and zero or more")
        if self._shape.coefficients is not None:
            out = self._shape.coefficients(scales, count)
        else:
            out = _mesh_coefficients(self._shape, self._mesh, scales, count)
        out[:, :1] -= self._offset
        return out


@lru_cache(maxsize=16)
def _root_factorials(count: int) -> Array:
    """Roots of 0!, 1!, …; infinite from 171! on, which is beyond the range of floats."""
    return np.array([math.sqrt(math.factorial(k)) if k <= 170 else math.inf for k in range(count)])


def _floating(x: Any) -> Any:
    array = x if isinstance(x, np.ndarray) else np.asarray(x)
    return array if array.dtype.kind == "f" else array.astype(np.float64)


def _rebuild(
    spec: Any, centre: bool, derivative: Any, kinks: tuple[float, ...], name: str | None
) -> Function:
    return function(spec, centre=centre, derivative=derivative, kinks=kinks, name=name)


def _make(
    kind: str, spec: str, centred: bool, shape: _Shape, origin: Sequence[Any], marks: str = ""
) -> Function:
    key = hashlib.sha256(repr((kind, spec, centred, marks)).encode()).hexdigest()[:16]
    return Function(spec, centred, key, shape.kinks, shape, tuple(origin))


def function(
    spec: Any,
    *,
    centre: bool = True,
    derivative: Callable[[Any], Any] | None = None,
    kinks: Iterable[float] = (),
    name: str | None = None,
) -> Function:
    """Make a :class:`Function` from a name, an expression, Hermite coefficients or a Python callable.

    Expressions are parsed, never executed: they may use x, pi, e, numbers, ``+ - * / **``, sqrt, exp, log, min,
    max and the built-in names, h0 … h20 with or without an argument. Their derivatives are exact, and their
    kinks are found.

    Parameters
    ----------
    spec : str, sequence of float, callable or Function
        ``"relu"``; ``"h1 + h2/sqrt(2)"``; ``[0, 1, 0.5]`` for H_1 + H_2/2; any vectorised callable. A
        Function is returned as it is.
    centre : bool
        Subtract the mean E f(Z).
    derivative : callable, optional
        Derivative of a callable; without it, a difference that is right to about 1e-9.
    kinks : iterable of float
        For a callable, the points where it or one of its derivatives jumps; looked for when not given.
    name : str, optional
        For a callable, the name it is shown by.

    Returns
    -------
    Function

    Examples
    --------
    >>> function("h1+h2 / sqrt( 2 )")
    Function('h1 + h2/sqrt(2)', centred)
    >>> function([0, 1, 0.5]).second_moment
    1.5
    """
    if isinstance(spec, Function):
        return spec
    points = tuple(sorted({float(k) for k in kinks}))
    if callable(spec):
        return _from_callable(spec, bool(centre), derivative, points, name)
    if derivative is not None or points or name is not None:
        raise ValueError(
            f"derivative, kinks and name describe a Python callable; {spec!r} has its own, so leave them out"
        )
    if isinstance(spec, str):
        return _from_text(spec, bool(centre))
    return _from_series(spec, bool(centre))


def _from_series(values: Any, centre: bool) -> Function:
    wanted = "wanted a name, an expression, Hermite coefficients c_0, c_1, … or a callable"
    try:
        series = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{wanted}; got {values!r}") from None
    if isinstance(values, (bytes, bytearray)) or series.ndim != 1 or not 1 <= series.size <= MAX_SERIES:
        raise ValueError(f"{wanted} (at most {MAX_SERIES}, in one row); got {values!r}")
    if not (np.abs(series) <= MAX_CONSTANT).all():
        raise ValueError(f"Hermite coefficients must be finite and at most {MAX_CONSTANT:g}; got {values!r}")
    series = np.trim_zeros(series, "b") if series.any() else series[:1]
    spec = f"hermite({', '.join(map(_number, series))})"
    return _make("hermite", spec, centre, _polynomial(series), (spec, centre, None, (), None))


@lru_cache(maxsize=512)
def _from_text(text: str, centre: bool) -> Function:
    text = text.strip()
    if len(text) > (30 * MAX_SERIES if text.startswith("hermite") else MAX_TEXT):
        raise _refuse(f"the text has {len(text)} characters, more than the {MAX_TEXT} allowed")
    if text in _builtins():
        return _make("named", text, centre, _builtins()[text], (text, centre, None, (), None))
    series = re.fullmatch(r"hermite\s*\(([-+.,\seE\d]*)\)", text)
    if series:
        return _from_series(_series_numbers(series[1]), centre)
    if text.startswith("callable:"):
        raise ValueError(
            f"{text!r} names a Python callable, which text cannot bring back: pass the callable itself"
        )
    if re.fullmatch(r"[A-Za-z_]\w*", text, re.ASCII) and text not in ("x", "pi", "e"):
        raise ValueError(f"unknown function {text!r}{_suggest(text, _builtins())}; known are {_known()}")
    tree = _parse(text)
    spec = _spell(tree)
    if tree.op in _builtins() and tree.args == (_X,):
        return _from_text(tree.op, centre)
    shape = _shape_of(_fold(tree), spec)
    return _make("expression", spec, centre, shape, (spec, centre, None, (), None))


def _from_callable(
    call: Callable[[Any], Any],
    centre: bool,
    derivative: Callable[[Any], Any] | None,
    kinks: tuple[float, ...],
    name: str | None,
) -> Function:
    label = name if name is not None else str(getattr(call, "__name__", type(call).__name__)).strip("<>")
    spec = f"callable:{label}"
    if not all(map(math.isfinite, kinks)):
        raise ValueError(f"kinks must be finite numbers, got {kinks}")
    value = _guarded(call, spec)
    slope = _guarded(derivative, f"the derivative of {spec}") if derivative else _difference(value, kinks)
    points = np.array([-4.3, -2.9, -2.1, -1.4, -0.9, -0.55, -0.2, 0.1, 0.35, 0.7, 1.2, 1.7, 2.4, 3.3, 5.1])
    _check_elementwise(value, spec, points)
    try:
        shape = _vetted(_Shape(value, slope, kinks), spec)
    except ValueError:
        # Averages that do not settle: most often kinks that were not declared.
        found = () if kinks else find_kinks(value, MAX_KINKS)
        if not found:
            raise
        return _from_callable(call, centre, derivative, found, name)
    marks = " ".join(f"{v + 0.0:.11e}" for v in value(points)) + f" kinks {kinks}"
    made = _make("callable", spec, centre, shape, (call, centre, derivative, kinks, name), marks)
    if not shape.no_slope:
        _check_slope(made, given=derivative is not None)
    return made


def _guarded(call: Callable[[Any], Any], spec: str) -> Elementwise:
    """The callable with its result checked: the shape of x, real, in a fresh array of x's dtype."""

    def value(x: Any) -> Any:
        try:
            result = np.asarray(call(x))
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"{spec} must take an array and return one, but an array of shape {x.shape} gave: {error}"
                " (write it with NumPy functions, or wrap it in numpy.vectorize)"
            ) from error
        if result.shape != x.shape or result.dtype.kind not in "fiub":
            raise ValueError(
                f"{spec} must return real numbers in the shape of its argument {x.shape},"
                f" got shape {result.shape} and dtype {result.dtype}"
            )
        return result.astype(x.dtype)

    return value


def _check_elementwise(value: Elementwise, spec: str, points: Array) -> None:
    whole = value(points)
    parts = np.concatenate([value(points[:4]), value(points[4:5]), value(points[5:])])
    if not np.allclose(whole, parts, rtol=1e-12, atol=1e-300, equal_nan=True):
        raise ValueError(
            f"{spec} must act on each element alone, but its values change with the rest of the array"
        )
    value(points.reshape(3, 5))


def _difference(value: Elementwise, kinks: tuple[float, ...], finer: int = 1) -> Elementwise:
    """Sixth-order difference, one-sided near a kink; the step is a power of two, so that x + h is exact."""
    places = np.array(kinks)
    gap = min([abs(b - a) for a, b in pairwise(kinks)], default=1.0)
    step = 2.0 ** min(-7, math.floor(math.log2(gap / 8))) / finer
    central = np.array([-1, 9, -45, 0, 45, -9, 1]) / (60 * step)
    forward = np.array([-147, 360, -450, 400, -225, 72, -10]) / (60 * step)

    def slope(x: Any) -> Any:
        points = np.asarray(x, dtype=np.float64)
        nearest = places[np.argmin(np.abs(points[..., None] - places), axis=-1)] if places.size else np.inf
        side = np.where(np.abs(points - nearest) > 3 * step, 0, np.where(points >= nearest, 1, -1))
        result = np.zeros(points.shape)
        for j in range(7):
            offset = np.where(side == 0, j - 3, side * j)
            weight = np.where(side == 0, central[j], side * forward[j])
            result += weight * value(points + offset * step)
        return result.astype(x.dtype)

    return slope


def _check_slope(made: Function, *, given: bool) -> None:
    """A given derivative must be near the difference quotient, and a quotient near one with half its step."""
    points = np.linspace(-6.03, 6.01, 500)
    points = points[np.abs(points[:, None] - np.array([*made.kinks, np.inf])).min(axis=1) > 1e-3]
    guess = _difference(made._shape.value, made.kinks, 2)(points)
    size = 1 + float(np.abs(guess).max())
    off = float(np.abs(made.derivative(points) - guess).max())
    if given and not off <= 1e-2 * size:
        raise ValueError(
            f"the derivative given for {made.label} is not its derivative: it is off by {off:.2g}"
        )
    if not given and not off <= 1e-7 * size:
        raise ValueError(
            f"{made.label} varies too fast for a numerical derivative: write function(f, derivative=…)"
        )
