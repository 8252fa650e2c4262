"""Figures as plain data, drawn one way: theory as lines, simulation as points ± one standard error."""

from firststep.figures.errors import (
    SOURCES,
    THRESHOLDS,
    common_sizes,
    errors_against_step,
    level_segments,
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
from firststep.figures.maps import BAND_ROLES
from firststep.figures.spectra import alignment, distances, histogram, ladder, phase_diagram
from firststep.figures.style import PALETTES, RAMP, SETTING_COLOURS, colour, number_text, setting_roles
from firststep.figures.words import AXES, SYMBOLS, WORDS

__all__ = [
    "AXES",
    "BAND_ROLES",
    "FORMATS",
    "PALETTES",
    "RAMP",
    "SETTING_COLOURS",
    "SOURCES",
    "STYLES",
    "SYMBOLS",
    "THRESHOLDS",
    "WORDS",
    "Figure",
    "Panel",
    "Series",
    "alignment",
    "colour",
    "common_sizes",
    "distances",
    "draw",
    "draw_panel",
    "errors_against_step",
    "histogram",
    "ladder",
    "level_segments",
    "number_text",
    "phase_diagram",
    "plot_format",
    "problem_text",
    "render",
    "save",
    "setting_roles",
    "sizes_text",
]
