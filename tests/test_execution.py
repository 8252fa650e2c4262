"""Where tasks run: workers, drivers, schedulers and disks may fail, and the numbers stay the same."""

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pydantic")

from small_experiment import TEXT, numbers

from firststep.experiment import ExperimentError, expand, parse, plan, run
from firststep.experiment.execution import (
    Answers,
    DisconnectedError,
    ExecutorBackend,
    Failure,
    InProcessBackend,
    LocalBackend,
    _judged,
    answers,
    compute_alike,
    execute,
    worker_version,
)
from firststep.experiment.points import cells_of, missing_tasks
from firststep.experiment.work import Finished, Task, compute
from firststep.simulate import run_replica
from firststep.store import open_store

# Workers that die.

POISON = """
import os, signal
from pathlib import Path
from firststep.experiment.work import compute
FOLDER = Path(__file__).parent

def once(task):
    # Kills its worker the first time replica 1 comes along.
    mark = FOLDER / "mark"
    if task.spec["replica"] == 1 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return compute(task)

def always(task):
    if task.spec["replica"] == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return compute(task)

def error(task):
    if task.spec["replica"] == 1:
        raise ZeroDivisionError("nothing left")
    return compute(task)
"""


@pytest.fixture
def poison(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "poisonous.py").write_text(POISON)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "poisonous", raising=False)
    import poisonous  # type: ignore[import-not-found]

    return poisonous


def outcome_of(tasks: list[Task], backend: Any) -> tuple[dict[int, Finished], dict[int, str]]:
    done: dict[int, Finished] = {}
    failed: dict[int, str] = {}
    try:
        execute(
            tasks,
            backend,
            done=lambda found: done.update({task.spec["replica"]: result for task, result in found}),
            failed=lambda task, error: failed.update(
                {task.spec["replica"]: f"{type(error).__name__}: {error}"}
            ),
        )
    finally:
        backend.close(now=False)
    return done, failed


def some_tasks(count: int = 4) -> list[Task]:
    experiment = parse(TEXT.replace("replicas = 3", f"replicas = {count}"))
    assert experiment.simulation is not None
    (cell,) = cells_of(expand(experiment))
    with open_store(None) as store:
        return list(missing_tasks(store, cell, experiment.simulation, range(count)))


def test_a_killed_worker_costs_no_number(poison: Any) -> None:
    tasks = some_tasks()
    done, failed = outcome_of(tasks, LocalBackend(2, poison.once))
    assert failed == {}
    for task in tasks:
        spec = task.spec
        direct = run_replica(
            task.problem,
            task.sizes,
            task.step_sizes,
            task.ridges,
            seed=spec["draw_seed"],
            replica=spec["replica"],
            n_test=spec["n_test"],
        )
        assert done[spec["replica"]].measured["test_error"].tobytes() == direct["test_error"].tobytes()


def test_a_task_that_kills_every_worker_is_named_and_the_rest_completes(poison: Any) -> None:
    done, failed = outcome_of(some_tasks(), LocalBackend(2, poison.always))
    assert sorted(done) == [0, 2, 3]
    assert list(failed) == [1]
    assert "WorkerLostError: ended every worker" in failed[1]


def test_an_exception_is_no_death(poison: Any) -> None:
    with ThreadPoolExecutor(1) as executor:
        done, failed = outcome_of(some_tasks(), ExecutorBackend(executor, function=poison.error))
    assert sorted(done) == [0, 2, 3]
    assert failed == {1: "ZeroDivisionError: nothing left"}


@pytest.mark.slow
def test_dask_runs_again_what_a_killed_worker_had_and_names_a_poison_task(poison: Any) -> None:
    pytest.importorskip("distributed")
    from firststep.experiment.execution import DaskBackend

    tasks = some_tasks()
    reference, _ = outcome_of(tasks, LocalBackend(2))
    done, failed = outcome_of(tasks, DaskBackend("local", 2, poison.once))
    assert failed == {}
    for replica, finished in done.items():
        assert (
            finished.measured["test_error"].tobytes() == reference[replica].measured["test_error"].tobytes()
        )
    done, failed = outcome_of(tasks, DaskBackend("local", 2, poison.always))
    assert sorted(done) == [0, 2, 3]
    assert "WorkerLostError" in failed[1]


