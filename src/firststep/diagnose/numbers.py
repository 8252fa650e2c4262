"""Numbers with a standard error, and how they are written."""

import math
from dataclasses import dataclass
from typing import Any

# Standard errors below this are written as powers of ten.
SMALL = 1e-5


@dataclass(frozen=True)
class Number:
    """An estimate with its standard error, which is NaN where there is none."""

    value: float
    stderr: float = math.nan

    def __str__(self) -> str:
        if not math.isfinite(self.stderr):
            return f"{self.value:.3g}"
        if 0 < self.stderr < SMALL:
            return f"{self.value:.2g} ± {self.stderr:.1g}"
        digits = min(6, max(0, 1 - math.floor(math.log10(self.stderr)))) if self.stderr > 0 else 3
        return f"{self.value:.{digits}f} ± {self.stderr:.{digits}f}"


# Standard errors on either side of what covers nine of ten.
NINE_OF_TEN = 1.645


@dataclass(frozen=True)
class Expected:
    """A prediction, half the width of an interval that covers nine of ten, and whether the samples can tell it."""

    value: float
    bar: float
    in_sight: bool = True

    def __str__(self) -> str:
        return f"{Number(self.value, self.bar)}" + ("" if self.in_sight else " (?)")


def plain(value: Any) -> Any:
    """JSON-able: what is not finite becomes None."""
    if isinstance(value, dict):
        return {name: plain(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
