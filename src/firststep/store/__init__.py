"""Finished points in one SQLite file: written once, readable while a run writes, and never half-written."""

from firststep.store.file import StoreError, migrate
from firststep.store.points import NUMBERS_VERSION, Entry, Store, flattened, open_store, subject_key

__all__ = [
    "NUMBERS_VERSION",
    "Entry",
    "Store",
    "StoreError",
    "flattened",
    "migrate",
    "open_store",
    "subject_key",
]
