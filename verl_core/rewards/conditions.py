"""The conditions of a mount over a whole batch: `applies_to`, `when`, `only_if`.

`verl_core.config.condition` reads the language and checks its names; here it meets rows. A
condition on other mounts has a third answer: where a mount that it names abstained or failed on a
row, there is none. Such a row is asked all the same, and what is answered may then only lower it
(`Answer.unsure`), so that nothing is gained by making the named mount abstain.

Why a language of our own: of the libraries that fit, CEL's binding needs Python 3.11, installs a
terminal toolkit, and meets unknown names and wrong types only at run time; here both are known at
load.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from verl_core.config.condition import Condition, ConditionError, parse_condition
from verl_reward_sdk.errors import ConfigError

#: What the policy itself writes: a reward that applies by it could be chosen by the policy.
_WRITTEN_BY_POLICY = frozenset(
    {
        "responses",
        "responses_raw",
        "finish_reason",
        "trajectories",
        "response_ids",
        "response_mask",
    }
)


def column_condition(text: str, *, path: str) -> Condition:
    """A condition on data columns.

    Raises:
        ConfigError: it names what the policy wrote.
    """
    condition = parse_condition(text)
    for name in sorted(condition.names & _WRITTEN_BY_POLICY):
        raise ConfigError(
            f"{text!r} names {name!r}, which the policy writes: it could choose its rewards",
            path=path,
            hint="a condition on what was answered is a mount of its own, and when: names it",
        )
    return condition


def score_condition(text: str, *, path: str) -> Condition:
    """A condition on scores of mounts.

    Raises:
        ConfigError: it treats a score as something else than a number.
    """
    condition = parse_condition(text)
    try:
        condition(dict.fromkeys(condition.names, 0.0))
    except ConditionError as error:
        raise ConfigError(f"{text!r} does not fit scores: {error}", path=path) from None
    return condition


def holds(
    condition: Condition, columns: Mapping[str, Sequence[Any]], n: int, *, path: str
) -> npt.NDArray[np.bool_]:
    """(n,) bool: the rows whose values make `condition` true.

    Args:
        columns: n values of every name; for a score NaN or None where there is none.

    Raises:
        ConfigError: a row's value cannot be compared; it names the row and the value.
    """
    names = sorted(condition.names)
    out = np.zeros(n, dtype=bool)
    row = 0
    try:
        for row, values in enumerate(zip(*(columns[name] for name in names), strict=True)):
            out[row] = condition(dict(zip(names, values, strict=True)))
    except ConditionError as error:
        raise ConfigError(
            f"{condition.text!r} on row {row} of the batch: {error}", path=path
        ) from None
    except (TypeError, ValueError) as error:  # such as an array, which is neither true nor false
        raise ConfigError(
            f"{condition.text!r} on row {row} of the batch cannot be decided: {error}", path=path
        ) from error
    return out
