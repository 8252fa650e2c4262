"""The numbers behind the page: computed in worker processes, put together in the server, drawn by the page."""

import math
import warnings
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from firststep.explorer.state import (
    State,
    as_command,
    as_python,
    as_toml,
    exponents,
    nice_ticks,
)
from firststep.figures import THRESHOLDS
from firststep.gaussian import Array, MultiFunction, hermite_polynomials
from firststep.numerics.fixedpoint import ConvergenceError
from firststep.results import Outcome
from firststep.setting import FIELDS, OutsideTheoryWarning, Problem, Sizes

# Relative accuracies: of curves while a slider moves (unchecked), of curves at rest where exact ones take long, of
# curves at rest (as `predict`), and the least.
DRAFT, FAIR, EXACT, LEAST = math.inf, 1e-4, 1e-6, 1e-2
# Hermite degrees with a bar of their own; the rest is one bar.
BARS = 5
FUNCTIONS = ("activation", "teacher")
# Bars for the spectrum of the inputs.
INPUT_BARS = 24
# Levels of a spectrum that is drawn by hand, and the most that somebody may have written.
LEVELS, MOST_LEVELS = 6, 10
# Where functions of one variable are drawn.
REACH, POINTS = 2.6, 53
# Hermite coefficients of the learned function.
LEARNED = 16
DENSITY_POINTS = 120
# Windows of the staircase beyond this one are thinner than a line.
LAST_WINDOW = 9
# What is solved at each exponent; the last two where the theory has them.
SOLVED = ("train", "test", "learned", "train_bar", "test_bar")
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def outside(problem: Problem, theory: str = "unified") -> str:
    """Why a theory does not know this problem, in a sentence; nothing where it does.

    Examples
    --------
    >>> outside(Problem("relu", "h1", step_rule="sign"))
    'the unified theory does not know sign steps: simulate them'
    """
    from firststep.theory.scope import check_scope

    try:
        check_scope(problem, theory)
    except ValueError as error:
        return str(error)
    return ""


def slow(state: State) -> bool:
    """Whether exact curves take long: with few dimensions a neuron is known by more than its readout.

    Examples
    --------
    >>> slow(State(n_samples=1000, dim_per_sample=0.05)), slow(State(n_samples=1000))
    (True, False)
    """
    from firststep.theory.own_component import knows_own

    return knows_own(state.problem, state.sizes, 2, "structured")


def draft_nodes(n_samples: float) -> Array:
    """Exponents from which a draft of the curves is interpolated: Chebyshev points, more for larger n.

    Steps of the curve are about 1/log n wide, so that 4 points for each decade leave an error near 1e-3.

    Examples
    --------
    >>> len(draft_nodes(1e3)), len(draft_nodes(1e30))
    (12, 61)
    """
    grid = exponents()
    count = max(12, math.ceil(4 * math.log10(n_samples)))
    if count >= len(grid) // 2:
        return np.array(grid)
    x = np.cos(np.pi * np.arange(count) / (count - 1))[::-1]
    return np.asarray(grid[0] + (grid[-1] - grid[0]) * (x + 1) / 2)


@lru_cache(maxsize=64)
def _interpolation(nodes: bytes) -> Array:
    """Barycentric interpolation from Chebyshev points to the slider's positions, (positions, nodes)."""
    x, at = np.frombuffer(nodes), np.array(exponents())
    weights = (-1.0) ** np.arange(len(x))
    weights[[0, -1]] /= 2
    distance = at[:, None] - x
    hit = np.abs(distance) < 1e-12
    rows = weights / np.where(hit, 1.0, distance)
    rows /= rows.sum(axis=1, keepdims=True)
    return np.where(hit.any(axis=1, keepdims=True), hit.astype(float), rows)


