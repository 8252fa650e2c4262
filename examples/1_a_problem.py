r"""
A problem
=========

What is studied is always the same sentence with other words in it: a two-layer network with activation
:math:`\sigma` learns labels :math:`y = s(\beta\cdot x) + \varepsilon` from Gaussian inputs.
:class:`firststep.Problem` holds the words, :class:`firststep.Sizes` the numbers.
"""

from firststep import Problem, Sizes

problem = Problem(activation="relu", teacher="h1 + h2/sqrt(2)", noise_std=0.5)
sizes = Sizes(n_samples=1000, dim=500, width=750)
print(problem)
print(sizes)

# %%
# ``"h1 + h2/sqrt(2)"`` is written with the Hermite polynomials :math:`H_1(x) = x` and :math:`H_2(x) = x^2 -
# 1`. They are what the theory sees of a function: how much of each degree there is, that is :math:`c_k =
# E[\sigma(Z) H_k(Z)]/k!` for a standard normal Z.

for word, what in (("activation", problem.activation), ("teacher", problem.teacher)):
    print(f"{word:10} c_0 … c_4 =", *(f"{c:+.4f}" for c in what.hermite(5)))

# %%
# The activation has :math:`c_0 = 0`: functions are centred unless you say otherwise, so ``"relu"`` is
# :math:`\max(x, 0) - 1/\sqrt{2\pi}`. It has :math:`c_3 = 0` too, which will matter.
#
# Adding up degrees gives the function back, slowly where it has a kink.

import matplotlib.pyplot as plt
import numpy as np

from firststep.figures import colour
from firststep.gaussian import hermite_polynomials

x = np.linspace(-3, 3, 301)
polynomials = hermite_polynomials(x, 9)
coefficients = problem.activation.hermite(9)

fig, ax = plt.subplots(figsize=(6.4, 3.8), layout="constrained")
ax.plot(x, problem.activation(x), color=colour("ink"), linewidth=2, label="relu, centred")
for degree, role in ((1, "setting1"), (2, "setting2"), (8, "setting3")):
    partial_sum = coefficients[: degree + 1] @ polynomials[: degree + 1]
    ax.plot(x, partial_sum, color=colour(role), label=f"degrees up to {degree}")
ax.set(xlabel="x", ylabel="σ(x)", ylim=(-1, 3))
ax.legend(frameon=False)
plt.show()

# %%
# Functions of your own
# ---------------------
#
# An expression in ``x``, a list of Hermite coefficients or a Python function will do, for the activation as
# for the teacher. Expressions are parsed and never executed.

from firststep import function

print(function("tanh(2*x) + 0.1*x**2").hermite(4).round(4))
print(function([0, 1, 0.5]))
print(function(np.arctan, derivative=lambda x: 1 / (1 + x**2), name="arctan").hermite(4).round(4))

# %%
# A problem that the theory does not cover is not refused, it is named. Here one gradient step has nothing to
# hold on to, because the teacher has no linear part:

for sentence in Problem("relu", "h2").concerns(sizes):
    print("-", sentence)

# %%
# Other papers' conventions
# -------------------------
#
# Ratios of the papers become sizes, and back. See :doc:`/notation` for the whole dictionary.

print(Sizes.from_moniri(n_samples=1000, phi=0.5, psi=2 / 3))
print(Sizes.from_ba(dim=500, psi1=2, psi2=1.5))
print(
    f"d/n = {sizes.sample_ratio}, d/N = {sizes.width_ratio:.4f}; alpha = 0.3 is step size {sizes.step_size(0.3):.3f}"
)
