"""What is written: whole or not at all, never over what it was made from, never outside its folder."""

import json
import os
import sqlite3
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from firststep.cli.app import main
from firststep.compute.files import check_target, read_text, remove_old_drafts, write_text, written
from firststep.store import StoreError, open_store

pytest.importorskip("pydantic")

from small_experiment import TEXT

from firststep.experiment import parse, run


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "store.db"
    with open_store(path) as opened:
        experiment = parse(TEXT.replace("replicas = 3", "replicas = 2"))
        run(experiment, opened, name="small", jobs=1, document=f'{{"text": {json.dumps(TEXT)}}}')
    return path


def call(*arguments: Any) -> tuple[int, str]:
    """Exit code and standard error of the command line."""
    found = CliRunner().invoke(main, [str(argument) for argument in arguments])
    return found.exit_code, found.stderr


def test_a_draft_takes_the_place_only_when_all_went_well(tmp_path: Path) -> None:
    target = tmp_path / "page.html"
    write_text(target, "old")
    target.chmod(0o640)
    with pytest.raises(UnicodeEncodeError):
        write_text(target, "half \ud800")
    assert target.read_text() == "old"
    write_text(target, "new")
    assert target.read_text() == "new"
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    assert [file.name for file in tmp_path.iterdir()] == ["page.html"]


