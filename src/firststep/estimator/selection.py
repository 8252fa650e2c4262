"""Which networks, steps and ridges are taken: by leave-one-out errors of samples that did not take the step."""

from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from firststep.estimator.choice import MARGIN, Choice, Pair, choose_by_leave_one_out
from firststep.estimator.crossed import FOLDS, crossed
from firststep.estimator.directions import Directions
from firststep.estimator.family import (
    RIDGE_GRID,
    Averaged,
    Candidate,
    Learner,
    average,
    candidates,
    joined,
    judge,
)
from firststep.estimator.options import Options, is_auto, positive
from firststep.estimator.readout import Design, Readouts, ridge
from firststep.estimator.step import Index, Metric, Network, Sample, Step
from firststep.gaussian import Array

# Beyond this many samples the choice is made on about as many of them.
CHOICE_SAMPLES = 20_000
# With many samples the best ridge is at most this many places below that of the choice.
RIDGES_BELOW = 4
# Standard errors by which steps must lower the error where samples are used twice: by leave-one-out to be considered,
# and by cross-validation to be taken. A gain that one sample alone makes is one standard error, that of two is 1.4.
CONSIDERED, TAKEN = 1.2, 1.5
# Beyond this many no cross-validation is needed.
SURE = 10.0

Pairs = list[tuple[Sample, Metric | None, Sample]]


@dataclass(frozen=True, eq=False)
class Selected:
    """What was taken and why; with the targets, errors and counts of the samples that were left out in turn."""

    network: Network
    readouts: Readouts
    step_size: float
    ridge: float
    n_steps: int
    path: dict[str, Any]
    targets: Array  # (n, k)
    left_out: Array  # (n, k)
    counts: Array  # (n,)


