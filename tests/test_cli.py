import json
import math
import os
import re
import signal
import subprocess
import sys
import time
import warnings
from importlib.util import find_spec

import click
import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import firststep
from firststep import theory
from firststep.cli.app import main
from firststep.cli.options import THEORIES, parse_numbers
from firststep.setting import FIELDS

SMALL = ["--n-samples", "60", "--dim", "30", "--width", "45"]
PREDICT = ["predict", "--theory", "random_features", *SMALL]
# Large enough for a theory of proportional sizes to have nothing to remark.
QUIET = [*PREDICT, "--n-samples", "1000", "--dim", "500", "--width", "750"]
SIMULATE = ["simulate", *SMALL, "--replicas", "3", "--workers", "1"]
COMPARE = ["compare", "--theory", "random_features", *SIMULATE[1:]]
COMMANDS = {"predict": PREDICT, "simulate": SIMULATE, "compare": COMPARE}


def run(*arguments, **kwargs):
    return CliRunner().invoke(
        main, [str(argument) for argument in arguments], prog_name="firststep", **kwargs
    )


def succeed(*arguments, **kwargs):
    result = run(*arguments, **kwargs)
    assert result.exit_code == 0, result.output
    return result


def fail(*arguments, code=2, **kwargs):
    """The sentence of a failure: nothing on standard output, one line on standard error, no traceback."""
    result = run(*arguments, **kwargs)
    assert result.exit_code == code, (result.output, result.exception)
    assert result.stdout == ""
    lines = [line for line in result.stderr.splitlines() if not line.startswith("note: ")]
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("Error: ")
    return lines[0].removeprefix("Error: ")


def firststep_process(*arguments, **kwargs):
    command = [sys.executable, "-m", "firststep", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, **kwargs)


def strict(text):
    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


# Numbers, lists and ranges


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("0.1", (0.1,)),
        ("1e-3", (0.001,)),
        ("-0.1", (-0.1,)),
        ("0.1,1,10", (0.1, 1, 10)),
        (" 1 , 2 ", (1, 2)),
        ("0:0.5:3", (0, 0.25, 0.5)),
        ("0.5:0:3", (0.5, 0.25, 0)),
        ("1:2:2", (1, 2)),
        ("0:1:1e1", tuple(round(i / 9, 15) for i in range(10))),
        ("log:1:100:3", (1, 10, 100)),
        ("0,log:1e-2:1:3,5", (0, 0.01, 0.1, 1, 5)),
    ],
)
def test_numbers_lists_and_ranges(text, numbers):
    assert parse_numbers(text) == pytest.approx(numbers, rel=1e-14, abs=1e-15)


def test_ranges_give_the_decimals_one_would_write():
    assert parse_numbers("0:0.5:11") == (0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5)


