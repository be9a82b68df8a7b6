"""How prompts and responses are laid out as model inputs, one layout a file."""

from verl_core.trainer.packing.batch import ModelInputs, TokenBatch
from verl_core.trainer.packing.padded import padded_inputs
from verl_core.trainer.packing.plan import plan_micro_batches
from verl_core.trainer.packing.shared_prefix import shared_prefix_inputs

__all__ = [
    "ModelInputs",
    "TokenBatch",
    "padded_inputs",
    "plan_micro_batches",
    "shared_prefix_inputs",
]
