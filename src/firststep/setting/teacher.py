"""The teacher: a function of one direction of the whitened input or of a few, and the noise on its labels."""

from typing import TYPE_CHECKING, Any

from firststep.setting.fields import Field, nonnegative

if TYPE_CHECKING:
    from firststep.gaussian import Function, MultiFunction


def _teacher(value: Any) -> "Function | MultiFunction":
    from firststep.gaussian import teacher_function

    return teacher_function(value)


FIELDS = (
    Field(
        "teacher",
        "teacher",
        "function",
        "Teacher: a function of x (one direction), or of t1, t2, … (up to four), given like the activation.",
        _teacher,
        symbol="s",
        words="teacher {}",
        examples=("h1 + h2/sqrt(2)",),
        quiet=False,
    ),
    Field(
        "noise_std",
        "teacher",
        "number",
        "Standard deviation of the label noise.",
        nonnegative("noise_std"),
        0.0,
        symbol="σ_ε",
        words="noise {:g}",
        unsaid="no noise",
        examples=(0.5,),
        quiet=False,
    ),
)
