"""A step whose rows are scored as they come, and what of its table must not depend on that."""

from __future__ import annotations

from verl_reward_sdk import RewardBatch

N = 12
GROUPS = [f"g{row // 4}" for row in range(N)]


def whole(kit, **fields) -> RewardBatch:
    """Three groups of four rows."""
    return kit.batch(N, group_ids=GROUPS, **fields)


def opened(engine, batch, **options):
    lease = engine.lease(batch.step)
    return engine.stream(batch.sample_ids, batch.group_ids, lease=lease, **options)


def streamed(engine, batch, chunks, **options):
    """The table of `batch`, of which these rows came one after the other."""
    scoring = opened(engine, batch, **options)
    for chunk in chunks:
        scoring.submit(batch.take(chunk))
    scoring.run(engine.mounts)
    return scoring.finish()


def bits(table):
    """All that scoring decides, bytes for floats."""
    columns = {
        name: (
            column.scores.tobytes(),
            column.normalised.tobytes(),
            column.contribution.tobytes(),
            column.codes.tobytes(),
            column.words.tobytes(),
            dict(column.notes),
            {key: values.tobytes() for key, values in column.extras.items()},
        )
        for name, column in table.columns.items()
    }
    return columns, table.fused.tobytes(), table.masked.tobytes(), table.mask_reason
