"""Which precision the update computes in."""

from __future__ import annotations

import time

import torch


def autocast_type(choice: str, device: torch.device) -> torch.dtype | None:
    """torch.bfloat16 or None (the weights' own type).

    Args:
        choice: ``bfloat16``, ``none``, or ``auto``: bfloat16 where this device multiplies matrices
            faster in it. Old CPUs emulate bfloat16 and are many times slower.
        device: where the model lies.
    """
    if choice == "none":
        return None
    if choice == "bfloat16":
        return torch.bfloat16
    return torch.bfloat16 if _bfloat16_is_faster(device) else None


def _bfloat16_is_faster(device: torch.device) -> bool:
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return _seconds(torch.bfloat16, device) < 0.9 * _seconds(torch.float32, device)


def _seconds(dtype: torch.dtype, device: torch.device) -> float:
    """The best of a few products of matrices as large as a small model's layers, in seconds."""
    left = torch.ones(512, 1024, dtype=dtype, device=device)
    right = torch.ones(1024, 1024, dtype=dtype, device=device)
    times = []
    for _ in range(4):
        start = time.perf_counter()
        torch.mm(left, right)
        times.append(time.perf_counter() - start)
    return min(times)
