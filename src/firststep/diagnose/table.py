"""Tables as they are: made into numbers, and everything that was done to them said by column."""

import difflib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from firststep.arrays.checks import LARGEST_VALUE, dominant_row
from firststep.diagnose.gaps import stand_ins
from firststep.diagnose.leaks import LEAK, SUSPECT, divides, nearness
from firststep.gaussian import Array

FEWEST_ROWS = 20
# A text column becomes one column of 0 and 1 for each of its values, if there are no more than this.
MOST_LEVELS = 20
# Names in a message.
MOST_NAMES = 20
# Share of the entries that must read as numbers, or dates, for a column of text to be one of them.
MOSTLY = 0.95
ID_NAME = re.compile(
    r"(^|[_\s])(id|idx|index|key|uuid|guid|rowid)$|^unnamed: 0$|(?-i:[a-z]I[dD]$)", re.IGNORECASE
)
# Names of columns that tell who or what a row is about, also if some rows share it.
NAMES_A_THING = re.compile(r"(^|[_\s])(id|uuid|guid)$|(?-i:[a-z]I[dD]$)", re.IGNORECASE)
BLANK = "(blank)"
NUMBER = r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?"
# What follows a number that is a quantity.
UNIT = r"(?<=[\d.])\s*([A-Za-zµ°]+[²³/A-Za-z]*)$"
# What people write into a cell that has nothing in it, besides what pandas knows.
NOTHING = ("", "?", "-", "--", ".")
WORDS_FOR_NOTHING = ("na", "n/a", "#n/a", "nan", "null", "none", "nil", "missing", "unknown")
# Whole numbers of a target that may be classes.
FEW_NUMBERS = 10
# Linear ridge on more inputs would take gigabytes and hours.
MOST_INPUTS = 10_000


@dataclass(frozen=True, eq=False)
class Table:
    """Inputs (n, d) and targets (n, k) without gaps; the classes, if there are any; and what was done."""

    inputs: Array
    targets: Array
    names: tuple[str, ...]
    target_name: str
    classes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    # Columns that are used though they may have been made from the target.
    suspects: tuple[str, ...] = ()


def unknown_column(name: str, columns: Sequence[str]) -> str:
    """A sentence that says which columns there are, and which one may be meant.

    Examples
    --------
    >>> unknown_column("prize", ["price", "size"])
    "there is no column 'prize' (perhaps 'price'?); the columns are price, size"
    """
    close = difflib.get_close_matches(name, columns, n=1)
    meant = f" (perhaps {close[0]!r}?)" if close else ""
    if all(re.fullmatch(NUMBER, column) for column in columns):
        meant += ", all names are numbers: write the names of the columns above the first row"
    rest = f" … ({len(columns)} in all)" if len(columns) > MOST_NAMES else ""
    return f"there is no column {name!r}{meant}; the columns are {', '.join(columns[:MOST_NAMES])}{rest}"


