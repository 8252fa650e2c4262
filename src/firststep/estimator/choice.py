"""Step size and ridge together, by exact leave-one-out errors of samples that are not those of the step."""

import zlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Self, cast

import numpy as np

from firststep.arrays import Matrix
from firststep.estimator.readout import Design, Readouts, ridge
from firststep.estimator.step import Index, Sample, Step
from firststep.gaussian import Array

# A step must lower the error by this many standard errors of the paired difference to be taken at all.
MARGIN = 2.0


def ranks(inputs: Array) -> Index:
    """A number 0, 1, … for each row, in no particular order, the same for equal rows and wherever they stand.

    Copies of a sample must not stand on both sides of a split, and a sample that counts twice must be treated as two
    copies are: so samples are divided by a hash of the row.
    """
    # Adding zero makes minus zero the zero that it equals.
    keys = [zlib.crc32((row + 0.0).data) for row in np.ascontiguousarray(inputs, dtype=np.float64)]
    return np.asarray(np.unique(keys, return_inverse=True)[1], dtype=np.intp)


@dataclass(frozen=True, eq=False)
class Choice:
    """What was tried, and what was taken; with the readouts of each step size at its best ridge, if they are final."""

    step_sizes: Array
    ridges: Array  # (S, R)
    errors: Array  # (S, R)
    step: int
    ridge: int
    gain: float = 0.0
    gain_error: float = 0.0
    how: str = ""
    readouts: Readouts | None = None

    @property
    def step_size(self) -> float:
        """The step size taken."""
        return float(self.step_sizes[self.step])

    @property
    def best_ridge(self) -> float:
        """The ridge taken."""
        return float(self.ridges[self.step, self.ridge])

    def path(self) -> dict[str, Any]:
        """What the estimators show of it."""
        return {
            "step_sizes": self.step_sizes,
            "ridges": self.ridges,
            "errors": self.errors,
            "gain": self.gain,
            "gain_stderr": self.gain_error,
            "how": self.how,
        }


def judged(squares: Matrix, counts: Array) -> tuple[Array, Array]:
    """Mean errors (R,) of squared errors (n, R), and the column of the best ridge: the rest can be forgotten."""
    errors = counts @ squares / counts.sum()
    return errors, squares[:, int(np.argmin(errors))].astype(np.float64)


def choose(
    step_sizes: Array,
    ridges: Array,
    found: Sequence[tuple[Array, Array]],
    counts: Array,
    outputs: int,
    how: str,
) -> Choice:
    """Smallest error; but no step, if that is a candidate and the gain over it is within its noise."""
    total = counts.sum()
    errors = np.stack([row for row, _ in found]) / outputs
    step, best = (int(place) for place in np.unravel_index(int(np.argmin(errors)), errors.shape))
    gain = spread = 0.0
    if step_sizes[0] == 0 and step != 0:
        difference = (found[0][1] - found[step][1]) / outputs
        gain = float(counts @ difference / total)
        spread = float(np.sqrt(counts @ (difference - gain) ** 2 / total / max(total - 1, 1)))
        if gain <= MARGIN * spread:
            step, best = 0, int(np.argmin(errors[0]))
    return Choice(step_sizes, ridges, errors, step, best, gain, spread, how)


@dataclass(frozen=True, eq=False)
class Pair:
    """A step, with what its candidates' sizes are multiplied by, and the samples of the readout."""

    step: Step
    scale: float
    sample: Sample


def choose_by_leave_one_out(
    pairs: Sequence[Pair],
    step_sizes: Array,
    ridges: Array,
    n_steps: int,
    how: str,
    *,
    verbose: bool = False,
) -> Choice:
    """One factorisation for each step size and pair; a single pair also gives the readouts of the choice."""
    counts = np.concatenate([pair.sample.counts for pair in pairs])
    outputs = pairs[0].sample.targets.shape[1]
    found: dict[int, tuple[Array, Array]] = {}
    kept: dict[int, Readouts] = {}
    with Progress(len(step_sizes) * len(pairs), verbose) as progress:
        for place in range(len(step_sizes)):
            squares = []
            for pair in pairs:
                network = pair.step.network(float(step_sizes[place]) * pair.scale, n_steps)
                readouts = ridge(Design(pair.sample, network), ridges[place], leave_out=True)
                squares.append((cast(Array, readouts.left_out) ** 2).sum(axis=2))
                progress.advance()
            found[place] = judged(np.concatenate(squares), counts)
            kept[place] = readouts.only(int(np.argmin(found[place][0])))
    tried = sorted(found)
    choice = choose(step_sizes[tried], ridges[tried], [found[i] for i in tried], counts, outputs, how)
    return choice if len(pairs) > 1 else replace(choice, readouts=kept[tried[choice.step]])


@dataclass(eq=False)
class Progress:
    """A bar on standard error, or nothing."""

    total: int
    wanted: bool
    _advance: Callable[[], None] = field(default=lambda: None)

    def __enter__(self) -> Self:
        self._context: AbstractContextManager[Any] = nullcontext()
        if self.wanted:
            from rich.console import Console
            from rich.progress import Progress as Bar

            bar = Bar(console=Console(stderr=True), transient=False)
            task = bar.add_task("firststep: networks", total=self.total)
            self._context, self._advance = bar, lambda: bar.advance(task)
        self._context.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._context.__exit__(*error)

    def advance(self) -> None:
        """One factorisation is done."""
        self._advance()
