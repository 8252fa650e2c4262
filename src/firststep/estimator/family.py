"""Networks of several scales, before and after steps, averaged by their exact leave-one-out errors."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from scipy import optimize

from firststep.estimator.choice import Progress
from firststep.estimator.directions import Directions, of_function, of_target, still
from firststep.estimator.readout import Design, Readouts, ridge
from firststep.estimator.step import Metric, Network, Sample
from firststep.gaussian import Array

# What the first layer is multiplied by, without a step.
SCALES = (0.4, 0.8, 1.6)
# Strength tau of a step and the scale of the first layer after it.
STEPS = ((0.5, 1.2), (0.9, 0.8), (0.99, 0.8))
# The step after which a network is fitted for the directions of the next one.
ONWARD = (0.9, 0.8)
# Ridges that "auto" tries, over the total variance of the features.
RIDGE_GRID = tuple(np.geomspace(1e-8, 10.0, 25).tolist())
# Weights below this are left out of the average.
SMALLEST_WEIGHT = 0.05
# Over the mean squared error: keeps the weights of networks that hardly differ from being a matter of rounding.
EVENNESS = 1e-3


@dataclass(frozen=True)
class Candidate:
    """A network to be tried: after how many steps, of which strength, at which scale."""

    stage: int
    strength: float
    scale: float

    @property
    def step_size(self) -> float:
        """The strength as eta = tau/(1 - tau)."""
        return self.strength / (1 - self.strength)


def candidates(n_steps: int, scales: Sequence[float]) -> list[Candidate]:
    """All that are tried, those without a step first."""
    found = [Candidate(0, 0.0, scale) for scale in scales]
    for stage in range(1, n_steps + 1):
        found += [Candidate(stage, strength, scale) for strength, scale in STEPS]
    return found


@dataclass(eq=False)
class Learner:
    """What one sample learns, stage by stage, and what the networks along it cost to fit."""

    start: Network
    ridges: Array | None
    probe: Sample
    # Of the latest sample: the networks whose directions the second step and later ones follow.
    guides: list[Candidate] = field(default_factory=list)
    _kept: dict[Any, tuple[Network, Readouts]] = field(default_factory=dict)

    def fit(self, sample: Sample, directions: Directions, candidate: Candidate) -> tuple[Network, Readouts]:
        """The candidate's network and its readouts for all ridges, with leave-one-out errors."""
        key = (id(sample), id(directions), candidate)
        if key not in self._kept:
            network = directions.move(self.start, candidate.strength, candidate.scale)
            self._kept[key] = network, ridge(Design(sample, network), self.grid(network), leave_out=True)
        return self._kept[key]

    def grid(self, network: Network) -> Array:
        """Ridges (R,) for a network: those given, or in units of the features' variance."""
        if self.ridges is not None:
            return self.ridges
        share = self.probe.counts / self.probe.total
        block = network.features(self.probe.inputs)
        variance = float((share @ (block - share @ block) ** 2).sum())
        return np.array(RIDGE_GRID) * (variance if variance > 0 else 1.0)

    def learn(
        self, sample: Sample, metric: Metric | None, n_steps: int, first: Sequence[Candidate]
    ) -> list[Directions]:
        """Directions of each stage: none, those of the target, those of the best network so far, and so on."""
        found = [self.nothing]
        if not n_steps:
            return found
        self.guides = []
        found.append(of_target(sample, metric))
        if 2 * sample.inputs.shape[1] > sample.total:
            # Too few samples to see more than b.
            return found + [found[1]] * (n_steps - 1)
        fitted = [(candidate, *self.fit(sample, self.nothing, candidate)) for candidate in first]
        for stage in range(2, n_steps + 1):
            onward = Candidate(stage - 1, *ONWARD)
            fitted.append((onward, *self.fit(sample, found[-1], onward)))
            errors = [_means(sample.counts, cast(Array, readouts.left_out)) for *_, readouts in fitted]
            best = int(np.argmin([row.min() for row in errors]))
            guide, network, readouts = fitted[best]
            self.guides.append(guide)
            found.append(of_function(sample, network, readouts.coefficients[int(errors[best].argmin())]))
        return found

    @property
    def nothing(self) -> Directions:
        """The directions of no step, always the same object."""
        if "still" not in self.__dict__:
            self.__dict__["still"] = still(self.start.weights.shape[1])
        return cast(Directions, self.__dict__["still"])


def _means(counts: Array, left_out: Array) -> Array:
    """Mean squared errors (R,) of signed ones (n, R, k)."""
    return np.asarray(np.einsum("n,nrk->r", counts, left_out**2) / counts.sum())


