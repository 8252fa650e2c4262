import json
import math
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firststep import figures, predict_spectrum
from firststep.figures import (
    Figure,
    Panel,
    Series,
    draw,
    draw_panel,
    errors_against_step,
    plot_format,
    render,
    save,
)
from firststep.results import Outcome
from firststep.setting import Problem, Sizes

matplotlib = pytest.importorskip("matplotlib")

PROBLEM = Problem("relu", "h1 + h2/sqrt(2)", noise_std=0.5)
SIZES = Sizes(1000, 500, 750)


def outcome(source, exponents, ridges=(0.1,), stderr=False, sizes=SIZES, problem=PROBLEM, step_sizes=None):
    steps = (
        sizes.step_size(np.asarray(exponents, dtype=float)) if step_sizes is None else np.asarray(step_sizes)
    )
    shape = (len(steps), len(ridges))
    seed = sum(map(ord, source)) + len(steps)
    rng = np.random.default_rng(seed)
    values = {
        name: rng.uniform(0.5, 2.0, shape)
        for name in ("train_error", "test_error", "train_gain", "test_gain")
    }
    errors = {name: rng.uniform(0.01, 0.1, shape) for name in values} if stderr else {}
    details = {"replicas": 12} if source == "simulation" else {}
    return Outcome(problem, sizes, steps, np.array(ridges), source, values, errors, (), details)


def drawn(figure, kind, panel=0):
    """Series that carry numbers, without the entries that only stand in the legend."""
    return [s for s in figure.panels[panel].series if s.kind == kind and (s.x or s.y)]


def test_data_of_the_figure_are_the_numbers_of_the_outcomes():
    theory = outcome("unified", np.linspace(0, 0.5, 21))
    simulated = outcome("simulation", [0.4, 0.1, 0.2], stderr=True)
    figure = errors_against_step([simulated, theory])
    for panel, name in enumerate(("train_error", "test_error")):
        (line,) = drawn(figure, "line", panel)
        np.testing.assert_array_equal(line.y, theory.values[name][:, 0])
        np.testing.assert_allclose(line.x, np.linspace(0, 0.5, 21), atol=1e-15)
        (points,) = drawn(figure, "points", panel)
        np.testing.assert_array_equal(points.y, simulated.values[name][[1, 2, 0], 0])
        np.testing.assert_array_equal(points.error, simulated.stderr[name][[1, 2, 0], 0])
        np.testing.assert_allclose(points.x, [0.1, 0.2, 0.4])
    assert [panel.y_label for panel in figure.panels] == ["train error", "test error"]


def test_one_role_has_one_colour_and_simulation_lies_on_top():
    figure = errors_against_step(
        [outcome("simulation", [0.1, 0.2], stderr=True), outcome("unified", [0, 0.3])]
    )
    roles = {series.role for series in figure.panels[0].series}
    assert roles == {"simulation", "theory", "threshold"}
    assert figure.panels[0].series[-1].kind == "points"


def test_thresholds_and_best_linear_predictor():
    figure = errors_against_step(outcome("unified", np.linspace(0, 0.35, 9)), linear=0.75)
    for panel in (0, 1):
        (lines,) = drawn(figure, "vlines", panel)
        assert lines.names == ("1/4", "1/3")
        assert lines.x == (0.25, 1 / 3)
    assert drawn(figure, "hlines", 0) == []
    (linear,) = drawn(figure, "hlines", 1)
    assert (linear.y, linear.style) == ((0.75,), "dotted")


@pytest.mark.parametrize("count", [2, 6, 9])
def test_several_ridges_have_a_colour_each_shared_by_line_and_points(count):
    ridges = tuple(np.geomspace(1e-3, 10, count))
    figure = errors_against_step(
        [outcome("unified", [0, 0.2, 0.4], ridges), outcome("simulation", [0.1, 0.2], ridges, stderr=True)]
    )
    lines, points = drawn(figure, "line"), drawn(figure, "points")
    assert len({s.role for s in lines}) == len(lines) == count
    assert [s.role for s in lines] == [s.role for s in points]
    assert len({figures.colour(s.role) for s in lines}) == count
    labels = [s.label for s in figure.panels[0].series if s.label.startswith("λ")]
    assert labels == [f"λ = {figures.number_text(r)}" for r in ridges]
    assert "λ" not in figure.title


