"""The words of the table as numbers: the status of a row under a mount, and a gate's severity."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from verl_reward_sdk.result import SEVERITIES

Codes = npt.NDArray[np.int8]

OK, NOT_APPLICABLE, ABSTAINED, FAILED = range(4)
STATUSES = np.array(["ok", "not_applicable", "abstained", "failed"])

#: In order of gravity, so that the gravest word is the highest number.
NONE, PENALTY, VETO, SKIP = range(4)
SEVERITY = np.array(SEVERITIES)
SEVERITY_CODES = {word: code for code, word in enumerate(SEVERITIES)} | {
    True: VETO,
    False: NONE,
    None: NONE,
}

#: Why a row is shut by a gate that has no answer.
GATE_FAILED, GATE_ABSTAINED = "gate failed", "gate abstained"