def solve_points(state: Mapping[str, Any], at: Sequence[float | None], tolerance: float) -> dict[str, Any]:
    """Errors and learned functions of the unified theory at these exponents; None stands for no step.

    Where the theory does not reach the tolerance it is asked for less, and a point without an answer is NaN.
    """
    view = State(**state)
    sizes = view.sizes
    steps = np.array([0.0 if alpha is None else sizes.step_size(alpha) for alpha in at])
    unknown = outside(view.problem)
    if unknown:
        return _nothing(len(steps), unknown)
    notes: list[str] = []
    outcome: Outcome | None = None
    asked = (DRAFT,) if tolerance == DRAFT else (tolerance, max(tolerance, 1e-4), LEAST)
    for accepted in dict.fromkeys(asked):
        try:
            outcome = _unified(view, steps, accepted)
        except ConvergenceError:
            continue
        if DRAFT > accepted > max(tolerance, 1e-4):
            notes.append(f"the unified theory is accurate to {accepted:.0e} only in a part of this range")
        return _numbers(outcome) | {"notes": notes}
    if len(steps) == 1:
        return _nothing(1, "the unified theory does not converge in a part of this range")
    parts = [solve_points(state, [alpha], LEAST) for alpha in at]
    joined: dict[str, Any] = {
        name: [part[name][0] for part in parts] for name in SOLVED if all(name in part for part in parts)
    }
    return joined | {"notes": sorted({note for part in parts for note in part["notes"]})}


def _nothing(count: int, reason: str) -> dict[str, Any]:
    """As many points without an answer."""
    return {
        "train": [math.nan] * count,
        "test": [math.nan] * count,
        "learned": [[math.nan] * LEARNED] * count,
        "notes": [reason],
    }


def _unified(view: State, steps: Array, tolerance: float) -> Outcome:
    from firststep.theory import predict

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OutsideTheoryWarning)
        return predict(view.problem, view.sizes, steps, view.ridge, tolerance=tolerance)


def _numbers(outcome: Outcome) -> dict[str, Any]:
    found: dict[str, Any] = {
        "train": outcome.train_error[:, 0].tolist(),
        "test": outcome.test_error[:, 0].tolist(),
        "learned": np.asarray(outcome.details["learned"])[:, 0].tolist(),
    }
    # How far off the theory says it may be, where it says so.
    for name in ("train", "test"):
        if f"{name}_error_bar" in outcome.values:
            found[f"{name}_bar"] = np.asarray(outcome.values[f"{name}_error_bar"])[:, 0].tolist()
    return found


def solve_frame(state: Mapping[str, Any]) -> dict[str, Any]:
    """Everything around the curves that has a formula of its own: levels, bounds, weights, the teacher."""
    from firststep.theory.limits.weights import spiked_weights

    view = State(**state)
    problem, sizes = view.problem, view.sizes
    weights = spiked_weights(problem, sizes, sizes.step_size(np.array(exponents())))
    frame = _teacher(problem)
    cosine = frame["wanted"][1] ** 2 / problem.direction_norm_squared(sizes)
    # The weights' law is that of steps that the theory knows, on isotropic inputs; others have it in their spectrum.
    known = not outside(problem) and problem.covariance(sizes.dim).isotropic
    critical = weights.critical_step if known else math.nan
    labels = problem.label_variance
    return frame | {
        "sizes": sizes.to_dict(),
        "log_n0": math.log(sizes.n_step_samples),
        **_limits(view, problem, sizes),
        # The best linear predictor misses all but the first degree.
        "best_linear": labels - frame["wanted"][1] ** 2,
        "noise": problem.noise_variance,
        "labels": labels,
        "activation_coefficients": problem.activation.hermite(BARS).tolist(),
        "inputs": _input_spectrum(problem, sizes.dim),
        "weights": {
            "top": weights.top.tolist(),
            "alignment": (weights.alignment if known else np.full_like(weights.alignment, math.nan)).tolist(),
            "edge": weights.edge,
            "bound": cosine if known else math.nan,
            "critical": float(sizes.step_exponent(critical)) if math.isfinite(critical) else None,
            "critical_step": critical if math.isfinite(critical) else None,
        },
        "notes": list(problem.concerns(sizes)),
    }


def _teacher(problem: Problem) -> dict[str, Any]:
    """The teacher as a function of one coordinate: of several directions its mean along the one that a step sees."""
    teacher = problem.teacher
    several = isinstance(teacher, MultiFunction)
    x = np.linspace(-REACH, REACH, POINTS)
    factorials = np.array([math.factorial(k) for k in range(LEARNED)], dtype=float)
    wanted = np.zeros(LEARNED)
    # A teacher without a mean gradient has no direction that one step sees.
    if not isinstance(teacher, MultiFunction) or teacher.first_direction is not None:
        wanted = teacher.hermite(LEARNED) * np.sqrt(factorials)
    basis = hermite_polynomials(x, LEARNED, normalised=True)
    variance = problem.label_variance - problem.noise_variance
    return {
        "several": several,
        "teacher": {"x": x.tolist(), "y": np.asarray(wanted @ basis if several else teacher(x)).tolist()},
        "wanted": wanted.tolist(),
        "tail": max(0.0, variance - float((wanted[1:] ** 2).sum())) if several else teacher.tail(LEARNED),
    }


