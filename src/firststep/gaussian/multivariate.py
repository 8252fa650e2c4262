"""Teachers of several directions: functions of t1, t2, … with their Gaussian averages."""

import hashlib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, reduce
from itertools import product
from typing import Any

import numpy as np

from firststep.gaussian.expressions import (
    _DIRECTIONS,
    _X,
    MAX_COEFFICIENT,
    MAX_CONSTANT,
    MAX_DIRECTIONS,
    _evaluate,
    _fold,
    _Node,
    _number,
    _parse,
    _refuse,
    _spell,
)
from firststep.gaussian.functions import Function, Spelled, _floating, _from_text, function
from firststep.gaussian.products import (
    MultiIndex,
    Plane,
    Terms,
    affine,
    as_terms,
    factorial,
    indices,
    inner,
    nested_rule,
    plus,
    times,
)
from firststep.gaussian.rules import Array, expectation, hermite_polynomials
from firststep.gaussian.shapes import _builtins

MAX_TEXT = 2000
# Two levels of quadrature must agree so well, relative to the root of the second moment.
ACCURACY = 1e-5
MAX_DEGREE = 30
# Below this a coefficient is rounding: what a step sees of it is nothing.
NEGLIGIBLE = 1e-9
_SERIES = 400


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class RidgePart:
    """A part f(u·t) of a teacher, with a unit vector u."""

    direction: tuple[float, ...]
    function: Function

    @property
    def variables(self) -> tuple[int, ...]:
        """Places of the coordinates that it looks at."""
        return tuple(i for i, u in enumerate(self.direction) if u)

    @property
    def planes(self) -> tuple[Plane, ...]:
        """Where it has kinks."""
        return tuple((self.direction, kink) for kink in self.function.kinks)

    def value(self, columns: Sequence[Any]) -> Any:
        """Values at points given by their coordinates."""
        return self.function(sum(u * t for u, t in zip(self.direction, columns, strict=True) if u))

    def coefficient(self, index: MultiIndex) -> float:
        """Coefficient of H_a(t): c_m u^a m!/a!, with m = |a|."""
        degree = sum(index)
        own = float(self.function.hermite(degree + 1)[degree])
        turned = math.prod(u**a for u, a in zip(self.direction, index, strict=True))
        return own * turned * math.factorial(degree) / factorial(index)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class MixedPart:
    """A part that is neither a polynomial nor a function of one direction: averaged by quadrature."""

    call: Callable[[Sequence[Any]], Any]
    variables: tuple[int, ...]
    directions: int
    planes: tuple[Plane, ...]
    _cache: dict[Any, Any] = field(default_factory=dict)

    def value(self, columns: Sequence[Any]) -> Any:
        """Values at points given by their coordinates."""
        return self.call(columns)

    def rule(self, fine: bool = True) -> tuple[Array, Array, Array]:
        """Nodes (M, variables), weights and values, of the coarse or the fine rule."""
        if fine not in self._cache:
            planes = [(tuple(slope[i] for i in self.variables), level) for slope, level in self.planes]
            nodes, weights = nested_rule(len(self.variables), planes, fine)
            columns: list[Any] = [np.zeros(len(nodes))] * self.directions
            for place, column in zip(self.variables, nodes.T, strict=True):
                columns[place] = column
            with np.errstate(all="ignore"):
                values = np.asarray(self.call(columns), dtype=float) + np.zeros(len(nodes))
            self._cache[fine] = nodes, weights, values
        found: tuple[Array, Array, Array] = self._cache[fine]
        return found

    def coefficient(self, index: MultiIndex, fine: bool = True) -> float:
        """E[f H_a]/a!."""
        if (index, fine) not in self._cache:
            inside = [index[i] for i in self.variables]
            value = 0.0
            if sum(inside) == sum(index):
                nodes, weights, values = self.rule(fine)
                weighted = weights * values
                for column, degree in zip(nodes.T, inside, strict=True):
                    if degree:
                        weighted = weighted * hermite_polynomials(column, degree + 1, normalised=True)[degree]
                # Normalised polynomials keep their size; the roots of a! make the coefficient of H_a of them.
                value = float(weighted.sum()) / math.sqrt(factorial(index))
            self._cache[index, fine] = value
        return float(self._cache[index, fine])


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class PolynomialPart:
    """A polynomial as a factor of a product."""

    call: Callable[[Sequence[Any]], Any]
    variables: tuple[int, ...]
    terms: Terms

    @property
    def planes(self) -> tuple[Plane, ...]:
        """It has no kinks."""
        return ()

    def value(self, columns: Sequence[Any]) -> Any:
        """Values at points given by their coordinates."""
        return self.call(columns)

    def coefficient(self, index: MultiIndex) -> float:
        """Its own coefficient of H_a."""
        return self.terms.get(index, 0.0)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ProductPart:
    """A product of parts that share no variable: its averages are products."""

    factors: "tuple[Part, ...]"

    @property
    def variables(self) -> tuple[int, ...]:
        """Places of the coordinates that it looks at."""
        return tuple(sorted(place for factor in self.factors for place in factor.variables))

    @property
    def planes(self) -> tuple[Plane, ...]:
        """Where it has kinks."""
        return tuple(plane for factor in self.factors for plane in factor.planes)

    def value(self, columns: Sequence[Any]) -> Any:
        """Values at points given by their coordinates."""
        return math.prod(factor.value(columns) for factor in self.factors)

    def coefficient(self, index: MultiIndex) -> float:
        """Product of the factors' own."""
        if any(a for i, a in enumerate(index) if i not in self.variables):
            return 0.0
        inside = [tuple(a if i in f.variables else 0 for i, a in enumerate(index)) for f in self.factors]
        return math.prod(f.coefficient(a) for f, a in zip(self.factors, inside, strict=True))


