"""``kill -9`` of the driver in the middle of a run, then `Tuner.restore`.

This process starts the driver as a child (``drive``), kills it when half of the trials have ended, starts another one
(``resume``), and compares what the trials wrote down themselves with what the result.json files hold at the end.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from leftovers import adopt_orphans, kill_descendants
from system import STORAGE, begin, finish, size, timed_fit, tune

STEPS = 5
COMMITTED_AFTER_S = 0.25
"""What happened this shortly before the kill may have been on its way."""


def train(config: dict[str, Any]) -> None:
    trial = tune.get_context().get_trial_id()
    diary = os.open(config["diary"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def note(what: str) -> None:
        os.write(diary, (json.dumps([time.time(), trial, what]) + "\n").encode())

    for step in range(STEPS):
        time.sleep(config["step_s"])
        token = f"{os.getpid()}-{time.time_ns()}"
        tune.report({"step": step, "token": token})
        note(token)
    note("end")
    os.close(diary)


def drive(path: str, diary: str, trials: int) -> None:
    tuner = tune.Tuner(
        tune.with_resources(train, {"cpu": 0.2}),
        param_space={"x": tune.uniform(0, 1), "diary": diary, "step_s": 0.05},
        tune_config=tune.TuneConfig(num_samples=trials, max_concurrent_trials=8, reuse_actors=True),
        run_config=tune.RunConfig(name=os.path.basename(path), storage_path=os.path.dirname(path), verbose=0),
    )
    timed_fit(tuner)


def resume(path: str) -> None:
    timed_fit(tune.Tuner.restore(path, tune.with_resources(train, {"cpu": 0.2})))


def entries(diary: str) -> list[list[Any]]:
    try:
        return [json.loads(line) for line in Path(diary).read_text().splitlines()]
    except FileNotFoundError:
        return []


def start(what: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, __file__, what], stdout=sys.stderr)


def main(path: str, diary: str, trials: int) -> None:
    adopt_orphans()
    driver = start("drive")
    while sum(what == "end" for _, _, what in entries(diary)) < trials // 2:
        if driver.poll() is not None:
            raise SystemExit("the driver ended before it could be killed")
        time.sleep(0.02)
    driver.send_signal(signal.SIGKILL)
    killed_at = time.time()
    driver.wait()
    kill_descendants()  # whatever outlives its driver must not slow the next one down
    before = entries(diary)
    resumed_at = time.time()
    status = start("resume").wait()
    if status != 0:
        raise SystemExit(f"the resumed driver ended with status {status}")
    committed = [entry for entry in before if entry[0] < killed_at - COMMITTED_AFTER_S]
    after = entries(diary)[len(before) :]
    ended = {trial for _, trial, what in committed if what == "end"}
    kept = {
        json.loads(line).get("token")
        for file in Path(path).glob("*/result.json")
        for line in file.read_text().splitlines()
    }
    finish(
        next_result_s=min(at for at, _, _ in after) - resumed_at,
        ended_before=len(ended),
        ran_again=len(ended & {trial for _, trial, _ in after}),
        lost=len({what for _, _, what in committed if what != "end"} - kept),
        whole_s=time.time() - resumed_at,
    )


if __name__ == "__main__":
    experiment, book = os.path.join(STORAGE, "killed"), os.path.abspath("diary.txt")
    count = int(size("trials", 200))
    if sys.argv[1:] == ["drive"]:
        begin()
        drive(experiment, book, count)
    elif sys.argv[1:] == ["resume"]:
        begin()
        resume(experiment)
    else:
        main(experiment, book, count)
