"""A field of a setting is named in its own part and nowhere else; what it means is asked of its law."""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import firststep
from firststep.setting import FIELDS

PACKAGE = Path(firststep.__file__).parent
NAMES = {field.name for field in FIELDS}
# Names that mean something else too (a table's rows, a data set's inputs): as keywords and attributes of a problem
# they are followed, as bare words and texts they are not.
COMMON = {"activation", "teacher", "rows", "readout", "inputs", "alignment", "step_sample", "fit_sample"}
VALUES = {value for field in FIELDS for value in field.choices or ()}
# Values that are also words of something else: compared with a field they are followed.
COMMON_VALUES = {"gaussian", "constant", "sign", "gradient", "step", "same", "fresh"}

# Outside setting/: functions and numbers that equations are about, a starting output taken away. Shorter is better.
MAY_NAME = {
    "activation": ("simulate/", "theory/", "explorer/views.py", "explorer/network.py"),
    "teacher": ("simulate/", "theory/", "explorer/views.py", "explorer/state.py"),
    "noise_std": ("simulate/draw.py", "diagnose/"),
    "initial_output": ("theory/unified.py", "theory/spectra/feature_bulk.py"),
    "inputs": ("diagnose/curve.py",),
    "alignment": ("diagnose/curve.py",),
}


def _last(node: ast.expr) -> str:
    """The last word of an expression: ``problem`` of ``self.problem``."""
    match node:
        case ast.Name(id=word) | ast.Attribute(attr=word):
            return word
        case ast.Call(func=func):
            return _last(func)
    return ""


def named(source: str) -> Iterator[tuple[str, int]]:
    """Fields that a file names, with the line."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Attribute(attr=word, value=owner) if word in NAMES and "problem" in _last(owner).lower():
                yield word, node.lineno
            case ast.Call(func=func, keywords=keywords) if _last(func) in ("Problem", "replaced"):
                yield from ((key.arg, node.lineno) for key in keywords if key.arg in NAMES)
            case ast.Constant(value=str(word)) | ast.Name(id=word) | ast.arg(arg=word) if (
                word in NAMES - COMMON
            ):
                yield word, node.lineno


def compared(source: str) -> Iterator[tuple[str, int]]:
    """Values of a field with which a file compares something, with the line."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Compare):
            continue
        sides = [node.left, *node.comparators]
        about = any(_last(side) in NAMES for side in sides)
        for side in sides:
            for part in ast.walk(side):
                value = part.value if isinstance(part, ast.Constant) else None
                if isinstance(value, str) and value in (VALUES if about else VALUES - COMMON_VALUES):
                    yield value, node.lineno


def violations(sources: Mapping[str, str]) -> list[str]:
    """Sentences about files that name a field, or compare a value, which belongs to setting/."""
    wrong = []
    for path, source in sources.items():
        if path.startswith("setting/"):
            continue
        wrong += [
            f"{path}:{line} names {word}: make it of FIELDS, or ask the problem for the law"
            for word, line in named(source)
            if not path.startswith(MAY_NAME.get(word, ()))
        ]
        wrong += [
            f"{path}:{line} compares with {value!r}: ask the law what it means"
            for value, line in compared(source)
        ]
    return wrong


def test_no_field_is_named_outside_its_part() -> None:
    sources = {file.relative_to(PACKAGE).as_posix(): file.read_text() for file in PACKAGE.rglob("*.py")}
    assert "cli/options.py" in sources
    assert violations(sources) == []


def test_every_permission_is_used() -> None:
    for word, places in MAY_NAME.items():
        for place in places:
            files = [file for file in PACKAGE.rglob("*.py") if f"firststep/{place}" in file.as_posix()]
            assert any(word == found for file in files for found, _ in named(file.read_text())), (word, place)


@pytest.mark.parametrize(
    "source",
    [
        "problem.readout",
        "self.problem.rows",
        "Problem('relu', 'h1', inputs='power(1)')",
        "problem.replaced(alignment='typical')",
        "options['initial_output']",
        "def f(noise_std): pass",
        "law.name == 'order_one'",
        "problem.readout_law != 'rademacher'",
        "state.readout == 'gaussian'",
        "state.step_rule not in ('gradient', 'sign')",
    ],
)
def test_a_field_named_elsewhere_is_found(source: str) -> None:
    assert violations({"report.py": source})
    assert not violations({"setting/network.py": source})


@pytest.mark.parametrize(
    "source",
    ["outcome.rows()", "model.readout", "{'rows': rows}", "'gaussian' in extras", "kind == 'gradient'"],
)
def test_other_meanings_of_the_words_pass(source: str) -> None:
    assert not violations({"report.py": source})


def test_a_declaration_is_complete() -> None:
    for field in FIELDS:
        assert field.kind in ("function", "number", "choice", "words")
        assert field.part in ("network", "teacher", "inputs", "training", "fit")
        assert field.help.endswith(".")
        assert (field.kind == "choice") == bool(field.choices)
        for value in field.examples or field.choices or ():
            assert field.plain(field.read(value)) == value
        if not field.required:
            assert field.read(field.default) == field.default
            assert field.titled(field.default) == field.unsaid
