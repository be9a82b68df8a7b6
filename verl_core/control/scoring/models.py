"""What a scoring request may say. One model for the route, its document and its clients."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

FinishReason = Literal["stop", "length", "abort", "tool_error"]
Identifier = Annotated[str, Field(min_length=1, max_length=200)]


class ScoreRow(BaseModel):
    """One response to score, with what its mounts read."""

    model_config = ConfigDict(extra="forbid", strict=True)

    prompt: str | list[dict[str, Any]] = Field(
        "", description="Text, or a list of chat messages {role, content}."
    )
    response: str = Field(description="The final assistant turn, special tokens removed.")
    columns: dict[str, Any] = Field(
        default_factory=dict, description="Data-set columns that mounts read, such as ground_truth."
    )
    sample_id: Identifier | None = Field(
        None, description="Comes back in the answer; by default the row's number."
    )
    group: Identifier | int | None = Field(
        None, description="Responses to one prompt share one. In all rows, or in none."
    )
    finish_reason: FinishReason = Field("stop", description="Why the response ends.")
    response_raw: str | None = Field(
        None, description="The response with special tokens; by default `response`."
    )
    trajectory: list[dict[str, Any]] | None = Field(
        None, description="The whole exchange of a multi-turn rollout. In all rows, or in none."
    )
    response_ids: list[int] | None = Field(
        None, description="Token ids of the response. In all rows, or in none."
    )
    response_mask: list[Literal[0, 1]] | None = Field(
        None, description="1 where the policy sampled the token. In all rows, or in none."
    )


class ScoreOptions(BaseModel):
    """How the rows are scored: members of the JSON body, or query parameters of a stream."""

    model_config = ConfigDict(extra="forbid", strict=True)

    explain: bool = Field(False, description="Take each row's fused reward apart.")
    training: bool = Field(
        False,
        description="Treat a gate that failed as training does: the row is masked, not blocked, and"
        " failures beyond max_error_rate refuse the whole request.",
    )
    lease: Identifier | None = Field(
        None, description="Score under this lease (410 where it has ended), not under a new one."
    )
    group: Identifier | None = Field(
        None,
        description="Score under the lease of this group of the run: the first asker fixes it.",
    )
    timeout: float | None = Field(
        None, gt=0, description="Seconds; at most the server's own deadline, which is the default."
    )


class ScoreRequest(ScoreOptions):
    """Rows that are scored together, under one lease."""

    rows: list[ScoreRow] = Field(description="None, one, or many; they are fused as one batch.")


class Component(BaseModel):
    """What one mount said of a row."""

    score: float | None = Field(description="As the provider gave it; null where there is none.")
    status: Literal["ok", "not_applicable", "abstained", "failed"]
    reason: str | None = Field(None, description="Why it abstained or failed, or what it saw.")
    severity: Literal["none", "penalty", "veto", "skip"] | None = Field(
        None, description="A gate's word; absent for rewards."
    )


class ScoredRow(BaseModel):
    """One row's rewards."""

    sample_id: str
    fused: float | None = Field(description="Null where the row is blocked or masked.")
    status: Literal["ok", "blocked", "masked"] = Field(
        description="blocked: a gate had no answer, and the row must not be passed."
    )
    reason: str | None = Field(description="Why it is blocked or masked.")
    gate: Literal["none", "penalty", "veto", "skip"] = Field(description="The gravest gate's word.")
    components: dict[str, Component] = Field(description="One a mount, in config order.")
    explain: dict[str, Any] | None = Field(
        None, description="Normalised scores, weights and contributions; with `explain` only."
    )


class Scored(BaseModel):
    """The answer to `ScoreRequest`."""

    run_id: str
    revision: int = Field(description="Of the weights that all rows were scored with.")
    generations: dict[str, int] = Field(description="Mount -> generation of its provider.")
    weights: dict[str, float]
    additive: bool = Field(description="Whether contributions add up to `fused`.")
    rows: list[ScoredRow] = Field(description="In the order of the request.")