def test_a_scheduler_that_is_not_there_is_named() -> None:
    pytest.importorskip("distributed")
    from firststep.experiment.execution import DaskBackend

    with pytest.raises(RuntimeError, match=r"no Dask scheduler answers at 'tcp://127\.0\.0\.1:1'"):
        DaskBackend("tcp://127.0.0.1:1", timeout=0.5)


def test_a_worker_of_another_version_computes_nothing() -> None:
    (task, *_) = some_tasks(1)
    called: list[Task] = []
    with pytest.raises(RuntimeError, match=r"the driver 9\.9: install the same"):
        compute_alike(called.append, ("9.9", {}), [task])  # type: ignore[arg-type]
    assert called == []
    (found,) = compute_alike(compute, worker_version(), [task])
    assert isinstance(found, Finished)
    assert found.measured["test_error"].shape == (3, 2)


class Cut:
    """A backend whose connection is lost under the first task, again and again or once."""

    fragile = False
    patience = 1
    together = 0.0
    workers = 2

    def __init__(self, losses: int) -> None:
        self.losses, self.inner = losses, InProcessBackend()

    def submit(self, tasks: Sequence[Task]) -> "Future[Answers]":
        if tasks[0].spec["replica"] == 0 and self.losses:
            self.losses -= 1
            future: Future[Answers] = Future()
            future.set_exception(DisconnectedError("in <TCP local=…>: Stream is closed"))
            return future
        return self.inner.submit(tasks)

    def renew(self, alone: bool) -> None:
        assert not alone, "nobody is suspected"

    def close(self, now: bool) -> None:
        pass


def test_a_lost_connection_is_nobodys_failure() -> None:
    done, failed = outcome_of(some_tasks(), Cut(3))
    assert (sorted(done), failed) == ([0, 1, 2, 3], {})
    with pytest.raises(RuntimeError, match="the connection to the workers was lost 5 times"):
        outcome_of(some_tasks(), Cut(99))


def test_what_dask_raises_is_told_from_what_a_task_raises(poison: Any) -> None:
    class CommClosedError(OSError):
        pass

    class KilledWorker(Exception):
        pass

    for error in (CommClosedError("gone"), ConnectionResetError(), TimeoutError(), CancelledError()):
        assert isinstance(_judged(error), DisconnectedError)
    killed = _judged(KilledWorker("task", "worker"))
    assert isinstance(killed, BrokenExecutor)
    assert not isinstance(killed, DisconnectedError)
    assert isinstance(_judged(ModuleNotFoundError("poisonous")), ModuleNotFoundError)
    # A task's own error of the system comes back as what it is, not as a lost connection.
    tasks = some_tasks(2)
    alone, found = compute_alike(poison.error, worker_version(), tasks)
    assert isinstance(alone, Finished)
    assert isinstance(found, Failure)
    assert str(found.error) == "nothing left"


class Counting:
    """A backend that notes what is sent together; the way to its workers may be lost once."""

    fragile = False
    patience = 1
    workers = 1

    def __init__(self, together: float, function: Any = compute, loses: int = -1) -> None:
        self.together, self.function, self.loses = together, function, loses
        self.sent: list[list[Task]] = []

    def submit(self, tasks: Sequence[Task]) -> "Future[Answers]":
        self.sent.append(list(tasks))
        future: Future[Answers] = Future()
        if len(self.sent) - 1 == self.loses:
            future.set_exception(DisconnectedError("gone"))
        else:
            future.set_result(answers(self.function, tasks))
        return future

    def renew(self, alone: bool) -> None:
        pass

    def close(self, now: bool) -> None:
        pass


def slow_and_quick(task: Task) -> Finished:
    """An answer that says how long it took: replicas from 100 on are ten times as quick."""
    return Finished(None, 0.01 if task.spec["replica"] >= 100 else 0.1, {})


def test_quick_tasks_go_together_and_slow_ones_alone() -> None:
    quick = Counting(0.05, slow_and_quick)
    tasks = some_tasks(130)
    done, failed = outcome_of(tasks[100:], quick)
    assert (len(done), failed) == (30, {})
    sizes = [len(some) for some in quick.sent]
    # Two are under way before anything is known.
    assert sizes == [1, 1, 5, 5, 5, 5, 5, 3]
    slow = Counting(0.05, slow_and_quick)
    outcome_of(tasks[:10], slow)
    assert [len(some) for some in slow.sent] == [1] * 10
    never = Counting(0.0, slow_and_quick)
    outcome_of(tasks[100:110], never)
    assert [len(some) for some in never.sent] == [1] * 10


