"""`trialpod logs TRIAL`: what a trial printed, while its pod runs and after it has gone.

Of a pod that is there the API server gives the output; what earlier pods of the trial printed is in `log.txt` in the
trial's directory in the storage. With `-f` the output of the running pod is shown as it comes, then that of the
trial's next attempts, until the trial has ended.
"""

from __future__ import annotations

import argparse
import contextlib
import glob
import io
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from trialpod.cli.command import Command
from trialpod.errors import InvalidInputError, TrialpodError
from trialpod_operator.cluster import names
from trialpod_operator.commands import target
from trialpod_operator.kube_client.pod_output import PodOutput, attempt_of

if TYPE_CHECKING:
    from trialpod_operator.kube_client.client import Experiments
    from trialpod_operator.view.reading import ReadExperiment

Json = dict[str, Any]

POLL_INTERVAL_S = 1.0
FILE_POLL_INTERVAL_S = 0.5
STATE_INTERVAL_S = 2.0
"""How often the journal is read for whether the trial has ended."""
UPLOAD_TIMEOUT_S = 20.0
"""Maximum time after a trial's end until its output is in the storage."""
BLOCK = 1 << 16

_ENDED = ("TERMINATED", "ERROR")


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "name", metavar="TRIAL | EXPERIMENT TRIAL", nargs="+",
        help="an experiment and one of its trials by id or number: climb 3; or the id of a trial, or a TuneTrial",
    )  # fmt: skip
    parser.add_argument("-f", "--follow", action="store_true", help="follow the output until the trial has ended")
    parser.add_argument(
        "-p", "--previous", action="store_true", help="the output of the attempts before the running one"
    )
    parser.add_argument(
        "--rank", type=int, default=0, metavar="N", help="of the trial's worker N, where it has more than one pod"
    )
    parser.add_argument("--tail", type=int, metavar="N", help="only the last N lines")
    target.add_cluster_options(parser)


def run(options: argparse.Namespace) -> int:
    """Print the log."""
    if len(options.name) > 2:
        given = " ".join(options.name)
        raise InvalidInputError(f"logs {given}: name one trial, or an experiment and one of its trials")
    if options.tail is not None and options.tail < 0:
        raise InvalidInputError(f"--tail {options.tail}: must be 0 or more")
    if options.follow and options.previous:
        raise InvalidInputError("-f follows the running attempt, -p shows those before it; choose one of them")
    location, trial = local_trial(options)
    return _print_from_cluster(options) if location is None else _print_local(location, trial, options)


def _print_from_cluster(options: argparse.Namespace) -> int:
    with target.connect_for(options.name[0], options) as api:
        item, trial = target.find_trial(api, *options.name)
        reader = LogReader(api, item, trial, target.cluster_flags(options, api.namespace), rank=options.rank)
        if options.follow:
            return reader.follow(sys.stdout.buffer, options.tail)
        lines = reader.earlier() if options.previous else reader.latest()
        return write(lines, sys.stdout.buffer, options.tail)


def local_trial(options: argparse.Namespace) -> tuple[str | None, str]:
    """Return the folder or URI of the experiment and the trial; (None, "") when it is in a cluster."""
    from trialpod_operator.view.reading import is_experiment

    name = options.name[0]
    if target.is_in_cluster(options):
        return None, ""
    experiment, slash, trial = name.rpartition("/")
    if slash and len(options.name) == 1 and "://" not in name and not is_experiment(Path(name)):
        # climb/3: an experiment here, or else one in the cluster
        location = target.experiment_location(experiment, options)
        return (location, trial) if location is not None and is_experiment(Path(location)) else (None, "")
    location = target.experiment_location(name, options)
    if location is not None:
        return location, options.name[1] if len(options.name) > 1 else ""
    if len(options.name) > 1:
        return None, ""
    for path in sorted(Path(target.LOCAL_FOLDER).glob(f"*/*{glob.escape(name)}_*/")):
        if f"_{name}_" in f"_{path.name}":
            return str(path.parent), name
    return None, ""


# -- on this machine --


