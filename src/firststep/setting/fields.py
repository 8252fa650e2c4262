"""The declaration of a setting's field, from which options, sections, controls, titles and keys are made.

Nothing here or in the files of the parts imports NumPy when it is imported: the command line's help is made of it.
"""

import math
import numbers
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

REQUIRED: Any = object()
# Noise, step sizes and ridges beyond this, or a ridge below its inverse, leave the range of floating-point numbers
# when they are squared or multiplied by a size.
LARGEST = 1e100


@dataclass(frozen=True)
class Field:
    """One field of a setting, declared in the file of its part and nowhere else.

    Attributes
    ----------
    name : str
        The keyword in Python, the key in TOML, and with dashes the option of the command line.
    part : str
        "network", "teacher", "inputs", "training" or "fit".
    kind : {"function", "number", "choice", "words"}
        What a value is: a function's spec, a number, one of `choices`, or words such as ``power(0.5)``.
    help : str
        One line for the command line and the explorer.
    read : callable
        Checks a value and returns it in its canonical form: a function, a string or a number.
    default : Any
        The value when none is given.
    symbol : str
        The letter of the docs.
    words : str
        How a title names a value; ``{}`` is the value.
    unsaid : str
        How a title names the default; empty where it is not worth a word.
    choices : mapping of str to str
        For a choice: each value with what it means.
    examples : tuple
        What command line and explorer offer; the first is where they start.
    drawn : bool
        Whether it decides what is drawn, so that it enters the seeds of experiments.
    quiet : bool
        Whether descriptions and keys leave the default out, so that older stores and seeds stay valid.
    """

    name: str
    part: str
    kind: str
    help: str
    read: Callable[[Any], Any]
    default: Any = REQUIRED
    symbol: str = ""
    words: str = "{}"
    unsaid: str = ""
    choices: Mapping[str, str] | None = None
    examples: tuple[Any, ...] = ()
    drawn: bool = False
    quiet: bool = True

    @property
    def option(self) -> str:
        """The option of the command line."""
        return "--" + self.name.replace("_", "-")

    @property
    def required(self) -> bool:
        """Whether there is no default."""
        return self.default is REQUIRED

    @property
    def start(self) -> Any:
        """The value at which the explorer's control starts."""
        return self.examples[0] if self.examples else self.default

    def plain(self, value: Any) -> Any:
        """A value as text or number: a function by its spec."""
        return value.spec if self.kind == "function" and hasattr(value, "spec") else value

    def titled(self, value: Any) -> str:
        """A value's name in a title, where the default needs none."""
        return self.unsaid if not self.required and value == self.default else self.worded(value)

    def worded(self, value: Any) -> str:
        """A value in words, as a legend tells it from others."""
        shown = self.plain(value)
        if isinstance(shown, str):
            # For people a function's own name is enough; the prefix tells programs that text cannot bring it back.
            shown = shown.removeprefix("callable:")
        return self.words.format(shown.replace("_", " ") if self.kind == "choice" else shown)

    def describe(self) -> dict[str, Any]:
        """The declaration as plain data, for pages and programs that make controls of it."""
        return {
            "name": self.name,
            "part": self.part,
            "kind": self.kind,
            "help": self.help,
            "symbol": self.symbol,
            "default": None if self.required else self.default,
            "start": self.start,
            "choices": dict(self.choices or {}),
            "examples": list(self.examples),
        }


def choice(name: str, part: str, help: str, meanings: Mapping[str, str], **further: Any) -> Field:
    """A field whose value is one of the keys of `meanings`; the first is the default."""

    def read(value: Any) -> str:
        if not isinstance(value, str) or value not in meanings:
            raise ValueError(f"{name} must be one of {', '.join(meanings)}; got {value!r}")
        return value

    return Field(name, part, "choice", help, read, next(iter(meanings)), choices=meanings, **further)


def meanings_of(laws: Mapping[str, Any]) -> dict[str, str]:
    """What each law means, in the words it has for itself."""
    return {name: law.words for name, law in laws.items()}


def finite_number(text: str) -> float:
    """A number as somebody wrote it.

    Examples
    --------
    >>> finite_number("1e-3")
    0.001
    """
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number") from None
    if not math.isfinite(value):
        raise ValueError(f"{text!r} is not a finite number")
    return value


def nonnegative(name: str) -> Callable[[Any], float]:
    """A reader of finite numbers that are zero or more."""

    def read(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            raise TypeError(f"{name} must be a number, got {value!r}")
        number = float(value)
        if not (math.isfinite(number) and number >= 0):
            raise ValueError(f"{name} must be finite and not negative, got {value}")
        if number > LARGEST:
            raise ValueError(f"{name} must be at most {LARGEST:g}, so that it can be squared; got {number:g}")
        # A negative zero would have a key of its own.
        return number + 0.0

    return read
