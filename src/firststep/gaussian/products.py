"""Products of Hermite polynomials of several Gaussian variables, and quadrature split at hyperplanes."""

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import combinations, product

import numpy as np

from firststep.gaussian.expressions import _DIRECTIONS, MAX_POLYNOMIAL, _degree, _Node
from firststep.gaussian.rules import Array, _density

MultiIndex = tuple[int, ...]
# A polynomial: its coefficient of H_a(t) = H_a1(t1) H_a2(t2) … for every multi-index a that occurs.
Terms = dict[MultiIndex, float]
# A hyperplane a·t = c on which a function or one of its derivatives jumps.
Plane = tuple[tuple[float, ...], float]

MAX_TERMS = 4000
# A coarse and a fine rule, by the number of variables: step of the trapezoid rule, which for functions with poles beats
# Gauss–Hermite, and Gauss–Legendre nodes between kinks.
_SMOOTH = {1: (0.06, 0.05), 2: (0.11, 0.08), 3: (0.3, 0.24), 4: (0.65, 0.55)}
_BETWEEN = {1: (48, 64), 2: (40, 54), 3: (24, 30), 4: (14, 18)}
_REACH, _SMOOTH_REACH = 9.0, 11.0
# Nodes of less weight are left out: in four variables they are two thirds of all.
_NO_WEIGHT = 1e-22
_MOST_PLANES = 8


def factorial(index: Iterable[int]) -> float:
    """a! of a multi-index."""
    return float(math.prod(math.factorial(a) for a in index))


def indices(variables: int, degree: int) -> list[MultiIndex]:
    """Multi-indices of a total degree.

    Examples
    --------
    >>> indices(2, 2)
    [(0, 2), (1, 1), (2, 0)]
    """
    return [index for index in product(range(degree + 1), repeat=variables) if sum(index) == degree]


def plus(one: Terms, other: Terms, factor: float = 1.0) -> Terms:
    """The sum of one and a multiple of the other."""
    result = dict(one)
    for index, value in other.items():
        result[index] = result.get(index, 0.0) + factor * value
    return {index: value for index, value in result.items() if value}


@lru_cache(maxsize=4096)
def _linearised(one: MultiIndex, other: MultiIndex) -> tuple[tuple[MultiIndex, float], ...]:
    """H_a H_b as a sum of H_(a+b-2r), of weights r! C(a, r) C(b, r) in every variable."""
    factors = [
        [(a + b - 2 * r, math.factorial(r) * math.comb(a, r) * math.comb(b, r)) for r in range(min(a, b) + 1)]
        for a, b in zip(one, other, strict=True)
    ]
    return tuple(
        (tuple(d for d, _ in choice), float(math.prod(w for _, w in choice))) for choice in product(*factors)
    )


def times(one: Terms, other: Terms) -> Terms | None:
    """The product of two polynomials; None where it has too many terms or too high a degree."""
    if not one or not other:
        return {}
    if max(map(sum, one)) + max(map(sum, other)) > MAX_POLYNOMIAL or len(one) * len(other) > MAX_TERMS:
        return None
    result: Terms = {}
    for a, x in one.items():
        for b, y in other.items():
            for index, weight in _linearised(a, b):
                result[index] = result.get(index, 0.0) + x * y * weight
    return {index: value for index, value in result.items() if value}


def inner(one: Mapping[MultiIndex, float], other: Mapping[MultiIndex, float]) -> float:
    """E of the product, the sum of a! times both coefficients."""
    return math.fsum(factorial(a) * x * other[a] for a, x in one.items() if a in other)


def as_terms(node: _Node, variables: int) -> Terms | None:
    """Coefficients of a folded tree where it is a polynomial in the directions."""
    none = (0,) * variables
    if node.op == "number":
        return {none: node.number} if node.number else {}
    if node.op in _DIRECTIONS:
        place = _DIRECTIONS.index(node.op)
        return {tuple(int(i == place) for i in range(variables)): 1.0}
    if node.op == "**":
        base, exponent = as_terms(node.args[0], variables), node.args[1].number
        if base is None or exponent < 0 or exponent != int(exponent):
            return None
        return _repeated(base, int(exponent), none)
    parts: list[Terms] = []
    for child in node.args:
        found = as_terms(child, variables)
        if found is None:
            return None
        parts.append(found)
    degree = _degree(node.op)
    if degree is not None:
        return _hermite_of(parts[0], degree, none)
    match node.op:
        case "neg":
            return plus({}, parts[0], -1.0)
        case "+" | "-":
            return plus(parts[0], parts[1], 1.0 if node.op == "+" else -1.0)
        case "*":
            return times(parts[0], parts[1])
        case "/" if list(parts[1]) == [none]:
            return {index: value / parts[1][none] for index, value in parts[0].items()}
        case "identity":
            return parts[0]
        case "cubic":
            return _repeated(parts[0], 3, none)
    return None


