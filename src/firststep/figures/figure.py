"""Figures as plain data, and how matplotlib draws them."""

import io
import math
import os
import textwrap
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np

from firststep.compute.files import written
from firststep.figures.maps import ValueScale, draw_colour_bar, draw_discs, draw_map, draw_texts
from firststep.figures.style import SLIDE, Letters, colour, number_text, power_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure as Canvas

KINDS = ("line", "points", "band", "bars", "marks", "vlines", "hlines", "map", "discs", "texts")
STYLES = ("solid", "dashed", "dotted", "dashdot")
SCALES = ("linear", "log")
FORMATS = ("png", "svg", "pdf")

# Letters in a line of a name on an axis.
NAME_LENGTH = 12
# Decades of a logarithmic axis from which only powers of ten are named.
DECADES = 3

_DRAWING = threading.Lock()


def floats(values: Iterable[float | None]) -> tuple[float, ...]:
    """Numbers as a series keeps them; a gap is NaN."""
    return tuple(math.nan if value is None else float(value) for value in values)


@dataclass(frozen=True)
class Series:
    """One line, set of points or set of marks.

    Parameters
    ----------
    kind : {"line", "points", "band", "bars", "marks", "vlines", "hlines", "map", "discs", "texts"}
        A band lies between `y` and `upper`; bars stand between the edges `x`, one more than `y`; marks are
        pointers at (x, y); vlines use `x` only and hlines `y` only. A map has the columns `x` and the rows `y`, discs
        are at (x, y), both coloured by `z`; texts are `names` at (x, y).
    x, y : tuple of float
        NaN is a gap (None in `to_dict`).
    label : str
        Text in the legend, none when empty. An empty series with a label is an entry of the legend alone.
    role : str
        What is shown, which decides the colour; see `colour`.
    style : {"solid", "dashed", "dotted", "dashdot"}
        How a line is drawn.
    error : tuple of float
        One standard error of each `y`, or nothing.
    upper : tuple of float
        Upper end of a band.
    names : tuple of str
        A short text at each mark or line, or nothing.
    z : tuple of float
        The value of each disc; of a map those of its first row, then of the second, and so on.
    levels : tuple of float
        Values of a map along which a contour is drawn.
    """

    kind: str
    x: tuple[float, ...] = ()
    y: tuple[float, ...] = ()
    label: str = ""
    role: str = "theory"
    style: str = "solid"
    error: tuple[float, ...] = ()
    upper: tuple[float, ...] = ()
    names: tuple[str, ...] = ()
    z: tuple[float, ...] = ()
    levels: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for name in ("x", "y", "error", "upper", "z", "levels"):
            object.__setattr__(self, name, floats(getattr(self, name)))
        object.__setattr__(self, "names", tuple(self.names))
        if self.kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(KINDS)}; got {self.kind!r}")
        if self.style not in STYLES:
            raise ValueError(f"style must be one of {', '.join(STYLES)}; got {self.style!r}")
        colour(self.role)
        wanted = {"vlines": len(self.x), "hlines": len(self.y)}.get(self.kind, len(self.y))
        if self.kind == "bars" and self.y and len(self.x) != len(self.y) + 1:
            raise ValueError(f"bars need one edge more than heights, got {len(self.x)} and {len(self.y)}")
        self._check_values()
        if self.kind in ("line", "points", "band", "marks", "discs", "texts") and len(self.x) != len(self.y):
            raise ValueError(f"x and y must be equally long, got {len(self.x)} and {len(self.y)}")
        if self.kind == "band" and len(self.upper) != wanted:
            raise ValueError(f"upper must be as long as y, got {len(self.upper)} and {wanted}")
        for name in ("error", "names"):
            if getattr(self, name) and len(getattr(self, name)) != wanted:
                raise ValueError(f"{name} must have {wanted} entries or none, got {len(getattr(self, name))}")

    def _check_values(self) -> None:
        """A map has a value for each column and row, of which there are at least two; a disc has one."""
        count = {"map": len(self.x) * len(self.y), "discs": len(self.x)}.get(self.kind, 0)
        if len(self.z) != count:
            raise ValueError(f"z of {self.kind} must have {count} values, got {len(self.z)}")
        if self.kind == "map" and min(len(self.x), len(self.y)) < 2:
            raise ValueError(f"a map needs two columns and two rows, got {len(self.x)} and {len(self.y)}")
        for name, places in (("x", self.x), ("y", self.y)):
            if self.kind == "map" and not np.all(np.diff(places) > 0):
                raise ValueError(f"{name} of a map must ascend, got {places}")


