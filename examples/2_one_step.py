r"""
One step
========

What exactly is trained: one full-batch gradient step on the first layer, on a first sample of :math:`n_0`
points, in closed form; then ridge regression for the second layer on a second, independent sample of n
points. First by hand, then by :func:`firststep.simulate`.
"""

import numpy as np

from firststep import Problem, Sizes, compare, predict, simulate
from firststep.arrays import gradient_step
from firststep.simulate import Draw

problem = Problem("relu", "h1 + h2/sqrt(2)", noise_std=0.5, rows="sphere")
sizes = Sizes(n_samples=600, dim=300, width=450)

# %%
# The gradient is nearly of rank one
# ----------------------------------
#
# A :class:`~firststep.simulate.Draw` holds the random arrays of one replica.

draw = Draw(problem, sizes, seed=0)
weights, readout = draw.weights(), draw.readout()
inputs, labels = draw.step_sample()
step = gradient_step(inputs, labels, weights, readout, problem.activation, output_scale=sizes.width**-0.5)

c1 = problem.activation.hermite(2)[1]
spike = c1 * np.outer(readout, step.direction)
print(f"norm of the gradient      {np.linalg.norm(step.gradient, 2):.3f}")
print(f"norm of the rank-one part {np.linalg.norm(spike, 2):.3f}")
print(f"norm of their difference  {np.linalg.norm(step.gradient - spike, 2):.3f}")

# %%
# The rank-one part is :math:`c_1\, a\, b^\top` with :math:`b = X^\top (y - f_0)/n_0`: all neurons move along
# the one direction b, each in proportion to its readout. The direction knows the teacher's; how well is a
# formula.

cosine = step.direction @ draw.beta / np.linalg.norm(step.direction)
print(
    f"squared cosine of b with beta: drawn {cosine**2:.3f}, in the limit {predict(problem, sizes, 0.0).alignment:.3f}"
)

# %%
# So the weights after the step are a random matrix with a spike, whose largest singular value leaves the bulk
# once the step is large enough.

import matplotlib.pyplot as plt

from firststep.figures import colour
from firststep.theory.limits.weights import spiked_weights

limit = spiked_weights(problem, sizes, [1.0, 4.0, 8.0])
print(f"the spike leaves the bulk at step size {limit.critical_step:.2f}")

fig, axes = plt.subplots(1, 3, figsize=(10, 3), sharey=True, layout="constrained")
for ax, step_size, top in zip(axes, limit.step_sizes, limit.top, strict=True):
    values = np.linalg.svd(weights + step_size * step.gradient, compute_uv=False)
    ax.hist(values, bins=30, color=colour("simulation"), alpha=0.6, label="one draw")
    ax.axvline(limit.edge, color=colour("threshold"), linestyle="dotted", label="edge of the bulk")
    if step_size > limit.critical_step:
        ax.axvline(top, color=colour("theory"), label="limit of the largest")
    ax.set(xlabel="singular values of $W_1$", title=f"step size {step_size:g}")
axes[0].set_ylabel("count")
axes[-1].legend(frameon=False, fontsize=9)
plt.show()

# %%
# Fit and measure, many times
# ---------------------------
#
# :func:`firststep.simulate` does all of this for many step sizes and ridges on the same draws, and repeats
# it. Gains against the network without a step are paired: the luck of a draw cancels in them.

sizes = Sizes(n_samples=400, dim=200, width=300)
exponents = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5]
network = simulate(
    problem, sizes, step_exponents=exponents, ridges=0.1, replicas=20, seed=0, workers=1, progress=False
)
theory = predict(problem, sizes, step_exponents=exponents, ridges=0.1)

print("alpha   test error          predicted   gain                predicted")
for i, alpha in enumerate(exponents):
    print(
        f"{alpha:.1f}     {network.test_error[i, 0]:.4f} ± {network.stderr['test_error'][i, 0]:.4f}"
        f"     {theory.test_error[i, 0]:.4f}      {network.test_gain[i, 0]:.4f} ± "
        f"{network.stderr['test_gain'][i, 0]:.4f}     {theory.test_gain[i, 0]:.4f}"
    )

# %%
# Both answers have the same names. :func:`firststep.compare` asks both and knows the distance between them: that of
# a normal variable as probable as the Student's t of the replicas. All rows come from the same draws: a lucky sample
# of labels moves all errors of a column together, so ten distances of two may be one surprise and not ten. So one
# test judges all points together, and gives a word. The gains are the sharper test.

both = compare(
    problem,
    sizes,
    step_exponents=[0.2, 0.4],
    ridges=[0.01, 0.1],
    replicas=20,
    seed=0,
    workers=1,
    progress=False,
)
print(both.table())
print(both.verdict())
