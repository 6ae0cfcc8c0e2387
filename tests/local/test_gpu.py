"""Trials on a real GPU: what they see, how they are forked, what is left on the device.

Nothing here is simulated, so a machine without an NVIDIA GPU skips it; `make test-gpu` fails there instead.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from typing import Any

import pytest
from command_shell import Shell, read_json_lines, wait_gone

pytest.importorskip("torch", reason="PyTorch is not installed: make test-gpu")
pytestmark = [
    pytest.mark.local,
    pytest.mark.slow,
    pytest.mark.gpu,
    pytest.mark.xdist_group("gpu"),
    pytest.mark.skipif(shutil.which("nvidia-smi") is None, reason="there is no NVIDIA GPU: make test-gpu"),
]

TIMEOUT_S = 200.0
DIRECTORY = "trialpod-results/exp"
IMPORTS = """
import os, pathlib, tempfile, time
import torch
from trialpod import tune

imported_in = os.getpid()
"""
REPORT = """
def train(config):
    ones = torch.ones(64, 64, device="cuda")
    tune.report({
        "sum": float((ones @ ones).sum()),
        "forked": imported_in != os.getpid(),
        "imported_in": imported_in,
        "visible": os.environ["CUDA_VISIBLE_DEVICES"],
        "devices": torch.cuda.device_count(),
    })
"""
TRAIN = """
EPOCHS = 12