@dataclass(frozen=True)
class Panel:
    """One pair of axes with what is drawn in it.

    `x_names` stand at x = 0, 1, … in place of numbers. The colours of maps and discs span `z_range`; a bar beside the
    axes says so, with `z_label` along it and `z_names`, if any, at its two ends.
    """

    series: tuple[Series, ...]
    x_label: str = ""
    y_label: str = ""
    title: str = ""
    x_scale: str = "linear"
    y_scale: str = "linear"
    x_range: tuple[float, float] | None = None
    y_range: tuple[float, float] | None = None
    x_names: tuple[str, ...] = ()
    z_label: str = ""
    z_range: tuple[float, float] | None = None
    z_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("series", "x_names", "z_names"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        for name in ("x_range", "y_range", "z_range"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, tuple(getattr(self, name)))
        for name in ("x_scale", "y_scale"):
            if getattr(self, name) not in SCALES:
                raise ValueError(f"{name} must be one of {', '.join(SCALES)}; got {getattr(self, name)!r}")
        if len(self.z_names) not in (0, 2):
            raise ValueError(f"z_names must be two, for the ends, or none, got {len(self.z_names)}")

    @property
    def value_scale(self) -> ValueScale | None:
        """How values become colours; None without values."""
        values = [value for series in self.series for value in series.z if math.isfinite(value)]
        if not values:
            return None
        return ValueScale(*(self.z_range or (min(values), max(values))))


@dataclass(frozen=True)
class Figure:
    """Panels side by side, as plain data that a report, a web page and matplotlib all draw.

    Examples
    --------
    >>> line = Series("line", x=[0, 1], y=[1, None], label="theory")
    >>> figure = Figure("An example", [Panel([line], x_label="x", y_label="y")])
    >>> figure.to_dict()["panels"][0]["series"][0]["y"]
    [1.0, None]
    >>> Figure.from_dict(figure.to_dict()).panels[0].x_label
    'x'
    """

    title: str
    panels: tuple[Panel, ...]
    caption: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "panels", tuple(self.panels))
        if not self.panels:
            raise ValueError("a figure needs at least one panel")

    def to_dict(self) -> dict[str, Any]:
        """JSON-able description from which `from_dict` builds the figure again; gaps are None."""
        plain: dict[str, Any] = _jsonable(asdict(self))
        return plain

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """Inverse of `to_dict`."""
        panels = [
            Panel(**{**panel, "series": tuple(Series(**series) for series in panel["series"])})
            for panel in content["panels"]
        ]
        return cls(content["title"], tuple(panels), content.get("caption", ""))

    def _repr_svg_(self) -> str:
        return render(self, "svg").decode()


