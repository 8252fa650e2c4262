"""The store: one suite over the file and over memory, then what only a file can go through."""

import json
import math
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from firststep.compute.files import check_target
from firststep.store import Entry, Store, StoreError, dataset, file, migrate, open_store, subject_key

SPEC: dict[str, Any] = {
    "source": "simulation",
    "numbers": 1,
    "problem": {"activation": "relu", "teacher": "h1", "centred": [True, True], "noise_std": 0.5},
    "sizes": {"n_samples": 100, "dim": 50, "width": 75, "n_step_samples": 100},
    "seed": 0,
    "replica": 0,
}


@pytest.fixture(params=["file", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "points.db" if request.param == "file" else None) as opened:
        yield opened


def replica(index: int) -> dict[str, Any]:
    return {**SPEC, "replica": index}


def test_what_is_written_is_read_bit_for_bit(store: Store) -> None:
    values = np.array([[1 / 3, math.pi], [5e-324, -1.7976931348623157e308]])
    assert store.add(SPEC, "network", [0.0, 0.1], [0.1, 0.2], {"test_error": values, "norm": 2.0}) == 4
    found = store.values(SPEC)
    assert found[0.1, 0.2] == {"test_error": -1.7976931348623157e308, "norm": 2.0}
    assert [[found[s, r]["test_error"] for r in (0.1, 0.2)] for s in (0.0, 0.1)] == values.tolist()


def test_numbers_that_are_not_finite_survive(store: Store) -> None:
    store.add(SPEC, "network", [1.0, 2.0, 3.0], [0.1], {"x": [[math.inf], [-math.inf], [math.nan]]})
    found = [store.values(SPEC)[step, 0.1]["x"] for step in (1.0, 2.0, 3.0)]
    assert found[:2] == [math.inf, -math.inf]
    assert math.isnan(found[2])


def test_an_old_number_never_changes(store: Store) -> None:
    store.add(SPEC, "network", [1.0], [0.1], {"test_error": 1.0})
    assert store.add(SPEC, "network", [1.0, 2.0], [0.1], {"test_error": [[7.0], [2.0]]}) == 1
    assert store.values(SPEC)[1.0, 0.1]["test_error"] == 1.0
    assert store.values(SPEC)[2.0, 0.1]["test_error"] == 2.0
    assert store.count() == 2


def test_present_says_what_is_there_for_each_part(store: Store) -> None:
    store.add(SPEC, "network", [1.0, 2.0], [0.1], {"test_error": 1.0})
    assert store.present(SPEC, "network") == {(1.0, 0.1), (2.0, 0.1)}
    assert store.present(SPEC, "weights") == set()
    assert store.present(replica(1), "network") == set()


def test_parts_are_joined_in_rows(store: Store) -> None:
    store.add(SPEC, "network", [1.0], [0.1], {"test_error": 1.0})
    store.add(SPEC, "weights", [1.0], [0.1], {"weights_top": 2.0})
    (row,) = store.rows()
    assert row["test_error"] == 1.0
    assert row["weights_top"] == 2.0
    assert row["activation"] == "relu"
    assert row["width"] == 75
    assert row["step_exponent"] == 0.0


def test_rows_are_filtered_by_value_collection_and_function(store: Store) -> None:
    for index in range(3):
        store.add(replica(index), "network", [1.0, 10.0], [0.1, 1.0], {"test_error": float(index)})
    store.add({**SPEC, "source": "unified"}, "theory", [1.0], [0.1], {"test_error": 9.0})
    assert len(store.rows()) == 13
    assert len(store.rows(source="simulation")) == 12
    assert len(store.rows(source=["unified", "staircase"])) == 1
    assert len(store.rows(source="simulation", replica=[0, 2], ridge=0.1)) == 4
    assert len(store.rows(test_error=lambda value: value > 1.5)) == 5
    assert store.rows(width=1) == []


def test_arrays_come_back_as_they_were(store: Store) -> None:
    spectrum = np.random.default_rng(0).random(50)
    store.add_parts(SPEC, {}, [1.0], [0.1], arrays={("features", 1.0): spectrum})
    found = store.array(SPEC, "features", 1.0)
    assert found is not None
    assert found.tobytes() == spectrum.tobytes()
    assert store.array(SPEC, "features", 2.0) is None
    assert store.array_names(SPEC) == {("features", 1.0)}


def test_a_failed_write_leaves_nothing(store: Store) -> None:
    class Broken:
        def __array__(self, *_: object, **__: object) -> None:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        store.add(SPEC, "network", [1.0], [0.1], {"test_error": Broken()})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="broadcast"):
        store.add(SPEC, "network", [1.0, 2.0], [0.1], {"test_error": [[1.0], [2.0], [3.0]]})
    with pytest.raises(ValueError, match="finite"):
        store.add(SPEC, "network", [math.nan], [0.1], {"test_error": 1.0})
    assert store.rows() == []