def _print_local(location: str, trial: str, options: argparse.Namespace) -> int:
    """Print the log.txt of a trial on this machine or in a bucket, with the output of all its attempts."""
    from trialpod.storage.base import KeyMissingError
    from trialpod.storage.layout import LOG_FILE
    from trialpod.storage.registry import local_folder, open_storage
    from trialpod_operator.commands.explain import find
    from trialpod_operator.view.reading import reading

    if options.rank:
        raise InvalidInputError(f"--rank {options.rank}: a trial has one process here; ranks are pods of a cluster")
    if options.previous:
        raise InvalidInputError(
            "-p is for a trial in a cluster, whose attempts have pods of their own; here the output of all attempts "
            "is in one file: leave -p out"
        )
    if options.follow and local_folder(location) is None:
        raise InvalidInputError(
            f"-f: {location} is in a bucket, to which the output of a running trial is copied now and then; follow "
            "it where the experiment runs, or leave -f out"
        )
    with reading(location) as experiment:
        known = list(experiment.engine.state.trials.values())
        if not trial and len(known) != 1:
            raise InvalidInputError(
                f"{location} has {len(known)} trials; name one by its number or id, such as: "
                f"trialpod logs {location} 0"
            )
        found = find(experiment, trial) if trial else known[0]
        path, trial_id, ended = experiment.path(found), found.trial_id, found.ended
        if options.follow:
            log = Path(path, LOG_FILE)
            return follow_file(log, sys.stdout.buffer, lambda: _is_over(experiment, trial_id), tail=options.tail)
    if local_folder(location) is None:
        try:
            folder, _, name = path.rpartition("/")
            data = open_storage(folder).read(f"{name}/{LOG_FILE}")
        except KeyMissingError:
            raise _no_output(trial_id, ended=ended) from None
        return write(io.BytesIO(data), sys.stdout.buffer, options.tail)
    log = Path(path, LOG_FILE)
    try:
        if not log.stat().st_size:
            raise _no_output(trial_id, ended=ended)
        with log.open("rb") as lines:
            return write(lines, sys.stdout.buffer, options.tail)
    except FileNotFoundError:
        raise _no_output(trial_id, ended=ended) from None


def write(lines: Iterable[bytes], out: IO[bytes], tail: int | None) -> int:
    """Write lines, or the last of them, with an end of line after the last one."""
    last = b"\n"
    for line in lines if tail is None else deque(lines, maxlen=tail):
        out.write(line)
        last = line
    if not last.endswith(b"\n"):
        out.write(b"\n")
    out.flush()
    return 0


