"""The second step: what the theory says of it after the first, for every position of its slider."""

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from firststep.explorer.state import State, next_exponents
from firststep.explorer.views import _list, axis, bar_text, number_text, short, step_axis
from firststep.gaussian import Array
from firststep.numerics.fixedpoint import ConvergenceError
from firststep.results import Outcome
from firststep.setting import OutsideTheoryWarning, Problem

QUANTITIES = ("train_error", "test_error", "train_error_bar", "test_error_bar")
# Directions of the weights, the first step's first, that are compared with the teacher's.
RANKS = 2
MOST_DIRECTIONS = 4
# Overlaps below this are not told.
LEAST_SEEN = 0.05


def solve_second(state: Mapping[str, Any]) -> dict[str, Any]:
    """Errors and overlaps after a second step of each size; the first entry is the one step alone."""
    view = State(**state)
    problem, sizes = view.problem, view.sizes
    steps = np.concatenate([[0.0], sizes.step_size(np.array(next_exponents()))])
    try:
        outcome = _two_steps(view, problem, steps)
        found = {name: outcome.values[name][:, 0].tolist() for name in _names(outcome)}
        return found | {"notes": list(outcome.notes)}
    except ConvergenceError:
        pass
    # One by one, so that a step without an answer does not hide the others; the single step has one.
    alone = _two_steps(view, problem, steps[:1])
    found = {name: [float(alone.values[name][0, 0])] for name in _names(alone)}
    for step in steps[1:]:
        try:
            values = _two_steps(view, problem, np.array([step])).values
            numbers = {name: float(values[name][0, 0]) for name in found}
        except ConvergenceError:
            numbers = dict.fromkeys(found, math.nan)
        for name, column in found.items():
            column.append(numbers[name])
    return found | {"notes": ["the theory of two steps has no answer in a part of this range"]}


def _names(outcome: Outcome) -> list[str]:
    return [
        *QUANTITIES,
        *(overlap_name(rank, a) for rank in range(RANKS) for a in range(_count(outcome.values))),
    ]


def _count(values: Mapping[str, Any]) -> int:
    """The teacher's directions, counted by their overlaps."""
    return sum(overlap_name(0, a) in values for a in range(MOST_DIRECTIONS))


def overlap_name(rank: int, direction: int) -> str:
    """What simulation and theory call the squared overlap of a vector of the weights with a direction.

    Examples
    --------
    >>> overlap_name(0, 1)
    'top1_t2'
    """
    return f"top{rank + 1}_t{direction + 1}"


def _two_steps(view: State, problem: Problem, steps: Array) -> Outcome:
    from firststep.theory import predict

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OutsideTheoryWarning)
        return predict(problem, view.sizes, [view.eta], view.ridge, next_step_sizes=steps)


def draw_second(state: State, found: Mapping[str, Any]) -> dict[str, Any]:
    """The second step ready for drawing."""
    panels = {}
    for name in ("test", "train"):
        errors, bars = np.array(found[f"{name}_error"]), np.array(found[f"{name}_error_bar"])
        seen = errors[np.isfinite(errors)]
        panels[name] = {
            "y": axis(f"{name} error", float(seen.min()), float(seen.max()))
            if len(seen)
            else axis(f"{name} error", 0.0, 1.0),
            "errors": _list(errors[1:]),
            "bar": _list(bars[1:]),
            "one_step": short(float(errors[0])),
        }
    overlaps = [
        {
            "name": f"direction {rank + 1}: t{a + 1}",
            "key": overlap_name(rank, a),
            "rank": rank,
            "direction": a,
            "values": _list(found[overlap_name(rank, a)][1:], 4),
        }
        for rank in range(RANKS)
        for a in range(_count(found))
    ]
    return {
        "state": state.model_dump(exclude={"step_size"}),
        "exponents": next_exponents(),
        "x": step_axis() | {"label": "exponent α₂ of the second step", "thresholds": []},
        "panels": panels,
        "overlaps": {"y": axis("squared overlap", 0.0, 1.0) | {"domain": [0.0, 1.05]}, "lines": overlaps},
        "notes": found["notes"],
        "positions": _positions(state, found, overlaps),
        "one_step": {name: number_text(found[f"{name}_error"][0], 5) for name in ("test", "train")},
    }


def _positions(
    state: State, found: Mapping[str, Any], overlaps: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Texts at each position of the second slider."""
    plain = found["test_error"][0]
    rows = []
    for i, alpha in enumerate(next_exponents(), start=1):
        test, train = found["test_error"][i], found["train_error"][i]
        rows.append(
            {
                "exponent": alpha,
                "text": {
                    "alpha": f"{alpha:.2f}".replace("-", "−"),
                    "eta": number_text(state.sizes.step_size(alpha), 4),
                    "test": number_text(test, 5),
                    "train": number_text(train, 5),
                    "test_bar": bar_text(found["test_error_bar"][i]),
                    "gain": number_text(plain - test, 4),
                    "overlaps": [
                        {"name": line["name"], "text": f"{line['values'][i - 1]:.2f}"} for line in overlaps
                    ],
                    "told": _told(plain, test, overlaps, i - 1),
                },
            }
        )
    return rows


def _told(plain: float, test: float, overlaps: Sequence[Mapping[str, Any]], place: int) -> str:
    """What the second step did, in words."""
    if not (math.isfinite(plain) and math.isfinite(test)):
        return ""
    change = 100 * (test / plain - 1)
    said = f"{'lowers' if change < 0 else 'raises'} the test error by {abs(change):.0f} % to"
    if abs(change) < 0.5:
        said = "leaves the test error at"
    second = [line for line in overlaps if line["rank"] == 1 and math.isfinite(line["values"][place])]
    best = max(second, key=lambda line: line["values"][place], default=None)
    if best is None or best["values"][place] < LEAST_SEEN:
        return f"{said} {number_text(test, 4)}"
    seen = f"its direction sees t{best['direction'] + 1} with overlap² {best['values'][place]:.2f}"
    return f"{said} {number_text(test, 4)}; {seen}"
