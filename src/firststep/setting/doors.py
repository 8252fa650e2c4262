"""What the public functions have in common: singular and plural names alike, and errors that name the remedy."""

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from firststep.setting.sizes import Sizes

_P = ParamSpec("_P")
_R = TypeVar("_R")

# Arguments that take one number or several: either spelling is understood.
COUNTED = ("step_size", "step_exponent", "ridge", "replica", "next_step_size", "next_step_exponent")


def door(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Let a function of a problem and sizes understand singular and plural names, and refuse others in a sentence.

    Examples
    --------
    >>> @door
    ... def steps(problem: object, sizes: Sizes, step_sizes: float = 0.0) -> float:
    ...     return step_sizes
    >>> steps(None, Sizes(100, 50, 75), step_size=2.0)
    2.0
    """
    parameters = inspect.signature(function).parameters
    known = [name for name, entry in parameters.items() if entry.kind is not entry.VAR_KEYWORD]
    opened = len(known) < len(parameters)
    pairs = [pair for one in COUNTED for pair in ((one, f"{one}s"), (f"{one}s", one))]
    alike = {name: other for name, other in pairs if name not in known and other in known}

    @wraps(function)
    def wrapper(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        given: dict[str, Any] = dict(kwargs)
        _check_nouns(function.__name__, (*args, given.get("problem"), given.get("sizes")))
        for name in [name for name in given if name in alike]:
            other = alike[name]
            if other in given:
                raise TypeError(f"{name} and {other} of {function.__name__} are the same: give one of them")
            given[other] = given.pop(name)
        if not opened:
            check_names(function.__name__, given, known)
        return function(*args, **given)

    return wrapper


def _check_nouns(name: str, args: tuple[Any, ...]) -> None:
    first = args[0] if args else None
    if isinstance(first, Sizes):
        raise TypeError(f"{name} takes the problem first and then the sizes: {name}(problem, sizes, …)")
    if isinstance(first, str | Mapping | list | tuple) or callable(first) or hasattr(first, "to_xarray"):
        raise TypeError(
            f"the problem of {name} must be a Problem, got {first!r}: make one with Problem(activation, teacher, …)"
        )
    second = args[1] if len(args) > 1 else None
    if isinstance(second, int | float | Mapping | list | tuple) or hasattr(second, "to_xarray"):
        raise TypeError(
            f"the sizes of {name} must be Sizes, got {second!r}: make them with Sizes(n_samples, dim, width)"
        )


def check_names(function: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Refuse arguments that a function does not have, with the nearest that it has and a list of all.

    Examples
    --------
    >>> check_names("predict", ["ridgse"], ["ridges", "theory"])
    Traceback (most recent call last):
    TypeError: predict takes no ridgse: did you mean ridges? It takes ridges, theory
    """
    names = list(known)
    for name in given:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            hint = f": did you mean {near[0]}? It" if near else ". It"
            raise TypeError(f"{function} takes no {name}{hint} takes {', '.join(names)}")