Part = RidgePart | MixedPart | PolynomialPart | ProductPart


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class MultiFunction(Spelled):
    r"""A function of k standard Gaussian variables; made by :func:`teacher_function`, never by hand.

    .. math:: s(t) = \sum_a s_a H_a(t), \quad H_a(t) = \prod_i H_{a_i}(t_i), \quad s_a = E[s H_a]/a!

    It is kept as a polynomial, whose averages are exact, functions of one combination of the variables, whose
    averages are those of :class:`firststep.Function`, and mixed parts, by quadrature split at the hyperplanes where
    they have kinks.

    Attributes
    ----------
    spec : str
        Canonical spelling, which :func:`teacher_function` reads back (for a callable, ``"callable:<name>"``).
    directions : int
        k, two to four.
    centred : bool
        Whether the mean is subtracted.
    key : str
        Short hash, the same on every machine.
    polynomial : dict
        Coefficients s_a of the polynomial part, by multi-index.
    parts : tuple
        What is left, each part with a `coefficient(a)` of its own.
    accuracy : float
        Difference between two levels of quadrature, relative to the root of the second moment; 0 if none was used.

    Examples
    --------
    >>> teacher = teacher_function("t1 + t1*t2")
    >>> teacher.directions, teacher.second_moment, teacher.gradient_mean.tolist()
    (2, 2.0, [1.0, 0.0])
    """

    spec: str
    directions: int
    centred: bool
    key: str
    polynomial: Mapping[MultiIndex, float]
    parts: tuple[Part, ...]
    accuracy: float
    _call: Callable[[Sequence[Any]], Any]
    _origin: tuple[Any, ...]
    _cache: dict[Any, Any] = field(default_factory=dict)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, self._origin

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise AttributeError(
            f"{name!r} is defined for teachers of one direction; {self.label} has {self.directions}"
        )

    def __call__(self, points: Any) -> Any:
        """Values s(t) (n,) at points (n, k), less the mean if the function is centred."""
        array = _floating(points)
        if array.ndim != 2 or array.shape[1] != self.directions:
            raise ValueError(f"{self.label} takes points (n, {self.directions}), got shape {array.shape}")
        values = np.asarray(self._call([array[:, i] for i in range(self.directions)]))
        values = np.array(np.broadcast_to(values, len(array)), dtype=array.dtype)
        if self.centred:
            values -= array.dtype.type(self.mean)
        return values

    def at(self, points: Any) -> Any:
        """The same as calling: the way to call a teacher of one direction or of several."""
        return self(points)

    def hermite_tensor(self, index: Sequence[int]) -> float:
        r"""Coefficient :math:`s_a = E[s(t) H_a(t)]/a!` of a multi-index a of length k, of total degree 30 at most.

        Examples
        --------
        >>> teacher_function("h2(t1) + 0.5*t1*t3").hermite_tensor((1, 0, 1))
        0.5
        """
        found = tuple(int(a) for a in index)
        if len(found) != self.directions or min(found) < 0 or sum(found) > MAX_DEGREE:
            raise ValueError(
                f"a multi-index of {self.label} has {self.directions} degrees of sum at most {MAX_DEGREE}, got {index}"
            )
        return 0.0 if self.centred and not any(found) else self._coefficient(found)

    def _coefficient(self, index: MultiIndex) -> float:
        if index not in self._cache:
            own = self.polynomial.get(index, 0.0)
            value = own + sum(part.coefficient(index) for part in self.parts)
            # Rounding of the quadrature is not a coefficient.
            self._cache[index] = value if abs(value) > 1e-13 or own else 0.0
        return float(self._cache[index])

    @property
    def mean(self) -> float:
        """E s(t) of the function as it is before centring."""
        return self._coefficient((0,) * self.directions)

    @property
    def second_moment(self) -> float:
        """E s(t)^2, centred if the function is."""
        if "square" not in self._cache:
            total = inner(self.polynomial, self.polynomial)
            for i, part in enumerate(self.parts):
                seen = {index: part.coefficient(index) for index in self.polynomial}
                total += 2 * inner(self.polynomial, seen)
                total += sum(
                    (2 - (i == j)) * _both(part, other) for j, other in enumerate(self.parts[: i + 1])
                )
            self._cache["square"] = total
        square = float(self._cache["square"])
        return square - self.mean**2 if self.centred else square

    @property
    def square_with_norm(self) -> float:
        r"""E s(t)^2 \|t\|^2, exact for polynomials."""
        if "norm" not in self._cache:
            none = (0,) * self.directions
            own = plus(dict(self.polynomial), {none: -self.mean if self.centred else 0.0})
            products = [times(own, {unit: 1.0}) for unit in _units(self.directions)]
            if not self.parts and None not in products:
                total = math.fsum(inner(found, found) for found in products if found is not None)
            else:
                planes = [plane for part in self.parts for plane in part.planes]
                nodes, weights = nested_rule(self.directions, planes, fine=True)
                total = float(weights @ (self(nodes) ** 2 * np.sum(nodes**2, axis=1)))
            self._cache["norm"] = total
        return float(self._cache["norm"])

    @property
    def gradient_mean(self) -> Array:
        """E grad s(t), shape (k,): what one gradient step sees."""
        return np.array([self._coefficient(index) for index in _units(self.directions)])

    @property
    def hessian_mean(self) -> Array:
        """Mean of the second derivatives, shape (k, k)."""
        return self.derivative_mean(2)

    def derivative_mean(self, order: int) -> Array:
        """Means of the derivatives of an order m, the symmetric tensor E[s He_m(t)] of shape (k, …, k)."""
        result = np.zeros((self.directions,) * order)
        for place in product(range(self.directions), repeat=order):
            index = tuple(place.count(i) for i in range(self.directions))
            result[place] = factorial(index) * self._coefficient(index)
        return result

    @property
    def first_direction(self) -> Array | None:
        """Unit vector along E grad s, the direction that one step sees; None where there is none."""
        gradient = self.gradient_mean
        size = float(np.linalg.norm(gradient))
        return gradient / size if size > NEGLIGIBLE else None

    def hermite(self, count: int) -> Array:
        r"""Hermite coefficients :math:`c_0, \dots` along the direction :math:`\hat\beta` that one step sees.

        .. math:: c_m = E[s(t) H_m(\hat\beta \cdot t)]/m! = \sum_{|a| = m} s_a \hat\beta^a, \quad
            \hat\beta = E\nabla s/|E\nabla s|

        Where E grad s = 0 only the first two, the mean and 0, have a meaning.

        Examples
        --------
        >>> teacher_function("0.8*t1 + 0.6*t2 + t1*t2").hermite(3).round(6).tolist()
        [0.0, 1.0, 0.48]
        """
        if not 0 <= count <= MAX_DEGREE + 1:
            raise ValueError(
                f"a teacher of several directions has coefficients up to degree {MAX_DEGREE}, got count={count}"
            )
        direction = self.first_direction
        if direction is None:
            result = np.zeros(count)
            result[:1] = 0.0 if self.centred else self.mean
            if count > 2:
                raise ValueError(
                    f"the teacher {self.label} has no linear part: one step sees no direction along which it "
                    f"could be expanded to degree {count - 1}"
                )
            return result
        return self.hermite_along(direction, count)

    def hermite_along(self, direction: Array, count: int) -> Array:
        r"""Coefficients :math:`E[s(t) H_m(z)]/m! = \sum_{|a| = m} s_a \rho^a` for z of correlations rho with t.

        Examples
        --------
        >>> teacher_function("t1 + t1*t2").hermite_along(np.array([0.5, 0.5]), 3).tolist()
        [0.0, 0.5, 0.25]
        """
        result = np.zeros(count)
        result[:1] = 0.0 if self.centred else self.mean
        for degree in range(1, count):
            turned = {
                index: math.prod(u**a for u, a in zip(direction, index, strict=True))
                for index in indices(self.directions, degree)
            }
            # A mixed part's coefficients take long: those of coordinates that z does not have are not asked for.
            result[degree] = math.fsum(
                self._coefficient(index) * factor for index, factor in turned.items() if factor
            )
        return result

    def stages(self, steps: int = 4, degree: int = 4) -> list[Array]:
        r"""Orthonormal directions (k, r) that each step in turn can newly see.

        The first step sees E grad s. A later one sees the directions u that the teacher joins to those seen
        before, :math:`E[s\, h(V t)\, u \cdot t] \ne 0` for a product h of at most `degree` - 1 coordinates
        [firststep, several directions]. The list ends where nothing new is seen.

        Examples
        --------
        >>> [seen.round(6).tolist() for seen in teacher_function("t1 + t1*t2").stages()]
        [[[1.0], [0.0]], [[0.0], [1.0]]]
        """
        first = self.first_direction
        if first is None:
            return []
        found, seen = [first[:, None]], first[:, None]
        tensors = [self.derivative_mean(order) for order in range(2, degree + 1)]
        while len(found) < steps and seen.shape[1] < self.directions:
            columns = []
            for tensor in tensors:
                # All but one index along what is known.
                for _ in range(tensor.ndim - 1):
                    tensor = np.tensordot(tensor, seen, axes=(0, 0))
                columns.append(tensor.reshape(self.directions, -1))
            fresh = np.concatenate(columns, axis=1)
            fresh = fresh - seen @ (seen.T @ fresh)
            left, sizes, _ = np.linalg.svd(fresh, full_matrices=False)
            new = left[:, sizes > 1e-7 * max(1.0, math.sqrt(self.second_moment))]
            if not new.shape[1]:
                break
            new = np.where(np.abs(new) < 1e-12, 0.0, new) * np.where(new.sum(axis=0) < 0, -1.0, 1.0) + 0.0
            found.append(new)
            seen = np.concatenate([seen, new], axis=1)
        return found

    def what_steps_see(self) -> tuple[str, ...]:
        """Sentences that say which directions each step can see.

        Examples
        --------
        >>> print(teacher_function("t1 + t1*t2").what_steps_see()[0])
        one step sees the direction t1; t2 enters only through t1 t2, which a second step can see
        """
        stages = self.stages()
        if not stages:
            return ()
        said = [f"one step sees the direction {_words(stages[0][:, 0])}"]
        for number, stage in enumerate(stages[1:], start=2):
            which = _ORDINALS[number]
            for column in stage.T:
                through = self._through(column)
                said.append(
                    f"{_words(column)} enters only through {through}, which a {which} step can see"
                    if through
                    else f"a {which} step can see {_words(column)}"
                )
        seen = np.concatenate(stages, axis=1)
        left = np.eye(self.directions) - seen @ seen.T
        used = [i for i in range(self.directions) if self._uses(i)]
        hidden = [f"t{i + 1}" for i in used if left[i, i] > 1e-9 and np.abs(seen[i]).max() < 1e-9]
        if hidden:
            said.append(f"no later step of this kind sees {' and '.join(hidden)}")
        return ("; ".join(said),)

    def _uses(self, place: int) -> bool:
        if any(index[place] for index in self.polynomial):
            return True
        return any(place in part.variables for part in self.parts)

    def _through(self, direction: Array) -> str:
        """The products of a polynomial that contain a coordinate; empty for other directions and functions."""
        places = np.flatnonzero(np.abs(direction) > 1e-9)
        if self.parts or len(places) != 1:
            return ""
        terms = [index for index in self.polynomial if index[places[0]]]
        return " and ".join(_product_words(index) for index in sorted(terms, key=sum)[:3])


