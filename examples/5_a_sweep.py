r"""
A sweep of your own, on a laptop and on Dask
============================================

More than a few points belong in a file: it says what varies, keeps what is finished, and can be stopped at
any time. This page runs a small sweep over the ridge and the step, on this machine and then on a Dask
cluster.
"""

import tempfile
from pathlib import Path

from firststep.experiment import build_figures, parse, plan, run
from firststep.store import open_store

text = """
title = "Does a larger step want another ridge?"

[problem]
activation = "tanh"
teacher = "h1 + h3/6"
noise_std = 0.5

[sizes]
n_samples = 200
phi = 0.5
psi = 0.6666666666666666

[sweep]
step_exponent = [0.0, 0.25, 0.5]
ridge = { start = 0.01, stop = 1.0, count = 5, log = true }

[simulation]
replicas = 6

[[theory]]
name = "unified"
curve.ridge = { start = 0.01, stop = 1.0, count = 25, log = true }

[[figure]]
kind = "against"
x = "ridge"
quantities = ["test_error"]
options = { x_scale = "log", linear = false }
"""
experiment = parse(text)

# %%
# From the shell this is a file ``sweep.toml`` and the command ``firststep run sweep.toml``; here the same in
# Python. What is to be done, and then doing it:

folder = Path(tempfile.mkdtemp())
store = open_store(folder / "store.db")
print(plan(experiment, store, jobs=1))
results = run(experiment, store, jobs=1)

# %%
# Rows are flat and have the names of everything else in the package.

for row in results.rows():
    if row["source"] == "simulation" and row["ridge"] == 0.1:
        print(
            f"alpha {row['step_exponent']:.2f}: test error {row['test_error']:.3f} ± {row['test_error_stderr']:.3f}"
        )
for entry in results.agreement():
    print(
        f"{entry['quantity']}: {entry['points']} points, median distance {entry['median']:.1f} standard errors"
    )

# %%
# The figure that the file asked for:

import matplotlib.pyplot as plt

from firststep.figures import draw

(figure,) = build_figures(results)
fig, axes = plt.subplots(1, len(figure.panels), figsize=(7.2, 4.4), layout="constrained")
draw(figure, axes)
plt.show()

# %%
# A longer sweep, on Dask
# -----------------------
#
# More replicas are asked for. The six that exist are not computed again, wherever the new ones run: a point's
# numbers depend on its parameters and its seed, not on the machine. A Dask cluster with a single worker
# inside this process stands for one of any size; from the shell it would be ``firststep run sweep.toml
# --scheduler tcp://head:8786``.

from distributed import Client, LocalCluster

longer = parse(text.replace("replicas = 6", "replicas = 10"))
print(plan(longer, store, jobs=1))
with (
    LocalCluster(processes=False, n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster,
    Client(cluster) as client,
):
    results = run(longer, store, executor=client.get_executor())
print(f"{results.simulated[0].details['replicas']} replicas; {results.missing} points missing")
store.close()
