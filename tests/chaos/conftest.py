"""What the local tests have to run real commands and a real MinIO is used here as well."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "local"))
