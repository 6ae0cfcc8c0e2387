"""What counts as a GPU."""

from __future__ import annotations

import pytest

from trialpod_operator.api.gpus import is_gpu


@pytest.mark.parametrize(
    "name",
    [
        "gpu",
        "GPU",
        "nvidia.com/gpu",
        "amd.com/gpu",
        "nvidia.com/gpu.shared",
        "nvidia.com/mig-1g.5gb",
        "gpu.intel.com/xe",
    ],
)
def test_devices_of_all_vendors_shared_ones_and_slices_are_gpus(name: str) -> None:
    assert is_gpu(name)


@pytest.mark.parametrize(
    "name",
    ["cpu", "memory", "nvidia.com/gpucores", "nvidia.com/gpumem", "gpu.intel.com/memory.max", "google.com/tpu"],
)
def test_shares_of_them_and_other_devices_are_none(name: str) -> None:
    assert not is_gpu(name)