def _limits(view: State, problem: Problem, sizes: Sizes) -> dict[str, Any]:
    """The limits' levels and the network without a step, where these theories know the problem."""
    from firststep.theory.limits import random_features, staircase
    from firststep.theory.loud import has_loud_direction

    ridges = np.array([view.ridge])
    plain = None
    # Without a step it does not matter how it is made.
    usual = {field.name: field.default for field in FIELDS if field.part in ("training", "fit")}
    still = view.model_copy(update=usual).problem
    if not outside(still, "random_features"):
        solved = random_features.solve(still, sizes, np.zeros(1), ridges)
        plain = {"train": float(solved.train_error[0, 0]), "test": float(solved.test_error[0, 0])}
    # The line does not tend to the limit of bounded eigenvalues where one of them is not small against d.
    if outside(problem, "staircase") or has_loud_direction(problem, sizes):
        return {"levels": [], "random_features": plain}
    starts = [staircase.window_start(k) for k in range(1, LAST_WINDOW + 1)]
    # No step below alpha = 0, then one window after the other.
    windows = [(exponents()[0], 0.0), *zip(starts, [*starts[1:], 0.5], strict=True)]
    counts = list(range(len(windows)))
    some = np.ones(len(windows))
    published = staircase.solve(problem, sizes, some, ridges, n_spikes=counts)
    whole = staircase.solve(problem, sizes, some, ridges, n_spikes=counts, row_norms=True, full_gradient=True)
    levels = [
        {
            "from": low,
            "to": high,
            "spikes": list(published.details["degrees"][i]),
            "train": float(published.train_error[i, 0]),
            "test": float(published.test_error[i, 0]),
            "whole_train": float(whole.train_error[i, 0]),
            "whole_test": float(whole.test_error[i, 0]),
        }
        for i, (low, high) in enumerate(windows)
    ]
    return {"levels": levels, "random_features": plain}


def _input_spectrum(problem: Problem, dim: int) -> dict[str, Any]:
    """Eigenvalues of the inputs' covariance, descending, in shares of equal size, with the teacher's share of each.

    `editable` holds the same as a few levels, to be changed by hand, but for a single loud direction, which they would
    lose.
    """
    covariance = problem.covariance(min(dim, 10**4))
    place = np.repeat(np.arange(len(covariance.values)), covariance.counts.astype(int))
    shares = covariance.weights / covariance.counts

    def grouped(many: int) -> tuple[list[float], list[float]]:
        groups = np.array_split(place, min(many, len(place)))
        values = [float(covariance.values[group].mean()) for group in groups]
        return values, [len(groups) * float(shares[group].sum()) for group in groups]

    given = problem.input_levels
    several = 0 < len(given) <= MOST_LEVELS
    levels, weights = grouped(len(given) if several else LEVELS)
    if several:
        # As they were written: in a small dimension the shares are not quite equal.
        levels = list(given)
    bars = (levels, weights) if several or covariance.isotropic else grouped(INPUT_BARS)
    return {
        "isotropic": covariance.isotropic,
        "eigenvalues": bars[0],
        "teacher": bars[1],
        "editable": {"levels": levels, "shares": weights},
        "loud": bool(problem.input_spikes),
    }


@lru_cache(maxsize=2)
def _follower(of: str) -> Any:
    """One for each process, so that a spectrum is started from the one before it."""
    from firststep.theory.spectra.spectrum import Follower

    return Follower(of)


def solve_spectrum(
    state: Mapping[str, Any], of: str, exact: bool, points: int = DENSITY_POINTS
) -> dict[str, Any]:
    """Density and outliers of the features or the weights: at the usual resolution, or refined until it settles.

    After two steps there is one resolution, so that every answer is final. Where that theory does not know the
    problem the spectrum is that after the first step, and `said` tells why.
    """
    from firststep.theory.spectra.spectrum import predict_spectrum

    view = State(**state)
    problem = view.problem
    unknown = outside(problem, "spectral")
    if unknown:
        raise ValueError(unknown)
    said = _unknown_twice(view, of)
    later = None if said else view.next_eta
    if later is not None:
        found = predict_spectrum(problem, view.sizes, view.eta, of=of, points=points, next_step_sizes=later)
    elif exact:
        found = predict_spectrum(problem, view.sizes, view.eta, of=of, points=points)
    else:
        found = _follower(of).spectrum(problem, view.sizes, view.eta, points)
    return {
        "x": found.x.tolist(),
        "density": found.density.tolist(),
        "edges": list(found.edges),
        "intervals": [list(pair) for pair in found.intervals],
        "atom": found.atom,
        "outliers": [outlier.to_dict() for outlier in found.outliers],
        "step_size": view.eta,
        "steps": 1 if later is None else 2,
        "final": exact or later is not None,
        "said": said,
    }


