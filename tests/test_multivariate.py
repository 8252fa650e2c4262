"""Teachers of several directions: reading, exact averages, quadrature, what each step can see."""

import copy
import json
import math
import pickle
from itertools import pairwise

import numpy as np
import pytest
from scipy import integrate

from firststep import Problem, Sizes, arrays, function
from firststep.gaussian import Function, MultiFunction, hermite_polynomials, teacher_function
from firststep.gaussian.multivariate import ACCURACY
from firststep.gaussian.products import nested_rule


def smooth_pair(t):
    return np.tanh(t[:, 0]) * t[:, 1] + t[:, 0]


smooth_pair.directions = 2


def kinked_pair(t):
    return np.abs(t[:, 0] - t[:, 1])


def average(call):
    """E call(t1, t2) by SciPy's adaptive quadrature, in the corners between the axes and the diagonals."""

    def polar(r, angle):
        return call(r * math.cos(angle), r * math.sin(angle)) * r * math.exp(-r * r / 2) / (2 * math.pi)

    corners = np.arange(9) * math.pi / 4
    pieces = [integrate.dblquad(polar, a, b, 0, 12, epsabs=1e-11)[0] for a, b in pairwise(corners)]
    return math.fsum(pieces)


PAIRS = {
    "relu(t1 - t2)": lambda a, b: max(a - b, 0.0),
    "relu(t1)*relu(t2)": lambda a, b: max(a, 0.0) * max(b, 0.0),
    "max(t1, t2)*t1": lambda a, b: max(a, b) * a,
    "relu(t1*t2)": lambda a, b: max(a * b, 0.0),
    "abs(t1 - t2)*abs(t1 + t2) + tanh(t1)": lambda a, b: abs(a * a - b * b) + math.tanh(a),
    "tanh(t1*t2)/2 + t1*t2": lambda a, b: math.tanh(a * b) / 2 + a * b,
    "h2(t1) + t1*t2 + relu(t1 - t2)": lambda a, b: a * a - 1 + a * b + max(a - b, 0.0),
}


@pytest.mark.parametrize("spec", PAIRS)
def test_averages_against_adaptive_quadrature(spec):
    plain, made = PAIRS[spec], teacher_function(spec, centre=False)
    size = math.sqrt(average(lambda a, b: plain(a, b) ** 2))
    tolerance = 1e-9 + 10 * made.accuracy * size
    assert made.mean == pytest.approx(average(plain), abs=tolerance)
    assert made.second_moment == pytest.approx(size**2, abs=tolerance * max(1, size))
    assert made.gradient_mean[1] == pytest.approx(average(lambda a, b: plain(a, b) * b), abs=tolerance)
    mixed = average(lambda a, b: plain(a, b) * a * b)
    assert made.hermite_tensor((1, 1)) == pytest.approx(mixed, abs=tolerance)
    assert made.hessian_mean[0, 1] == made.hessian_mean[1, 0] == pytest.approx(mixed, abs=tolerance)
    assert made.hessian_mean[0, 0] == pytest.approx(
        average(lambda a, b: plain(a, b) * (a * a - 1)), abs=tolerance
    )
    assert made.accuracy <= ACCURACY


def test_polynomials_are_exact():
    made = teacher_function("h2(0.8*t1 + 0.6*t2) + 2*t1*t2**2/4 - h3(t3)", centre=False)
    assert made.accuracy == 0
    # H_2 of a unit combination is sum 2!/a! u^a H_a, and t1 t2^2 = H_1 H_2 + H_1.
    expected = {
        (2, 0, 0): 0.64,
        (1, 1, 0): 0.96,
        (0, 2, 0): 0.36,
        (1, 2, 0): 0.5,
        (1, 0, 0): 0.5,
        (0, 0, 3): -1,
    }
    assert made.polynomial == pytest.approx(expected)
    assert made.second_moment == pytest.approx(2 + 0.25 * 2 + 0.25 + 6)
    # Against the sum itself at points.
    points = np.random.default_rng(1).standard_normal((50, 3))
    rows = [hermite_polynomials(points[:, i], 4) for i in range(3)]
    total = sum(
        c * np.prod([rows[i][a] for i, a in enumerate(index)], axis=0) for index, c in expected.items()
    )
    assert made(points) == pytest.approx(total)


