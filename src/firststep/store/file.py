"""The store's file: made whole or not at all, recognised before it is touched, and refused with a reason."""

import logging
import os
import secrets
import shutil
import sqlite3
import struct
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from firststep.compute.files import hold, remove_old_drafts, unheld, written
from firststep.store import runs

# Written into the file's header, so that any other SQLite file is recognised as foreign ("1STP").
APPLICATION_ID = int.from_bytes(b"1STP")
SCHEMA_VERSION = 1

SCHEMA = """
CREATE TABLE subjects (
    id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, source TEXT NOT NULL, spec TEXT NOT NULL);
CREATE TABLE provenance (id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, content TEXT NOT NULL);
CREATE TABLE points (
    subject INTEGER NOT NULL REFERENCES subjects, part TEXT NOT NULL,
    step_size REAL NOT NULL, ridge REAL NOT NULL, content TEXT NOT NULL,
    provenance INTEGER NOT NULL REFERENCES provenance, seconds REAL, written TEXT NOT NULL,
    PRIMARY KEY (subject, part, step_size, ridge)) WITHOUT ROWID;
CREATE TABLE arrays (
    subject INTEGER NOT NULL REFERENCES subjects, name TEXT NOT NULL, step_size REAL NOT NULL,
    data BLOB NOT NULL, provenance INTEGER NOT NULL REFERENCES provenance, written TEXT NOT NULL,
    PRIMARY KEY (subject, name, step_size));
CREATE TABLE failures (
    task TEXT PRIMARY KEY, label TEXT NOT NULL, message TEXT NOT NULL, written TEXT NOT NULL);
CREATE TABLE runs (token TEXT PRIMARY KEY, host TEXT NOT NULL, pid INTEGER NOT NULL, birth TEXT NOT NULL);
CREATE TABLE claims (task TEXT PRIMARY KEY, token TEXT NOT NULL REFERENCES runs ON DELETE CASCADE);
CREATE TABLE experiments (
    key TEXT PRIMARY KEY, name TEXT NOT NULL, document TEXT NOT NULL, written TEXT NOT NULL);
"""

# Statements that bring a file of the given version to the next one.
MIGRATIONS: dict[int, str] = {}

# Longer than any other run keeps the file: a transaction here takes milliseconds.
BUSY_SECONDS = 60.0
# After which the user is told for whom a run waits.
PATIENT_SECONDS = 2.0
# A copy of a store that others write to is renewed, when it is read, after so long; so often one is tried to make.
RENEWED_SECONDS = 1.0
COPIES = 50

logger = logging.getLogger("firststep")


class StoreError(RuntimeError):
    """The store cannot be used; says why and what to do. What was acknowledged before is not touched."""


def migrate(path: str | os.PathLike[str]) -> Path | None:
    """Bring an older store to this version, keeping a copy; the copy's path, or None if nothing was to do.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> from firststep import open_store
    >>> with TemporaryDirectory() as folder:
    ...     open_store(Path(folder) / "a.db").close()
    ...     print(migrate(Path(folder) / "a.db"))
    None
    """
    file = Path(path)
    version = _version(file)
    if version == SCHEMA_VERSION:
        return None
    steps = [MIGRATIONS.get(step) for step in range(version, SCHEMA_VERSION)]
    if version > SCHEMA_VERSION or None in steps:
        raise StoreError(_version_message(file, version))
    copy = file.with_name(f"{file.name}.version{version}")
    if copy.exists():
        raise StoreError(f"{copy} is in the way of the copy that is made before migrating: move it")
    source = sqlite3.connect(file)
    try:
        with written(copy) as draft:
            copy_database(source, draft)
    finally:
        source.close()
    connection = connect(str(file))
    try:
        statements = "\n".join(cast(list[str], steps))
        connection.executescript(
            f"BEGIN IMMEDIATE;\n{statements}\nPRAGMA user_version={SCHEMA_VERSION};\nCOMMIT;"
        )
    except sqlite3.Error as error:
        raise StoreError(f"{file} could not be migrated ({error}); it is unchanged, as is {copy}") from error
    finally:
        connection.close()
    return copy


