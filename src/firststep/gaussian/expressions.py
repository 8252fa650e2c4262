"""Expressions such as ``h1 + h2/sqrt(2)``: read against a list of allowed names, never executed."""

import ast
import difflib
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from numpy.polynomial import hermite_e

from firststep.gaussian.averages import _vetted
from firststep.gaussian.rules import Array, Elementwise
from firststep.gaussian.shapes import MAX_HERMITE_NAME, _affine, _builtins, _polynomial, _Shape

MAX_KINKS = 64
MAX_TEXT, MAX_DEPTH = 200, 50
MAX_EXPONENT, MAX_CONSTANT, MAX_COEFFICIENT, MAX_POLYNOMIAL = 20.0, 1e9, 1e60, 30


def _number(value: float) -> str:
    """Shortest spelling that reads back as the same float, without a needless .0."""
    text = repr(float(value))
    return text.removesuffix(".0")


def _series_numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"hermite(…) takes numbers c_0, c_1, … separated by commas, got {text!r}") from None


def _suggest(word: str, choices: Iterable[str]) -> str:
    close = difflib.get_close_matches(word.lower()[:40], list(choices), 1, 0.6)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _known() -> str:
    plain = [n for n in _builtins() if not re.fullmatch(r"h\d+", n)]
    return f"{', '.join(plain)}, h0 … h{MAX_HERMITE_NAME}"


@dataclass(frozen=True, slots=True)
class _Node:
    """An expression: ``op`` is "number", "x", "t1" … "t4", an operator, "neg" or the name of a function."""

    op: str
    args: tuple["_Node", ...] = ()
    number: float = 0.0


_X = _Node("x")
MAX_DIRECTIONS = 4
_DIRECTIONS = tuple(f"t{i}" for i in range(1, MAX_DIRECTIONS + 1))
_CONSTANTS = {"pi": math.pi, "e": math.e}
_OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.Pow: "**",
}
_PRECEDENCE = {"+": 1, "-": 1, "*": 2, "/": 2, "neg": 3, "**": 4}
_TOKEN = re.compile(
    r"\s+|(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)(?![\w.])|(?P<name>[A-Za-z_]\w*)|\*\*|[-+*/(),]",
    re.ASCII,
)


def _refuse(problem: str, variables: str = "x") -> ValueError:
    return ValueError(
        f"{problem}; an expression may use {variables}, pi, e, numbers, + - * / **, parentheses and the functions sqrt,"
        f" exp, log, min, max, {_known()}"
    )


def _parse(text: str, variables: tuple[str, ...] = ()) -> _Node:
    """Read an expression into a tree of known nodes; all else is refused, before or after ``ast`` sees it."""
    allowed = {"x", *variables, *_CONSTANTS, "sqrt", "exp", "log", "min", "max", *_builtins()}
    place = 0
    while place < len(text):
        token = _TOKEN.match(text, place)
        if token is None:
            hint = {"^": " (write powers as **)"}.get(text[place], "")
            if text[place].isdecimal():
                hint = " (write products as 2*x)"
            raise _refuse(
                f"the expression {text!r} has {text[place : place + 12]!r}, which is not allowed{hint}"
            )
        if token["name"] and token["name"] not in allowed:
            raise _refuse(f"unknown name {token['name']!r}{_suggest(token['name'], allowed)} in {text!r}")
        place = token.end()
    try:
        body = ast.parse(" ".join(text.split()), mode="eval").body
        return _convert(body, 0)
    except (SyntaxError, MemoryError, RecursionError):
        raise _refuse(f"the expression {text!r} could not be read") from None


def _convert(node: ast.AST, depth: int) -> _Node:
    if depth > MAX_DEPTH:
        raise _refuse(f"the expression is nested more than {MAX_DEPTH} deep")
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return _Node("number", (), float(value))
        case ast.Name(id="x"):
            return _X
        case ast.Name(id=name) if name in _DIRECTIONS:
            return _Node(name)
        case ast.Name(id=name) if name in _CONSTANTS:
            return _Node(name)
        case ast.Name(id=name) if _degree(name) is not None:
            return _Node(name, (_X,))
        case ast.Name(id=name):
            raise _refuse(f"{name!r} needs an argument, as in {name}(x)")
        case ast.UnaryOp(op=ast.UAdd(), operand=inner):
            return _convert(inner, depth + 1)
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return _Node("neg", (_convert(inner, depth + 1),))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _Node(_OPERATORS[type(op)], (_convert(left, depth + 1), _convert(right, depth + 1)))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if (
            name != "x" and name not in _CONSTANTS and name not in _DIRECTIONS
        ):
            wanted = range(2, 9) if name in ("min", "max") else range(1, 2)
            if len(args) not in wanted:
                count = "two to eight arguments" if name in ("min", "max") else "one argument"
                raise _refuse(f"{name} takes {count}, got {len(args)}")
            return _Node(name, tuple(_convert(a, depth + 1) for a in args))
        case _:
            raise _refuse(f"{ast.unparse(node)!r} is not allowed in an expression")