_ORDINALS = {2: "second", 3: "third", 4: "fourth", 5: "fifth"}


def _units(count: int) -> list[MultiIndex]:
    return [tuple(int(i == place) for i in range(count)) for place in range(count)]


def _words(direction: Array) -> str:
    """0.8 t1 + 0.6 t2."""
    text = ""
    for place in np.flatnonzero(np.abs(direction) > 1e-9):
        value = float(direction[place])
        size = "" if abs(abs(value) - 1) < 1e-9 else f"{abs(value):.2g} "
        sign = (" - " if value < 0 else " + ") if text else ("-" if value < 0 else "")
        text += f"{sign}{size}t{place + 1}"
    return text


def _product_words(index: MultiIndex) -> str:
    return " ".join(f"t{i + 1}" if a == 1 else f"h{a}(t{i + 1})" for i, a in enumerate(index) if a)


def _both(one: Part, other: Part) -> float:
    """E of the product of two parts."""
    if isinstance(one, RidgePart) and isinstance(other, RidgePart):
        cosine = math.fsum(u * v for u, v in zip(one.direction, other.direction, strict=True))
        if abs(cosine) < 0.9:
            series = [part.function.hermite_of_scaled([1.0], _SERIES)[0] for part in (one, other)]
            return float(np.sum(series[0] * series[1] * cosine ** np.arange(_SERIES)))
        if abs(cosine) > 1 - 1e-12:
            sign = math.copysign(1.0, cosine)
            kinks = (*one.function.kinks, *(sign * k for k in other.function.kinks))
            return expectation(lambda z: one.function(z) * other.function(sign * z), kinks, tolerance=1e-11)
    if isinstance(one, PolynomialPart) and isinstance(other, PolynomialPart):
        return inner(one.terms, other.terms)
    if one is other and isinstance(one, ProductPart):
        return math.prod(_both(factor, factor) for factor in one.factors)
    return _mixed_product(one, other)