def test_several_sizes_are_told_apart_and_one_staircase_keeps_its_own_colour():
    many = [outcome("unified", [0, 0.2], sizes=Sizes(10**k, 10**k // 2, 10**k)) for k in (3, 6, 24)]
    figure = errors_against_step([*many, outcome("staircase", [0.1, 0.3], sizes=many[-1].sizes)])
    labels = [s.label for s in figure.panels[0].series if s.label.startswith("n = ")]
    assert labels == ["n = 1000", "n = 10⁶", "n = 10²⁴"]
    assert figure.title.endswith("d/n = 0.5, N/n = 1, λ = 0.1")
    assert {s.role for s in drawn(figure, "line") if s.style == "dashed"} == {"staircase"}
    assert len({s.role for s in drawn(figure, "line") if s.style == "solid"}) == 3


def test_a_theory_and_a_staircase_of_other_sizes_keep_their_roles():
    figure = errors_against_step(
        [outcome("unified", [0, 0.2]), outcome("staircase", [0.1, 0.3], sizes=Sizes(10**6, 10**5, 10**6))]
    )
    assert [s.role for s in drawn(figure, "line")] == ["theory", "staircase"]


def test_problems_are_told_apart():
    other = Problem("relu", "h1", noise_std=0.5)
    figure = errors_against_step([outcome("unified", [0, 0.2]), outcome("unified", [0, 0.2], problem=other)])
    labels = [s.label for s in figure.panels[0].series if "teacher" in s.label]
    assert labels == ["teacher h1 + h2/sqrt(2)", "teacher h1"]
    assert figure.title == "relu network, noise 0.5\nn = 1000, d = 500, N = 750, λ = 0.1"


def test_thresholds_can_be_chosen_or_left_out():
    theory = outcome("unified", [0, 0.45])
    assert drawn(errors_against_step(theory, thresholds={}), "vlines") == []
    (lines,) = drawn(errors_against_step(theory, thresholds={"2/5": 0.4, "far": 3.0}), "vlines")
    assert (lines.x, lines.names) == ((0.4,), ("2/5",))


def test_staircase_is_drawn_as_levels_over_whole_windows():
    # Levels 5 below 0, then 4, 3, 3 (no third spike) and 2; the samples on thresholds must not matter.
    exponents = np.array([-0.1, 0.0, 0.1, 0.2, 0.25, 0.3, 0.35, 0.38])
    levels = np.array([5.0, 99.0, 4.0, 4.0, 99.0, 3.0, 3.0, 2.0])[:, None]
    stairs = Outcome(
        PROBLEM,
        SIZES,
        SIZES.step_size(exponents),
        np.array([0.1]),
        "staircase",
        {"train_error": levels, "test_error": levels},
    )
    figure = errors_against_step(stairs)
    (line,) = drawn(figure, "line")
    x, y = np.array(line.x), np.array(line.y)
    assert line.style == "dashed"
    right = figure.panels[0].x_range[1]
    expected = [(figure.panels[0].x_range[0], 0, 5), (0, 0.25, 4), (0.25, 0.375, 3), (0.375, right, 2)]
    segments = [(x[i], x[i + 1], y[i]) for i in range(0, len(x), 3)]
    np.testing.assert_allclose(segments, expected, atol=1e-12)
    assert np.all(np.isnan(x[2::3]))
    assert np.all(np.isnan(y[2::3]))


def test_a_step_of_size_zero_is_a_level():
    simulated = outcome("simulation", None, step_sizes=[0.0, 1.0, 10.0], stderr=True)
    figure = errors_against_step(simulated)
    (level,) = drawn(figure, "hlines", 1)
    assert level.y == (simulated.test_error[0, 0],)
    (points,) = drawn(figure, "points", 1)
    assert points.y == tuple(simulated.test_error[1:, 0])
    assert "no step (η = 0)" in {s.label for s in figure.panels[0].series}
    assert render(errors_against_step(outcome("unified", None, step_sizes=[0.0])))


def test_figures_go_through_json_and_back():
    figure = errors_against_step(
        [outcome("unified", [0, 0.3]), outcome("staircase", [-0.1, 0.1, 0.3])], linear=1.0
    )
    text = json.dumps(figure.to_dict(), allow_nan=False)
    again = Figure.from_dict(json.loads(text))
    assert again.to_dict() == figure.to_dict()
    assert render(again, "svg") == render(figure, "svg")
    changed = figure.to_dict()
    changed["panels"][0]["series"][-1]["y"][0] += 0.1
    assert render(Figure.from_dict(changed), "svg") != render(figure, "svg")


@pytest.mark.parametrize("kind", figures.FORMATS)
def test_bytes_are_deterministic_whatever_the_settings_of_matplotlib(kind, tmp_path):
    figure = errors_against_step(
        [outcome("unified", np.linspace(0, 0.5, 9)), outcome("simulation", [0.1, 0.4], stderr=True)],
        linear=1.0,
    )
    first = save(figure, tmp_path / f"a.{kind}").read_bytes()
    with matplotlib.rc_context(
        {"font.size": 30, "axes.grid": True, "svg.hashsalt": None, "font.family": "serif"}
    ):
        second = save(figure, tmp_path / f"b.{kind}").read_bytes()
        assert matplotlib.rcParams["font.size"] == 30
    assert first == second
    assert matplotlib.__version__.encode() not in first
    assert b"CreationDate" not in first
    assert b"dc:date" not in first


def test_bytes_are_the_same_in_another_process(tmp_path):
    figure = errors_against_step(outcome("unified", [0, 0.1, 0.5]))
    (tmp_path / "figure.json").write_text(json.dumps(figure.to_dict()))
    code = (
        "import json, sys; from pathlib import Path; from firststep import figures;"
        "figure = figures.Figure.from_dict(json.loads(Path(sys.argv[1]).read_text()));"
        "figures.save(figure, sys.argv[2])"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path / "figure.json", tmp_path / "other.svg"], check=True)
    assert (tmp_path / "other.svg").read_bytes() == render(figure, "svg")


def test_files_are_of_their_kind(tmp_path):
    figure = errors_against_step(outcome("unified", [0, 0.5]))
    assert render(figure, "png").startswith(b"\x89PNG")
    assert render(figure, "pdf").startswith(b"%PDF")
    assert ET.fromstring(render(figure, "svg")).tag.endswith("svg")
    assert figure._repr_svg_().startswith("<?xml")
    assert render(figure, "svg", theme="dark") != render(figure, "svg")


def test_drawing_uses_the_given_axes_and_no_global_figure():
    from matplotlib import _pylab_helpers
    from matplotlib.figure import Figure as Canvas

    # Other tests of this process may have left figures of their own.
    before = list(_pylab_helpers.Gcf.figs)
    figure = errors_against_step([outcome("unified", [0, 0.5]), outcome("simulation", [0.1], stderr=True)])
    canvas = Canvas()
    axes = canvas.subplots(1, 2)
    assert draw(figure, axes) == tuple(axes)
    assert axes[1].get_ylabel() == "test error"
    np.testing.assert_array_equal(axes[0].lines[-1].get_ydata(), drawn(figure, "points")[0].y)
    draw(figure)
    assert list(_pylab_helpers.Gcf.figs) == before
    with pytest.raises(ValueError, match="2 panels, got 1 axes"):
        draw(figure, axes[0])


def test_no_text_overlaps_another_or_leaves_the_figure():
    """All texts of a busy figure, measured as drawn, are apart and inside."""
    ridges = (0.01, 0.1, 1.0)
    figure = errors_against_step(
        [
            outcome("unified", np.linspace(-1.0, 0.5, 9), ridges),
            outcome("random_features", [0, 0.5], ridges),
            outcome("staircase", [-0.1, 0.1, 0.3, 0.35, 0.4], ridges),
            outcome("simulation", [0, 0.1, 0.4], ridges, stderr=True),
        ],
        linear=0.8,
    )
    axes = draw(figure)
    assert overlaps(axes) == []
    axes[0].annotate("on top of a tick label", axes[0].transAxes.inverted().transform((0, 0)))
    axes[0].set_title("x" * 300)
    assert overlaps(axes)


def overlaps(axes):
    canvas = axes[0].figure
    canvas.draw_without_rendering()
    texts = [t for t in canvas.findobj(matplotlib.text.Text) if t.get_text().strip() and t.get_visible()]
    boxes = {}
    for text in texts:
        box = text.get_window_extent()
        ticks = [t for ax in axes for t in (*ax.get_xticklabels(), *ax.get_yticklabels())]
        # matplotlib keeps labels for ticks outside the limits, undrawn.
        if text in ticks and not any(inside(ax, text) for ax in axes):
            continue
        boxes[f"{text.get_text()}@{box.x0:.0f},{box.y0:.0f}"] = box
    found = [name for name, box in boxes.items() if box.x0 < 0 or box.x1 > canvas.bbox.x1 or box.y0 < 0]
    names = list(boxes)
    for i, first in enumerate(names):
        for second in names[i + 1 :]:
            a, b = boxes[first], boxes[second]
            if min(a.x1, b.x1) - max(a.x0, b.x0) > 0.5 and min(a.y1, b.y1) - max(a.y0, b.y0) > 0.5:
                found.append(f"{first} and {second}")
    return found


def inside(ax, text):
    x, y = text.get_position()
    for axis, value, (low, high) in ((ax.xaxis, x, ax.get_xlim()), (ax.yaxis, y, ax.get_ylim())):
        if text in (axis.get_ticklabels() or []):
            return low <= value <= high
    return False


def luminance(colour):
    channels = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722]), linear


