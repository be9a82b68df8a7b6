"""How much memory the run has taken."""

from __future__ import annotations

import resource
import sys


def peak_rss_gb() -> float:
    """The largest resident size of this process so far, in GB (10^9 bytes)."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    unit = 1 if sys.platform == "darwin" else 1024  # bytes there, KiB elsewhere
    return peak * unit / 1e9
