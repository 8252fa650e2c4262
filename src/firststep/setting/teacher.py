"""The teacher: a function of one direction of the whitened input or of a few, and the noise on its labels."""

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from firststep.setting.fields import Field, nonnegative

if TYPE_CHECKING:
    from firststep.gaussian import Function, MultiFunction


def _teacher(value: Any) -> "Function | MultiFunction":
    from firststep.gaussian import teacher_function

    return teacher_function(value)


# Highest degree of the teacher's terms of which it is told how much was learned.
LEARNED = 4
# Coefficients below this are none.
NO_TERM = 1e-9


@lru_cache(maxsize=64)
def leading_terms(teacher: "Function | MultiFunction") -> dict[tuple[int, ...], float]:
    """Hermite coefficients of the teacher that are not zero, by multi-index, of degree 1 to 4.

    Examples
    --------
    >>> from firststep.gaussian import teacher_function
    >>> leading_terms(teacher_function("t1 + 0.5*t1*t2"))
    {(1, 0): 1.0, (1, 1): 0.5}
    """
    from firststep.gaussian import MultiFunction
    from firststep.gaussian.products import indices

    known = [index for degree in range(1, LEARNED + 1) for index in indices(teacher.directions, degree)]
    if isinstance(teacher, MultiFunction):
        found = {index: teacher.hermite_tensor(index) for index in known}
    else:
        found = {index: float(teacher.hermite(LEARNED + 1)[index[0]]) for index in known}
    return {index: value for index, value in found.items() if abs(value) > NO_TERM}


def term_name(index: tuple[int, ...]) -> str:
    """t1_t2 for t1 t2, h2t1_t3 for H_2(t1) t3.

    Examples
    --------
    >>> term_name((2, 0, 1))
    'h2t1_t3'
    """
    return "_".join(f"h{a}t{i + 1}" if a > 1 else f"t{i + 1}" for i, a in enumerate(index) if a)


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
