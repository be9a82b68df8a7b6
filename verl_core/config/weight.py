"""The forms of a mount's weight: a number from 0 to a million, or a schedule over steps.

These are forms only; `verl_core.rewards.schedules` computes with them.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag, model_validator
from typing_extensions import Self

from verl_core.config.base import Model, OrForm
from verl_core.config.limits import MAX_WEIGHT
from verl_core.config.problems import Finding, refuse
from verl_reward_sdk.errors import did_you_mean

Amount = Annotated[float, Field(ge=0.0, le=MAX_WEIGHT)]
KINDS = ("linear", "cosine", "step")


class LinearWeight(Model):
    """A straight line between two values, level before and after."""

    from_: Amount = Field(alias="from")
    """The weight up to step `start`."""
    to: Amount
    """The weight from step `start + steps` on."""
    steps: int = Field(ge=1)
    """How many steps the line takes."""
    start: int = Field(default=0, ge=0)
    """The step at which it begins."""


class CosineWeight(LinearWeight):
    """Half a wave of the cosine between two values, level before and after."""


class StepWeight(Model):
    """One value until a step is reached, then the next."""

    from_: Amount = Field(alias="from")
    """The weight before the first step of `at`."""
    at: Annotated[
        tuple[Annotated[tuple[Annotated[int, Field(ge=0)], Amount], Field(strict=False)], ...],
        Field(strict=False, min_length=1),
    ]
    """``[[step, value], …]``, steps rising."""

    @model_validator(mode="after")
    def _rising(self) -> Self:
        steps = [step for step, _ in self.at]
        refuse(
            [
                Finding(("at", index), f"step {step} does not come after {steps[index - 1]}")
                for index, step in enumerate(steps)
                if index and step <= steps[index - 1]
            ]
        )
        return self


class WeightSchedule(Model):
    """``{linear: {from, to, steps, start}}``, ``{cosine: …}`` alike, or ``{step: {from, at}}``."""

    linear: LinearWeight | None = None
    """A straight line."""
    cosine: CosineWeight | None = None
    """Half a wave of the cosine."""
    step: StepWeight | None = None
    """Stairs."""

    @model_validator(mode="before")
    @classmethod
    def _one_known_kind(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        found = [
            Finding((kind,), f"unknown schedule {kind!r}", did_you_mean(str(kind), KINDS))
            for kind in data
            if kind not in KINDS
        ]
        if not found and len(data) != 1:
            found = [
                Finding((), f"a schedule is one of {' or '.join(KINDS)}, got {len(data)} keys")
            ]
        refuse(found)
        return data

    def as_dict(self) -> dict[str, Any]:
        """The form that is written in YAML: ``{"linear": {"from": …}}``."""
        return self.model_dump(mode="json", exclude_none=True)


def _kind_of(value: Any) -> str:
    return "schedule" if isinstance(value, dict | WeightSchedule) else "number"


Weight = Annotated[
    Annotated[Amount, Tag("number")] | Annotated[WeightSchedule, Tag("schedule")],
    Discriminator(_kind_of),
    OrForm("a schedule ({linear: …}, {cosine: …} or {step: …})"),
]