def _jsonable(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _jsonable(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_jsonable(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def plot_format(path: str | os.PathLike[str]) -> str:
    """Format that a file's name asks for, checked together with its folder and with matplotlib being there.

    Meant to be called before a long computation whose figure goes there.

    Examples
    --------
    >>> plot_format("figure.svg")
    'svg'
    """
    path = Path(path)
    kind = path.suffix.lower().removeprefix(".")
    if kind not in FORMATS:
        raise ValueError(
            f"a figure's name must end in {', '.join('.' + f for f in FORMATS)}; got {str(path)!r}"
        )
    if not path.parent.is_dir():
        raise ValueError(f"the folder {str(path.parent)!r} of the figure does not exist: make it first")
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ValueError(f"the figure {str(path)!r} cannot be written there: choose another place")
    _require_matplotlib()
    return kind


def _require_matplotlib() -> None:
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise ImportError("drawing needs matplotlib: install firststep[plot]") from error


def save(figure: Figure, path: str | os.PathLike[str], *, theme: str = "light", dpi: float = 160) -> Path:
    """Draw a figure into a PNG, SVG or PDF file; equal figures give equal bytes."""
    kind = plot_format(path)
    content = render(figure, kind, theme=theme, dpi=dpi)
    with written(path) as draft:
        draft.write_bytes(content)
    return Path(path)


def render(
    figure: Figure,
    kind: str = "png",
    *,
    theme: str = "light",
    dpi: float = 160,
    width: float | None = None,
) -> bytes:
    """The bytes of a PNG, SVG or PDF file with the figure, without date, version or random identifiers.

    `width` is in inches, as for `draw`.
    """
    if kind not in FORMATS:
        raise ValueError(f"kind must be one of {', '.join(FORMATS)}; got {kind!r}")
    _require_matplotlib()
    import matplotlib

    settings = {
        name: value
        for name, value in matplotlib.rcParamsDefault.items()
        if not name.startswith(("backend", "webagg"))
    }
    stripped: dict[str, dict[str, str | None]] = {
        "png": {"Software": None},
        "svg": {"Date": None, "Creator": None, "Title": figure.title.replace("\n", "; ")},
        "pdf": {
            "CreationDate": None,
            "Creator": None,
            "Producer": None,
            "Title": figure.title.replace("\n", "; "),
        },
    }
    # matplotlib's settings belong to the whole process: draw one at a time, and give the user's back.
    with (
        _DRAWING,
        matplotlib.rc_context({**settings, "svg.hashsalt": "firststep", "font.family": "DejaVu Sans"}),
    ):
        axes = draw(figure, theme=theme, width=width)
        buffer = io.BytesIO()
        cast("Canvas", axes[0].figure).savefig(
            buffer,
            format=kind,
            dpi=dpi,
            metadata=stripped[kind],
            facecolor=colour("paper", theme),
            edgecolor="none",
        )
    return buffer.getvalue()


def draw(
    figure: Figure,
    axes: "Axes | Sequence[Axes] | None" = None,
    *,
    theme: str = "light",
    width: float | None = None,
) -> "tuple[Axes, ...]":
    """Draw a figure with matplotlib and give back its axes; nothing is shown.

    Parameters
    ----------
    figure : Figure
        What to draw.
    axes : Axes or sequence of Axes, optional
        One for each panel, drawn with the sizes of matplotlib's rcParams; their legend is below them if the figure
        has a layout (``layout="constrained"``) that makes room for it, else within. When not given, a new matplotlib
        figure with a title and a common legend.
    theme : {"light", "dark"}
        Paper and ink.
    width : float, optional
        Inches, for a new figure; letters keep their size, so a narrow figure has relatively large ones.
    """
    _require_matplotlib()
    if axes is not None:
        given = tuple(np.ravel(np.asarray(axes, dtype=object)))
        if len(given) != len(figure.panels):
            raise ValueError(f"the figure has {len(figure.panels)} panels, got {len(given)} axes")
        letters = Letters.from_settings()
        for panel, ax in zip(figure.panels, given, strict=True):
            draw_panel(panel, ax, theme=theme, letters=letters)
            _legend_of(panel, ax, letters, theme)
        return given
    return _new_canvas(figure, theme, width)


def _legend_of(panel: Panel, ax: "Axes", letters: Letters, theme: str) -> None:
    """The legend of axes that are not ours alone: under them where the layout makes room for it."""
    from matplotlib.transforms import ScaledTranslation

    if not any(series.label for series in panel.series):
        return
    style: dict[str, Any] = {
        "frameon": False,
        "fontsize": letters.legend,
        "labelcolor": colour("ink", theme),
        "handlelength": 1.8,
    }
    canvas = ax.get_figure(root=True)
    if canvas is None or canvas.get_layout_engine() is None:
        ax.legend(**style)
        return
    width = canvas.get_size_inches()[0] * ax.get_position().width * 72
    grid = _legend_grid([panel], width, letters.legend)
    handles = dict(zip(*reversed(ax.get_legend_handles_labels()), strict=True))
    texts = [_plain(line[i]) for i in range(len(grid[0])) for line in grid if line[i]]
    # Below the numbers and the name of the axis, whatever their size.
    down = 1.5 * letters.tick + (1.9 * letters.label if panel.x_label else 0.0)
    ax.legend(
        [handles[text] for text in texts],
        texts,
        loc="upper center",
        ncols=len(grid[0]),
        bbox_to_anchor=(0.5, 0.0),
        bbox_transform=ax.transAxes + ScaledTranslation(0, -down / 72, canvas.dpi_scale_trans),
        borderaxespad=0.2,
        columnspacing=1.2,
        **style,
    )


def _new_canvas(figure: Figure, theme: str, width: float | None) -> "tuple[Axes, ...]":
    """Panels on a canvas of their own, with a title above and one legend for all below."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas
    from matplotlib.layout_engine import ConstrainedLayoutEngine
    from matplotlib.lines import Line2D

    # Four are two by two, not three and a left-over.
    columns = 2 if len(figure.panels) == 4 else min(len(figure.panels), 3)
    rows = math.ceil(len(figure.panels) / columns)
    width = width or (5.6 * columns if columns > 1 else 7.2)
    in_line = int(width * 72 / (0.56 * SLIDE.title))
    title = [part for line in figure.title.split("\n") for part in textwrap.wrap(line, in_line)]
    legend = _legend_grid(figure.panels, width * 72, SLIDE.legend)
    height = 3.9 * rows + 0.3 * len(title) + 0.27 * len(legend)
    layout = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.08, wspace=0.04, hspace=0.04)
    canvas = Canvas(figsize=(width, height), layout=layout, facecolor=colour("paper", theme))
    FigureCanvasAgg(canvas)
    made = [canvas.add_subplot(rows, columns, i + 1) for i in range(len(figure.panels))]
    for panel, ax in zip(figure.panels, made, strict=True):
        draw_panel(panel, ax, theme=theme)
    if title:
        canvas.suptitle(
            _plain("\n".join(title)), fontsize=SLIDE.title, color=colour("ink", theme), linespacing=1.35
        )
    if legend:
        handles = {
            text: handle for ax in made for handle, text in zip(*ax.get_legend_handles_labels(), strict=True)
        }
        # matplotlib fills a legend by columns.
        texts = [_plain(line[i]) for i in range(len(legend[0])) for line in legend]
        canvas.legend(
            [handles.get(text, Line2D([], [], linestyle="none")) for text in texts],
            texts,
            loc="outside lower center",
            ncols=len(legend[0]),
            frameon=False,
            fontsize=SLIDE.legend,
            labelcolor=colour("ink", theme),
            handlelength=2.2,
            columnspacing=1.6,
        )
    return tuple(made)


def _legend_grid(panels: Sequence[Panel], points: float, size: float) -> list[list[str]]:
    """Labels in rows that fit the width: first the settings (colours), then in new rows the kinds of line."""
    roles = {series.label: series.role for panel in panels for series in panel.series if series.label}
    settings = [label for label, role in roles.items() if role.startswith(("setting", "ramp"))]
    groups = [group for group in (settings, [label for label in roles if label not in settings]) if group]
    best: list[list[str]] = []
    for columns in range(max((len(group) for group in groups), default=0), 0, -1):
        grid = [
            (group[i : i + columns] + [""] * columns)[:columns]
            for group in groups
            for i in range(0, len(group), columns)
        ]
        needed = sum(
            (max(len(label) for label in column) * 0.52 + 4) * size for column in zip(*grid, strict=True)
        )
        # As few rows as fit; of those, the fewest columns, so that no label is left alone in the last row.
        if (needed <= points or columns == 1) and (not best or len(grid) == len(best)):
            best = grid
    return best


def _plain(text: str) -> str:
    """Text that matplotlib does not read as a formula."""
    return text.replace("$", r"\$")


def draw_panel(panel: Panel, ax: "Axes", *, theme: str = "light", letters: Letters = SLIDE) -> "Axes":
    """Draw one panel into the given axes and give them back."""
    ink = colour("ink", theme)
    ax.set_facecolor(colour("paper", theme))
    ax.set_xscale(panel.x_scale)
    ax.set_yscale(panel.y_scale)
    for series in panel.series:
        if series.kind in ("map", "discs", "texts"):
            _draw_values(series, ax, panel.value_scale, theme, letters)
        else:
            _draw_series(series, ax, theme, letters)
    if panel.value_scale is not None:
        draw_colour_bar(panel.value_scale, ax, (_plain(panel.z_label), panel.z_names), theme, letters)
    if panel.x_range is not None:
        ax.set_xlim(panel.x_range)
    if panel.y_range is not None:
        ax.set_ylim(panel.y_range)
    for series in panel.series:
        _write_names(series, ax, theme, letters)
    ax.set_xlabel(_plain(panel.x_label), fontsize=letters.label, color=ink, labelpad=letters.label / 2)
    ax.set_ylabel(_plain(panel.y_label), fontsize=letters.label, color=ink, labelpad=letters.label / 2)
    if panel.title:
        named = any(series.kind == "vlines" and series.names for series in panel.series)
        ax.set_title(
            _plain(panel.title),
            fontsize=letters.label,
            color=ink,
            pad=(2.3 if named else 0.8) * letters.label,
        )
    for axis, scale in ((ax.xaxis, panel.x_scale), (ax.yaxis, panel.y_scale)):
        if scale == "log":
            _plain_numbers(axis)
    if panel.x_names:
        # Long names side by side would touch: they get a second line.
        names = [_plain("\n".join(textwrap.wrap(name, NAME_LENGTH))) for name in panel.x_names]
        ax.set_xticks(range(len(names)), names)
    # The shorter ticks are further from their numbers, so that all numbers stand on one line.
    ax.tick_params(labelsize=letters.tick, colors=ink, length=4, pad=3.5)
    ax.tick_params(which="minor", labelsize=letters.tick, colors=ink, length=2, pad=5.5)
    ax.grid(True, axis="y", color=colour("grid", theme), linewidth=0.8)
    ax.set_axisbelow(True)
    for side, spine in ax.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(ink)
    return ax


def _plain_numbers(axis: "Axis") -> None:
    """Label a logarithmic axis with 0.5 and 10⁻⁶ rather than with formulas.

    Over several decades powers of ten alone; else 1, 2 and 5 and their tenfolds where these are enough, so that labels
    do not touch; on a short axis where matplotlib sees fit.
    """
    from matplotlib.ticker import LogFormatter

    class Formatter(LogFormatter):
        minor = False

        def __call__(self, x: float, pos: int | None = None) -> str:
            low, high = sorted(axis.get_view_interval())
            places = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
            if math.log10(high / low) >= DECADES:
                exponent = round(math.log10(x))
                whole = not self.minor and math.isclose(x, 10.0**exponent, rel_tol=1e-6)
                return power_text(exponent) if whole else ""
            round_ones = [m * 10.0**k for k in places for m in (1, 2, 5) if low <= m * 10.0**k <= high]
            if len(round_ones) >= 3:
                chosen = any(math.isclose(x, value, rel_tol=1e-6) for value in round_ones)
            else:
                chosen = bool(super().__call__(x, pos))
            return number_text(float(f"{x:.6g}")) if chosen else ""

    axis.set_major_formatter(Formatter())
    small = Formatter(minor_thresholds=(1, 0.4))
    small.minor = True
    axis.set_minor_formatter(small)


def _draw_series(series: Series, ax: "Axes", theme: str, letters: Letters) -> None:
    shade, paper = colour(series.role, theme), colour("paper", theme)
    label = _plain(series.label) or "_nolegend_"
    x, y = np.array(series.x), np.array(series.y)
    strokes: dict[str, Any] = {
        "solid": "solid",
        "dashed": (0, (3.6, 1.8)),
        "dotted": (0, (1.2, 1.8)),
        "dashdot": (0, (6, 2, 1.2, 2)),
    }
    stroke = strokes[series.style]
    thickness = letters.line if series.style == "solid" else letters.line / 1.2
    match series.kind:
        case "line":
            ax.plot(x, y, color=shade, linestyle=stroke, linewidth=thickness, label=label, zorder=3)
        case "points":
            ax.errorbar(
                x,
                y,
                yerr=np.array(series.error) if series.error or not series.x else None,
                fmt="o",
                color=shade,
                markersize=letters.marker,
                markeredgecolor=paper,
                markeredgewidth=0.13 * letters.marker,
                elinewidth=0.75 * letters.line,
                label=label,
                zorder=5,
            )
        case "band":
            ax.fill_between(x, y, series.upper, color=shade, alpha=0.22, linewidth=0, label=label, zorder=2)
        case "bars":
            if not series.y:
                x, y = np.zeros(2), np.full(1, np.nan)
            ax.stairs(y, x, fill=True, color=shade, alpha=0.35, linewidth=0, label=label, zorder=1.5)
        case "marks":
            ax.plot(
                x,
                y,
                linestyle="none",
                marker="v",
                color=shade,
                markersize=1.4 * letters.marker,
                markeredgecolor=paper,
                markeredgewidth=0.13 * letters.marker,
                label=label,
                # Below the points: what was published must not hide what was drawn.
                zorder=4,
                clip_on=False,
            )
        case "vlines" | "hlines":
            thin = (0.45 if series.role == "threshold" else 0.75) * letters.line
            along = ax.axvline if series.kind == "vlines" else ax.axhline
            for place in series.x if series.kind == "vlines" else series.y:
                along(place, color=shade, linestyle=stroke, linewidth=thin, zorder=2)
            if series.label:
                ax.plot([], [], color=shade, linestyle=stroke, linewidth=thin, label=label)


def _draw_values(series: Series, ax: "Axes", scale: ValueScale | None, theme: str, letters: Letters) -> None:
    """A map, discs or texts, and their entry of the legend."""
    places = series.x, series.y
    if series.kind == "texts":
        draw_texts(places, [_plain(name) for name in series.names], ax, theme=theme, letters=letters)
    elif scale is not None and series.kind == "map":
        draw_map(places, series.z, series.levels, ax, scale, theme=theme, letters=letters)
    elif scale is not None:
        draw_discs(places, series.z, ax, scale, theme=theme, letters=letters)
    if series.label:
        (entry,) = ax.plot(
            [], [], color=colour("ink", theme), linewidth=letters.line, label=_plain(series.label)
        )
        if series.kind == "discs":
            entry.set(marker="o", linestyle="none", markersize=1.6 * letters.marker)
            entry.set(markerfacecolor="none", markeredgewidth=0.5 * letters.line)


def _write_names(series: Series, ax: "Axes", theme: str, letters: Letters) -> None:
    """Names of lines and marks; those of vertical lines above the panel, raised where they would touch."""
    if not series.names or series.kind == "texts":
        return
    shade = colour(series.role, theme)
    if series.kind == "vlines":
        low, high = ax.get_xlim()
        inches = ax.figure.get_size_inches()[0] * ax.get_position().width  # type: ignore[union-attr]
        ends: list[float] = []
        for place, name in sorted(zip(series.x, series.names, strict=True)):
            scaled = ax.transAxes.inverted().transform(ax.transData.transform((place, ax.get_ylim()[0])))[0]
            if not low <= place <= high:
                continue
            half = 0.5 * len(name) * 0.55 * letters.name / 72 / inches
            level = next((i for i, end in enumerate(ends) if scaled - half > end), len(ends))
            ends[level : level + 1] = [scaled + half]
            ax.annotate(
                _plain(name),
                (scaled, 1.0),
                xytext=(0, 4 + level * (letters.name + 3)),
                xycoords="axes fraction",
                textcoords="offset points",
                ha="center",
                va="bottom",
                fontsize=letters.name,
                color=shade,
            )
    elif series.kind == "hlines":
        for place, name in zip(series.y, series.names, strict=True):
            ax.annotate(
                _plain(name),
                (1.0, place),
                xytext=(-4, 3),
                xycoords=("axes fraction", "data"),
                textcoords="offset points",
                ha="right",
                va="bottom",
                fontsize=letters.name,
                color=shade,
            )
    else:
        for across, up, name in zip(series.x, series.y, series.names, strict=False):
            ax.annotate(
                _plain(name),
                (across, up),
                xytext=(0, 8),
                textcoords="offset points",
                ha="center",
                va="bottom",
                fontsize=letters.name,
                color=shade,
            )
