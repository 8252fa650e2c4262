"""A readout law of one file and one line: it works everywhere, and simulation and theory agree on it."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

from firststep import Problem, Sizes, compare
from firststep.cli.app import main
from firststep.setting.readouts.laplace import LAW


def test_laplace_readouts_work_everywhere_and_agree_with_their_theory() -> None:
    nodes, weights = LAW.rule(0.45)
    assert [weights @ nodes**k for k in (1, 2, 4)] == pytest.approx([0, 1, 6], abs=1e-6)
    draws = LAW.draw(lambda: np.random.default_rng(0), 100_000)
    assert np.mean(draws**2) == pytest.approx(1, abs=4 * np.sqrt(5 / 100_000))

    problem = Problem("relu", "h1 + h2/sqrt(2)", noise_std=0.3, readout="laplace")
    found = compare(
        problem, Sizes(300, 150, 225), step_exponents=[0, 0.25, 0.5], replicas=40, seed=1, workers=1
    )
    for quantity in ("train_error", "test_error"):
        assert np.abs(found.distances(quantity)).max() < 4
    wrong = 1.1 * found.predicted["unified"].test_error
    assert (np.abs(found.simulated.test_error - wrong) > 4 * found.simulated.stderr["test_error"]).all()

    asked = ["predict", "--readout", "laplace", "--noise-std", "0.3", "--n-samples", "300", "--dim", "150"]
    done = CliRunner().invoke(main, [*asked, "--width", "225", "--step-exponent", "0.25", "--json"])
    predicted = found.predicted["unified"].test_error[1, 0]
    assert json.loads(done.stdout)["rows"][0]["test_error"] == pytest.approx(predicted, rel=1e-6)

    pytest.importorskip("pydantic")
    from firststep.experiment import expand, parse
    from firststep.explorer.state import State, as_command, as_python, as_toml, choices

    state = State(readout="laplace", noise_std=0.3, n_samples=300)
    assert state.problem == problem
    assert expand(parse(as_toml(state)))[0].problem == problem
    assert "laplace" in as_python(state)
    assert "--readout laplace" in as_command(state)
    offered = {field["name"]: field["choices"] for field in choices()["fields"]}
    assert offered["readout"]["laplace"] == "Laplace of variance 1/N"