def _degree(name: str) -> int | None:
    """k for the name of a Hermite polynomial hk."""
    return int(name[1:]) if re.fullmatch(r"h\d+", name) else None


def _spell(node: _Node) -> str:
    """Canonical text: one spelling for all that differ in spaces and needless parentheses."""
    if node.op == "number":
        return _number(node.number)
    if not node.args:
        return node.op
    if node.op == "neg":
        return "-" + _bracket(node.args[0], 3)
    if node.op in _PRECEDENCE:
        rank = _PRECEDENCE[node.op]
        # ** binds to the right, and a minus may follow it: 2**-x needs no bracket.
        left = _bracket(node.args[0], 5 if node.op == "**" else rank)
        right = _bracket(node.args[1], 3 if node.op == "**" else rank + 1)
        return f"{left} {node.op} {right}" if rank == 1 else f"{left}{node.op}{right}"
    if _degree(node.op) is not None and node.args == (_X,):
        return node.op
    return f"{node.op}({', '.join(map(_spell, node.args))})"


def _bracket(node: _Node, rank: int) -> str:
    text = _spell(node)
    return f"({text})" if _PRECEDENCE.get(node.op, 5) < rank else text


def _fold(node: _Node) -> _Node:
    """The tree with every part without x replaced by its number; refuses large numbers and wild exponents."""
    args = tuple(map(_fold, node.args))
    folded = _Node(node.op, args, node.number)
    if node.op == "**" and not (args[1].op == "number" and abs(args[1].number) <= MAX_EXPONENT):
        raise ValueError(
            f"the exponent in {_spell(node)!r} must be a number of size at most {MAX_EXPONENT:g}"
        )
    if node.op == "/" and args[1] == _Node("number"):
        raise ValueError(f"{_spell(node)!r} divides by zero")
    if node.op == "x" or node.op in _DIRECTIONS or not all(child.op == "number" for child in args):
        return folded
    with np.errstate(all="ignore"):
        value = float(_evaluate(folded, np.float64(0.0)))
    if not abs(value) <= MAX_CONSTANT:
        raise ValueError(
            f"{_spell(node)!r} is {value:g}, but a number must be at most {MAX_CONSTANT:g} in size"
        )
    return _Node("number", (), value + 0.0)


def _power(base: Any, exponent: float) -> Any:
    """base**exponent, by multiplication where the exponent is a whole number."""
    if exponent != int(exponent):
        return np.power(base, exponent)
    result, square, left = None, base, abs(int(exponent))
    while left:
        if left & 1:
            result = square if result is None else result * square
        left >>= 1
        if left:
            square = square * square
    if result is None:
        return np.ones_like(base)
    return np.divide(1.0, result) if exponent < 0 else +result


def _primitive(name: str) -> tuple[Elementwise, Elementwise]:
    """Value and slope of a function of one argument."""
    if name == "exp":
        return np.exp, np.exp
    if name == "log":
        return np.log, np.reciprocal
    if name == "sqrt":
        return np.sqrt, lambda u: 0.5 / np.sqrt(u)
    shape = _builtins()[name]
    return shape.value, shape.slope


def _evaluate(node: _Node, x: Any) -> Any:
    """Value of the tree at x; numbers stay Python floats, which do not widen float32 arrays they meet.

    For a tree in t1, t2, … x is the list of their values.
    """
    if node.op == "x":
        return x
    if node.op in _DIRECTIONS:
        return x[_DIRECTIONS.index(node.op)]
    if node.op == "number":
        return node.number
    if node.op in _CONSTANTS:
        return _CONSTANTS[node.op]
    values = [_evaluate(child, x) for child in node.args]
    match node.op:
        case "neg":
            return -values[0]
        case "+":
            return values[0] + values[1]
        case "-":
            return values[0] - values[1]
        case "*":
            return values[0] * values[1]
        case "/":
            return np.divide(values[0], values[1])
        case "**":
            return _power(values[0], values[1])
        case "min":
            return reduce(np.minimum, values)
        case "max":
            return reduce(np.maximum, values)
        case name:
            return _primitive(name)[0](values[0] if hasattr(values[0], "dtype") else np.float64(values[0]))


