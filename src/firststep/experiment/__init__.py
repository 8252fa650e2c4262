"""Experiments: a TOML file becomes points, points become rows; stopped and resumed at will."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from firststep.experiment.builtin import builtin_experiments as builtin_experiments
    from firststep.experiment.panels import build_figures as build_figures
    from firststep.experiment.points import expand as expand
    from firststep.experiment.results import Results as Results
    from firststep.experiment.results import collect as collect
    from firststep.experiment.runner import Interrupted as Interrupted
    from firststep.experiment.runner import Plan as Plan
    from firststep.experiment.runner import Progress as Progress
    from firststep.experiment.runner import plan as plan
    from firststep.experiment.runner import run as run
    from firststep.experiment.schema import Experiment as Experiment
    from firststep.experiment.schema import ExperimentError as ExperimentError
    from firststep.experiment.schema import load as load
    from firststep.experiment.schema import parse as parse
    from firststep.experiment.schema import variants_of as variants_of

# Loaded when first used: a worker process needs none of these, and starts in half the time without them.
_PUBLIC = {
    "Experiment": "schema",
    "ExperimentError": "schema",
    "load": "schema",
    "parse": "schema",
    "variants_of": "schema",
    "builtin_experiments": "builtin",
    "expand": "points",
    "plan": "runner",
    "Plan": "runner",
    "run": "runner",
    "Progress": "runner",
    "Interrupted": "runner",
    "collect": "results",
    "Results": "results",
    "build_figures": "panels",
}
__all__ = list(_PUBLIC)


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_PUBLIC[name]}"), name)
