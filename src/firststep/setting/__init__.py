"""What is studied: inputs × teacher × network × training × fit, and the sizes.

Each part is a file that declares its fields once (`Field`); `Problem` puts them together. Names are loaded when they
are first used: the command line's help needs the declarations, which need no NumPy.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from firststep.setting.declared import FIELDS
from firststep.setting.fields import Field
from firststep.setting.inputs import Alignment, Inputs
from firststep.setting.keys import stable_key
from firststep.setting.network import INITIAL_OUTPUTS, ROWS
from firststep.setting.readouts import READOUTS

if TYPE_CHECKING:
    from firststep.setting.covariance import Covariance, from_data
    from firststep.setting.problem import NEGLIGIBLE, OutsideTheoryWarning, Problem
    from firststep.setting.readouts.law import ReadoutLaw
    from firststep.setting.sizes import (
        Sizes,
        check_whole,
        later_steps_of,
        ridges_of,
        schedule_of,
        step_sizes_of,
    )

_LATER = {
    "Covariance": "covariance",
    "from_data": "covariance",
    "NEGLIGIBLE": "problem",
    "OutsideTheoryWarning": "problem",
    "Problem": "problem",
    "ReadoutLaw": "readouts.law",
    "Sizes": "sizes",
    "check_whole": "sizes",
    "later_steps_of": "sizes",
    "ridges_of": "sizes",
    "schedule_of": "sizes",
    "step_sizes_of": "sizes",
}
__all__ = [
    "FIELDS",
    "INITIAL_OUTPUTS",
    "NEGLIGIBLE",
    "READOUTS",
    "ROWS",
    "Alignment",
    "Covariance",
    "Field",
    "Inputs",
    "OutsideTheoryWarning",
    "Problem",
    "ReadoutLaw",
    "Sizes",
    "check_whole",
    "from_data",
    "later_steps_of",
    "ridges_of",
    "schedule_of",
    "stable_key",
    "step_sizes_of",
]


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
    globals()[name] = value
    return value
