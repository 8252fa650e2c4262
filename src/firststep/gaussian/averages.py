"""Gaussian averages without a closed form: rules refined until two levels agree."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from firststep.gaussian.rules import (
    _BLOCK,
    _COEFFICIENT_REACHES,
    _LEVELS,
    _PANEL_NODES,
    _REACHES,
    Array,
    Averages,
    _density,
    _panels,
    _unit_rule,
    hermite_polynomials,
)
from firststep.gaussian.shapes import _corner_sums, _Shape

MAX_RULE = 20_000


class UnsettledError(ValueError):
    """Averages that no rule is fine enough for."""


@dataclass(frozen=True, slots=True)
class _Mesh:
    """Panels on which a function's own averages were seen to settle."""

    reach: float
    width: float
    graded: bool

    def rule(self, kinks: Iterable[float], scale: float = 1.0) -> tuple[Array, Array]:
        """Nodes g and probability weights for averages of f(scale g)."""
        breaks = [k / scale for k in kinks] if scale else []
        nodes, weights = _panels(breaks, self.reach, self.width / max(1.0, scale), self.graded)
        return nodes, weights * _density(nodes)


def _settled_mesh(shape: _Shape, spec: str) -> _Mesh:
    """The panels for E f h_k and E f^2; refuses functions that are not finite or not square-integrable."""
    for reach in _COEFFICIENT_REACHES:
        previous = (math.nan, math.nan, False)
        for width, graded in _LEVELS:
            # Half a unit resolves h_k up to degree 1000 beside the function itself.
            mesh = _Mesh(reach, min(width, 0.5), graded)
            # An odd break keeps a kink that was not declared from hiding between two panels.
            nodes, weights = _panels((*shape.kinks, 0.2137), reach, width, graded)
            with np.errstate(all="ignore"):
                values = np.asarray(shape.value(nodes), dtype=np.float64)
                squares = values * values * _density(nodes)
            if not np.isfinite(squares).all():
                where = nodes[~np.isfinite(squares)][0]
                raise ValueError(
                    f"{spec} is not finite at x = {where:.3g}: a function must be finite everywhere"
                )
            power = float(squares @ weights)
            mean = float((values * _density(nodes)) @ weights)
            if power == 0.0 or (
                graded == previous[2]
                and abs(power - previous[1]) <= 1e-13 * power
                and abs(mean - previous[0]) <= 1e-13 * math.sqrt(power)
            ):
                break
            previous = (mean, power, graded)
        else:
            raise ValueError(
                f"the Gaussian averages of {spec} did not settle to 1e-13: it is not square-integrable,"
                " varies too fast, or has kinks that were not found (for a callable, name them:"
                " function(f, kinks=(0.5, …)))"
            )
        if max(squares[:5].max(), squares[-5:].max()) <= 1e-26 * power:
            return mesh
    raise ValueError(
        f"{spec} grows too fast: it is not square-integrable under a Gaussian, so no theory covers it"
    )


def _parity(shape: _Shape) -> tuple[float | None, float | None]:
    """The constant that is all of f's even part and the slope that is all of its odd part, or None."""
    # Between nearly symmetric jumps no sample would see the difference.
    if not np.allclose(shape.kinks, [-k for k in reversed(shape.kinks)], rtol=0, atol=1e-14):
        return None, None
    x = np.linspace(0.0, 6.0, 97)[1:]
    with np.errstate(all="ignore"):
        right, left = np.asarray(shape.value(x)), np.asarray(shape.value(-x))
        even, odd = (right + left) / 2, (right - left) / (2 * x)
        rounding = 1e-15 * (np.abs(right) + np.abs(left) + np.abs(right - left))
    constant, slope = float(even[48]), float(odd[48])
    # Written as "is all close", so that NaN counts as no parity.
    return (
        constant if (np.abs(even - constant) <= rounding).all() else None,
        slope if (np.abs(odd - slope) * x <= rounding).all() else None,
    )


