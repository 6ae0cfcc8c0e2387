"""What the tests of this machine and of the cluster have to run real commands, is used here as well."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "local"))
sys.path.append(str(Path(__file__).parents[1] / "cluster"))
