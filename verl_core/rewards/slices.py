"""The slices of a step: which rows a mount is asked about together, and which may be asked next.

What a slice holds depends on the order of the prompts and on fixed sizes, never on when a row came:

- a whole group (or a fixed number of them) for most mounts, whatever their scope;
- a single row for a mount of row scope that runs as ``async``: it waits for somebody else, so that
  nothing is gained by asking it about several rows at a time;
- the whole step for a mount that may not begin early.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Hashable, Mapping, Sequence
from itertools import chain

import numpy as np

from verl_core.rewards.mount import Mount, Rows


class Slice:
    """Rows about which a mount is asked together.

    Args:
        mount: which is asked.
        rows: of the step, ascending.
        waits: for how much it still waits: each row that has to come, each mount that has to
            answer on a row, and the stage of a mount that is not early.
    """

    __slots__ = ("mount", "rows", "waits")

    def __init__(self, mount: Mount, rows: Rows, waits: int) -> None:
        self.mount, self.rows, self.waits = mount, rows, waits


class Agenda:
    """Every mount's slices; those that wait for nothing any more lie in `ready`, by mount, or in
    `ready_inline` where the mount is an inline one. Whoever shares it holds a lock.

    Args:
        mounts: name -> mount.
        groups: (B,) which group a row is of.
        slice_groups: so many groups are a slice.
        early: mounts that wait for no stage.
    """

    def __init__(
        self,
        mounts: Mapping[str, Mount],
        groups: Sequence[Hashable],
        slice_groups: int,
        early: Collection[str],
    ) -> None:
        self.ready: dict[str, deque[Slice]] = {name: deque() for name in mounts}
        self.ready_inline: deque[Slice] = deque()
        self._of_row: dict[str, list[Slice]] = {}
        self._left: dict[str, int] = {}
        self._followers: dict[str, list[str]] = {name: [] for name in mounts}
        whole = [np.arange(len(groups))] if len(groups) else []
        single = [np.array([row]) for row in range(len(groups))]
        several = _in_groups(groups, slice_groups)
        for name, mount in mounts.items():
            late = name not in early
            parts = whole if late else single if _row_by_row(mount) else several
            of_row: dict[int, Slice] = {}
            for rows in parts:
                waits = len(rows) * (1 + len(mount.depends_on)) + late
                of_row.update(dict.fromkeys(rows.tolist(), Slice(mount, rows, waits)))
            self._of_row[name] = [of_row[row] for row in range(len(groups))]
            self._left[name] = len(parts)
            for other in mount.depends_on:
                self._followers[other].append(name)

    def came(self, rows: Sequence[int]) -> None:
        """These rows of the step are there."""
        for slices in self._of_row.values():
            for row in rows:
                self._loosen(slices[row])

    def opened(self, name: str) -> None:
        """The stage of a mount that was not early has come."""
        for one in self._of_row[name][:1]:
            self._loosen(one)

    def answered(self, one: Slice) -> None:
        """A mount has answered on a slice, or was not asked about any of its rows."""
        self._left[one.mount.name] -= 1
        for follower in self._followers[one.mount.name]:
            slices = self._of_row[follower]
            for row in one.rows.tolist():
                self._loosen(slices[row])

    @property
    def has_ready(self) -> bool:
        """Whether something lies in `ready`."""
        return any(self.ready.values())

    def clear(self) -> None:
        """Ask nothing more."""
        self.ready_inline.clear()
        for slices in self.ready.values():
            slices.clear()

    def done(self, name: str) -> bool:
        """Whether a mount has answered on every row."""
        return not self._left[name]

    def _loosen(self, one: Slice) -> None:
        one.waits -= 1
        if not one.waits:
            inline = one.mount.execution == "inline"
            (self.ready_inline if inline else self.ready[one.mount.name]).append(one)


def _row_by_row(mount: Mount) -> bool:
    return mount.execution == "async" and mount.provider.scope == "row"


def _in_groups(groups: Sequence[Hashable], size: int) -> list[Rows]:
    """The rows of every `size` groups, groups in the order of their first rows."""
    members: dict[Hashable, list[int]] = {}
    for row, group in enumerate(groups):
        members.setdefault(group, []).append(row)
    all_rows = list(members.values())
    return [
        np.array(sorted(chain(*all_rows[start : start + size])))
        for start in range(0, len(all_rows), size)
    ]
