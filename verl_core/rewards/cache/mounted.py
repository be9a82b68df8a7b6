"""The cache of one mount: which of its rows are known, for the generation that runs."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, SecretBytes, SecretStr
from pydantic_core import to_jsonable_python

from verl_core.config.mount import CacheConfig
from verl_core.rewards.answer import Answer
from verl_core.rewards.cache.cache import RowCache, Split
from verl_core.rewards.cache.keys import asset_digests, cache_scope, code_version
from verl_core.rewards.raised import told
from verl_core.rewards.reload.copies import Taken
from verl_reward_sdk.batch import RewardBatch
from verl_reward_sdk.errors import ConfigError, ProviderError
from verl_reward_sdk.provider import RewardProvider


class _Shared:
    """The rows that all generations of a mount look into."""

    rows: RowCache | None = None


class MountCache:
    """A `RowCache` and the scope of the generation that is asked.

    Args:
        config: the mount's `cache`.
        provider: an instance, whose class, config and assets tell rows of one scope from another's.
        plugin: the plugin's name.
        dist: the distribution that brings it, with its version.
        base_dir: what a relative path counts from.
        path: the mount's YAML path, for errors.

    The rows are shared by all generations of the mount; each has a scope of its own.

    Raises:
        ConfigError: the scores of this provider must not be cached.
    """

    def __init__(
        self,
        config: CacheConfig,
        provider: RewardProvider[Any],
        *,
        plugin: str,
        dist: str,
        base_dir: Path,
        path: str,
    ) -> None:
        who = type(provider)
        why = None
        if provider.scope != "row":
            why = f"{who.__name__} scores whole groups, and what is cached is one row's score"
        elif who.state is not RewardProvider.state:
            why = f"{who.__name__} learns while it runs, so that a score of before is none of now"
        if why is not None:
            raise ConfigError(why, path=f"{path}.cache", hint="leave cache: out")
        self._config = config
        self._written = provider.config  # with the paths as they are written, not of copies
        self._provider = provider
        self._plugin = plugin
        self._dist = dist
        self._file = None if config.path is None else base_dir.absolute() / config.path
        self._path = path
        self._shared = _Shared()
        self._scope = b""

    @property
    def _rows(self) -> RowCache | None:
        return self._shared.rows

    @property
    def blocks(self) -> bool:
        """Whether a look into it may wait for a disk."""
        return self._file is not None

    def of_generation(self, provider: RewardProvider[Any], dist: str) -> MountCache:
        """That of the next generation, over the same rows."""
        following = copy.copy(self)
        following._provider, following._dist = provider, dist
        return following

    def open(self, taken: Taken | None = None) -> None:
        """Open its file, and note which generation is asked from now on.

        Args:
            taken: the assets that it was loaded from, where it was.

        Raises:
            ConfigError: the file cannot be opened; the provider's config cannot be keyed.
        """
        self._scope = cache_scope(
            provider=self._plugin,
            code=code_version(type(self._provider), self._dist),
            config=self._settings(),
            generation=asset_digests(self._provider.assets())
            if taken is None
            else [[asset, digest] for asset, digest in taken.digests.items()],
            path=self._path,
        )
        if self._rows is None:
            try:
                self._shared.rows = RowCache(self._config.rows, self._file)
            except ConfigError as error:
                raise error.with_location(path=f"{self._path}.cache.path") from error

    def _settings(self) -> Any:
        try:
            return _plain(self._written)
        except Exception as error:
            raise ConfigError(
                f"its scores cannot be cached: its config cannot be written ({told(error)})",
                path=f"{self._path}.cache",
                hint="leave cache: out",
            ) from error

    def split(self, batch: RewardBatch) -> Split:
        """What is known of `batch`, which holds the columns that the provider sees."""
        if self._rows is None:
            raise ProviderError("the mount was not set up, or is closed")
        return self._rows.split(batch, self._scope, tokens=self._provider.token_scores)

    def joined(self, split: Split, fresh: Answer | None) -> Answer:
        """Keep the `fresh` answer about the rows that were asked, and put it to what is known."""
        tokens = None if fresh is None else fresh.token_scores
        if fresh is not None and self._rows is not None:
            self._rows.put(split, fresh, tokens)
        answer, rows = split.joined(fresh, tokens)
        answer.token_scores = rows
        return answer

    def describe(self) -> dict[str, Any] | None:
        """``{rows, hits, hit_rate, kept}`` since it was opened; None before that."""
        if self._rows is None:
            return None
        figures = self._rows.figures()
        return {
            "rows": figures.rows,
            "hits": figures.hits,
            "hit_rate": figures.hits / figures.rows if figures.rows else 0.0,
            "kept": figures.kept,
        }

    def close(self) -> None:
        """Close its file, or let go of its rows."""
        rows, self._shared.rows = self._shared.rows, None
        if rows is not None:
            rows.close()


def _plain(value: Any) -> Any:
    """A config as plain values, with what it does not show elsewhere too: secrets, and fields that
    are left out of its JSON. They may matter to a score, and end in a digest only."""
    match value:
        case BaseModel():
            fields = {**value.__dict__, **(value.__pydantic_extra__ or {})}
            return {name: _plain(inner) for name, inner in fields.items()}
        case SecretStr() | SecretBytes():
            return [type(value).__name__, value.get_secret_value()]
        case Mapping():
            return {_plain(key): _plain(inner) for key, inner in value.items()}
        case list() | tuple():
            return [_plain(inner) for inner in value]
    return to_jsonable_python(value)
