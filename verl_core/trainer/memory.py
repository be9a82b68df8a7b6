"""How much memory the run takes, and giving back what it no longer needs."""

from __future__ import annotations

import ctypes
import resource
import sys


def peak_rss_gb() -> float:
    """The largest resident size of this process so far, in GB (10^9 bytes)."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    unit = 1 if sys.platform == "darwin" else 1024  # bytes there, KiB elsewhere
    return peak * unit / 1e9


def release_free_memory() -> bool:
    """Hand freed heap pages back to the system, where the C library can (glibc).

    Generation and update allocate tensors of other sizes each step; glibc keeps the holes between
    them, and a CPU run's resident size creeps up by a tenth of a GB a step without this.

    Returns:
        Whether the C library has such a call.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is None:
        return False
    trim(0)
    return True
