"""Files that hold a table: separators, encodings and packings are recognised, what cannot be read is refused."""

import bz2
import gzip
import io
import lzma
import re
import zipfile
from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    import pandas as pd

KINDS = (".csv", ".tsv", ".txt", ".parquet", ".pq", ".xlsx")
SHEETS = (".xls", ".xlsm", ".xlsb", ".ods", ".numbers")
SEPARATORS = (",", ";", "\t", "|")
# How a file may be packed; .zip, which may hold several, is opened apart.
PACKED: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.decompress,
    ".bz2": bz2.decompress,
    ".xz": lzma.decompress,
}
# Bytes in which encoding and separator show.
HEAD = 2**16


def read_table(path: str | PathLike[str]) -> "pd.DataFrame":
    """A table as a pandas data frame: CSV with any of the usual separators, Parquet, or the first sheet of .xlsx.

    Each may be packed as .gz, .bz2, .xz or .zip.
    """
    place = Path(path)
    packing = place.suffix.lower()
    if packing in PACKED:
        kind = place.with_suffix("").suffix.lower() or ".csv"
    elif packing == ".zip":
        kind = ".csv"
    else:
        kind = packing
    if kind not in KINDS:
        cure = ": save the sheet as .xlsx or CSV" if kind in SHEETS else ""
        raise ValueError(f"the data must be one of {', '.join(KINDS)}, got {str(path)!r}{cure}")
    if not place.is_file():
        raise ValueError(f"there is no file {str(path)!r}")
    try:
        import pandas  # noqa: F401
    except ImportError as error:
        raise ImportError("reading tables needs pandas: install firststep[data]") from error
    try:
        if packing == ".zip":
            source, kind = _only_member(place)
        else:
            source = (
                io.BytesIO(PACKED[packing](place.read_bytes())) if packing in PACKED else place.open("rb")
            )
        with source:
            return _read(source, kind)
    except ImportError as error:
        if kind == ".xlsx":
            raise ImportError(
                "reading .xlsx needs openpyxl: pip install openpyxl, or save the sheet as CSV"
            ) from error
        raise ImportError("reading Parquet needs pyarrow: install firststep[data]") from error
    except (ValueError, OSError, EOFError, lzma.LZMAError, zipfile.BadZipFile) as error:
        raise ValueError(f"{str(path)!r} cannot be read as a table: {error}") from error


def _only_member(place: Path) -> tuple[BinaryIO, str]:
    """The one table in an archive, and its kind."""
    with zipfile.ZipFile(place) as archive:
        # What a system adds for itself begins with a point or underscores.
        names = [name for name in archive.namelist() if not re.search(r"(^|/)(\.|__)|/$", name)]
        # pandas names what it packs after the archive.
        alone = len(names) == 1 and Path(names[0]).suffix.lower() in ("", ".zip")
        tables = names if alone else [name for name in names if Path(name).suffix.lower() in KINDS]
        if len(tables) != 1:
            held = f"{len(tables)} tables ({', '.join(tables[:3])})" if tables else "no table"
            raise ValueError(f"the archive holds {held}, one is wanted: unpack the one that is meant")
        if archive.getinfo(tables[0]).flag_bits & 1:
            raise ValueError(f"{tables[0]!r} is locked by a password: unpack it first")
        return io.BytesIO(archive.read(tables[0])), ".csv" if alone else Path(tables[0]).suffix.lower()


def _read(source: BinaryIO, kind: str) -> "pd.DataFrame":
    """The table of an open file of a kind."""
    import pandas as pd

    if kind == ".xlsx":
        return pd.read_excel(source, engine="openpyxl")
    if kind in (".parquet", ".pq"):
        return pd.read_parquet(source)
    encoding = _encoding(source.read(HEAD))
    source.seek(0)
    separator = _separator(source, encoding)
    source.seek(0)
    table = pd.read_csv(source, sep=separator, encoding=encoding, skipinitialspace=True)
    return table.rename(columns=lambda name: name.strip() if isinstance(name, str) else name)


def _encoding(head: bytes) -> str:
    if head[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return "utf-16"
    try:
        # A character may be cut at the end.
        head.decode("utf-8-sig", errors="strict") if len(head) < HEAD else head[:-4].decode("utf-8-sig")
    except UnicodeDecodeError:
        return "cp1252"
    return "utf-8-sig"


def _separator(source: BinaryIO, encoding: str) -> str:
    """The separator that divides most of the first lines into the most columns, equally many in each."""
    text = io.TextIOWrapper(source, encoding=encoding)
    lines = [line for line in (next(text, "") for _ in range(20)) if line.strip()]
    text.detach()
    # All lines alike count more than lines above the names, which decimal commas may look like.
    best, most, above = ",", (False, 0), 0
    for separator in SEPARATORS:
        # What is quoted does not divide.
        counts = [re.sub(r'"[^"]*"', "", line).count(separator) for line in lines]
        usual = max(set(counts), key=counts.count, default=0)
        head = next((i for i, count in enumerate(counts) if count == usual), 0)
        told = (head == 0, usual)
        if usual and told > most and set(counts[head:]) == {usual} and max(counts[:head], default=0) < usual:
            best, most, above = separator, told, head
    if above:
        raise ValueError(
            f"{above} lines stand above the names of the columns, the first is {lines[0].strip()[:40]!r}: delete them"
            if above > 1
            else f"a line stands above the names of the columns, {lines[0].strip()[:40]!r}: delete it"
        )
    return best
