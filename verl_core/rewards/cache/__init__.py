"""Scores that were given before: of one row, one generation of its provider, and nothing else.

A hit is what the provider said when it scored the same content under the same code, config and
generation. Failures are never kept, and neither are abstentions: who knew nothing of a row may know
tomorrow (a label that a person gives later). Only for mounts of row scope.
"""

from verl_core.rewards.cache.cache import RowCache, Split
from verl_core.rewards.cache.keys import asset_digests, cache_scope, code_version

__all__ = ["RowCache", "Split", "asset_digests", "cache_scope", "code_version"]