def _mixed_product(one: Part, other: Part, fine: bool = True) -> float:
    with np.errstate(all="ignore"):
        if one is other and isinstance(one, MixedPart):
            _, weights, values = one.rule(fine)
            return float(weights @ values**2)
        variables = tuple(sorted({*one.variables, *other.variables}))
        both = MixedPart(
            lambda columns: one.value(columns) * other.value(columns),
            variables,
            variables[-1] + 1,
            tuple((slope[: variables[-1] + 1], level) for slope, level in (*one.planes, *other.planes)),
        )
        _, weights, values = both.rule(fine)
        return float(weights @ values)


def teacher_function(
    spec: Any,
    *,
    centre: bool = True,
    directions: int | None = None,
    kinks: Iterable[tuple[Sequence[float], float]] = (),
    name: str | None = None,
) -> Function | MultiFunction:
    """Make a teacher: a :class:`firststep.Function` of one direction, or a :class:`MultiFunction` of up to four.

    Expressions are parsed, never executed: those of :func:`firststep.function`, in ``t1`` … ``t4``; ``x`` and ``h1``,
    ``h2``, … without an argument mean t1.

    Parameters
    ----------
    spec : str, mapping, sequence of float, callable, Function or MultiFunction
        ``"t1 + t1*t2"``; ``"h2(t1) + 0.5*relu(t1 - t3)"``; ``{(1, 0): 1.0, (1, 1): 0.5}`` for H_1(t1) + H_1(t1)
        H_1(t2)/2; a callable of an (n, k) array, with k in `directions` or in an attribute of that name. All that
        :func:`firststep.function` takes is a teacher of one direction.
    centre : bool
        Subtract the mean.
    directions : int, optional
        For a callable, k.
    kinks : iterable of (a, c)
        For a callable of several directions, the hyperplanes a·t = c where it or one of its derivatives jumps.
    name : str, optional
        For a callable, the name it is shown by.

    Examples
    --------
    >>> teacher_function("t1 + t1 * t2")
    MultiFunction('t1 + t1*t2', centred)
    >>> teacher_function("h2(t1)")
    Function('h2', centred)
    """
    if isinstance(spec, Function | MultiFunction):
        return spec
    if isinstance(spec, Mapping):
        return _from_terms(spec, bool(centre))
    if callable(spec):
        count = directions if directions is not None else getattr(spec, "directions", 1)
        if count == 1:
            return function(spec, centre=centre, name=name)
        return _from_multi_callable(spec, bool(centre), count, tuple(kinks), name)
    if isinstance(spec, str):
        places = [int(found) for found in re.findall(r"\bt(\d+)\b", spec)]
        if places and max(places) > 1:
            return _from_multi_text(spec, bool(centre))
        if places:
            return function(re.sub(r"\bt1\b", "x", spec), centre=centre)
    return function(spec, centre=centre)