@pytest.mark.parametrize("theme", figures.PALETTES)
def test_every_role_stands_out_from_the_paper(theme):
    paper, _ = luminance(figures.colour("paper", theme))
    assert {*figures.PALETTES["light"]} == {*figures.PALETTES["dark"]}
    for role in figures.PALETTES[theme]:
        if role not in ("paper", "grid"):
            shade, _ = luminance(figures.colour(role, theme))
            contrast = (max(shade, paper) + 0.05) / (min(shade, paper) + 0.05)
            assert contrast >= 3, (role, contrast)


# Machado, Oliveira and Fernandes (2009), severity 1, on linear RGB.
COLOUR_BLIND = {
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.01182, 0.04294, 0.968881],
    ],
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
}


@pytest.mark.parametrize("theme", figures.PALETTES)
@pytest.mark.parametrize("sight", COLOUR_BLIND)
def test_roles_that_meet_in_a_panel_differ_for_colour_blind_readers(theme, sight):
    matrix = np.array(COLOUR_BLIND[sight])

    def lab(role):
        linear = np.clip(matrix @ luminance(figures.colour(role, theme))[1], 0, 1)
        to_xyz = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
        xyz = np.array(to_xyz) @ linear / [0.9505, 1.0, 1.089]
        f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
        return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])

    together = ["theory", "simulation", "staircase", "random_features"]
    for i, first in enumerate(together):
        for second in together[i + 1 :]:
            assert np.linalg.norm(lab(first) - lab(second)) > 15, (first, second)