def test_failures_are_kept_until_forgiven(store: Store) -> None:
    store.fail("abc", "replica 3 of …", "killed three workers")
    assert store.failures() == {"abc": ("replica 3 of …", "killed three workers")}
    store.forgive(["abc"])
    assert store.failures() == {}


def test_provenance_is_outside_the_key(store: Store) -> None:
    store.add(SPEC, "network", [1.0], [0.1], {"x": 1.0}, provenance={"numpy": "2.4"}, seconds=3.0)
    store.add(SPEC, "network", [2.0], [0.1], {"x": 1.0}, provenance={"numpy": "2.5"})
    assert store.provenance(SPEC) == [{"numpy": "2.4"}, {"numpy": "2.5"}]
    assert len(store.rows()) == 2
    assert store.seconds("simulation", SPEC["sizes"]) == [3.0]
    assert store.seconds("simulation", {"n_samples": 1}) == []


def test_the_key_is_the_specification_whatever_its_order() -> None:
    assert subject_key(SPEC) == subject_key(dict(reversed(SPEC.items())))
    assert subject_key(SPEC) != subject_key(replica(1))
    assert subject_key({"a": 1}) == "015abd7f5cc57a2d"


def test_experiments_are_remembered_once(store: Store) -> None:
    store.remember("k", "name", "document")
    store.remember("k", "name", "document")
    (found,) = store.experiments()
    assert (found["key"], found["name"], found["document"]) == ("k", "name", "document")


def test_the_latest_text_of_an_experiment_counts_and_stands_last(store: Store) -> None:
    for key, document in (("a", "first"), ("b", "other"), ("a", "second")):
        store.remember(key, "name", document)
    assert [(entry["key"], entry["document"]) for entry in store.experiments()] == [
        ("b", "other"),
        ("a", "second"),
    ]


def test_entries_are_written_together_or_not_at_all(store: Store) -> None:
    good = [
        Entry({"source": "simulation", "replica": i}, {"network": {"x": 1.0}}, [1.0], [0.1]) for i in (0, 1)
    ]
    with pytest.raises(ValueError, match="step_sizes must be finite"):
        store.add_all([*good, replace(good[0], step_sizes=[float("nan")])])
    assert store.count() == 0
    with pytest.raises(KeyError):
        store.add_all([*good, replace(good[0], spec={"replica": 2})])
    assert store.count() == 0
    assert store.add_all(good) == 2
    assert store.add_all([*good, replace(good[0], ridges=[0.2])]) == 1


def test_a_claim_is_kept_by_its_owner(store: Store) -> None:
    assert store.claim("task")
    assert store.claim("task")
    store.release("task")
    assert store.active_runs() == [os.getpid()]


def test_to_xarray_names_what_varies(store: Store) -> None:
    pytest.importorskip("xarray")
    for scale in (1, 2):
        sizes = {
            "n_samples": 100 * scale,
            "dim": 50 * scale,
            "width": 75 * scale,
            "n_step_samples": 100 * scale,
        }
        for index in range(3):
            spec = {**SPEC, "sizes": sizes, "replica": index}
            steps = [(100 * scale) ** 0.25, (100 * scale) ** 0.5]
            store.add(spec, "network", steps, [0.1, 1.0, 10.0], {"test_error": [[scale], [index]]})
    data = store.to_xarray()
    assert dict(data.sizes) == {"n_samples": 2, "replica": 3, "step_exponent": 2, "ridge": 3}
    assert data["width"].dims == ("n_samples",)
    assert data["test_error"].sel(n_samples=200, replica=2, step_exponent=0.5, ridge=1.0) == 2
    assert data.attrs["activation"] == "relu"
    with pytest.raises(ValueError, match="no rows"):
        store.to_xarray(width=1)


