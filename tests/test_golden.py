"""Numbers agree with the golden file on a part of its cases; benchmarks/golden.py checks them all."""

import copy
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from firststep.theory import coefficients, ladder, rest, step_law

HERE = Path(__file__).resolve().parent
FILE = HERE / "data" / "golden.json"
BEFORE = HERE / "data" / "golden_before.json.gz"
# Of each group every so many cases: 60 predictions, 10 simulations, 4 spectra and 3 fits.
EVERY = {"predictions": 5, "simulations": 4, "spectra": 8, "fits": 4}
# Where the libraries round otherwise than when the file was made. Single precision is left out there.
PORTABLE = {"predictions": 1e-7, "simulations": 1e-6, "spectra": 1e-6, "fits": 1e-5}


def _script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("golden", HERE.parent / "benchmarks" / "golden.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


golden = _script()


@pytest.mark.parametrize("group", EVERY)
def test_numbers_are_as_they_were(group: str) -> None:
    if group == "fits":
        pytest.importorskip("sklearn")
    exact = golden.same_arithmetic(FILE)
    entries = golden.load(FILE)[group][:: EVERY[group]]
    if not exact:
        entries = [entry for entry in entries if entry["case"]["arguments"].get("dtype") != "float32"]
    tolerance = (golden.TOLERANCES if exact else PORTABLE)[group]
    found = golden.checked(group, entries, tolerance)
    assert found.numbers > 100
    assert found.accepted(tolerance), found


@pytest.mark.parametrize(
    ("group", "name"),
    [
        ("predictions", "train_error"),
        ("simulations", "test_error"),
        ("spectra", "edges"),
        ("fits", "spectrum"),
    ],
)
def test_changed_number_is_rejected(group: str, name: str) -> None:
    tolerance = golden.TOLERANCES[group]
    values = golden.load(FILE)[group][0]["values"]
    changed = copy.deepcopy(values)
    assert golden.compared(values, changed, tolerance) == (0.0, "", 0, len(list(golden.leaves(values))))

    row = changed[name]
    while isinstance(row[-1], list):
        row = row[-1]
    row[-1] *= 1.0000001
    found = golden.compared(values, changed, tolerance)
    assert not found.accepted(tolerance)
    assert found.where.startswith(name)
    assert found.unequal == 1
    assert found.largest == pytest.approx(1e-7, rel=1e-6)


def test_missing_numbers_and_errors_are_rejected() -> None:
    values = {"train_error": [[0.5, 0.6]], "weights_top": "inf"}
    assert not golden.compared(values, {"train_error": [[0.5, 0.6]]}, 1e-6).accepted(1e-6)
    assert not golden.compared(values, {**values, "train_error": [[0.5]]}, 1e-6).accepted(1e-6)
    assert not golden.compared(values, {**values, "weights_top": 3.0}, 1e-6).accepted(1e-6)
    assert not golden.compared(values, {"raises": "ValueError"}, 1e-6).accepted(1e-6)
    # What is new does not matter.
    assert golden.compared(values, {**values, "more": 1.0}, 1e-6).accepted(1e-6)


def test_what_has_changed_since_the_setting_was_made_of_parts_has_a_reason() -> None:
    changelog = " ".join((HERE.parent / "CHANGELOG.md").read_text(encoding="utf-8").split())
    told = changelog[changelog.index("### Changed numbers") :]
    found = golden.since(BEFORE, FILE)
    assert sum(cases for cases, _, _ in found.values()) == 382
    for kind, (_, beyond, largest) in found.items():
        if kind in golden.REASONS:
            assert golden.REASONS[kind] in told
            assert beyond > 0
        else:
            assert (beyond, largest) == (0, 0.0)


def test_files_of_other_cases_are_not_compared(tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text(FILE.read_text().replace('"noise_std":0.2', '"noise_std":0.3', 1))
    with pytest.raises(ValueError, match="another case"):
        golden.since(BEFORE, other)


def _forget() -> None:
    """Laws and geometries that were made before a term was taken out, or put back."""
    for cached in (rest.rest_law, rest.noise_covariance, coefficients.geometry_of):
        cached.cache_clear()


# What the unified theory counts of the rest of the gradient that it did not count in golden_before.json.gz, and how to
# take it out. A change of the theory that means to change these numbers adds a line.
ADDED = {
    "labels that n0 samples contain": (rest, "reach_of", lambda _count: rest.REACH),
    "a remainder that is larger along M's own directions": (
        rest,
        "noise_shares",
        lambda *_moments: np.array([0.0, 0.0, 1.0]),
    ),
    "the gradient's part along each row": (
        step_law,
        "radial_parts",
        lambda problem, kept: (2 * float(problem.activation.hermite(3)[2]) * (kept == "structured"), 0.0),
    ),
    "a spike that grows with the length of its row": (step_law, "length_pull", lambda _problem, _kept: 0.0),
    "rows that the output they make shortens": (
        step_law,
        "unlearned_length",
        lambda _problem, _sizes, _kept, u: 0 * u,
    ),
}


def _structured() -> list[dict]:
    """Every sixth case of the theory that was changed."""
    entries = [e for e in golden.load(BEFORE)["predictions"] if "raises" not in e["values"]]
    return [e for e in entries if golden.kind_of("predictions", e["case"]) == "structured rest"][::6]


def _errors(entry: dict) -> dict:
    """The same case with its errors alone."""
    values = {name: value for name, value in entry["values"].items() if name in ("train_error", "test_error")}
    return {**entry, "values": values}


@pytest.mark.parametrize("kept", [None, *ADDED])
def test_without_what_was_added_the_theory_gives_the_numbers_of_before(
    kept: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, (module, function, replacement) in ADDED.items():
        if name != kept:
            monkeypatch.setattr(module, function, replacement)
    # Nodes are others now, so that errors are compared which are resolved further than by default.
    monkeypatch.setattr(ladder, "TOLERANCE", 1e-9)
    # The series of small spikes was summed for all neurons, however long their rows.
    monkeypatch.setattr(coefficients, "SMALL_EXCESS", np.inf)
    _forget()
    try:
        entries = [_errors(entry) if kept is None else entry for entry in _structured()]
        found = [golden.checked("predictions", [entry], 1e-12) for entry in entries]
    finally:
        _forget()
    assert len(found) == 15
    if kept is None:
        asked = [float(entry["case"]["arguments"].get("tolerance", 0.0)) for entry in entries]
        assert all(one.largest < max(1e-7, least) for one, least in zip(found, asked, strict=True))
        assert sum(one.largest < 1e-8 for one in found) >= 12
    else:
        assert max(one.largest for one in found) > 1e-4
