"""What tests inside verl share: a plugin, settings for verl, its rows and our answers. Test modules
that import it are skipped without verl."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of verl and its libraries
    verl = pytest.importorskip("verl")
    from verl import DataProto

    from verl_core.integrations.verl import VerlRewardManager

SEAM = (
    "reward.reward_manager.source=importlib",
    "reward.reward_manager.module.path=pkg://verl_core.integrations.verl",
    "reward.reward_manager.name=VerlRewardManager",
)
#: Scores by what the response says, and remembers what it was given.
PROBE = '''
from verl_reward_sdk import RewardProvider, RewardResult, hookimpl
from verl_reward_sdk.provider import ProviderConfig

VERL_REWARD_API = 1
CALLS = []


class Config(ProviderConfig):
    reads: tuple[str, ...] = ()


class Probe(RewardProvider[Config]):
    """Scores the length of the response; does what it is told in it."""

    name = "probe"
    execution = "inline"

    @property
    def reads(self):
        return frozenset(self.config.reads)

    def score(self, batch):
        CALLS.append(batch)
        if any("explode" in text for text in batch.responses):
            raise ValueError("boom")
        scores = [None if "abstain" in t else float(len(t)) for t in batch.responses]
        failures = {i: "cannot" for i, t in enumerate(batch.responses) if "fail" in t}
        words = [
            next((word for word in ("veto", "skip") if word in t), "none")
            for t in batch.responses
        ]
        reasons = {i: "no idea" for i, t in enumerate(batch.responses) if "abstain" in t}
        return RewardResult(scores=scores, failures=failures, reasons=reasons, severity=words)


class GateProbe(Probe):
    """The same as a gate."""

    name = "gate_probe"
    role = "gate"


class GroupProbe(Probe):
    """The same, of whole groups."""

    name = "group_probe"
    scope = "group"


@hookimpl
def verl_reward_providers():
    return [Probe, GateProbe, GroupProbe]
'''
GATE = {"type": "guard", "plugin": "gate_probe", "role": "gate", "penalty": -3.0}


def overridden(base: Any, *overrides: str) -> Any:
    """A copy of verl's config with overrides, read as Hydra reads them on the command line."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from omegaconf import OmegaConf

    config = OmegaConf.create(OmegaConf.to_container(base))
    for override in OverridesParser.create().parse_overrides(list(overrides)):
        OmegaConf.update(config, override.key_or_group, override.value(), force_add=True)
    return config


def outputs(
    texts: Sequence[str],
    tokenizer: Any,
    *,
    prompts: Sequence[str] = (),
    pad: int = 0,
    eos: bool = True,
    **columns: Any,
) -> Any:
    """All outputs of one trajectory, packed as verl's `AgentLoopWorker._compute_score` does."""
    import torch
    from torch.nn.utils.rnn import pad_sequence

    prompts = prompts or ["ask"] * len(texts)
    asked = [torch.tensor(tokenizer(prompt).input_ids) for prompt in prompts]
    end = [tokenizer.eos_token_id] if eos else []
    answered = [torch.tensor(tokenizer(text).input_ids + end) for text in texts]
    whole = [torch.cat(pair) for pair in zip(asked, answered, strict=True)]
    tensors = {
        "prompts": pad_sequence(asked, batch_first=True),
        "responses": pad_sequence(answered, batch_first=True),
        "input_ids": pad_sequence(whole, batch_first=True),
        "attention_mask": pad_sequence([torch.ones_like(w) for w in whole], batch_first=True),
    }
    n = len(texts)
    known: dict[str, Any] = {
        "raw_prompt": [{"role": "user", "content": prompts[-1]}],
        "data_source": "shop",
        "reward_model": {"style": "rule", "ground_truth": "42"},
        "extra_info": {"index": 3},
        "uid": "u1",
    } | columns
    arrays = {key: np.array([value] * n) for key, value in known.items() if value is not None}
    if not pad:  # verl >= 0.8
        arrays["prompt_len"] = np.array([len(ids) for ids in asked])
        arrays["response_len"] = np.array([len(ids) for ids in answered])
    if pad:  # verl 0.7: one row, padded to the longest that may be
        tail, left = (torch.full((1, width), tokenizer.pad_token_id) for width in (pad, 2))
        for name in ("prompts", "input_ids"):
            tensors[name] = torch.cat([left, tensors[name]], 1)
        for name in ("responses", "input_ids"):
            tensors[name] = torch.cat([tensors[name], tail], 1)
        mask = tensors["attention_mask"]
        tensors["attention_mask"] = torch.cat([left * 0, mask, tail * 0], 1)
    return DataProto.from_dict(tensors=tensors, non_tensors=arrays)


def score(manager: VerlRewardManager, *rows: Any) -> list[Any]:
    """Each row's answer or error; all are asked for at once, as verl's worker does."""

    async def main() -> list[Any]:
        tasks = [asyncio.create_task(manager.run_single(row)) for row in rows]
        return await asyncio.gather(*tasks, return_exceptions=True)

    return asyncio.run(main())


def rewards(answers: Sequence[Any]) -> list[float]:
    return [answer["reward_score"] for answer in answers]
