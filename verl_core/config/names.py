"""What mounts and runs may be called.

Names are compared in Unicode's composed form (NFC): on one keyboard or file system ``é`` is one
character, on another two that look the same.
"""

from __future__ import annotations

import re
import unicodedata

NAME = re.compile(r"[^\W\d][\w-]*")
RUN_NAME = re.compile(r"\w[\w.-]*")
#: Of mounts, which stand in metrics' names, and of runs, whose folders add a few characters to it.
LONGEST = 100
#: Bytes of a run's name: a file system's bound is 255, and ``-12`` or ``.serve`` may follow.
LONGEST_BYTES = 200
#: Taken by log metrics: ``reward/fused/mean``, ``reward/masked``, ``weights/revision``.
RESERVED = frozenset(
    {"fused", "masked", "skipped", "blocked", "groups_dropped", "revision", "reward", "fusion"}
)


def composed(name: str) -> str:
    """`name` in the form in which names are compared."""
    return unicodedata.normalize("NFC", name)


def spelt(name: str) -> str:
    """``'caf\\xe9'`` where `name` holds what the eye may take for something else, else nothing.

    That is a mark, an invisible character, or a word of letters from ASCII and from elsewhere.
    """
    kinds = {unicodedata.category(c)[0] for c in name if not c.isascii()}
    odd = kinds & {"M", "C", "Z"} or not name.isprintable()
    mixed = "L" in kinds and any(c.isascii() and c.isalpha() for c in name)
    return ascii(name) if odd or mixed else ""


def run_name_problem(name: str) -> str:
    """Why a run cannot be called `name`: it becomes a folder; empty where it can."""
    if len(name) > LONGEST or len(name.encode("utf-8", "surrogatepass")) > LONGEST_BYTES:
        size = len(name.encode("utf-8", "surrogatepass"))
        said = (
            f"{len(name)} characters ({size} bytes); it may have {LONGEST} ({LONGEST_BYTES} bytes)"
        )
        return f"the name {_beginning(name)} has {said}"
    if not RUN_NAME.fullmatch(name):
        return f"{spelt(name) or repr(name)} is no name of a folder: letters, digits, _ . and -"
    return f"{name!r} ends with a dot, which not every file system keeps" if name[-1] == "." else ""


def mount_name_problem(name: str) -> str:
    """Why a mount cannot be called `name`; empty where it can."""
    if len(name) > LONGEST:
        said = f"{len(name)} characters; it may have {LONGEST}"
        return f"the name {_beginning(name)} has {said}"
    if name in RESERVED:
        return f"the name {name!r} is taken by the log"
    if not NAME.fullmatch(name):
        shown = spelt(name) or repr(name)
        return f"{shown} is no name: letters, digits, _ and -, a letter first"
    return ""


def _beginning(name: str) -> str:
    return repr(name[:20] + "…")


def snake_case(class_name: str) -> str:
    """``HTTPRewardNode`` -> ``http_reward_node``."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", class_name)
    return words.lower()


def mount_name(name: object, kind: object, node_class: object) -> str | None:
    """``name:``, else ``type:``, else (``type: custom``) the class in snake case without `Node`.

    None where what was written gives no name.
    """
    if isinstance(name, str):
        return composed(name)
    if isinstance(kind, str) and kind != "custom":
        return composed(kind)
    if isinstance(node_class, str) and kind == "custom":
        return snake_case(composed(node_class).rpartition(".")[2].removesuffix("Node")) or None
    return None
