r"""
A spectrum
==========

What the step does can be *seen* in the eigenvalues of the features: a bulk, as in the random network, and
outliers, one for each spike that is strong enough at this size. The theory predicts the bulk, its edges,
the place of each outlier, and what its singular vector is: which function of the inputs has been learned.
"""

import matplotlib.pyplot as plt

from firststep import Problem, Sizes, predict_spectrum, simulate_spectrum
from firststep.figures import colour

problem = Problem("relu", "h1 + h2/sqrt(2)", noise_std=0.5, rows="sphere")
sizes = Sizes(n_samples=600, dim=300, width=450)
step_sizes = [0.0, sizes.step_size(0.2), sizes.step_size(0.45)]

# %%
# Eight draws, three step sizes on each, and the prediction. The eigenvalues are those of :math:`F F^\top/n`.

simulated = simulate_spectrum(problem, sizes, step_sizes, replicas=8, seed=0)
predicted = [predict_spectrum(problem, sizes, step_size) for step_size in step_sizes]

fig, axes = plt.subplots(1, 3, figsize=(10.5, 3.4), sharey=True, layout="constrained")
for ax, drawn, theory in zip(axes, simulated, predicted, strict=True):
    edges = theory.edges
    ax.bar(
        drawn.x,
        drawn.density,
        width=drawn.x[1] - drawn.x[0],
        color=colour("simulation"),
        alpha=0.5,
        label="drawn",
    )
    ax.plot(theory.x, theory.density, color=colour("theory"), label="theory")
    for outlier in theory.outliers:
        ax.plot(outlier.eigenvalue, 0.03, marker="v", color=colour("theory"), clip_on=False)
    for outlier in drawn.outliers:
        ax.plot(outlier.eigenvalue, 0.12, marker="o", color=colour("simulation"), clip_on=False)
    largest = max([edges[1], *(o.eigenvalue for o in (*theory.outliers, *drawn.outliers))])
    ax.set(
        xlabel="eigenvalue", title=f"step size {theory.step_size:.3g}", xlim=(0, 1.1 * largest), ylim=(0, 2.5)
    )
axes[0].set_ylabel("density")
axes[0].legend(frameon=False)
plt.show()

# %%
# Where the outliers are, and what they know. ``h1`` and ``h2`` are the squared overlaps of the left singular
# vector with the Hermite polynomials of degree one and two of z, the coordinate along the step's direction.
# The first outlier is the linear function that was learned, the second the quadratic one.

for drawn, theory in zip(simulated, predicted, strict=True):
    print(f"step size {theory.step_size:.3g}: {len(theory.outliers)} predicted, {len(drawn.outliers)} found")
    for ours, theirs, error in zip(theory.outliers, drawn.outliers, drawn.details["stderr"], strict=False):
        print(
            f"    eigenvalue {ours.eigenvalue:5.2f} (drawn {theirs.eigenvalue:5.2f} ± {error['eigenvalue']:.2f}),  "
            f"h1 {ours.overlaps['h1']:.2f} ({theirs.overlaps['h1']:.2f}),  "
            f"h2 {ours.overlaps['h2']:.2f} ({theirs.overlaps['h2']:.2f})"
        )

# %%
# At :math:`\alpha = 0.45` the second outlier is there, though the staircase would have it infinitely strong
# and the third window long entered. :func:`firststep.critical_steps` finds the step sizes at
# which outliers appear at a given size; :doc:`/spectra` has the derivation.
