"""Results draw themselves and show themselves in notebooks."""

import json
import re
import subprocess
import sys

import numpy as np
import pytest

from firststep import Problem, Sizes, compare, predict, predict_spectrum, simulate, simulate_spectrum
from firststep.figures.plots import figure_of
from firststep.results import Spectrum
from firststep.results.text import value_text

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("agg")

PROBLEM, SIZES = Problem("tanh", "h1", noise_std=0.5), Sizes(60, 30, 45)


@pytest.fixture(scope="module")
def both():
    return compare(
        PROBLEM, SIZES, step_exponents=[0.0, 0.2, 0.4], ridges=0.1, replicas=3, workers=1, progress=False
    )


@pytest.fixture(autouse=True)
def closed():
    yield
    import matplotlib.pyplot as plt

    plt.close("all")


def test_a_comparison_draws_lines_through_points(both):
    train, test = both.plot()
    assert (train.get_ylabel(), test.get_ylabel()) == ("train error", "test error")
    line = max(
        (line for line in test.lines if len(line.get_xdata()) == 3), key=lambda one: one.get_linewidth()
    )
    assert line.get_xdata() == pytest.approx([0.0, 0.2, 0.4])
    assert line.get_ydata() == pytest.approx(both.predicted["unified"].test_error[:, 0])
    (points,) = (s for s in figure_of(both).panels[1].series if s.kind == "points" and s.x)
    assert points.error == pytest.approx(both.simulated.stderr["test_error"][:, 0])


def test_given_axes_are_drawn_into_and_given_back(both):
    import matplotlib.pyplot as plt

    canvas, ax = plt.subplots()
    assert both.plot(ax) is ax
    assert ax.get_ylabel() == "test error"
    assert both.simulated.plot(ax=ax, quantities=["train_error"]) is ax
    assert ax.get_ylabel() == "train error"
    assert plt.get_fignums() == [canvas.number]
    with pytest.raises(ValueError, match="2 panels, got 1 axes"):
        both.plot(ax, quantities=["train_error", "test_error"])


def test_one_step_and_several_ridges_are_drawn_against_the_ridge():
    outcome = predict(PROBLEM, SIZES, 1.0, ridges=[1.0, 0.01, 0.1])
    panel = figure_of(outcome).panels[1]
    assert (panel.x_label, panel.x_scale) == ("ridge λ", "log")
    assert panel.series[0].x == (0.01, 0.1, 1.0)
    assert panel.series[0].y == pytest.approx(outcome.test_error[0, [1, 2, 0]])
    _, ax = outcome.plot()
    assert ax.get_xlabel() == "ridge λ"


@pytest.mark.parametrize("make", [predict_spectrum, simulate_spectrum])
def test_a_spectrum_is_a_picture(make):
    spectrum = make(PROBLEM, SIZES, 4.0, of="weights")
    assert spectrum.plot().get_xscale() == "log"
    assert "<svg" in spectrum._repr_svg_()


def test_notebooks_show_numbers_with_their_standard_errors(both):
    mean, error = both.simulated.test_error[0, 0], both.simulated.stderr["test_error"][0, 0]
    digits = len(f"{error:.2g}".split(".")[1])
    shown = f"<td>{mean:.{digits}f} ± {error:.{digits}f}</td>"
    assert shown in both._repr_html_()
    assert shown in both.simulated._repr_html_()
    assert "test_error_stderr" not in both.simulated._repr_html_()
    # A theory's own error bar stands at its number, and parts of it are too many to be shown.
    predicted = both.predicted["unified"]
    assert (
        f"<td>{value_text(*(float(predicted[f'test_error{end}'][0, 0]) for end in ('', '_bar')))}</td>"
        in (predicted._repr_html_())
    )
    assert not re.search("_bar|residual_|learned_", predicted._repr_html_())


def test_a_theorys_error_bar_also_stands_at_the_risk(both):
    without = both.without_noise()
    np.testing.assert_array_equal(without.bars("risk"), both.bars("test_error"))
    assert (without.bars("risk") > 0).all()


def test_tables_of_comparisons_and_spectra(both):
    frame = both.to_dataframe()
    assert list(frame["theory"]) == ["unified"] * len(both.rows())
    assert frame["test_error"].tolist() == pytest.approx(both.simulated.test_error.ravel())
    cube = both.to_xarray()
    assert cube["test_error"].sel(source="unified").values == pytest.approx(
        both.predicted["unified"].test_error
    )
    assert cube["test_error_stderr"].dims == ("step_size", "ridge")
    spectrum = predict_spectrum(PROBLEM, SIZES, 4.0, of="weights")
    rows = spectrum.to_dataframe()
    outlier = rows[rows["part"] == "outlier"].iloc[0]
    assert outlier["eigenvalue"] == spectrum.outliers[0].eigenvalue
    assert outlier["overlap_beta"] == spectrum.outliers[0].overlaps["beta"]
    data = spectrum.to_xarray()
    assert data["density"].values == pytest.approx(spectrum.density)
    assert float(data["overlaps"].sel(outlier=1, vector="beta")) == outlier["overlap_beta"]


@pytest.mark.parametrize("make", [predict_spectrum, simulate_spectrum])
def test_a_saved_spectrum_is_loaded(make):
    spectrum = make(PROBLEM, SIZES, 4.0, of="weights")
    loaded = Spectrum.from_dict(json.loads(json.dumps(spectrum.to_dict())))
    assert loaded.to_dict() == spectrum.to_dict()
    assert loaded.outliers == spectrum.outliers
    assert loaded.problem == spectrum.problem


def test_a_name_that_there_is_not_is_answered_with_the_nearest(both):
    with pytest.raises(KeyError, match="did you mean test_error"):
        both.simulated["test"]
    with pytest.raises(TypeError, match="the problem of compare must be a Problem, got Outcome"):
        compare(both.predicted["unified"], both.simulated)


def test_several_steps_are_not_drawn_as_one():
    outcome = simulate(PROBLEM, SIZES, 1.0, replicas=2, workers=1, progress=False)
    from dataclasses import replace

    import numpy as np

    with pytest.raises(ValueError, match="to_dataframe"):
        replace(outcome, next_step_sizes=np.array([[1.0]])).plot()


def test_results_do_not_need_matplotlib():
    code = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "from firststep import Problem, Sizes, predict_spectrum\n"
        "found = predict_spectrum(Problem('tanh', 'h1'), Sizes(60, 30, 45), 1.0, of='weights')\n"
        "assert found._repr_svg_() is None\n"
        "try: found.plot()\n"
        "except ImportError as error: assert 'firststep[plot]' in str(error)\n"
        "else: raise AssertionError('drew without matplotlib')\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
