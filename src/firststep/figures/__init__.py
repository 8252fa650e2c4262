"""Figures as plain data, drawn one way: theory as lines, simulation as points ± one standard error."""

from firststep.figures.errors import (
    LAST_WINDOW,
    SOURCES,
    THRESHOLDS,
    WORDS,
    common_sizes,
    errors_against_step,
    problem_text,
    sizes_text,
)
from firststep.figures.figure import (
    FORMATS,
    STYLES,
    Figure,
    Panel,
    Series,
    draw,
    draw_panel,
    plot_format,
    render,
    save,
)
from firststep.figures.style import PALETTES, RAMP, SETTING_COLOURS, colour, number_text

__all__ = [
    "FORMATS",
    "LAST_WINDOW",
    "PALETTES",
    "RAMP",
    "SETTING_COLOURS",
    "SOURCES",
    "STYLES",
    "THRESHOLDS",
    "WORDS",
    "Figure",
    "Panel",
    "Series",
    "colour",
    "common_sizes",
    "draw",
    "draw_panel",
    "errors_against_step",
    "number_text",
    "plot_format",
    "problem_text",
    "render",
    "save",
    "sizes_text",
]