@dataclass(frozen=True, eq=False)
class Selection:
    """The step, the samples of the readout with their ranks, and how many directions of the inputs vary."""

    step: Step
    fitter: Sample
    rank: Index
    live: float
    options: Options

    def select(self) -> Selected:
        """An average of networks, or the gradient step of a size that is given."""
        return self.by_average() if self.options.averages else self.by_gradient()

    def by_average(self) -> Selected:
        """Networks of several scales, before and after steps, averaged by leave-one-out."""
        options, step, fitter = self.options, self.step, self.fitter
        learner = Learner(step.start, options.ridges, step.probe)
        n_steps = options.steps if is_auto(options.step_size) else 0
        tried, calm = candidates(n_steps, options.scales), candidates(0, options.scales)
        pairs, how = self._pairs(n_steps)
        twice = bool(n_steps) and options.split is None
        margin = CONSIDERED if twice else MARGIN
        asked: dict[str, Any] = {"single": options.single, "margin": margin, "verbose": options.verbose}
        chosen, learned = judge(learner, pairs, tried, **asked)
        directions, single = learned[0], pairs
        if len(pairs) > 1:
            single = [(step.sample, step.metric, fitter)]
        if twice:
            still, _ = judge(learner, single, calm, **asked | {"verbose": False})
            if chosen.steps:
                if len(pairs) > 1:
                    directions = learner.learn(step.sample, step.metric, n_steps, calm)
                chosen = self._refitted(learner, chosen, still, directions)
                if chosen.gain < SURE * chosen.gain_error:
                    chosen, pairs = self._confirmed(learner, chosen, still, single[0][2]), single
                    how += f"; then {FOLDS} folds"
            if not chosen.steps:
                # Without a step nothing is used twice, and all samples can be judged together.
                chosen, pairs = replace(chosen, **_extended(still, chosen)), single
        kept = np.flatnonzero(chosen.weights)
        final = []
        for index in kept:
            candidate, place = tried[index], chosen.places[index]
            if single[0][2] is fitter:
                network, readouts = learner.fit(fitter, directions[candidate.stage], candidate)
                grid = learner.grid(network)
            else:
                network = directions[candidate.stage].move(step.start, candidate.strength, candidate.scale)
                grid, readouts, place = self._again(learner, network, place)
            final.append((network, readouts.only(place), float(grid[place])))
        network, readouts = joined([row[0] for row in final], [row[1] for row in final], chosen.weights[kept])
        return Selected(
            network,
            readouts,
            ridge=final[int(np.argmax(chosen.weights[kept]))][2],
            **_told(chosen, learner, how),
            targets=np.concatenate([pair[2].targets for pair in pairs]),
            left_out=chosen.left_out,
            counts=np.concatenate([pair[2].counts for pair in pairs]),
        )

    def _refitted(
        self, learner: Learner, chosen: Averaged, still: Averaged, directions: list[Directions]
    ) -> Averaged:
        """The choice with ridges for all samples that decide, also if halves of them made it."""
        places = still.places + chosen.places[len(still.places) :]
        for index in np.flatnonzero(chosen.weights) if self._halves() else ():
            candidate, place = chosen.candidates[index], places[index]
            if candidate.stage:
                readouts = learner.fit(self.fitter, directions[candidate.stage], candidate)[1]
                errors = self.fitter.counts @ (cast(Array, readouts.left_out) ** 2).sum(axis=2)
                # Samples that also took the step ask for too little ridge.
                places[index] = place + int(errors[place:].argmin())
        return replace(chosen, places=places)

    def _confirmed(self, learner: Learner, chosen: Averaged, still: Averaged, sample: Sample) -> Averaged:
        """The choice with weights by cross-validation, and no steps if their gain there is within its noise."""
        weights = chosen.weights.copy()
        weights[: len(still.weights)] += still.weights
        kept = np.flatnonzero(weights)
        tried = [chosen.candidates[index] for index in kept]
        rank = self.rank if len(sample) == len(self.rank) else self.rank[self._few()]
        known = dict(zip(chosen.candidates, chosen.places, strict=True))
        residuals = crossed(learner, sample, rank, self.options.metric, known, tried)
        asked: dict[str, Any] = {"single": self.options.single, "margin": TAKEN}
        found = average(tried, chosen.errors[kept], residuals, sample.counts, **asked)
        weights = np.zeros(len(weights))
        weights[kept] = found.weights
        return replace(
            chosen,
            weights=weights,
            left_out=found.left_out,
            gain=found.gain,
            gain_error=found.gain_error,
        )

    def _again(self, learner: Learner, network: Network, place: int) -> tuple[Array, Readouts, int]:
        """Ridges, readouts and the best place on all samples, for a network that was chosen on few of them."""
        # More samples ask for less ridge.
        grid = learner.grid(network)[max(0, place - RIDGES_BELOW) : place + 1]
        readouts = ridge(Design(self.fitter, network), grid, leave_out=True)
        errors = self.fitter.counts @ (cast(Array, readouts.left_out) ** 2).sum(axis=2)
        return grid, readouts, int(errors.argmin())

    def _few(self) -> Index:
        """About as many samples as decide."""
        every = -(-len(self.fitter) // CHOICE_SAMPLES)
        return np.flatnonzero(self.rank % every == 0)

    def _halves(self) -> list[Sample]:
        """Two halves of the samples, if they have to judge each other's steps."""
        if not self.options.is_halved(self.fitter, self.live):
            return []
        parts = [self.fitter.at(np.flatnonzero(self.rank % 2 == side)) for side in (0, 1)]
        return parts if min(part.total for part in parts) >= 2 else []

    def _pairs(self, n_steps: int) -> tuple[Pairs, str]:
        """Samples that take the step and samples that judge it; and what this is called."""
        whole = [(self.step.sample, self.step.metric, self.fitter)]
        if self.options.split is not None or not n_steps:
            return whole, "leave-one-out"
        if parts := self._halves():
            metrics = [self.options.metric(part) for part in parts]
            return (
                [(parts[0], metrics[0], parts[1]), (parts[1], metrics[1], parts[0])],
                "leave-one-out on two halves, each with the step of the other",
            )
        how = "leave-one-out, of samples that also took the step"
        if len(self.fitter) > CHOICE_SAMPLES:
            few = self.fitter.at(self._few())
            return [(few, self.options.metric(few), few)], f"{how}, on {len(few)} of {len(self.fitter)}"
        return whole, how

    def by_gradient(self) -> Selected:
        """The gradient step of the theory, of a size that is given."""
        options, step, fitter = self.options, self.step, self.fitter
        if not is_auto(options.scale):
            step = replace(step, start=still_of(step.start, options.scales[0]))
        if parts := self._halves():
            first, second = (Step(part, step.start, options.metric(part), step.probe) for part in parts)
            step = replace(step, halves=(first, second))
        choice = self._choose(step, *self._candidates(step))
        network = step.network(choice.step_size, options.gradient_steps)
        readouts = ridge(Design(fitter, network), np.array([choice.best_ridge]), leave_out=True)
        return Selected(
            network,
            readouts,
            choice.step_size,
            choice.best_ridge,
            options.gradient_steps if choice.step_size else 0,
            choice.path(),
            fitter.targets,
            cast(Array, readouts.left_out)[:, 0],
            fitter.counts,
        )

    def _candidates(self, step: Step) -> tuple[Array, Array]:
        """Step sizes (S,) and, for each, ridges (S, R)."""
        steps = np.unique(positive("step_size", self.options.step_size, zero=True))
        given = self.options.ridges
        if given is not None:
            return steps, np.broadcast_to(given, (len(steps), len(given)))
        learner = Learner(step.start, None, step.probe)
        return steps, np.stack([learner.grid(step.network(float(size), 1)) for size in steps])

    def _choose(self, step: Step, step_sizes: Array, ridges: Array) -> Choice:
        asked: dict[str, Any] = {"n_steps": self.options.gradient_steps, "verbose": self.options.verbose}
        whole = [Pair(step, 1.0, self.fitter)]
        if step.halves is None:
            honest = self.options.split is not None or not step_sizes.any()
            how = "leave-one-out" + ("" if honest else ", of samples that also took the step")
            return choose_by_leave_one_out(whole, step_sizes, ridges, how=how, **asked)
        pairs = [Pair(one, 1.0, other.sample) for one, other in (step.halves, step.halves[::-1])]
        how = "leave-one-out on two halves, each with the step of the other"
        choice = choose_by_leave_one_out(pairs, step_sizes, ridges, how=how, **asked)
        if choice.step_size:
            return choice
        # Without a step nothing is used twice, and the ridge can be chosen on all samples.
        found = choose_by_leave_one_out(whole, step_sizes[:1], ridges[:1], asked["n_steps"], how)
        return replace(choice, ridge=found.ridge, readouts=found.readouts)


def still_of(start: Network, scale: float) -> Network:
    """The network at another scale."""
    return replace(start, weights=scale * start.weights, biases=scale * start.biases)


def _told(chosen: Averaged, learner: Learner, how: str) -> dict[str, Any]:
    """Step size, number of steps, and the path of what was tried."""
    tried: list[Candidate] = chosen.candidates
    stepped = [index for index, c in enumerate(tried) if c.stage and chosen.weights[index] > 0]
    strongest = max(stepped, key=lambda index: chosen.weights[index], default=None)
    outputs = chosen.left_out.shape[1]
    path = {
        "n_steps": np.array([candidate.stage for candidate in tried]),
        "step_sizes": np.array([candidate.step_size for candidate in tried]),
        "scales": np.array([candidate.scale for candidate in tried]),
        "ridges": np.array(RIDGE_GRID) if learner.ridges is None else learner.ridges,
        "errors": chosen.errors / outputs,
        "weights": chosen.weights,
        "gain": chosen.gain / outputs,
        "gain_stderr": chosen.gain_error / outputs,
        "how": how,
    }
    return {
        "step_size": tried[strongest].step_size if strongest is not None else 0.0,
        "n_steps": max((tried[index].stage for index in stepped), default=0),
        "path": path,
    }


def _extended(calm: Averaged, chosen: Averaged) -> dict[str, Any]:
    """The choice without a step, among all that were tried: the candidates without a step come first."""
    count = len(calm.candidates)
    return {
        "places": calm.places + chosen.places[count:],
        "weights": np.append(calm.weights, np.zeros(len(chosen.weights) - count)),
        "errors": np.concatenate([calm.errors, chosen.errors[count:]]),
        "left_out": calm.left_out,
    }