@given(
    st.floats(-1e6, 1e6, allow_subnormal=False),
    st.floats(-1e6, 1e6, allow_subnormal=False),
    st.integers(2, 50),
)
def test_ranges_are_linspace(start, stop, count):
    numbers = parse_numbers(f"{start!r}:{stop!r}:{count}")
    np.testing.assert_allclose(
        numbers, np.linspace(start, stop, count), rtol=1e-12, atol=1e-12 * (abs(start) + abs(stop))
    )
    assert (numbers[0], numbers[-1]) == (start, stop)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'' is not a number"),
        ("1,,2", "'' is not a number"),
        ("one", "'one' is not a number"),
        ("nan", "'nan' is not a finite number"),
        ("0,inf", "'inf' is not a finite number"),
        ("0:1", "'0:1' is neither a number"),
        ("0:1:2:3:4", "neither a number"),
        ("0:1:1", "count from 2 to 100000, got 1"),
        ("0:1:-3", "count from 2 to 100000, got -3"),
        ("0:1:2.5", "'2.5' is not a whole number"),
        ("0:1:1000000000", "count from 2 to 100000"),
        ("0:1:100000,0:1:100000", "count from 2 to 100000"),
        ("log:0:1:3", "log range needs positive ends"),
        ("lin:0:1:3", "neither a number"),
    ],
)
def test_malformed_numbers_are_explained(text, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        parse_numbers(text)
    assert message in fail(*PREDICT, "--ridge", text)


def test_whole_numbers_may_be_written_with_an_exponent():
    content = strict(
        succeed(*PREDICT, "--n-samples", "1e30", "--dim", "5e29", "--width", "7.5e29", "--json").stdout
    )
    assert content["sizes"]["n_samples"] == 10**30
    assert content["sizes"]["width"] == 750 * 10**27
    assert "'1.5' is not a whole number" in fail(*PREDICT, "--dim", "1.5")
    assert "not a whole number" in fail(*PREDICT, "--dim", "1e999999999")
    assert "not a whole number" in fail(*PREDICT, "--dim", "nan")


# JSON


def test_predictions_as_json_are_those_of_the_library():
    arguments = [
        "--step-exponent",
        "0:0.2:3",
        "--ridge",
        "0.01,1",
        "--noise-std",
        "0.5",
        "--teacher",
        "tanh(2*x)",
    ]
    content = strict(succeed(*PREDICT, *arguments, "--json").stdout)
    assert content["problem"]["teacher"] == "tanh(2*x)"
    assert content["problem"]["noise_std"] == 0.5
    assert content["sizes"] == {"n_samples": 60, "dim": 30, "width": 45, "n_step_samples": 60}
    expected = firststep.predict(
        firststep.Problem("relu", "tanh(2*x)", 0.5),
        firststep.Sizes(60, 30, 45),
        step_exponents=[0, 0.1, 0.2],
        ridges=[0.01, 1],
        theory="random_features",
    )
    assert content["rows"] == expected.rows()
    assert {"step_size", "step_exponent", "ridge", "train_error", "test_error"} <= set(content["rows"][0])
    assert len(content["rows"]) == 6


def test_simulations_as_json_are_those_of_the_library():
    arguments = [*SIMULATE, "--step-exponent", "0,0.25", "--json"]
    content = strict(succeed(*arguments, "--seed", "7").stdout)
    expected = firststep.simulate(
        firststep.Problem("relu", "h1 + h2/sqrt(2)"),
        firststep.Sizes(60, 30, 45),
        step_exponents=[0, 0.25],
        replicas=3,
        seed=7,
        workers=1,
    )
    assert content["rows"] == expected.rows()
    assert content["replicas"] == 3
    assert content["seed"] == 7
    for row in content["rows"]:
        assert row["train_error_stderr"] > 0
        assert row["test_error_stderr"] > 0
    assert strict(succeed(*arguments, "--seed", "8").stdout)["rows"] != content["rows"]


def test_every_option_of_the_problem_reaches_it():
    options = {
        "--activation": "tanh",
        "--teacher": "h1",
        "--noise-std": "0.25",
        "--rows": "sphere",
        "--readout": "rademacher",
        "--initial-output": "order_one",
        "--n-step-samples": "90",
    }
    content = strict(succeed(*PREDICT, *(word for pair in options.items() for word in pair), "--json").stdout)
    assert content["problem"] == {
        "activation": "tanh",
        "teacher": "h1",
        "centred": [True, True],
        "noise_std": 0.25,
        "rows": "sphere",
        "readout": "rademacher",
        "initial_output": "order_one",
    }
    assert content["sizes"]["n_step_samples"] == 90


def test_comparisons_as_json():
    content = strict(
        succeed(*COMPARE, "--theory", "staircase", "--step-exponent", "0.1,0.2", "--json").stdout
    )
    assert content["theories"] == ["random_features", "staircase"]
    assert len(content["rows"]) == 4
    for row in content["rows"]:
        z = (row["test_error"] - row["test_error_predicted"]) / row["test_error_stderr"]
        assert row["test_error_distance"] == pytest.approx(z)
    assert content["summary"]["staircase"]["test_error"]["largest_distance"] > 0


def test_json_has_no_nan_where_the_step_has_no_exponent_or_replicas_no_spread():
    content = strict(succeed(*PREDICT, "--step-size", "0,1", "--json").stdout)
    assert content["rows"][0]["step_exponent"] is None
    content = strict(succeed("simulate", *SMALL, "--step-size", "0", "--replicas", "1", "--json").stdout)
    assert content["rows"][0]["step_size"] == 0
    assert "test_error_stderr" not in content["rows"][0]


# Tables


@pytest.mark.parametrize("command", COMMANDS)
def test_tables_are_aligned_plain_text_in_a_pipe(command):
    result = succeed(*COMMANDS[command], "--step-exponent", "0.1,0.2")
    assert "\x1b" not in result.output
    head, *lines = [line for line in result.stdout.split("\n") if line][3:]
    assert head.split()[:3] == ["alpha", "eta", "lambda"]
    table = lines[:2]
    assert [line.split()[0] for line in table] == ["0.1", "0.2"]
    assert {len(line) for line in (head, *table)} == {len(head)}
    assert "relu network, teacher h1 + h2/sqrt(2), no noise" in result.stdout
    assert "n = 60, d = 30, N = 45" in result.stdout


def test_simulated_tables_show_standard_errors_and_comparisons_distances():
    assert "±" in succeed(*SIMULATE).stdout
    result = succeed(*COMPARE)
    assert "distance" in result.stdout
    assert "train error agrees (p = " in result.stdout


@pytest.mark.skipif(find_spec("pty") is None, reason="needs a pseudo-terminal")
@pytest.mark.parametrize("environment", [{}, {"NO_COLOR": "1"}])
def test_on_a_terminal_tables_are_coloured_unless_told_otherwise_and_fit(environment):
    import pty

    leader, follower = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-m", "firststep", *SIMULATE],
        stdout=follower,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "60", **environment},
    )
    os.close(follower)
    pieces = []
    try:
        while piece := os.read(leader, 4096):
            pieces.append(piece)
    except OSError:
        pass  # how Linux says that the other end is closed
    os.close(leader)
    assert child.wait(60) == 0
    text = b"".join(pieces).decode()
    assert ("\x1b[" in text) == (not environment)
    table = [
        line for line in re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines() if "±" in line or "alpha" in line
    ]
    assert len(table) == 12
    assert all(len(line) <= 60 for line in table)


