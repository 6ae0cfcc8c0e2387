"""What a GPU trial costs beside its training: its start and its reports. Needs an NVIDIA GPU and PyTorch.

    python benchmarks/gpu.py [--trials 32]

Three runs of `trialpod run` with trials that multiply two matrices on an eighth of a GPU: forked after one import of
PyTorch; started one by one, because the module uses CUDA while it is imported; and one long trial that reports after
every step, beside the same loop without reports.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SHORT = """
import torch
from trialpod import tune

{at_import}

def train(config):
    tune.report({{"sum": float(torch.ones(256, 256, device="cuda").sum())}})
"""
STEPS = 2000
LONG = f"""
import time
import torch
from trialpod import tune

def train(config):
    torch.manual_seed(0)
    inputs, wanted = torch.randn(512, 64, device="cuda"), torch.randn(512, 1, device="cuda")
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1)).to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step():
        loss = torch.nn.functional.mse_loss(model(inputs), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    for _ in range(200):
        step()
    began = time.perf_counter()
    for _ in range({STEPS}):
        step()
    alone = time.perf_counter() - began
    began = time.perf_counter()
    for _ in range({STEPS}):
        tune.report({{"loss": step()}})
    reporting = time.perf_counter() - began
    tune.report({{"alone_ms": alone / {STEPS} * 1000, "reporting_ms": reporting / {STEPS} * 1000}})
"""


def main() -> int:
    """Measure, and print one line for each figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    forked, alone = [], []
    for _ in range(options.rounds):
        forked.append(run(SHORT.format(at_import=""), options.trials)[0])
        alone.append(run(SHORT.format(at_import="torch.zeros(1, device='cuda')"), options.trials)[0])
    print(f"{options.trials} trials, eight at once, medians of {options.rounds} rounds in turns")
    print(f"  forked after one import            {statistics.median(forked):6.1f} s  {forked}")
    print(f"  each with an import of its own     {statistics.median(alone):6.1f} s  {alone}")
    for _ in range(options.rounds):
        found = run(LONG, 1)[1]
        print(f"a training step {found['alone_ms']:.3f} ms, with a report {found['reporting_ms']:.3f} ms")
    return 0


def run(code: str, trials: int) -> tuple[float, dict[str, float]]:
    """Return the seconds that `trialpod run` took, and the last result of a trial."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train.py").write_text(code)
        document = {
            "apiVersion": "trialpod.dev/v1alpha1",
            "kind": "TuneExperiment",
            "metadata": {"name": "gpu"},
            "spec": {
                "trainable": {"entrypoint": "train:train"},
                "searchSpace": {"x": {"uniform": [0, 1]}},
                "numSamples": trials,
                "resources": {"cpu": 1, "gpu": "0.125"},
            },
        }
        (folder / "experiment.yaml").write_text(json.dumps(document))
        program = str(Path(sys.executable).with_name("trialpod"))
        began = time.perf_counter()
        subprocess.run([program, "run", "experiment.yaml", "--quiet"], cwd=folder, check=True, stdout=subprocess.PIPE)
        seconds = time.perf_counter() - began
        shown = subprocess.run(
            [program, "results", "trialpod-results/gpu", "--json"], cwd=folder, check=True, stdout=subprocess.PIPE
        )
        ended = json.loads(shown.stdout)
        if ended["counts"]["TERMINATED"] != trials:
            raise SystemExit(f"not all trials ended well: {ended['counts']}")
        return round(seconds, 2), ended["trials"][0]["last_result"]


if __name__ == "__main__":
    raise SystemExit(main())
