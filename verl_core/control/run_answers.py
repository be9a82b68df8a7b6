"""The forms of the answers about a run's figures and samples, for the OpenAPI document."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class MountName(BaseModel):
    """One mount."""

    name: str
    role: str | None = Field(description="`reward` or `gate`.")
    plugin: str | None


class RunFacts(BaseModel):
    """What is served."""

    model_config = ConfigDict(extra="allow")

    run_id: str
    server: str = Field(description="Another one after every start of the server.")
    version: str
    kind: str = Field(description="`training`, `serving`, `folder` or `none`.")
    axis: str = Field(description="What a step counts: `step`, or `rows` scored so far.")
    read_only: str | None = Field(description="Why nothing can be changed here; null: it can.")
    mounts: list[MountName]
    name: str | None = None
    model: str | None = None
    status: str | None = None
    step: int | None = None
    steps: int | None = None
    started: str | None = None
    ended: str | None = None
    note: str | None = Field(None, description="What a reader must know of the figures.")


class Latest(BaseModel):
    """The newest step, be it among `steps` or not."""

    step: int | None
    figures: dict[str, float | None]


class Steps(BaseModel):
    """The figures of a run by step."""

    run_id: str
    edition: str = Field(description="Send it with the next request.")
    axis: str
    every: int = Field(description="One in so many steps is given.")
    steps: list[int]
    series: dict[str, list[float | None]] = Field(description="Name -> one figure a step.")
    latest: Latest


class Term(BaseModel):
    """What one mount adds to the fused value."""

    mount: str
    role: str | None
    text: str = Field(description="How it came about.")
    value: float


class Sum(BaseModel):
    """The fused value as a sum."""

    terms: list[Term]
    total: float | None
    fused: float | None
    holds: bool | None = Field(description="`total` is `fused`; null: the policy does not add.")
    note: str


class Sample(BaseModel):
    """One response with its scores."""

    number: int
    step: int | None
    sample_id: str | None
    group_id: str | None
    prompt: Any
    response: str | None
    reference: Any = None
    fused: float | None
    cut: list[str] = Field(description="Texts of which only the beginning is given.")
    explain: dict[str, Any] = Field(description="Each mount's score, weight, part and reason.")
    sum: Sum


class Samples(BaseModel):
    """Samples, newest first."""

    run_id: str
    edition: str
    axis: str
    samples: list[Sample]
    next: int | None = Field(description="As `before`: older ones. Null: there are none.")
    searched: int
    total: int


class Pair(BaseModel):
    """How two rewards move together."""

    first: str
    second: str
    values: list[float | None] = Field(description="One a step of `steps`, from -1 to 1.")
    latest: float | None


class Opposed(BaseModel):
    """One reward rises while another falls."""

    step: int
    until: int
    rising: str
    falling: str
    rise: float = Field(description="What its line gains over the window, at `step`.")
    fall: float


class Correlations(BaseModel):
    """How the rewards of a run move together."""

    run_id: str
    axis: str
    window: int = Field(description="In steps.")
    mounts: list[str]
    steps: list[int]
    pairs: list[Pair]
    marks: list[Opposed]
