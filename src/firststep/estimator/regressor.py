"""Regression."""

from typing import Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import MultiOutputMixin, RegressorMixin

from firststep.estimator.fit import OneStep, checked
from firststep.gaussian import Array


class OneStepRegressor(MultiOutputMixin, RegressorMixin, OneStep):  # type: ignore[misc]
    r"""Ridge regression on random features that have taken a step towards the target, if that helps.

    **When to use it, and when not.** Use it for smooth targets: tables of some hundred to some hundred thousand rows
    and up to a few hundred inputs. As it comes it has a lower test RMSE than tuned MC dropout on five of seven UCI
    sets, and one within a standard error on one more; on single-index data (2000 samples of 100 inputs) an error of
    .14 where the noise is .11 and random features have .59. Do not use it for thresholds and categories (boosting has
    3.37 against 3.92 on the power plant, .589 against .633 on the red wines), for linear targets (ridge regression
    is as good), for fewer than about 50 rows, for images or text.

    .. math:: W_1 = s\, W_0\, (1 - \tau + \tau\, d\, M/\operatorname{tr} M)^{1/2}, \quad
        f(x) = a_0 + \hat a \cdot \sigma(W_1 \bar x + \text{bias})

    with :math:`\bar x` the standardised input and M the directions of the target (see `n_steps`): for
    :math:`M = b b^\top` one gradient step in law [Ba22]_. With `step_size` given it is the gradient step itself,
    :math:`W_1 = W_0 + \eta\, (1 + \mu)\, G\, (C + \mu)^{-1}`, C the inputs' covariance and :math:`G` as in
    :func:`firststep.arrays.gradient_step`, with signs for the first readout.

    Parameters
    ----------
    width : int, default=500
        Neurons N of a network; an average has those of all its networks, mostly two to four.
    activation : str, callable or Function, default="tanh"
        :math:`\sigma`, as :func:`firststep.function` takes it.
    step_size : "auto", float or list of float, default="auto"
        "auto" averages networks before and after steps along the target's own directions, and takes no step unless
        that lowers the cross-validated error beyond its noise; 0 never takes one. Numbers are :math:`\eta` of
        the gradient step of the theory, or candidates for it.
    ridge : "auto", float or list of float, default="auto"
        :math:`\lambda`, or candidates; chosen together with the step size.
    scale : "auto", float or list of float, default="auto"
        What the first layer and its biases are multiplied by, or candidates. "auto" is 0.4, 0.8 and 1.6, and 1 for a
        gradient step of a size that is given.
    bias : float, default=1.0
        Standard deviation of the neurons' biases. They are drawn, and grow with the pre-activations when a step is
        taken; 0 is the network of the theory.
    split : float, optional
        Share of the samples that takes the step; the others fit the readout, as in the theory. None (the default)
        lets all samples do both, which predicts better: see Notes.
    whiten : {"step", True, False}, default="step"
        "step" takes the gradient in the inputs' own metric, as in the formula: the direction b of the step is
        then that of linear ridge regression, whose ridge, chosen by leave-one-out, is :math:`\mu`. True makes
        the inputs themselves uncorrelated, which also changes the random features; False is the plain gradient.
    n_steps : "auto" or int, default="auto"
        Most steps that are tried, 2 for "auto": the first along the target's linear and quadratic parts, later ones
        along the directions in which the fitted network changes. With a `step_size` that is given it is the number
        of gradient steps, with the first readout kept, and 1 for "auto".
    bend : {"auto", True, False}, default="auto"
        Whether skewed inputs are made even by logarithms (see `bends_`). "auto" does so if random features then have
        an error that is lower by more than twice its standard error, and never with a `step_size` that is given.
    dtype : {"float64", "float32"}, default="float64"
        Precision of the features; the ridge is solved in double precision.
    random_state : int, RandomState instance or None, default=None
        Source of the first layer, the first readout and the split.
    verbose : bool or int, default=False
        Whether a progress bar is shown on standard error.

    Attributes
    ----------
    step_size_, ridge_ : float
        What was taken: :math:`\tau/(1-\tau)` of the heaviest network that took a step, 0 if none did; the ridge of the
        heaviest network.
    n_steps_ : int
        Most steps of a network in the average.
    loo_path_ : dict
        Why: for the networks that were tried `n_steps`, `step_sizes`, `scales` and `weights` (C,) in the average,
        `ridges` (R,) in units of the features' variance unless they were given, `errors` (C, R), the mean squared
        errors in units of the targets' variance; `gain` and `gain_stderr`, the fall in error from the average
        without a step, and its paired standard error; `how`, which estimate of the error this is. For gradient
        steps of given sizes: `step_sizes` (S,), `ridges` (S, R), `errors` (S, R), `gain`, `gain_stderr`, `how`.
    spectrum_ : ndarray (min(n, N),)
        Eigenvalues of the covariance of the heaviest network's features, largest first.
    direction_ : ndarray (d,) or (k, d)
        Unit vector along b, the direction in which the step moves the neurons, as coefficients on the standardised
        inputs.
    weights_ : ndarray (N, d)
        First layer after the step, for standardised (and whitened) inputs.
    biases_ : ndarray (N,)
        Its biases.
    coef_ : ndarray (N,) or (k, N)
        Readout.
    intercept_ : float or ndarray (k,)
        Intercept.
    bends_ : Bends or None
        The logarithms, :math:`\pm\log(1 + k u)`, u the column above its least value, or below its largest, in units of
        its mean there; `strengths` (d,) are the k, 0 for a column as it is. None if the inputs are as they came.
    mean_, scale_ : ndarray (d,)
        Standardisation of the inputs, bent if they are; the scale of a constant column is infinite.
    whitening_ : ndarray (d, d) or None
        What the standardised inputs are multiplied by.
    activation_ : Function
        Activation.
    n_features_in_ : int
        Inputs d seen in fit.
    feature_names_in_ : ndarray of str
        Their names, if they all are strings.

    Notes
    -----
    The weights of the average and the ridges are chosen by exact leave-one-out errors, from one factorisation for
    each network; beyond 20,000 samples on about as many of them. With `split` the readout's samples are independent
    of the step, and their errors are honest. When the same samples do both, a sample's features already know its
    target through the step, and leave-one-out would be deceived. So the samples are halved for the choice: each
    half has a readout on the features of the other's step, with the exact leave-one-out error of that; from 100
    samples for each input on the deception is small, and all samples are judged together. If steps look better so,
    by 1.2 standard errors, the networks that were chosen are cross-validated on five folds, steps and readouts, with
    random features beside them; that settles the weights, and whether the gain, by 1.5 standard errors, is more than
    noise. What is kept uses all samples. The errors in `loo_path_` are those of half the samples, and mostly larger
    than the final one; its gain is that of the folds.

    Several targets are one network with several outputs: each neuron draws a readout for every target, and the
    step is the gradient of the summed squared error.

    A sample weight of 2 is the same as having the sample twice. Weights with a mean below one are scaled to
    mean one.

    Examples
    --------
    >>> import numpy as np
    >>> inputs = np.random.default_rng(0).standard_normal((300, 20))
    >>> targets = np.tanh(2 * inputs[:, 0])
    >>> model = OneStepRegressor(width=200, random_state=0).fit(inputs[:200], targets[:200])
    >>> still = OneStepRegressor(width=200, random_state=0, step_size=0).fit(inputs[:200], targets[:200])
    >>> print(f"{model.score(inputs[200:], targets[200:]):.2f} {still.score(inputs[200:], targets[200:]):.2f}")
    1.00 0.78
    """

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Take the step and fit the readout.

        Parameters
        ----------
        X : array_like (n, d)
            Inputs.
        y : array_like (n,) or (n, k)
            Targets.
        sample_weight : array_like (n,), optional
            How often each sample counts.

        Returns
        -------
        self
            The fitted estimator.
        """
        inputs, given = checked(
            self, X, y, dtype=np.float64, multi_output=True, y_numeric=True, ensure_min_samples=2
        )
        targets, scales = self._numbers(given, sample_weight)
        self._keep_readout(self._fit(inputs, targets, scales, sample_weight).readouts, scales)
        if np.ndim(given) == 1:
            self.coef_, self.intercept_ = self.coef_[0], float(self.intercept_[0])
        return self

    def predict(self, X: ArrayLike) -> Array:
        """Predicted targets, (n,) or (n, k) like those of `fit`.

        Parameters
        ----------
        X : array_like (n, d)
            Inputs.
        """
        found = self._outputs(self._given(X))
        return found[:, 0] if np.ndim(self.coef_) == 1 else found
