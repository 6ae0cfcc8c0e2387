"""The worlds in memory of the operator's and the storage's own tests are what the simulation is built of."""

from __future__ import annotations

import sys
from pathlib import Path

UNIT = Path(__file__).parents[1] / "unit"
sys.path += [str(Path(__file__).parent), str(UNIT / "cluster"), str(UNIT / "storage")]
