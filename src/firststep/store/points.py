"""Points by what they belong to: added once, read as rows, claimed by one run at a time."""

import json
import math
import os
import secrets
import socket
import sqlite3
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from firststep.compute.files import written
from firststep.gaussian import Array
from firststep.setting import Sizes, stable_key
from firststep.store import runs
from firststep.store.dataset import dataset
from firststep.store.file import (
    SCHEMA,
    Reading,
    StoreError,
    Watch,
    begin,
    check_header,
    connect,
    connect_for_writing,
    copy_database,
    create,
    explained,
    keep,
    ordinary,
)

if TYPE_CHECKING:
    import xarray

# Raised by hand when the same specification gives other numbers; part of every key, so that old points stay
# in the file but are not taken for new ones.
NUMBERS_VERSION = {
    "simulation": 1,
    "unified": 2,
    "leading_order": 1,
    "staircase": 1,
    "random_features": 2,
    "spectrum": 1,
    "predicted_spectrum": 1,
}


def subject_key(spec: Mapping[str, Any]) -> str:
    """Key of what points belong to: a drawn replica, or a theory with its options."""
    return stable_key(spec)


def open_store(path: str | os.PathLike[str] | None, *, read_only: bool = False) -> "Store":
    """Open a store, or make it where there is none.

    Parameters
    ----------
    path : path or None
        The file; None keeps everything in memory.
    read_only : bool
        Open for reading only, also while a run writes.

    Raises
    ------
    StoreError
        For a file of another program, of another version, damaged, or not writable; it is left as it is.

    Examples
    --------
    >>> with open_store(None) as store:
    ...     spec = {"source": "simulation", "replica": 0}
    ...     store.add(spec, "network", [1.0], [0.1], {"test_error": [[0.5]]})
    ...     store.rows()[0]["test_error"]
    1
    0.5
    """
    if path is None:
        connection = connect(":memory:")
        connection.executescript(SCHEMA)
        return Store(connection, None)
    file = ordinary(path)
    if not file.exists() and not read_only:
        create(file)
    check_header(file)
    if read_only:
        reading = Reading(file)
        return Store(reading.connection, file, reading=reading)
    return Store(connect_for_writing(file), file, watch=Watch.over(file))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _plain(value: float) -> float | str | None:
    """A number for JSON; what is not finite as a word, because JSON has no number for it."""
    return value if math.isfinite(value) else {math.inf: "inf", -math.inf: "-inf"}.get(value)


def _number(value: float | str | None) -> float:
    return math.nan if value is None else float(value)


def flattened(spec: Mapping[str, Any]) -> dict[str, Any]:
    """A specification as one level of columns: problem and sizes unfolded, options by their own names."""
    flat: dict[str, Any] = {}
    for name, value in spec.items():
        if name in ("problem", "sizes", "options"):
            flat |= {inner: entry for inner, entry in value.items() if inner not in ("centred", "keys")}
        else:
            flat[name] = value
    return flat


@dataclass(frozen=True)
class Parts:
    """Numbers of a subject by part, step size and ridge, and the tables that they make."""

    points: Mapping[str, Mapping[tuple[float, float], Mapping[str, float]]]

    def lacking(self, parts: Sequence[str], step_sizes: Sequence[float], ridges: Sequence[float]) -> int:
        """Points of a grid that one of the parts does not have."""
        have = [self.points.get(part, {}) for part in parts]
        return sum(not all((step, ridge) in part for part in have) for step in step_sizes for ridge in ridges)

    def table(self, part: str, step_sizes: Sequence[float], ridges: Sequence[float]) -> dict[str, Array]:
        """A part's numbers on a grid that it has, by name, (S, R) each: what `Store.add` was given."""
        points = self.points[part]
        grid = [[points[step, ridge] for ridge in ridges] for step in step_sizes]
        return {name: np.array([[x.get(name, math.nan) for x in row] for row in grid]) for name in grid[0][0]}