def _dual(node: _Node, x: Any) -> tuple[Any, Any]:
    """Value and derivative of a folded tree at x, by forward mode."""
    if node.op == "number":
        return node.number, 0.0
    if node.op == "x":
        return x, np.ones_like(x)
    pairs = [_dual(child, x) for child in node.args]
    (u, du) = pairs[0]
    match node.op:
        case "neg":
            return -u, -du
        case "+":
            return u + pairs[1][0], du + pairs[1][1]
        case "-":
            return u - pairs[1][0], du - pairs[1][1]
        case "*":
            v, dv = pairs[1]
            return u * v, du * v + u * dv
        case "/":
            v, dv = pairs[1]
            quotient = np.divide(u, v)
            return quotient, np.divide(du - quotient * dv, v)
        case "**":
            p = pairs[1][0]
            return _power(u, p), _chain(lambda base: p * _power(base, p - 1), u, du) if p else 0.0
        case "min" | "max":
            for v, dv in pairs[1:]:
                first = u <= v if node.op == "min" else u >= v
                u, du = np.where(first, u, v), np.where(first, du, dv)
            return u, du
        case name:
            value, slope = _primitive(name)
            return value(u), _chain(slope, u, du)


def _chain(slope: Elementwise, inner: Any, inner_slope: Any) -> Any:
    """slope(u) u', which is 0 where u rests, even if the slope is infinite there: sqrt(relu(x)) below 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(inner_slope == 0, 0.0, slope(inner) * inner_slope)


def _as_series(node: _Node) -> Array | None:
    """c_k of a folded tree where it is a polynomial of degree at most 30."""
    if node.op == "number":
        return np.array([node.number])
    if node.op == "x":
        return np.array([0.0, 1.0])
    if node.op == "**":
        base, exponent = _as_series(node.args[0]), node.args[1].number
        if base is None or exponent < 0 or exponent != int(exponent):
            return None
        if (base.size - 1) * exponent > MAX_POLYNOMIAL:
            return None
        return np.asarray(hermite_e.hermepow(base, int(exponent), maxpower=None), dtype=np.float64)
    series = [_as_series(child) for child in node.args]
    if any(s is None for s in series):
        return None
    parts = [s for s in series if s is not None]
    degree = _degree(node.op)
    if degree is not None:
        # H_k of a polynomial by the recurrence of H_k.
        if degree * (parts[0].size - 1) > MAX_POLYNOMIAL:
            return None
        before, now = np.zeros(1), np.ones(1)
        for k in range(degree):
            step = hermite_e.hermesub(hermite_e.hermemul(parts[0], now), k * before)
            before, now = now, np.asarray(step, dtype=np.float64)
        return now
    match node.op:
        case "neg":
            return np.asarray(-parts[0])
        case "+":
            return np.asarray(hermite_e.hermeadd(parts[0], parts[1]))
        case "-":
            return np.asarray(hermite_e.hermesub(parts[0], parts[1]))
        case "*" if parts[0].size + parts[1].size - 2 <= MAX_POLYNOMIAL:
            return np.asarray(hermite_e.hermemul(parts[0], parts[1]))
        case "/" if parts[1].size == 1:
            # What is beyond all numbers is refused by its size.
            with np.errstate(over="ignore"):
                return np.asarray(parts[0] / parts[1][0])
        case "identity":
            return parts[0]
        case "cubic":
            return _as_series(_Node("**", (node.args[0], _Node("number", (), 3.0))))
    return None


def _as_affine(node: _Node) -> tuple[float, str, float, float, float] | None:
    """(A, name, a, b, C) where the tree is A name(a x + b) + C with a built-in name."""
    if node.op in _builtins():
        inner = _as_series(node.args[0])
        return (
            None
            if inner is None or inner.size != 2
            else (1.0, node.op, float(inner[1]), float(inner[0]), 0.0)
        )
    if node.op == "neg":
        found = _as_affine(node.args[0])
        return found and (-found[0], *found[1:4], -found[4])
    if node.op in ("+", "-", "*", "/"):
        left, right = node.args
        if right.op == "number":
            found, value = _as_affine(left), right.number
        elif left.op == "number" and node.op != "/":
            found, value = _as_affine(right), left.number
        else:
            return None
        if found is None:
            return None
        match node.op:
            case "*":
                return (found[0] * value, *found[1:4], found[4] * value)
            case "/":
                return (found[0] / value, *found[1:4], found[4] / value)
            case "+":
                return (*found[:4], found[4] + value)
        return (
            (*found[:4], found[4] - value)
            if right.op == "number"
            else (-found[0], *found[1:4], value - found[4])
        )
    return None


def _shape_of(tree: _Node, spec: str) -> _Shape:
    """The most that is known of a folded tree: a polynomial, a built-in of a x + b, or values and kinks."""
    with np.errstate(all="ignore"):
        series = _as_series(tree)
        affine = _as_affine(tree) if series is None else None
    if series is not None:
        if not (np.abs(series) <= MAX_COEFFICIENT).all():
            raise ValueError(f"the Hermite coefficients of {spec} must be at most {MAX_COEFFICIENT:g}")
        return _polynomial(series)
    if affine is not None and affine[0]:
        return _vetted(_affine(_builtins()[affine[1]], affine[0], *affine[2:]), spec)

    def slope(x: Any) -> Any:
        return _dual(tree, x)[1] + np.zeros_like(x)

    return _vetted(_Shape(lambda x: _evaluate(tree, x), slope, _find_kinks(tree)), spec, _find_suspects(tree))


def _find_kinks(tree: _Node) -> tuple[float, ...]:
    """Points where some part of the expression has a kink or a singularity."""
    found: set[float] = set()
    todo = [tree]
    while todo:
        node = todo.pop()
        todo.extend(node.args)
        if node.op in ("min", "max"):
            for i, one in enumerate(node.args):
                for other in node.args[i + 1 :]:
                    found.update(_roots(_Node("-", (one, other)), 0.0))
        elif node.op in ("sqrt", "log") or (node.op == "**" and node.args[1].number % 1):
            found.update(_roots(node.args[0], 0.0))
        elif node.op in _builtins():
            for point in _builtins()[node.op].kinks:
                found.update(_roots(node.args[0], point))
    merged: list[float] = []
    for point in sorted(found):
        if not merged or point - merged[-1] > 1e-9 * max(1.0, abs(point)):
            merged.append(point)
    if len(merged) > MAX_KINKS:
        raise ValueError(f"the expression has {len(merged)} kinks, more than the {MAX_KINKS} allowed")
    return tuple(merged)


def _find_suspects(tree: _Node) -> tuple[float, ...]:
    """Points near which a part may be narrow: where the argument of a function or a divisor is 0 or turns."""
    found: set[float] = set()
    todo = [tree]
    while todo:
        node = todo.pop()
        todo.extend(node.args)
        inner = (
            node.args[1] if node.op == "/" else node.args[0] if node.args and node.op not in "+-*" else None
        )
        series = None if inner is None else _as_series(inner)
        if series is None or series.size < 2:
            continue
        for polynomial in (series, hermite_e.hermeder(series)):
            roots = hermite_e.hermeroots(np.trim_zeros(polynomial, "b")) if polynomial.any() else np.empty(0)
            # The real part also of complex roots: 1/(1 + 1e6 x**2) has its bump between two of them.
            found.update(float(r.real) for r in np.asarray(roots) if abs(r.real) < 40)
    return tuple(sorted(found)[:MAX_KINKS])


def _roots(node: _Node, level: float) -> list[float]:
    """Where the tree crosses a level: all roots of polynomials, else sign changes on a grid of |x| <= 40."""
    series = _as_series(node)
    if series is not None:
        shifted = np.trim_zeros(hermite_e.hermesub(series, [level]), "b")
        if shifted.size == 2:
            return [float(-shifted[0] / shifted[1]) + 0.0]
        roots = hermite_e.hermeroots(shifted) if shifted.size > 2 else np.empty(0)
        return [float(r.real) + 0.0 for r in np.asarray(roots) if abs(r.imag) <= 1e-6 * max(1.0, abs(r))]
    with np.errstate(all="ignore"):
        grid = np.arange(-2560, 2561) / 64
        signs = np.sign(_evaluate(node, grid) - level)
        at = np.flatnonzero(signs[:-1] * signs[1:] < 0)
        low, high, side = grid[at], grid[at + 1], signs[at]
        for _ in range(60):
            middle = (low + high) / 2
            same = np.sign(_evaluate(node, middle) - level) == side
            low, high = np.where(same, middle, low), np.where(same, high, middle)
    # A zero on the grid counts when it stands alone; the ends of a stretch of zeros are kinks of inner parts.
    alone = np.flatnonzero((signs[1:-1] == 0) & (signs[:-2] != 0) & (signs[2:] != 0)) + 1
    return [*grid[alone].tolist(), *high.tolist()]