def _rebuild(spec: Any, options: dict[str, Any]) -> Function | MultiFunction:
    return teacher_function(spec, **options)


def _check_directions(count: Any) -> int:
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MAX_DIRECTIONS:
        raise ValueError(
            f"a teacher has at most {MAX_DIRECTIONS} directions, t1 … t{MAX_DIRECTIONS}; got {count}: "
            "write it in fewer"
        )
    return count


def _from_terms(terms: Mapping[Any, Any], centre: bool) -> Function | MultiFunction:
    """From a mapping of multi-indices to coefficients."""
    wanted = "Hermite coefficients are a mapping like {(1, 0): 1.0, (1, 1): 0.5}"
    if not 1 <= len(terms) <= 40:
        raise ValueError(f"{wanted} of 1 to 40 entries, got {len(terms)}")
    lengths = {len(index) if isinstance(index, tuple) else -1 for index in terms}
    if len(lengths) != 1 or lengths == {-1}:
        raise ValueError(f"{wanted}, with keys of one length; got the keys {list(terms)}")
    _check_directions(lengths.pop())
    parts = []
    for index, value in terms.items():
        if not all(isinstance(a, int) and 0 <= a <= 20 for a in index):
            raise ValueError(f"{wanted}, with degrees from 0 to 20; got {index}")
        if not abs(float(value)) <= MAX_CONSTANT:
            raise ValueError(f"the coefficient of {index} must be at most {MAX_CONSTANT:g}, got {value}")
        factors = [f"h{a}(t{i + 1})" for i, a in enumerate(index) if a]
        sign = "-" if float(value) < 0 else "+"
        parts.append(f"{sign} {'*'.join([_number(abs(float(value))), *factors])}")
    return teacher_function(" ".join(parts).removeprefix("+ "), centre=centre)


