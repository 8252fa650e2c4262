"""Simulated spectra: the measurement itself, and against the predicted ones."""

import json
import math

import numpy as np
import pytest
from click.testing import CliRunner

from firststep import figures
from firststep.arrays import features, gradient_step
from firststep.cli import spectrum as cli_spectrum
from firststep.cli.app import main
from firststep.figures import spectra as spectrum_figures
from firststep.setting import Problem, Sizes
from firststep.simulate import Draw, spectra
from firststep.simulate.spectra import (
    cumulative,
    feature_distances,
    find_outliers,
    gradient_distances,
    kolmogorov_distance,
    simulate_spectrum,
)
from firststep.theory.spectra.spectrum import KINDS, predict_spectrum

TEACHER = "h1 + h2/sqrt(2)"
SIZES = Sizes(240, 120, 180)


def drawn(problem: Problem, sizes: Sizes, step: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """W1, G and F of the first draw, computed apart."""
    draw = Draw(problem, sizes, 0, 0)
    scale = sizes.width**-0.5 if problem.initial_output == "vanishing" else 1.0
    made = gradient_step(*draw.step_sample(), draw.weights(), draw.readout(), problem.activation, scale)
    after = draw.weights() + step * made.gradient
    return after, made.gradient, features(draw.fit_sample()[0], after, problem.activation)


@pytest.mark.parametrize("initial_output", ["vanishing", "order_one"])
def test_eigenvalues_are_those_of_the_matrices(initial_output: str) -> None:
    problem = Problem("relu", TEACHER, 0.5, initial_output=initial_output)
    weights, gradient, design = drawn(problem, SIZES, 6.0)
    expected = {
        "weights": np.linalg.svd(weights, compute_uv=False) ** 2,
        "gradient": np.linalg.svd(gradient, compute_uv=False) ** 2,
        "features": np.linalg.svd(design, compute_uv=False) ** 2 / SIZES.n_samples,
    }
    for of, values in expected.items():
        found = simulate_spectrum(problem, SIZES, 6.0, of=of)
        np.testing.assert_allclose(found.details["eigenvalues"][0], values, atol=1e-10 * values[0])
        few = simulate_spectrum(problem, Sizes(600, 300, 400), 6.0, of=of, bulk=False, overlaps=False)
        all_ = simulate_spectrum(problem, Sizes(600, 300, 400), 6.0, of=of, overlaps=False)
        np.testing.assert_allclose(
            few.details["eigenvalues"][0],
            all_.details["eigenvalues"][0][: len(few.details["eigenvalues"][0])],
        )
        assert len(few.details["eigenvalues"][0]) < 50
        assert few.details["counts"] == all_.details["counts"]


def test_several_steps_on_one_draw_equal_single_ones() -> None:
    problem = Problem("tanh", TEACHER, 0.5)
    several = simulate_spectrum(problem, SIZES, [0.0, 6.0], replicas=2)
    for step, found in zip((0.0, 6.0), several, strict=True):
        alone = simulate_spectrum(problem, SIZES, step, replicas=2)
        np.testing.assert_array_equal(found.details["eigenvalues"], alone.details["eigenvalues"])
        assert [o.to_dict() for o in found.outliers] == [o.to_dict() for o in alone.outliers]
    before = simulate_spectrum(problem, SIZES, 6.0, of="spiked0", replicas=2, overlaps=False)
    np.testing.assert_allclose(before.details["eigenvalues"], several[0].details["eigenvalues"])


def test_histogram_and_atom_integrate_to_one() -> None:
    found = simulate_spectrum(Problem("tanh", TEACHER), SIZES, 0.0, replicas=3)
    width = found.x[1] - found.x[0]
    assert found.atom == pytest.approx(1 - 180 / 240)
    assert found.density.sum() * width + found.atom == pytest.approx(1, abs=1e-9)


def test_overlaps_are_squared_cosines_with_the_singular_vectors() -> None:
    problem = Problem("relu", TEACHER, 0.5)
    found = simulate_spectrum(problem, SIZES, 12.0, count=2)
    _, _, design = drawn(problem, SIZES, 12.0)
    left, _, right = np.linalg.svd(design, full_matrices=False)
    draw = Draw(problem, SIZES, 0, 0)
    inputs = draw.fit_sample()[0]
    made = gradient_step(
        *draw.step_sample(), draw.weights(), draw.readout(), problem.activation, SIZES.width**-0.5
    )
    z = inputs @ made.direction / np.linalg.norm(made.direction)
    for k, outlier in enumerate(found.outliers):
        for name, function in (("h1", z), ("h2", z**2 - 1), ("z2", z**2), ("beta", inputs @ draw.beta)):
            exact = (left[:, k] @ function) ** 2 / (function @ function)
            assert outlier.overlaps[name] == pytest.approx(exact, abs=1e-6)
        power = draw.readout() ** 2
        assert outlier.overlaps["a2"] == pytest.approx((right[k] @ power) ** 2 / (power @ power), abs=1e-6)


def test_nothing_is_found_where_there_is_nothing() -> None:
    problem = Problem("tanh", TEACHER, 0.5)
    for of in ("features", "weights"):
        found = simulate_spectrum(problem, SIZES, [0.0, 0.5], of=of, replicas=40, overlaps=False)
        for spectrum in found:
            # The rule errs in less than one draw in a thousand: two of forty would be a broken rule.
            assert sum(count > 0 for count in spectrum.details["counts"]) <= 1
            assert spectrum.outliers == ()


def test_a_planted_outlier_is_found() -> None:
    rng = np.random.default_rng(1)
    missed = 0
    for _ in range(20):
        noise = rng.standard_normal((200, 100)) / math.sqrt(200)
        spike = 1.6 * np.outer(np.ones(200) / math.sqrt(200), np.eye(100)[0])
        values = np.linalg.svd(noise + spike, compute_uv=False) ** 2
        missed += find_outliers(values).count != 1
    assert missed <= 1
    with pytest.raises(ValueError, match="need at least 7 eigenvalues, got 3"):
        find_outliers([1.0, 2.0, 3.0])


@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_bulk_without_a_step_in_kolmogorov_distance(activation: str) -> None:
    problem, sizes = Problem(activation, TEACHER), Sizes(800, 400, 600)
    simulated = simulate_spectrum(problem, sizes, 0.0, replicas=2, overlaps=False)
    predicted = predict_spectrum(problem, sizes, 0.0)
    assert kolmogorov_distance(simulated, predicted) < 0.006
    wrong = predict_spectrum(problem, Sizes(800, 360, 600), 0.0)
    assert kolmogorov_distance(simulated, wrong) > 0.01
    weights = simulate_spectrum(problem, sizes, 0.0, of="weights", overlaps=False)
    assert kolmogorov_distance(weights, predict_spectrum(problem, sizes, 0.0, of="weights")) < 0.006


def test_bulk_after_a_step_in_kolmogorov_distance() -> None:
    problem, sizes = Problem("relu", TEACHER, 0.5, initial_output="order_one"), Sizes(800, 400, 600)
    simulated = simulate_spectrum(problem, sizes, 14.0, overlaps=False)
    predicted = predict_spectrum(problem, sizes, 14.0)
    assert kolmogorov_distance(simulated, predicted) < 0.008
    assert kolmogorov_distance(simulated, predict_spectrum(problem, sizes, 50.0, check=False)) > 0.02
    assert cumulative(predicted, 0.0) == pytest.approx(predicted.atom)
    few = simulate_spectrum(problem, sizes, 14.0, replicas=1, bulk=False, overlaps=False)
    with pytest.raises(ValueError, match="bulk=True"):
        kolmogorov_distance(few, predicted)


def far(value: float, exact: float, stderr: float, bias: float) -> bool:
    """More than four standard errors and a relative bias apart."""
    return abs(value - exact) > 4 * stderr + bias * abs(exact)


def test_the_check_of_agreement_can_fail() -> None:
    assert far(1.2, 1.0, 0.01, 0.05)
    assert not far(1.05, 1.0, 0.01, 0.05)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("initial_output", ["vanishing", "order_one"])
def test_outliers_and_overlaps_agree(activation: str, initial_output: str) -> None:
    problem = Problem(activation, TEACHER, 0.5, initial_output=initial_output)
    sizes = Sizes(600, 300, 450)
    predicted = predict_spectrum(problem, sizes, sizes.step_size(0.4))
    simulated = simulate_spectrum(
        problem, sizes, sizes.step_size(0.4), replicas=8, bulk=False, count=len(predicted.outliers)
    )
    assert len(predicted.outliers) == (2 if activation == "relu" else 1)
    for theory, found, error in zip(
        predicted.outliers, simulated.outliers, simulated.details["stderr"], strict=True
    ):
        # The bias at n = 600 is a few per cent and falls like 1/n, as the slow test below shows.
        assert not far(found.eigenvalue, theory.eigenvalue, error["eigenvalue"], 0.03)
        assert far(found.eigenvalue * 2, theory.eigenvalue, error["eigenvalue"], 0.03)
        for name, value in theory.overlaps.items():
            assert abs(found.overlaps[name] - value) < 4 * error["overlaps"][name] + 0.04


@pytest.mark.slow
def test_the_bias_of_the_outliers_shrinks_with_n() -> None:
    problem = Problem("relu", TEACHER, 0.5, initial_output="order_one")
    biases = []
    for n, replicas in ((250, 200), (1000, 60)):
        sizes = Sizes(n, n // 2, 3 * n // 4)
        step = sizes.step_size(0.4)
        theory = predict_spectrum(problem, sizes, step).outliers[0]
        found = simulate_spectrum(problem, sizes, step, replicas=replicas, bulk=False, count=1)
        error = found.details["stderr"][0]
        assert not far(found.outliers[0].eigenvalue, theory.eigenvalue, error["eigenvalue"], 40 / n)
        biases.append(abs(found.outliers[0].overlaps["a1"] - theory.overlaps["a1"]))
        assert biases[-1] < 4 * error["overlaps"]["a1"] + 10 / n
    assert biases[1] < biases[0]


@pytest.mark.slow
def test_the_published_setting_at_full_size() -> None:
    problem = Problem("relu", TEACHER, 0.5, initial_output="order_one")
    sizes = Sizes(2000, 1000, 1500)
    steps = [sizes.step_size(alpha) for alpha in (0.2, 0.3, 0.4)]
    simulated = simulate_spectrum(problem, sizes, steps, replicas=8, seed=3, bulk=False, count=2)
    for step, found in zip(steps, simulated, strict=True):
        predicted = predict_spectrum(problem, sizes, step)
        for k, theory in enumerate(predicted.outliers):
            error = found.details["stderr"][k]["eigenvalue"]
            assert not far(found.outliers[k].eigenvalue, theory.eigenvalue, error, 0.02)


def test_gradient_is_rank_one_along_the_right_direction() -> None:
    problem = Problem("relu", "h1", 1.0, initial_output="order_one")
    small, large = (gradient_distances(problem, Sizes(n, n // 2, 3 * n // 4)) for n in (250, 1000))
    assert small.names == ("direction", "labels")
    assert large.mean[0, 0] < 0.7 * small.mean[0, 0]
    # Without the initial output in the direction the distance stays.
    assert large.mean[0, 1] > 0.25
    vanishing = gradient_distances(problem.replaced(initial_output="vanishing"), Sizes(400, 200, 300))
    assert vanishing.mean[0, 0] == pytest.approx(vanishing.mean[0, 1], rel=0.05)


def test_features_approach_their_spiked_approximation() -> None:
    small, large = (
        feature_distances(Problem("tanh", TEACHER, 0.5), sizes, sizes.step_size(0.2), spikes=(0, 1))
        for sizes in (Sizes(150, 75, 110), Sizes(900, 450, 675))
    )
    assert large.mean[0, 0] > small.mean[0, 0]
    assert large.mean[0, 1] < 0.8 * small.mean[0, 1]


def test_bad_arguments_are_named() -> None:
    problem = Problem("tanh", TEACHER)
    with pytest.raises(ValueError, match="of must be one of features, weights, gradient"):
        simulate_spectrum(problem, SIZES, 1.0, of="kernel")
    with pytest.raises(ValueError, match="replicas must be at least 1, got 0"):
        simulate_spectrum(problem, SIZES, 1.0, replicas=0)
    with pytest.raises(TypeError, match="count must be a whole number"):
        simulate_spectrum(problem, SIZES, 1.0, count=1.5)  # type: ignore[call-overload]


def test_figures_are_plain_data_that_can_be_drawn() -> None:
    problem = Problem("relu", TEACHER, 0.5)
    steps = [SIZES.step_size(alpha) for alpha in (0.2, 0.45)]
    predicted = [predict_spectrum(problem, SIZES, step, points=40) for step in steps]
    simulated = simulate_spectrum(problem, SIZES, steps, replicas=2)
    made = {
        "histogram": spectrum_figures.histogram(predicted, simulated),
        "ladder": spectrum_figures.ladder(predicted, simulated),
        "alignment": spectrum_figures.alignment(predicted, simulated),
        "distances": spectrum_figures.distances(
            {
                "tanh": [
                    (n, feature_distances(Problem("tanh", TEACHER), Sizes(n, n // 2, n), 3.0))
                    for n in (40, 80)
                ]
            }
        ),
        "phase": spectrum_figures.phase_diagram(
            [0.5, 1.0, 2.0], {"first": [1.0, 2.0, math.inf]}, n_step_samples=100
        ),
    }
    assert len(made["histogram"].panels) == 2
    kinds = [series.kind for series in made["histogram"].panels[1].series]
    assert kinds == ["bars", "points", "line", "marks"]
    ladder = made["ladder"].panels[0].series
    assert next(s for s in ladder if s.kind == "vlines").names == ("1/4", "1/3", "3/8")
    assert next(s for s in ladder if s.kind == "line").y[1] == predicted[1].outliers[0].singular_value
    assert made["phase"].panels[0].series[0].y[1] == pytest.approx(math.log(2) / math.log(100))
    for figure in made.values():
        assert figures.Figure.from_dict(json.loads(json.dumps(figure.to_dict()))).panels
    pytest.importorskip("matplotlib")
    for name in ("histogram", "ladder", "alignment", "distances", "phase"):
        assert figures.render(made[name], "svg") == figures.render(made[name], "svg")
    with pytest.raises(ValueError, match="at least one spectrum"):
        spectrum_figures.ladder([])


def run(*arguments: str) -> str:
    sizes = "--n-samples", "200", "--dim", "100", "--width", "150"
    result = CliRunner().invoke(main, ["spectrum", *sizes, *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_command_prints_the_documented_json() -> None:
    content = json.loads(run("--step-exponent", "0.45", "--json"))
    assert set(content["bulk"]) == {"x", "density"}
    assert len(content["bulk"]["x"]) == len(content["bulk"]["density"]) == 200
    assert len(content["edges"]) == 2
    assert content["simulated"] is None
    outlier = content["outliers"][0]
    assert outlier["eigenvalue"] == pytest.approx(outlier["singular_value"] ** 2)
    assert outlier["overlaps"]["h1"] > 0.5
    drawn_too = json.loads(run("--step-exponent", "0.45", "--points", "20", "--json", "--simulate", "2"))
    assert drawn_too["simulated"]["replicas"] == 2
    assert drawn_too["simulated"]["outliers"][0]["stderr"]["eigenvalue"] > 0
    one = json.loads(run("--of", "weights", "--step-size", "1,6", "--json", "--simulate"))
    assert [len(spectrum["outliers"]) for spectrum in one["spectra"]] == [0, 1]
    assert one["spectra"][0]["simulated"]["replicas"] == 1


def test_command_prints_text() -> None:
    text = run("--step-exponent", "0.45", "--points", "20", "--simulate", "2")
    assert "outlier " in text
    assert "simulated" in text
    assert "overlaps h1" in text


def test_command_knows_the_kinds() -> None:
    assert cli_spectrum.KINDS == KINDS
    assert set(KINDS) < set(spectra.KINDS)
