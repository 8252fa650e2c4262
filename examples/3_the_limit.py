r"""
The limit, and why the staircase is never reached
=================================================

Take :math:`\eta = n^\alpha` and let n grow. Then the step adds separated spikes to the features, one more
in each window of :math:`\alpha`, and the errors become a staircase [Moniri24]. It is a theorem about the
limit; this page shows how far away the limit is, and what to use instead.
"""

import matplotlib.pyplot as plt
import numpy as np

from firststep import Problem, Sizes, predict
from firststep.figures import colour

problem = Problem("softplus", "h1 + h2/sqrt(2)", noise_std=0.5, rows="sphere")
sizes = Sizes(n_samples=1000, dim=500, width=750)

# %%
# The levels of the staircase, one exponent from each window. Each window frees one more power of :math:`z =
# x\cdot b/|b|` for the fit, if the activation has a part of that degree: softplus, like ReLU, has none of
# degree three.

levels = predict(problem, sizes, step_exponents=[-0.1, 0.1, 0.3, 0.35, 0.39], ridges=0.1, theory="staircase")
for degrees, error in zip(levels.details["degrees"], levels.test_error[:, 0], strict=True):
    print(f"spikes of the degrees {degrees}: test error {error:.4f}")

# %%
# How strong is a spike at finite size? Spike k has the size :math:`n^{1/2 - (1/2 - \alpha) k}` in units of
# the bulk. To be "infinitely strong" it would have to be large; just inside the second window it is not.

alpha = 0.29
for n in (1e3, 1e6, 1e12, 1e24):
    print(
        f"n = {n:.0e}: spike 1 {n ** (0.5 - (0.5 - alpha)):10.3g}, spike 2 {n ** (0.5 - (0.5 - alpha) * 2):8.3g}"
    )

# %%
# The unified theory has no such limit in it: it solves the problem at the sizes that are given, for every
# step size between. So it can also be asked for sizes that no computer holds, and shows the stairs emerge.

exponents = np.linspace(-0.05, 0.4, 46)
fig, ax = plt.subplots(figsize=(7, 4.2), layout="constrained")
roles = ("setting1", "setting2", "setting3", "setting4")
for role, scale in zip(roles, (1, 10**3, 10**9, 10**21), strict=True):
    grown = Sizes(1000 * scale, 500 * scale, 750 * scale)
    errors = predict(problem, grown, step_exponents=exponents, ridges=0.1, tolerance=1e-4).test_error[:, 0]
    ax.plot(exponents, errors, color=colour(role), label=f"unified theory, n = {1000 * scale:.0e}")
staircase = predict(
    problem, sizes, step_exponents=exponents, ridges=0.1, theory="staircase", full_gradient=True
).test_error[:, 0]
ax.step(exponents, staircase, where="mid", color=colour("staircase"), linestyle="dashed", label="staircase")
for place in (0, 1 / 4, 1 / 3, 3 / 8):
    ax.axvline(place, color=colour("threshold"), linewidth=0.7)
ax.set(xlabel="step exponent α", ylabel="test error")
ax.legend(frameon=False, fontsize=9)
plt.show()

# %%
# At :math:`n = 1000`, where networks can be drawn, nothing of a staircase is to be seen; the simulated points
# lie on the unified curve. At :math:`10^{24}` the second step has still not reached its height everywhere in
# its window.
#
# ``full_gradient=True`` above is needed because the printed levels, from the second on, leave out a part of
# the gradient that does not vanish: :doc:`/corrections` shows the number.
