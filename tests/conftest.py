import gc
import os
import signal

# A shell that starts tests in the background lets them ignore Ctrl-C, and the processes they start would too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# Likewise nohup; but a handler is for this process alone.
if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)

# Before NumPy is imported: one BLAS thread in every test process, for speed under xdist and for equal bits.
for _variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"
os.environ.setdefault("MPLBACKEND", "agg")

from hypothesis import settings  # noqa: E402 - not before the lines above

# Same examples on every run, and no time limit on a loaded machine.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


def pytest_collection_finish() -> None:
    """Collected tests stay until the end: the collector need not look at them again and again."""
    gc.collect()
    gc.freeze()
