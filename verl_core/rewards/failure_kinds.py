"""Why rows fail, in one word of a few: for figures, whose number must not grow with what goes
wrong. The reason in a person's words stands in the table."""

from __future__ import annotations

import numpy as np

from verl_core.rewards.answer import Answer
from verl_core.rewards.execution.breaker import BreakerOpen
from verl_core.rewards.execution.call import NotBegun, WorkerLost
from verl_core.rewards.statuses import FAILED
from verl_reward_sdk.errors import ContractError, ProviderTimeout

#: ``row``: the provider itself named the row among its `failures`.
KINDS = ("exception", "timeout", "queue", "contract", "breaker", "worker", "row")


def kind_of(error: BaseException | None) -> str:
    """The word for what failed a call; None: no call failed, the provider named a row."""
    match error:
        case None:
            return "row"
        case NotBegun():
            return "queue"
        case ProviderTimeout():
            return "timeout"
        case ContractError():
            return "contract"
        case BreakerOpen():
            return "breaker"
        case WorkerLost():
            return "worker"
    return "exception"


def failed_rows(answer: Answer) -> tuple[str, int]:
    """Why an answer's rows failed, and how many did: a call fails as a whole, or some rows do."""
    return kind_of(answer.error), int(np.count_nonzero(answer.codes == FAILED))