def test_a_function_of_one_combination_is_exact():
    made = teacher_function("tanh(3*t1 - 4*t2) + relu(4*t2 - 3*t1)**2 + 0*t3")
    alone = function("tanh(5*x) + relu(-5*x)**2")
    assert made.accuracy == 0
    assert made.second_moment == pytest.approx(alone.second_moment, rel=1e-9)
    assert made.mean == pytest.approx(alone.mean, rel=1e-9)
    assert np.abs(made.first_direction) == pytest.approx([0.6, 0.8, 0])
    # The direction that a step sees is the one along which the teacher grows.
    sign = np.sign(alone.hermite(2)[1])
    assert made.hermite(6) == pytest.approx(alone.hermite(6) * sign ** np.arange(6), rel=1e-8, abs=1e-9)


def test_factors_without_a_common_variable_are_exact():
    made = teacher_function("tanh(t1 + t2)*t3*t4 + t1")
    assert made.accuracy == 0
    wide = function("tanh(sqrt(2)*x)")
    assert made.second_moment == pytest.approx(1 + wide.second_moment)
    slope = float(wide.hermite(2)[1]) / math.sqrt(2)
    assert made.hermite_tensor((1, 0, 1, 1)) == pytest.approx(slope)


@pytest.mark.parametrize("spec", ["relu", "t1", "h1 + h2/sqrt(2)", "h2(t1)", "relu(t1) + 0.5*x", [0, 1, 0.5]])
def test_one_direction_is_todays_function(spec):
    made = teacher_function(spec)
    assert isinstance(made, Function)
    again = function(spec.replace("t1", "x") if isinstance(spec, str) else spec)
    assert (made.spec, made.key) == (again.spec, again.key)
    points = np.array([[-1.0], [0.5]])
    assert made.directions == 1
    assert np.array_equal(made.at(points), made(points[:, 0]))


def test_x_and_bare_hermites_mean_the_first_direction():
    assert teacher_function("x + h2 + x*t2") == teacher_function("t1 + h2(t1) + t1*t2")
    assert teacher_function("h2+t1  * t2").spec == "h2(t1) + t1*t2"


def test_given_by_multi_indices():
    made = teacher_function({(1, 0): 1.0, (1, 1): -0.5, (0, 2): 0.25})
    assert made == teacher_function("1*h1(t1) - 0.5*h1(t1)*h1(t2) + 0.25*h2(t2)")
    assert made.hermite_tensor((1, 1)) == -0.5
    assert teacher_function({(1,): 1.0, (3,): 0.5}).hermite(4).tolist() == [0, 1, 0, 0.5]
    for wrong, said in (
        ({}, "1 to 40 entries"),
        ({(1, 0): 1.0, (1,): 2.0}, "keys of one length"),
        ({(1, -1): 1.0}, "degrees from 0 to 20"),
        ({(1, 0): math.inf}, "must be at most"),
        ({(1, 0, 0, 0, 1): 1.0}, "at most 4 directions"),
    ):
        with pytest.raises(ValueError, match=said):
            teacher_function(wrong)


def test_a_callable_of_several_directions():
    made = teacher_function(smooth_pair)
    named = teacher_function("tanh(t1)*t2 + t1")
    assert made.directions == 2
    assert made.second_moment == pytest.approx(named.second_moment, rel=1e-8)
    assert made.gradient_mean == pytest.approx(named.gradient_mean, abs=1e-8)
    kinked = teacher_function(kinked_pair, directions=2, kinks=[((1, -1), 0)], name="gap")
    assert kinked.spec == "callable:gap"
    assert kinked.mean == pytest.approx(2 / math.sqrt(math.pi), rel=1e-12)
    with pytest.raises(ValueError, match=r"did not settle: two levels differ by .* not declared"):
        teacher_function(kinked_pair, directions=2)
    with pytest.raises(ValueError, match="must return 17 real numbers"):
        teacher_function(lambda t: t, directions=2)
    with pytest.raises(ValueError, match="act on each row alone"):
        teacher_function(lambda t: t[:, 0] - t[:, 1].mean(), directions=2)
    with pytest.raises(ValueError, match="a of 2 numbers"):
        teacher_function(kinked_pair, directions=2, kinks=[((1,), 0)])


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("t1 + t5", "at most 4 directions"),
        ("t0 + t2", "directions are t1 … t4; got t0"),
        ("t1 + t2*__import__", "unknown name '__import__'"),
        ("t1(t2)", "not allowed"),
        ("exp(t1*t2)", "did not settle"),
        ("t1 +* t2", "could not be read"),
        ("t1**t2", "exponent"),
        ("t2 + t1/0", "divides by zero"),
    ],
)
def test_what_cannot_be_a_teacher_is_refused(spec, said):
    with pytest.raises(ValueError, match=said):
        teacher_function(spec)