def _mesh_coefficients(shape: _Shape, mesh: _Mesh, scale: Array, count: int) -> Array:
    """Rows E[f(s g) h_k(g)] by quadrature, with the zeros that parity demands exact."""
    out, power = np.zeros((scale.size, count)), np.zeros((scale.size, 1))
    # Where every break is at 0 or there is none, scales within a factor of two share one rule.
    shared = all(k == 0 for k in shape.kinks)
    grain = np.exp2(np.ceil(np.log2(np.maximum(scale, 1.0)))) if shared else scale
    for one in sorted({*grain.tolist()}):
        rows = np.flatnonzero(grain == one)
        nodes, weights = mesh.rule(shape.kinks, float(one))
        for first in range(0, nodes.size, 4096):
            some = slice(first, first + 4096)
            basis = hermite_polynomials(nodes[some], count, normalised=True) * weights[some]
            for start in range(0, rows.size, 256):
                part = rows[start : start + 256]
                with np.errstate(all="ignore"):
                    values = np.asarray(shape.value(np.multiply.outer(scale[part], nodes[some])))
                out[part] += values @ basis.T
                power[part, 0] += np.square(values) @ weights[some]
    level = np.sqrt(power)
    with np.errstate(all="ignore"):
        edge = np.abs(shape.value(np.multiply.outer(scale, [-mesh.reach, mesh.reach])))
    if not (edge * math.exp(-0.25 * mesh.reach**2) <= 1e-13 * level + 1e-300).all():
        raise ValueError(
            f"the function grows too fast for Hermite coefficients at scale {float(scale.max()):.3g}"
        )
    constant, slope = _parity(shape)
    if constant is not None:
        out[:, ::2] = 0.0
        out[:, :1] = constant
    if slope is not None:
        out[:, 1::2] = 0.0
        out[:, 1:2] = slope * scale[:, None]
    # What remains below rounding is set to zero: downstream, a coefficient that is not zero is a spike.
    out[np.abs(out) < 4e-16 * level] = 0.0
    return out


def _checked_moments(shape: _Shape, mesh: _Mesh, scale: Array, shift: Array, spec: str) -> Averages:
    """Averages of a function of which only its values and kinks are known, refined until two levels agree."""
    out = np.empty((4, scale.size))
    todo = np.arange(scale.size)
    for reach in _REACHES:
        with np.errstate(all="ignore"):
            if shape.kinks:
                found = _panel_moments(shape, scale[todo], shift[todo], reach, mesh.graded)
            else:
                found = _trapezoid_moments(shape, scale[todo], shift[todo], reach)
            ends = [np.abs(shape.value(sign * reach * scale[todo] + shift[todo])) for sign in (-1, 1)]
            size = np.where(np.isfinite(found[2]), found[2], 0.0)
            small = np.square(np.maximum(*ends)) * math.exp(-0.5 * reach**2) <= 1e-14 * np.maximum(1.0, size)
        out[:, todo] = found
        lost = todo[small & ~np.isfinite(found).all(axis=0)]
        todo = todo[~small]
        if lost.size or not todo.size:
            break
    if not lost.size and not todo.size:
        return out[0], out[1], out[2], out[3]
    worst = lost[0] if lost.size else todo[0]
    s, t = scale[worst], shift[worst]
    raise UnsettledError(
        f"the Gaussian averages of {spec} did not settle to 1e-12 at scale {s:.3g} and shift {t:.3g}: the"
        " function grows or varies too fast there, or has kinks that were not found"
        " (for a callable, name them: function(f, kinks=(0.5, …)))"
    )


def _disagree(new: Array, old: Array) -> NDArray[np.bool_]:
    """Columns in which two levels differ (or are not numbers)."""
    return np.asarray(~(np.abs(new - old) <= 3e-13 * np.maximum(1.0, np.abs(new))).all(axis=0))


def _trapezoid_moments(shape: _Shape, scale: Array, shift: Array, reach: float) -> Array:
    """Trapezoid sums with steps halved; NaN where two levels never agree."""
    out = np.full((4, scale.size), np.nan)
    # First step: at most 0.5 in g and 0.3 in x. The offset is odd, so that no period is sampled in phase.
    start = np.exp2(np.ceil(np.log2(np.maximum(scale / 0.6, 1.0)))).astype(np.intp)
    for split in np.unique(start):
        rows = np.flatnonzero(start == split)
        step = 0.5 / int(split)
        nodes = np.arange(-reach + 0.37 * step, reach, step)
        old = _trapezoid_sums(shape, scale[rows], shift[rows], nodes, step)
        nodes = nodes + step / 2
        while rows.size and nodes.size <= MAX_RULE:
            new = (old + _trapezoid_sums(shape, scale[rows], shift[rows], nodes, step)) / 2
            bad = _disagree(new, old)
            out[:, rows[~bad]] = new[:, ~bad]
            rows, old = rows[bad], new[:, bad]
            nodes = np.concatenate([nodes - step / 4, nodes + step / 4])
            step /= 2
    return out


