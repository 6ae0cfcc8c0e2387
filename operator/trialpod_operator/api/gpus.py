"""Which resources are GPUs: what `maxGpuHours` counts.

Whole devices of the vendors' device plugins, and what they hand out in their place: shared ones
(``nvidia.com/gpu.shared``) and MIG slices (``nvidia.com/mig-1g.5gb``) count as one each. Shares of memory or cores,
as some plugins ask for them beside the device, count nothing.
"""

from __future__ import annotations

import functools

_INTEL = ("i915", "xe")


@functools.lru_cache(maxsize=1024)
def is_gpu(resource: str) -> bool:
    """Return whether a resource is counted in GPUs.

    Args:
        resource: its name, such as "gpu" (local runs) or "nvidia.com/gpu".
    """
    domain, _, device = resource.lower().rpartition("/")
    return device == "gpu" or device.startswith(("gpu.", "mig-")) or (domain == "gpu.intel.com" and device in _INTEL)