def test_an_activation_has_one_variable():
    with pytest.raises(ValueError, match="unknown name 't1'"):
        Problem("tanh(t1)", "h1")


def test_it_is_a_value():
    made = teacher_function("t1 + t1*t2")
    for other in (pickle.loads(pickle.dumps(made)), copy.deepcopy(made), teacher_function(made.spec)):
        assert other == made
        assert hash(other) == hash(made)
    assert made != teacher_function("t1 + t1*t2", centre=False)
    assert made != function("h1")
    assert teacher_function(made) is made
    called = teacher_function(smooth_pair)
    assert pickle.loads(pickle.dumps(called)) == called
    with pytest.raises(AttributeError, match="'tail' is defined for teachers of one direction"):
        made.tail(2)
    with pytest.raises(ValueError, match=r"takes points \(n, 2\), got shape \(3,\)"):
        made(np.zeros(3))
    assert made(np.zeros((3, 2), dtype=np.float32)).dtype == np.float32


def test_centring():
    plain, centred = (
        teacher_function("relu(t1)*relu(t2)", centre=False),
        teacher_function("relu(t1)*relu(t2)"),
    )
    assert plain.mean == centred.mean == pytest.approx(1 / (2 * math.pi))
    points = np.random.default_rng(0).standard_normal((20, 2))
    assert plain(points) - plain.mean == pytest.approx(centred(points))
    assert centred.second_moment == pytest.approx(0.25 - plain.mean**2)
    assert (plain.hermite(1)[0], centred.hermite(1)[0]) == (pytest.approx(plain.mean), 0)
    assert centred.hermite_tensor((0, 0)) == 0


def test_what_each_step_sees():
    made = teacher_function("0.8*t1 + 0.6*t2 + t1*t3")
    assert made.stages()[0][:, 0] == pytest.approx([0.8, 0.6, 0])
    assert np.abs(made.stages()[1][:, 0]) == pytest.approx([0, 0, 1])
    said = Problem("relu", made).concerns()
    assert said[0].startswith(
        "one step sees the direction 0.8 t1 + 0.6 t2; t3 enters only through t1 t3, which a second step can see"
    )
    climbing = teacher_function("t1 + t1*t2 + t1*t2*t3")
    assert [np.argmax(np.abs(stage[:, 0])) for stage in climbing.stages()] == [0, 1, 2]
    assert "t3 enters only through t1 t2 t3, which a third step can see" in climbing.what_steps_see()[0]
    hidden = teacher_function("t1 + t2*t3")
    assert len(hidden.stages()) == 1
    assert hidden.what_steps_see()[0].endswith("no later step of this kind sees t2 and t3")
    assert teacher_function("t1*t2").stages() == []
    assert "has no linear part" in Problem("relu", "t1*t2").concerns()[0]


def test_hermite_along_what_a_step_sees():
    made = teacher_function("0.6*t1 + 0.8*t2 + t1*t2 + h3(t1)")
    points = np.random.default_rng(0).standard_normal((2_000_000, 2))
    z, values = points @ [0.6, 0.8], made(points)
    for degree, found in enumerate(made.hermite(4)):
        sample = values * hermite_polynomials(z, 4)[degree] / math.factorial(degree)
        assert found == pytest.approx(sample.mean(), abs=5 * sample.std() / 1400)
    flat = teacher_function("t1*t2")
    assert flat.hermite(2).tolist() == [0, 0]
    with pytest.raises(ValueError, match="one step sees no direction"):
        flat.hermite(3)


def test_a_problem_with_it():
    problem = Problem("tanh", "3*t1 + 4*t2 + t1*t2", noise_std=0.5)
    sizes = Sizes(1000, 500, 750)
    assert problem.label_variance == pytest.approx(26.25)
    assert problem.direction_norm_squared(sizes) == pytest.approx(25 + 0.5 * 26.25)
    again = Problem.from_dict(json.loads(json.dumps(problem.to_dict())))
    assert again == problem
    assert isinstance(again.teacher, MultiFunction)
    assert problem.key != Problem("tanh", "3*t1 + 4*t2", noise_std=0.5).key
    assert Problem("tanh", "t1").key == Problem("tanh", "x").key


