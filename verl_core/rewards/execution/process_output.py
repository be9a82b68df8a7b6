"""What a worker process prints, passed on to the log line by line."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence

from verl_core.config.secrets import without

logger = logging.getLogger(__name__)

#: The most lines logged from one call's start to the next one's; the rest are counted.
MAX_LINES = 1000

_MAX_LINE = 2000
_MAX_DRAIN = 2**20


class Output:
    """The output of one worker. Belongs to one thread.

    Args:
        descriptor: the readable end of its pipe, which somebody else closes.
        who: the worker, for the log.
        secrets: texts that the log must not show.
    """

    def __init__(self, descriptor: int, who: str, secrets: Sequence[str]) -> None:
        #: To wait for; None once nobody can write there any more.
        self.descriptor: int | None = descriptor
        #: The last line that was not blank.
        self.last_line = ""
        self._who = who
        self._secrets = tuple(secrets)
        self._partial = b""
        self._rest = MAX_LINES
        self._dropped = 0
        os.set_blocking(descriptor, False)

    def drain(self) -> None:
        """Pass on what was printed so far; of very much, a part."""
        taken = 0
        while self.descriptor is not None and taken < _MAX_DRAIN:
            try:
                chunk = os.read(self.descriptor, 65536)
            except BlockingIOError:
                return
            if not chunk:
                self.descriptor = None  # all of its ends are closed
                return
            taken += len(chunk)
            *lines, self._partial = (self._partial + chunk).split(b"\n")
            if len(self._partial) > _MAX_LINE:
                lines.append(self._partial)
                self._partial = b""
            self._pass_on(lines)

    def sum_up(self) -> None:
        """A call has ended, or the next one begins: tell what was dropped, and log again."""
        dropped, self._dropped, self._rest = self._dropped, 0, MAX_LINES
        if dropped:
            logger.warning(
                "%s: %d more lines were not logged: at most %d a call are",
                self._who,
                dropped,
                MAX_LINES,
            )

    def finish(self) -> None:
        """It has ended: pass on what is left."""
        if self.descriptor is not None:
            self.drain()
        self._pass_on([self._partial])
        self._partial = b""
        self.sum_up()

    def _pass_on(self, lines: list[bytes]) -> None:
        logged, dropped = lines[: self._rest], lines[self._rest :]
        for line in logged:
            text = self._text(line)
            if text:
                self._rest -= 1
                self.last_line = text
                logger.warning("%s: %s", self._who, text)
        if dropped:
            self._dropped += len(dropped)
            self.last_line = self._text(dropped[-1]) or self.last_line

    def _text(self, line: bytes) -> str:
        text = without(line.decode("utf-8", "replace"), self._secrets)[:_MAX_LINE].rstrip()
        return "".join(c if c.isprintable() or c == "\t" else "?" for c in text)