def test_a_kill_in_the_middle_leaves_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "page.html"
    target.write_text("old")
    script = (
        "import os, signal\nfrom firststep.compute.files import written\n"
        f"with written({str(target)!r}) as draft:\n"
        "    draft.write_text('half')\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=False)
    assert target.read_text() == "old"
    (left,) = [file for file in tmp_path.iterdir() if file != target]
    remove_old_drafts(target)
    assert left.exists(), "it may still be somebody's"
    os.utime(left, (time.time() - 7200,) * 2)
    remove_old_drafts(target)
    assert not left.exists()


@pytest.mark.parametrize("name", ["rows.csv", "rows.parquet", "rows.nc"])
def test_a_full_disk_leaves_the_old_file_and_is_told(name: str, store: Path, tmp_path: Path) -> None:
    pytest.importorskip("h5netcdf" if name == "rows.nc" else "pyarrow")
    target = tmp_path / name
    target.write_text("old")
    script = (
        "import resource\nfrom firststep.cli.app import main\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1500, 1500))\n"
        f"main(['export', {str(target)!r}, '--store', {str(store)!r}])\n"
    )
    found = subprocess.run([sys.executable, "-B", "-c", script], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stderr) == (1, f"Error: {target} cannot be written: File too large\n")
    assert target.read_text() == "old"
    assert not list(tmp_path.glob(".rows*"))


def test_a_link_stays_a_link_and_a_pipe_a_pipe(tmp_path: Path) -> None:
    (tmp_path / "real.txt").write_text("old")
    (tmp_path / "link.txt").symlink_to("real.txt")
    write_text(tmp_path / "link.txt", "new")
    assert (tmp_path / "link.txt").is_symlink()
    assert (tmp_path / "real.txt").read_text() == "new"
    with written("/dev/null") as place:
        assert place == Path("/dev/null")
    assert Path("/dev/null").is_char_device()


def test_targets_that_are_refused(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    table.write_text("x")
    (tmp_path / "same.csv").hardlink_to(table)
    (tmp_path / "my.toml").write_text("x")
    sqlite3.connect(tmp_path / "other.sqlite").execute("CREATE TABLE t (x)").connection.close()
    for target, words in {
        "same.csv": "is read from",
        "my.toml": "is an experiment file",
        "other.sqlite": "is a database",
        "no/such/file.csv": "does not exist: make it first",
        ".": "is a folder",
    }.items():
        with pytest.raises(ValueError, match=words):
            check_target(tmp_path / target, [table])


def test_no_command_overwrites_what_it_reads(store: Path, tmp_path: Path) -> None:
    before = store.read_bytes()
    (tmp_path / "my.toml").write_text(TEXT)
    (tmp_path / "also.html").symlink_to(store)
    for arguments in (
        ["export", store, "--format", "csv", "--store", store],
        ["export", store, "--format", "parquet", "--store", store],
        ["export", store, "--format", "netcdf", "--store", store],
        ["export", tmp_path / "my.toml", "--format", "csv", "--store", store],
        ["report", "--store", store, "--output", store],
        ["report", "--store", store, "--output", tmp_path / "also.html"],
        ["report", "--store", store, "--output", tmp_path / "my.toml"],
        ["report", "--store", store, "--format", "markdown", "--output", tmp_path / "my.toml"],
    ):
        code, said = call(*arguments)
        assert code == 2, arguments
        assert "overwritten" in said or "must end in" in said
    assert store.read_bytes() == before
    assert (tmp_path / "my.toml").read_text() == TEXT
    # Its neighbour is written.
    assert call("export", tmp_path / "rows.csv", "--store", store)[0] == 0
    assert (tmp_path / "rows.csv").read_text().startswith("source,")


def test_diagnose_does_not_overwrite_its_table(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    table = tmp_path / "d.csv"
    table.write_text("x,y\n" + "\n".join(f"{i},{i % 7}" for i in range(60)))
    before = table.read_text()
    code, said = call("diagnose", table, "--target", "y", "--html", table)
    assert (code, "would be overwritten" in said) == (2, True)
    assert table.read_text() == before


def test_a_text_that_is_not_utf8_is_named_and_a_mark_is_taken_off(tmp_path: Path) -> None:
    bad = tmp_path / "bad.toml"
    bad.write_bytes('title = "Größe"'.encode("latin-1"))
    with pytest.raises(ValueError, match=r"the file .*bad\.toml is not UTF-8 text \(byte 11\)"):
        read_text(bad)
    marked = tmp_path / "marked.toml"
    marked.write_bytes(b"\xef\xbb\xbf" + TEXT.encode())
    assert call("run", marked, "--dry-run", "--store", tmp_path / "s.db")[0] == 0
    code, said = call("run", bad, "--store", tmp_path / "s.db")
    assert (code, "bad.toml is not UTF-8" in said) == (2, True)


def test_a_store_of_others_chooses_no_folder(store: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    connection = sqlite3.connect(store)
    connection.execute("UPDATE experiments SET name = '../../outside/x'")
    connection.commit()
    connection.close()
    inside = tmp_path / "deep" / "docs"
    inside.mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    code, said = call("report", "--store", store, "--format", "markdown", "--output", inside / "gallery.md")
    assert code == 0, said
    assert not list((tmp_path / "outside").iterdir())
    assert all(file.is_relative_to(inside) for file in tmp_path.rglob("*.svg"))


# Stores at odd places.


def test_odd_places_for_a_store(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.db")
    for path, words in {":memory:": "is no file name", tmp_path / "pipe.db": "is a pipe or device"}.items():
        for read_only in (False, True):
            with pytest.raises(StoreError, match=words):
                open_store(path, read_only=read_only)
    (tmp_path / "link.db").symlink_to(tmp_path / "real.db")
    with open_store(tmp_path / "link.db") as made:
        made.add({"source": "simulation"}, "network", [1.0], [0.1], {"test_error": 0.5})
    assert (tmp_path / "link.db").is_symlink()
    with open_store(tmp_path / "real.db", read_only=True) as found:
        assert found.count() == 1


def test_old_drafts_of_a_store_are_removed(tmp_path: Path) -> None:
    old, new = tmp_path / ".store.db.0123abcd-wal", tmp_path / ".store.db.0123abce"
    for draft in (old, new):
        draft.touch()
    os.utime(old, (time.time() - 7200,) * 2)
    open_store(tmp_path / "store.db").close()
    assert not old.exists()
    assert new.exists()


def test_reading_leaves_nothing(store: Path) -> None:
    before = sorted(file.name for file in store.parent.iterdir())
    with open_store(store, read_only=True) as reader:
        count = reader.count()
        assert sorted(file.name for file in store.parent.iterdir()) == before
        # A run that begins while it is read is seen.
        with open_store(store) as writer:
            writer.add({"source": "simulation"}, "network", [1.0], [0.1], {"test_error": 0.5})
            assert reader.count() == count + 1
        assert reader.count() == count + 1
    assert call("status", "--store", store)[0] == 0


def test_a_log_without_its_index_is_read_and_left(store: Path, tmp_path: Path) -> None:
    """As after a power cut, or in a copy of a running store."""
    with open_store(store) as writer:
        writer.add({"source": "simulation"}, "network", [1.0], [0.1], {"test_error": 0.5})
        folder = tmp_path / "copy"
        folder.mkdir()
        for end in ("", "-wal"):
            (folder / f"store.db{end}").write_bytes(Path(f"{store}{end}").read_bytes())
        count = writer.count()
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    with open_store(folder / "store.db", read_only=True) as reader:
        assert reader.count() == count
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


@pytest.mark.parametrize("how", ["deleted", "moved", "replaced", "cut short", "folder deleted"])
def test_a_store_that_is_taken_away_stops_the_run(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.chdir(home)
    folder = tmp_path / "results"
    folder.mkdir()
    # As a user names it.
    path = Path(os.path.relpath(folder / "store.db"))
    experiment = parse(TEXT)
    done = 0

    def act(state: Any) -> None:
        nonlocal done
        if state.done and not done:
            done = state.done
            if how == "deleted":
                path.unlink()
            elif how == "moved":
                path.rename(tmp_path / "elsewhere.db")
            elif how == "replaced":
                (tmp_path / "other.db").replace(path)
            elif how == "cut short":
                os.truncate(path, 4096)
            else:
                for file in folder.iterdir():
                    file.unlink()
                folder.rmdir()

    open_store(tmp_path / "other.db").close()
    store = open_store(path)
    with pytest.raises(StoreError, match=r"while it was in use") as stopped:
        run(experiment, store, jobs=1, progress=act)
    store.close()
    said = str(stopped.value)
    # What lies there next is not given the log of what is gone.
    assert not [file.name for file in folder.glob("store.db-*")]
    if how == "replaced":
        with open_store(path) as other:
            assert other.count() == 0
    if how == "cut short":
        assert "was cut short" in said
    kept = tmp_path / "elsewhere.db"
    if how == "moved":
        assert f"it is now {kept}" in said
    else:
        (kept,) = [*folder.glob("store.db.kept-*"), *home.glob("store.db.kept-*")]
        assert kept.name in said
    with open_store(kept, read_only=True) as found:
        assert len(found.rows(source="simulation")) >= done


def test_a_deleted_store_does_not_come_back(tmp_path: Path) -> None:
    """Not from the log that a killed run left beside it."""
    path = tmp_path / "store.db"
    code = """
import os, sys
from firststep.store import open_store
store = open_store(sys.argv[1])
store.add({"source": "simulation"}, "network", [1.0], [0.1], {"test_error": 0.5})
os._exit(0)
"""
    subprocess.run([sys.executable, "-c", code, str(path)], check=True)
    assert Path(f"{path}-wal").exists()
    path.unlink()
    with open_store(path) as store:
        assert store.count() == 0
