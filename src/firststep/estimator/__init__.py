"""The network as scikit-learn estimators: random first layer, one gradient step, ridge readout."""

try:
    from firststep.estimator.classifier import OneStepClassifier
    from firststep.estimator.features import OneStepFeatures
    from firststep.estimator.regressor import OneStepRegressor
except ImportError as error:
    if "sklearn" not in str(error):
        raise
    raise ImportError("the estimators need scikit-learn 1.6 or newer: install firststep[sklearn]") from error

__all__ = ["OneStepClassifier", "OneStepFeatures", "OneStepRegressor"]
