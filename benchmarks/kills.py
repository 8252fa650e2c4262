"""Kill drivers, workers and schedulers at random moments, and compare every bit: python benchmarks/kills.py [--help].

Each killed run is started again until it is complete. Nothing may be lost, no task may be blamed, no process may stay,
and the store must hold the same bits as one that was never disturbed. Prints a line for each kind; exits with 1 if
anything is wrong. The tests do the same with a few kills (tests/test_execution.py).
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from test_execution import (  # noqa: E402
    BUSY,
    address_on,
    kill_and_resume,
    left_behind,
    numbers,
    start,
    wait_for_points,
)

from firststep.experiment import parse, run  # noqa: E402
from firststep.store import open_store  # noqa: E402


def reference() -> list[str]:
    with open_store(None) as store:
        run(parse(BUSY), store, jobs=1)
        return numbers(store)


def drivers(count: int, expected: list[str], seed: int) -> list[str]:
    """Kill drivers, ten to a store, in turn with one worker and with two."""
    wrong = []
    for turn in range(0, count, 10):
        options = ("--jobs", "1" if turn % 20 else "2")
        with tempfile.TemporaryDirectory() as folder:
            try:
                found = kill_and_resume(Path(folder), min(10, count - turn), options, seed + turn)
                if found != expected:
                    wrong.append(f"drivers from {turn}: other numbers")
            except AssertionError as error:
                wrong.append(f"drivers from {turn}: {error}")
    return wrong


def workers(count: int, expected: list[str], seed: int) -> list[str]:
    """Kill one worker process of a running driver, twice to a run."""
    moments, wrong, kills = random.Random(seed), [], 0
    while kills < count and not wrong:
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder)
            (place / "busy.toml").write_text(BUSY)
            process = start(place, "--jobs", "2")
            for _ in range(min(2, count - kills)):
                wait_for_points(place / "store.db", moments.randrange(13, 200), process)
                members = [pid for pid in left_behind(process.pid) if pid != process.pid and is_worker(pid)]
                if members and process.poll() is None:
                    os.kill(moments.choice(members), signal.SIGKILL)
                    kills += 1
                time.sleep(0.3)
            _, errors = process.communicate(timeout=300)
            wrong += judged(place, expected, process.returncode, errors, f"worker kill {kills}")
    return wrong


def is_worker(pid: int) -> bool:
    try:
        return b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def judged(place: Path, expected: list[str], code: int, errors: str, what: str) -> list[str]:
    """What is wrong with a finished run."""
    found = []
    if code:
        found.append(f"{what}: exit code {code}: {errors[-300:]}")
    if "Traceback" in errors:
        found.append(f"{what}: a traceback: {errors[-300:]}")
    with open_store(place / "store.db") as store:
        if store.failures():
            found.append(f"{what}: blames {next(iter(store.failures().values()))}")
        if numbers(store) != expected:
            found.append(f"{what}: other numbers")
    return found


def schedulers(count: int, expected: list[str], seed: int) -> list[str]:
    """Kill the scheduler of a Dask cluster under a run; then go on with one worker of this machine."""
    moments, wrong = random.Random(seed), []
    dask = str(Path(sys.executable).with_name("dask"))
    for kill in range(count):
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder)
            (place / "busy.toml").write_text(BUSY)
            card, log = place / "scheduler.json", (place / "dask.log").open("wb")
            quiet = {"cwd": place, "stdout": log, "stderr": log}
            lead = [dask, "scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard"]
            join = [dask, "worker", "--nthreads", "1", "--no-nanny", "--no-dashboard"]
            card_option = ["--scheduler-file", str(card)]
            started = [subprocess.Popen([*command, *card_option], **quiet) for command in (lead, join, join)]
            try:
                process = start(place, "--scheduler", address_on(card))
                wait_for_points(place / "store.db", moments.randrange(14, 200), process)
                time.sleep(moments.random() * 0.2)
                started[0].kill()
                _, errors = process.communicate(timeout=180)
            finally:
                for one in started:
                    one.kill()
                    one.wait()
                log.close()
            if process.returncode not in (0, 1) or "Traceback" in errors:
                wrong.append(f"scheduler kill {kill}: exit code {process.returncode}: {errors[-300:]}")
            with open_store(place / "store.db") as store:
                if store.failures():
                    wrong.append(f"scheduler kill {kill}: blames {next(iter(store.failures().values()))}")
            again = start(place, "--jobs", "1")
            _, errors = again.communicate(timeout=300)
            wrong += judged(place, expected, again.returncode, errors, f"after scheduler kill {kill}")
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--drivers", type=int, default=200)
    parser.add_argument("--workers", type=int, default=50)
    parser.add_argument("--schedulers", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    expected, bad = reference(), False
    for kind in (drivers, workers, schedulers):
        count, started = getattr(arguments, kind.__name__), time.monotonic()
        wrong = kind(count, expected, arguments.seed) if count else []
        print(
            f"{count} {kind.__name__} killed in {time.monotonic() - started:.0f} s: {len(wrong)} wrong",
            flush=True,
        )
        for line in wrong:
            print(f"  {line}")
        bad = bad or bool(wrong)
    sys.exit(bad)


if __name__ == "__main__":
    main()
