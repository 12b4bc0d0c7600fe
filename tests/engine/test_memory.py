"""Memory as measured, and memory given back."""

import subprocess
import sys

import torch

from engine.memory import Heap, measure, most_resident
from engine.shortage import is_out_of_memory


def test_resident_memory_and_its_peak_are_real_bytes():
    before = measure(torch.device("cpu"))
    held = torch.ones(64 * 2**20, dtype=torch.uint8)
    after = measure(torch.device("cpu"))
    assert after.allocated >= before.allocated + 32 * 2**20
    assert after.total > after.peak >= after.allocated
    del held


def test_a_process_counts_nothing_of_the_one_that_started_it():
    held = torch.ones(2**30, dtype=torch.uint8)
    program = "from engine.memory import most_resident; print(most_resident())"
    said = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert int(said) < held.nbytes <= most_resident()


def test_the_heap_is_trimmed_after_growth_and_then_measured_anew():
    heap = Heap()
    assert [heap.tidy(value) for value in (100, 110, 119, 121, 90, 100, 109)] == [
        False,
        False,
        False,
        True,
        False,
        False,
        True,
    ]


def test_only_errors_about_memory_are_out_of_memory():
    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"))
    assert not is_out_of_memory(RuntimeError("shapes do not match"))
