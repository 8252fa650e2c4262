"""The store's file: made whole or not at all, recognised before it is touched, and refused with a reason."""

import os
import secrets
import sqlite3
import struct
from contextlib import suppress
from pathlib import Path
from typing import cast

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
    source, target = sqlite3.connect(file), sqlite3.connect(copy)
    try:
        source.backup(target)
    finally:
        source.close()
        target.close()
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


def connect(place: str, *, uri: bool = False) -> sqlite3.Connection:
    """A connection in which every transaction is begun by hand."""
    connection = sqlite3.connect(
        place, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False, uri=uri
    )
    connection.execute("PRAGMA foreign_keys = ON")
    return connection


def create(file: Path) -> None:
    """Make an empty store under another name and move it into place whole, so that none is ever half-made."""
    if not file.parent.is_dir():
        raise StoreError(f"the folder {file.parent} of the store does not exist: make it first")
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
    log = Path(f"{file}-wal")
    if version != SCHEMA_VERSION and log.exists() and log.stat().st_size:
        # A migration that was not yet copied from the log into the file itself.
        connection = connect(f"{file.resolve().as_uri()}?mode=ro", uri=True)
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
        connection = connect(str(file))
        try:
            connection.execute("PRAGMA journal_mode=WAL").fetchall()
            # A commit is on the disk when it returns: after a power cut as well as after kill -9.
            connection.execute("PRAGMA synchronous=FULL")
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
            _check_integrity(connection, file)
        except BaseException:
            connection.close()
            raise
    except sqlite3.Error as error:
        raise StoreError(explained(error, file)) from error
    return connection


def connect_for_reading(file: Path) -> sqlite3.Connection:
    """Open a store of this version for reading, also in a folder that cannot be written."""
    address = file.resolve().as_uri()
    try:
        connection = connect(f"{address}?mode=ro", uri=True)
        try:
            connection.execute("SELECT count(*) FROM experiments").fetchall()
        except sqlite3.OperationalError:
            connection.close()
            # In a folder that cannot be written SQLite has nowhere to put its index of the log; without a
            # log the file alone is complete.
            log = Path(f"{file}-wal")
            if log.exists() and log.stat().st_size:
                raise
            connection = connect(f"{address}?immutable=1", uri=True)
            connection.execute("SELECT count(*) FROM experiments").fetchall()
        _check_integrity(connection, file)
    except sqlite3.Error as error:
        raise StoreError(explained(error, file)) from error
    return connection


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
