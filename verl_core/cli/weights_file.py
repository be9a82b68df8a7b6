"""A file of weights, as ``verl-reward weights put`` reads it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from verl_core.config.document import load_yaml, parse_yaml

_INPUT = "standard input"


def weights_file(name: str) -> dict[str, Any]:
    """The mapping in a YAML or JSON file, or, for ``-``, on standard input. What its values are
    worth is for the server to say.

    Raises:
        ConfigError: it cannot be read, or holds no such mapping; with its place.
    """
    node = parse_yaml(sys.stdin.read(), _INPUT) if name == "-" else load_yaml(Path(name))
    found = node.unwrap()
    if not isinstance(found, dict) or not found:
        raise node.origin.error(
            "these are no weights",
            hint="name every weight of the run as NAME: VALUE, one a line, as in accuracy: 2",
        )
    return {str(key): value for key, value in found.items()}
