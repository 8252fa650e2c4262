"""The features alone, for a model of one's own."""

from typing import Any, Self, cast

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

from firststep.arrays import Matrix
from firststep.estimator.fit import OneStep, checked

TARGETS = ("auto", "numbers", "classes")


class OneStepFeatures(ClassNamePrefixFeaturesOutMixin, TransformerMixin, OneStep):  # type: ignore[misc]
    """Random features after one gradient step, for a model of your own on top.

    **When to use it, and when not.** Use it where ridge regression is not the model you want: a robust loss, counts,
    a pipeline of your own. Else use `OneStepRegressor` or `OneStepClassifier`, which average several networks; these
    features are those of the best one.

    The step size is chosen as `OneStepRegressor` does, by a ridge readout. The features of the samples that
    took the step know their own targets: a model on top that tunes itself by leave-one-out or on the training
    error is deceived as long as there are fewer than about 100 samples for each input. Tune the whole pipeline
    by cross-validation.

    Parameters
    ----------
    width : int, default=500
        Neurons N.
    activation : str, callable or Function, default="tanh"
        Activation.
    step_size : "auto", float or list of float, default="auto"
        Step size or candidates.
    ridge : "auto", float or list of float, default="auto"
        Ridge or candidates of the readout that judges the step.
    scale : "auto", float or list of float, default="auto"
        What the first layer and its biases are multiplied by, or candidates. "auto" is 0.4, 0.8 and 1.6, and 1 for a
        gradient step of a size that is given.
    bias : float, default=1.0
        Standard deviation of the neurons' biases. They are drawn, and grow with the pre-activations when a step is
        taken; 0 is the network of the theory.
    split : float, optional
        Share of the samples that takes the step.
    whiten : {"step", True, False}, default="step"
        Whether the step, or the inputs themselves, are made independent of the inputs' correlations.
    n_steps : "auto" or int, default="auto"
        Most steps that are tried.
    bend : {"auto", True, False}, default="auto"
        Whether skewed inputs are made even by logarithms; "auto" where that lowers the error of random features.
    target : {"auto", "numbers", "classes"}, default="auto"
        What y holds. "auto" takes numbers as numbers and everything else as classes; say "classes" for classes
        that are written as numbers, if there are more than two.
    dtype : {"float64", "float32"}, default="float64"
        Precision of the features.
    random_state : int, RandomState instance or None, default=None
        Source of the first layer, the first readout and the split.
    verbose : bool or int, default=False
        Whether a progress bar is shown on standard error.

    Attributes
    ----------
    step_size_, ridge_, n_steps_, loo_path_, spectrum_, direction_, weights_, biases_, bends_, mean_, scale_, \
whitening_, activation_, n_features_in_, feature_names_in_
        As in `OneStepRegressor`.

    Examples
    --------
    >>> import numpy as np
    >>> inputs = np.random.default_rng(0).standard_normal((100, 5))
    >>> maker = OneStepFeatures(width=8, random_state=0).fit(inputs, inputs[:, 0] ** 3)
    >>> maker.transform(inputs).shape, maker.get_feature_names_out()[:2].tolist()
    ((100, 8), ['onestepfeatures0', 'onestepfeatures1'])
    """

    _single = True

    def __init__(
        self,
        width: int = 500,
        activation: Any = "tanh",
        step_size: Any = "auto",
        ridge: Any = "auto",
        *,
        scale: Any = "auto",
        bias: float = 1.0,
        split: float | None = None,
        whiten: bool | str = "step",
        n_steps: int | str = "auto",
        bend: bool | str = "auto",
        target: str = "auto",
        dtype: str = "float64",
        random_state: Any = None,
        verbose: bool | int = False,
    ) -> None:
        super().__init__(
            width,
            activation,
            step_size,
            ridge,
            scale=scale,
            bias=bias,
            split=split,
            whiten=whiten,
            n_steps=n_steps,
            bend=bend,
            dtype=dtype,
            random_state=random_state,
            verbose=verbose,
        )
        self.target = target

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.target_tags.multi_output = True
        tags.transformer_tags.preserves_dtype = []
        return tags

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Take the step.

        Parameters
        ----------
        X : array_like (n, d)
            Inputs.
        y : array_like (n,) or (n, k)
            Targets, or classes (n,).
        sample_weight : array_like (n,), optional
            How often each sample counts.

        Returns
        -------
        self
            The fitted transformer.
        """
        if self.target not in TARGETS:
            raise ValueError(f"target must be one of {', '.join(TARGETS)}; got {self.target!r}")
        classes = self.target == "classes" or (
            self.target == "auto" and np.asarray(y).dtype.kind not in "iuf"
        )
        inputs, given = checked(
            self,
            X,
            y,
            dtype=np.float64,
            multi_output=not classes,
            y_numeric=not classes,
            ensure_min_samples=2,
        )
        if classes:
            labels = column_or_1d(given, warn=True)
            check_classification_targets(labels)
            targets, scales = self._signs(*np.unique(labels, return_inverse=True), sample_weight)
        else:
            targets, scales = self._numbers(given, sample_weight)
        self._fit(inputs, targets, scales, sample_weight)
        return self

    def transform(self, X: ArrayLike) -> Matrix:
        """Features after the step, (n, N).

        Parameters
        ----------
        X : array_like (n, d)
            Inputs.
        """
        inputs = self._given(X)
        result = np.empty((len(inputs), len(self.weights_)), dtype=self.dtype)
        for part, block in self._blocks(inputs):
            result[part] = block
        return cast(Matrix, result)

    @property
    def _n_features_out(self) -> int:
        return len(self.weights_)