def test_letters_that_the_encoding_lacks_are_replaced():
    result = firststep_process(*SIMULATE, env={**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"})
    assert result.returncode == 0, result.stderr
    assert "+-" in result.stdout


# Figures


@pytest.mark.parametrize("kind", ["png", "svg", "pdf"])
def test_plots_are_written_with_equal_bytes(kind, tmp_path):
    pytest.importorskip("matplotlib")
    first, second = tmp_path / f"a.{kind}", tmp_path / f"b.{kind}"
    for path in (first, second):
        result = succeed(*PREDICT, "--step-exponent", "0,0.2", "--plot", path)
        assert f"figure written to {path}" in result.stderr
    assert first.read_bytes() == second.read_bytes()
    assert len(first.read_bytes()) > 5000


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    "steps", [("--step-exponent", "-0.1,0.1,0.3"), ("--step-size", "0,5"), ("--step-size", "0")]
)
def test_plots_show_what_was_computed(command, steps, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    from firststep import figures

    drawn = []
    monkeypatch.setattr(figures, "save", lambda figure, path: drawn.append(figure) or path)
    content = strict(succeed(*COMMANDS[command], *steps, "--plot", tmp_path / "a.png", "--json").stdout)
    (figure,) = drawn
    points = [s for s in figure.panels[1].series if s.kind == "points" and s.x]
    levels = [s for s in figure.panels[1].series if s.kind == "hlines" and s.y]
    rows = [row for row in content["rows"] if row["step_exponent"] is not None]
    if command == "predict":
        assert points == []
    elif rows:
        assert list(points[0].y) == [row["test_error"] for row in rows]
        assert list(points[0].error) == [row["test_error_stderr"] for row in rows]
    # The teacher's second Hermite part, 2! (1/sqrt 2)^2 = 1, is what no linear predictor learns.
    assert any(level.y[0] == pytest.approx(1.0) and level.style == "dotted" for level in levels)


def test_figure_of_the_staircase_has_its_levels(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    from firststep import figures

    drawn = []
    monkeypatch.setattr(figures, "save", lambda figure, path: drawn.append(figure) or path)
    asked = ["predict", *SMALL, "--theory", "staircase", "--step-exponent", "0.05:0.3:2"]
    succeed(*asked, "--plot", tmp_path / "a.png")
    (line,) = [s for s in drawn[0].panels[0].series if s.kind == "line" and s.x]
    levels = [y for y in dict.fromkeys(line.y) if not math.isnan(y)]
    expected = firststep.predict(
        firststep.Problem("relu", "h1 + h2/sqrt(2)"),
        firststep.Sizes(60, 30, 45),
        step_exponents=[0.1, 0.3],
        theory="staircase",
    )
    np.testing.assert_allclose(levels, expected.train_error[:, 0])


# Bad input: exit code 2 and one sentence

BAD = {
    "negative ridge": (["--ridge", "-1"], "ridge must be positive and finite, got -1.0"),
    "zero ridge": (["--ridge", "0"], "ridge must be positive"),
    "not a ridge": (["--ridge", "small"], "'small' is not a number"),
    "misspelt activation": (["--activation", "rellu"], "did you mean 'relu'"),
    "activation without derivative": (["--activation", "sign"], "sign"),
    "no activation": (["--activation", ""], ""),
    "import": (["--teacher", "__import__('os').system('true')"], "an expression may use"),
    "attribute": (["--teacher", "x.__class__"], "an expression may use"),
    "lambda": (["--teacher", "(lambda: 1)()"], "an expression may use"),
    "huge power": (["--teacher", "9**9**9**9*x"], ""),
    "long": (["--teacher", "+".join(["x"] * 500)], ""),
    "deep": (["--teacher", "(" * 5000 + "x" + ")" * 5000], ""),
    "not square-integrable": (["--teacher", "exp(x**2)"], ""),
    "null byte": (["--teacher", "x\0"], ""),
    "both steps": (
        ["--step-size", "1", "--step-exponent", "0"],
        "give either --step-size or --step-exponent, not both",
    ),
    "negative step": (["--step-size", "-1"], "step sizes must be finite and not negative"),
    "overflowing step": (["--step-exponent", "1e9"], "step sizes must be finite"),
    "zero samples": (["--n-samples", "0"], "n_samples must be at least 1, got 0"),
    "negative dimension": (["--dim", "-5"], "dim must be at least 1, got -5"),
    "zero width": (["--width", "0"], "width must be at least 1, got 0"),
    "zero step samples": (["--n-step-samples", "0"], "n_step_samples must be at least 1"),
    "half a neuron": (["--width", "7.5"], "'7.5' is not a whole number"),
    "negative noise": (["--noise-std", "-1"], "noise_std must be finite and not negative"),
    "noise that is no number": (["--noise-std", "nan"], "'nan' is not a finite number"),
    "rows": (["--rows", "cube"], "'cube' is not one of"),
    "readout": (["--readout", "zero"], "'zero' is not one of"),
    "output": (["--initial-output", "huge"], "'huge' is not one of"),
    "inputs": (["--inputs", "flat"], "inputs must be one of isotropic, power(exponent)"),
    "inputs that are code": (["--inputs", "power(__import__('os'))"], "is not a number"),
    "power of nothing": (["--inputs", "power"], "power takes one exponent between 0 and 20"),
    "overlap twice": (
        ["--inputs", "spiked(10, overlap=0.5)", "--alignment", "eigenvalues"],
        "give either spiked(…, overlap=…) or alignment, not both",
    ),
    "weights of no level": (
        ["--inputs", "levels(1,2)", "--alignment", "weights(1,2,3)"],
        "3 weights for the 2",
    ),
    "step rule": (["--step-rule", "newton"], "'newton' is not one of"),
    "unknown option": (["--rigde", "1"], "No such option"),
    "extra argument": (["more"], "unexpected extra argument"),
    "missing value": (["--ridge"], "requires an argument"),
    "figure of unknown kind": (["--plot", "figure.bmp"], "a figure's name must end in .png, .svg, .pdf"),
    "figure in no folder": (["--plot", "no/such/folder/figure.png"], "does not exist: make it first"),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("command", COMMANDS)
def test_bad_input_gets_one_sentence_and_exit_code_2(command, case):
    arguments, message = BAD[case]
    start = [command, *SMALL, "--replicas", "2"] if command != "predict" else [command, *SMALL]
    assert message in fail(*start, *arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["frobnicate"], "No such command 'frobnicate'"),
        (["--frobnicate"], "No such option"),
        (["predict", "--theory", "magic"], "'magic' is not one of 'unified'"),
        (["predict", "--theory", "staircase", "--step-exponent", "0.6"], "1/2"),
        (["compare", "--theory", "staircase", "--step-exponent", "0.1,0.6"], "1/2"),
        ([*PREDICT, "--theory", "staircase"], "predict takes one --theory, got random_features, staircase"),
        (["simulate", "--replicas", "0"], "replicas must be at least 1, got 0"),
        (["simulate", "--replicas", "-3"], "replicas must be at least 1"),
        (["simulate", "--replicas", "2.5"], "'2.5' is not a whole number"),
        (["simulate", "--seed", "-1"], "seed must be at least 0"),
        (["simulate", "--workers", "0"], "workers must be at least 1"),
        (["compare", "--replicas", "1"], "replicas must be at least 2 to have a standard error"),
        (["simulate", "--theory", "unified"], "No such option"),
        (["predict", "--replicas", "3"], "No such option"),
        (["completion", "powershell"], "'powershell' is not one of"),
        (["completion"], "Missing argument"),
    ],
)
def test_further_bad_input(arguments, message):
    assert message in fail(*arguments)


def test_the_checking_helper_rejects_a_command_that_works():
    with pytest.raises(AssertionError):
        fail(*PREDICT)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_figure_that_cannot_be_written_fails_before_anything_is_computed(command, monkeypatch, tmp_path):
    def computed(*_, **__):
        raise AssertionError("computed")

    for name in ("simulate", "theory", "compare"):
        monkeypatch.setattr(sys.modules[f"firststep.{name}"], {"theory": "predict"}.get(name, name), computed)
    assert "does not exist" in fail(*COMMANDS[command], "--plot", tmp_path / "missing" / "a.png")
    with pytest.raises(AssertionError):
        fail(*COMMANDS[command], "--plot", tmp_path / "a.png")


# Failures while running: exit code 1


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (RuntimeError("no fixed point after 500 rounds"), 1, "no fixed point after 500 rounds"),
        (
            MemoryError("one replica needs 9 GiB"),
            1,
            "not enough memory: one replica needs 9 GiB; use smaller sizes or fewer points",
        ),
        (MemoryError(), 1, "not enough memory; use smaller sizes or fewer points"),
        (OSError(28, "No space left on device"), 1, "[Errno 28] No space left on device"),
        (ImportError("install firststep[plot]"), 1, "install firststep[plot]"),
        (FloatingPointError("overflow"), 1, "overflow"),
        (KeyError("odd"), 1, "unexpected KeyError: 'odd' (FIRSTSTEP_DEBUG=1 shows where)"),
        (ValueError("ridge must be\n  positive"), 2, "ridge must be positive"),
        (TypeError("dim must be a whole number"), 2, "dim must be a whole number"),
    ],
)
def test_failures_have_an_exit_code_and_no_traceback(error, code, message, monkeypatch):
    def broken(*_, **__):
        raise error

    monkeypatch.setattr(theory, "predict", broken)
    monkeypatch.delenv("FIRSTSTEP_DEBUG", raising=False)
    assert fail(*PREDICT, code=code) == message
    monkeypatch.setenv("FIRSTSTEP_DEBUG", "1")
    assert run(*PREDICT).exception is error


