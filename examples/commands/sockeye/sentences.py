"""Writes sentences to translate beside this script, or into a folder: letters, and the same in reverse order."""

import random
import sys
from pathlib import Path

folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
rng = random.Random(0)
for name, count in (("train", 1000), ("dev", 60)):
    lines = [[rng.choice("abcdefgh") for _ in range(rng.randint(3, 6))] for _ in range(count)]
    (folder / f"{name}.source").write_text("".join(" ".join(line) + "\n" for line in lines))
    (folder / f"{name}.target").write_text("".join(" ".join(reversed(line)) + "\n" for line in lines))