def copy_database(source: sqlite3.Connection, place: Path) -> None:
    """Copy all that a connection sees into a file."""
    target = sqlite3.connect(place)
    try:
        source.backup(target)
    finally:
        target.close()


def ordinary(path: str | os.PathLike[str]) -> Path:
    """The file that a path names, links followed; refuses what cannot be a store."""
    name = os.fspath(path)
    if name == ":memory:" or name.startswith("file:"):
        raise StoreError(
            f"{name!r} is no file name: give a path (in Python, None keeps everything in memory)"
        )
    file = Path(name)
    if file.is_symlink():
        # SQLite names its log after the file itself.
        file = Path(os.path.realpath(file))
    if file.exists() and not file.is_file():
        kind = "a folder" if file.is_dir() else "a pipe or device"
        raise StoreError(f"{path} is {kind}, not a file; it was left as it is: choose another --store")
    return file


@dataclass
class Watch:
    """Which file a connection writes to, so that one that was taken away under it is noticed."""

    file: Path
    device: int
    inode: int
    size: int
    log: int | None

    @classmethod
    def over(cls, file: Path) -> "Watch":
        """Remember the file and its log as they are now."""
        now = file.stat()
        return cls(file, now.st_dev, now.st_ino, now.st_size, _log_inode(file))

    def loss(self) -> str:
        """What became of the file, or nothing if it is where it was."""
        try:
            now = self.file.stat()
        except FileNotFoundError:
            return "was deleted or moved"
        except OSError as error:
            return f"cannot be reached any more ({error.strerror})"
        if (now.st_dev, now.st_ino) != (self.device, self.inode):
            return "was replaced by another file"
        # SQLite never shortens it: nothing here asks it to.
        if now.st_size < self.size:
            return "was cut short"
        self.size = now.st_size
        return ""

    def new_place(self) -> Path | None:
        """Where the file was moved to, if that can be told."""
        with suppress(OSError):
            for entry in list(Path("/proc/self/fd").iterdir()):
                with suppress(OSError):
                    found = entry.stat()
                    if (found.st_dev, found.st_ino) == (self.device, self.inode) and found.st_nlink:
                        return entry.readlink()
        return None


def keep(connection: sqlite3.Connection, watch: Watch) -> str:
    """Save what a connection to a lost file still holds, and say in a sentence where it is."""
    saved = _saved(connection, watch)
    if not saved:
        return "what it held could not be saved: restore a copy, and run again to go on"
    if watch.log is not None:
        _remove_log(watch.file, watch.log)
    return saved


def _log_inode(file: Path) -> int | None:
    try:
        return Path(f"{file}-wal").stat().st_ino
    except OSError:
        return None


def _remove_log(file: Path, inode: int) -> None:
    """Take away the log of a store that is gone: SQLite would add it to whatever lies there next."""
    with suppress(OSError):
        if _log_inode(file) == inode:
            Path(f"{file}-wal").unlink()
            Path(f"{file}-shm").unlink()


def _saved(connection: sqlite3.Connection, watch: Watch) -> str:
    """Where the content of a lost file now is, in a sentence; nothing if it could not be saved."""
    moved = watch.new_place()
    if moved is not None and moved != watch.file.resolve():
        with suppress(sqlite3.Error):
            # Its log still lies at the old place.
            (busy, *_) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            if not busy:
                return f"it is now {moved}, and everything acknowledged is in it"
    for folder in (watch.file.parent, Path.cwd()):
        copy = folder / f"{watch.file.name}.kept-{secrets.token_hex(2)}"
        try:
            copy_database(connection, copy)
            check = sqlite3.connect(copy)
            try:
                (answer,) = check.execute("PRAGMA quick_check(1)").fetchone()
            finally:
                check.close()
            if answer == "ok":
                return f"everything acknowledged is kept in {copy}: move it back, and run again to go on"
        except (OSError, sqlite3.Error):
            pass
        with suppress(OSError):
            copy.unlink(missing_ok=True)
    return ""


