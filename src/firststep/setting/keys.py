"""Keys that are the same on every machine and in every process."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any


def stable_key(content: Mapping[str, Any]) -> str:
    """Short hash of a JSON-able description that is the same on every machine and in every process."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