@lru_cache(maxsize=128)
def _from_multi_text(text: str, centre: bool) -> MultiFunction:
    places = [int(found) for found in re.findall(r"\bt(\d+)\b", text)]
    _check_directions(max(places))
    if min(places) < 1:
        raise ValueError(f"directions are t1 … t{MAX_DIRECTIONS}; got t0 in {text!r}")
    if len(text) > MAX_TEXT:
        raise _refuse(f"the text has {len(text)} characters, more than the {MAX_TEXT} allowed", "t1 … t4")
    tree = _in_first(_parse(text.strip(), _DIRECTIONS))
    spec = _spell(tree)
    count = max(places)
    folded = _fold(tree)
    polynomial: Terms = {}
    parts: list[Part] = []
    for node, factor in _summands(folded, 1.0):
        terms = as_terms(node, count)
        if terms is not None:
            polynomial = plus(polynomial, terms, factor)
        else:
            parts.append(_part(node, factor, count))
    if any(abs(value) > MAX_COEFFICIENT for value in polynomial.values()):
        raise ValueError(f"the Hermite coefficients of {spec} must be at most {MAX_COEFFICIENT:g}")
    return _made(spec, count, polynomial, parts, lambda t: _evaluate(folded, t), (spec, {"centre": centre}))


def _in_first(node: _Node) -> _Node:
    """The tree with x, and the h1, h2, … without an argument, meaning t1."""
    return _Node("t1") if node == _X else _Node(node.op, tuple(map(_in_first, node.args)), node.number)