class _Holding(sqlite3.Connection):
    """A connection that locks a file, which nothing else in this process opens in the meantime."""

    release: Callable[[], None] | None = None

    def close(self) -> None:
        """Close, and let the file be opened otherwise."""
        super().close()
        if self.release is not None:
            self.release()
            self.release = None


def connect(place: str, *, uri: bool = False, holds: Path | None = None) -> sqlite3.Connection:
    """A connection in which every transaction is begun by hand; `holds` is the file that it keeps locks on."""
    connection = sqlite3.connect(
        place,
        timeout=BUSY_SECONDS,
        isolation_level=None,
        check_same_thread=False,
        factory=_Holding,
        uri=uri,
    )
    if holds is not None:
        connection.release = hold(holds)
    connection.execute("PRAGMA foreign_keys = ON")
    return connection


def begin(connection: sqlite3.Connection) -> None:
    """Begin to write; says for whom it waits, and gives up after `BUSY_SECONDS`."""
    deadline = time.monotonic() + BUSY_SECONDS
    connection.execute(f"PRAGMA busy_timeout = {1000 * PATIENT_SECONDS:.0f}")
    told = False
    while True:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            busy = "locked" in str(error) or "busy" in str(error)
            if not busy:
                raise
            who = runs.others(connection)
            if time.monotonic() > deadline:
                raise StoreError(
                    f"the store was locked by {who} for {BUSY_SECONDS:.0f} seconds: try again later"
                ) from error
            if not told:
                logger.warning("waiting for %s, which is writing to the store", who)
                told = True
        else:
            return


def create(file: Path) -> None:
    """Make an empty store under another name and move it into place whole, so that none is ever half-made."""
    if not file.parent.is_dir():
        raise StoreError(f"the folder {file.parent} of the store does not exist: make it first")
    remove_old_drafts(file)
    log = _log_inode(file)
    if log is not None and not file.exists():
        # Of a store whose run was killed and which was then deleted without it.
        _remove_log(file, log)
    draft = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    try:
        connection = connect(str(draft))
        try:
            connection.executescript(
                f"PRAGMA application_id={APPLICATION_ID}; PRAGMA user_version={SCHEMA_VERSION};"
                f"BEGIN; {SCHEMA} COMMIT;"
            )
            connection.execute("PRAGMA journal_mode=WAL").fetchall()
        finally:
            connection.close()
        with draft.open("rb") as written:
            os.fsync(written.fileno())
        try:
            # Fails when another run was faster; then its file is used.
            os.link(draft, file)
        except FileExistsError:
            pass
        except OSError:
            if not file.exists():
                draft.rename(file)
    except (OSError, sqlite3.Error) as error:
        raise StoreError(explained(error, file)) from error
    finally:
        for name in (draft, Path(f"{draft}-wal"), Path(f"{draft}-shm"), Path(f"{draft}-journal")):
            # A read-only disk refuses even to take away what is not there, and has been complained about.
            with suppress(OSError):
                name.unlink(missing_ok=True)


def _version(file: Path) -> int:
    """Schema version from the header, read without SQLite so that a foreign file is not even locked."""
    try:
        with unheld(file) as free:
            if not free:
                # Looked at when it was opened.
                return SCHEMA_VERSION
            with file.open("rb") as content:
                header = content.read(100)
    except FileNotFoundError:
        raise StoreError(f"there is no store {file}: firststep run or reproduce makes one") from None
    except OSError as error:
        raise StoreError(f"the store {file} cannot be read: {error.strerror}") from error
    if len(header) < 100 or header[:16] != b"SQLite format 3\0":
        raise StoreError(f"{file} is not a firststep store; it was left as it is: choose another --store")
    version, application = struct.unpack(">i4xi", header[60:72])
    if application != APPLICATION_ID:
        raise StoreError(
            f"{file} is a database of another program; it was left as it is: choose another --store"
        )
    if version != SCHEMA_VERSION and _log(file):
        # A migration that was not yet copied from the log into the file itself.
        with tempfile.TemporaryDirectory(prefix="firststep-") as folder:
            connection = connect(str(_copied(file, Path(folder)) or file))
            try:
                (version,) = connection.execute("PRAGMA user_version").fetchone()
            finally:
                connection.close()
    return cast(int, version)