def test_colours_of_the_ramp_and_unknown_roles():
    assert figures.colour("ramp:0") == figures.RAMP[0]
    assert figures.colour("ramp:1") == figures.RAMP[-1]
    assert figures.colour("ramp:0.5") not in figures.RAMP
    with pytest.raises(ValueError, match="role must be one of"):
        figures.colour("mauve")
    with pytest.raises(ValueError, match="theme must be one of light, dark"):
        figures.colour("theory", "sepia")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kind": "pie"}, "kind must be one of"),
        ({"kind": "line", "x": [1, 2], "y": [1]}, "equally long, got 2 and 1"),
        ({"kind": "bars", "x": [1, 2], "y": [1, 2]}, "one edge more"),
        ({"kind": "band", "x": [1], "y": [1]}, "upper must be as long"),
        ({"kind": "points", "x": [1], "y": [1], "error": [1, 2]}, "error must have 1 entries or none"),
        ({"kind": "vlines", "x": [1], "names": ["a", "b"]}, "names must have 1 entries"),
        ({"kind": "map", "x": [1, 2], "y": [1, 2], "z": [1, 2]}, "z of map must have 4 values, got 2"),
        ({"kind": "map", "x": [1, 2], "y": [1], "z": [1, 2]}, "two columns and two rows, got 2 and 1"),
        ({"kind": "map", "x": [2, 1], "y": [1, 2], "z": [1, 2, 3, 4]}, "x of a map must ascend"),
        ({"kind": "discs", "x": [1, 2], "y": [1, 2]}, "z of discs must have 2 values, got 0"),
        ({"kind": "points", "x": [1], "y": [1], "z": [1]}, "z of points must have 0 values, got 1"),
        ({"kind": "line", "style": "wavy"}, "style must be one of"),
        ({"kind": "line", "role": "mauve"}, "role must be one of"),
    ],
)
def test_series_check_themselves(arguments, message):
    with pytest.raises(ValueError, match=message):
        Series(**arguments)


