"""Maps: values over a plane as colours, contours along some of them, discs and words on top, a bar that explains."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from firststep.figures.style import Letters, colour, number_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable

# Steps of the scale: few enough that two of them can be told apart, enough that a slope is no staircase.
BANDS = 20
# Numbers along the bar are at these edges of bands.
NAMED = range(0, BANDS + 1, BANDS // 4)
# Roles of the bands, from the lowest values to the highest.
BAND_ROLES = tuple(f"scale:{(band + 0.5) / BANDS:.3f}" for band in range(BANDS))


@dataclass(frozen=True)
class ValueScale:
    """Values from `low` to `high` as colours in equal bands; what is beyond has the colour of the end.

    Examples
    --------
    >>> scale = ValueScale(0.0, 2.0)
    >>> scale.role(0.01) == scale.role(-3.0) == BAND_ROLES[0], scale.role(2.0) == BAND_ROLES[-1]
    (True, True)
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        if not self.low < self.high:
            # One value alone: any span around it will do.
            object.__setattr__(self, "high", self.low + 1.0)

    @property
    def edges(self) -> Sequence[float]:
        """Ends of the bands, one more than bands."""
        ends: list[float] = np.linspace(self.low, self.high, BANDS + 1).tolist()
        return ends

    def role(self, value: float) -> str:
        """The role, and so the colour, of a value."""
        band = int((value - self.low) / (self.high - self.low) * BANDS)
        return BAND_ROLES[min(max(band, 0), BANDS - 1)]

    def mappable(self, theme: str) -> "ScalarMappable":
        """The scale as matplotlib has it."""
        from matplotlib.cm import ScalarMappable
        from matplotlib.colors import BoundaryNorm, ListedColormap

        colours = ListedColormap([colour(role, theme) for role in BAND_ROLES])
        return ScalarMappable(BoundaryNorm(self.edges, BANDS, clip=True), colours)


def _cased(thickness: float, theme: str) -> dict[str, Any]:
    """A rim of paper, so that ink stands out from every colour."""
    from matplotlib.patheffects import withStroke

    return {"path_effects": [withStroke(linewidth=thickness, foreground=colour("paper", theme))]}


def draw_map(
    places: tuple[Sequence[float], Sequence[float]],
    values: Sequence[float],
    levels: Sequence[float],
    ax: "Axes",
    scale: ValueScale,
    *,
    theme: str,
    letters: Letters,
) -> None:
    """Values of the columns and rows at `places`, row by row, as bands of colour, with contours along `levels`."""
    x, y = (np.array(place) for place in places)
    table = np.ma.masked_invalid(np.reshape(values, (len(y), len(x))))
    shades = [colour(role, theme) for role in BAND_ROLES]
    # Filled a little beyond its edge, a band leaves no crack to the next.
    clipped = np.ma.clip(table, scale.low, scale.high)
    ax.contourf(x, y, clipped, scale.edges, colors=shades, zorder=1).set_edgecolor("face")
    ink = colour("ink", theme)
    for level in levels:
        if table.min() < level < table.max():
            line = ax.contour(x, y, table, [level], colors=[ink], linewidths=letters.line, zorder=3)
            line.set(**_cased(2.2 * letters.line, theme))
    ax.set_xlim(x[0], x[-1])
    ax.set_ylim(y[0], y[-1])


def draw_discs(
    places: tuple[Sequence[float], Sequence[float]],
    values: Sequence[float],
    ax: "Axes",
    scale: ValueScale,
    *,
    theme: str,
    letters: Letters,
) -> None:
    """A disc for each value that is known, filled as a map with this value would be."""
    known = [place for place in zip(*places, values, strict=True) if np.isfinite(place[2])]
    ax.scatter(
        [x for x, _, _ in known],
        [y for _, y, _ in known],
        s=(1.6 * letters.marker) ** 2,
        c=[colour(scale.role(value), theme) for _, _, value in known],
        edgecolors=colour("ink", theme),
        linewidths=0.4 * letters.line,
        zorder=5,
    )


def draw_texts(
    places: tuple[Sequence[float], Sequence[float]],
    texts: Sequence[str],
    ax: "Axes",
    *,
    theme: str,
    letters: Letters,
) -> None:
    """Words in the middle of places."""
    for x, y, text in zip(*places, texts, strict=True):
        ax.text(
            x,
            y,
            text,
            ha="center",
            va="center",
            fontsize=letters.legend,
            color=colour("ink", theme),
            zorder=6,
            clip_on=True,
            **_cased(1.4 * letters.line, theme),
        )


def draw_colour_bar(
    scale: ValueScale, ax: "Axes", words: tuple[str, Sequence[str]], theme: str, letters: Letters
) -> None:
    """The bar beside the axes that says which colour is which value: what is shown, and the words of both ends."""
    label, ends = words
    ink = colour("ink", theme)
    canvas = ax.get_figure(root=True)
    assert canvas is not None
    ticks = [scale.edges[edge] for edge in NAMED]
    bar = canvas.colorbar(scale.mappable(theme), ax=ax, ticks=ticks, pad=0.03, aspect=22)
    names = [number_text(float(f"{tick:.3g}")) for tick in ticks]
    if ends:
        names = [f"{names[0]}: {ends[0]}", *names[1:-1], f"{names[-1]}: {ends[1]}"]
    bar.set_ticklabels(names)
    bar.set_label(label, fontsize=letters.label, color=ink)
    bar.ax.tick_params(labelsize=letters.tick, colors=ink, length=0)
    bar.ax.minorticks_off()
    bar.outline.set_visible(False)