def _trapezoid_sums(shape: _Shape, scale: Array, shift: Array, nodes: Array, step: float) -> Array:
    weights = _density(nodes) * step
    out = np.empty((4, scale.size))
    block = max(1, 4 * _BLOCK // nodes.size)
    for start in range(0, scale.size, block):
        part = slice(start, start + block)
        values = shape.value(np.multiply.outer(scale[part], nodes) + shift[part, None])
        out[0, part], out[1, part] = values @ weights, values @ (weights * nodes)
        out[3, part] = values @ (weights * (nodes * nodes - 1))
        out[2, part] = np.square(values) @ weights
    return out


def _panel_moments(shape: _Shape, scale: Array, shift: Array, reach: float, graded: bool) -> Array:
    """Panels between the kinks, seen from g; NaN where two levels never agree."""
    out = np.full((4, scale.size), np.nan)
    kinks = np.array(shape.kinks)
    block = max(1, 4 * _BLOCK // (6 * _PANEL_NODES * (kinks.size + 1)))
    for first in range(0, scale.size, block):
        rows = np.arange(first, min(first + block, scale.size))
        old = np.full((4, rows.size), np.nan)
        panels = 3
        while rows.size and panels * _PANEL_NODES * (kinks.size + 1) <= MAX_RULE:
            unit, unit_weights = _unit_rule(panels, graded)
            s, t = scale[rows, None], shift[rows, None]
            inner = np.clip((kinks - t) / np.maximum(s, 1e-300), -reach, reach)
            edges = np.pad(inner, ((0, 0), (1, 1)), constant_values=((0, 0), (-reach, reach)))
            lengths = np.diff(edges)[..., None]
            nodes = (edges[:, :-1, None] + lengths * unit).reshape(rows.size, -1)
            weights = (lengths * unit_weights).reshape(rows.size, -1) * _density(nodes)
            values = shape.value(s * nodes + t)
            factors = (weights, weights * nodes, weights * values, weights * (nodes * nodes - 1))
            new = np.stack([np.einsum("ij,ij->i", values, w) for w in factors])
            bad = _disagree(new, old)
            out[:, rows[~bad]] = new[:, ~bad]
            rows, old, panels = rows[bad], new[:, bad], 2 * panels
    return out


def _growth(shape: _Shape, kink: float) -> float:
    """p where the function grows like distance^-p towards a kink, from the larger of both sides."""
    steps = max(1.0, abs(kink)) * np.array([1e-6, 1e-8])
    found = 0.0
    with np.errstate(all="ignore"):
        for side in (-1.0, 1.0):
            far, near = np.abs(np.asarray(shape.value(kink + side * steps), dtype=np.float64))
            if not math.isfinite(near):
                return math.inf
            if near > max(10.0, far):
                found = max(found, math.log(near / max(far, 1e-300)) / math.log(100))
    return found


def _check_growth(shape: _Shape, spec: str) -> float:
    """The largest growth at a kink; refuses one that makes E f^2 infinite, which no rule can see by itself."""
    found = 0.0
    for kink in shape.kinks:
        growth = _growth(shape, kink)
        if math.isinf(growth):
            raise ValueError(
                f"{spec} is not finite near x = {kink:.3g}: a function must be finite everywhere"
            )
        # 1/2 up to rounding: then the integral of f^2 is infinite.
        if growth > 0.495:
            raise ValueError(
                f"{spec} is not square-integrable: near x = {kink:.6g} it grows like the distance to the power"
                f" {-growth:.2g}, so no theory covers it"
            )
        found = max(found, growth)
    return found


def _check_twice(shape: _Shape, spec: str, suspects: Iterable[float], growth: float) -> None:
    """Refuse a function whose averages another rule finds otherwise: both of its levels missed something narrow.

    The other rule has panels of 2^-9 with six nodes, halved again and again towards kinks and suspects.
    """
    mesh = _settled_mesh(shape, spec)
    reach = mesh.reach
    edges = [np.arange(-math.ceil(reach), reach, 2.0**-9) + 0.2137, np.array([-reach, reach])]
    for point in (*shape.kinks, *suspects):
        steps = np.exp2(-np.arange(9.0, 46.0)) * max(1.0, abs(point))
        edges.append(np.concatenate([point - steps, [point], point + steps]))
    cuts = np.unique(np.concatenate(edges))
    cuts = cuts[(cuts >= -reach) & (cuts <= reach)]
    unit, unit_weights = np.polynomial.legendre.leggauss(6)
    half = np.diff(cuts)[:, None] / 2
    nodes, weights = (cuts[:-1, None] + half * (1 + unit)).ravel(), (half * unit_weights).ravel()
    first, second = (
        _local_averages(shape, x, w)
        for x, w in ((mesh.rule(shape.kinks)), (nodes, weights * _density(nodes)))
    )
    power = max(float(first[1].sum()), float(second[1].sum()))
    if not math.isfinite(power):
        where = nodes[~np.isfinite(_quiet(shape, nodes))]
        at = f" near x = {where[0]:.3g}" if where.size else ""
        raise ValueError(f"{spec} is not finite{at}: a function must be finite everywhere")
    if not power:
        if np.any(_quiet(shape, nodes)):
            raise ValueError(f"{spec} is so small that its square vanishes: multiply it by a large number")
        return
    tolerance = 1e-6 if growth < 0.1 else 0.05
    gaps = np.abs(first - second) / np.array([[math.sqrt(power)], [power]])
    totals = np.abs((first - second).sum(axis=1)) / np.array([math.sqrt(power), power])
    if not (totals <= tolerance).all():
        where = (int(np.argmax(gaps.max(axis=0))) - gaps.shape[1] // 2) / 2 + 0.25
        raise ValueError(
            f"{spec} varies too fast near x = {where:.3g} for its Gaussian averages: two rules find"
            f" E f^2 = {first[1].sum():.6g} and {second[1].sum():.6g}; widen what is narrow there, and declare"
            " all kinks of a callable (kinks=…)"
        )


def _quiet(shape: _Shape, nodes: Array) -> Array:
    """Values of a function, without a word about those that are not finite."""
    with np.errstate(all="ignore"):
        return np.asarray(shape.value(nodes), dtype=np.float64)


def _local_averages(shape: _Shape, nodes: Array, weights: Array) -> Array:
    """What each half unit of x contributes to E f and E f^2."""
    values = _quiet(shape, nodes)
    with np.errstate(all="ignore"):
        terms = np.stack([values * weights, values * values * weights])
    if not np.isfinite(terms).all():
        terms = np.where(np.isfinite(terms), terms, np.inf)
    cell = np.clip(np.floor(2 * nodes).astype(np.intp) + 80, 0, 159)
    return np.stack([np.bincount(cell, term, 160) for term in terms])


def _vetted(shape: _Shape, spec: str, suspects: Iterable[float] = ()) -> _Shape:
    """The shape, refused if its averages do not exist or cannot be had, and no activation if it jumps.

    `suspects` are points near which the function may have something narrow.
    """
    growth = _check_growth(shape, spec)
    if shape.moments is None:
        _check_twice(shape, spec, suspects, growth)
    else:
        _settled_mesh(shape, spec)
    with np.errstate(all="ignore"):
        for kink in shape.kinks:
            sides = np.asarray(
                shape.value(kink + 1e-7 * max(1.0, abs(kink)) * np.array([-2.0, -1.0, 1.0, 2.0]))
            )
            # A jump is more than the change seen on either side explains.
            if abs(sides[2] - sides[1]) > 1e-4 * max(1.0, abs(sides[1])) + 8 * max(
                np.abs(np.diff(sides)[::2])
            ):
                reason = (
                    f"{spec} can only be a teacher: it jumps at x = {kink:.6g}, which its derivative misses"
                )
                return replace(shape, no_slope=shape.no_slope or reason)
    return shape


def _higher_coefficients(shape: _Shape, scale: Array, shift: Array, count: int) -> Array:
    """E[h_k(g) f(s g + t)] for k = 3 … count - 1, along a new first axis."""
    if shape.corner is not None:
        return shape.corner * _corner_sums(scale, shift, count)[1:]
    return _hermite_sums(shape, scale, shift, count)[3:]


# The rule of `_hermite_sums`: reach in g, spacing of the trapezoid rule, nodes of a panel between kinks.
_SUM_REACH, _SUM_SPACING, _PANEL = 8.5, 0.17, 40


def _hermite_sums(shape: _Shape, scale: Array, shift: Array, count: int) -> Array:
    """E[h_k(g) f(s g + t)] for k < count by one rule: trapezoid, or Gauss-Legendre between the kinks."""
    flat_s, flat_t = scale.ravel(), shift.ravel()
    out = np.empty((count, flat_s.size))
    block = max(1, _BLOCK // 16)
    line = np.arange(-_SUM_REACH, _SUM_REACH + _SUM_SPACING, _SUM_SPACING)
    table = hermite_polynomials(line, count, normalised=True) * (_density(line) * _SUM_SPACING)
    base, base_weights = np.polynomial.legendre.leggauss(_PANEL) if shape.kinks else (line, line)
    for start in range(0, flat_s.size, block):
        part = slice(start, start + block)
        s, t = flat_s[part, None], flat_t[part, None]
        if not shape.kinks:
            out[:, part] = table @ shape.value(s * line + t).T
            continue
        ends = (np.array(shape.kinks) - t) / np.maximum(s, 1e-300)
        inner = np.clip(np.sort(ends, axis=1), -_SUM_REACH, _SUM_REACH)
        edge = np.full((len(s), 1), _SUM_REACH)
        bounds = np.concatenate([-edge, inner, edge], axis=1)
        half = np.diff(bounds, axis=1)[..., None] / 2
        nodes = (half * (base + 1) + bounds[:, :-1, None]).reshape(len(s), -1)
        terms = shape.value(s * nodes + t) * (half * base_weights).reshape(len(s), -1) * _density(nodes)
        before, now = np.zeros_like(nodes), np.ones_like(nodes)
        for k in range(count):
            out[k, part] = (terms * now).sum(axis=1)
            before, now = now, (nodes * now - math.sqrt(k) * before) / math.sqrt(k + 1)
    return out.reshape(count, *scale.shape)