def _unknown_twice(view: State, of: str) -> str:
    """Why there is no spectrum after the second step that is asked for, in a sentence; nothing where there is one."""
    from firststep.theory.spectra.two_steps import check_steps

    if view.next_eta is None:
        return ""
    try:
        check_steps(view.problem, view.sizes, 2, of, "structured")
    except ValueError as error:
        return str(error)
    return ""


def solve_critical(state: Mapping[str, Any], count: int = 3) -> dict[str, Any]:
    """Exponents at which the first spikes leave the features' bulk, as far as the slider reaches."""
    from firststep.theory.spectra.spectrum import critical_steps

    view = State(**state)
    problem = view.problem
    if outside(problem, "spectral"):
        return {"critical": []}
    found = critical_steps(problem, view.sizes, count=count)
    at = [float(view.sizes.step_exponent(step)) for step in found if math.isfinite(step) and step > 0]
    inside = [alpha for alpha in at if exponents()[0] <= alpha <= exponents()[-1]]
    return {
        "critical": [
            {"at": short(alpha, 4), "text": f"{alpha:.2f}", "spike": i + 1} for i, alpha in enumerate(inside)
        ]
    }


def warm_up() -> None:
    """Import and compute once what the first request needs."""
    state = State(n_samples=200).model_dump()
    solve_frame(state)
    solve_points(state, [None, 0.1, 0.4], DRAFT)
    for of in ("features", "weights"):
        solve_spectrum(state, of, exact=False)


def short(value: float, digits: int = 5) -> float | None:
    """A number with few digits, for a screen; None where there is none."""
    return float(f"{value:.{digits}g}") if math.isfinite(value) else None


def _list(values: Any, digits: int = 5) -> list[Any]:
    """Numbers for drawing, as a list, or a list for each row."""
    numbers = np.asarray(values, dtype=float)
    largest = float(np.abs(numbers[np.isfinite(numbers)]).max(initial=0.0))
    if largest > 0:
        # One rounding for all, at the last digit of the largest that is shown, and two more for the small ones.
        numbers = np.round(numbers, digits + 2 - math.ceil(math.log10(largest)))
    rounded: list[Any] = numbers.tolist()
    return rounded


def axis(label: str, low: float, high: float, *, count: int = 5, signed: bool = False) -> dict[str, Any]:
    """An axis with a little room at both ends and round numbers on it."""
    if not (math.isfinite(low) and math.isfinite(high)):
        low, high = 0.0, 1.0
    room = 0.06 * (high - low) if high > low else 0.5 * abs(high) or 1.0
    bottom = low - room if signed or low < 0 or low > 0.4 * high else 0.0
    top = high + room
    ticks = nice_ticks(bottom, top, count)
    digits = max(0, -math.floor(math.log10(ticks[1] - ticks[0]) + 1e-9)) if len(ticks) > 1 else 2
    # A step of 0.25 needs one digit more than its power of ten says.
    exact = digits + (any(abs(round(t, digits) - t) > 1e-9 for t in ticks))
    return {
        "label": label,
        "domain": [bottom, top],
        "ticks": [{"at": tick, "text": f"{tick:.{exact}f}".replace("-", "−")} for tick in ticks],
    }


@lru_cache(maxsize=1)
def step_axis() -> dict[str, Any]:
    """The axis of step exponents with its thresholds."""
    return {
        "label": "step exponent α = log η / log n₀",
        "domain": [exponents()[0], exponents()[-1]],
        "ticks": [{"at": 0.1 * i, "text": f"{0.1 * i:.1f}"} for i in range(6)],
        "thresholds": [{"at": value, "text": name} for name, value in THRESHOLDS.items()],
    }


