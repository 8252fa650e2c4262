"""What the C library does with memory that is freed."""

from functools import lru_cache

import numpy as np

# Bytes below which glibc should keep what is freed.
LARGE_ARRAY = 2**23


@lru_cache(maxsize=1)
def calm_memory() -> None:
    """Free an array that was never written to, from which glibc learns not to give smaller ones back at once.

    Any freed array of that size would do the same. Small replicas would otherwise spend a fifth of their time on pages
    that were just given back to the kernel, theories a tenth to a sixth.
    """
    np.empty(LARGE_ARRAY, dtype=np.uint8)
