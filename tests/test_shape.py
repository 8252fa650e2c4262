"""No function is longer than a screen or takes more than a hand and a half of arguments."""

import ast
from collections.abc import Iterator
from pathlib import Path

import firststep

PACKAGE = Path(firststep.__file__).parent
MOST_LINES, MOST_PARAMETERS = 60, 7

# Public doors, which name everything that can be asked of them.
DOORS = {
    "compare.py:compare",
    "diagnose/curve.py:learning_curve",
    "diagnose/examine.py:diagnose",
    "estimator/features.py:OneStepFeatures.__init__",
    "estimator/fit.py:OneStep.__init__",
    "experiment/runner.py:run",
    "simulate/__init__.py:estimate_memory",
    "simulate/__init__.py:simulate",
    "simulate/replica.py:run_replica",
    "simulate/spectra.py:simulate_spectrum",
    "theory/__init__.py:predict",
    "theory/size_maps.py:predict_map",
    "theory/spectra/spectrum.py:predict_spectrum",
}
# What is still too long or too wide, with the most that it may be. These lists only become shorter.
LONG: dict[str, int] = {}
WIDE: dict[str, int] = {}


def functions(source: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Functions and methods of a file, a method as ``Class.method``; overloads are no functions."""

    def inside(node: ast.AST, owner: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
        for child in ast.iter_child_nodes(node):
            name = getattr(child, "name", "")
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                if not any(getattr(mark, "id", "") == "overload" for mark in child.decorator_list):
                    yield owner + name, child
                yield from inside(child, f"{owner}{name}.")
            else:
                yield from inside(child, f"{owner}{name}." if isinstance(child, ast.ClassDef) else owner)

    yield from inside(ast.parse(source), "")


def lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of code, without the docstring."""
    first = node.body[0]
    told = (first.end_lineno or 0) - first.lineno + 1 if ast.get_docstring(node) is not None else 0
    return (node.end_lineno or 0) - node.lineno + 1 - told


def parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Named parameters, without the object itself."""
    names = [arg.arg for arg in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def measured() -> dict[str, tuple[int, int]]:
    """Lines and parameters of every function of the package."""
    found = {}
    for file in PACKAGE.rglob("*.py"):
        path = file.relative_to(PACKAGE).as_posix()
        for name, node in functions(file.read_text()):
            found[f"{path}:{name}"] = (lines(node), parameters(node))
    return found


def violations(found: dict[str, tuple[int, int]]) -> list[str]:
    """Sentences about functions that are too long or take too many parameters."""
    wrong = []
    for where, (length, count) in found.items():
        if length > LONG.get(where, MOST_LINES):
            wrong.append(f"{where} has {length} lines of code, at most {MOST_LINES}: which noun is missing?")
        if count > WIDE.get(where, MOST_PARAMETERS) and where not in DOORS:
            wrong.append(f"{where} has {count} parameters, at most {MOST_PARAMETERS}: which belong together?")
    return wrong


def test_functions_are_short_and_take_few_parameters() -> None:
    found = measured()
    assert len(found) > 500
    assert violations(found) == []


def test_long_and_wide_functions_are_found() -> None:
    body = "\n".join(f"    x{i} = {i}" for i in range(60))
    source = f"class A:\n  def wide(self, a, b, c, d, e, f, *, g, h): pass\ndef long():\n    'doc'\n{body}\n"
    found = {f"a.py:{name}": (lines(node), parameters(node)) for name, node in functions(source)}
    assert found == {"a.py:A.wide": (1, 8), "a.py:long": (61, 0)}
    assert len(violations(found)) == 2
    assert not violations({"a.py:fine": (60, 7)})
