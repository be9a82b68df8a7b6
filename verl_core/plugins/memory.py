"""Failures of plugins, remembered between processes.

Listing imports nothing, so that it can only say `broken` of a plugin whose import failed earlier.
A failure belongs to one version of a distribution in one environment. It is forgotten when the
version changes or the plugin loads. Nothing depends on the file: where it cannot be read or
written, a plugin is merely listed as available.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from verl_core.plugins.discovery import Offer

logger = logging.getLogger(__name__)


class FailureMemory:
    """A JSON file in the user's cache folder: environment, distribution and version -> reasons."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path

    @property
    def path(self) -> Path:
        """The file; it need not exist."""
        if self._path is None:
            import platformdirs

            cache = platformdirs.user_cache_path("verl-reward", appauthor=False)
            self._path = cache / "plugin-failures.json"
        return self._path

    def recall(self, offer: Offer) -> str | None:
        """Why this version of the plugin failed when it was last imported, or None."""
        entry = self._read().get(_key(offer), {})
        if not isinstance(entry, dict) or entry.get("version") != offer.record.version:
            return None
        reason = entry.get("failures", {}).get(offer.record.name)
        return reason if isinstance(reason, str) else None

    def remember(self, offer: Offer, reason: str) -> None:
        """Keep `reason` for this version of the plugin."""
        entries = self._read()
        entry = entries.get(_key(offer), {})
        if entry.get("version") != offer.record.version:
            entry = {"version": offer.record.version, "failures": {}}
        if entry["failures"].get(offer.record.name) == reason:
            return
        entry["failures"][offer.record.name] = reason
        self._write({**entries, _key(offer): entry})

    def forget(self, offer: Offer) -> None:
        """The plugin has loaded: drop what was kept of it."""
        entries = self._read()
        failures = entries.get(_key(offer), {}).get("failures", {})
        if failures.pop(offer.record.name, None) is None:
            return
        if not failures:
            del entries[_key(offer)]
        self._write(entries)

    def _read(self) -> dict[str, Any]:
        try:
            content = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        if not isinstance(content, dict):
            return {}
        return {
            key: entry
            for key, entry in content.items()
            if isinstance(entry, dict) and isinstance(entry.get("failures"), dict)
        }

    def _write(self, entries: dict[str, Any]) -> None:
        kept = {key: entry for key, entry in entries.items() if Path(key.split("|")[0]).is_dir()}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=self.path.parent, prefix=".plugin-failures-")
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(kept, file, indent=1, sort_keys=True)
            os.replace(temporary, self.path)
        except OSError as error:
            logger.debug("plugin failures are not remembered: %s", error)


def _key(offer: Offer) -> str:
    return "|".join((offer.location, sys.prefix, offer.record.dist))
