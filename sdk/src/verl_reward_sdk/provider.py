"""The base class of a reward: what a plugin author writes."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Generic,
    Literal,
    TypeVar,
    get_args,
    get_origin,
)

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationInfo

from verl_reward_sdk.batch import RewardBatch
from verl_reward_sdk.result import RewardResult

Execution = Literal["inline", "async", "thread", "process", "ray"]
Scope = Literal["row", "group"]
Scores = RewardResult | Sequence[float | None]


class ProviderConfig(BaseModel):
    """Base class of a provider's config: unknown keys are refused, and it never changes."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


def _asset(path: Path, info: ValidationInfo) -> Path:
    base = (info.context or {}).get("base_dir")
    resolved = path if path.is_absolute() or base is None else Path(base) / path
    if not resolved.exists():
        raise ValueError(f"no such file or folder: {resolved}")
    return resolved


#: A file or folder that a config names. Relative paths count from the folder of the run's YAML
#: (the validation context's ``base_dir``); one that does not exist is refused when it is read.
AssetPath = Annotated[Path, AfterValidator(_asset)]

ConfigT = TypeVar("ConfigT", bound=BaseModel)


class RewardProvider(Generic[ConfigT]):
    """Scores responses.

    Lifecycle: construct with a config (cheap: no I/O, no heavy import), `setup` (load), `score`
    (from one thread at a time unless `thread_safe`), `close`. A provider never changes its batch,
    never reads another mount's state, and gives the same scores for the same rows in any order,
    up to `order_tolerance`.

    Subclass it as ``RewardProvider[MyConfig]``, or with a bare ``RewardProvider`` if there is
    nothing to configure.
    """

    #: The reward's name, as in the entry point: ``rouge``.
    name: ClassVar[str] = ""
    #: One line for ``verl-reward info``; by default the docstring's first line.
    description: ClassVar[str] = ""
    #: The pydantic model of its config; by default the class's type argument.
    Config: ClassVar[type[BaseModel]] = ProviderConfig
    if TYPE_CHECKING:
        # For a type checker a read-only property, which a subclass may override by either form.
        @property
        def score_range(self) -> tuple[float, float]:
            """Inclusive bounds of every score."""
    else:
        #: Inclusive bounds of every score: a constant of the class, or a property that depends on
        #: the config.
        score_range = (float("-inf"), float("inf"))
    #: Where it runs unless a mount says otherwise.
    execution: ClassVar[Execution] = "thread"
    #: ``row``: rows are scored alone and may be streamed. ``group``: it needs a whole group.
    scope: ClassVar[Scope] = "row"
    #: What it is meant for: a reward to be summed, or a gate that stands over the sum.
    role: ClassVar[Literal["reward", "gate"]] = "reward"
    #: How far scores may move with the order and the company of rows (a float32 network: 1e-4).
    order_tolerance: ClassVar[float] = 0.0
    #: May `score` be called from several threads at once?
    thread_safe: ClassVar[bool] = False
    #: Do its answers hold `RewardResult.token_scores`? Ones that are not declared are refused.
    token_scores: ClassVar[bool] = False
    #: Same rows, same scores? A remote judge says False.
    deterministic: ClassVar[bool] = True

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "Config" not in cls.__dict__:
            for base in getattr(cls, "__orig_bases__", ()):
                argument = next(iter(get_args(base)), None)
                origin = get_origin(base)
                if (
                    inspect.isclass(origin)
                    and issubclass(origin, RewardProvider)
                    and inspect.isclass(argument)
                    and issubclass(argument, BaseModel)
                ):
                    cls.Config = argument
        if "description" not in cls.__dict__:
            lines = (cls.__doc__ or "").strip().splitlines()
            cls.description = lines[0] if lines else ""

    def __init__(self, config: ConfigT) -> None:
        self.config = config

    @property
    def reads(self) -> frozenset[str]:
        """The data-set columns it needs; only these are handed to it."""
        return frozenset()

    def assets(self) -> tuple[Path, ...]:
        """The files and folders it reads; a change of one of them makes a new generation.

        What its config names of them it finds as private copies, at other paths: it reads them by
        the config's paths, in `setup` or later, never by paths that it noted elsewhere."""
        return ()

    @property
    def labels(self) -> Sequence[str] | None:
        """What its scores are about, in the model's own order (``["safe", "unsafe"]``); None where
        nothing is labelled. Asked for after `setup`. A new generation whose labels are others is
        refused: its scores would mean something else."""
        return None

    def probe(self) -> RewardBatch | None:
        """A few rows on which a new generation is tried before it serves; None: the rows that the
        mount scored last. Those of ``execution: process`` are asked of an instance that was not
        set up."""
        return None

    def setup(self) -> None:
        """Load what scoring needs: heavy imports, models, files."""

    def score(self, batch: RewardBatch) -> Scores:
        """One score a row: ``float``, or None for an abstention (no knowledge about the row)."""
        raise TypeError(f"{type(self).__name__} does not define score(batch)")

    def close(self) -> None:
        """Release what `setup` took."""

    def state(self) -> Mapping[str, Any]:
        """What it learnt while it ran, for the checkpoint; plain values and arrays only. Asked for
        after `setup` and after each finished training step."""
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take back what `state` gave: when a run goes on, when a step is scored again, and in a
        fresh instance. Comes after `setup`."""


class AsyncRewardProvider(RewardProvider[ConfigT]):
    """A provider whose work is waiting (I/O, judges): its methods are coroutines.

    All three run on one event loop, the engine's own; at the deadline the call is cancelled.
    """

    execution: ClassVar[Execution] = "async"
    thread_safe: ClassVar[bool] = True

    async def setup(self) -> None:  # type: ignore[override]
        """Open clients and sessions."""

    async def score(self, batch: RewardBatch) -> Scores:  # type: ignore[override]
        """One score a row, as `RewardProvider.score`."""
        raise TypeError(f"{type(self).__name__} does not define async score(batch)")

    async def close(self) -> None:  # type: ignore[override]
        """Close what `setup` opened."""
