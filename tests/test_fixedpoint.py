"""The solver of self-consistent equations: convergence, rescue, failure."""

import numpy as np
import pytest

from firststep.numerics.fixedpoint import ConvergenceError, Equations, solve


def golden(shift):
    """x (shift + x) = 1 for a batch of shifts, in relative steps."""

    def newton(x, index):
        error = x * (shift[index, None] + x) - 1
        return -error / (x * (shift[index, None] + 2 * x)), np.abs(error).max(axis=1)

    return newton, lambda x, index: 1 / (shift[index, None] + x)


def root(shift):
    return (np.sqrt(shift**2 + 4) - shift) / 2


def test_a_batch_converges():
    shift = np.array([0.01, 1.0, 30.0])
    newton, plain = golden(shift)
    found = solve(Equations(newton, plain), np.full((3, 1), 1e-3), tolerance=1e-12)
    assert np.allclose(found.value[:, 0], root(shift), rtol=1e-12)
    assert np.all(found.residual <= 1e-12)
    assert 1 <= found.iterations < 20


def test_complex_values():
    shift = np.array([1.0 + 0.5j])
    newton, plain = golden(shift)
    found = solve(Equations(newton, plain), np.ones((1, 1), dtype=complex))
    assert abs(found.value[0, 0] - root(shift)[0]) < 1e-11


def test_the_last_step_is_taken_for_free():
    shift = np.array([1.0])
    newton, plain = golden(shift)
    loose = solve(Equations(newton, plain), np.ones((1, 1)), tolerance=1e-4, plain_rounds=3)
    assert abs(loose.value[0, 0] - root(shift)[0]) < 1e-8 < loose.residual[0] + 1e-4


def test_a_point_without_a_newton_step_goes_on_by_the_map_alone():
    """The others of its batch do not notice."""
    shift = np.array([1.0, 2.0, 3.0])
    newton, plain = golden(shift)

    def singular(x, index):
        if (x < 0.05).any():
            raise np.linalg.LinAlgError("Singular matrix")
        return newton(x, index)

    start = np.array([[1.0], [0.01], [1.0]])
    found = solve(Equations(singular, plain), start, plain_rounds=0)
    assert np.allclose(found.value[:, 0], root(shift), rtol=1e-11)


def test_a_lost_newton_is_rescued():
    shift = np.array([1.0, 2.0])
    newton, plain = golden(shift)
    calls = []

    def misled(x, index):
        step, residual = newton(x, index)
        calls.append(len(index))
        # For a while the steps lead away, ever worse.
        return (step if len(calls) > 4 else np.full_like(step, 1.0)), residual

    found = solve(Equations(misled, plain), np.ones((2, 1)), tolerance=1e-12)
    assert np.allclose(found.value[:, 0], root(shift), rtol=1e-12)


def test_steps_that_are_no_numbers_are_rescued():
    shift = np.array([1.0])
    newton, plain = golden(shift)
    calls = []

    def broken(x, index):
        step, residual = newton(x, index)
        calls.append(0)
        return (step if len(calls) > 2 else np.full_like(step, np.inf)), residual

    assert np.allclose(solve(Equations(broken, plain), np.ones((1, 1))).value, root(shift))


def test_failure_names_the_remedy_and_brings_the_value():
    with pytest.raises(
        ConvergenceError, match=r"no solution of this after 5 rounds \(residual 1.0e\+00\): do that"
    ) as caught:
        solve(
            Equations(
                lambda x, index: (np.zeros_like(x), np.ones(len(x))),
                lambda x, index: x,
                what="this",
                remedy="do that",
            ),
            np.full((2, 3), 7.0),
            max_iter=5,
        )
    assert caught.value.value.shape == (2, 3)
    assert np.all(caught.value.residual == 1)


def test_only_the_unsolved_are_worked_on():
    shift = np.array([1.0, 1e-4])
    newton, plain = golden(shift)
    worked = []

    def counted(x, index):
        worked.append(len(index))
        return newton(x, index)

    start = np.array([[root(shift[0])], [1e-6]])
    solve(Equations(counted, plain), start, tolerance=1e-12, plain_rounds=0)
    assert worked[0] == 2
    assert worked[-1] == 1


def test_a_map_without_a_value_is_refused_in_words():
    def singular(values, index):
        raise np.linalg.LinAlgError("Singular matrix")

    equations = Equations(lambda values, index: (values, values[:, 0]), singular, remedy="raise ridge")
    with pytest.raises(ConvergenceError, match=r"no start for .*: raise ridge"):
        solve(equations, np.ones((2, 3)))