def test_rules_are_exact_between_planes():
    nodes, weights = nested_rule(3, [((1.0, -1.0, 0.0), 0.5), ((0.0, 1.0, 2.0), 0.0)], fine=True)
    assert weights.sum() == pytest.approx(1)
    value = weights @ (
        np.maximum(nodes[:, 0] - nodes[:, 1] - 0.5, 0) * np.abs(nodes[:, 1] + 2 * nodes[:, 2]) ** 2
    )
    # The second factor is a polynomial: E max(x - y - 1/2, 0) (y + 2 z)^2 over z leaves (y^2 + 4).
    pairs, shares = nested_rule(2, [((1.0, -1.0), 0.5)], fine=True)
    assert value == pytest.approx(
        shares @ (np.maximum(pairs[:, 0] - pairs[:, 1] - 0.5, 0) * (pairs[:, 1] ** 2 + 4)), rel=1e-10
    )


@pytest.mark.parametrize(
    "teacher", ["t1 + t1*t2", "relu(t1 - 2*t2) + t2", "tanh(t1)*t2 + t1", "t1 + relu(t1)*abs(t2)"]
)
@pytest.mark.parametrize("activation", ["relu", "tanh", "h1 + h2/2"])
def test_exact_test_errors_meet_a_large_sample(teacher, activation):
    rng = np.random.default_rng(3)
    weights, readout = rng.standard_normal((6, 40)) / math.sqrt(40), rng.standard_normal((1, 6))
    beta = np.linalg.qr(rng.standard_normal((40, 2)))[0]
    made, sigma = teacher_function(teacher), function(activation)
    exact = arrays.population_test_error(readout, weights @ weights.T, weights @ beta, sigma, made, 0.25)
    inputs = rng.standard_normal((400_000, 40))
    losses = (made(inputs @ beta) - sigma(inputs @ weights.T) @ readout[0]) ** 2
    assert exact[0] == pytest.approx(losses.mean() + 0.25, abs=4 * losses.std() / 632)
    assert losses.std() / 632 < 0.01 * losses.mean()


def test_linear_predictors():
    made = teacher_function("3*t1 + 4*t2 + t1*t2")
    beta = np.eye(4, 2)
    w = np.array([3.0, 4.0, 1.0, 0.0])
    assert arrays.linear_test_error(w, beta, made, 0.5)[0] == pytest.approx(1 + 1 + 0.5)


@pytest.mark.parametrize("kind", ["network", "gaussian"])
def test_spiked_models_have_the_test_error_of_a_large_sample(kind):
    rng = np.random.default_rng(12)
    weights, readout = rng.standard_normal((25, 30)) / math.sqrt(30), rng.standard_normal(25) / 5
    beta = np.linalg.qr(rng.standard_normal((30, 2)))[0]
    direction = beta @ [0.8, 0.5] + 0.1 * rng.standard_normal(30)
    made, sigma = teacher_function("t1 + t1*t2 + relu(t2)"), function("relu")
    inputs, fresh = rng.standard_normal((60, 30)), rng.standard_normal((200_000, 30))
    before = arrays.OneStep(weights, readout, direction, beta, sigma, made, 0.09)
    if kind == "network":
        model = arrays.spiked_network(inputs, before)
        design = sigma(fresh @ weights.T)
    else:
        model = arrays.gaussian_equivalent(inputs, rng.standard_normal((60, 25)), before)
        design = sigma.hermite(2)[1] * fresh @ weights.T
        design += math.sqrt(sigma.tail(2)) * rng.standard_normal(design.shape)
    strengths = np.array([3.0, -2.0, 1.5])
    path, exact = model.fit(made(inputs @ beta), [0.1, 1.0], strengths)
    for k, strength in enumerate(strengths, start=1):
        design += strength * np.outer((fresh @ direction) ** k, readout**k)
    losses = (made(fresh @ beta) - path.coefficients @ design.T) ** 2
    errors = losses.std(axis=1) / math.sqrt(len(fresh))
    assert np.all(np.abs(losses.mean(axis=1) + 0.09 - exact) < 4 * errors)
    assert np.max(np.abs(model.base_error(path.coefficients) - exact)) > 0.01