def log_axis(label: str, low: float, high: float) -> dict[str, Any]:
    """An axis of decimal logarithms that grows by thirds of a decade, so that it rests while a spike moves."""
    bottom, top = math.floor(3 * math.log10(low)) / 3, math.ceil(3 * math.log10(high)) / 3
    decades = range(math.ceil(bottom), math.floor(top) + 1)
    ticks: list[dict[str, Any]] = [{"at": float(k), "text": _power(k)} for k in decades]
    if len(ticks) < 3:
        for k in range(math.floor(bottom), math.ceil(top) + 1):
            for digit in (2, 5):
                at = k + math.log10(digit)
                if bottom <= at <= top:
                    ticks.append({"at": at, "text": f"{digit * 10.0**k:g}"})
        ticks.sort(key=lambda tick: tick["at"])
    return {"label": label, "domain": [bottom, top], "ticks": ticks}


def _power(k: int) -> str:
    return f"{10.0**k:g}" if -2 <= k <= 3 else f"10{str(k).translate(SUPERSCRIPTS)}"


def size_text(value: float) -> str:
    """A size as people write it: 1500, 5·10¹¹.

    Examples
    --------
    >>> size_text(1500), size_text(5e11)
    ('1500', '5·10¹¹')
    """
    if value < 1e5:
        return f"{value:.0f}"
    power = math.floor(math.log10(value) + 1e-12)
    digits = f"{value / 10.0**power:.3g}"
    raised = f"10{str(power).translate(SUPERSCRIPTS)}"
    return raised if digits == "1" else f"{digits}·{raised}"


def number_text(value: float | None, digits: int = 4) -> str:
    """A number for reading; a dash where there is none."""
    if value is None or not math.isfinite(value):
        return "–"
    if value and not 1e-4 <= abs(value) < 1e6:
        mantissa, power = f"{value:.{digits - 1}e}".split("e")
        return f"{mantissa}·10{str(int(power)).translate(SUPERSCRIPTS)}"
    if abs(value) >= 10**digits:
        return f"{value:.0f}"
    return f"{value:.{digits}g}" if abs(value) >= 1 else f"{value:.{digits}f}"


def assemble(
    state: State, frame: Mapping[str, Any], found: Mapping[str, Any], nodes: Array, draft: bool
) -> dict[str, Any]:
    """What the page draws for every position of the step slider, from solved points and the frame.

    Parameters
    ----------
    state : State
        What was asked.
    frame : mapping
        From `solve_frame`.
    found : mapping
        From `solve_points`: no step first, then the nodes.
    nodes : ndarray
        Exponents of the points after the first.
    draft : bool
        Whether the nodes are Chebyshev points to be interpolated rather than the slider's positions.
    """
    numbers = {name: np.array(found[name], dtype=float) for name in SOLVED if name in found}
    curves = {name: values[1:] for name, values in numbers.items()}
    if draft and len(nodes) != len(exponents()):
        matrix = _interpolation(nodes.tobytes())
        curves = {name: matrix @ values for name, values in curves.items()}
    plain = {name: values[0] for name, values in numbers.items()}
    if frame["random_features"] is None:
        frame = {**frame, "random_features": {name: float(plain[name]) for name in ("train", "test")}}
    return {
        "draft": draft,
        "exponents": exponents(),
        "notes": [*frame["notes"], *found["notes"]],
        "several": frame["several"],
        "facts": _facts(state, frame),
        "errors": _errors(frame, curves),
        "learned": _learned(frame, plain["learned"]),
        "alignment": _alignment(frame),
        "inputs": _inputs(frame["inputs"]),
        "positions": positions(frame, curves, float(plain["test"]), np.array(exponents())),
        "without_step": {"test": number_text(float(plain["test"]), 5)},
        "teacher_weights": [short(value, 3) for value in frame["wanted"][1:5]],
    }


