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
from firststep.gaussian.shapes import _Shape

MAX_RULE = 20_000


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
                " varies too fast, or has kinks that were not declared (a callable takes kinks=(…))"
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
    for one in np.unique(grain):
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
    raise ValueError(
        f"the Gaussian averages of {spec} did not settle to 1e-12 at scale {s:.3g} and shift {t:.3g}: the"
        " function grows or varies too fast there, or has kinks that were not declared"
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


def _vetted(shape: _Shape, spec: str) -> _Shape:
    """The shape, refused if its averages do not exist, and kept from being an activation if it jumps."""
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