def _repeated(base: Terms, exponent: int, none: MultiIndex) -> Terms | None:
    result: Terms | None = {none: 1.0}
    for _ in range(exponent):
        result = None if result is None else times(result, base)
    return result


def _hermite_of(argument: Terms, degree: int, none: MultiIndex) -> Terms | None:
    """H_k of a polynomial by the recurrence of H_k."""
    before: Terms = {}
    now: Terms = {none: 1.0}
    for k in range(degree):
        product_ = times(argument, now)
        if product_ is None:
            return None
        before, now = now, plus(product_, before, -float(k))
    return now


def affine(terms: Terms | None, variables: int) -> tuple[Array, float] | None:
    """(a, c) where a polynomial is a·t + c with a that is not zero."""
    if terms is None or not terms or max(map(sum, terms)) != 1:
        return None
    slope = np.zeros(variables)
    for index, value in terms.items():
        if sum(index):
            slope[index.index(1)] = value
    return slope, terms.get((0,) * variables, 0.0)


def nested_rule(variables: int, planes: Sequence[Plane], fine: bool) -> tuple[Array, Array]:
    """Nodes (M, variables) and weights of a Gaussian average that is smooth between hyperplanes.

    The variables are taken in turn, each given those before it: between the places where it meets a plane by
    Gauss–Legendre, where it meets none by the trapezoid rule.
    """
    by_last = _eliminated(variables, planes)
    smooth, between = _SMOOTH[variables][fine], _BETWEEN[variables][fine]
    nodes, weights = np.zeros((1, 0)), np.ones(1)
    for place in range(variables):
        if not by_last[place]:
            half = round(_SMOOTH_REACH / smooth)
            line = smooth * np.arange(-half, half + 1, dtype=np.float64)
            fresh, shares = (
                np.broadcast_to(part, (len(nodes), len(line))) for part in (line, smooth * _density(line))
            )
        else:
            fresh, shares = _panels_between(nodes, by_last[place], place, between)
        count = fresh.shape[1]
        nodes = np.column_stack([np.repeat(nodes, count, axis=0), fresh.ravel()])
        weights = (weights[:, None] * shares).ravel()
        kept = weights > _NO_WEIGHT
        nodes, weights = nodes[kept], weights[kept]
    return nodes, weights / weights.sum()


def _panels_between(nodes: Array, planes: Sequence[Plane], place: int, count: int) -> tuple[Array, Array]:
    """Nodes and weights of one variable (M, panels x count), between its meetings with the planes."""
    meetings = [
        (level - nodes @ np.array(slope[:place])) / slope[place]
        if place
        else np.full(len(nodes), level / slope[0])
        for slope, level in planes
    ]
    inside = np.sort(np.clip(np.stack(meetings, axis=1), -_REACH, _REACH), axis=1)
    edges = np.pad(inside, ((0, 0), (1, 1)), constant_values=((0, 0), (-_REACH, _REACH)))
    unit, unit_weights = np.polynomial.legendre.leggauss(count)
    half = np.diff(edges)[..., None] / 2
    fresh = (edges[:, :-1, None] + half * (1 + unit)).reshape(len(nodes), -1)
    return fresh, (half * unit_weights).reshape(len(nodes), -1) * _density(fresh)


def _eliminated(variables: int, planes: Sequence[Plane]) -> list[list[Plane]]:
    """Planes by the last variable they contain, with the places where two of them meet.

    Where two planes meet, the average over their last variable has a kink as a function of the others.
    """
    found: list[list[Plane]] = [[] for _ in range(variables)]
    todo = [(np.array(slope), level) for slope, level in planes]
    for place in reversed(range(variables)):
        own: list[tuple[Array, float]] = []
        rest = []
        for slope, level in todo:
            if abs(slope[place]) < 1e-12:
                rest.append((slope, level))
                continue
            normal = slope / slope[place], level / slope[place]
            if not any(np.allclose(normal[0], a) and math.isclose(normal[1], c) for a, c in own):
                own.append(normal)
        own = own[:_MOST_PLANES]
        found[place] = [(tuple(slope), level) for slope, level in own]
        for one, other in combinations(own, 2):
            slope, level = one[0] - other[0], one[1] - other[1]
            if np.abs(slope).max() > 1e-12:
                rest.append((slope / np.abs(slope).max(), level / float(np.abs(slope).max())))
        todo = rest
    return found
