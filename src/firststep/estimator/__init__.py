"""The network as scikit-learn estimators: random first layer, one gradient step, ridge readout."""

from firststep.estimator.models import OneStepClassifier, OneStepFeatures, OneStepRegressor

__all__ = ["OneStepClassifier", "OneStepFeatures", "OneStepRegressor"]