def _summands(node: _Node, factor: float) -> Iterator[tuple[_Node, float]]:
    """Parts whose multiples add up to the tree."""
    match node.op:
        case "neg":
            yield from _summands(node.args[0], -factor)
        case "+" | "-":
            yield from _summands(node.args[0], factor)
            yield from _summands(node.args[1], factor if node.op == "+" else -factor)
        case "*" if "number" in (node.args[0].op, node.args[1].op):
            number, other = sorted(node.args, key=lambda child: child.op != "number")
            yield from _summands(other, factor * number.number)
        case "/" if node.args[1].op == "number":
            yield from _summands(node.args[0], factor / node.args[1].number)
        case _:
            yield node, factor


def _part(node: _Node, factor: float, count: int) -> Part:
    """The simplest that a tree is: a polynomial, a function of one combination, a product, or a mixed part."""
    scaled = node if factor == 1 else _Node("*", (_Node("number", (), factor), node))
    terms = as_terms(scaled, count)
    if terms is not None:
        return PolynomialPart(lambda t: _evaluate(scaled, t), tuple(sorted(_occurring(node))), terms)
    direction = _common_direction(node, count)
    if direction is not None:
        tree = _along(scaled, direction, count)
        return RidgePart(tuple(map(float, direction)), _from_text(_spell(tree), False))
    groups = _separated(node)
    if len(groups) > 1:
        first, *rest = (reduce(lambda a, b: _Node("*", (a, b)), group) for group in groups)
        return ProductPart((_part(first, factor, count), *(_part(other, 1.0, count) for other in rest)))
    planes = tuple(_found_planes(node, count))
    return MixedPart(lambda t: _evaluate(scaled, t), tuple(sorted(_occurring(node))), count, planes)


def _occurring(node: _Node) -> set[int]:
    """Places of the variables of a tree."""
    own = {_DIRECTIONS.index(node.op)} if node.op in _DIRECTIONS else set()
    return own.union(*map(_occurring, node.args))


def _separated(node: _Node) -> list[list[_Node]]:
    """The factors of a product, in groups that share no variable."""
    groups: list[list[_Node]] = []
    for factor in _multiplied(node):
        places = _occurring(factor)
        shared = [group for group in groups if places & set().union(*map(_occurring, group))]
        groups = [group for group in groups if group not in shared]
        groups.append([*(member for group in shared for member in group), factor])
    return groups


def _multiplied(node: _Node) -> list[_Node]:
    return [factor for child in node.args for factor in _multiplied(child)] if node.op == "*" else [node]


def _common_direction(node: _Node, count: int) -> Array | None:
    """Unit vector u, if the tree contains its variables in combinations a (u·t) + b only."""
    if node.op == "number":
        return None
    found = affine(as_terms(node, count), count)
    if found is not None:
        unit = found[0] / np.linalg.norm(found[0])
        return np.asarray(unit if unit[np.flatnonzero(unit)[0]] > 0 else -unit)
    below = [_common_direction(child, count) for child in node.args if child.op != "number"]
    first = below[0] if below else None
    if first is None or any(one is None or not np.allclose(one, first, atol=1e-13) for one in below):
        return None
    return first


def _along(node: _Node, direction: Array, count: int) -> _Node:
    """The tree with every combination a (u·t) + b replaced by a x + b."""
    if node.op == "number":
        return node
    found = affine(as_terms(node, count), count)
    if found is not None:
        scaled = _Node("*", (_Node("number", (), float(found[0] @ direction)), _X))
        return _fold(_Node("+", (scaled, _Node("number", (), found[1])))) if found[1] else scaled
    return _Node(node.op, tuple(_along(child, direction, count) for child in node.args), node.number)


def _found_planes(node: _Node, count: int) -> Iterator[Plane]:
    """Hyperplanes on which some part of the tree has a kink: where arguments are affine, or products of such."""
    for child in node.args:
        yield from _found_planes(child, count)
    meetings: list[tuple[_Node, float]] = []
    if node.op in ("min", "max"):
        pairs = [(a, b) for i, a in enumerate(node.args) for b in node.args[i + 1 :]]
        meetings = [(_Node("-", pair), 0.0) for pair in pairs]
    elif node.op in ("sqrt", "log") or (node.op == "**" and node.args[1].number % 1):
        meetings = [(node.args[0], 0.0)]
    elif node.op in _builtins():
        meetings = [(node.args[0], kink) for kink in _builtins()[node.op].kinks]
    for argument, level in meetings:
        for factor in _factors(argument) if level == 0 else [argument]:
            found = affine(as_terms(factor, count), count)
            if found is not None:
                yield tuple(map(float, found[0])), level - found[1]