def positions(
    frame: Mapping[str, Any], curves: Mapping[str, Array], plain: float, at: Array
) -> list[dict[str, Any]]:
    """Numbers, learned function and captured variance at each of these exponents, as text and for drawing.

    Parameters
    ----------
    frame : mapping
        From `solve_frame`.
    curves : mapping
        Arrays `train`, `test` and `learned` at the exponents; `train_bar` and `test_bar` where the theory has them.
    plain : float
        Test error without a step.
    at : ndarray
        The exponents.
    """
    wanted, learned = np.array(frame["wanted"]), curves["learned"]
    functions = learned @ _basis(frame)
    variance = float((wanted[1:] ** 2).sum() + frame["tail"])
    left = ((wanted - learned)[:, 1:] ** 2).sum(axis=1) + frame["tail"]
    noise = frame["noise"]
    missed = left + (wanted - learned)[:, 0] ** 2
    # Drafts and roundings may leave less than nothing.
    spread = np.maximum(curves["test"] - noise - missed, 0.0)
    shares = np.maximum(0.0, 1 - left / variance) if variance > 0 else np.full(len(at), math.nan)
    # Between two positions the alignment is near enough a straight line.
    overlaps = np.interp(at, exponents(), frame["weights"]["alignment"])
    none = np.full(len(at), math.nan)
    rows = zip(
        at.tolist(),
        curves["test"].tolist(),
        curves["train"].tolist(),
        curves.get("test_bar", none).tolist(),
        curves.get("train_bar", none).tolist(),
        overlaps.tolist(),
        shares.tolist(),
        missed.tolist(),
        spread.tolist(),
        _list(functions, 4),
        _captured(wanted, learned),
        strict=True,
    )
    there = _degrees(wanted, frame["tail"])
    return [
        {
            "exponent": short(alpha, 7),
            "test": short(test),
            "train": short(train),
            "alignment": short(overlap),
            "function": function,
            "captured": _list(captured, 4),
            "missed": short(lost),
            "spread": short(wide),
            "text": {
                "alpha": _exponent_text(alpha),
                "eta": number_text(math.exp(frame["log_n0"] * alpha), 4),
                "test": number_text(test, 5),
                "train": number_text(train, 5),
                "gain": number_text(plain - test, 4),
                "captured": f"{100 * share:.0f} %" if math.isfinite(share) else "–",
                "alignment": number_text(overlap, 3),
                "noise": _three(noise),
                "missed": _three(lost),
                "spread": _three(wide),
                "test_bar": bar_text(test_bar),
                "train_bar": bar_text(train_bar),
                "told": told(captured, there, frame["several"]),
            },
        }
        for alpha, test, train, test_bar, train_bar, overlap, share, lost, wide, function, captured in rows
    ]


def bar_text(bar: float) -> str:
    """A theory's own error bar behind its number, if it has one.

    Examples
    --------
    >>> bar_text(0.01234)
    ' ± 0.012'
    """
    return f" ± {bar:.2g}" if math.isfinite(bar) else ""


def _three(value: float) -> str:
    """Three decimals, so that a sum can be followed."""
    return f"{value:.3f}" if abs(value) < 1e3 else number_text(value, 4)


# What people call the degrees, and shares of them: the largest share below which each word holds.
DEGREES = ("its line", "its parabola", "its cubic", "its quartic", "its quintic", "the rest")
SHARES = (
    (0.02, "nothing"),
    (0.075, "a trace"),
    (0.13, "a tenth"),
    (0.18, "a sixth"),
    (0.225, "a fifth"),
    (0.29, "a quarter"),
    (0.415, "a third"),
    (0.58, "half"),
    (0.71, "two thirds"),
    (0.79, "three quarters"),
    (0.9, "most"),
    (0.97, "nearly all"),
    (math.inf, "all"),
)


def told(captured: Sequence[float], wanted: Sequence[float], several: bool = False) -> str:
    """What of the teacher was captured, in words.

    Examples
    --------
    >>> told([0.99, 0.08, 0, 0, 0, 0], [1.0, 0.5, 0, 0, 0, 0])
    'all of its line, a sixth of its parabola'
    """
    whole = float(np.sum(wanted))
    if not np.isfinite(captured).all():
        return ""
    parts = []
    names = (*DEGREES[:-1], "its other directions") if several else DEGREES
    for name, got, there in zip(names, captured, wanted, strict=True):
        if there <= 0.01 * whole:
            continue
        word = next(word for most, word in SHARES if got / there < most)
        parts.append(f"{word} of {name}")
    return ", ".join(parts)


def _degrees(wanted: Array, tail: float) -> list[float]:
    """Variance of the teacher in each of the degrees that have a bar."""
    variance = wanted**2
    return [*variance[1 : BARS + 1].tolist(), float(variance[BARS + 1 :].sum() + tail)]


def _exponent_text(alpha: float) -> str:
    """Two digits on the slider's positions, more between them."""
    text = f"{alpha:.2f}" if abs(alpha - round(alpha, 2)) < 1e-9 else f"{alpha:.4f}"
    return text.replace("-", "−")


