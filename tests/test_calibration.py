"""The calibration: problems that depend on their seed alone, honest means, and verdicts that can be wrong."""

import importlib
import math
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from firststep import simulate

FOLDER = Path(__file__).parent.parent / "benchmarks"
pytestmark = pytest.mark.skipif(not FOLDER.exists(), reason="needs the benchmarks of the repository")


@pytest.fixture(scope="module")
def scripts():
    """The three files of the calibration, imported as the command does."""
    sys.path.insert(0, str(FOLDER))
    try:
        return SimpleNamespace(
            problems=importlib.import_module("calibration_problems"),
            draws=importlib.import_module("calibration_draws"),
            all=importlib.import_module("calibration"),
        )
    finally:
        sys.path.remove(str(FOLDER))


@pytest.mark.parametrize("kind", ["single", "degrees", "covariance", "steps"])
def test_a_problem_depends_on_kind_seed_and_number_alone(scripts, kind):
    case = scripts.problems.case
    found = [case(kind, 5, index) for index in range(6)]
    assert [case(kind, 5, index).to_dict() for index in (3, 0)] == [found[3].to_dict(), found[0].to_dict()]
    assert case(kind, 6, 3).to_dict() != found[3].to_dict()
    assert len({str(one.to_dict()) for one in found}) == 6
    for one in found:
        assert scripts.problems.Case.from_dict(one.to_dict()) == one
        assert 0 <= one.step_exponent <= 0.5


def test_the_widened_kinds_are_as_wide_as_they_say(scripts):
    cases = [scripts.problems.case("single", 7, index) for index in range(60)]
    ratios = [one.sizes.step_ratio for one in cases]
    assert 2 < max(ratios) <= 3.1
    assert sum(one.sizes.n_step_samples != one.sizes.n_samples for one in cases) > 30
    specs = " ; ".join(one.problem.activation.spec for one in cases)
    assert "h3" in specs
    assert "*x" in specs
    small = [scripts.problems.case("degrees", 7, index).sizes for index in range(60)]
    assert min(sizes.dim for sizes in small) < 40
    assert max(sizes.n_samples / sizes.dim for sizes in small) > 20


def test_twice_the_size_keeps_ratios_and_spikes(scripts):
    one = scripts.problems.case("steps", 5, 0)
    two = one.scaled(2.0)
    assert two.sizes.sample_ratio == pytest.approx(one.sizes.sample_ratio)
    for before, after in zip((one.step_exponent, *one.later), (two.step_exponent, *two.later), strict=True):
        spikes = [
            case.sizes.step_size(exponent) / math.sqrt(case.sizes.width)
            for case, exponent in ((one, before), (two, after))
        ]
        assert spikes[1] == pytest.approx(spikes[0])


def test_draws_have_the_mean_of_the_package_simulation(scripts, tmp_path):
    Case, Problem, Sizes = (getattr(scripts.problems, name) for name in ("Case", "Problem", "Sizes"))
    problem = Problem("relu", "h1 + h2/sqrt(2)", noise_std=0.4, rows="sphere", initial_output="order_one")
    case = Case(0, problem, Sizes(90, 40, 60, 70), 0.35, 0.05)
    path = tmp_path / "draws.jsonl"
    scripts.draws.simulate("single", 9, [case], path, most=160)
    ((stored, draws),) = scripts.draws.read(path).values()
    assert stored == case
    expected = simulate(
        problem, case.sizes, step_exponents=0.35, ridges=0.05, replicas=400, seed=1, workers=1, progress=False
    )
    for name in ("test_error", "train_error"):
        mean, error = scripts.draws.mean_of(draws, name)
        other = float(expected.stderr[name][0, 0])
        assert abs(mean - float(expected.values[name][0, 0])) < 4 * math.hypot(error, other)
        plain = np.std([draw[name][0] for draw in draws], ddof=1) / math.sqrt(len(draws))
        assert error < plain
    again = len(draws)
    scripts.draws.simulate("single", 9, [case], path, most=again)
    assert len(scripts.draws.read(path)[0][1]) == again


def row(difference, stderr=0.004, bar=0.0, index=0):
    return {
        "index": index,
        "test_error": 1.0,
        "test_error_stderr": stderr,
        "test_error_difference": difference,
        "test_error_distance": difference / stderr,
        "test_error_bar": bar,
        "test_error_inside": abs(difference) <= bar + 2 * stderr,
    }


@pytest.mark.parametrize(
    ("half", "own", "twice", "verdict"),
    [
        (0.08, 0.04, 0.02, "shrinks"),
        (0.057, 0.04, 0.028, "shrinks"),
        (0.04, 0.04, 0.04, "stays"),
        (-0.05, -0.048, -0.053, "stays"),
        (0.022, 0.018, 0.015, "unclear"),
    ],
)
def test_a_difference_shrinks_or_stays(scripts, half, own, twice, verdict):
    sizes = {"": row(own), "half": row(half), "twice": row(twice)}
    assert scripts.all.classified(sizes) == verdict
    assert scripts.all.classified({"": row(own)}) == "not followed"


def test_coverage_of_the_bar(scripts):
    rows = [row(0.001, bar=0.01), row(0.017, bar=0.01), row(-0.03, bar=0.01), row(0.05, bar=0.02)]
    found = scripts.all.summary(rows)
    assert found["inside_bar"] == 0.5
    assert found["median_bar"] == pytest.approx(0.01)
    assert found["beyond_4"] == 0.75
    assert scripts.all.summary([row(0.001)])["inside_bar"] is None
    assert scripts.all.summary([{"refused": "no"}]) == {"problems": 0}


def test_the_report_writes_what_was_run(scripts, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    names = {"RESULTS": tmp_path, "SUMMARY": tmp_path / "s.json", "PAGE": tmp_path / "p.md"}
    for name, path in (names | {"FIGURE": tmp_path / "f.svg"}).items():
        monkeypatch.setattr(scripts.all, name, path)
    monkeypatch.setattr(scripts.all, "LARGEST_STDERR", 0.1)
    before, after = "# Page\n\n", "\n\n## Method\n"
    names["PAGE"].write_text(f"{before}{scripts.all.BEGIN}\nold numbers\n{scripts.all.END}{after}")
    Case, Problem, Sizes = (getattr(scripts.problems, name) for name in ("Case", "Problem", "Sizes"))
    case = Case(0, Problem("tanh", "h1", noise_std=0.3), Sizes(120, 60, 90), 0.1, 0.1)
    scripts.draws.simulate("single", 8, [case], scripts.all.draws_path("single", 8), most=24)
    scripts.draws.simulate("single", 1, [case], scripts.all.draws_path("single", 1), most=24)
    scripts.all.report()
    page = names["PAGE"].read_text()
    untouched, used = page.split("## Seeds used to improve the theory")
    assert page.startswith(before)
    assert page.endswith(after)
    assert "old numbers" not in page
    assert "single, seed 8" in untouched
    assert "single, seed 1" in used
    assert "single, seed 1" not in untouched
    scripts.all.report([1])
    assert "None was compared yet" in names["PAGE"].read_text()
    # Too much scatter tells nothing about any theory.
    monkeypatch.setattr(scripts.all, "LARGEST_STDERR", 1e-4)
    scripts.all.report([1])
    page = names["PAGE"].read_text()
    assert "stayed above 0.01 %: 1" in page
    assert "median relative difference" not in page