def _factors(node: _Node) -> Iterator[_Node]:
    """A product vanishes where one of its factors does."""
    if node.op in ("*", "/"):
        for child in node.args:
            yield from _factors(child)
    elif node.op in ("neg", "**"):
        yield from _factors(node.args[0])
    else:
        yield node


def _from_multi_callable(
    call: Callable[[Any], Any], centre: bool, directions: int, kinks: tuple[Any, ...], name: str | None
) -> Function | MultiFunction:
    count = _check_directions(directions)
    label = name if name is not None else str(getattr(call, "__name__", type(call).__name__)).strip("<>")
    spec = f"callable:{label}"
    planes = []
    for slope, level in kinks:
        if len(slope) != count or not any(slope):
            raise ValueError(
                f"a kink of {spec} is (a, c) with a of {count} numbers, not all 0; got {(slope, level)}"
            )
        planes.append((tuple(map(float, slope)), float(level)))

    def columns(t: Sequence[Any]) -> Any:
        points = np.stack(t, axis=1)
        values = np.asarray(call(points))
        if values.shape != (len(points),) or values.dtype.kind not in "fiub":
            raise ValueError(
                f"{spec} must return {len(points)} real numbers for points {points.shape}, one for each row; "
                f"got shape {values.shape} and dtype {values.dtype}"
            )
        return values.astype(points.dtype)

    probe = np.random.default_rng(0).standard_normal((17, count))
    whole = columns(list(probe.T))
    if not np.allclose(whole[3:9], columns(list(probe[3:9].T)), rtol=1e-10, atol=1e-12):
        raise ValueError(f"{spec} must act on each row alone, but its values change with the other rows")
    part = MixedPart(columns, tuple(range(count)), count, tuple(planes))
    marks = " ".join(f"{v + 0.0:.11e}" for v in whole) + f" kinks {planes}"
    options = {"centre": centre, "directions": count, "kinks": kinks, "name": name}
    return _made(spec, count, {}, [part], columns, (call, options), marks)


def _made(
    spec: str,
    count: int,
    polynomial: Terms,
    parts: Sequence[Part],
    call: Callable[[Sequence[Any]], Any],
    origin: tuple[Any, dict[str, Any]],
    marks: str = "",
) -> MultiFunction:
    """The function, refused where two levels of its averages differ."""
    kind, centre = "callable" if marks else "expression", bool(origin[1]["centre"])
    key = hashlib.sha256(repr(("multi", kind, spec, count, centre, marks)).encode()).hexdigest()[:16]
    accuracy = 0.0
    for part in _integrated(parts):
        squares = [_mixed_product(part, part, fine) for fine in (False, True)]
        size = math.sqrt(squares[1]) if squares[1] > 0 else 1.0
        low = [(0,) * count, *_units(count), *indices(count, 2)]
        gaps = [abs(part.coefficient(a, True) - part.coefficient(a, False)) / size for a in low]
        gaps.append(abs(squares[1] - squares[0]) / size**2)
        # NaN and infinities are no averages either.
        worst = max((gap if math.isfinite(gap) else math.inf for gap in gaps), default=0.0)
        if not (worst <= ACCURACY and math.isfinite(squares[1])):
            raise ValueError(
                f"the Gaussian averages of {spec} did not settle: two levels differ by {worst:.1g} of its size, "
                f"and {ACCURACY:g} is allowed. It grows or varies too fast for {len(part.variables)} variables "
                "in one product, or has kinks that are no hyperplanes or were not declared"
            )
        accuracy = max(accuracy, worst)
    return MultiFunction(spec, count, centre, key, polynomial, tuple(parts), accuracy, call, origin)


def _integrated(parts: Iterable[Part]) -> Iterator[MixedPart]:
    """The parts whose averages come from quadrature."""
    for part in parts:
        if isinstance(part, MixedPart):
            yield part
        elif isinstance(part, ProductPart):
            yield from _integrated(part.factors)
