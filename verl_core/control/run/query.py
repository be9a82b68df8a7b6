"""Which samples are wanted: by mount, status, score and text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

STATUSES = ("ok", "abstained", "failed", "not_applicable")
VERDICTS = ("gated", "masked", "blocked")
_MOST_SEARCHED = 2000
_MOST_BYTES = 16 << 20


@dataclass(frozen=True, kw_only=True)
class SampleQuery:
    """A sample is wanted where all hold that are given.

    Args:
        mount: `status`, `low` and `high` speak of this mount; without one `status` of any, the
            bounds of the fused reward.
        status: one of a mount's (`STATUSES`), or of the row's (`VERDICTS`).
        low, high: the raw score of the mount, or the fused reward, lies between them, ends
            included.
        text: stands in the prompt, the response or a reason, in whatever case.
        step: the sample is of this step.
        limit: at most so many.
        before: only samples with a lower number; None: from the newest.
    """

    mount: str | None = None
    status: str | None = None
    low: float | None = None
    high: float | None = None
    text: str = ""
    step: int | None = None
    limit: int = 20
    before: int | None = None

    def wants(self, record: Mapping[str, Any]) -> bool:
        """Whether `record`, a line of ``samples.jsonl``, is wanted."""
        if self.step is not None and record.get("step") != self.step:
            return False
        explain = mapping(record.get("explain"))
        mounts = mapping(explain.get("mounts"))
        if self.mount is not None and self.mount not in mounts:
            return False
        return (
            self._has_status(explain, mounts)
            and self._in_range(record, mounts)
            and self._has_text(record, mounts)
        )

    def _has_status(self, explain: Mapping[str, Any], mounts: Mapping[str, Any]) -> bool:
        match self.status:
            case None:
                return True
            case "masked":
                return explain.get("masked") is not None
            case "blocked":
                return bool(explain.get("blocked"))
            case "gated":
                if self.mount is None:
                    return explain.get("gate") not in (None, "none")
                return mapping(mounts[self.mount]).get("severity") not in (None, "none")
        asked = mounts.values() if self.mount is None else (mounts[self.mount],)
        return any(mapping(part).get("status") == self.status for part in asked)

    def _in_range(self, record: Mapping[str, Any], mounts: Mapping[str, Any]) -> bool:
        if self.low is None and self.high is None:
            return True
        value = (
            record.get("fused") if self.mount is None else mapping(mounts[self.mount]).get("raw")
        )
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return False
        return (self.low is None or value >= self.low) and (self.high is None or value <= self.high)

    def _has_text(self, record: Mapping[str, Any], mounts: Mapping[str, Any]) -> bool:
        wanted = self.text.casefold()
        if not wanted:
            return True
        texts = [record.get("prompt"), record.get("response"), record.get("sample_id")]
        texts += [mapping(part).get("reason") for part in mounts.values()]
        return any(isinstance(text, str) and wanted in text.casefold() for text in texts)


def search(
    numbers: Iterable[int],
    read: Callable[[int], tuple[Mapping[str, Any] | None, int]],
    query: SampleQuery,
) -> tuple[list[tuple[int, Mapping[str, Any]]], int | None, int]:
    """Look at samples until enough are found, or enough were looked at.

    Args:
        numbers: of the samples, newest first, all below `query.before`.
        read: number -> (record, None where there is none; its bytes).

    Returns:
        ``(number, record)`` of those found; the number to search on below, None where all were
        looked at; how many were.
    """
    found: list[tuple[int, Mapping[str, Any]]] = []
    searched = size = 0
    last: int | None = None
    for number in numbers:
        if len(found) >= query.limit or searched >= _MOST_SEARCHED or size >= _MOST_BYTES:
            return found, last, searched
        record, length = read(number)
        last, searched, size = number, searched + 1, size + length
        if record is not None and query.wants(record):
            found.append((number, record))
    return found, None, searched


def mapping(value: Any) -> Mapping[str, Any]:
    """`value` where it is a mapping, else an empty one: files may hold anything."""
    return value if isinstance(value, Mapping) else {}