def check_header(file: Path) -> None:
    """Refuse what is not a store of this version."""
    version = _version(file)
    if version != SCHEMA_VERSION:
        raise StoreError(_version_message(file, version))


def _version_message(file: Path, version: int) -> str:
    if version > SCHEMA_VERSION:
        return (
            f"{file} was made by a newer firststep (layout {version}, this one knows {SCHEMA_VERSION}); it "
            "was left as it is: upgrade firststep, or choose another --store"
        )
    remedy = (
        "firststep status --migrate converts it, keeping a copy" if version in MIGRATIONS else "use another"
    )
    return f"{file} has the old layout {version}, now {SCHEMA_VERSION}; it was left as it is: {remedy}"


def connect_for_writing(file: Path) -> sqlite3.Connection:
    """Open a store of this version, after a check that it is whole and may be written."""
    try:
        connection = connect(str(file), holds=file)
        try:
            connection.execute("PRAGMA journal_mode=WAL").fetchall()
            # A commit is on the disk when it returns: after a power cut as well as after kill -9.
            connection.execute("PRAGMA synchronous=FULL")
            begin(connection)
            connection.execute("ROLLBACK")
            _check_integrity(connection, file)
        except BaseException:
            connection.close()
            raise
    except sqlite3.Error as error:
        raise StoreError(explained(error, file)) from error
    return connection


