"""The places of an engine's mounts: looked at with each lease."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError, wait
from time import monotonic
from types import MappingProxyType
from typing import Any

from verl_core.rewards.build import MountBuilder
from verl_core.rewards.mount import Mount
from verl_core.rewards.reload.copies import SETTLE
from verl_core.rewards.reload.fingerprint import Stat
from verl_core.rewards.reload.place import Outside, Place, Result
from verl_reward_sdk.errors import ConfigError, ProviderError, did_you_mean

Observe = Callable[[str, Mapping[str, Any], Mapping[str, Any]], None]

_LOOK_SECONDS = 0.5


class UnknownMount(ConfigError):
    """No mount has that name."""


class Places:
    """Which generation of every mount serves. From any thread.

    Args:
        builders: of the mounts, in config order.
        check: raise `ConfigError` where these mounts do not go with the fusion policy.
        observe: told of each new generation that serves: the mount's name, before, after.
        watch: whether leases look at files at all.
        settle: seconds between two looks at files that must agree.
        stat: tells a path's stamp.
    """

    def __init__(
        self,
        builders: Iterable[MountBuilder],
        *,
        check: Callable[[Iterable[Mount]], None],
        observe: Observe,
        watch: bool = True,
        settle: float = SETTLE,
        stat: Stat,
    ) -> None:
        self._lock = threading.Lock()
        self._check = check
        self._leaving: tuple[Callable[[], None], ...] = ()
        outside = Outside(self._publish, self._fits, self._tell, observe, settle, stat)
        places = [Place(builder, builder.first(), outside) for builder in builders]
        self._places = {place.name: place for place in places}
        self._watch = watch
        self._watching: tuple[Place, ...] = ()
        #: The mounts that serve now, in config order: replaced as a whole, never changed.
        self.mounts: Mapping[str, Mount] = MappingProxyType(
            {place.name: place.active for place in places}
        )
        self._wait = max((place.config.reload_wait for place in places), default=0.0)

    def __iter__(self) -> Iterator[Place]:
        return iter(self._places.values())

    def setup(self, name: str) -> None:
        """Load generation 1 of a mount. Raises what loading raises."""
        self._places[name].setup()
        if self._watch:
            self._watching = tuple(place for place in self._places.values() if place.watches)

    def close(self) -> None:
        """Release every generation of every mount."""
        for place in self._places.values():
            place.close()

    # -- at each lease -----------------------------------------------------------------------------

    @property
    def quiet(self) -> bool:
        """Whether `look` would return at once."""
        return all(place.quiet() for place in self._watching)

    def look(self) -> None:
        """See whether files changed. Where a mount's ``reload`` is ``blocking``, wait for its new
        generation, ``reload_wait`` at most."""
        places = [place for place in self._watching if not place.quiet()]
        if not places:
            return
        end = monotonic() + self._wait
        while True:
            # A change that came while one was made is looked for again: the newest wins.
            waits = [found for place in places if (found := place.look()) is not None]
            loads = any(candidate.state == "loading" for candidate in waits)
            rest = end - monotonic()
            if not waits or (rest <= 0 and not loads):
                return
            wait([one.done for one in waits], max(0.05, min(rest, _LOOK_SECONDS)))

    def catch_up(self) -> bool:
        """See whether files changed, and wait for every new generation, ``reload_wait`` at most,
        whatever a mount's ``reload`` is; whether none is missing."""
        end = monotonic() + self._wait
        while True:
            made = [found for place in self._watching if (found := place.next_one()) is not None]
            if not made:
                return True
            rest = end - monotonic()
            if rest <= 0:
                return False
            wait([one.done for one in made], max(0.05, min(rest, _LOOK_SECONDS)))

    # -- asked for ---------------------------------------------------------------------------------

    def place(self, name: str) -> Place:
        """The place of a mount.

        Raises:
            UnknownMount: there is none of that name; the nearest is named.
        """
        if name not in self._places:
            raise UnknownMount(f"there is no mount {name!r}", hint=did_you_mean(name, self._places))
        return self._places[name]

    def reload(self, name: str) -> Result:
        """Look at a mount's files now, whatever was refused before, and wait for what comes of it;
        a `process` mount gets a fresh worker too.

        Raises:
            UnknownMount: there is none of that name.
            ProviderError: the engine was closed meanwhile.
        """
        try:
            return self.place(name).reload()
        except CancelledError as error:
            raise ProviderError("the engine was closed meanwhile") from error

    def before_swap(self, observer: Callable[[], None]) -> None:
        """Call `observer` before a generation is replaced, while it still serves."""
        self._leaving = (*self._leaving, observer)

    # -- generations -------------------------------------------------------------------------------

    def generation(self, name: str, number: int | None) -> Mount:
        """A mount's generation by its number: the one that serves where that is not held."""
        place = self._places[name]
        return place.retired.get(number) or place.active

    def _tell(self) -> None:
        for observer in self._leaving:
            observer()

    def _publish(self, mount: Mount) -> None:
        with self._lock:
            self.mounts = MappingProxyType({**self.mounts, mount.name: mount})

    def _fits(self, mount: Mount) -> None:
        self._check({**self.mounts, mount.name: mount}.values())
