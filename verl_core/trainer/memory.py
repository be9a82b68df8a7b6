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


_M_MMAP_THRESHOLD = -3  # of mallopt(3)
_LARGE = 1 << 20


def keep_large_blocks_apart() -> bool:
    """Have the C library (glibc) map each block of 1 MiB or more by itself.

    Left alone, glibc raises that bound to 32 MiB as it goes, and lays tensors of all sizes into
    heaps whose holes then fit nothing: a CPU run's resident size creeps up by some 0.2 GB more.
    Call it before the first model is loaded, but behind a conversion, whose blocks live briefly.

    Returns:
        Whether the C library has such a call, and took it.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and mallopt(_M_MMAP_THRESHOLD, _LARGE) == 1


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