class Reading:
    """A connection for reading that leaves nothing behind: no file of SQLite's own that would lock others out.

    Without a log the file alone is complete, and is opened as one that does not change; when it does change, it
    is opened anew. With a log SQLite needs the index that belongs to it, and makes both when the writer has just taken
    them away; where such files would lock out somebody else, or may not be used, a copy is read.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self._folder: str | None = None
        self._seen: tuple[int, ...] | None = None
        self._copied_at: float | None = None
        self.connection = self._open()

    def _state(self) -> tuple[int, ...]:
        file = self.file.stat()
        try:
            size = Path(f"{self.file}-wal").stat().st_size
        except FileNotFoundError:
            size = 0
        return file.st_dev, file.st_ino, file.st_size, file.st_mtime_ns, size, _log(self.file)

    def changed(self) -> bool:
        """Whether the file is no longer the one that was opened, which is then opened anew."""
        return self._seen is not None and self._copied_at is None and self._renewed()

    def renew(self) -> None:
        """Before something is read: make a copy anew that others have written past."""
        if self._copied_at is not None and time.monotonic() > self._copied_at + RENEWED_SECONDS:
            self._renewed()

    def _renewed(self) -> bool:
        try:
            if self._state() == self._seen:
                return False
            self.connection.close()
            self.connection = self._open()
        except OSError as error:
            raise StoreError(f"the store {self.file} cannot be read any more: {error.strerror}") from error
        return True

    def _open(self) -> sqlite3.Connection:
        self._copied_at = None
        try:
            for _ in range(COPIES):
                found = self._alone() or self._beside_its_writer() or self._copy()
                if found is not None:
                    return found
                time.sleep(0.01)
        except sqlite3.Error as error:
            raise StoreError(explained(error, self.file)) from error
        except OSError as error:
            raise StoreError(f"the store {self.file} cannot be read: {error.strerror}") from error
        raise StoreError(f"the store {self.file} is written to faster than it can be read: try again later")

    def _alone(self) -> sqlite3.Connection | None:
        """The file by itself, where nobody writes to it."""
        self._seen = self._state()
        if self._seen[-1]:
            return None
        try:
            return self._tried(f"{self.file.resolve().as_uri()}?immutable=1")
        except (sqlite3.Error, StoreError):
            if self._state() == self._seen:
                raise
            # Damaged only in the eyes of one who looks while it is written.
            return None

    def _beside_its_writer(self) -> sqlite3.Connection | None:
        """The file and its log as they change, where the files that SQLite may make lock nobody out.

        It gives them the file's permissions and this user's name, or the owner's if this is the superuser.
        """
        with unheld(self.file) as free:
            pass
        found = self.file.stat()
        me = os.geteuid() if hasattr(os, "geteuid") else 0
        mine = me == 0 or (me == found.st_uid and not found.st_mode & 0o022)
        if free and not (mine and Path(f"{self.file}-shm").exists()):
            return None
        self._seen = None
        try:
            return self._tried(f"{self.file.resolve().as_uri()}?mode=ro", holds=self.file)
        except sqlite3.OperationalError:
            return None

    def _copy(self) -> sqlite3.Connection | None:
        """A copy of this moment, unless the log is just being taken away or begun anew."""
        self._folder = self._folder or tempfile.mkdtemp(prefix="firststep-")
        self._seen = self._state()
        copy = _copied(self.file, Path(self._folder))
        if copy is None:
            return None
        self._copied_at = time.monotonic()
        return self._tried(f"{copy.resolve().as_uri()}?mode=rw")

    def _tried(self, address: str, holds: Path | None = None) -> sqlite3.Connection:
        connection = connect(address, uri=True, holds=holds)
        try:
            connection.execute("SELECT count(*) FROM experiments").fetchall()
            _check_integrity(connection, self.file)
        except BaseException:
            connection.close()
            raise
        return connection

    def close(self) -> None:
        """Close, and take away the copy."""
        self.connection.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


def _copied(file: Path, folder: Path) -> Path | None:
    """A copy of a store that others may be writing, as it was at one moment; None if it cannot be made just now.

    The log holds every page since it was begun, also those that are being moved from it into the file. So the file
    first and then the log are whole together unless the log was begun anew in between, which its head would show.
    """
    copy = folder / "copy.db"
    log = _log(file)
    with unheld(file) as free:
        if not (free and log):
            return None
        shutil.copyfile(file, copy)
    try:
        shutil.copyfile(f"{file}-wal", f"{copy}-wal")
    except FileNotFoundError:
        return None
    Path(f"{copy}-shm").unlink(missing_ok=True)
    return copy if log == _log(copy) == _log(file) else None


def _log(file: Path) -> int:
    """What a file's log begins with, other numbers for every log; 0 without one."""
    try:
        with Path(f"{file}-wal").open("rb") as log:
            return int.from_bytes(log.read(32))
    except FileNotFoundError:
        return 0


def _check_integrity(connection: sqlite3.Connection, file: Path) -> None:
    (answer,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if answer != "ok":
        raise StoreError(
            f"{file} is damaged ({answer}); it was left as it is: restore a copy, or use another"
        )


def explained(error: Exception, file: Path) -> str:
    """What an error of SQLite or the system means for the user."""
    text = str(error).lower()
    # SQLite cannot open a file where it has no place for its log.
    refused = ("readonly", "read-only", "unable to open")
    if any(word in text for word in refused) or isinstance(error, PermissionError):
        return (
            f"the store {file} cannot be written: make the file and its folder writable, or choose another "
            "--store"
        )
    if "full" in text or "disk i/o" in text or "no space" in text or "too large" in text:
        return (
            f"the disk with the store {file} is full or failing ({error}); everything acknowledged before is "
            "kept: make space and run the same command again"
        )
    if "locked" in text or "busy" in text:
        return (
            f"the store {file} was locked by another program for {BUSY_SECONDS:.0f} seconds: try again later"
        )
    if "malformed" in text or "not a database" in text or "corrupt" in text:
        return f"{file} is damaged ({error}); it was left as it is: restore a copy, or use another"
    return f"the store {file} cannot be used: {error}"