def test_ctrl_c_ends_quietly_with_130(monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(theory, "predict", interrupted)
    result = run(*PREDICT)
    assert result.exit_code == 130
    assert result.output.strip() == ""


@pytest.mark.skipif(os.name == "nt", reason="signals of Unix")
def test_ctrl_c_ends_a_running_simulation_quietly():
    arguments = ["simulate", "--replicas", "5000", "--workers", "1"]
    child = subprocess.Popen(
        [sys.executable, "-m", "firststep", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    time.sleep(3)
    os.killpg(child.pid, signal.SIGINT)
    output, errors = child.communicate(timeout=30)
    # Python dies of the signal itself when it arrives inside an extension module; to a shell both are 130.
    assert child.returncode in (130, -signal.SIGINT)
    assert output.strip() == errors.strip() == b""


@pytest.mark.skipif(os.name == "nt", reason="pipes of Unix")
def test_a_closed_pipe_is_no_traceback():
    command = f"'{sys.executable}' -m firststep {' '.join(QUIET)} --ridge log:1e-3:1:2000 --json | head -n 1"
    result = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert result.stdout == "{\n"
    assert result.stderr == ""


# Notes and standard error


def test_problems_outside_the_theory_are_noted_once_on_standard_error():
    result = succeed(*COMPARE, "--teacher", "h2", "--json")
    notes = [line for line in result.stderr.splitlines() if line.startswith("note: ")]
    assert [note for note in notes if "has no linear part" in note] == [
        "note: the teacher h2 has no linear part (c*_1 = 0): one gradient step learns nothing about it"
    ]
    assert len(notes) == len(set(notes))
    assert any("no linear part" in note for note in strict(result.stdout)["notes"])
    assert succeed(*COMPARE, "--teacher", "h2", "--quiet", "--json").stderr == ""


def test_other_warnings_are_lines_too_and_old_news_is_not(monkeypatch):
    original = theory.predict

    def noisy(*arguments, **kwargs):
        warnings.warn("the grid is coarse", UserWarning, stacklevel=1)
        warnings.warn("old interface", DeprecationWarning, stacklevel=1)
        return original(*arguments, **kwargs)

    monkeypatch.setattr(theory, "predict", noisy)
    assert succeed(*QUIET).stderr == "warning: the grid is coarse\n"


def test_numerical_warnings_are_shown_with_a_result_and_not_with_an_error(monkeypatch):
    original = theory.predict

    def overflowing(*arguments, **kwargs):
        np.float64(1e300) ** 2
        return original(*arguments, **kwargs)

    monkeypatch.setattr(theory, "predict", overflowing)
    assert succeed(*QUIET).stderr.startswith("warning: overflow encountered")
    assert "ridge" in fail(*QUIET, "--ridge", "-1")
    assert "1/2" in fail("predict", *SMALL, "--theory", "staircase", "--step-exponent", "0.7")


def test_dry_run_says_memory_and_does_not_run(monkeypatch):
    def computed(*_, **__):
        raise AssertionError("computed")

    monkeypatch.setattr(sys.modules["firststep.simulate"], "run_replica", computed)
    for command in ("simulate", "compare"):
        start = [command, "--n-samples", "20000", "--dim", "10000", "--width", "15000", "--dry-run"]
        assert re.search(r"8 replicas of 11 step sizes x 1 ridges; about [\d.]+ GiB", succeed(*start).stdout)
        plan = strict(succeed(*start, "--json").stdout)
        assert plan["memory_per_worker"] > 2**30
        assert plan["replicas"] == 8


# The program itself


def test_theories_are_those_of_the_library():
    assert theory.THEORIES == THEORIES


@pytest.mark.parametrize("command", [*COMMANDS, "spectrum"])
def test_every_field_of_a_setting_is_an_option(command):
    offered = {option: param for param in main.commands[command].params for option in param.opts}
    for field in FIELDS:
        assert offered[field.option].name == field.name
        assert offered[field.option].help == field.help
        if field.choices:
            assert list(offered[field.option].type.choices) == list(field.choices)
    assert {"--next-step-size", "--next-step-exponent"} <= set(offered)


def test_words_of_inputs_and_training_reach_the_problem():
    words = ["--inputs", "levels( .3, 1.7)", "--alignment", "weights(9, 1)", "--step-rule", "sign"]
    start = ["simulate", *SMALL, "--dry-run", "--json", "--fit-sample", "step", "--step-sample", "same"]
    plan = strict(succeed(*start, *words).stdout)
    assert plan["problem"]["inputs"] == "levels(0.3, 1.7)"
    assert plan["problem"]["alignment"] == "weights(9, 1)"
    assert [plan["problem"][f"{name}"] for name in ("step_rule", "step_sample", "fit_sample")] == [
        "sign",
        "same",
        "step",
    ]


def test_later_steps_multiply_the_sequences():
    start = ["simulate", *SMALL, "--dry-run", "--step-exponent", "0,0.1,0.2"]
    plan = strict(succeed(*start, "--next-step-exponent", "0.1,0.3", "--json").stdout)
    assert plan["step_sizes"] == 6
    text = succeed(*start, "--next-step-size", "1:2:4", "--next-step-size", "5").stdout
    assert "12 sequences of 3 steps" in text
    assert "give either --next-step-size or --next-step-exponent, not both" in fail(
        *start, "--next-step-size", "1", "--next-step-exponent", "0"
    )
    assert "step sizes must be finite and not negative" in fail(*start, "--next-step-size", "-1")


def test_version():
    assert succeed("--version").stdout == f"firststep {firststep.__version__}\n"
    assert firststep_process("--version").stdout == f"firststep {firststep.__version__}\n"


@pytest.mark.parametrize(
    "arguments", [[], ["--help"], *([name, "--help"] for name in COMMANDS), ["completion", "-h"]]
)
def test_help_has_examples_and_defaults_and_imports_no_numpy(arguments):
    code = (
        "import sys\nfrom firststep.cli.app import main\n"
        f"try:\n    main({arguments!r}, prog_name='firststep')\n"
        "except SystemExit as end:\n    assert not end.code\n"
        "heavy = {'numpy', 'scipy', 'matplotlib', 'rich'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("Usage: firststep")
    if arguments and arguments[0] in COMMANDS:
        assert f"Examples:\n  firststep {arguments[0]}" in result.stdout
        for option in ("--activation", "--step-exponent", "--ridge", "--json", "--plot"):
            assert option in result.stdout
        assert "[default: relu]" in result.stdout
        assert all(len(line) <= 90 for line in result.stdout.splitlines())


def after_predict(before, *arguments, **environment):
    """What Python knows after a prediction in a process of its own: package names, and threads that BLAS may start."""
    code = (
        f"import json, os, sys\n{before}\nfrom firststep.cli.app import main\n"
        f"main({['predict', '--quiet', *arguments]!r}, standalone_mode=False)\n"
        "names = sorted({name.partition('.')[0] for name in sys.modules} | {'numpy.f2py'} & {*sys.modules})\n"
        "print(json.dumps([names, os.environ.get('OPENBLAS_NUM_THREADS')]), file=sys.stderr)"
    )
    kept = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=kept | environment
    )
    return json.loads(result.stderr)


@pytest.mark.parametrize(
    "arguments", [[], ["--json"], ["--activation", "tanh", "--teacher", "sign"], ["--theory", "staircase"]]
)
def test_predictions_import_no_scipy(arguments):
    names, _ = after_predict("", *arguments)
    assert "numpy" in names
    assert not {"scipy", "numpy.f2py", "matplotlib", "rich", "pydantic"} & {*names}


def test_a_prediction_that_needs_scipy_imports_it():
    names, _ = after_predict("", "--activation", "erf", "--step-size", "1")
    assert {"numpy", "scipy"} <= {*names}


def test_predictions_start_one_blas_thread_unless_told_otherwise():
    assert after_predict("", *PREDICT[1:])[1] == "1"
    assert after_predict("", *PREDICT[1:], OPENBLAS_NUM_THREADS="2")[1] == "2"
    # Where NumPy is there already, the setting would reach only processes started later.
    assert after_predict("import numpy", *PREDICT[1:])[1] is None


@pytest.mark.parametrize("command", COMMANDS)
def test_examples_of_the_help_are_accepted(command):
    """Every example parses: its options exist and their values are read."""
    import shlex

    examples = main.commands[command].examples
    assert len(examples) >= 2
    for example in examples:
        program, name, *arguments = shlex.split(example)
        assert (program, name) == ("firststep", command)
        main.commands[command].make_context(name, arguments)
    with pytest.raises(click.UsageError):
        main.commands[command].make_context(command, ["--nonsense"])


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell):
    script = succeed("completion", shell).stdout
    assert "_FIRSTSTEP_COMPLETE" in script
    assert f"{shell}_complete" in script


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("firststep pre", "predict"),
        ("firststep predict --activation rel", "relu"),
        ("firststep compare --theory st", "staircase"),
        ("firststep simulate --rep", "--replicas"),
    ],
)
def test_completion_completes(words, expected):
    environment = {
        "_FIRSTSTEP_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
    }
    result = firststep_process(env={**os.environ, **environment})
    assert expected in re.split(r"[,\n]", result.stdout)


