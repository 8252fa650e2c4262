"""Values that somebody typed: accepted, or refused in the sentences of the command line."""

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ValidationError

from firststep.explorer.state import State
from firststep.setting import FIELDS, ridges_of
from firststep.setting.fields import finite_number

_READERS: dict[str, Callable[[Any], Any]] = {field.name: field.read for field in FIELDS} | {
    "ridge": ridges_of
}
LONGEST = 200
_BOUNDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}


def refusals(given: Mapping[str, str]) -> list[dict[str, str]]:
    """What is wrong with the values of a state, each as text, by the field that it belongs to.

    Examples
    --------
    >>> refusals({"ridge": "-1"})
    [{'field': 'ridge', 'sentence': 'ridge must be positive and finite, got -1.0'}]
    >>> refusals({"n_samples": "30.5"})
    [{'field': 'n_samples', 'sentence': "'30.5' is not a whole number"}]
    >>> refusals({"ridge": "0.3"})
    []
    """
    numeric = {
        name for name, entry in State.model_fields.items() if entry.annotation in (float, int, float | None)
    }
    found: dict[str, str] = {}
    values: dict[str, Any] = {}
    for name, text in given.items():
        try:
            if len(text) > LONGEST:
                raise ValueError(f"{name} may have {LONGEST} characters, got {len(text)}")
            values[name] = finite_number(text) if name in numeric else text
            if name == "n_samples" and not values[name].is_integer():
                raise ValueError(f"{text!r} is not a whole number")
            if name in _READERS:
                _READERS[name](values[name])
        except (ValueError, TypeError, ArithmeticError) as error:
            found[name] = str(error)
    if found:
        return [{"field": name, "sentence": sentence} for name, sentence in found.items()]
    try:
        state = State(**values).with_exponent()
        _ = state.problem, state.sizes
    except ValidationError as error:
        return [_told(entry) for entry in error.errors()]
    except (ValueError, TypeError, ArithmeticError) as error:
        return [{"field": "", "sentence": str(error)}]
    return []


def _told(entry: Any) -> dict[str, str]:
    """A complaint of the state's own limits, in our words."""
    field = str(entry["loc"][0]) if entry["loc"] else ""
    limits = entry.get("ctx", {})
    for key, words in _BOUNDS.items():
        if key in limits:
            sentence = f"{field} must be {words} {limits[key]:g} here, got {entry['input']:g}"
            return {"field": field, "sentence": sentence}
    message = str(entry["msg"]).removeprefix("Value error, ")
    if entry["type"] == "extra_forbidden":
        message = f"there is no field {field}"
    return {"field": field, "sentence": message}