def train(config):
    torch.manual_seed(0)
    inputs = torch.randn(4096, 32, device="cuda")
    wanted = torch.tanh(inputs @ torch.randn(32, 1, device="cuda"))
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1)).to("cuda")
    optimizer = torch.optim.Adam(model.parameters(), lr=config["x"])
    done = 0
    if checkpoint := tune.get_checkpoint():
        with checkpoint.as_directory() as folder:
            state = torch.load(pathlib.Path(folder, "state.pt"), map_location="cuda", weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        done = state["epoch"]
    began_at = done
    for epoch in range(done + 1, EPOCHS + 1):
        for _ in range(20):
            loss = torch.nn.functional.mse_loss(model(inputs), wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        time.sleep(0.1)
        with tempfile.TemporaryDirectory() as folder:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
            torch.save(state, pathlib.Path(folder, "state.pt"))
            tune.report(
                {"loss": loss.item(), "epoch": epoch, "began_at": began_at, "device": torch.cuda.get_device_name()},
                checkpoint=tune.Checkpoint.from_directory(folder),
            )
"""


def experiment(shell: Shell, code: str, *, gpu: float, **spec: Any) -> None:
    shell.write("train.py", code)
    shell.manifest(numSamples=spec.pop("numSamples", 4), resources={"cpu": 1, "gpu": str(gpu)}, **spec)


def run(shell: Shell, status: int = 0) -> subprocess.CompletedProcess[str]:
    done = shell.execute(["trialpod", "run", "experiment.yaml"], timeout_s=TIMEOUT_S)
    assert done.returncode == status, done.stdout + done.stderr
    return done


def results(shell: Shell) -> list[dict[str, Any]]:
    return [trial["last_result"] for trial in shell.results()["trials"]]


def pids_on_gpu() -> set[int]:
    asked = ["nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader"]
    listed = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    return {int(line) for line in listed.split() if line.isdigit()}


def test_a_gpu_trial_continues_its_training_after_kill_9(shell: Shell) -> None:
    experiment(shell, IMPORTS + TRAIN, gpu=1, numSamples=2, searchSpace={"x": {"uniform": [0.001, 0.01]}})
    first = shell.start("run", "experiment.yaml", "-v")
    first.wait_line("iteration 5")
    killed = set(shell.processes())
    assert not pids_on_gpu().isdisjoint(killed)
    for pid in killed:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert all(wait_gone(pid, 30.0) for pid in killed)
    assert pids_on_gpu().isdisjoint(killed)
    run(shell)
    shell.assert_whole()
    histories = [read_json_lines(path) for path in sorted((shell.folder / DIRECTORY).glob("*/result.json"))]
    assert len(histories) == 2
    for history in histories:
        assert [line["epoch"] for line in history] == list(range(1, 13))
        assert history[-1]["loss"] < history[0]["loss"]
        assert "NVIDIA" in history[0]["device"]
    assert sorted(history[-1]["began_at"] >= 4 for history in histories) == [False, True]


def test_trials_of_a_whole_gpu_take_turns(shell: Shell) -> None:
    code = IMPORTS + (
        "def train(config):\n    began = time.time()\n    torch.ones(1, device='cuda')\n    time.sleep(0.3)\n"
        "    tune.report({'began': began, 'ended': time.time(), 'free': torch.cuda.mem_get_info()[0]})\n"
    )
    experiment(shell, code, gpu=1)
    run(shell)
    spans = sorted((found["began"], found["ended"]) for found in results(shell))
    assert len(spans) == 4
    # One machine here: each waits for the one before. With more GPUs as many run as there are.
    gpus = len(subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout.splitlines())
    for began, _ in spans:
        assert sum(other <= began < end for other, end in spans) <= gpus


def test_trials_share_a_gpu_by_fractions(shell: Shell) -> None:
    code = IMPORTS + (
        "def train(config):\n    torch.ones(1, device='cuda')\n    began = time.time()\n"
        "    folder = pathlib.Path(os.environ['NOTES'])\n    (folder / str(os.getpid())).touch()\n"
        "    while len(list(folder.iterdir())) < 4 and time.time() < began + 60:\n        time.sleep(0.01)\n"
        "    tune.report({'together': len(list(folder.iterdir())), 'visible': os.environ['CUDA_VISIBLE_DEVICES']})\n"
    )
    notes = shell.folder / "notes"
    notes.mkdir()
    shell.env["NOTES"] = str(notes)
    experiment(shell, code, gpu=0.25)
    run(shell)
    assert [(found["together"], found["visible"]) for found in results(shell)] == [(4, "0")] * 4


def test_a_trial_that_asks_for_no_gpu_sees_none(shell: Shell) -> None:
    code = IMPORTS + (
        "def train(config):\n"
        "    tune.report({'visible': os.environ['CUDA_VISIBLE_DEVICES'], 'cuda': torch.cuda.is_available()})\n"
    )
    shell.write("train.py", code)
    shell.manifest(numSamples=1, resources={"cpu": 1})
    run(shell)
    assert [(found["visible"], found["cuda"]) for found in results(shell)] == [("", False)]


@pytest.mark.parametrize(
    "at_import", ["", "assert torch.cuda.is_available()", "assert torch.cuda.device_count() >= 1"]
)
def test_a_question_about_the_gpu_leaves_trials_forked(shell: Shell, at_import: str) -> None:
    experiment(shell, f"{IMPORTS}{at_import}\n{REPORT}", gpu=0.25)
    run(shell)
    found = results(shell)
    assert [(each["sum"], each["forked"], each["visible"], each["devices"]) for each in found] == [
        (64.0**3, True, "0", 1)
    ] * 4
    assert len({each["imported_in"] for each in found}) == 1


@pytest.mark.parametrize(
    ("at_import", "said"),
    [
        ("torch.zeros(1, device='cuda')", "initialised CUDA"),
        ("import ctypes; assert ctypes.CDLL('libcuda.so.1').cuInit(0) == 0", "initialised the CUDA driver"),
        ("import cupy; cupy.zeros(1)", "initialised the CUDA driver"),
    ],
    ids=["torch", "driver", "cupy"],
)
def test_cuda_at_import_makes_trials_import_themselves(shell: Shell, at_import: str, said: str) -> None:
    if "cupy" in at_import:
        pytest.importorskip("cupy")
    experiment(shell, f"{IMPORTS}{at_import}\n{REPORT}", gpu=0.25)
    done = run(shell)
    assert said in done.stdout + done.stderr
    found = results(shell)
    assert [(each["sum"], each["forked"], each["visible"]) for each in found] == [(64.0**3, False, "0")] * 4
    assert len({each["imported_in"] for each in found}) == 4


def test_jax_trains_in_a_forked_trial(shell: Shell) -> None:
    pytest.importorskip("jax")
    code = """
    import os
    import jax, jax.numpy as jnp
    from trialpod import tune

    imported_in = os.getpid()

    def train(config):
        slope = jax.grad(lambda x: (x**2).sum())(jnp.ones(8) * config["x"])
        tune.report({"sum": float(slope.sum()), "x": config["x"], "platform": jax.devices()[0].platform,
                     "forked": imported_in != os.getpid()})
    """
    shell.env["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    experiment(shell, code, gpu=0.5, numSamples=2)
    run(shell)
    for found in results(shell):
        assert found["sum"] == pytest.approx(16 * found["x"], rel=1e-5)
        assert found["platform"] == "gpu"
        assert found["forked"]


def test_a_full_gpu_fails_the_trial_and_not_the_others(shell: Shell) -> None:
    code = IMPORTS + (
        "def train(config):\n    size = 10**13 if config['x'] == 1 else 10\n"
        "    tune.report({'bytes': torch.zeros(size, dtype=torch.uint8, device='cuda').numel()})\n"
    )
    experiment(shell, code, gpu=0.5, numSamples=1, searchSpace={"x": {"grid_search": [0, 1, 2]}})
    done = run(shell, status=1)
    assert "CUDA out of memory" in done.stdout + done.stderr
    trials = shell.results()["trials"]
    assert sorted((trial["params"]["x"], trial["status"]) for trial in trials) == [
        (0, "TERMINATED"),
        (1, "ERROR"),
        (2, "TERMINATED"),
    ]


def test_paused_trials_leave_nothing_on_the_gpu(shell: Shell) -> None:
    code = IMPORTS + (
        "def train(config):\n    free = torch.cuda.mem_get_info()[0]\n"
        "    kept = torch.zeros(2 * 2**30, dtype=torch.uint8, device='cuda')\n    start = 1\n"
        "    if checkpoint := tune.get_checkpoint():\n"
        "        with checkpoint.as_directory() as folder:\n"
        "            start = int(pathlib.Path(folder, 'epoch').read_text()) + 1\n"
        "    for epoch in range(start, 10):\n"
        "        with tempfile.TemporaryDirectory() as folder:\n"
        "            pathlib.Path(folder, 'epoch').write_text(str(epoch))\n"
        "            tune.report({'loss': config['x'] + 1 / epoch, 'free': free, 'start': start},\n"
        "                        checkpoint=tune.Checkpoint.from_directory(folder))\n"
    )
    experiment(
        shell, code, gpu=1, numSamples=9, algorithm="auto", metric="loss", mode="min", seed=1,
        stop={"training_iteration": 9},
    )  # fmt: skip
    run(shell)
    histories = [read_json_lines(path) for path in sorted((shell.folder / DIRECTORY).glob("*/result.json"))]
    lines = [line for history in histories for line in history]
    assert any(line["start"] > 1 for line in lines), "no trial was paused and resumed"
    free = [line["free"] for line in lines]
    assert max(free) - min(free) < 2**29  # each had 2 GiB


def test_wait_for_gpu_waits_until_its_memory_is_free(shell: Shell) -> None:
    code = IMPORTS + (
        "from trialpod.tune.utils import wait_for_gpu\n"
        "def train(config):\n"
        "    free = wait_for_gpu(target_util=0.5, retry=30, delay_s=1)\n"
        "    kept = torch.zeros(2**30, dtype=torch.uint8, device='cuda')\n"
        "    try:\n        wait_for_gpu(gpu_memory_limit=100, retry=1, delay_s=0.1)\n        said = ''\n"
        "    except RuntimeError as error:\n        said = str(error)\n"
        "    tune.report({'free': free, 'said': said})\n"
    )
    experiment(shell, code, gpu=1, numSamples=1)
    run(shell)
    (found,) = results(shell)
    assert found["free"] is True
    assert "did not become free" in found["said"]


def test_a_ray_script_gets_its_part_of_the_gpu(shell: Shell) -> None:
    script = shell.write(
        "script.py",
        """
        import os
        import ray, torch
        from ray import tune

        def train(config):
            device = torch.device("cuda")
            tune.report({"sum": float(torch.ones(8, device=device).sum()), "gpus": str(ray.get_gpu_ids())})

        trainable = tune.with_resources(train, {"cpu": 1, "gpu": 0.5})
        grid = tune.Tuner(trainable, param_space={"x": tune.grid_search([1, 2])}).fit()
        print("found", [(r.metrics["sum"], r.metrics["gpus"]) for r in grid])
        """,
    )
    done = shell.python("-m", "trialpod.compat.ray", "--replace", str(script), timeout_s=TIMEOUT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "found [(8.0, '[0]'), (8.0, '[0]')]" in done.stdout
