"""What a server says of itself, on stderr: for people, or a JSON object a line.

The standard library's logging with a formatter of a few lines, rather than structlog: uvicorn,
plugins, Python's own warnings and our modules all speak through it already, so that one handler
writes them all in one form. Whatever passes it has its secrets hidden.
"""

from __future__ import annotations

import json
import logging
import sys
import traceback
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TextIO

from verl_core.config.secrets import longest_first, without

if TYPE_CHECKING:
    from verl_core.control.state import ControlState
    from verl_core.rewards.engine import RewardEngine

LogForm = Literal["text", "json"]

_OURS = "verl_core"
_changes = logging.getLogger("verl_core.control.change")


class Logs:
    """A handler on the root logger for as long as it is entered.

    Args:
        form: ``text``: warnings, as Python writes them; ``json``: requests and changes too.
        facts: what every line of the JSON form tells, such as the worker's number.
        stream: by default stderr, as it is when a line is written.
    """

    def __init__(
        self, form: LogForm, facts: dict[str, Any] | None = None, stream: TextIO | None = None
    ) -> None:
        self.form: LogForm = form
        self._formatter = _Text() if form == "text" else _Json(facts or {})
        self._handler = _Handler(stream)
        self._handler.setFormatter(self._formatter)
        self._handler.setLevel(logging.INFO if form == "json" else logging.WARNING)
        self._before = logging.NOTSET

    def hide(self, secrets: Iterable[str]) -> None:
        """Write a mark in the place of these texts from now on."""
        self._formatter.secrets = longest_first((*self._formatter.secrets, *secrets))

    def __enter__(self) -> Logs:
        logging.getLogger().addHandler(self._handler)
        self._before = logging.getLogger(_OURS).level
        if self.form == "json":
            logging.getLogger(_OURS).setLevel(logging.INFO)
            logging.captureWarnings(True)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        logging.getLogger().removeHandler(self._handler)
        if self.form == "json":
            logging.getLogger(_OURS).setLevel(self._before)
            logging.captureWarnings(False)


def log_changes(state: ControlState, engine: RewardEngine | None) -> None:
    """Log every change of the weights that this process makes, and every new generation."""

    def weights(before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        old, new = before["weights"], after["weights"]
        changed = {name: value for name, value in new.items() if old.get(name) != value}
        _changes.info(
            "weights: revision %d",
            after["revision"],
            extra={
                "fields": {
                    "event": "weights",
                    "run_id": state.run_id,
                    **{key: after[key] for key in ("revision", "author", "reason")},
                    "changed": changed,
                }
            },
        )

    def generation(mount: str, before: dict[str, Any], after: dict[str, Any]) -> None:
        _changes.info(
            "%s: generation %d",
            mount,
            after["number"],
            extra={
                "fields": {
                    "event": "generation",
                    "run_id": state.run_id,
                    "mount": mount,
                    "before": before["number"],
                    "after": after["number"],
                    "digests": dict(after.get("digests") or {}),
                }
            },
        )

    state.store.subscribe(weights)
    if engine is not None:
        engine.subscribe_generations(generation)


class _Handler(logging.StreamHandler[TextIO]):
    """Writes to whatever stderr is at the time, as Python's handler of last resort does."""

    def __init__(self, stream: TextIO | None) -> None:
        logging.Handler.__init__(self)
        self._fixed = stream

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return self._fixed or sys.stderr


class _Text(logging.Formatter):
    secrets: tuple[str, ...] = ()

    def format(self, record: logging.LogRecord) -> str:
        return without(super().format(record), self.secrets)


class _Json(logging.Formatter):
    secrets: tuple[str, ...] = ()

    def __init__(self, facts: dict[str, Any]) -> None:
        super().__init__()
        self._facts = facts

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, timezone.utc)
        line = {
            "time": time.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **self._facts,
            **getattr(record, "fields", {}),
        }
        if record.exc_info and record.exc_info[1] is not None:
            line["traceback"] = "".join(traceback.format_exception(record.exc_info[1])).rstrip()
        # Before it is JSON, where a secret's own quotes would look different.
        return json.dumps(self._hidden(line), ensure_ascii=False, default=str)

    def _hidden(self, value: Any) -> Any:
        match value:
            case str():
                # A lone surrogate has no UTF-8 form.
                text = value.encode("utf-8", "backslashreplace").decode("utf-8")
                return without(text, self.secrets)
            case dict():
                return {self._hidden(key): self._hidden(inner) for key, inner in value.items()}
            case list() | tuple():
                return [self._hidden(inner) for inner in value]
        return value