def prepare(inputs: Any, target: Any, keep: Sequence[str] = (), drop_missing: bool = False) -> Table:
    """Numbers without gaps, and a sentence about everything that was changed.

    Columns named in `keep` stay, also if they look like row numbers or like the target in other words.
    """
    name = "y"
    if hasattr(inputs, "columns"):
        _check_names([str(column) for column in inputs.columns])
        if isinstance(target, str):
            if target not in inputs.columns:
                raise ValueError(unknown_column(target, [str(column) for column in inputs.columns]))
            name, inputs, target = target, inputs.drop(columns=[target]), inputs[target]
        else:
            name = str(getattr(target, "name", None) or "y")
    elif isinstance(target, str):
        raise ValueError(f"y={target!r} names a column, but X is not a data frame")
    if len(np.shape(inputs)) == 2:
        _check_count(np.shape(inputs)[1], "columns")
    work = _Work(tuple(keep), drop_missing)
    values, classes = _target(target, name, work)
    known: NDArray[np.bool_] = np.asarray(np.isfinite(values).all(axis=1))
    if len(values) != len(inputs):
        raise ValueError(f"X has {len(inputs)} rows and y has {len(values)}: they must be equally many")
    if not known.all():
        work.notes.append(
            f"{int((~known).sum())} of {len(known)} rows have no {name!r}: they cannot teach and are left out"
        )
    if hasattr(inputs, "columns"):
        matrix, names = work.encode(inputs[known] if not known.all() else inputs)
    else:
        matrix, names = work.plain(inputs, known)
    _check_count(matrix.shape[1], "columns of numbers")
    rows, values = np.flatnonzero(known) + 1, values[known]
    full = np.ones(len(values), dtype=bool)
    if drop_missing and work.had_gap is not None:
        full = ~work.had_gap
        if not full.all():
            work.notes.append(f"{int((~full).sum())} rows with gaps are left out, as asked")
        matrix, values, rows = matrix[full], values[full], rows[full]
    if len(values) < FEWEST_ROWS:
        raise ValueError(f"at least {FEWEST_ROWS} rows with a target are needed, got {len(values)}")
    target_names = [name] * values.shape[1]
    _check_squares(matrix, names, rows)
    _check_squares(values, target_names, rows)
    if np.ptp(values, axis=0).max() <= 1e-13 * np.abs(values).max():
        raise ValueError(f"the target {name!r} is constant: there is nothing to predict")
    matrix, names = work.pruned(matrix, names, values)
    work.divided(full, names, values)
    work.notes += [*_dominated(matrix, names, rows), *_dominated(values, target_names, rows)]
    return Table(matrix, values, names, name, classes, tuple(work.notes), tuple(work.suspects))


def _check_names(names: Sequence[str]) -> None:
    """Refuse names that mean two columns."""
    twice = (
        next((name for name in names if names.count(name) > 1), None)
        if len(set(names)) < len(names)
        else None
    )
    if twice is not None:
        raise ValueError(f"{names.count(twice)} columns are called {twice!r}: give each a name of its own")


def _check_count(count: int, what: str) -> None:
    """Refuse a table that is too wide, before anything is made of it."""
    if count > MOST_INPUTS:
        raise ValueError(
            f"the table has {count} {what}, and at most {MOST_INPUTS} are diagnosed: leave out those that "
            "hardly matter, or put components in their place"
        )


def _check_squares(matrix: Array, names: Sequence[str], rows: NDArray[np.intp]) -> None:
    """Refuse numbers whose squares are none, with their row and column."""
    wrong = np.abs(matrix) > LARGEST_VALUE
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        raise ValueError(
            f"{names[column]!r} has {matrix[row, column]:g} in row {rows[row]} of the data, which cannot be squared: "
            "rescale the column, or leave the row out"
        )
    largest = np.abs(matrix).max(axis=0, initial=0.0)
    tiny = (largest > 0) & (largest < 1 / LARGEST_VALUE)
    if tiny.any():
        column = int(tiny.argmax())
        raise ValueError(
            f"{names[column]!r} has no number above {largest[column]:g}, whose square is none: rescale the column"
        )


def _dominated(matrix: Array, names: Sequence[str], rows: NDArray[np.intp]) -> list[str]:
    """A sentence if one row makes nearly all of a column's variance."""
    found = dominant_row(matrix)
    if found is None:
        return []
    row, column, share = found
    return [
        f"row {rows[row]} of the data, with {matrix[row, column]:g}, makes {math.floor(100 * share)} % of the variance "
        f"of {names[column]!r} and decides what is found: look whether it is a mistake, or leave it out"
    ]