def test_panels_and_figures_check_themselves():
    with pytest.raises(ValueError, match="y_scale must be one of linear, log"):
        Panel((), y_scale="square")
    with pytest.raises(ValueError, match="z_names must be two, for the ends, or none, got 1"):
        Panel((), z_names=("nothing",))
    with pytest.raises(ValueError, match="at least one panel"):
        Figure("empty", ())
    with pytest.raises(ValueError, match="at least one outcome"):
        errors_against_step([])
    with pytest.raises(ValueError, match="n_step_samples of at least 2"):
        errors_against_step(outcome("unified", None, sizes=Sizes(10, 5, 5, 1), step_sizes=[1.0]))
    with pytest.raises(ValueError, match="no outcome has 'accuracy'"):
        errors_against_step(outcome("unified", [0.1]), quantities=["accuracy"])


def test_every_kind_of_series_is_drawn():
    x = (0.5, 1.0, 2.0)
    series = [
        Series("line", x, (1, math.nan, 2), label="line", style="dashdot"),
        Series("points", x, (1, 2, 3), label="points", role="simulation"),
        Series("band", x, (1, 1, 1), upper=(2, 2, 2), label="band"),
        Series("bars", (*x, 3.0), (1, 2, 1), label="bars", role="simulation"),
        Series("marks", (1.5,), (0.5,), names=("mark",), label="marks", role="staircase"),
        Series("vlines", (1.2, 1.25), names=("one", "two"), role="threshold"),
        Series("hlines", y=(1.5,), names=("level $x$ and $y",), label="$5", role="linear", style="dotted"),
    ]
    panel = Panel(tuple(series), "x", "y", "title", x_scale="log", y_scale="log", y_range=(0.1, 10))
    (ax,) = draw(Figure("Everything", (panel,)))
    assert len(ax.lines) >= 6
    assert len(ax.patches) == 1
    assert [t.get_text() for t in ax.texts] == ["mark", "one", "two", r"level \$x\$ and \$y"]
    assert ax.get_ylim() == (0.1, 10)
    assert render(Figure("Everything", (panel,)), "png")


@pytest.mark.parametrize("theme", figures.PALETTES)
def test_logarithmic_axes_have_plain_labels_in_the_ink_of_the_theme(theme):
    panel = Panel((Series("line", (1e-7, 1e-6), (1.1, 1.9)),), x_scale="log", y_scale="log")
    (ax,) = draw(Figure("", (panel,)), theme=theme)
    ax.figure.draw_without_rendering()
    labels = [t for axis in (ax.xaxis, ax.yaxis) for t in axis.get_ticklabels(which="both") if t.get_text()]
    texts = {t.get_text() for t in labels}
    assert {"10⁻⁷", "10⁻⁶", "1.2"} <= texts
    assert {t.get_color() for t in labels} == {figures.colour("ink", theme)}


def test_a_simulation_of_one_replica_has_no_error_bars():
    figure = errors_against_step(outcome("simulation", [0.1, 0.2]))
    (points,) = drawn(figure, "points")
    assert points.error == ()
    assert "simulation" in {s.label for s in figure.panels[0].series}


def test_names_of_figures_are_checked_before_drawing(tmp_path, monkeypatch):
    assert plot_format(tmp_path / "a.PNG") == "png"
    with pytest.raises(ValueError, match=r"must end in .png, .svg, .pdf; got 'a.bmp'"):
        plot_format("a.bmp")
    with pytest.raises(ValueError, match="does not exist: make it first"):
        plot_format(tmp_path / "missing" / "a.png")
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(ValueError, match="cannot be written there"):
        plot_format(tmp_path / "folder.png")
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(ValueError, match="cannot be written there"):
        plot_format(tmp_path / "a.png")


