"""The network at the start: activation, laws of its rows and readout, size of its output."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from firststep.setting.fields import Field, choice, meanings_of
from firststep.setting.readouts import MEANINGS

if TYPE_CHECKING:
    from firststep.gaussian import Array, Function


@dataclass(frozen=True)
class RowLaw:
    """Law of a row of W0, with E |w|^2 = 1.

    Attributes
    ----------
    unit_norm : bool
        Whether every row has norm one; else its components are N(0, 1/d).
    """

    name: str
    words: str
    unit_norm: bool

    def rows(self, block: "Array") -> "Array":
        """Rows from standard normal ones (count, d)."""
        if self.unit_norm:
            lengths: Array = (block * block).sum(axis=1, keepdims=True) ** 0.5
            return block / lengths
        scale: float = block.shape[1] ** -0.5
        return block * scale


@dataclass(frozen=True)
class OutputLaw:
    """Size of the network's output before the step: the factor tau of f(x) = tau a·sigma(W0 x).

    Attributes
    ----------
    order_one : bool
        Whether tau = 1; else tau = 1/sqrt(N), and the output vanishes in the limit.
    """

    name: str
    words: str
    order_one: bool

    def scale(self, width: int) -> float:
        """tau."""
        return 1.0 if self.order_one else float(width**-0.5)


ROWS = {
    law.name: law
    for law in (
        RowLaw("gaussian", "components N(0, 1/d)", unit_norm=False),
        RowLaw("sphere", "uniform on the unit sphere", unit_norm=True),
    )
}
INITIAL_OUTPUTS = {
    law.name: law
    for law in (
        OutputLaw("vanishing", "divided by √N, zero in the limit", order_one=False),
        OutputLaw("order_one", "not divided, of order one", order_one=True),
    )
}


def _activation(value: Any) -> "Function":
    import numpy as np

    from firststep.gaussian import function

    found = function(value)
    # An activation without a usable derivative cannot take a gradient step.
    found.derivative(np.array([0.5]))
    if found.tail(1) <= 1e-24:
        raise ValueError(
            f"the activation {found.label} is constant: its features say nothing about the input"
        )
    return found


FIELDS = (
    Field(
        "activation",
        "network",
        "function",
        "Activation: a name (relu, tanh, gelu …), an expression in x, or Hermite coefficients.",
        _activation,
        symbol="σ",
        words="{} network",
        examples=("relu",),
        quiet=False,
    ),
    choice(
        "rows",
        "network",
        "First-layer rows at the start.",
        meanings_of(ROWS),
        symbol="w",
        words="{} rows",
        drawn=True,
        quiet=False,
    ),
    choice(
        "readout",
        "network",
        "Readout at the start.",
        MEANINGS,
        symbol="a",
        words="{} readout",
        drawn=True,
        quiet=False,
    ),
    choice(
        "initial_output",
        "network",
        "Network output at the start.",
        meanings_of(INITIAL_OUTPUTS),
        symbol="f₀",
        words="initial output of {}",
        quiet=False,
    ),
)