def follow_file(
    log: Path,
    out: IO[bytes],
    is_over: Callable[[], bool],
    *,
    tail: int | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Write a log as it grows, until the trial has ended or no process runs it.

    Args:
        log: the file; it need not be there yet.
        out: where to.
        is_over: whether nothing comes any more.
        tail: of what is there already only the last lines, so many; None = all.
        clock: seconds, monotonic.
        sleep: waits some seconds.
    """
    offset = 0 if tail is None else _start_of_tail(log, tail)
    asked_at = clock() - STATE_INTERVAL_S
    while True:
        over = False
        if clock() - asked_at >= STATE_INTERVAL_S:
            over, asked_at = is_over(), clock()
        offset = _copy_file(log, offset, out)
        if over:
            return 0
        sleep(FILE_POLL_INTERVAL_S)


def _start_of_tail(log: Path, tail: int) -> int:
    """Return where the last lines of a file begin; 0 when it is not there."""
    starts: deque[int] = deque(maxlen=tail)
    end = 0
    with contextlib.suppress(FileNotFoundError), log.open("rb") as file:
        for line in file:
            starts.append(end)
            end += len(line)
    return starts[0] if starts else end


def _copy_file(log: Path, offset: int, out: IO[bytes]) -> int:
    """Write what is in the file from an offset on; return its end."""
    try:
        with log.open("rb") as file:
            if os.fstat(file.fileno()).st_size < offset:  # emptied: a retry from scratch
                offset = 0
            file.seek(offset)
            while data := file.read(BLOCK):
                out.write(data)
                offset += len(data)
    except FileNotFoundError:
        return 0
    out.flush()
    return offset


def _is_over(experiment: ReadExperiment, trial_id: str) -> bool:
    from trialpod_operator.view.reading import activity

    runs = activity(experiment.directory).runs
    experiment.refresh()
    trial = experiment.engine.state.trials.get(trial_id)
    return not runs or trial is None or trial.ended


def _no_output(trial_id: str, *, ended: bool) -> TrialpodError:
    what = "it printed nothing" if ended else "it has not started yet, or has printed nothing; -f waits for it"
    return TrialpodError(f"there is no output of {trial_id}: {what}")


# -- in a cluster --


class LogReader:
    """The log of one trial.

    Args:
        api: its namespace.
        item: the TuneExperiment.
        trial: the TuneTrial.
        connection: the options with which other commands find the namespace.
        rank: of the pod among those of an attempt; only what the first one printed is stored.
        clock: seconds, monotonic.
        sleep: waits some seconds.
    """

    def __init__(
        self,
        api: Experiments,
        item: Json,
        trial: Json,
        connection: str,
        *,
        rank: int = 0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._api = api
        self._item = item
        self._trial = trial
        self._connection = connection
        self._rank = rank
        self._clock = clock
        self._sleep = sleep
        self._output = PodOutput(api, str(trial["spec"].get("trialId")))
        self._shown: int | None = None  # the attempt whose output was written last
        self.name = str(trial["metadata"]["name"])

    def latest(self) -> Iterator[bytes]:
        """Yield the output of the trial's pod, or what is stored when it has none any more.

        Raises:
            TrialpodError: there is nothing, and why.
        """
        pod = self._pod()
        lines = self._of_pod(pod) if pod is not None else None
        if lines is not None:
            return lines
        return self.stored() or self._nothing()

    def earlier(self) -> Iterator[bytes]:
        """Yield what the attempts before the one that runs printed."""
        found = self.stored()
        if found is None:
            attempt = int((self._trial.get("status") or {}).get("attempt") or 0)
            words = "it has had one attempt only" if attempt <= 1 else "none of them is in the storage (yet)"
            raise TrialpodError(f"{self.name} has no log of earlier attempts: {words}")
        return found

    def stored(self) -> Iterator[bytes] | None:
        """Return the lines of the log in the storage, None when there is none.

        Raises:
            TrialpodError: the storage cannot be read from here.
        """
        from trialpod.storage.base import KeyMissingError
        from trialpod.storage.layout import LOG_FILE
        from trialpod_operator.kube_client.storage import DeskStorageError, opened

        where = str((self._trial.get("status") or {}).get("storageUri") or "")
        if not where or self._rank:
            return None
        try:
            with opened(self._api, self._item) as (uri, storage):
                data = storage.read(f"{where.removeprefix(uri).strip('/')}/{LOG_FILE}")
        except KeyMissingError:
            return None
        except DeskStorageError as error:
            raise TrialpodError(
                f"the pod of {self.name} is gone; its output is in {where}/{LOG_FILE}, which cannot be read from "
                f"here: {error}"
            ) from error
        return io.BytesIO(data)

    def follow(self, out: IO[bytes], tail: int | None = None) -> int:
        """Write the output of the trial's attempts as it comes, until the trial has ended.

        Args:
            out: where to.
            tail: of the first pod's output so far only the last lines, so many; None = all.

        Raises:
            TrialpodError: the trial was deleted before it printed anything, or may not be read.
        """
        from trialpod_operator.api.api_errors import ApiError
        from trialpod_operator.kube_client.api import ClusterUnreachableError

        last_notice = ""
        ended_at: float | None = None
        while True:
            try:
                if not self._refresh():
                    return self._deleted()
                if ended_at is None and target.trial_state(self._trial) in _ENDED:
                    ended_at = self._clock()
                pod = self._pod(unread=True)
                if pod is None and ended_at is not None:
                    break
                notice = self._waiting()
                if pod is not None and self._copy(pod, out, tail if self._shown is None else None):
                    notice = last_notice = ""
                    if not self._output.is_wanted(pod):
                        continue
            except (ClusterUnreachableError, ApiError) as error:
                if isinstance(error, ApiError) and not error.temporary:
                    raise
                notice = f"{error}; retrying"
            if ended_at is not None and self._clock() - ended_at >= UPLOAD_TIMEOUT_S:
                break  # the pod cannot be read: its node is lost
            if notice and notice != last_notice:
                self._print_notice(notice)
                last_notice = notice
            self._sleep(POLL_INTERVAL_S)
        return 0 if self._shown is not None else write(self._stored_soon() or self._nothing(), out, tail)

    def _refresh(self) -> bool:
        """Take in how the trial is; return False when it was deleted."""
        found = self._api.find_trial(self.name)
        if found is None or found["metadata"].get("uid") != self._trial["metadata"].get("uid"):
            return False
        self._trial = found
        return True

    def _deleted(self) -> int:
        if self._shown is None:
            raise TrialpodError(f"{self.name} was deleted while this waited for its output")
        self._print_notice(f"{self.name} was deleted")
        return 0

    def _copy(self, pod: Json, out: IO[bytes], tail: int | None) -> bool:
        """Write what a pod prints until its output ends; return False when it has none, or not yet.

        Raises:
            ApiError: the request may succeed later; so it is with the next one.
            ClusterUnreachableError: the connection broke off.
        """
        from trialpod_operator.api.api_errors import BadRequestError, NotFoundError

        attempt = attempt_of(pod)
        try:
            if tail is not None:
                for line in deque(self._output.lines(pod), maxlen=tail):
                    out.write(line)
                out.flush()
                self._shown = attempt
            if self._output.is_wanted(pod):
                for line in self._output.lines(pod, follow=True):
                    if self._shown not in (None, attempt):
                        self._print_notice(f"attempt {attempt}:")
                    self._shown = attempt
                    out.write(line)
                    out.flush()
        except (BadRequestError, NotFoundError):
            return False  # the container has not started, or the pod was deleted in this moment
        if self._shown is None:
            self._shown = attempt
        return True

    def _stored_soon(self) -> Iterator[bytes] | None:
        deadline = self._clock() + UPLOAD_TIMEOUT_S
        while (found := self.stored()) is None and self._clock() < deadline:
            self._sleep(POLL_INTERVAL_S)
        return found

    def _pod(self, *, unread: bool = False) -> Json | None:
        """Return the pod of the trial's newest attempt that there is; with `unread` only one with more to read."""
        wanted = self._trial["spec"].get("trialId")
        pods = [
            pod
            for pod in self._api.pods(str(self._item["metadata"]["name"]))
            if (pod["metadata"].get("labels") or {}).get(names.TRIAL_ID_LABEL) == wanted
            and str((pod["metadata"].get("labels") or {}).get(names.RANK_LABEL) or "0") == str(self._rank)
            and (not unread or self._output.is_wanted(pod))
        ]
        return max(pods, key=attempt_of, default=None)

    def _of_pod(self, pod: Json) -> Iterator[bytes] | None:
        """Return the output of a pod, None when it has none (any more)."""
        from trialpod_operator.api.api_errors import BadRequestError, NotFoundError

        try:
            return iter(list(self._output.lines(pod)))
        except (BadRequestError, NotFoundError):
            return None

    def _waiting(self) -> str:
        status = self._trial.get("status") or {}
        state = str(status.get("state") or "PENDING")
        if why := status.get("waiting"):
            return f"{self.name} waits: {why.get('reason')}: {why.get('message')}"
        return f"{self.name} is {state}, and has no pod that runs" if state in ("PENDING", "PAUSED") else ""

    def _nothing(self) -> Iterator[bytes]:
        experiment = self._item["metadata"]["name"]
        status = self._trial.get("status") or {}
        if why := self._waiting():
            raise TrialpodError(f"there is no output yet: {why}; trialpod why {experiment} {self._connection}")
        if status.get("state") == "TERMINATED" and not status.get("disruptions"):
            self._print_notice(f"{self.name} is TERMINATED; it printed nothing")
            return iter(())
        if status.get("state") in _ENDED:
            ended = f": {status['message']}" if status.get("message") else ""
            raise TrialpodError(
                f"{self.name} is {status['state']}{ended}; no output of it is kept: it printed nothing, or its node "
                "was lost with it"
            )
        raise TrialpodError(f"there is no output of {self.name} yet; -f waits for it")

    @staticmethod
    def _print_notice(text: str) -> None:
        print(f"trialpod: {text}", file=sys.stderr, flush=True)


command = Command(name="logs", help="show what a trial printed", configure=configure, run=run)