def test_only_tasks_of_one_kind_go_together_and_none_is_forgotten() -> None:
    tasks = some_tasks(130)[100:]
    other = [replace(task, ridges=(*task.ridges, 7.0)) for task in tasks[10:20]]
    mixed = [*tasks[:10], *other, *tasks[20:]]
    backend = Counting(0.05, slow_and_quick, loses=3)
    done, failed = outcome_of(mixed, backend)
    assert (len(done), failed) == (30, {})
    assert all(len({task.work for task in some}) == 1 for some in backend.sent)
    assert max(map(len, backend.sent)) == 5


def test_a_task_that_fails_spares_those_sent_with_it(poison: Any) -> None:
    backend = Counting(1e9, poison.error)
    tasks = some_tasks(6)
    done, failed = outcome_of([*tasks[2:], tasks[1], tasks[0]], backend)
    assert any(tasks[1] in some and len(some) > 1 for some in backend.sent)
    assert sorted(done) == [0, 2, 3, 4, 5]
    assert failed == {1: "ZeroDivisionError: nothing left"}


def test_what_another_run_holds_is_not_sent() -> None:
    backend, done = Counting(1e9), []
    tasks = some_tasks(4)
    execute(
        tasks,
        backend,
        done=lambda found: done.extend(task for task, _ in found),
        failed=lambda task, error: None,
        claimed=lambda some: [task for task in some if task.spec["replica"] != 2],
    )
    assert sorted(task.spec["replica"] for task in done) == [0, 1, 3]


def test_theories_on_an_executor_are_those_of_the_driver() -> None:
    text = (
        TEXT.partition("[simulation]")[0] + '[[theory]]\nname = "unified"\n[[theory]]\nname = "staircase"\n'
    )
    experiment = parse(text)
    with open_store(None) as here, open_store(None) as there, ThreadPoolExecutor(2) as executor:
        run(experiment, here)
        run(experiment, there, executor=executor)
        assert here.count() > 0
        key = lambda row: json.dumps(row, sort_keys=True)  # noqa: E731
        assert sorted(map(key, here.rows())) == sorted(map(key, there.rows()))
        # And nothing is computed again.
        run(experiment, there, executor=None)
        assert there.count() == here.count()


# The driver dies, or is stopped.

BUSY = """
title = "Enough to be interrupted"
[problem]
activation = "relu"
teacher = "h1"
[sizes]
n_samples = 240
phi = 0.5
psi = 0.6
[sweep]
step_exponent = { start = 0.0, stop = 0.5, count = 6 }
ridge = [0.1, 1.0]
[simulation]
replicas = 24
[[theory]]
name = "staircase"
"""


def start(folder: Path, *options: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "firststep", "run", "busy.toml", "--store", "store.db", *options]
    return subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def wait_for_points(path: Path, count: int, process: "subprocess.Popen[str]") -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        if path.exists():
            with open_store(path, read_only=True) as store:
                if store.count() >= count:
                    return
        time.sleep(0.01)


