"""What the fuzzing draws from: expressions, experiment files, tables, options and numbers, right and wrong ones."""

import math
from typing import Any

from hypothesis import strategies as st

NAMES = ("relu", "tanh", "erf", "gelu", "softplus", "sigmoid", "abs", "sign", "sin", "cos", "h1", "h2", "h3")
WORDS = (
    *NAMES,
    "x",
    "pi",
    "e",
    "sqrt",
    "exp",
    "log",
    "min",
    "max",
    "__import__",
    "lambda",
    "True",
    "h99",
    "eval",
)


def numbers() -> st.SearchStrategy[str]:
    """Numbers as people and machines write them, with those that break things."""
    odd = [
        "0",
        "-0.0",
        "1e308",
        "1e-308",
        "1e999",
        "nan",
        "inf",
        "0x10",
        "1_000",
        "1e",
        ".",
        "٣",
        "9" * 30,
        "1" * 5000,
    ]
    return st.one_of(
        st.integers(-1000, 1000).map(str),
        st.floats(-1e3, 1e3).map(repr),
        st.floats().map(repr),
        st.sampled_from(odd),
    )


def expressions() -> st.SearchStrategy[str]:
    """Expressions that parse, most of them with averages."""
    leaves = st.one_of(
        st.just("x"),
        st.sampled_from(["pi", "e", "h1", "h2", "h3"]),
        st.floats(-5, 5).map(lambda v: f"{v:.3g}"),
    )

    def grown(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        return st.one_of(
            st.tuples(inner, st.sampled_from(["+", "-", "*", "/"]), inner).map(
                lambda t: f"({t[0]} {t[1]} {t[2]})"
            ),
            st.tuples(inner, st.sampled_from(["2", "3", "0.5", "-1"])).map(lambda t: f"({t[0]})**{t[1]}"),
            st.tuples(st.sampled_from([*NAMES[:10], "sqrt", "exp", "log"]), inner).map(
                lambda t: f"{t[0]}({t[1]})"
            ),
            st.tuples(st.sampled_from(["min", "max"]), inner, inner).map(lambda t: f"{t[0]}({t[1]}, {t[2]})"),
        )

    return st.recursive(leaves, grown, max_leaves=6)


def hostile_expressions() -> st.SearchStrategy[str]:
    """Texts made of the same pieces in any order, and of any characters."""
    pieces = st.sampled_from([*WORDS, *"+-*/()[]{},.:;^=<>!'\"\\ \n\t", "**", "//", "1e9", "2", ".__class__"])
    return st.one_of(
        st.lists(pieces, max_size=30).map("".join),
        st.text(max_size=40),
        expressions().map(lambda text: text[1:]),
    )


def toml_values() -> st.SearchStrategy[str]:
    """Values of a TOML file, of every type."""
    plain = st.one_of(
        st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=12).map(quoted),
        st.integers(-(10**25), 10**25).map(str),
        st.floats(allow_nan=False, allow_infinity=False).map(repr),
        st.sampled_from(["true", "nan", "inf", "-0.0", "1979-05-27", "[]", "{}", "[[1]]", '"relu"', '"h1"']),
        st.just("{ start = 0.0, stop = 0.5, count = 3 }"),
    )
    return st.one_of(plain, st.lists(plain, max_size=3).map(lambda found: f"[{', '.join(found)}]"))


def quoted(text: str) -> str:
    """A TOML text."""
    escaped = "".join(f"\\u{ord(c):04x}" if ord(c) < 32 or ord(c) == 127 else c for c in text)
    return '"' + escaped.replace('"', "\\u0022") + '"' if "\\" not in text else '"\\\\"'


SECTIONS: dict[str, tuple[str, ...]] = {
    "": ("title", "description", "reference", "compare"),
    "problem": ("activation", "teacher", "noise_std", "rows", "readout", "initial_output", "typo"),
    "sizes": ("n_samples", "dim", "width", "n_step_samples", "phi", "psi", "samples_per_width"),
    "sweep": (
        "step_exponent",
        "step_size",
        "ridge",
        "ridge_cui",
        "n_samples",
        "noise_std",
        "activation",
        "zip",
    ),
    "simulation": ("replicas", "seed", "dtype", "test", "n_test", "extras", "target_stderr", "max_replicas"),
    "spectra": ("of", "replicas", "seed", "curve"),
}


@st.composite
def experiment_files(draw: st.DrawFn, text: str) -> str:
    """An experiment file with a few lines changed, added or taken away."""
    lines = text.splitlines()
    for _ in range(draw(st.integers(1, 3))):
        section = draw(st.sampled_from(sorted(SECTIONS)))
        key = draw(st.sampled_from(SECTIONS[section]))
        line = f"{key} = {draw(toml_values())}"
        start = (
            0 if not section else next((i + 1 for i, old in enumerate(lines) if old == f"[{section}]"), None)
        )
        if start is None:
            lines += [f"[{section}]", line]
            continue
        there = next((i for i in range(start, len(lines)) if lines[i].startswith(f"{key} =")), None)
        if there is not None and draw(st.booleans()):
            lines[there] = line
        elif there is not None:
            del lines[there]
        else:
            lines.insert(start, line)
    return "\n".join(lines)


@st.composite
def settings(draw: st.DrawFn) -> dict[str, Any]:
    """Valid problems of every size: ratios .01 to 100, ridges 1e-8 to 1e6, steps -1 to .6."""
    n = int(10 ** draw(st.floats(1, 9)))
    ratio = st.floats(-2, 2).map(lambda p: 10.0**p)
    return {
        "activation": draw(
            st.sampled_from(["relu", "tanh", "erf", "gelu", "softplus", "sin(x)", "x + 0.3*h3", "abs"])
        ),
        "teacher": draw(
            st.sampled_from(["h1", "h2", "h1 + h2/sqrt(2)", "tanh(2*x)", "sign(x)", "h3", "relu"])
        ),
        "noise_std": draw(st.sampled_from([0.0, 0.1, 1.0, 30.0])),
        "n_samples": n,
        "dim": max(2, round(n * draw(ratio))),
        "width": max(2, round(n * draw(ratio))),
        "step_exponent": draw(st.floats(-1, 0.6)),
        "ridge": 10.0 ** draw(st.floats(-8, 6)),
    }


def cells() -> st.SearchStrategy[str]:
    """Cells of a table."""
    return st.one_of(
        st.floats(-1e3, 1e3).map(lambda v: f"{v:.4g}"),
        st.sampled_from(["", "nan", "1e300", "-1e200", "yes", "no", "1e12", "0", '"a,b"', "é"]),
    )


@st.composite
def tables(draw: st.DrawFn) -> str:
    """A CSV table with a target y, wild cells, and names that repeat."""
    count = draw(st.integers(1, 4))
    names = draw(st.lists(st.sampled_from(["a", "b", "c", "a b", "y", ""]), min_size=count, max_size=count))
    rows = draw(st.integers(0, 40))
    column = [draw(st.one_of(st.just(None), cells())) for _ in range(count)]

    def row(i: int) -> str:
        made = [str(math.sin(7.0 * i + j)) if cell is None else cell for j, cell in enumerate(column)]
        return ",".join([*made, str(i % 5)])

    lines = [",".join([*names, "y"]), *map(row, range(rows))]
    if rows:
        lines[draw(st.integers(1, rows))] = ",".join(draw(cells()) for _ in range(count + 1))
    return "\n".join(lines) + "\n"
