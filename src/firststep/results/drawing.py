"""How a result draws itself.

`firststep.figures` stands above the results and knows them; it is looked up by name when a picture is asked for, so
that a result needs neither it nor matplotlib.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PLOTS = "firststep.figures.plots"


def plot(result: Any, ax: Any = None, **options: Any) -> "Axes | tuple[Axes, ...]":
    """Draw a result into the given axes or new ones and give them back; a single one by itself."""
    axes: Axes | tuple[Axes, ...] = import_module(_PLOTS).plot(result, ax, **options)
    return axes


def picture(result: Any) -> str | None:
    """A result as SVG for a notebook; None where matplotlib is missing, and the notebook shows the text instead."""
    try:
        svg: str = import_module(_PLOTS).picture(result)
    except ImportError:
        return None
    return svg
