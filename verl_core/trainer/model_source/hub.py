"""Hugging Face's hub, asked briefly.

Its own client retries for most of a minute where there is no network, so the hub is asked once
whether it has a model, for 3 seconds at most, and only then is the client let loose.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

from verl_reward_sdk import ConfigError

PROBE_SECONDS = 3.0
_DEFAULT_ENDPOINT = "https://huggingface.co"
_TRUE = frozenset({"1", "on", "yes", "true"})
_WANTED = ("*.json", "*.safetensors", "*.jinja", "*.txt", "*.model", "*.tiktoken")


def offline(env: Mapping[str, str]) -> str | None:
    """The variable that forbids asking the hub, or None."""
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        if env.get(name, "").strip().lower() in _TRUE:
            return name
    return None


def endpoint(env: Mapping[str, str]) -> str:
    """The hub's address, without a slash at its end."""
    return (env.get("HF_ENDPOINT") or _DEFAULT_ENDPOINT).rstrip("/")


@lru_cache(maxsize=64)
def probe(address: str, model_id: str) -> str | None:
    """None where the hub at `address` has the model, else what it answered, in words.

    Asked once a process: a config that names a model twice waits once.
    """
    import httpx
    from huggingface_hub import get_token

    token = get_token()
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    url = f"{address}/{model_id}/resolve/main/config.json"
    answer: list[str | None] = []

    def ask() -> None:
        try:
            status = httpx.head(url, headers=headers, timeout=PROBE_SECONDS).status_code
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
            answer.append(f"not reachable ({str(error) or type(error).__name__})")
        else:
            answer.append(_meaning(status))

    # Looking up the host's name may hang longer than any timeout of the client reaches.
    asking = threading.Thread(target=ask, name="hub-probe", daemon=True)
    asking.start()
    asking.join(PROBE_SECONDS)
    return answer[0] if answer else f"no answer within {PROBE_SECONDS:g} s"


def _meaning(status: int) -> str | None:
    if status < 400:
        return None
    if status in (401, 403):
        return f"not found, or private or gated (HTTP {status}; HF_TOKEN may be needed)"
    return "not found" if status == 404 else f"HTTP {status}"


def download(address: str, model_id: str, cache: Path) -> Path:
    """The folder of a model that `probe` has found, downloaded into the hub's cache.

    Raises:
        ConfigError: the download broke off.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    try:
        with _no_progress_bars():
            folder = snapshot_download(
                model_id, cache_dir=cache, endpoint=address, allow_patterns=list(_WANTED)
            )
    except (HfHubHTTPError, OSError, RuntimeError, ValueError) as error:
        raise ConfigError(
            f"{model_id} is on the hub, but its download failed: {_first_line(error)}",
            hint="run the command again to go on with it, or give the folder of a local copy",
        ) from error
    return Path(folder)


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


@contextmanager
def _no_progress_bars() -> Iterator[None]:
    from huggingface_hub.utils.tqdm import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    if are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()
