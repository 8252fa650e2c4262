"""Functions of Gaussian variables: activations and teachers, their Hermite coefficients and averages.

Everything here is about ``f(Z)`` with ``Z ~ N(0, 1)`` and the probabilists' Hermite polynomials ``H_k``
(``H_0 = 1``, ``H_1 = z``, ``H_2 = z^2 - 1``), for which ``E H_j H_k = k! [j = k]``; ``h_k = H_k/sqrt(k!)``
are the normalised ones. Averages have closed forms where we know one; the others come from rules that are
refined until two levels agree, and a function for which they do not is refused.
"""

from firststep.gaussian.functions import Function, function
from firststep.gaussian.multivariate import MultiFunction, teacher_function
from firststep.gaussian.rules import (
    Array,
    expectation,
    gauss_hermite,
    hermite_polynomials,
    length_rule,
    monomial_in_hermite,
    sphere_rule,
)
from firststep.gaussian.shapes import names

__all__ = [
    "Array",
    "Function",
    "MultiFunction",
    "expectation",
    "function",
    "gauss_hermite",
    "hermite_polynomials",
    "length_rule",
    "monomial_in_hermite",
    "names",
    "sphere_rule",
    "teacher_function",
]
