"""Where a model's files come from: a folder, a cache, the hub, or a wheel. Imports no torch."""

from verl_core.trainer.model_source.identity import identity
from verl_core.trainer.model_source.resolve import ModelSource, check_model, resolve_model

__all__ = ["ModelSource", "check_model", "identity", "resolve_model"]