def test_missing_matplotlib_names_the_extra(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"install firststep\[plot\]"):
        plot_format(tmp_path / "a.png")
    with pytest.raises(ImportError, match=r"install firststep\[plot\]"):
        draw(errors_against_step(outcome("unified", [0.1])))


def test_importing_figures_does_not_import_matplotlib():
    code = "import sys, firststep.figures; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@given(st.floats(-1e300, 1e300))
def test_numbers_for_people_are_close_to_the_number(value):
    text = figures.number_text(value)
    plain = text.translate(str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789"))
    if "10" in text and any(letter in text for letter in "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"):
        mantissa, _, power = text.rpartition("10")
        exponent = int(power.translate(str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")))
        mantissa = {"": "1", "-": "-1"}.get(mantissa.rstrip("·"), mantissa.rstrip("·"))
        plain = f"{mantissa}e{exponent}"
    assert float(plain) == pytest.approx(value, rel=6e-4, abs=1e-320)


def test_titles_say_what_was_studied():
    sizes = Sizes(1000, 500, 750, 2000)
    problem = Problem("tanh", "h1", rows="sphere", readout="constant", initial_output="order_one")
    title = errors_against_step(outcome("unified", [0.1, 0.2], sizes=sizes, problem=problem)).title
    assert title == (
        "tanh network, teacher h1, no noise, sphere rows, constant readout, initial output of order one\n"
        "n = 1000, d = 500, N = 750, n₀ = 2000, λ = 0.1"
    )


def test_saved_path_is_given_back(tmp_path):
    assert save(errors_against_step(outcome("unified", [0.1, 0.2])), tmp_path / "a.svg") == Path(
        tmp_path / "a.svg"
    )


def test_names_stand_in_place_of_numbers():
    from matplotlib.figure import Figure as Canvas

    panel = Panel(
        (Series("points", (0.0, 1.0), (2.0, 3.0)),),
        x_range=(-0.7, 1.7),
        x_names=("one gradient step", "two $"),
    )
    ax = draw_panel(panel, Canvas().subplots())
    assert [label.get_text() for label in ax.get_xticklabels()] == ["one gradient\nstep", r"two \$"]
    assert ax.get_xlim() == (-0.7, 1.7)
    assert Figure.from_dict(Figure("", (panel,)).to_dict()).panels[0] == panel


def test_axes_of_ones_own_take_their_sizes_from_rcparams():
    from matplotlib.figure import Figure as Canvas

    outcomes = [outcome("unified", [0.1, 0.2, 0.3]), outcome("simulation", [0.1, 0.3], stderr=True)]
    figure = errors_against_step(outcomes, quantities=["test_error"])
    with matplotlib.rc_context({"font.size": 8, "lines.linewidth": 1.1, "legend.fontsize": 7}):
        canvas = Canvas(figsize=(3.3, 2.6), layout="constrained")
        (ax,) = draw(figure, canvas.subplots())
        canvas.draw_without_rendering()
    sizes = {text.get_fontsize() for text in [ax.xaxis.label, ax.yaxis.label, *ax.get_xticklabels()]}
    assert sizes == {8.0}
    legend = ax.get_legend()
    assert legend is not None
    assert {text.get_fontsize() for text in legend.get_texts()} == {7.0}
    assert max(line.get_linewidth() for line in ax.lines) <= 1.1
    # Below the axes and within the figure: it covers no point, and nothing is cut.
    box, inside = legend.get_window_extent(), canvas.bbox
    assert box.y1 < ax.xaxis.label.get_window_extent().y0 + 1
    assert all(inside.x0 <= part.x0 and part.x1 <= inside.x1 and part.y0 >= inside.y0 for part in (box,))


def test_numbers_of_a_logarithmic_axis_stand_on_one_line_and_are_powers():
    from matplotlib.figure import Figure as Canvas

    def labels(low, high):
        panel = Panel([Series("line", x=[low, high], y=[1, 2])], x_scale="log", x_range=(low, high))
        canvas = Canvas(figsize=(5, 3), layout="constrained")
        ax = draw_panel(panel, canvas.subplots())
        canvas.draw_without_rendering()
        shown = [t for t in [*ax.get_xticklabels(), *ax.get_xticklabels(minor=True)] if t.get_text()]
        return [t.get_text() for t in shown], {round(t.get_window_extent().y1, 0) for t in shown}

    texts, lines = labels(400, 5000)
    assert sorted(texts, key=float) == ["500", "1000", "2000", "5000"]
    assert len(lines) == 1
    assert set(labels(0.001, 2000)[0]) >= {"10⁻²", "1", "10²"}
    assert "500" not in labels(0.001, 2000)[0]


def test_ordered_settings_have_an_ordered_ramp():
    several = outcome("unified", [0.1, 0.2], ridges=(0.01, 0.1, 1.0))
    roles = [s.role for s in errors_against_step(several).panels[0].series if s.label.startswith("λ")]
    assert roles == ["ramp:0.000", "ramp:0.500", "ramp:1.000"]
    problems = [
        outcome("unified", [0.1, 0.2], problem=Problem(name, "h1")) for name in ("relu", "tanh", "erf")
    ]
    named = [s.role for s in errors_against_step(problems).panels[0].series if s.label and s.role != "linear"]
    assert named == ["setting1", "setting2", "setting3"]


def test_what_settings_have_in_common_stands_in_the_title():
    rows = [
        outcome("unified", [0.1, 0.2], problem=Problem("relu", "h1", noise_std=0.5, rows=rows))
        for rows in ("gaussian", "sphere")
    ]
    figure = errors_against_step(rows)
    assert figure.title.splitlines()[0] == "relu network, teacher h1, noise 0.5"
    labels = [s.label for s in figure.panels[0].series if s.label]
    assert labels[:2] == ["gaussian rows", "sphere rows"]


def test_callables_are_shown_by_their_name():
    def bumpy(x):
        return np.tanh(x) + np.sin(x) / 3

    title = errors_against_step(outcome("unified", [0.1], problem=Problem(bumpy, "h1"))).title
    assert title.startswith("bumpy network, teacher h1")


def share(x, y):
    """Grows along both axes, most along x; no table of it equals its mirror image."""
    return 0.4 * math.log10(x / 10) + 0.1 * y


def map_panel(columns=None, rows=None):
    columns = np.geomspace(10, 1000, 41) if columns is None else columns
    rows = np.linspace(0, 2, 31) if rows is None else rows
    places = [(x, y) for x in (20.0, 90.0, 700.0) for y in (0.3, 1.0, 1.7)]
    xs, ys = zip(*places, strict=True)
    values = [share(x, y) for y in rows for x in columns]
    series = (
        Series("map", x=columns, y=rows, z=values, levels=[0.5], label="theory, line at 0.5"),
        Series("discs", x=xs, y=ys, z=[share(*place) for place in places], label="simulation"),
        Series("vlines", x=(30, 465), names=("D₁", "D₂"), role="ink", style="dashed"),
        Series("texts", x=(50,), y=(0.6,), names=("$words",)),
    )
    axes = {"x_label": "samples", "y_label": "step", "x_scale": "log"}
    return Panel(series, **axes, z_label="share that is learned", z_range=(0, 1), z_names=("nothing", "all"))


def wrong_colours(panel, theme="light"):
    """Places between discs whose colour, as drawn, is not that of the value there or of a neighbouring band."""
    (ax,) = draw(Figure("", (panel,)), theme=theme)
    canvas = ax.figure.canvas
    canvas.draw()
    picture = np.asarray(canvas.buffer_rgba())
    found = []
    for x, y in [(15, 0.1), (15, 1.8), (200, 0.15), (200, 1.3), (800, 0.1), (800, 1.9)]:
        across, up = ax.transData.transform((x, y))
        shade = "#" + "".join(
            f"{c:02x}" for c in picture[picture.shape[0] - 1 - round(up), round(across), :3]
        )
        near = [panel.value_scale.role(share(x, y) + shift) for shift in (-0.04, 0, 0.04)]
        if shade not in [figures.colour(role, theme) for role in near]:
            found.append((x, y, shade))
    return found


@pytest.mark.parametrize("theme", figures.PALETTES)
def test_a_map_has_the_colours_of_its_values_at_their_places(theme):
    panel = map_panel()
    assert wrong_colours(panel, theme) == []
    values, *rest = panel.series
    mirrored = np.reshape(values.z, (31, 41)).T.ravel()
    assert wrong_colours(replace(panel, series=(replace(values, z=tuple(mirrored)), *rest)), theme)


def test_discs_have_the_colours_that_a_map_has_there():
    panel = map_panel()
    (ax,) = draw(Figure("", (panel,)))
    (discs,) = [c for c in ax.collections if isinstance(c, matplotlib.collections.PathCollection)]
    assert len(discs.get_offsets()) == 9
    for (x, y), shade in zip(discs.get_offsets(), discs.get_facecolors(), strict=True):
        wanted = figures.colour(panel.value_scale.role(share(x, y)))
        assert matplotlib.colors.to_hex(shade) == wanted
    assert len({tuple(shade) for shade in discs.get_facecolors()}) > 5


def test_the_contour_of_a_map_is_where_the_value_is():
    (ax,) = draw(Figure("", (map_panel(),)))
    (line,) = [c for c in ax.collections if getattr(c, "filled", True) is False]
    ends = line.get_paths()[0].vertices
    assert len(ends) > 10
    np.testing.assert_allclose([share(x, y) for x, y in ends], 0.5, atol=1e-3)


@pytest.mark.parametrize("theme", figures.PALETTES)
def test_a_map_says_in_words_what_its_colours_are_and_no_text_overlaps(theme):
    axes = draw(Figure("A map", (map_panel(),)), theme=theme, width=6.2)
    assert overlaps(axes) == []
    _, bar = axes[0].figure.axes
    assert bar.get_ylabel() == "share that is learned"
    assert [text.get_text() for text in bar.get_yticklabels()] == [
        "0: nothing",
        "0.25",
        "0.5",
        "0.75",
        "1: all",
    ]
    legend = [text.get_text() for text in axes[0].figure.legends[0].get_texts()]
    assert legend == ["theory, line at 0.5", "simulation"]


def test_a_map_has_gaps_and_ends_and_goes_through_json_and_back():
    panel = map_panel()
    values, *rest = panel.series
    gapped = replace(values, z=(math.nan, 7.0, -3.0, *values.z[3:]))
    figure = Figure("", (replace(panel, series=(gapped, *rest)),))
    assert Figure.from_dict(figure.to_dict()).to_dict() == figure.to_dict()
    assert wrong_colours(figure.panels[0]) == []
    assert render(figure, "svg") == render(figure, "svg")
    alone = Panel((Series("discs", x=(1, 2), y=(1, 3), z=(0.3, None)),))
    (ax,) = draw(Figure("one value", (alone,)))
    np.testing.assert_array_equal(ax.collections[0].get_offsets(), [[1, 1]])
    assert Panel((Series("discs", x=(1,), y=(1,), z=(math.nan,)),)).value_scale is None


@pytest.mark.parametrize("theme", figures.PALETTES)
def test_values_of_a_map_are_told_apart_by_lightness_and_ink_stands_out(theme):
    """So for every sight; a contour and its rim are seen on each of them."""
    light = [luminance(figures.colour(role, theme))[0] for role in figures.BAND_ROLES]
    assert len(set(light)) == len(light)
    assert light == sorted(light, reverse=theme == "light")
    ink = luminance(figures.colour("ink", theme))[0]
    contrasts = [(max(ink, one) + 0.05) / (min(ink, one) + 0.05) for one in light]
    assert max(contrasts) > 10
    assert min(contrasts) > 2


def test_a_spectrum_after_two_steps_names_both() -> None:
    problem, sizes = Problem("relu", "h1"), Sizes(100, 50, 80)
    two = [
        predict_spectrum(problem, sizes, step_exponent=0.3, next_step_exponents=alpha, of="weights")
        for alpha in (0.2, 0.4)
    ]
    assert figures.histogram(two[0]).title.endswith("η = 3.98 (α = 0.3), η₂ = 2.51 (α₂ = 0.2)")
    both = figures.histogram(two)
    assert [panel.title.rpartition(", ")[2] for panel in both.panels] == [
        "η₂ = 2.51 (α₂ = 0.2)",
        "η₂ = 6.31 (α₂ = 0.4)",
    ]
