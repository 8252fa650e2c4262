"""Files that are written whole or not at all, and never over what they were made from."""

import os
import re
import stat
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

Place = str | os.PathLike[str]

# Drafts that a killed process left are taken away by the next writer, once nobody can be at them any more.
DRAFT_SECONDS = 3600.0

_held: Counter[tuple[int, int]] = Counter()
_holding = threading.Lock()


def hold(path: Place) -> Callable[[], None]:
    """Say that this process is about to lock a database; the answer is called when its connection is closed.

    A process that closes any handle of a file gives up all its locks on it (POSIX). Another process would then take
    itself for the last user of a database and remove the log that this one still writes to. So what is held is read
    through its connections alone; see `unheld`.
    """
    file = _identity(path)
    with _holding:
        _held[file] += 1

    def release() -> None:
        with _holding:
            _held[file] -= 1

    return release


@contextmanager
def unheld(path: Place) -> Iterator[bool]:
    """Whether a file may be opened as others are; until the block ends, nothing in this process begins to hold it."""
    with _holding:
        free = True
        with suppress(OSError):
            free = _held[_identity(path)] == 0
        yield free


def _identity(path: Place) -> tuple[int, int]:
    found = Path(path).stat()
    return found.st_dev, found.st_ino


def check_target(target: Place, inputs: Iterable[Place] = ()) -> Path:
    """The path to write to; refuses a file that is being read from, a database and an experiment file.

    Parameters
    ----------
    target : path
        What is to be written; a link is followed.
    inputs : iterable of path
        Files that the result is made from.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     table = Path(folder) / "table.csv"
    ...     _ = table.write_text("x")
    ...     try:
    ...         check_target(table, [table])
    ...     except ValueError as error:
    ...         print(str(error).replace(folder, "folder"))
    folder/table.csv is read from and would be overwritten: choose another name
    """
    path = Path(os.path.realpath(target))
    if path.is_dir():
        raise ValueError(f"{target} is a folder: name a file in it")
    if not path.parent.is_dir():
        raise ValueError(f"the folder {str(Path(target).parent)!r} does not exist: make it first")
    for source in inputs:
        with suppress(OSError):
            if path.samefile(source):
                raise ValueError(f"{target} is read from and would be overwritten: choose another name")
    if path.is_file():
        if path.suffix == ".toml":
            raise ValueError(f"{target} is an experiment file and would be overwritten: choose another name")
        if _is_database(path):
            raise ValueError(f"{target} is a database and would be overwritten: choose another name")
    return path


def _is_database(path: Path) -> bool:
    with unheld(path) as free:
        if not free:
            return True
        with path.open("rb") as content:
            return content.read(16) == b"SQLite format 3\0"


@contextmanager
def written(target: Place, inputs: Iterable[Place] = ()) -> Iterator[Path]:
    """A draft beside the target, which takes its place when the block ends well; else all is as it was.

    So a full disk, an error or a kill never leaves an empty or half-written file where an old one was.
    """
    path = check_target(target, inputs)
    if path.exists() and not path.is_file():
        # A pipe or a device cannot be replaced.
        yield path
        return
    remove_old_drafts(path)
    # The end of the name stays: some writers choose their format by it.
    draft = path.with_name(f".{path.name[:200]}.{os.urandom(4).hex()}{path.suffix}")
    try:
        os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        if path.exists():
            draft.chmod(stat.S_IMODE(path.stat().st_mode))
        yield draft
        with draft.open("rb") as content:
            os.fsync(content.fileno())
        draft.replace(path)
    except OSError as error:
        # The draft's own name means nothing to the user; a full disk comes without any.
        if error.errno is None or (error.filename is not None and str(error.filename) != str(draft)):
            raise
        told = type(error)(f"{target} cannot be written: {os.strerror(error.errno)}")
        told.errno = error.errno
        raise told from error
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)


def write_text(target: Place, text: str, inputs: Iterable[Place] = ()) -> Path:
    """Write a text whole or not at all; see `written`."""
    with written(target, inputs) as draft:
        draft.write_text(text, encoding="utf-8")
    return Path(target)


def remove_old_drafts(path: Path) -> None:
    """Take away what killed processes left beside a file under its name with a dot before and digits behind."""
    pattern = re.compile(rf"\.{re.escape(path.name[:200])}\.[0-9a-f]{{8}}(\.\w+|-wal|-shm|-journal)?")
    before = time.time() - DRAFT_SECONDS
    with suppress(OSError):
        for entry in list(os.scandir(path.parent)):
            if pattern.fullmatch(entry.name) and entry.stat(follow_symlinks=False).st_mtime < before:
                with suppress(OSError):
                    Path(entry.path).unlink()


def read_text(path: Place, what: str = "the file") -> str:
    """A UTF-8 text, with or without the mark that some editors put first; complaints name the file."""
    try:
        return Path(path).read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{what} {path} is not UTF-8 text (byte {error.start}): save it as UTF-8, or name another"
        ) from None
