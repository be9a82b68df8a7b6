"""The sections of a run's YAML that are not about rewards, one model each."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from verl_core.config.base import Items, LocalPath, Model, ModelName, Pair
from verl_core.config.limits import MAX_THREADS, MIN_TEMPERATURE

Share = Annotated[float, Field(ge=0.0, le=1.0)]
Count = Annotated[int, Field(ge=1)]


class ModelConfig(Model):
    """``model:``"""

    path: ModelName
    """A folder in Hugging Face format, or a hub id ``owner/name``."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the trained weights."""
    critic: ModelName | None = None
    """What PPO's critic starts from; by default `path`."""


class DataConfig(Model):
    """``data:``"""

    train: LocalPath
    """JSON lines, one prompt a line."""
    eval: LocalPath | None = None
    """Held-out prompts, in the same form."""
    prompt_key: str = Field(default="prompt", min_length=1)
    """The column that holds the prompt: text, or a list of ``{role, content}``."""
    reference_key: str = Field(default="ground_truth", min_length=1)
    """The column that reports show as the reference answer, where a row has it."""
    max_prompt_tokens: Count = 512
    """Longer prompts are refused before training."""
    eval_limit: Count | None = None
    """Evaluate on the first so many rows only."""
    shuffle: bool = True
    """Draw training rows in a seeded random order, anew each epoch."""


class RolloutConfig(Model):
    """``rollout:``"""

    backend: Literal["hf"] = "hf"
    """What generates."""
    n: Count = 8
    """Responses a prompt."""
    eval_n: Count = 1
    """Responses a held-out prompt in evaluation."""
    prompts_per_step: Count = 4
    """Prompts a step."""
    max_new_tokens: Count = 48
    """Longest response, in tokens."""
    temperature: float = Field(default=1.0, ge=MIN_TEMPERATURE)
    """Of sampling."""
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    """Sample from the likeliest tokens that together have this probability."""
    top_k: int = Field(default=0, ge=0)
    """Sample from so many likeliest tokens; 0: all."""
    batch_rows: Count = 64
    """Rows that are generated at once."""
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """Of the copy that generates."""
    stream: bool = True
    """Score responses while others of the step are still generated; the scores are the same."""
    slice_prompts: Count = 1
    """The responses to so many prompts are scored together; ``async`` rewards get single rows."""


class AlgorithmConfig(Model):
    """``algorithm:``"""

    clip_ratio: float = Field(default=0.2, gt=0.0)
    """The probability ratio is clipped to 1 - this … 1 + `clip_ratio_high`."""
    clip_ratio_high: float | None = Field(default=None, gt=0.0)
    """By default `clip_ratio`."""
    norm_adv_by_std: bool = True
    """GRPO: divide by the group's standard deviation."""
    loss_agg: Literal["token-mean", "seq-mean-token-mean"] = "token-mean"
    """How token losses become one number."""
    kl_coef: float = Field(default=0.0, ge=0.0)
    """Weight of the KL to the reference model."""
    kl_in: Literal["loss", "reward"] = "loss"
    """Where the KL enters: the loss, or each token's reward."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    """Schulman's estimators of the KL."""
    entropy_coef: float = Field(default=0.0, ge=0.0)
    """Weight of the entropy bonus."""
    gamma: Share = 1.0
    """Discount, PPO."""
    lam: Share = 0.95
    """GAE's lambda, PPO."""
    value_clip: float | None = Field(default=0.2, gt=0.0)
    """How far a value may move in one update, PPO; null: any distance."""
    epochs: Count = 1
    """Passes over a step's rows."""
    minibatches: Count = 1
    """Optimizer steps a pass."""
    allow_double_kl: bool = False
    """Let a `RewardNode` subtract a KL penalty while ``kl_in: reward`` does so too."""

    @property
    def nodes_may_pay_kl(self) -> bool:
        """Whether a `RewardNode` may subtract a KL penalty: not where tokens' rewards have it."""
        return self.kl_coef == 0 or self.kl_in != "reward" or self.allow_double_kl


class OptimConfig(Model):
    """``optim:``, AdamW."""

    lr: float = Field(default=1.0e-5, ge=0.0)
    """Learning rate of the policy."""
    critic_lr: float = Field(default=1.0e-5, ge=0.0)
    """Learning rate of the critic."""
    betas: Pair[Annotated[float, Field(ge=0.0, lt=1.0)]] = (0.9, 0.95)
    """Decay of the two moments."""
    weight_decay: float = Field(default=0.0, ge=0.0)
    """Decoupled weight decay."""
    max_grad_norm: float = Field(default=1.0, gt=0.0)
    """Gradients are scaled down to this norm."""
    warmup_steps: int = Field(default=0, ge=0)
    """Steps over which the rate rises from 0."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """The rate after the warm-up."""
    autocast: Literal["auto", "bfloat16", "none"] = "auto"
    """Precision of the update; auto: bfloat16 where it is faster."""


class TrainerConfig(Model):
    """``trainer:``"""

    steps: Count = 16
    """How many steps to train."""
    micro_batch_rows: Count = 8
    """Rows that go through the model at once."""
    checkpoint_every: int = Field(default=10, ge=0)
    """Steps between checkpoints; 0: only at the end."""
    keep_checkpoints: Count = 2
    """Older checkpoints are deleted."""
    eval_every: int = Field(default=0, ge=0)
    """Steps between evaluations; 0: none in between."""
    eval_before: bool = True
    """Evaluate before the first step."""
    eval_after: bool = True
    """Evaluate after the last step."""
    reward_retries: int = Field(default=2, ge=0)
    """How often a step whose rewards failed is scored again."""
    threads: int | None = Field(default=None, ge=1, le=MAX_THREADS)
    """Threads of torch; by default its own choice."""


class ServerConfig(Model):
    """``server:``, the control plane."""

    enabled: bool = True
    """Serve while training."""
    host: str = Field(default="127.0.0.1", min_length=1)
    """The address to listen on."""
    allowed_hosts: Items[str] = ()
    """Further host names under which clients may call, such as a proxy's."""
    port: int = Field(default=8000, ge=0, le=65535)
    """The port; 0: any free one."""
    workers: int = Field(default=1, ge=1, le=64)
    """Processes that score, of ``verl-reward serve``; also ``--workers``."""
    max_requests: int = Field(default=64, ge=1, le=4096)
    """Scoring requests under way at once, in each process; others get 429 and Retry-After."""
    max_rows: int = Field(default=65_536, ge=1, le=10_000_000)
    """Rows under way at once, in each process, in all requests together."""
    max_body_mib: int = Field(default=16, ge=1, le=1024)
    """The largest scoring body; larger ones are streamed as lines."""
    deadline: float = Field(default=120.0, gt=0.0, le=86_400.0)
    """Seconds after which a scoring request is answered by 504."""
    drain: float = Field(default=10.0, ge=0.0, le=3600.0)
    """Seconds in which ``verl-reward serve``, told to stop, finishes what is under way."""
    live_rows: int = Field(default=256, ge=0, le=65_536)
    """Rows of a request to score that a training run takes, one request at a time; 0: none."""
    lease_ttl: float = Field(default=3600.0, gt=0)
    """Seconds after its last use in which a lease that was taken over HTTP ends by itself."""
    log: Literal["text", "json"] = "text"
    """What stderr tells: warnings for people, or each request and change as a line of JSON."""


class TrackingConfig(Model):
    """``tracking:``"""

    tensorboard: bool = True
    """Write TensorBoard events beside ``metrics.jsonl``."""
    samples_per_step: int = Field(default=4, ge=0)
    """Responses a step that are kept in ``samples.jsonl``."""