def left_behind(session: int) -> list[int]:
    """Processes of a session that has lost its leader."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == session and fields[0] != "Z":
                found.append(int(entry.name))
    return found


@pytest.fixture(scope="module")
def reference() -> list[str]:
    with open_store(None) as store:
        run(parse(BUSY), store, jobs=1)
        return numbers(store)


def kill_and_resume(folder: Path, kills: int, options: tuple[str, ...], seed: int) -> list[str]:
    """Numbers of a run whose driver was killed at random moments and then went on to the end."""
    (folder / "busy.toml").write_text(BUSY)
    path = folder / "store.db"
    moments = random.Random(seed)
    for attempt in range(kills):
        known = set()
        if path.exists():
            with open_store(path, read_only=True) as store:
                known = set(numbers(store))
        process = start(folder, *options)
        wait_for_points(path, len(known) + moments.randrange(1, 80), process)
        time.sleep(moments.random() * 0.05)
        process.kill()
        process.communicate()
        with open_store(path) as store:
            assert store.check() == "ok"
            assert known <= set(numbers(store)), f"kill {attempt} lost points"
        deadline = time.monotonic() + 10
        while left_behind(process.pid) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert left_behind(process.pid) == [], "workers outlived their driver"
    process = start(folder, *options)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    with open_store(path) as store:
        return numbers(store)


linux_only = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at /proc")


@linux_only
@pytest.mark.parametrize(
    ("kills", "options"),
    [
        (2, ("--jobs", "2")),
        pytest.param(25, ("--jobs", "1"), marks=pytest.mark.slow),
        pytest.param(25, ("--jobs", "2"), marks=pytest.mark.slow),
        pytest.param(3, ("--jobs", "2", "--scheduler", "local"), marks=pytest.mark.slow),
    ],
)
def test_a_driver_killed_at_random_moments_resumes_to_the_same_bits(
    tmp_path: Path, reference: list[str], kills: int, options: tuple[str, ...]
) -> None:
    if "--scheduler" in options:
        pytest.importorskip("distributed")
    assert kill_and_resume(tmp_path, kills, options, seed=kills) == reference


def address_on(card: Path) -> str:
    """Where the scheduler listens; the file may be there before its content is."""
    for _ in range(1200):
        with contextlib.suppress(OSError, ValueError):
            return str(json.loads(card.read_text())["address"])
        time.sleep(0.05)
    raise TimeoutError(f"no scheduler wrote {card} within a minute")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[str, list["subprocess.Popen[bytes]"]]]:
    """A scheduler and two workers, started by hand as on a cluster: its address, and all three."""
    pytest.importorskip("distributed")
    program = Path(sys.executable).with_name("dask")
    if not program.exists():
        pytest.skip("the dask command is not installed here")
    card, log = tmp_path / "scheduler.json", (tmp_path / "dask.log").open("wb")
    place = {"cwd": tmp_path, "stdout": log, "stderr": log}
    join = [
        str(program),
        "worker",
        "--scheduler-file",
        str(card),
        "--nthreads",
        "1",
        "--no-nanny",
        "--no-dashboard",
    ]
    lead = [str(program), "scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard"]
    started = [subprocess.Popen([*lead, "--scheduler-file", str(card)], **place)]  # type: ignore[call-overload]
    try:
        started += [subprocess.Popen(join, **place) for _ in range(2)]  # type: ignore[call-overload]
        yield address_on(card), started
    finally:
        for process in started:
            process.kill()
            process.wait()
        log.close()


def start_on(folder: Path, address: str) -> "subprocess.Popen[str]":
    """A run on the cluster that has stored some points and is not at its end."""
    (folder / "busy.toml").write_text(BUSY)
    process = start(folder, "--scheduler", address)
    wait_for_points(folder / "store.db", 40, process)
    assert process.poll() is None
    return process


@linux_only
def test_a_cluster_that_loses_a_worker_gives_the_same_bits(
    tmp_path: Path, reference: list[str], cluster: tuple[str, list["subprocess.Popen[bytes]"]]
) -> None:
    address, (_, worker, _) = cluster
    process = start_on(tmp_path, address)
    worker.kill()
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    with open_store(tmp_path / "store.db") as store:
        assert numbers(store) == reference


@linux_only
@pytest.mark.slow
def test_a_cluster_that_loses_its_scheduler_says_so(
    tmp_path: Path, reference: list[str], cluster: tuple[str, list["subprocess.Popen[bytes]"]]
) -> None:
    address, (scheduler, *_) = cluster
    process = start_on(tmp_path, address)
    scheduler.kill()
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 1, errors
    assert f"the Dask scheduler {address} does not answer any more; what was finished is stored" in errors
    assert "Traceback" not in errors
    with open_store(tmp_path / "store.db") as store:
        assert 40 <= store.count() < len(reference)
        assert set(numbers(store)) <= set(reference)
        assert store.failures() == {}


HUGE = BUSY.replace("replicas = 24", "replicas = 1000000")


@linux_only
def test_a_million_replicas_are_planned_in_seconds_and_hear_a_signal(tmp_path: Path) -> None:
    (tmp_path / "busy.toml").write_text(HUGE)
    started = time.monotonic()
    process = start(tmp_path, "--jobs", "1")
    wait_for_points(tmp_path / "store.db", 13, process)
    waited = time.monotonic() - started
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 128 + signal.SIGTERM, errors
    assert waited < 40
    with open_store(tmp_path / "store.db") as store:
        # A plan counts what it did not look up as missing.
        found = plan(parse(HUGE), store, estimate=False)
        assert found.points == 12 * 10**6 + 12
        assert found.present == store.count()
    more = HUGE.replace("1000000", "1000000000")
    with pytest.raises(ExperimentError, match="less than or equal to 1000000"):
        parse(more)


@linux_only
def test_a_theory_hears_a_signal(tmp_path: Path) -> None:
    slow = BUSY.replace('"staircase"', '"unified"').replace("count = 6", "count = 3000")
    (tmp_path / "busy.toml").write_text(slow)
    process = start(tmp_path, "--jobs", "1")
    wait_for = time.monotonic() + 60
    while not (tmp_path / "store.db").exists() and time.monotonic() < wait_for:
        time.sleep(0.05)
    time.sleep(1.0)
    started = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "stopped by SIGINT" in errors
    assert time.monotonic() - started < 5


@linux_only
def test_a_run_says_for_whom_it_waits(tmp_path: Path) -> None:
    (tmp_path / "busy.toml").write_text(BUSY)
    first = start(tmp_path, "--jobs", "1")
    # Theory's points, and one replica: the others take long enough for a signal to find it at work.
    wait_for_points(tmp_path / "store.db", 13, first)
    first.send_signal(signal.SIGSTOP)
    second = start(tmp_path, "--jobs", "1")
    try:
        assert second.stderr is not None
        said = second.stderr.readline()
        assert f"waiting for process {first.pid} (suspended; kill -CONT {first.pid} lets it go on)" in said
    finally:
        first.send_signal(signal.SIGCONT)
        for process in (first, second):
            process.communicate(timeout=60)
            assert process.returncode == 0


@linux_only
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_a_store_that_resumes(
    tmp_path: Path, reference: list[str], number: signal.Signals
) -> None:
    (tmp_path / "busy.toml").write_text(BUSY)
    process = start(tmp_path, "--jobs", "2" if number == signal.SIGINT else "1")
    wait_for_points(tmp_path / "store.db", 40, process)
    # As a terminal does: Ctrl-C reaches the workers as well.
    os.killpg(process.pid, number) if number == signal.SIGINT else process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + number, errors
    assert f"stopped by {number.name}" in errors
    command = errors.strip().splitlines()[-1].strip()
    assert command.startswith("firststep run busy.toml --store store.db --jobs")
    # A worker notices that its driver is gone a moment later.
    patience = time.monotonic() + 20
    while left_behind(process.pid) and time.monotonic() < patience:
        time.sleep(0.1)
    assert left_behind(process.pid) == []
    with open_store(tmp_path / "store.db") as store:
        assert 40 <= store.count() < len(reference)
        assert set(numbers(store)) <= set(reference)
    again = start(tmp_path, *command.split()[5:])
    _, errors = again.communicate(timeout=60)
    assert again.returncode == 0, errors
    with open_store(tmp_path / "store.db") as store:
        assert numbers(store) == reference


def test_two_runs_at_once_share_the_work(tmp_path: Path, reference: list[str]) -> None:
    (tmp_path / "busy.toml").write_text(BUSY)
    runs = [start(tmp_path, "--jobs", "1", "--quiet") for _ in range(2)]
    for process in runs:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    with open_store(tmp_path / "store.db") as store:
        assert numbers(store) == reference
        # Two parts for each replica's 12 points would be the sign of work done twice.
        assert store.count() == 24 * 12 + 12


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="needs to mount a small disk")
def test_a_full_disk_stops_a_run_and_loses_nothing(tmp_path: Path, reference: list[str]) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = (
        shutil.which("mount")
        and not subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=450k", "tmpfs", str(disk)], capture_output=True, check=False
        ).returncode
    )
    if not mounted:
        pytest.skip("cannot mount here")
    try:
        (disk / "busy.toml").write_text(BUSY)
        process = start(disk, "--jobs", "1")
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 1, errors
        assert "full or failing" in errors
        assert "Traceback" not in errors
        with open_store(disk / "store.db", read_only=True) as store:
            kept = numbers(store)
        assert kept
        assert set(kept) <= set(reference)
        subprocess.run(["mount", "-o", "remount,size=20m", str(disk)], check=True)
        process = start(disk, "--jobs", "1")
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
        with open_store(disk / "store.db") as store:
            assert numbers(store) == reference
    finally:
        subprocess.run(["umount", str(disk)], check=True)
