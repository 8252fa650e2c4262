"""Networks judged on samples that had no part in them: neither in their steps nor in their readouts."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from firststep.estimator.directions import Directions, of_function, of_target
from firststep.estimator.family import Candidate, Learner
from firststep.estimator.readout import Design, Readouts, solved
from firststep.estimator.step import Index, Metric, Network, Sample
from firststep.gaussian import Array

FOLDS = 5


def crossed(
    learner: Learner,
    sample: Sample,
    rank: Index,
    metric: Callable[[Sample], Metric | None],
    places: Mapping[Candidate, int],
    tried: Sequence[Candidate],
) -> Array:
    """Errors (C, n, k) by cross-validation of networks that were chosen, at ridges that were chosen.

    Steps and readouts are learned from four fifths of the samples at a time, along the same way as from all of them:
    second steps follow the networks that the learner followed last. Equal rows, which share a rank, stay together.
    """
    # Where a fold has nobody to learn from the mean is predicted.
    found = np.repeat(sample.targets[None], len(tried), axis=0)
    for fold in range(FOLDS):
        inside, outside = (np.flatnonzero((rank % FOLDS == fold) == side) for side in (False, True))
        if not inside.size or not outside.size:
            continue
        part = _Part(learner, sample.at(inside), metric, places)
        others = sample.inputs[outside]
        for place, candidate in enumerate(tried):
            network, readouts = part.fit(candidate)
            told = network.features(others) @ readouts.coefficients[0] + readouts.intercepts[0]
            found[place, outside] = sample.targets[outside] - told
    return found


class _Part:
    """What part of the samples learns, each network once."""

    def __init__(
        self,
        learner: Learner,
        sample: Sample,
        metric: Callable[[Sample], Metric | None],
        places: Mapping[Candidate, int],
    ) -> None:
        self.learner, self.sample, self.metric, self.places = learner, sample, metric, places
        self._directions: dict[int, Directions] = {0: learner.nothing}
        self._kept: dict[Candidate, tuple[Network, Readouts]] = {}

    def directions(self, stage: int) -> Directions:
        """Directions of a step: none, those of the target, those of the network that all samples followed."""
        if stage not in self._directions:
            guides = self.learner.guides[: stage - 1]
            if len(guides) < stage - 1:
                # Too few samples to see more than b.
                found = self.directions(stage - 1)
            elif stage == 1:
                found = of_target(self.sample, self.metric(self.sample))
            else:
                network, readouts = self.fit(guides[-1])
                found = of_function(self.sample, network, readouts.coefficients[0])
            self._directions[stage] = found
        return self._directions[stage]

    def fit(self, candidate: Candidate) -> tuple[Network, Readouts]:
        """The candidate's network and its readout."""
        if candidate not in self._kept:
            directions = self.directions(candidate.stage)
            network = directions.move(self.learner.start, candidate.strength, candidate.scale)
            penalty = float(self.learner.grid(network)[self.places[candidate]])
            self._kept[candidate] = network, solved(Design(self.sample, network), penalty)
        return self._kept[candidate]