@dataclass(frozen=True)
class Entry:
    """What `Store.add_all` writes of one subject; see `Store.add_parts`."""

    spec: Mapping[str, Any]
    parts: Mapping[str, Mapping[str, ArrayLike]]
    step_sizes: ArrayLike
    ridges: ArrayLike
    arrays: Mapping[tuple[str, float], NDArray[Any]] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    seconds: float | None = None

    def records(self) -> list[tuple[str, float, float, str]]:
        """Part, step size, ridge and numbers of each point."""
        steps, penalties = _axis("step_sizes", self.step_sizes), _axis("ridges", self.ridges)
        shape = (len(steps), len(penalties))
        records = []
        for part, values in self.parts.items():
            columns = {
                name: np.broadcast_to(np.asarray(value, dtype=float), shape) for name, value in values.items()
            }
            for i, j in np.ndindex(shape):
                content = {name: _plain(float(column[i, j])) for name, column in columns.items()}
                records.append(
                    (part, float(steps[i]), float(penalties[j]), json.dumps(content, allow_nan=False))
                )
        return records

    def blobs(self) -> list[tuple[str, float, bytes]]:
        """Name, step size and bytes of each array."""
        return [(name, float(step), _npy(array)) for (name, step), array in self.arrays.items()]


class Store:
    """Points by what they belong to, their part, step size and ridge; see `open_store`.

    A *subject* is a specification: a drawn replica (problem, sizes, seed, replica, precision, way of testing)
    or a theory with its options. Its points hold the numbers of one step size and ridge. A point is written
    once: adding it again changes nothing, so an old number never changes. Every `add` is one transaction, on
    the disk when it returns.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        path: Path | None,
        *,
        watch: Watch | None = None,
        reading: Reading | None = None,
    ) -> None:
        self.path = path
        self._connection = connection
        self._watch, self._reading = watch, reading
        self._lost = ""
        self._lock = threading.RLock()
        self._token: str | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give up the claims of this process and close the file."""
        with self._lock:
            if self._token is not None:
                try:
                    with self._transaction() as cursor:
                        cursor.execute("DELETE FROM claims WHERE token = ?", (self._token,))
                        cursor.execute("DELETE FROM runs WHERE token = ?", (self._token,))
                except StoreError:
                    # A claim of a process that has ended counts for nothing.
                    pass
                self._token = None
            if self._reading is not None:
                self._reading.close()
            self._connection.close()

    def check_place(self) -> None:
        """Raise if the file was deleted, moved, replaced or cut short since it was opened.

        What was acknowledged is then saved as far as it can be, and the error says where it is. Every change
        begins with this check.
        """
        with self._lock:
            if not self._lost and self._watch is not None:
                loss = self._watch.loss()
                if loss:
                    self._lost = f"the store {self.path} {loss} while it was in use; " + keep(
                        self._connection, self._watch
                    )
            if self._lost:
                raise StoreError(self._lost)

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Cursor]:
        with self._lock:
            self.check_place()
            try:
                cursor = self._connection.cursor()
                begin(self._connection)
                try:
                    yield cursor
                    cursor.execute("COMMIT")
                except BaseException:
                    if self._connection.in_transaction:
                        cursor.execute("ROLLBACK")
                    raise
            except sqlite3.Error as error:
                raise StoreError(explained(error, self.path or Path("in memory"))) from error

    def _select(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self._lock:
            if self._reading is not None:
                self._reading.renew()
                self._connection = self._reading.connection
            while True:
                problem: sqlite3.Error | None = None
                try:
                    found = self._connection.execute(statement, values).fetchall()
                except sqlite3.Error as error:
                    problem = error
                if self._reading is not None and self._reading.changed():
                    # What was read may be of two moments.
                    self._connection = self._reading.connection
                elif problem is not None:
                    raise StoreError(explained(problem, self.path or Path("in memory"))) from problem
                else:
                    return found

    def add(
        self,
        spec: Mapping[str, Any],
        part: str,
        step_sizes: ArrayLike,
        ridges: ArrayLike,
        values: Mapping[str, ArrayLike],
        *,
        provenance: Mapping[str, Any] | None = None,
        seconds: float | None = None,
    ) -> int:
        """Write the points of one part of a subject; the number of those that were not there before.

        Parameters
        ----------
        spec : mapping
            The subject, JSON-able, with its ``"source"``.
        part : str
            What was computed, such as ``"network"``; a subject's parts may come at different times.
        step_sizes, ridges : array_like (S,), (R,)
            eta and lambda.
        values : mapping of str to array_like
            Each broadcasts to (S, R).
        provenance : mapping, optional
            Versions and circumstances; no part of the key.
        seconds : float, optional
            Time that the whole computation took.
        """
        return self.add_parts(
            spec, {part: values}, step_sizes, ridges, provenance=provenance, seconds=seconds
        )

    def add_parts(
        self,
        spec: Mapping[str, Any],
        parts: Mapping[str, Mapping[str, ArrayLike]],
        step_sizes: ArrayLike,
        ridges: ArrayLike,
        *,
        arrays: Mapping[tuple[str, float], NDArray[Any]] | None = None,
        provenance: Mapping[str, Any] | None = None,
        seconds: float | None = None,
    ) -> int:
        """Write several parts and arrays of a subject in one transaction; see `add`."""
        return self.add_all([Entry(spec, parts, step_sizes, ridges, arrays or {}, provenance or {}, seconds)])

    def add_all(self, entries: Sequence[Entry]) -> int:
        """Write points of several subjects in one transaction: all of them or none; see `add`.

        Examples
        --------
        >>> with open_store(None) as store:
        ...     specs = ({"source": "simulation", "replica": i} for i in range(3))
        ...     store.add_all([Entry(spec, {"network": {"test_error": 0.5}}, [1.0], [0.1]) for spec in specs])
        3
        """
        ready = [(entry, entry.records(), entry.blobs()) for entry in entries]
        written, new = _now(), 0
        with self._transaction() as cursor:
            for entry, records, blobs in ready:
                spec, provenance = entry.spec, entry.provenance
                subject = _identified(
                    cursor, "subjects", subject_key(spec), source=spec["source"], spec=_text(spec)
                )
                origin = _identified(cursor, "provenance", stable_key(provenance), content=_text(provenance))
                cursor.executemany(
                    "INSERT OR IGNORE INTO points VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                    [(subject, *record, origin, entry.seconds, written) for record in records],
                )
                new += max(0, cursor.rowcount)
                cursor.executemany(
                    "INSERT OR IGNORE INTO arrays VALUES (?, ?, ?, ?, ?, ?)",
                    [(subject, *blob, origin, written) for blob in blobs],
                )
        return new

    def present(self, spec: Mapping[str, Any], part: str) -> set[tuple[float, float]]:
        """Pairs of step size and ridge that a subject's part already has."""
        return self.present_by_key(subject_key(spec), part)

    def present_by_key(self, key: str, part: str) -> set[tuple[float, float]]:
        """Like `present`, for the key of a specification."""
        found = self._select(
            "SELECT step_size, ridge FROM points JOIN subjects ON subject = id WHERE key = ? AND part = ?",
            (key, part),
        )
        return {(step, ridge) for step, ridge in found}

    def parts(self, spec: Mapping[str, Any]) -> "Parts":
        """All numbers of a subject, part by part."""
        found: dict[str, dict[tuple[float, float], dict[str, float]]] = {}
        for part, step, ridge, content in self._select(
            "SELECT part, step_size, ridge, content FROM points JOIN subjects ON subject = id WHERE key = ?",
            (subject_key(spec),),
        ):
            numbers = {name: _number(value) for name, value in json.loads(content).items()}
            found.setdefault(part, {})[step, ridge] = numbers
        return Parts(found)

    def values(self, spec: Mapping[str, Any]) -> dict[tuple[float, float], dict[str, float]]:
        """All numbers of a subject by step size and ridge, its parts joined."""
        found: dict[tuple[float, float], dict[str, float]] = {}
        for points in self.parts(spec).points.values():
            for pair, numbers in points.items():
                found.setdefault(pair, {}).update(numbers)
        return found

    def array(self, spec: Mapping[str, Any], name: str, step_size: float) -> NDArray[Any] | None:
        """An array of a subject, or None where there is none."""
        found = self._select(
            "SELECT data FROM arrays JOIN subjects ON subject = id "
            "WHERE key = ? AND name = ? AND step_size = ?",
            (subject_key(spec), name, float(step_size)),
        )
        return cast(NDArray[Any], np.load(BytesIO(found[0][0]), allow_pickle=False)) if found else None

    def arrays(self, spec: Mapping[str, Any]) -> dict[tuple[str, float], NDArray[Any]]:
        """All arrays of a subject by name and step size."""
        found = self._select(
            "SELECT name, step_size, data FROM arrays JOIN subjects ON subject = id WHERE key = ?",
            (subject_key(spec),),
        )
        return {(name, step): np.load(BytesIO(data), allow_pickle=False) for name, step, data in found}

    def array_names(self, spec: Mapping[str, Any]) -> set[tuple[str, float]]:
        """Names and step sizes of the arrays that a subject has."""
        found = self._select(
            "SELECT name, step_size FROM arrays JOIN subjects ON subject = id WHERE key = ?",
            (subject_key(spec),),
        )
        return {(name, step) for name, step in found}

    def provenance(self, spec: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Under which circumstances the points of a subject were computed."""
        found = self._select(
            "SELECT DISTINCT provenance.content FROM points JOIN subjects ON subject = subjects.id "
            "JOIN provenance ON provenance = provenance.id WHERE subjects.key = ?",
            (subject_key(spec),),
        )
        return [json.loads(content) for (content,) in found]

    def seconds(self, source: str, sizes: Mapping[str, Any]) -> list[float]:
        """Times that finished computations of these sizes took."""
        found = self._select(
            "SELECT max(seconds), spec FROM points JOIN subjects ON subject = id "
            "WHERE source = ? AND seconds IS NOT NULL GROUP BY subject",
            (source,),
        )
        return [spent for spent, spec in found if json.loads(spec).get("sizes") == dict(sizes)]

    def spent(self) -> list[float]:
        """Seconds that each computation in the store took, in the order in which they came."""
        found = self._select(
            "SELECT max(seconds) FROM points WHERE seconds IS NOT NULL GROUP BY subject ORDER BY subject"
        )
        return [seconds for (seconds,) in found]

    def count(self) -> int:
        """Number of points."""
        return cast(int, self._select("SELECT count(*) FROM points")[0][0])

    def rows(self, **wanted: Any) -> list[dict[str, Any]]:
        """One flat row for each subject, step size and ridge: what was studied, then the numbers.

        Parameters
        ----------
        **wanted
            Columns with the value they must have, a collection of values, or a function that says yes:
            ``rows(source="simulation", width=[500, 750], ridge=lambda value: value < 1)``.
        """
        return [identity | values for identity, values in self._records(wanted)]

    def _records(self, wanted: Mapping[str, Any]) -> list[tuple[dict[str, Any], dict[str, float]]]:
        """What identifies each point, and its numbers."""
        source = wanted.get("source")
        by_name = isinstance(source, str)
        statement = (
            "SELECT subjects.id, spec, step_size, ridge, content FROM points JOIN subjects ON subject = id "
            f"{'WHERE source = ? ' if by_name else ''}ORDER BY subjects.id, step_size, ridge, part"
        )
        records: list[tuple[dict[str, Any], dict[str, float]]] = []
        last: tuple[Any, ...] = ()
        flat: dict[str, Any] = {}
        sizes: Sizes | None = None
        for subject, spec, step, ridge, content in self._select(statement, (source,) if by_name else ()):
            if not last or last[0] != subject:
                whole = json.loads(spec)
                flat = flattened(whole)
                sizes = Sizes(**whole["sizes"]) if "sizes" in whole else None
            if last != (subject, step, ridge):
                last = (subject, step, ridge)
                exponent = None if sizes is None or step == 0 else sizes.step_exponent(step)
                records.append(({**flat, "step_size": step, "step_exponent": exponent, "ridge": ridge}, {}))
            records[-1][1].update({name: _number(value) for name, value in json.loads(content).items()})
        checks = [(name, _wanted(value)) for name, value in wanted.items()]
        return [
            (identity, values)
            for identity, values in records
            if all(check(identity.get(name, values.get(name))) for name, check in checks)
        ]

    def columns(self, rows: Sequence[Mapping[str, Any]]) -> list[str]:
        """All columns of the rows, in the order in which they first appear."""
        return list(dict.fromkeys(name for row in rows for name in row))

    def to_xarray(self, **wanted: Any) -> "xarray.Dataset":
        """The rows as a dataset whose dimensions are the columns that vary, such as replica and ridge.

        What does not vary is an attribute. Where sizes vary, the step exponent is the dimension in place of
        the step size if that gives a fuller grid. Takes the arguments of `rows`.
        """
        try:
            import xarray  # noqa: F401
        except ImportError as error:
            raise ImportError("to_xarray needs xarray: install firststep[export]") from error
        records = self._records(wanted)
        if not records:
            raise ValueError("no rows to put into a dataset: the store has none, or none with these values")
        return dataset(records)

    def to_parquet(self, path: str | os.PathLike[str], **wanted: Any) -> Path:
        """Write the rows to a Parquet file. Takes the arguments of `rows`."""
        try:
            import pyarrow  # type: ignore[import-untyped]
            import pyarrow.parquet  # type: ignore[import-untyped]
        except ImportError as error:
            raise ImportError("to_parquet needs pyarrow: install firststep[export]") from error
        rows = self.rows(**wanted)
        table = pyarrow.table({name: [row.get(name) for row in rows] for name in self.columns(rows)})
        with written(path, self._files()) as draft:
            pyarrow.parquet.write_table(table, str(draft))
        return Path(path)

    def to_netcdf(self, path: str | os.PathLike[str], **wanted: Any) -> Path:
        """Write the dataset of `to_xarray` to a NetCDF file. Takes the arguments of `rows`."""
        for package in ("h5py", "h5netcdf"):
            if find_spec(package) is None:
                raise ImportError(f"to_netcdf needs {package}: install firststep[export]")
        # In memory first: on a full disk HDF5 ends the whole process.
        content = self.to_xarray(**wanted).to_netcdf(engine="h5netcdf")
        with written(path, self._files()) as draft:
            draft.write_bytes(content)
        return Path(path)

    def _files(self) -> list[Path]:
        return [] if self.path is None else [self.path]

    def to_csv(self, path: str | os.PathLike[str], **wanted: Any) -> Path:
        """Write the rows to a CSV file, every digit of them. Takes the arguments of `rows`."""
        import csv

        rows = self.rows(**wanted)
        with (
            written(path, self._files()) as draft,
            draft.open("w", newline="", encoding="utf-8") as file,
        ):
            writer = csv.DictWriter(file, self.columns(rows))
            writer.writeheader()
            writer.writerows(rows)
        return Path(path)

    def fail(self, task: str, label: str, message: str) -> None:
        """Record that a task cannot be done."""
        with self._transaction() as cursor:
            cursor.execute(
                "INSERT OR REPLACE INTO failures VALUES (?, ?, ?, ?)", (task, label, message, _now())
            )

    def failures(self) -> dict[str, tuple[str, str]]:
        """Label and message of every task that failed and was not done since."""
        found = self._select("SELECT task, label, message FROM failures ORDER BY written, task")
        return {task: (label, message) for task, label, message in found}

    def forgive(self, tasks: Collection[str]) -> None:
        """Forget failures, so that the tasks are tried again."""
        with self._transaction() as cursor:
            cursor.executemany("DELETE FROM failures WHERE task = ?", [(task,) for task in tasks])

    def claim(self, task: str) -> bool:
        """Reserve a task for this process; False if another live process on this host has it.

        Claims only save work: without them two runs would compute the same points, and the first would count.
        """
        return self.claim_all([task]) == {task}

    def claim_all(self, tasks: Collection[str]) -> set[str]:
        """Reserve tasks for this process in one transaction; those that no other live process has; see `claim`."""
        with self._transaction() as cursor:
            if self._token is None:
                self._token = secrets.token_hex(8)
                cursor.execute(
                    "INSERT INTO runs VALUES (?, ?, ?, ?)",
                    (self._token, socket.gethostname(), os.getpid(), runs.birth(os.getpid())),
                )
            return {task for task in tasks if self._claimed(cursor, task)}

    def _claimed(self, cursor: sqlite3.Cursor, task: str) -> bool:
        held = cursor.execute(
            "SELECT runs.token, host, pid, birth FROM claims JOIN runs USING (token) WHERE task = ?", (task,)
        ).fetchone()
        if held is not None and held[0] != self._token:
            if runs.alive(*held[1:]):
                return False
            cursor.execute("DELETE FROM runs WHERE token = ?", (held[0],))
        cursor.execute("INSERT OR REPLACE INTO claims VALUES (?, ?)", (task, self._token))
        return True

    def release(self, task: str) -> None:
        """Give up a claim."""
        with self._transaction() as cursor:
            cursor.execute("DELETE FROM claims WHERE task = ? AND token = ?", (task, self._token))

    def holder(self, task: str) -> str:
        """The live process that has a task, in words; empty if none has."""
        for host, pid, birth in self._select(
            "SELECT host, pid, birth FROM claims JOIN runs USING (token) WHERE task = ?", (task,)
        ):
            if runs.alive(host, pid, birth):
                return runs.described(pid)
        return ""

    def active_runs(self) -> list[int]:
        """Process ids of the live runs that hold claims."""
        return [
            pid
            for host, pid, birth in self._select("SELECT host, pid, birth FROM runs")
            if runs.alive(host, pid, birth)
        ]

    def remember(self, key: str, name: str, document: str) -> None:
        """Record an experiment that is run into this store; its latest text is the one that counts."""
        with self._transaction() as cursor:
            cursor.execute(
                "INSERT OR REPLACE INTO experiments VALUES (?, ?, ?, ?)", (key, name, document, _now())
            )

    def experiments(self) -> list[dict[str, str]]:
        """Experiments that were run into this store, the latest last."""
        found = self._select("SELECT key, name, document, written FROM experiments ORDER BY rowid")
        return [dict(zip(("key", "name", "document", "written"), entry, strict=True)) for entry in found]

    def check(self) -> str:
        """Thorough check of the whole file: "ok", or what is wrong."""
        return "; ".join(str(line) for (line,) in self._select("PRAGMA integrity_check"))

    def backup(self, path: str | os.PathLike[str]) -> Path:
        """Copy the store, also while a run writes; another database is not overwritten."""
        with self._lock, written(path, self._files()) as draft:
            copy_database(self._connection, draft)
        return Path(path)


def _axis(name: str, values: ArrayLike) -> Array:
    axis = np.atleast_1d(np.asarray(values, dtype=float))
    if axis.ndim != 1 or not np.all(np.isfinite(axis)):
        raise ValueError(f"{name} must be finite numbers in one row, got {axis.tolist()}")
    return cast(Array, axis)


def _text(content: Mapping[str, Any]) -> str:
    # In the order given, which rows() shows; the key does not depend on it.
    return json.dumps(content, allow_nan=False)


def _npy(array: NDArray[Any]) -> bytes:
    buffer = BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def _identified(cursor: sqlite3.Cursor, table: str, key: str, **columns: str) -> int:
    """Id of the row with a key, which is made if need be."""
    names = ", ".join(["key", *columns])
    places = ", ".join("?" * (len(columns) + 1))
    cursor.execute(f"INSERT OR IGNORE INTO {table} ({names}) VALUES ({places})", (key, *columns.values()))
    return cast(int, cursor.execute(f"SELECT id FROM {table} WHERE key = ?", (key,)).fetchone()[0])


def _wanted(value: Any) -> Callable[[Any], bool]:
    if callable(value):
        return lambda found: found is not None and bool(value(found))
    if isinstance(value, Collection) and not isinstance(value, str):
        return lambda found: found in value
    return lambda found: bool(found == value)
