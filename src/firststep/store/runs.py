"""Processes that run into a store: who is alive, who is suspended, and who holds it."""

import os
import socket
import sqlite3
from contextlib import suppress
from pathlib import Path


def birth(pid: int) -> str:
    """When a process began, so that its number given to another one is noticed; empty where unknown."""
    # Field 22 of the whole.
    return _state(pid, 19)


def _state(pid: int, place: int) -> str:
    try:
        # The name in field 2 may hold anything up to the last parenthesis.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[place]
    except (OSError, IndexError):
        return ""


def alive(host: str, pid: int, born: str) -> bool:
    """Whether a process of this host still runs."""
    if host != socket.gethostname() or os.name != "posix":
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return birth(pid) == born


def described(pid: int) -> str:
    """A process in words."""
    suspended = _state(pid, 0) == "T"
    return f"process {pid}" + (f" (suspended; kill -CONT {pid} lets it go on)" if suspended else "")


def others(connection: sqlite3.Connection) -> str:
    """The other live runs of a store, in words."""
    known: list[tuple[str, int, str]] = []
    with suppress(sqlite3.Error):
        known = connection.execute("SELECT host, pid, birth FROM runs").fetchall()
    live = sorted({pid for host, pid, born in known if pid != os.getpid() and alive(host, pid, born)})
    return " and ".join(map(described, live)) or "another program"
