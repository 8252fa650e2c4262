"""The public functions understand singular and plural names, and refuse the rest in a sentence."""

import inspect

import numpy as np
import pytest

import firststep
from firststep import Problem, Sizes, compare, predict, predict_spectrum, simulate, simulate_spectrum

PROBLEM, SIZES = Problem("tanh", "h1", noise_std=0.5), Sizes(60, 30, 45)


def test_singular_and_plural_names_are_alike():
    plural = predict(PROBLEM, SIZES, step_exponents=0.3, ridges=0.2)
    singular = predict(PROBLEM, SIZES, step_exponent=0.3, ridge=0.2)
    np.testing.assert_array_equal(plural.test_error, singular.test_error)
    drawn = simulate(PROBLEM, SIZES, step_size=1.0, ridge=0.2, replicas=2, workers=1, progress=False)
    same = simulate(PROBLEM, SIZES, step_sizes=1.0, ridges=0.2, replicas=2, workers=1, progress=False)
    np.testing.assert_array_equal(drawn.test_error, same.test_error)
    both = compare(PROBLEM, SIZES, step_size=1.0, ridge=0.2, replicas=2, workers=1, progress=False)
    np.testing.assert_array_equal(both.simulated.test_error, same.test_error)


@pytest.mark.parametrize("function", [predict_spectrum, simulate_spectrum])
def test_spectra_take_the_steps_that_errors_take(function):
    by_size = function(PROBLEM, SIZES, step_size=SIZES.step_size(0.3), of="weights")
    by_exponent = function(PROBLEM, SIZES, step_exponent=0.3, of="weights")
    assert by_size.edges == by_exponent.edges
    several = function(PROBLEM, SIZES, step_exponents=[0.1, 0.3], of="weights")
    assert [s.step_size for s in several] == pytest.approx([SIZES.step_size(0.1), SIZES.step_size(0.3)])
    assert several[1].edges == by_size.edges
    with pytest.raises(ValueError, match="either step_sizes"):
        function(PROBLEM, SIZES)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: predict(SIZES, PROBLEM, 1.0), "predict takes the problem first and then the sizes"),
        (lambda: compare(SIZES, PROBLEM, 1.0), "compare takes the problem first"),
        (lambda: predict("relu", SIZES, 1.0), r"make one with Problem\(activation, teacher"),
        (lambda: predict(PROBLEM, (60, 30, 45), 1.0), r"make them with Sizes\(n_samples, dim, width"),
        (lambda: predict(PROBLEM, SIZES, 1.0, ridge=0.1, ridges=0.2), "are the same: give one of them"),
        (lambda: predict(PROBLEM, SIZES, 1.0, ridgse=0.1), "did you mean ridges"),
        (lambda: predict(PROBLEM, SIZES, 1.0, n_spikes=1), "theory='unified' takes no n_spikes"),
        (
            lambda: simulate(PROBLEM, SIZES, 1.0, repliacs=2),
            "simulate takes no repliacs: did you mean replicas",
        ),
        (lambda: compare(PROBLEM, SIZES, 1.0, sed=2), "did you mean seed"),
        (lambda: predict_spectrum(PROBLEM, SIZES, 1.0, theory="unified"), "predict_spectrum takes no theory"),
    ],
)
def test_mistakes_are_named_with_their_remedy(call, words):
    with pytest.raises(TypeError, match=words):
        call()


@pytest.mark.parametrize("name", ["predict", "simulate", "compare", "predict_spectrum", "simulate_spectrum"])
def test_help_is_readable(name):
    shown = str(inspect.signature(getattr(firststep, name)))
    assert "ArrayLike" in shown
    assert "numpy." not in shown
    assert len(shown) < 800


def test_warnings_point_at_the_caller():
    with pytest.warns(firststep.setting.OutsideTheoryWarning) as caught:
        predict(Problem("tanh", "h2"), SIZES, 1.0)
    assert caught[0].filename == __file__