@dataclass(eq=False)
class _Work:
    """Columns as numbers, and the notes about them."""

    keep: tuple[str, ...] = ()
    drop_missing: bool = False
    notes: list[str] = field(default_factory=list)
    had_gap: NDArray[np.bool_] | None = None
    # Columns of few values with the category of each row, -1 for a gap.
    coarse: dict[str, NDArray[np.intp]] = field(default_factory=dict)
    suspects: list[str] = field(default_factory=list)

    def plain(self, inputs: Any, known: NDArray[np.bool_]) -> tuple[Array, tuple[str, ...]]:
        """A matrix of numbers, gaps filled."""
        try:
            matrix = np.array(inputs, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise ValueError(
                "X must hold numbers; pass a pandas data frame to have text columns encoded"
            ) from error
        if matrix.ndim != 2:
            raise ValueError(f"X must have two dimensions, (samples, inputs); got shape {matrix.shape}")
        columns, names = [], []
        for place, given in enumerate(matrix[known].T):
            column = self.gapped(given, f"x{place}")
            self._coarse(column, np.isfinite(column), f"x{place}")
            for values, name in self.filled(column, f"x{place}"):
                columns.append(values)
                names.append(name)
        return np.column_stack(columns) if columns else np.empty((int(known.sum()), 0)), tuple(names)

    def gapped(self, values: Array, name: str) -> Array:
        """The column with gaps for numbers that stand for nothing."""
        codes = [] if name in self.keep else stand_ins(values)
        if not codes:
            return values
        empty = np.isin(values, codes)
        self.notes.append(
            f"{name!r} has {' and '.join(f'{code:.10g}' for code in codes)} in {int(empty.sum())} rows, which looks "
            f"like a code for what is missing: taken for gaps (keep the numbers by --keep {name!r})"
        )
        return np.where(empty, np.nan, values)

    def filled(self, values: Array, name: str) -> list[tuple[Array, str]]:
        """The column with its median in the gaps, and a column that marks them."""
        missing = ~np.isfinite(values)
        if not missing.any():
            return [(values, name)]
        if missing.all():
            self.notes.append(f"{name!r} is empty and left out")
            return []
        self._gaps(missing)
        whole = (np.where(missing, np.median(values[~missing]), values), name)
        if self.drop_missing:
            self.notes.append(f"{name!r} has {int(missing.sum())} gaps")
            return [whole]
        self.notes.append(
            f"{name!r} has {int(missing.sum())} gaps: they get the median, and a column of 0 and 1 that marks them"
        )
        return [whole, (missing.astype(float), f"{name} is blank")]

    def _gaps(self, missing: NDArray[np.bool_]) -> None:
        self.had_gap = missing if self.had_gap is None else self.had_gap | missing

    def encode(self, frame: Any) -> tuple[Array, tuple[str, ...]]:
        """Columns of a frame: numbers, numbers written as text, dates, and text of few values."""
        found: list[tuple[Array, str]] = []
        for place, label in enumerate(frame.columns):
            column, name = frame.iloc[:, place], str(label)
            if does := self._id(column, name):
                self.notes.append(f"{name!r} {does} and is left out (keep it by --keep {name!r})")
            elif column.dtype.kind in "biuf":
                values = self.gapped(column.to_numpy(dtype=np.float64, na_value=np.nan), name)
                found += self.filled(values, name)
                self._coarse(values, np.isfinite(values), name)
            else:
                found += self.text(column, name)
        if not found:
            raise ValueError(
                "no column holds numbers or text of few values: there is nothing to predict from"
            )
        return np.column_stack([values for values, _ in found]), tuple(name for _, name in found)

    def _id(self, column: Any, name: str) -> str:
        """What a column does that tells rows apart; empty if it is none."""
        if name in self.keep or column.dtype.kind not in "iufO" or column.isna().any():
            return ""
        whole = column.dtype.kind in "iuf" and bool((column % 1 == 0).all())
        if column.dtype.kind in "iuf" and not whole:
            return ""
        if column.nunique() < len(column):
            many = column.nunique() > MOST_LEVELS
            return "names what a row is about" if many and NAMES_A_THING.search(name) else ""
        if whole and len(column) >= FEWEST_ROWS:
            # Up or down.
            steps = np.diff(column.to_numpy(dtype=np.float64))
            if (steps == 1).all() or (steps == -1).all():
                return "numbers the rows"
        return "numbers the rows" if ID_NAME.search(name) else ""

    def text(self, column: Any, name: str) -> list[tuple[Array, str]]:
        """A column of text or dates."""
        present = np.array(column.notna())
        if column.dtype.kind in "mM":
            return self.filled(_days(column), self._dated(name))
        words = column.astype(str).str.strip().to_numpy(dtype=object)
        present &= ~np.isin(words, NOTHING)
        # Among numbers a word for nothing is a gap; among words it is one of them.
        said = np.isin([str(word).lower() for word in words], WORDS_FOR_NOTHING)
        numbers, what = numbers_of(words, present & ~said)
        if numbers is not None:
            self.notes.append(f"{name!r} is text that is read as numbers{what}")
            return self.filled(self.gapped(numbers, name), name)
        levels = sorted(set(words[present]))
        if len(levels) > MOST_LEVELS:
            if (dates := _dates(words, present)) is not None:
                return self.filled(dates[0], self._dated(name, dates[1]))
            self.notes.append(f"{name!r} is text of {len(levels)} different values and is left out")
            return []
        if not levels:
            self.notes.append(f"{name!r} is empty and left out")
            return []
        self._coarse(words, present, name)
        found = [((words == level) & present, f"{name}={level}") for level in levels[1:]]
        blanks = int((~present).sum())
        also = f", one of them for its {blanks} blanks" if blanks else ""
        if blanks:
            self._gaps(~present)
            if self.drop_missing:
                also = f"; it has {blanks} blanks"
            else:
                found.append((~present, f"{name}={BLANK}"))
        if found:
            many = "a column" if len(found) == 1 else f"{len(found)} columns"
            self.notes.append(f"text column {name!r} becomes {many} of 0 and 1{also}")
        return [(flags.astype(float), label) for flags, label in found]

    def _coarse(self, values: NDArray[Any], present: NDArray[np.bool_], name: str) -> None:
        """Keep the categories of a column of few values: they may be the target in coarser words."""
        levels, codes = np.unique(values[present], return_inverse=True)
        if 1 < len(levels) <= MOST_LEVELS and name not in self.keep:
            self.coarse[name] = np.full(len(values), -1, dtype=np.intp)
            self.coarse[name][present] = codes

    def divided(self, rows: NDArray[np.bool_], names: Sequence[str], values: Array) -> None:
        """Remark on columns of few values, of those used, that tell the target's interval or class."""
        used = {name.partition("=")[0] for name in names} | set(names)
        coarse = {name: codes[rows] for name, codes in self.coarse.items() if name in used}
        close = np.array(
            [divides(codes[codes >= 0], values[codes >= 0]) for codes in coarse.values()], dtype=bool
        )
        if close.any():
            self.suspects += [name for name, flag in zip(coarse, close, strict=True) if flag]
            self.notes.append(
                f"suspiciously close to the target, but used: {_few(list(coarse), close)} (each of its values has an "
                "interval or a class of the target of its own; if it was made from the target, leave it out by --drop)"
            )

    def _dated(self, name: str, order: str = "") -> str:
        self.notes.append(f"{name!r} holds dates{order}: it becomes a number of days")
        return f"{name} (days)"

    def pruned(self, matrix: Array, names: tuple[str, ...], values: Array) -> tuple[Array, tuple[str, ...]]:
        """Without constant columns, copies of columns, and the target in other words."""
        varies = matrix.std(axis=0) > 1e-13 * np.abs(matrix).max(axis=0, initial=0.0)
        if not varies.all():
            self.notes.append(f"constant columns are left out: {_few(names, ~varies)}")
        matrix, names = matrix[:, varies], tuple(np.array(names, dtype=object)[varies])
        if not names:
            raise ValueError("no input varies: there is nothing to predict from")
        scaled = (matrix - matrix.mean(axis=0)) / matrix.std(axis=0)
        level = (values - values.mean(axis=0)) / np.where(values.std(axis=0) > 0, values.std(axis=0), 1.0)
        kept = np.isin(np.array(names, dtype=object), list(self.keep))
        straight, ranked = nearness(scaled, level)
        close = (straight > LEAK) & ~kept
        if close.any():
            self.notes.append(
                f"the target in other words, left out: {_few(names, close)} (correlation above {LEAK}; if it is "
                "known before the target is, keep it by --keep)"
            )
        suspected = (ranked > SUSPECT) & ~close & ~kept
        if suspected.any():
            self.suspects += [name for name, flag in zip(names, suspected, strict=True) if flag]
            self.notes.append(
                f"suspiciously close to the target, but used: {_few(names, suspected)} (correlation above {SUSPECT}, "
                "of values or of ranks; if it is known only when the target is, leave it out by --drop)"
            )
        signs = np.sign(scaled[np.abs(scaled).argmax(axis=0), np.arange(scaled.shape[1])])
        seen: dict[bytes, str] = {}
        copies = np.zeros(len(names), dtype=bool)
        for place, (column, sign) in enumerate(zip(scaled.T, signs, strict=True)):
            key = (np.round(sign * column, 9) + 0.0).tobytes()
            copies[place] = key in seen
            seen.setdefault(key, names[place])
        if (copies & ~close).any():
            self.notes.append(f"copies of other columns are left out: {_few(names, copies & ~close)}")
        good = ~(close | copies)
        if not good.any():
            raise ValueError(
                "every input is the target in other words: there is nothing to predict from but the target itself"
            )
        return matrix[:, good], tuple(np.array(names, dtype=object)[good])


def _few(names: Sequence[str], chosen: NDArray[np.bool_]) -> str:
    found = [name for name, flag in zip(names, chosen, strict=True) if flag]
    return ", ".join(found[:10]) + " …" * (len(found) > 10)


def numbers_of(words: NDArray[Any], present: NDArray[np.bool_]) -> tuple[Array | None, str]:
    """Numbers written with currency signs, percent signs, one unit, thousands or decimal commas; None if they are not.

    Examples
    --------
    >>> words = np.array(["1.234,50 €", "7,25 €", ""], dtype=object)
    >>> numbers_of(words, words != "")[0]
    array([1234.5 ,    7.25,     nan])
    """
    bare = [re.sub(r"[\s$€£¥%'\u00a0]|EUR|USD|CHF|GBP", "", str(word)) for word in words[present]]
    if not bare:
        return None, ""
    what = ""
    if any(re.search(r"[$€£¥]|EUR|USD|CHF|GBP", str(word)) for word in words[present]):
        what += ", without its currency sign"
    units = [re.search(UNIT, word) for word in bare]
    names = {match[1] for match in units if match}
    if len(names) == 1 and sum(match is not None for match in units) >= MOSTLY * len(bare):
        what += f", without its unit {min(names)}"
        bare = [re.sub(UNIT, "", word) for word in bare]
    # Bookkeepers put what is owed into brackets.
    bare = [re.sub(r"^\(([^-+()]+)\)$", r"-\1", word) for word in bare]
    if any("," in word for word in bare):
        grouped = sum(
            bool(re.fullmatch(r"[-+]?\d{1,3}(,\d{3})+(\.\d+)?", word)) for word in bare if "," in word
        )
        if grouped == sum("," in word for word in bare):
            bare = [word.replace(",", "") for word in bare]
            what += ", with commas between thousands"
        else:
            bare = [word.replace(".", "").replace(",", ".") if "," in word else word for word in bare]
            what += ", with decimal commas"
    result = np.full(len(words), np.nan)
    for place, word in zip(np.flatnonzero(present), bare, strict=True):
        if re.fullmatch(NUMBER, word):
            result[place] = float(word)
    good = np.isfinite(result[present]).mean()
    return (result, what) if good >= MOSTLY else (None, "")


def _days(column: Any) -> Array:
    stamps = column.to_numpy(dtype="datetime64[s]" if column.dtype.kind == "M" else "timedelta64[s]")
    missing = np.isnat(stamps)
    values = stamps.astype(np.int64) / 86400.0
    return np.asarray(np.where(missing, np.nan, values - values[~missing].min(initial=np.inf)))


def _dates(words: NDArray[Any], present: NDArray[np.bool_]) -> tuple[Array, str] | None:
    """Days since the first of dates written as text, and how they were read; None if they are not dates."""
    import pandas as pd

    shape = re.compile(r"(\d{1,4})[-/.](\d{1,2})[-/.]\d{1,4}|(\d{1,2}\.?[- ])?[A-Za-z]{3,9}\.?[- ]\d{1,4}")
    found = [shape.match(str(word)) for word in words[present]]
    if not found or np.mean([match is not None for match in found]) < MOSTLY:
        return None
    first, second = (
        max((int(match[place]) for match in found if match and match[1] and len(match[1]) < 3), default=0)
        for place in (1, 2)
    )
    # Written with points the day comes first; else the place that goes beyond 12 is the day's.
    pointed = sum("." in str(word)[:3] for word in words[present]) > len(found) / 2
    day_first = first > 12 or (pointed and second <= 12)
    read = pd.to_datetime(
        pd.Series([w if flag else None for w, flag in zip(words, present, strict=True)], dtype=object),
        format="mixed",
        dayfirst=day_first,
        errors="coerce",
        utc=True,
    )
    if read.notna().to_numpy()[present].mean() < MOSTLY:
        return None
    order = ""
    if first:
        sure = max(first, second) > 12 or pointed
        order = f", the {'day' if day_first else 'month'} first" + ("" if sure else " (it could be the day)")
    return _days(read.dt.tz_localize(None)), order


def _target(target: Any, name: str, work: _Work) -> tuple[Array, tuple[str, ...]]:
    """Targets (n, k) and their classes: a number, -1 and 1 for two classes, a column for each of more."""
    if hasattr(target, "to_numpy"):
        numeric = target.dtype.kind in "iuf"
        raw = target.to_numpy(dtype=np.float64, na_value=np.nan) if numeric else target.to_numpy(dtype=object)
    else:
        raw = np.asarray(target)
    if raw.ndim == 2 and raw.shape[1] == 1:
        raw = raw[:, 0]
    if raw.ndim != 1:
        raise ValueError(f"y must have one dimension, got shape {raw.shape}: diagnose the targets one by one")
    if raw.dtype.kind in "iuf":
        values = np.asarray(raw, dtype=np.float64)
        values = work.gapped(np.where(np.isfinite(values), values, np.nan), name)
        few = np.unique(values[np.isfinite(values)])
        if 2 < len(few) <= FEW_NUMBERS and (few % 1 == 0).all():
            work.notes.append(
                f"the target {name!r} has {len(few)} different whole numbers and is taken as a number: write them as "
                "text (c1, c2, …) if they are classes"
            )
        return values[:, None], ()
    missing = np.array(
        [value is None or value != value or str(value).strip() == "" for value in raw], dtype=bool
    )
    words = np.array([str(value).strip() for value in raw], dtype=object)
    numbers, what = numbers_of(words, ~missing)
    if numbers is not None:
        work.notes.append(f"the target {name!r} is text that is read as numbers{what}")
        return work.gapped(numbers, name)[:, None], ()
    levels = sorted(set(words[~missing]))
    if not 2 <= len(levels) <= MOST_LEVELS:
        raise ValueError(
            f"the target {name!r} is text with {len(levels)} different values: "
            f"it must be a number or one of 2 to {MOST_LEVELS} classes"
        )
    if len(levels) == 2:
        work.notes.append(f"the target is -1 for {levels[0]} and 1 for {levels[1]}")
        values = np.where(words == levels[1], 1.0, -1.0)[:, None]
    else:
        work.notes.append(f"the target has {len(levels)} classes: one output for each of them")
        values = np.where(words[:, None] == np.array(levels, dtype=object), 1.0, -1.0)
    return np.where(missing[:, None], np.nan, values), tuple(levels)
