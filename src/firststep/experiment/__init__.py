"""Experiments: a TOML file becomes points, points become rows; stopped and resumed at will."""

from firststep.experiment.builtin import builtin_experiments
from firststep.experiment.panels import build_figures
from firststep.experiment.plan import Cell, Point, expand
from firststep.experiment.results import Predicted, Results, collect
from firststep.experiment.runner import Interrupted, Plan, Progress, plan, run
from firststep.experiment.schema import Experiment, ExperimentError, load, parse, variants_of

__all__ = [
    "Cell",
    "Experiment",
    "ExperimentError",
    "Interrupted",
    "Plan",
    "Point",
    "Predicted",
    "Progress",
    "Results",
    "build_figures",
    "builtin_experiments",
    "collect",
    "expand",
    "load",
    "parse",
    "plan",
    "run",
    "variants_of",
]
