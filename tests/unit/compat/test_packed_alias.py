"""A pickled Trainable takes the aliases along that its code needs: to a pod, whose environment is another one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec

from trialpod import variables

SCRIPT = """
import json, pathlib, sys
from trialpod.compat.ray import install
install(replace=True)
import msgspec
from ray import tune
from trialpod.tune.shipping.package import pack_trainable

def train(config):
    from ray.tune import schedulers
    return tune.__name__, schedulers.__name__

print(json.dumps(msgspec.to_builtins(pack_trainable(train, pathlib.Path(sys.argv[1])))))
"""
POD = """
import json, sys
import msgspec
from trialpod.protocol.messages import TrainableRef
from trialpod.runner.load import load_trainable
print(load_trainable(msgspec.convert(json.loads(sys.argv[1]), TrainableRef))({}))
"""


def test_a_pickle_brings_its_aliases(tmp_path: Path) -> None:
    plain = {key: value for key, value in os.environ.items() if key != variables.COMPAT}

    def run(code: str, argument: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", code, argument], capture_output=True, text=True, check=True, env=plain
        )
        return done.stdout.strip()

    reference = run(SCRIPT, str(tmp_path))
    header = msgspec.json.decode((tmp_path / "trainable.pkl").read_bytes().partition(b"\n")[0])
    assert header["compat"] == "ray!"
    assert run(POD, json.dumps(json.loads(reference))) == "('ray.tune', 'ray.tune.schedulers')"
