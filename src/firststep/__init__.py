"""One gradient step on a two-layer network: simulated at finite size, solved in the limit, and compared."""

import sys
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from firststep.compare import Comparison as Comparison
    from firststep.compare import compare as compare
    from firststep.diagnose import Diagnosis as Diagnosis
    from firststep.diagnose import LearningCurve as LearningCurve
    from firststep.diagnose import diagnose as diagnose
    from firststep.diagnose import learning_curve as learning_curve
    from firststep.estimator import OneStepClassifier as OneStepClassifier
    from firststep.estimator import OneStepFeatures as OneStepFeatures
    from firststep.estimator import OneStepRegressor as OneStepRegressor
    from firststep.gaussian import Function as Function
    from firststep.gaussian import function as function
    from firststep.results import LabelOutliers as LabelOutliers
    from firststep.results import Outcome as Outcome
    from firststep.results import SizeMap as SizeMap
    from firststep.results import Spectrum as Spectrum
    from firststep.setting import Problem as Problem
    from firststep.setting import Sizes as Sizes
    from firststep.simulate import simulate as simulate
    from firststep.simulate.label_matrix import measured_label_outliers as measured_label_outliers
    from firststep.simulate.spectra import simulate_spectrum as simulate_spectrum
    from firststep.store import open_store as open_store
    from firststep.theory import predict as predict
    from firststep.theory.size_maps import predict_map as predict_map
    from firststep.theory.spectra.label_matrix import label_outliers as label_outliers
    from firststep.theory.spectra.spectrum import critical_steps as critical_steps
    from firststep.theory.spectra.spectrum import predict_spectrum as predict_spectrum

__version__ = "0.1.0"

# Each public name with the module it lives in, in reading order. Loaded when first used, so that importing
# the package, and with it the command line's --help, does not wait for NumPy.
_PUBLIC = {
    "function": "gaussian",
    "Function": "gaussian",
    "Problem": "setting",
    "Sizes": "setting",
    "simulate": "simulate",
    "predict": "theory",
    "Outcome": "results",
    "predict_map": "theory.size_maps",
    "SizeMap": "results",
    "compare": "compare",
    "Comparison": "compare",
    "predict_spectrum": "theory.spectra.spectrum",
    "simulate_spectrum": "simulate.spectra",
    "Spectrum": "results",
    "critical_steps": "theory.spectra.spectrum",
    "label_outliers": "theory.spectra.label_matrix",
    "measured_label_outliers": "simulate.label_matrix",
    "LabelOutliers": "results",
    "open_store": "store",
    "OneStepRegressor": "estimator",
    "OneStepClassifier": "estimator",
    "OneStepFeatures": "estimator",
    "diagnose": "diagnose",
    "Diagnosis": "diagnose",
    "learning_curve": "diagnose",
    "LearningCurve": "diagnose",
}
# What needs a package that an extra brings, so that `from firststep import *` works without it.
_NEEDS = {
    "OneStepRegressor": "sklearn",
    "OneStepClassifier": "sklearn",
    "OneStepFeatures": "sklearn",
    "diagnose": "sklearn",
    "Diagnosis": "sklearn",
}
__all__ = [name for name in _PUBLIC if name not in _NEEDS or find_spec(_NEEDS[name]) is not None]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_PUBLIC[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})


class _Package(ModuleType):
    """The package's own type: a public function is never replaced by the submodule of the same name."""

    def __setattr__(self, name: str, value: object) -> None:
        # Importing firststep.simulate would otherwise bind that module as the attribute `simulate`.
        if not (name in _PUBLIC and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