def test_the_group_can_still_be_called_from_python():
    assert main(["completion", "bash"], standalone_mode=False) is None
    with pytest.raises(click.UsageError):
        main(["predict", "--nonsense"], standalone_mode=False)


# Ratios, risk, patience, completion


@pytest.mark.parametrize(
    ("ratios", "sizes"),
    [
        (["--n-samples", "100", "--phi", "0.5", "--psi", "0.625"], (100, 50, 80)),
        (["--dim", "50", "--psi1", "2", "--psi2", "1.6"], (100, 50, 80)),
        (["--n-samples", "100", "--phi", "0.5", "--width", "80"], (100, 50, 80)),
    ],
)
def test_ratios_stand_for_sizes(ratios, sizes):
    found = strict(succeed("predict", "--theory", "random_features", "--json", *ratios).stdout)["sizes"]
    assert (found["n_samples"], found["dim"], found["width"]) == sizes


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--phi", "0.5", "--dim", "50"], "either --phi or --dim"),
        (["--psi", "1", "--psi2", "1"], "either --psi or --psi2"),
        (["--phi", "1", "--psi1", "1"], "the same ratio"),
        (["--psi1", "-1"], "--psi1 must be positive"),
    ],
)
def test_ratios_that_contradict_are_named(options, words):
    assert words in fail("predict", *options)