def test_a_dataset_that_would_not_fit_is_refused(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("xarray")
    monkeypatch.setattr(dataset, "MOST_CELLS", 3)
    store.add(SPEC, "network", [1.0, 2.0], [0.1, 0.2], {"x": 1.0})
    with pytest.raises(ValueError, match="2 x 2"):
        store.to_xarray()


def test_exports_hold_every_digit(store: Store, tmp_path: Path) -> None:
    store.add(SPEC, "network", [1.0], [0.1], {"test_error": 1 / 3})
    head, line = store.to_csv(tmp_path / "rows.csv").read_text().splitlines()
    assert float(line.split(",")[head.split(",").index("test_error")]) == 1 / 3
    parquet = pytest.importorskip("pyarrow.parquet")
    table = parquet.read_table(str(store.to_parquet(tmp_path / "rows.parquet")))
    assert table["test_error"].to_pylist() == [1 / 3]
    assert table["activation"].to_pylist() == ["relu"]


# From here on: files.


def content_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_store_is_found_again(tmp_path: Path) -> None:
    with open_store(tmp_path / "a.db") as store:
        store.add(SPEC, "network", [1.0], [0.1], {"x": 1.0})
    with open_store(tmp_path / "a.db") as store:
        assert store.values(SPEC) == {(1.0, 0.1): {"x": 1.0}}
        assert store.check() == "ok"
    assert [path.name for path in tmp_path.iterdir()] == ["a.db"]


def foreign_database(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE points (x)")
    connection.commit()
    connection.close()


@pytest.mark.parametrize("kind", ["text", "empty", "database", "newer", "older", "folder"])
def test_what_is_not_ours_is_refused_and_left_alone(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "there.db"
    message = {
        "newer": "newer firststep",
        "older": "old layout",
        "database": "another program",
        "folder": "is a folder",
    }.get(kind, "not a firststep store")
    if kind == "text":
        path.write_text("my thesis\n" * 100)
    elif kind == "empty":
        path.touch()
    elif kind == "database":
        foreign_database(path)
    elif kind == "folder":
        path.mkdir()
    else:
        open_store(path).close()
        connection = sqlite3.connect(path)
        connection.execute(f"PRAGMA user_version = {99 if kind == 'newer' else 0}")
        connection.close()
    before = None if kind == "folder" else content_of(tmp_path)
    for read_only in (False, True):
        with pytest.raises(StoreError, match=message):
            open_store(path, read_only=read_only)
    assert before is None or content_of(tmp_path) == before


def test_a_missing_store_is_not_made_by_reading(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no store"):
        open_store(tmp_path / "a.db", read_only=True)
    with pytest.raises(StoreError, match="folder"):
        open_store(tmp_path / "none" / "a.db")
    assert list(tmp_path.iterdir()) == []


def test_damage_is_noticed_and_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with open_store(path) as store:
        for index in range(300):
            store.add(replica(index), "network", [1.0], [0.1], {"x": 1.0})
    content = bytearray(path.read_bytes())
    for page in range(4096, len(content), 4096):
        content[page : page + 64] = b"\xff" * 64
    path.write_bytes(content)
    with pytest.raises(StoreError, match="damaged"):
        open_store(path)
    assert path.read_bytes() == content


def test_a_migration_keeps_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.db"
    with open_store(path) as store:
        store.add(SPEC, "network", [1.0], [0.1], {"x": 1.0})
    assert migrate(path) is None
    monkeypatch.setattr(file, "SCHEMA_VERSION", 2)
    with pytest.raises(StoreError, match="old layout 1"):
        open_store(path)
    monkeypatch.setattr(file, "MIGRATIONS", {1: "CREATE TABLE extra (x);"})
    with pytest.raises(StoreError, match="--migrate"):
        open_store(path)
    copy = migrate(path)
    assert copy is not None
    with open_store(path) as store:
        assert store.values(SPEC) == {(1.0, 0.1): {"x": 1.0}}
        assert store._select("SELECT count(*) FROM extra") == [(0,)]
    monkeypatch.setattr(file, "SCHEMA_VERSION", 1)
    with open_store(copy) as store:
        assert store.values(SPEC) == {(1.0, 0.1): {"x": 1.0}}


def test_a_migration_that_fails_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.db"
    open_store(path).close()
    monkeypatch.setattr(file, "SCHEMA_VERSION", 2)
    monkeypatch.setattr(file, "MIGRATIONS", {1: "CREATE TABLE extra (x); CREATE TABLE extra (x);"})
    with pytest.raises(StoreError, match="unchanged"):
        migrate(path)
    monkeypatch.setattr(file, "SCHEMA_VERSION", 1)
    with open_store(path) as store, pytest.raises(StoreError, match="no such table"):
        store._select("SELECT count(*) FROM extra")


def test_it_is_readable_while_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with open_store(path) as writer, open_store(path, read_only=True) as reader:
        assert reader.count() == 0
        with writer._transaction() as cursor:
            cursor.execute("INSERT INTO failures VALUES ('a', 'b', 'c', 'd')")
            assert reader.failures() == {}
        assert len(reader.failures()) == 1
        with pytest.raises(StoreError, match="cannot be written"):
            reader.fail("x", "y", "z")


VISITOR = """
import sys
from firststep.store import open_store
with open_store(sys.argv[1]) as store:
    store.add({"source": "simulation", "replica": 100}, "network", [1.0], [0.1], {"test_error": 0.5})
"""


@pytest.mark.parametrize("how", ["read", "open", "target"])
def test_a_look_at_a_store_does_not_give_up_the_locks_of_this_process(tmp_path: Path, how: str) -> None:
    """Else the next process takes itself for the last one, and removes the log under the one that writes."""
    path = tmp_path / "a.db"
    with open_store(path) as writer:
        writer.add(replica(0), "network", [1.0], [0.1], {"test_error": 0.5})
        if how == "target":
            with pytest.raises(ValueError, match="is a database"):
                check_target(path)
        else:
            with open_store(path, read_only=how == "read") as other:
                assert other.count() == 1
        subprocess.run([sys.executable, "-c", VISITOR, str(path)], check=True, timeout=60)
        assert Path(f"{path}-wal").exists()
        writer.add(replica(1), "network", [1.0], [0.1], {"test_error": 0.5})
    with open_store(path, read_only=True) as reader:
        assert reader.count() == 3


@pytest.fixture
def written_elsewhere(tmp_path: Path) -> Iterator[tuple[Path, "subprocess.Popen[str]"]]:
    """A store that another process has open, which writes a point for every line that it is sent."""
    path = tmp_path / "a.db"
    code = """
import sys
from firststep.store import open_store
with open_store(sys.argv[1]) as store:
    for number, line in enumerate(sys.stdin):
        if line == "restart\\n":
            store._connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()
        store.add({"source": "simulation", "replica": number}, "network", [1.0], [0.1], {"test_error": 0.5})
        print(number, flush=True)
"""
    process = child(code, str(path), stdin=subprocess.PIPE)
    tell(process)
    yield path, process
    process.communicate(timeout=60)
    assert process.returncode == 0


def tell(process: "subprocess.Popen[str]", word: str = "write") -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    print(word, file=process.stdin, flush=True)
    process.stdout.readline()


@pytest.mark.skipif(os.name != "posix", reason="permissions work otherwise elsewhere")
def test_what_others_may_write_is_read_as_a_copy(
    written_elsewhere: tuple[Path, "subprocess.Popen[str]"], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, process = written_elsewhere
    opened, connect = [], file.connect
    monkeypatch.setattr(file, "connect", lambda *a, **k: opened.append(a[0]) or connect(*a, **k))
    monkeypatch.setattr(file, "RENEWED_SECONDS", 0.0)
    path.chmod(0o644)
    for user, mode, copies in ((1, 0o644, True), (1, 0o664, True), (0, 0o664, False), (0, 0o644, False)):
        monkeypatch.setattr(os, "geteuid", lambda user=user: path.stat().st_uid + user)
        # The superuser may read everything as it is: only here it is somebody like all others.
        path.chmod(mode)
        opened.clear()
        with open_store(path, read_only=True) as reader:
            before = reader.count()
            tell(process)
            assert reader.count() == before + 1
        assert any("/copy.db" in name for name in opened) == copies
        assert any(path.as_uri() in name for name in opened) != copies


def test_a_copy_is_of_one_moment(
    written_elsewhere: tuple[Path, "subprocess.Popen[str]"], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path, process = written_elsewhere
    copyfile = shutil.copyfile

    def interrupted(source: str, target: str) -> None:
        if str(source).endswith("-wal"):
            # The file was copied, and now its log begins anew.
            tell(process, "restart")
        copyfile(source, target)

    assert file._copied(path, tmp_path) is not None
    monkeypatch.setattr(shutil, "copyfile", interrupted)
    assert file._copied(path, tmp_path) is None


STRANGER = """
import os, sys, time
from pathlib import Path
from firststep.store import open_store
path = Path(sys.argv[1])
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
print("ready", flush=True)
counts = []
while not (path.parent / "end").exists():
    with open_store(path, read_only=True) as store:
        counts.append(store.count())
assert counts == sorted(counts)
print(len(counts), counts[-1])
"""


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="needs two users")
def test_another_user_who_reads_does_not_lock_the_owner_out() -> None:
    """In a folder that both may write to, with a store that is opened and closed all the time."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        folder.chmod(0o777)
        path = folder / "a.db"
        open_store(path).close()
        path.chmod(0o644)
        stranger = child(STRANGER, str(path))
        try:
            assert stranger.stdout is not None
            assert stranger.stdout.readline() == "ready\n"
            for number in range(300):
                with open_store(path) as store:
                    store.add(replica(number), "network", [1.0], [0.1], {"x": 1.0})
                assert {entry.stat().st_uid for entry in folder.iterdir()} == {0}
        finally:
            (folder / "end").touch()
            output, errors = stranger.communicate(timeout=60)
        assert stranger.returncode == 0, errors
        assert int(output.split()[0]) > 20
        assert sorted(entry.name for entry in folder.iterdir()) == ["a.db", "end"]


def child(code: str, *arguments: str, **options: Any) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


WRITER = """
import sys
from firststep.store import open_store
path, start, stop = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
store = open_store(path)
for i in range(start, stop):
    # Two parts in one transaction: a reader must see both or none.
    values = {"network": {"x": float(i)}, "weights": {"y": float(i)}}
    store.add_parts({"source": "simulation", "replica": i}, values, [1.0, 2.0, 3.0], [0.1, 0.2])
    print(i, flush=True)
"""


def acknowledged_after_kills(path: Path, kills: int, seed: int, pause: float) -> set[int]:
    """Replicas that writers reported as written before each was killed at a random moment."""
    moments = random.Random(seed)
    known: set[int] = set()
    for attempt in range(kills):
        process = child(WRITER, str(path), str(10_000 * attempt), str(10_000 * (attempt + 1)))
        assert process.stdout is not None
        first = process.stdout.readline()
        time.sleep(moments.random() * pause)
        process.kill()
        rest = process.stdout.read()
        process.communicate()
        # The last line may be cut off; a number that is not followed by a newline was not acknowledged.
        known |= {int(line) for line in (first + rest).split("\n")[:-1]}
    return known


def check_everything_is_there(path: Path, known: set[int]) -> None:
    with open_store(path) as store:
        assert store.check() == "ok"
        found: dict[int, int] = {}
        for row in store.rows():
            assert row["x"] == row["y"] == row["replica"], "a half-written transaction"
            found[row["replica"]] = found.get(row["replica"], 0) + 1
    assert set(found.values()) <= {6}, "a half-written transaction"
    assert known <= set(found), "an acknowledged write is lost"


@pytest.mark.parametrize("kills", [4, pytest.param(60, marks=pytest.mark.slow)])
def test_kill_9_loses_nothing_that_was_acknowledged(tmp_path: Path, kills: int) -> None:
    known = acknowledged_after_kills(tmp_path / "a.db", kills, seed=1, pause=0.3)
    assert len(known) > kills
    check_everything_is_there(tmp_path / "a.db", known)


def test_the_check_for_lost_writes_can_fail(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    open_store(path).close()
    with pytest.raises(AssertionError, match="lost"):
        check_everything_is_there(path, {1})
    with open_store(path) as store:
        store.add({"source": "simulation", "replica": 1}, "network", [1.0], [0.1], {"x": 1.0, "y": 1.0})
    with pytest.raises(AssertionError, match="half-written"):
        check_everything_is_there(path, {1})


def test_a_store_killed_while_it_is_made_is_no_store(tmp_path: Path) -> None:
    """Whatever the moment, there is a whole store or none."""
    code = (
        "import sys; from firststep.store import open_store; print('x', flush=True); open_store(sys.argv[1])"
    )
    moments = random.Random(2)
    for attempt in range(3):
        path = tmp_path / f"{attempt}.db"
        process = child(code, str(path))
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(moments.random() * 0.03)
        process.kill()
        process.communicate()
        open_store(path).close()


def test_two_writers_at_once_neither_corrupt_nor_duplicate(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    writers = [child(WRITER, str(path), "0", "60") for _ in range(2)] + [
        child(WRITER, str(path), "60", "100")
    ]
    for writer in writers:
        _, errors = writer.communicate(timeout=60)
        assert writer.returncode == 0, errors
    check_everything_is_there(path, set(range(100)))
    with open_store(path) as store:
        assert store.count() == 100 * 6 * 2


def test_a_claim_of_a_live_process_is_respected_and_of_a_dead_one_not(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    code = (
        "import sys, time; from firststep.store import open_store; s = open_store(sys.argv[1]);"
        "print(s.claim('task'), flush=True); time.sleep(60)"
    )
    other = child(code, str(path))
    assert other.stdout is not None
    assert other.stdout.readline() == "True\n"
    with open_store(path) as store:
        assert not store.claim("task")
        assert store.claim_all(["task", "another"]) == {"another"}
        assert store.active_runs() == [other.pid, os.getpid()]
        other.send_signal(signal.SIGKILL)
        other.communicate()
        assert store.claim("task")
        assert store.active_runs() == [os.getpid()]


FILLER = """
import resource, sys
from firststep.store import StoreError, open_store
store = open_store(sys.argv[1])
if len(sys.argv) > 2:
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), int(sys.argv[2])))
try:
    for i in range(100000):
        spec = {"source": "simulation", "replica": i}
        store.add(spec, "network", [1.0, 2.0], [0.1, 0.2], {"x": float(i), "y": float(i)})
        print(i, flush=True)
except StoreError as error:
    print(error, file=sys.stderr)
    sys.exit(3)
"""


def check_full(path: Path, *arguments: str) -> None:
    process = child(FILLER, str(path), *arguments)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 3, errors
    assert "full or failing" in errors
    assert "make space" in errors
    known = {int(line) for line in output.split("\n")[:-1]}
    assert known
    with open_store(path, read_only=True) as store:
        assert {row["replica"] for row in store.rows()} >= known
        assert store.check() == "ok"


def test_a_file_that_may_not_grow_gives_a_clear_error(tmp_path: Path) -> None:
    check_full(tmp_path / "a.db", "300000")
    # With room again, the same file goes on.
    with open_store(tmp_path / "a.db") as store:
        before = store.count()
        store.add(SPEC, "network", [1.0], [0.1], {"x": 1.0})
        assert store.count() == before + 1


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A disk of its own in memory; skips the test where none can be mounted."""
    disk = folder / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(disk)]
    if not shutil.which("mount") or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("cannot mount here")
    try:
        yield disk
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="needs to mount a small disk")
def test_a_full_disk_gives_a_clear_error(tmp_path: Path) -> None:
    with small_disk(tmp_path, "400k") as disk:
        check_full(disk / "a.db")


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="needs to mount a small disk")
def test_a_read_only_disk_is_read_and_not_written(tmp_path: Path) -> None:
    with small_disk(tmp_path, "4m") as disk:
        with open_store(disk / "a.db") as store:
            store.add(SPEC, "network", [1.0], [0.1], {"x": 1.0})
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        for name in ("a.db", "new.db"):
            with pytest.raises(StoreError, match=f"the store {disk / name} cannot be written: make the file"):
                open_store(disk / name)
        with open_store(disk / "a.db", read_only=True) as store:
            assert store.count() == 1
        assert [path.name for path in disk.iterdir()] == ["a.db"]


READER = """
import json, os, sys
from firststep.store import StoreError, open_store
if os.geteuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
answers = []
for read_only in (False, True):
    try:
        with open_store(sys.argv[1], read_only=read_only) as store:
            answers.append(store.count())
    except StoreError as error:
        answers.append(str(error))
print(json.dumps(answers))
"""


@pytest.mark.skipif(os.name != "posix", reason="permissions work otherwise elsewhere")
def test_a_read_only_store_is_read_and_not_written(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    path = folder / "a.db"
    with open_store(path) as store:
        store.add(SPEC, "network", [1.0], [0.1], {"x": 1.0})
    before = content_of(folder)
    path.chmod(0o444)
    folder.chmod(0o555)
    for parent in [tmp_path, *tmp_path.parents]:
        if os.geteuid() == 0 and not parent.stat().st_mode & 0o005 and parent != Path("/"):
            parent.chmod(parent.stat().st_mode | 0o055)
    try:
        process = child(READER, str(path))
        output, errors = process.communicate(timeout=30)
        assert process.returncode == 0, errors
    finally:
        folder.chmod(0o755)
    refused, count = json.loads(output)
    assert "cannot be written" in refused
    assert count == 1
    assert content_of(folder) == before
