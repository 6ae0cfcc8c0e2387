"""The test cluster's modules for this benchmark: those of tools/cluster, and what its tests see of the cluster.

Imported before all others, since it makes both folders importable.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/cluster"), str(ROOT / "tools/cluster"), str(ROOT / "benchmarks")]

from cluster_access import Cluster, KubectlError  # noqa: E402
from testcluster import binaries, images, layout, nodes, system  # noqa: E402

CONTROL_NODE, OTHER_NODE = (node.name for node in layout.NODES)
"""Controllers, databases and heads are put on the first; the other one is drained."""

FOLDER = layout.STATE / "peers"
"""What trials and databases write on the nodes' disks, which are one: both nodes are on this machine."""

__all__ = [
    "CONTROL_NODE", "FOLDER", "OTHER_NODE", "ROOT", "Cluster", "KubectlError", "binaries", "images", "layout",
    "nodes", "system",
]  # fmt: skip
