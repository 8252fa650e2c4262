import os

# Before NumPy is imported: one BLAS thread in every test process, for speed under xdist and for equal bits.
for _variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"
os.environ.setdefault("MPLBACKEND", "agg")

from hypothesis import settings  # noqa: E402 - not before the lines above

# Same examples on every run, and no time limit on a loaded machine.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")
