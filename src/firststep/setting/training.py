"""Training of the first layer: the rule of a step, the samples of several, and the sample of the fit."""

from dataclasses import dataclass

from firststep.setting.fields import choice, meanings_of


@dataclass(frozen=True)
class StepRule:
    """How a step is made from the gradient.

    Attributes
    ----------
    linear : bool
        Whether the step is linear in the gradient; the theory knows these.
    plain : bool
        Whether the step is the gradient itself.
    """

    name: str
    words: str
    linear: bool = False
    plain: bool = False

    @property
    def predicted(self) -> bool:
        """Whether the theory knows the rule."""
        return self.linear


@dataclass(frozen=True)
class SampleChoice:
    """Which sample is used."""

    name: str
    words: str
    fresh: bool


RULES = {
    rule.name: rule
    for rule in (
        StepRule("gradient", "along the gradient", linear=True, plain=True),
        StepRule("whitened", "along the gradient times the inverse of the inputs' covariance", linear=True),
        StepRule("sign", "along the gradient's signs, with its norm"),
        StepRule("muon", "along the gradient's polar factor, with its norm"),
    )
}
STEP_SAMPLES = {
    which.name: which
    for which in (
        SampleChoice("fresh", "a fresh sample for every step", fresh=True),
        SampleChoice("same", "the first step's sample again for every later one", fresh=False),
    )
}
FIT_SAMPLES = {
    which.name: which
    for which in (
        SampleChoice("fresh", "a fresh sample for the fit", fresh=True),
        SampleChoice("step", "the first step's own sample again for the fit", fresh=False),
    )
}

FIELDS = (
    choice(
        "step_rule",
        "training",
        "How a step is made from the gradient.",
        meanings_of(RULES),
        words="{} steps",
    ),
    choice(
        "step_sample",
        "training",
        "Sample of the second and later steps.",
        meanings_of(STEP_SAMPLES),
        words="later steps on the {} sample",
    ),
    choice(
        "fit_sample",
        "fit",
        "Sample of the ridge fit.",
        meanings_of(FIT_SAMPLES),
        words="fitted on the {}'s sample",
    ),
)