def test_risk_is_the_test_error_without_the_noise(tmp_path):
    pytest.importorskip("matplotlib")
    plain = strict(succeed(*SIMULATE, "--noise-std", "0.5", "--json").stdout)["rows"]
    risk = strict(succeed(*SIMULATE, "--noise-std", "0.5", "--json", "--risk").stdout)["rows"]
    for one, other in zip(plain, risk, strict=True):
        assert other["risk"] == pytest.approx(one["test_error"] - 0.25)
        assert other["risk_stderr"] == one["test_error_stderr"]
        assert "test_error" not in other
    shown = succeed(*COMPARE, "--noise-std", "0.5", "--risk", "--plot", tmp_path / "a.svg").stdout
    assert "risk agrees" in shown or "risk disagrees" in shown or "risk finite-size" in shown
    assert "test error without the noise" in (tmp_path / "a.svg").read_text()


def test_long_computations_say_so(capsys, monkeypatch):
    from firststep.cli import output

    monkeypatch.setattr(output, "PATIENCE", 0.05)
    with output.waiting("a spectrum"):
        time.sleep(0.3)
    assert re.fullmatch(r"note: computing a spectrum, 0 s so far\n", capsys.readouterr().err)
    with output.waiting("a spectrum", quiet=True):
        time.sleep(0.2)
    monkeypatch.setattr(output, "PATIENCE", 5.0)
    with output.waiting("a spectrum"):
        pass
    assert capsys.readouterr().err == ""