@dataclass(frozen=True, eq=False)
class Averaged:
    """What was tried and with which weights it is averaged; errors and left_out are those of the choice."""

    candidates: list[Candidate]
    errors: Array  # (C, R)
    places: list[int]  # the best ridge of each
    weights: Array  # (C,)
    left_out: Array  # (n, k), of the average, in the order of the samples
    gain: float
    gain_error: float

    @property
    def steps(self) -> int:
        """Most steps of a network in the average."""
        kept = zip(self.candidates, self.weights, strict=True)
        return max((candidate.stage for candidate, weight in kept if weight > 0), default=0)


def average(
    tried: list[Candidate], errors: Array, residuals: Array, counts: Array, *, single: bool, margin: float
) -> Averaged:
    """Weights that make the mean squared error smallest; no steps if their gain is within its noise.

    Parameters
    ----------
    tried : list of Candidate
        C candidates.
    errors : ndarray (C, R)
        Mean squared errors for each ridge.
    residuals : ndarray (C, n, k)
        Errors of each at its best ridge.
    counts : ndarray (n,)
        How often each sample counts.
    single : bool
        Whether one candidate has to be chosen.
    margin : float
        Standard errors of the gain by which steps must lower the error.
    """
    places = [int(row.argmin()) for row in errors]
    calm = np.array([candidate.stage == 0 for candidate in tried])
    mix = _weights(residuals, counts, single)
    before = np.zeros(len(tried))
    before[calm] = _weights(residuals[calm], counts, single)
    gain = spread = 0.0
    if calm.any() and not calm.all():
        squares = [(np.einsum("c,cnk->nk", w, residuals) ** 2).sum(axis=1) for w in (before, mix)]
        change, total = squares[0] - squares[1], counts.sum()
        gain = float(counts @ change / total)
        spread = float(np.sqrt(counts @ (change - gain) ** 2 / total / max(total - 1, 1)))
        if gain <= margin * spread:
            mix = before
    left_out = np.einsum("c,cnk->nk", mix, residuals)
    return Averaged(tried, errors, places, mix, left_out, gain, spread)


def _weights(residuals: Array, counts: Array, single: bool) -> Array:
    """Weights (C,), not negative and of sum one."""
    products = np.einsum("ank,n,bnk->ab", residuals, counts / counts.sum(), residuals, optimize=True)
    size = float(np.diag(products).min())
    if single or size <= 0:
        return np.asarray(np.eye(len(products))[int(np.diag(products).argmin())])
    # Sum one: with the lowest error as the unit, the constraint is a row of a large weight.
    products = products / size + EVENNESS * np.eye(len(products))
    root = np.linalg.cholesky(products).T
    heavy = 1e3
    found = optimize.nnls(
        np.vstack([root, np.full(len(products), heavy)]), np.append(np.zeros(len(root)), heavy)
    )[0]
    found[found < SMALLEST_WEIGHT * found.sum()] = 0.0
    return np.asarray(found / found.sum())


def judge(
    learner: Learner,
    pairs: Sequence[tuple[Sample, Metric | None, Sample]],
    tried: list[Candidate],
    *,
    single: bool,
    margin: float,
    verbose: bool,
) -> tuple[Averaged, list[list[Directions]]]:
    """Average by the errors of samples on networks that others have taught: (taker, its metric, fitter) each."""
    n_steps = max(candidate.stage for candidate in tried)
    first = [candidate for candidate in tried if candidate.stage == 0]
    counts = np.concatenate([fitter.counts for *_, fitter in pairs])
    with Progress(len(pairs) * len(tried), verbose) as progress:
        learned = [learner.learn(taker, metric, n_steps, first) for taker, metric, _ in pairs]
        errors, residuals = [], []
        for candidate in tried:
            found = []
            for directions, (*_, fitter) in zip(learned, pairs, strict=True):
                readouts = learner.fit(fitter, directions[candidate.stage], candidate)[1]
                found.append(cast(Array, readouts.left_out))
                progress.advance()
            left_out = np.concatenate(found)
            errors.append(_means(counts, left_out))
            residuals.append(left_out[:, int(errors[-1].argmin())])
    asked: dict[str, Any] = {"single": single, "margin": margin}
    return average(tried, np.array(errors), np.array(residuals), counts, **asked), learned


def joined(
    networks: Sequence[Network], readouts: Sequence[Readouts], weights: Array
) -> tuple[Network, Readouts]:
    """The average as one network: neurons side by side, readouts, of one ridge each, times the weights."""
    coefficients = [w * found.coefficients[0] for w, found in zip(weights, readouts, strict=True)]
    intercepts = [w * found.intercepts[0] for w, found in zip(weights, readouts, strict=True)]
    network = Network(
        np.concatenate([each.weights for each in networks]),
        np.concatenate([each.biases for each in networks]),
        networks[0].readout,
        networks[0].activation,
    )
    heaviest = readouts[int(np.argmax(weights))].spectrum
    return network, Readouts(np.concatenate(coefficients)[None], np.sum(intercepts, axis=0)[None], heaviest)
