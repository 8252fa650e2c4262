"""Words for the inputs' covariance and the teacher's place in it: read and checked here, never executed.

``power(0.5)``, ``levels(0.3, 1.7)``, ``spiked(10, overlap=0.5)``, ``isotropic``, ``values(…)``, and for the teacher
``typical``, ``eigenvalues(2)``, ``weights(0.9, 0.1)``. `firststep.setting.covariance` makes numbers of them.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from firststep.setting.fields import Field

_WORDS = re.compile(r"\s*([a-z_]+)\s*(?:\((.*)\))?\s*", re.DOTALL)
NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
MOST_VALUES = 100_000

INPUT_FORMS = (
    "isotropic, power(exponent), levels(m1, m2, …), spiked(strength, …, overlap=share), values(m1, m2, …)"
)
ALIGNMENT_FORMS = "typical, eigenvalues, eigenvalues(power), weights(w1, w2, …)"


def _call(text: str, what: str, forms: str) -> tuple[str, tuple[float, ...], dict[str, float]]:
    """Name, numbers and named numbers of words like ``spiked(10, overlap=0.5)``."""
    match = _WORDS.fullmatch(text)
    if match is None:
        raise ValueError(f"{what} must be one of {forms}; got {text!r}")
    name, inner = match[1], match[2]
    numbers: list[float] = []
    named: dict[str, float] = {}
    for part in inner.split(",") if inner and inner.strip() else []:
        item = re.fullmatch(rf"\s*(?:([a-z_]+)\s*=\s*)?({NUMBER})\s*", part)
        if item is None or not math.isfinite(float(item[2])):
            raise ValueError(
                f"{what}: {part.strip()!r} in {text!r} is not a number; it must be one of {forms}"
            )
        if item[1]:
            named[item[1]] = float(item[2])
        elif named:
            raise ValueError(f"{what}: in {text!r} the numbers without a name come first")
        else:
            numbers.append(float(item[2]))
    return name, tuple(numbers), named


def _written(value: float) -> str:
    return repr(int(value)) if value == int(value) and abs(value) < 1e15 else repr(value)


def _listed(what: str, values: Any) -> tuple[float, ...]:
    """Numbers of a list or an array."""
    if isinstance(values, bool | bytes) or not isinstance(values, Iterable):
        raise TypeError(f"{what} must be words or a list of numbers, got {values!r}")
    return tuple(float(value) for value in values)


def _check_numbers(name: str, numbers: Sequence[float], text: str) -> None:
    """Refuse numbers that are no spectrum of this kind in any dimension."""
    if name == "isotropic" and numbers:
        raise ValueError(f"isotropic takes no number, got {text!r}")
    if name == "power" and (len(numbers) != 1 or not 0 <= numbers[0] <= 20):
        raise ValueError(f"power takes one exponent between 0 and 20, as in power(0.5), got {text!r}")
    if name == "spiked" and (not numbers or min(numbers) <= 0):
        raise ValueError(f"spiked takes strengths above zero, as in spiked(10), got {text!r}")
    if name in ("levels", "values"):
        if not 0 < len(numbers) <= MOST_VALUES:
            raise ValueError(
                f"{name} takes between 1 and {MOST_VALUES} eigenvalues, as in {name}(0.3, 1.7), "
                f"got {len(numbers)}"
            )
        if not all(math.isfinite(x) and x > 0 for x in numbers):
            raise ValueError(
                f"{name}: eigenvalues must be positive and finite; drop the directions without variance"
            )


@dataclass(frozen=True)
class Inputs:
    """Words for a covariance, checked."""

    kind: str
    numbers: tuple[float, ...] = ()
    overlap: float | None = None

    @classmethod
    def parse(cls, value: Any) -> Self:
        """From words, a list of eigenvalues, a file of them (a path, or ``{"file": path}``), or such an object."""
        if isinstance(value, cls):
            return value
        if isinstance(value, Mapping) and set(value) == {"file"}:
            value = Path(value["file"])
        if isinstance(value, Path):
            value = [float(word) for word in value.read_text(encoding="utf-8").replace(",", " ").split()]
        if not isinstance(value, str):
            numbers = _listed("inputs", value)
            _check_numbers("values", numbers, "a list")
            return cls("values", numbers)
        name, numbers, named = _call(value, "inputs", INPUT_FORMS)
        overlap = named.pop("overlap", None) if name == "spiked" else None
        if name not in ("isotropic", "power", "levels", "spiked", "values") or named:
            raise ValueError(f"inputs must be one of {INPUT_FORMS}; got {value!r}")
        if overlap is not None and not 0 <= overlap <= 1:
            raise ValueError(f"overlap is a squared cosine between 0 and 1, got {overlap:g} in {value!r}")
        _check_numbers(name, numbers, value)
        return cls(name, numbers, overlap)

    @property
    def isotropic(self) -> bool:
        """Whether all eigenvalues are equal, in whatever words."""
        if self.kind == "power":
            return self.numbers[0] == 0
        return self.kind == "isotropic" or (self.kind != "spiked" and len(set(self.numbers)) == 1)

    @property
    def levels(self) -> tuple[float, ...]:
        """Eigenvalues of equal shares of the directions, the largest first, of mean one; none in other words.

        Examples
        --------
        >>> Inputs.parse("levels(1, 3)").levels
        (1.5, 0.5)
        """
        if self.kind != "levels":
            return ()
        mean = sum(self.numbers) / len(self.numbers)
        return tuple(sorted((level / mean for level in self.numbers), reverse=True))

    @property
    def spikes(self) -> tuple[float, ...]:
        """Strengths of single directions, in whose words the rest has variance one; none in other words."""
        return self.numbers if self.kind == "spiked" else ()

    @property
    def spec(self) -> str:
        """The words, in their canonical form."""
        parts = [_written(x) for x in self.numbers]
        parts += [] if self.overlap is None else [f"overlap={_written(self.overlap)}"]
        return self.kind + (f"({', '.join(parts)})" if parts else "")


@dataclass(frozen=True)
class Alignment:
    """Words for the teacher's place among the eigenvalues, checked."""

    kind: str = "typical"
    numbers: tuple[float, ...] = ()

    @classmethod
    def parse(cls, value: Any) -> Self:
        """From words, a list of weights, or an object of this class."""
        if isinstance(value, cls):
            return value
        if isinstance(value, str):
            name, numbers, named = _call(value, "alignment", ALIGNMENT_FORMS)
        else:
            name, numbers, named = "weights", _listed("alignment", value), {}
        most = {"typical": 0, "eigenvalues": 1, "weights": MOST_VALUES}.get(name, -1)
        if named or len(numbers) > most or (name == "weights" and not numbers):
            raise ValueError(f"alignment must be one of {ALIGNMENT_FORMS}; got {value!r}")
        if name == "weights" and (not all(0 <= w < math.inf for w in numbers) or sum(numbers) <= 0):
            raise ValueError(f"weights must be zero or more, and not all zero, got {value!r}")
        return cls(name, numbers)

    @property
    def spec(self) -> str:
        """The words, in their canonical form."""
        return self.kind + (f"({', '.join(map(_written, self.numbers))})" if self.numbers else "")


FIELDS = (
    Field(
        "inputs",
        "inputs",
        "words",
        f"Covariance of the inputs, of trace d: {INPUT_FORMS}.",
        lambda value: Inputs.parse(value).spec,
        "isotropic",
        symbol="S",
        words="inputs {}",
        examples=(
            "isotropic",
            "power(0.5)",
            "power(1)",
            "levels(0.3, 1.7)",
            "spiked(10, overlap=0)",
            "spiked(10, overlap=1)",
        ),
    ),
    Field(
        "alignment",
        "inputs",
        "words",
        f"The teacher's direction among the eigenvalues: {ALIGNMENT_FORMS}.",
        lambda value: Alignment.parse(value).spec,
        "typical",
        symbol="ν",
        words="alignment {}",
        examples=("typical", "eigenvalues", "eigenvalues(2)"),
    ),
)