def _basis(frame: Mapping[str, Any]) -> Array:
    return hermite_polynomials(np.array(frame["teacher"]["x"]), len(frame["wanted"]), normalised=True)


def _captured(wanted: Array, learned: Array) -> Array:
    """How much of each degree's variance no longer stands in the test error; the last is all above `BARS`."""
    captured = np.maximum(wanted**2 - (wanted - learned) ** 2, 0.0)
    rest = captured[..., BARS + 1 :].sum(axis=-1, keepdims=True)
    return np.concatenate([captured[..., 1 : BARS + 1], rest], axis=-1)


def texts(state: State) -> dict[str, str]:
    """The state as an experiment file, as Python and as a command."""
    return {"toml": as_toml(state), "python": as_python(state), "command": as_command(state)}


def _facts(state: State, frame: Mapping[str, Any]) -> dict[str, str]:
    sizes = frame["sizes"]
    return {
        "n": size_text(sizes["n_samples"]),
        "d": size_text(sizes["dim"]),
        "N": size_text(sizes["width"]),
        "n0": size_text(sizes["n_step_samples"]),
        "ridge": f"{state.ridge:g}",
        "best_linear": number_text(frame["best_linear"], 5),
        "random_features": number_text(frame["random_features"]["test"], 5),
        "bound": number_text(frame["weights"]["bound"], 3),
        "critical": number_text(frame["weights"]["critical"], 3),
        "title": _title(state),
        "sizes": ", ".join(
            f"{symbol} = {size_text(sizes[name])}"
            for symbol, name in (("n", "n_samples"), ("d", "dim"), ("N", "width"), ("n₀", "n_step_samples"))
        ),
    }


def _title(state: State) -> str:
    """The problem in a line, without what is as usual."""
    fields = state.problem
    words = [field.titled(getattr(fields, field.name)) for field in FIELDS if field.name not in FUNCTIONS]
    return "; ".join([f"activation {state.activation}", f"teacher {state.teacher}", *filter(None, words)])


def _errors(frame: Mapping[str, Any], curves: Mapping[str, Array]) -> dict[str, Any]:
    panels = {}
    levels = frame["levels"]
    for name in ("test", "train"):
        apart = [abs(level[f"whole_{name}"] / level[name] - 1) for level in levels]
        different = max(apart, default=0.0) > 5e-3
        steps = [
            {"from": level["from"], "to": level["to"], "y": short(level[name]), "spikes": level["spikes"]}
            for level in levels
        ]
        finite = curves[name][np.isfinite(curves[name])]
        lines = [*finite, *(level[name] for level in levels)]
        if name == "test":
            lines.append(frame["best_linear"])
        if math.isfinite(frame["random_features"][name]) or not lines:
            lines.append(frame["random_features"][name])
        panel: dict[str, Any] = {
            "y": axis(f"{name} error", min(lines), max(lines)),
            "unified": _list(curves[name]),
            "staircase": steps,
            "random_features": short(frame["random_features"][name]),
        }
        if different:
            panel["staircase_whole"] = [
                {"from": level["from"], "to": level["to"], "y": short(level[f"whole_{name}"])}
                for level in levels
            ]
        if name == "test":
            panel["best_linear"] = short(frame["best_linear"])
        if f"{name}_bar" in curves:
            panel["bar"] = _list(curves[f"{name}_bar"])
        panels[name] = panel
    return {"x": step_axis(), "panels": panels, "noise": short(frame["noise"])}


def _learned(frame: Mapping[str, Any], plain: Array) -> dict[str, Any]:
    x, wanted = np.array(frame["teacher"]["x"]), np.array(frame["wanted"])
    teacher = np.array(frame["teacher"]["y"])
    heights = _degrees(wanted, frame["tail"])
    return {
        "x": axis("β·x", -REACH, REACH, signed=True) | {"domain": [-REACH, REACH]},
        "y": axis("function of β·x", float(teacher.min()), float(teacher.max()), signed=True),
        "at": _list(x, 4),
        "teacher": _list(teacher, 4),
        "without_step": _list(plain @ _basis(frame), 4),
        "bars": {
            "names": [f"{k}" for k in range(1, BARS + 1)] + ["others" if frame["several"] else f"> {BARS}"],
            "y": axis("variance of the teacher", 0.0, float(max(heights))),
            "wanted": _list(heights, 4),
            "without_step": _list(_captured(wanted, plain), 4),
        },
    }


