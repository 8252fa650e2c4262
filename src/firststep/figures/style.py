"""One role, one colour, in every figure; sizes of letters; and numbers as people write them."""

from dataclasses import dataclass
from typing import Any, Self, cast

# One role, one colour, in every figure. The hues are Okabe and Ito's, told apart by colour-blind readers,
# deepened for white paper and lightened for dark.
PALETTES: dict[str, dict[str, str]] = {
    "light": {
        "paper": "#ffffff",
        "ink": "#1f2328",
        "grid": "#e8eaed",
        "theory": "#0072b2",
        "simulation": "#d55e00",
        "staircase": "#00825f",
        "random_features": "#b0508a",
        "linear": "#5c636a",
        "threshold": "#8b9198",
        "setting1": "#0072b2",
        "setting2": "#d55e00",
        "setting3": "#b0508a",
        "setting4": "#a87400",
        "setting5": "#2b96d1",
        "setting6": "#00825f",
    },
    "dark": {
        "paper": "#16191d",
        "ink": "#e6e8ea",
        "grid": "#2c3137",
        "theory": "#56b4e9",
        "simulation": "#ff9a57",
        "staircase": "#35c89b",
        "random_features": "#e59cc6",
        "linear": "#b4bac0",
        "threshold": "#7d848b",
        "setting1": "#56b4e9",
        "setting2": "#ff9a57",
        "setting3": "#e59cc6",
        "setting4": "#e8c15c",
        "setting5": "#9fd6f5",
        "setting6": "#35c89b",
    },
}
SETTING_COLOURS = 6
# Beyond six settings the colour is a place on this ramp (viridis without its palest end).
RAMP = ("#440154", "#443983", "#31688e", "#21918c", "#35b779", "#7fbf2c")
DARK_RAMP = ("#8c6bd0", "#6f8fdc", "#4fa8c9", "#3fc1a6", "#8bd46a", "#e6e04c")
# Values of a map, from nearly the paper to the deepest colour that lines in ink still stand out from. Lightness alone
# tells them apart, for every sight.
SCALE = ("#fbf9e6", "#d5edc3", "#95d5be", "#55b9c6", "#2f94c4", "#2370b0")
DARK_SCALE = ("#20262d", "#24435c", "#28637f", "#2c8490", "#3f9c8d", "#6bb37a")
STOPS = {"ramp": {"light": RAMP, "dark": DARK_RAMP}, "scale": {"light": SCALE, "dark": DARK_SCALE}}


def colour(role: str, theme: str = "light") -> str:
    """Hexadecimal colour of a role: a name in `PALETTES`, or ``"ramp:0.4"`` for a place between 0 and 1.

    Places of ``ramp`` are settings in order, those of ``scale`` values on a map.

    Examples
    --------
    >>> colour("theory"), colour("ramp:0")
    ('#0072b2', '#440154')
    """
    if theme not in PALETTES:
        raise ValueError(f"theme must be one of {', '.join(PALETTES)}; got {theme!r}")
    kind, _, place_text = role.partition(":")
    if kind in STOPS and place_text:
        stops = STOPS[kind][theme]
        place = min(max(float(place_text), 0.0), 1.0) * (len(stops) - 1)
        left = min(int(place), len(stops) - 2)
        channels = (
            round(
                int(stops[left][i : i + 2], 16) * (left + 1 - place)
                + int(stops[left + 1][i : i + 2], 16) * (place - left)
            )
            for i in (1, 3, 5)
        )
        return "#" + "".join(f"{channel:02x}" for channel in channels)
    if role not in PALETTES[theme]:
        raise ValueError(f"role must be one of {', '.join(PALETTES[theme])} or ramp:<0..1>; got {role!r}")
    return PALETTES[theme][role]


def setting_roles(count: int, *, ordered: bool) -> list[str]:
    """Roles of the settings of a figure: numbers in order get a ramp of colours, names colours of their own.

    Two settings are told apart best by two different colours, ordered or not.

    Examples
    --------
    >>> setting_roles(3, ordered=True), setting_roles(2, ordered=True)
    (['ramp:0.000', 'ramp:0.500', 'ramp:1.000'], ['setting1', 'setting2'])
    """
    if count > SETTING_COLOURS or (ordered and count > 2):
        return [f"ramp:{place / (count - 1):.3f}" for place in range(count)]
    return [f"setting{place + 1}" for place in range(count)]


def power_text(exponent: int) -> str:
    """A power of ten: 10⁻³, 1, 10, 10²⁴.

    Examples
    --------
    >>> [power_text(k) for k in (-3, 0, 1, 24)]
    ['10⁻³', '1', '10', '10²⁴']
    """
    if exponent in (0, 1):
        return str(10**exponent)
    return "10" + str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def number_text(value: float) -> str:
    """A number for people: 1000, 0.05, 10²⁴.

    Examples
    --------
    >>> number_text(1000), number_text(0.05), number_text(10**24), number_text(3e-7)
    ('1000', '0.05', '10²⁴', '3·10⁻⁷')
    """
    if value == 0 or 1e-4 <= abs(value) < 1e6:
        return f"{value:.6g}"
    mantissa, exponent = f"{value:.3e}".split("e")
    mantissa = mantissa.rstrip("0").rstrip(".")
    power = power_text(int(exponent))
    return {"1": power, "-1": f"-{power}"}.get(mantissa, f"{mantissa}·{power}")


@dataclass(frozen=True)
class Letters:
    """Sizes of letters, lines and points, in points; the default is for a figure as wide as a slide."""

    title: float = 14
    label: float = 13
    legend: float = 12
    tick: float = 12
    name: float = 10.5
    line: float = 2.4
    marker: float = 7

    @classmethod
    def from_settings(cls) -> Self:
        """What matplotlib's rcParams ask for: axes of the user's own look like the rest of the document."""
        import matplotlib
        from matplotlib.font_manager import FontProperties

        settings = cast("dict[str, Any]", matplotlib.rcParams)

        def points(name: str) -> float:
            return float(FontProperties(size=settings[name]).get_size_in_points())

        return cls(
            title=points("axes.titlesize"),
            label=points("axes.labelsize"),
            legend=points("legend.fontsize"),
            tick=points("xtick.labelsize"),
            name=0.85 * points("font.size"),
            line=float(settings["lines.linewidth"]),
            marker=float(settings["lines.markersize"]),
        )


SLIDE = Letters()