def test_names_of_experiments_are_completed():
    asked = {
        "_FIRSTSTEP_COMPLETE": "bash_complete",
        "COMP_WORDS": "firststep reproduce st",
        "COMP_CWORD": "2",
    }
    found = firststep_process(env={**os.environ, **asked})
    assert found.stdout.split() == ["plain,staircase-emerging", "plain,step-or-samples"]


def test_steps_beyond_the_theory_have_a_note():
    assert "beyond sqrt(N)" in succeed("predict", *SMALL, "--step-exponent", "0.7").stderr
    assert "beyond" not in succeed("predict", *SMALL, "--step-exponent", "0.5").stderr


def test_exponents_are_not_rounded():
    assert "(α = 0.075)" in succeed("spectrum", *SMALL, "--step-exponent", "0.075", "--of", "weights").stdout


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT for a single process")
def test_ctrl_c_ends_a_long_call_of_lapack():
    code = (
        "import sys, threading, numpy as np\n"
        "from firststep.cli.output import interruptible\n"
        "with interruptible():\n"
        "    matrix = np.random.default_rng(0).standard_normal((2200, 2200))\n"
        "    sys.stdout.write('ready\\n'); sys.stdout.flush()\n"
        "    for _ in range(3): np.linalg.eig(matrix)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.5)
    begin = time.monotonic()
    process.send_signal(signal.SIGINT)
    process.wait(timeout=60)
    process.stdout.close()
    assert time.monotonic() - begin < 4
    assert process.returncode != 0


def test_a_plot_of_later_steps_is_refused_before_anything_is_computed(tmp_path):
    pytest.importorskip("matplotlib")
    target = tmp_path / "errors.svg"
    words = fail("predict", "--next-step-exponent", "0.2", "--plot", str(target), code=2)
    assert "leave out the later steps" in words
    assert not target.exists()
