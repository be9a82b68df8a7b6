"""What the trainer asks of the C library's allocator."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, sys
from verl_core.trainer.memory import keep_large_blocks_apart, release_free_memory
assert keep_large_blocks_apart() and release_free_memory()

def mapped():
    fields = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    fields = [(field, ctypes.c_size_t) for field in fields.split()]
    kind = type("mallinfo2", (ctypes.Structure,), {"_fields_": fields})
    call = ctypes.CDLL(None).mallinfo2
    call.restype = kind
    return call().hblks

import torch
# A freed block of 8 MiB would raise glibc's own bound: the next of 2 MiB came from a heap.
del (block := [torch.empty(8 << 20, dtype=torch.uint8)])[0]
before = mapped()
kept = [torch.empty(2 << 20, dtype=torch.uint8) for _ in range(5)]
print(mapped() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is glibc's")
def test_large_blocks_are_mapped_each_by_itself():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == 5
