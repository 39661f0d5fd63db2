"""The most memory that torch's tensors take at once."""

from collections.abc import Callable
from typing import Any

import torch

Call = Callable[[], Any]


def peak_bytes(call: Call, device: str = "cpu") -> int:
    """The most memory for tensors that `call`, done for the second time, holds at once beyond what was there before.

    Its result is included; what it lets go of first, as gradients of the time before, makes room.
    """
    if device != "cuda":
        return _peak_bytes_cpu(call)
    call()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    return torch.cuda.max_memory_allocated() - before


def _peak_bytes_cpu(call: Call) -> int:
    """Every allocation and release of torch's CPU allocator, summed in order of time.

    The first call is watched too: torch knows the size of what is released by its address, and may confuse what was
    allocated unseen with what an earlier watch saw there.
    """
    activities, second = [torch.profiler.ProfilerActivity.CPU], "the second call"
    with torch.profiler.profile(activities=activities, profile_memory=True) as profiler:
        call()
        with torch.profiler.record_function(second):
            result = call()
    events = sorted(profiler.profiler.kineto_results.events(), key=lambda event: event.start_ns())
    start = next(place for place, event in enumerate(events) if event.name() == second)
    held = peak = 0
    for event in events[start:]:
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    del result
    return peak
