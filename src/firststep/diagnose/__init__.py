"""Tables of one's own: whether a step would help, and what more data would buy."""

from firststep.diagnose.curve import LearningCurve, learning_curve
from firststep.diagnose.examine import diagnose
from firststep.diagnose.files import read_table
from firststep.diagnose.measure import MODELS
from firststep.diagnose.numbers import Number
from firststep.diagnose.report import Diagnosis
from firststep.diagnose.table import unknown_column

__all__ = [
    "MODELS",
    "Diagnosis",
    "LearningCurve",
    "Number",
    "diagnose",
    "learning_curve",
    "read_table",
    "unknown_column",
]