def _alignment(frame: Mapping[str, Any]) -> dict[str, Any]:
    weights = frame["weights"]
    critical = weights["critical"]
    shown = critical is not None and exponents()[0] < critical < exponents()[-1]
    return {
        "x": step_axis(),
        "y": axis("squared overlap with β", 0.0, 1.0) | {"domain": [0.0, 1.05]},
        "alignment": _list(weights["alignment"]),
        "bound": short(weights["bound"]),
        "critical": critical if shown else None,
    }


def _inputs(found: Mapping[str, Any]) -> dict[str, Any]:
    # Both on one scale: a teacher without regard to the eigenvalues has share 1 everywhere.
    largest = max([*found["eigenvalues"], *found["teacher"], 2.0])
    return {
        "y": axis("m, teacher's share", 0.0, largest, count=3),
        "isotropic": found["isotropic"],
        "loud": found["loud"],
        "eigenvalues": _list(found["eigenvalues"], 4),
        "teacher": _list(found["teacher"], 4),
        "editable": {name: _list(values, 4) for name, values in found["editable"].items()},
    }


OVERLAP_NAMES = {"h1": "z", "h2": "H₂(z)", "h3": "H₃(z)", "h4": "H₄(z)", "beta": "β"}
# Of a teacher of several directions, in place of the one that a step sees.
DIRECTION_NAMES = {"t1": "t₁", "t2": "t₂", "t3": "t₃", "t4": "t₄"}


def _overlaps(of: str, outlier: Mapping[str, Any], steps: int) -> list[dict[str, Any]]:
    """What a spike's singular vector has of the functions and directions that the page names, the most first."""
    found = outlier["overlaps"]
    names = (
        {"beta": "β", "direction": "direction" if steps == 1 else "step 1"}
        if of == "weights"
        else OVERLAP_NAMES
    )
    if "t1" in found:
        names = {key: name for key, name in names.items() if key != "beta"} | DIRECTION_NAMES
    seen = sorted(
        ((found[key], name) for key, name in names.items() if found.get(key, 0) >= 0.005), reverse=True
    )
    return [{"name": name, "text": f"{value:.2f}", "value": short(value, 4)} for value, name in seen]


def draw_spectrum(state: State, of: str, found: Mapping[str, Any], draft: bool) -> dict[str, Any]:
    """A spectrum ready for drawing: density of the logarithm, so that areas are shares of eigenvalues."""
    x, density = np.array(found["x"]), np.array(found["density"])
    low, high = found["edges"]
    tops = [outlier["eigenvalue"] for outlier in found["outliers"]]
    floor = max(low, 1e-3 * high)
    keep = x >= 0.5 * floor
    x, density = x[keep], density[keep]
    # Per unit of log10 x.
    heights = density * x * math.log(10)
    steps = found["steps"]
    weights = "W₁ W₁ᵀ" if steps == 1 else "W₂ W₂ᵀ"
    names = {"features": "eigenvalues of F Fᵀ/n", "weights": f"eigenvalues of {weights}"}
    widest = max([3 * high, *(1.3 * top for top in tops)])
    top_height = float(heights.max()) if len(heights) else 1.0
    pieces = []
    for left, right in found["intervals"]:
        inside = (x >= left) & (x <= right)
        at = [max(left, float(x[inside][0])) if inside.any() else left, *x[inside], right]
        start = 0.0 if left >= floor else float(heights[inside][0]) if inside.any() else 0.0
        pieces.append(
            {"x": _list(np.log10(np.maximum(at, 1e-300))), "y": _list([start, *heights[inside], 0.0])}
        )
    outliers = []
    for number, outlier in enumerate(found["outliers"], start=1):
        outliers.append(
            {
                "at": math.log10(outlier["eigenvalue"]),
                "text": number_text(outlier["eigenvalue"], 4),
                "over_edge": f"{outlier['over_edge']:.3g}",
                "overlaps": _overlaps(of, outlier, steps),
                "name": f"spike {number}",
            }
        )
    return {
        "state": state.model_dump(),
        "of": of,
        "draft": draft,
        "x": log_axis(names[of], 0.8 * floor, widest),
        "y": axis("density per decade", 0.0, top_height),
        "pieces": pieces,
        "edges": [short(low), short(high)],
        "edge_texts": [number_text(low, 3), number_text(high, 4)],
        "atom": f"{100 * found['atom']:.3g} %" if found["atom"] > 0 else "",
        "outliers": outliers,
        "steps": steps,
        "said": found["said"],
    }
