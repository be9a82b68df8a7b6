"""Bounds that hold wherever a value comes from: a config, a schedule, HTTP."""

from __future__ import annotations

#: Of a weight. Rewards are of the order of 1; far beyond this a float64 sum loses the other mounts,
#: and the squares that a step's spread is made of overflow.
MAX_WEIGHT = 1e6
#: Of what a config itself adds to a sum of rewards (a gate's penalty, a default score), either way.
#: Two of 1e308 add up to infinity, and from 1e16 on no reward of the order of 1 shows beside it.
MAX_SCORE = 1e12
#: Of a temperature above 0. Here two tokens whose logits differ by 0.1 stand e^100 to 1, which is
#: greedy in all but name; far below it the logits divided by it leave float32's range.
MIN_TEMPERATURE = 1e-3
#: Of torch's threads: beyond what a machine can start, they end the process without a word.
MAX_THREADS = 1024
#: Of a pause before a retry, in seconds: pauses double up to it.
MAX_RETRY_WAIT = 10.0
#: Of a deadline or a pause of a mount: a week. The system calls that wait for one overflow beyond
#: 2^31 ms, which is 24 days.
MAX_SECONDS = 604_800.0
