"""The read model of one experiment: what a page, an export or a command shows of it, kept up to date while it grows.

Invariants:

* Nothing of the experiment is changed. It may be running, here or elsewhere.
* What grows is read once: `refresh` takes in the records that are new in the journal. The files of trials are read
  only for results that a snapshot has replaced in the journal, each once for each metric that is asked for.
* What is kept is bounded by what was reported, whatever names are asked for.
* Results count once: those of a trial are numbered, in the journal and by the lines of its ``result.json``.
* Every method may be called from any thread. Only the first refresh waits for a storage that another one asks.
* An experiment that takes the place of another one is shown alone: nothing of the other one stays.

Curves of 10,000 trials are read from files in the background of `refresh`, as many as fit into its time, the best
trials first; the header says how many are missing. Before that a few lines of each file show the shape of all. A file
that cannot be read is retried later, and its trial counts as missing until then.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from trialpod.errors import InvalidInputError, JournalError, StorageError, TrialpodError
from trialpod.protocol.readable import real_number
from trialpod.storage.base import KeyMissingError, StorageUnavailableError
from trialpod.storage.journal.follower import JournalFollower, Update
from trialpod.storage.layout import EXPERIMENT_KEY, JOURNAL_DIR, LOG_FILE, RESULT_FILE, TRIALPOD_DIR
from trialpod.storage.parallel import run_all
from trialpod.tune.result import AUTOMATIC_METRICS
from trialpod_operator.api.gpus import is_gpu
from trialpod_operator.display.engine_view import best_trial, build_row, build_view
from trialpod_operator.display.json_lines import strict
from trialpod_operator.display.view import ExperimentView, TrialRow
from trialpod_operator.engine import accounting
from trialpod_operator.engine.actions import Action, ResultsApplied
from trialpod_operator.engine.choices import is_early_stop
from trialpod_operator.engine.reasons import explain, sentence
from trialpod_operator.engine.trial import ERROR, PENDING, Trial
from trialpod_operator.experiment.records import Record
from trialpod_operator.experiment.stored import JOURNAL_ID
from trialpod_operator.view.curves import MAX_POINTS, Curve, encode_points
from trialpod_operator.view.history import Histories
from trialpod_operator.view.importance import importance
from trialpod_operator.view.location import Location
from trialpod_operator.view.parameters import Parameters, dotted
from trialpod_operator.view.reading import INTERRUPTED, RUNNING, stored_document
from trialpod_operator.view.recorded_engine import RecordedEngine
from trialpod_operator.view.results_file import Point, point_of, read_columns, read_points, sample_points

Json = dict[str, Any]

MAX_CURVE_POINTS = 400_000
"""Maximum number of points of all curves in one answer: about 6 MB. With more trials each gets fewer."""

MAX_METRICS = 50
"""Maximum number of metrics whose curves are kept; those not asked for longest are dropped, and read again."""

MIN_CURVE_POINTS = 20
RETRY_INTERVAL_S = 5.0
"""Minimum interval between a refresh that failed and the next one that `max_age_s` allows; the same for files."""

MISSING_TRIES = 12
"""How often a file is looked for that is not there: a running trial's is copied to a bucket after its results."""

READ_BATCH = 20
SAMPLE_BATCH = 100
SAMPLE_POINTS = 16
"""Of each curve, before its file is read, where there are more than `MIN_SAMPLED_TRIALS`."""

MIN_SAMPLED_TRIALS = 1000

LOG_TAIL_BYTES = 64 * 1024
LOG_TAIL_LINES = 200
UNREADABLE = "Unreadable"

XS = ("iteration", "time", "cost")
"""What a curve may be drawn over: iterations; seconds that the trial ran; these times its GPUs."""


def _is_pruned(trial: Trial) -> bool:
    """Return whether a scheduler stopped a trial before its last iteration."""
    reason = trial.stop_reason
    return trial.stopped and is_early_stop(reason) and reason.get("source") == "scheduler"


def _drop_oldest(kept: dict[str, Any], but: str | None) -> None:
    """Make room for another metric."""
    while len(kept) >= MAX_METRICS:
        del kept[next(name for name in kept if name != but)]


class NoSuchTrialError(InvalidInputError):
    """The experiment has no trial of that id."""


class ModelClosedError(TrialpodError):
    """The model was dropped, for room, during a request; its server makes another one."""


class _Metric:
    """The curves of one metric, and the trials whose files are still to be read for them."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.curves: dict[str, Curve] = {}
        self.unread: deque[str] = deque()
        self.unsampled: deque[str] = deque()
        self.waiting: dict[str, list[tuple[int, Point | None]]] = {}  # of those: results that came meanwhile
        self.read_again: set[str] = set()
        self.missing: dict[str, int] = {}  # how often the file of a trial was not there
        self.resting: deque[tuple[float, str]] = deque()  # since when (monotonic): to be read, but not yet again

    @property
    def loading(self) -> int:
        """How many trials' files are still to be read."""
        return len(self.unread) + len(self.resting)

    def wake(self, rest_s: float) -> None:
        """Take back into `unread` what has rested for these seconds."""
        now = time.monotonic()
        while self.resting and now - self.resting[0][0] >= rest_s:
            self.unread.append(self.resting.popleft()[1])

    def later(self, trial_id: str) -> None:
        """Read the trial's file when there is time."""
        if trial_id not in self.waiting:
            self.unread.append(trial_id)
            self.waiting[trial_id] = []


class ExperimentModel:
    """Reads one experiment.

    Args:
        location: where it is.
        clock: returns seconds since the epoch.
        interrupted: tells whether no process runs the experiment although it has work left; asked at each header.
        standing: where a cluster's resources know it better, returns "state", "reason" and "sentence".

    Attributes:
        location: where it is.
    """

    def __init__(
        self,
        location: Location,
        *,
        clock: Callable[[], float] = time.time,
        interrupted: Callable[[], bool] = lambda: False,
        standing: Callable[[], Json] = dict,
    ) -> None:
        self.location = location
        self._clock = clock
        self._interrupted = interrupted
        self._standing = standing
        self._fetching = threading.Lock()  # held while the journal is brought up to date; taken before `_lock`
        self._released = False  # whether the location is closed; guarded by `_fetching`
        self._lock = threading.RLock()  # guards what follows; no storage is asked under it
        self._epoch = f"{time.time_ns():x}"
        self._version = 0
        self._pruned, self._pruned_at = 0, -1  # trials that a scheduler stopped, and at which version
        self._stored: Json = {}
        self._stored_version: tuple[int, ...] = ()  # of the file that it was read from
        self._recorded = RecordedEngine(location.name, None)
        self._follower: JournalFollower | None = None
        self._histories = Histories()
        self._parameters = Parameters({})
        self._metrics: dict[str, _Metric] = {}
        self._metric_names: dict[str, None] = {}
        self._rungs: set[float] = set()
        self._changed: dict[str, int] = {}  # trial -> version of its latest change
        self._rows: dict[str, msgspec.Raw] = {}
        self._importance: dict[str, tuple[int, Json]] = {}
        self._problem: Json | None = None
        self._stale_since: float | None = None
        self._refreshed_at: float | None = None
        self._tried_at = -math.inf  # monotonic
        self._files_failed_at = -math.inf  # monotonic: when the storage last refused a trial's file
        self._files_stale_since: float | None = None
        self._closed = False
        self._users: set[object] = set()

    # -- keeping up ---------------------------------------------------------------------------------------------

    def refresh(self, budget_s: float = 0.5, *, max_age_s: float = 0.0) -> bool:
        """Take in what is new; return whether curves can be read from files right now that are still to be read.

        What prevents it is in the header from then on, until it succeeds: a damaged journal, a store that refuses.

        Args:
            budget_s: maximum time for reading files of trials, in seconds, roughly.
            max_age_s: nothing is done when the last refresh ended so many seconds ago or less; after one that failed,
                `RETRY_INTERVAL_S` or less, because a store that refuses takes seconds to say so.

        Raises:
            ModelClosedError: `close` was called.
        """
        if not self._is_due(max_age_s):
            return self._can_read()
        # Who finds it taken is answered from what is known: a store that refuses takes seconds to say so.
        if not self._fetching.acquire(blocking=not max_age_s or self._tried_at == -math.inf):
            return False
        try:
            if not self._is_due(max_age_s):
                return self._can_read()
            if not self._catch_up():
                return False
        finally:
            self._fetching.release()
            if self._closed:
                self._release()
        return self._read_files(budget_s)

    def _is_due(self, max_age_s: float) -> bool:
        with self._lock:
            if self._closed:
                raise ModelClosedError("the experiment's data was dropped; ask again")
            age_s = time.monotonic() - self._tried_at
            failed = self._problem is not None or self._stale_since is not None
            return not max_age_s or age_s >= (RETRY_INTERVAL_S if failed else max_age_s)

    def _catch_up(self) -> bool:
        """Take in what is new in the journal; return whether that succeeded."""
        try:
            self.location.refresh()
            with self._lock:
                self._follow()
                self._problem, self._stale_since, self._refreshed_at = None, None, self._clock()
                metric = self._recorded.settings.metric
                if metric is not None:
                    self._metric(metric)
        except StorageUnavailableError as error:
            problem = self._described(error) if self._refreshed_at is None else None
            with self._lock:
                self._problem = problem or self._problem
                self._stale_since = self._stale_since or self._refreshed_at or self._clock()
            return False
        except TrialpodError as error:
            known = self._problem
            if known is None or known["cause"] != str(error):
                problem = self._described(error)
                with self._lock:
                    self._problem = problem
                    self._version += 1
            return False
        finally:
            with self._lock:
                self._tried_at = time.monotonic()
        return True

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """Have the model kept while others are dropped for room."""
        user = object()
        self._users.add(user)
        try:
            yield
        finally:
            self._users.discard(user)

    @property
    def used(self) -> bool:
        """Whether it is in use."""
        return bool(self._users)

    @property
    def stale(self) -> bool:
        """Whether its storage did not answer the latest refresh."""
        return self._stale_since is not None

    def close(self) -> None:
        """Remove the copy of what is in a bucket, once no refresh uses it; the last one does it then."""
        with self._lock:
            self._closed = True
        self._release()

    def _release(self) -> None:
        if self._fetching.acquire(blocking=False):
            try:
                if not self._released:
                    self._released = True
                    self.location.close()
            finally:
                self._fetching.release()

    def load(self) -> None:
        """Take in everything, for a caller that shows it once; a trial whose file is missing has no curve.

        Raises:
            TrialpodError: the experiment cannot be read, or a trial's file.
        """
        with self._fetching:
            self.location.refresh()
            with self._lock:
                self._follow()
                if self._recorded.settings.metric is not None:
                    self._metric(self._recorded.settings.metric)
        self._read_files(math.inf, once=True)

    def _follow(self) -> None:
        self._read_stored()
        assert self._follower is not None
        update = self._follower.poll()
        if update.restart:
            before = set(self._recorded.engine.state.trials)
            self._recorded.restart(update.snapshot)
            self._begin()
            if before.difference(self._recorded.engine.state.trials):
                self._epoch = f"{time.time_ns():x}"  # a page that knows trials that are gone takes everything again
            update = Update(records=update.records)
        if update.records:
            self._version += 1
            self._recorded.apply(update, self._observe)

    def _read_stored(self) -> None:
        """Read what is stored beside the journal, which is written at each start of the experiment."""
        version: tuple[int, ...] = ()
        with contextlib.suppress(OSError):  # it is not there: `stored_document` says so
            found = os.stat(self.location.directory / EXPERIMENT_KEY)
            version = (found.st_ino, found.st_mtime_ns, found.st_size)
        if version and version == self._stored_version:
            return
        stored = stored_document(self.location.directory)
        self._stored_version = version
        journal = self._stored.get(JOURNAL_ID)
        self._stored = stored
        if self._follower is None or stored.get(JOURNAL_ID) != journal:
            self._forget()

    def _forget(self) -> None:
        """Begin with the experiment that is stored; it may have taken the place of another one."""
        self._recorded = RecordedEngine(self._stored.get("name", self.location.name), self._stored.get("total"))
        self._parameters = Parameters(self._stored)
        self._follower = JournalFollower(self.location.directory / TRIALPOD_DIR / JOURNAL_DIR)
        self._histories = Histories()
        self._metrics, self._metric_names, self._rungs = {}, {}, set()
        self._changed, self._rows, self._importance = {}, {}, {}
        self._files_failed_at, self._files_stale_since = -math.inf, None
        self._epoch = f"{time.time_ns():x}"
        self._version += 1

    def _begin(self) -> None:
        """All that was known of trials may be other than it was."""
        self._version += 1
        trials = self._recorded.engine.state.trials
        self._histories.begin(trials.values())
        for trial in trials.values():
            self._touch(trial.trial_id)
            for each in self._metrics.values():
                curve = each.curves.get(trial.trial_id)
                if trial.results > (curve.count if curve is not None else 0):
                    each.later(trial.trial_id)
            for decision in trial.decisions if trial.decision_count else ():
                self._record_rung(decision.reason)

    def _observe(self, record: Record, actions: list[Action]) -> None:
        if not self._metrics and self._recorded.settings.metric is not None:
            # From the beginning on, so that the files need not be read for it.
            self._metric(self._recorded.settings.metric)
        self._histories.observe(record.event, actions, record.now)
        about = getattr(record.event, "trial_id", None)
        if about:
            self._touch(about)
        for action in actions:
            trial = getattr(action, "trial", None)
            if trial is not None:
                self._touch(trial.trial_id)
            if isinstance(action, ResultsApplied):
                for each in self._metrics.values():
                    self._add_results(each, action.trial, action.results)
            elif reason := getattr(action, "reason", None):
                self._record_rung(reason)

    def _touch(self, trial_id: str) -> None:
        self._changed[trial_id] = self._version
        self._rows.pop(trial_id, None)

    def _record_rung(self, reason: Json) -> None:
        rung = real_number(reason.get("rung"))
        if rung is not None:
            self._rungs.add(rung)

    # -- curves -------------------------------------------------------------------------------------------------

    def _metric(self, name: str) -> _Metric:
        own = self._recorded.settings.metric
        found = self._metrics.get(name)
        if found is not None:
            if name != own:
                self._metrics[name] = self._metrics.pop(name)  # the one asked for last
        else:
            _drop_oldest(self._metrics, but=own)
            found = self._metrics[name] = _Metric(name)
            sign = -1.0 if self._recorded.settings.mode == "max" else 1.0

            def rank(trial: Trial) -> float:
                """Order the best first: they are what a chart of curves shows in colour."""
                return math.inf if trial.value is None else sign * trial.value

            reported = [each for each in self._recorded.engine.state.trials.values() if each.results]
            for trial in sorted(reported, key=rank):
                found.later(trial.trial_id)
            if self.location.is_folder and len(reported) > MIN_SAMPLED_TRIALS:
                found.unsampled.extend(found.unread)
        return found

    def _is_reported(self, name: str) -> bool:
        """Return whether the experiment has a metric of that name: only those are kept."""
        settings = self._recorded.settings
        if name in {settings.metric, *(each.name for each in settings.objectives)} | AUTOMATIC_METRICS:
            return True
        if name not in self._metric_names:
            for trial in self._recorded.engine.state.trials.values():
                self._row(trial)
        return name in self._metric_names

    def _add_results(self, metric: _Metric, trial: Trial, results: Sequence[Json]) -> None:
        first = trial.results - len(results)
        points = [(first + at, point_of(result, metric.name, first + at)) for at, result in enumerate(results)]
        waiting = metric.waiting.get(trial.trial_id)
        if waiting is not None:
            waiting += points
        else:
            self._add_points(metric, trial.trial_id, points)

    def _add_points(self, metric: _Metric, trial_id: str, points: Sequence[tuple[int, Point | None]]) -> None:
        curve = metric.curves.get(trial_id)
        if curve is None:
            curve = metric.curves[trial_id] = Curve()
        for at, (number, point) in enumerate(points):
            if number < curve.count:
                continue  # the file had it
            if number > curve.count and trial_id not in metric.read_again:
                # The file was behind the journal when it was read.
                metric.read_again.add(trial_id)
                metric.curves[trial_id] = Curve()
                metric.later(trial_id)
                metric.waiting[trial_id] += points[at:]
                return
            curve.count = number
            curve.extend((point,))
        curve.version = self._version

    def _can_read(self) -> bool:
        """Return whether there are files to read, and the storage has not just refused one."""
        rested = time.monotonic() - self._files_failed_at >= RETRY_INTERVAL_S
        return rested and any(each.unread for each in self._metrics.values())

    def _read_files(self, budget_s: float, *, once: bool = False) -> bool:
        """Read files of trials, roughly for so many seconds; return what `refresh` returns.

        Args:
            budget_s: maximum time, in seconds.
            once: there will be no later try.

        Raises:
            StorageError: `once`, and a file cannot be read.
        """
        end = time.monotonic() + budget_s
        while time.monotonic() < end:
            with self._lock:
                for each in self._metrics.values():
                    each.wake(0.0 if once else RETRY_INTERVAL_S)
                metric = next((each for each in self._metrics.values() if each.unread), None)
                if metric is None or self._closed or not (once or self._can_read()):
                    return False
                sampled = [metric.unsampled.popleft() for _ in range(min(SAMPLE_BATCH, len(metric.unsampled)))]
                wanted = sampled or [metric.unread.popleft() for _ in range(min(READ_BATCH, len(metric.unread)))]
                found = self._recorded.engine.state.trials
                keys = {
                    each: f"{self._recorded.dirname(found[each])}/{RESULT_FILE}" for each in wanted if each in found
                }
            if sampled:
                self._take_samples(metric, keys)
                continue
            data = dict(zip(keys, self._read_all(list(keys.values())), strict=True))
            with self._lock:
                self._version += 1
                refusal = self._take_files(metric, {each: data.get(each, b"") for each in wanted}, once=once)
                if refusal is None:
                    self._files_stale_since = None
                else:
                    self._files_failed_at = time.monotonic()
                    self._files_stale_since = self._files_stale_since or self._clock()
            if once and refusal is not None:
                raise refusal
            time.sleep(0.001)  # others get the lock
        with self._lock:
            return self._can_read()

    def _take_files(
        self, metric: _Metric, data: Mapping[str, bytes | StorageError], *, once: bool
    ) -> StorageError | None:
        """Take in what was read, and put back what could not be; return why, unless files are only missing."""
        refusal = None
        for trial_id, each in data.items():
            if isinstance(each, bytes):
                self._take_file(metric, trial_id, each)
            elif not isinstance(each, KeyMissingError):
                refusal = each
                metric.resting.append((time.monotonic(), trial_id))
            else:
                tries = metric.missing[trial_id] = metric.missing.get(trial_id, 0) + 1
                if once or tries >= MISSING_TRIES:
                    self._take_file(metric, trial_id, b"")
                else:
                    metric.resting.append((time.monotonic(), trial_id))
        return refusal

    def _take_samples(self, metric: _Metric, keys: Mapping[str, str]) -> None:
        """Show some points of each curve until its file is read."""
        curves = {}
        for trial_id, key in keys.items():
            with contextlib.suppress(OSError):
                curves[trial_id] = curve = Curve()
                curve.extend(sample_points(self.location.directory / key, metric.name, SAMPLE_POINTS))
                curve.count = 0  # nothing of it counts as taken in
                curve.encoded("iteration", self._point_limit(), 1.0)
        with self._lock:
            self._version += 1
            for trial_id, curve in curves.items():
                if trial_id in metric.waiting:  # not read meanwhile
                    curve.version = self._version
                    metric.curves[trial_id] = curve

    def _take_file(self, metric: _Metric, trial_id: str, data: bytes) -> None:
        trial = self._recorded.engine.state.trials.get(trial_id)
        waiting = metric.waiting.pop(trial_id, [])
        metric.missing.pop(trial_id, None)
        curve = metric.curves[trial_id] = Curve()
        if trial is not None:
            columns = read_columns(data, metric.name, trial.results)
            if columns is None:
                curve.extend(read_points(data, metric.name)[: trial.results])
            else:
                curve.fill(*columns)
            # Encoded now, in the background, and not when the page asks for all.
            curve.encoded("iteration", self._point_limit(), 1.0)
        curve.version = self._version
        self._add_points(metric, trial_id, waiting)

    def _read_all(self, keys: Sequence[str]) -> list[bytes | StorageError]:
        """Return the files; those of a bucket are read at once, each request of which takes milliseconds."""
        if self.location.is_folder:
            return [self._stored_results(key) for key in keys]
        found: dict[str, bytes | StorageError] = {}
        run_all([partial(self._read_into, found, key) for key in keys], READ_BATCH)
        return [found[key] for key in keys]

    def _read_into(self, found: dict[str, bytes | StorageError], key: str) -> None:
        found[key] = self._stored_results(key)

    def _stored_results(self, key: str) -> bytes | StorageError:
        """Return a trial's ``result.json``, or what prevents reading it."""
        try:
            return self.location.storage.read(key)
        except StorageError as error:
            return error

    # -- what is asked ------------------------------------------------------------------------------------------

    @property
    def cursor(self) -> str:
        """Names the present state, for `after`."""
        return f"{self._epoch}.{self._version}"

    def trial_rows(self, after: str = "") -> bytes:
        """Return the trials that changed after a cursor as JSON: ``{"cursor", "trials", "whole"}``.

        ``whole`` says that these are all: the cursor is none of this experiment's, and other trials are none of it.
        """
        with self._lock:
            since = self._since(after)
            rows = [
                self._row(trial)
                for trial in self._recorded.engine.state.trials.values()
                if self._changed.get(trial.trial_id, 0) > since
            ]
            return msgspec.json.encode({"cursor": self.cursor, "trials": rows, "whole": since < 0})

    def curves(
        self,
        metric: str = "",
        *,
        x: str = "iteration",
        points: int = MAX_POINTS,
        trials: Sequence[str] = (),
        after: str = "",
    ) -> bytes:
        """Return curves as JSON: ``{"cursor", "curves": {trial: {"x", "y", "full"}}}``.

        Args:
            metric: which; "" is the experiment's.
            x: one of `XS`.
            points: at most so many of each trial, and fewer where there are many trials.
            trials: these, with all their points.
            after: only those that changed after this cursor.

        Raises:
            InvalidInputError: `x` is another one, or the experiment has no metric and none is given.
        """
        if x not in XS:
            raise InvalidInputError(f"x={x}: must be one of {', '.join(XS)}")
        with self._lock:
            name = metric or self._recorded.settings.metric
            if name is None:
                raise InvalidInputError("the experiment has no metric: name one with metric=NAME")
            found = self._metric(name) if self._is_reported(name) else _Metric(name)
            keys = [f"{self._recorded.dirname(self._trial(each))}/{RESULT_FILE}" for each in trials]
        if found.unread:
            self._read_files(0.2)
        files = dict(zip(trials, self._read_all(keys), strict=True))
        with self._lock:
            cost = self._cost_rate()
            if trials:
                shown = {
                    each: self._full_curve(self._trial(each), data, found, x, cost) for each, data in files.items()
                }
            else:
                since = self._since(after)
                some = [(key, curve) for key, curve in found.curves.items() if curve.version > since and len(curve)]
                limit = min(points, self._point_limit())
                rate = cost if x == "cost" else 1.0
                shown = {key: curve.encoded(x, limit, rate) for key, curve in some}
            return msgspec.json.encode({"cursor": self.cursor, "curves": shown})

    def _point_limit(self) -> int:
        """Return how many points each curve has in an answer with all."""
        trials = len(self._recorded.engine.state.trials)
        return max(MIN_CURVE_POINTS, min(MAX_POINTS, MAX_CURVE_POINTS // max(1, trials)))

    def _full_curve(
        self, trial: Trial, data: bytes | StorageError, metric: _Metric, x: str, cost: float
    ) -> msgspec.Raw:
        stored = read_points(data if isinstance(data, bytes) else b"", metric.name)[: trial.results]
        curve = metric.curves.get(trial.trial_id)
        if len(stored) < trial.results and curve is not None:  # the file is behind, or gone
            xs, times, values = curve.points()
            last = max((point[0] for point in stored if point is not None), default=-math.inf)
            stored += [point for point in zip(xs, times, values, strict=True) if point[0] > last]
        known = [point for point in stored if point is not None]
        shown = [point[0] if x == "iteration" else point[1] * (cost if x == "cost" else 1.0) for point in known]
        return encode_points(shown, [point[2] for point in known], full=True)

    def view(self, rows: int | None = 0) -> ExperimentView:
        """Return the experiment as commands show it, with at most so many trials (None = all)."""
        with self._lock:
            return self._view(rows, idle=self._is_idle())

    def _view(self, rows: int | None, *, idle: bool) -> ExperimentView:
        recorded = self._recorded
        return build_view(
            recorded.engine,
            recorded.settings,
            path=self.location.uri,
            now=self._now(idle=idle),
            rows=rows,
            row=partial(self._trial_row, idle=idle),
        )

    def _now(self, *, idle: bool) -> float:
        """Return until when times are counted: while idle, no time is used up."""
        return self._recorded.engine.state.clock.now if idle else self._clock()

    def _is_idle(self) -> bool:
        """Return whether there is work left that no process does; it is asked once for an answer."""
        return self._recorded.engine.state.flags.state == RUNNING and self._interrupted()

    def _trial_row(self, trial: Trial, *, idle: bool) -> TrialRow:
        recorded = self._recorded
        dirname = recorded.dirname(trial)
        elsewhere = self._stored.get("storage") or ""
        row = build_row(
            trial,
            path=f"{self.location.uri}/{dirname}",
            name=recorded.trial_name(trial),
            now=self._now(idle=idle),
            checkpoints=f"{elsewhere}/{dirname}" if elsewhere else "",
        )
        return dataclasses.replace(row, status=PENDING) if idle and trial.running else row

    def summary(self) -> Json:
        """Return what a list of experiments shows of it."""
        standing = self._standing()
        with self._lock:
            return self._summary(standing, idle=self._is_idle())

    def _summary(self, standing: Json, *, idle: bool) -> Json:
        state = self._recorded.engine.state
        settings = self._recorded.settings
        best = best_trial(self._recorded.engine)
        created = next(iter(state.trials.values()), None)
        shown = state.flags.state
        if self._problem is not None and not state.trials:
            shown = UNREADABLE
        elif idle:
            shown = INTERRUPTED
        found = {
            "id": self.location.name,
            "name": settings.name,
            "namespace": self._stored.get("namespace") or None,
            "state": shown,
            "reason": str((state.flags.stopping or {}).get("source", "")),
            "trials": len(state.trials),
            "counts": self._shown_counts(interrupted=shown == INTERRUPTED),
            "best": None if best is None else {"trial": best.trial_id, "value": strict(best.value)},
            "metric": settings.metric,
            "mode": settings.mode,
            "started": None if created is None else created.created_at,
            "updated": state.clock.now or None,
        }
        return found | {key: each for key, each in standing.items() if key != "sentence"}

    def header(self) -> Json:
        """Return everything about the experiment as a whole."""
        standing = self._standing()
        with self._lock:
            for trial in self._recorded.engine.state.trials.values():
                self._row(trial)
            idle = self._is_idle()
            view = self._view(0, idle=idle)
            best = best_trial(self._recorded.engine)
            summary = self._summary(standing, idle=idle)
            settings = self._recorded.settings
            remaining = sum(each.loading for each in self._metrics.values())
            left_s = None if summary["state"] == INTERRUPTED else view.eta_s
            return summary | {
                "sentence": self._sentence(view, summary["state"], standing),
                "best": None
                if best is None
                else {
                    "trial": best.trial_id,
                    "value": strict(best.value),
                    "iteration": best.value_iteration,
                    "config": strict(best.shown_config),
                },
                "budget": self._budget(view, idle=idle),
                "estimated_end": None if left_s is None else self._clock() + left_s,
                "elapsed": view.elapsed_s,
                "total": view.total,
                "failures": [{"error": error, "trials": count} for error, count in view.failures.items()],
                "resources": view.resources,
                "cost_unit": "GPU-seconds" if self._has_gpus() else "trial-seconds",
                "parameters": strict(self._parameters.described()),
                "metrics": sorted(self._metric_names),
                "metric": settings.metric,
                "mode": settings.mode,
                "objectives": [
                    {"name": each.name, "mode": each.mode, "threshold": each.threshold}
                    for each in settings.objectives
                ],
                "front": [row.trial_id for row, _ in view.front],
                "rungs": sorted(self._rungs),
                "scheduler": self._algorithm("scheduler"),
                "search": self._algorithm("search"),
                "version": self.cursor,
                "loading": remaining,
                "place": self.location.uri,
                "stale_since": self._stale_since or self._files_stale_since,
                "damaged": None
                if self._problem is None
                else {key: self._problem[key] for key in ("message", "remedy")},
            }

    def trial(self, trial_id: str) -> bytes:
        """Return everything about one trial as JSON.

        Raises:
            NoSuchTrialError: there is none of that id.
        """
        with self._lock:
            trial = self._trial(trial_id)
            where = f"{self.location.uri}/{self._recorded.dirname(trial)}"
            elsewhere = self._stored.get("storage") or ""
            kept = f"{elsewhere}/{self._recorded.dirname(trial)}" if elsewhere else where
            in_pods = bool(self._stored.get("namespace"))
            attempts = [
                {
                    "number": each.number,
                    "pod": (each.reused_pod or each.hostname or None) if in_pods else None,
                    "node": each.node or None if in_pods else each.hostname or None,
                    "pid": each.pid or None,
                    "started": each.started,
                    "ended": each.ended,
                    "exit": f"{each.exit}: {each.error}" if each.error else each.exit,
                    "resumed_from": each.resumed_from,
                }
                for each in self._histories.attempts(trial)
            ]
            answer = {
                "row": self._row(trial),
                "name": self._recorded.trial_name(trial),
                "path": where,
                "config": strict(trial.shown_config),
                "last_result": strict(trial.shown_result),
                "traceback": trial.traceback,
                "attempts": attempts,
                "decisions": [
                    {
                        "time": each.time,
                        "iteration": each.iteration,
                        "attempt": each.attempt,
                        "decision": each.kind,
                        "explanation": sentence(each),
                    }
                    for each in trial.decisions
                ],
                "checkpoints": [
                    {
                        "iteration": each.iteration,
                        "size": each.size,
                        "committed": each.time,
                        "path": f"{kept}/{each.name}",
                    }
                    for each in trial.checkpoints
                ],
            }
            dirname = self._recorded.dirname(trial)
        logs = {"where": f"{where}/{LOG_FILE}", "tail": self._log_tail(f"{dirname}/{LOG_FILE}")}
        return msgspec.json.encode(answer | {"logs": logs})

    def importance(self, metric: str = "") -> Json:
        """Return how much each parameter matters for a metric; "" is the experiment's."""
        with self._lock:
            settings = self._recorded.settings
            name = metric or settings.metric
            if name is None:
                return {"unavailable": "the experiment has no metric"}
            ended = sum(trial.ended for trial in self._recorded.engine.state.trials.values())
            known = self._importance.get(name)
            if known is not None and known[0] == ended:
                return known[1]
            rows = []
            for trial in self._recorded.engine.state.trials.values():
                value = trial.value if name == settings.metric else real_number(trial.shown_result.get(name))
                if value is not None:
                    rows.append((dict(dotted(trial.shown_config)), float(value)))
            is_reported = self._is_reported(name)
        found = importance(rows, settings.mode)
        if is_reported:
            with self._lock:
                self._importance.pop(name, None)
                _drop_oldest(self._importance, but=settings.metric)
                self._importance[name] = (ended, found)
        return found

    def timeline(self) -> Json:
        """Return when trials waited, ran and paused, and who took over whose state."""
        with self._lock:
            trials = self._recorded.engine.state.trials.values()
            spans = [span for trial in trials for span in self._histories.spans(trial)]
            clones = [
                {"time": each.time, "from": each.source, "to": each.trial_id} for each in self._histories.clones
            ]
        return {"spans": spans, "clones": clones}

    def rows(self) -> list[TrialRow]:
        """Return all trials as commands show them."""
        with self._lock:
            idle = self._is_idle()
            return [self._trial_row(trial, idle=idle) for trial in self._recorded.engine.state.trials.values()]

    def facts(self, points: int) -> list[tuple[Json, list[tuple[float, float]]]]:
        """Return the rows of all trials as data, each with at most so many points of its curve: iteration, value."""
        with self._lock:
            metric = self._recorded.settings.metric
            curves = self._metric(metric).curves if metric is not None else {}
            found = []
            for trial in self._recorded.engine.state.trials.values():
                row: Json = msgspec.json.decode(self._row(trial)) | {
                    "value": trial.value,
                    "created": trial.created_at,
                }
                curve = curves.get(trial.trial_id)
                xs, _, values = curve.points(points) if curve is not None else ([], [], [])
                found.append((row, list(zip(xs, values, strict=True))))
            return found

    def parameters(self) -> list[Json]:
        """Return the parameters as the header describes them."""
        with self._lock:
            for trial in self._recorded.engine.state.trials.values():
                self._row(trial)
            return self._parameters.described()

    # -- inside -------------------------------------------------------------------------------------------------

    def _since(self, after: str) -> int:
        epoch, _, version = after.partition(".")
        return int(version) if epoch == self._epoch and version.isdecimal() else -1

    def _trial(self, trial_id: str) -> Trial:
        found = self._recorded.engine.state.trials.get(trial_id)
        if found is None:
            raise NoSuchTrialError(f"there is no trial {trial_id!r} in {self.location.uri}")
        return found

    def _row(self, trial: Trial) -> msgspec.Raw:
        known = self._rows.get(trial.trial_id)
        if known is None:
            known = self._rows[trial.trial_id] = msgspec.Raw(msgspec.json.encode(self._row_data(trial)))
            self._changed.setdefault(trial.trial_id, self._version)
        return known

    def _row_data(self, trial: Trial) -> Json:
        config = list(dotted(trial.shown_config))
        self._parameters.observe(config)
        metrics: Json = {}
        for name, value in trial.shown_result.items():
            number = None if name in AUTOMATIC_METRICS or isinstance(value, bool) else real_number(value)
            if number is not None:
                metrics[name] = strict(number)
                self._metric_names.setdefault(name)
        attempts = self._histories.attempts(trial)
        started = next((each.started for each in attempts if each.started is not None), None)
        reason = trial.stop_reason
        parent = None
        if trial.decision_count:
            exploits = (each.reason.get("source_trial") for each in trial.decisions if each.kind == "exploit")
            parent = next((str(source) for source in reversed(list(exploits)) if source), None)
        return {
            "id": trial.trial_id,
            "number": trial.index,
            "state": trial.status,
            "reason": trial.error or explain(reason),
            "stopped_by": str(reason.get("source")) if reason and is_early_stop(reason) else None,
            "config": {name: strict(value) for name, value in config},
            "metrics": metrics,
            # The rule of `trialpod best`: the latest finite value, not the largest or smallest on the way.
            "best": strict(trial.value),
            "iteration": trial.iteration,
            "started": started,
            "ended": trial.ended_at or None,
            "attempts": trial.attempt,
            "restarts": trial.failures + trial.disruptions,
            "cost": round(trial.run_time_s * self._cost_rate(), 3),
            "parent": parent,
            "error": trial.error if trial.status == ERROR else None,
            "pruned": _is_pruned(trial),
        }

    def _shown_counts(self, *, interrupted: bool) -> dict[str, int]:
        """Return how many trials are in each state, those that a scheduler stopped apart, as STOPPED."""
        state = self._recorded.engine.state
        if self._pruned_at != self._version:
            self._pruned = sum(map(_is_pruned, state.trials.values()))
            self._pruned_at = self._version
        counts = dict(state.counts)
        counts["TERMINATED"] = counts.get("TERMINATED", 0) - self._pruned
        counts["STOPPED"] = self._pruned
        if interrupted:  # what ran waits for a process
            counts["PENDING"] = counts.get("PENDING", 0) + counts.pop("RUNNING", 0)
        return {status: count for status, count in counts.items() if count}

    def _has_gpus(self) -> bool:
        return any(is_gpu(name) for name in accounting.resource_names(self._recorded.engine.state))

    def _cost_rate(self) -> float:
        """Return the GPUs of a trial on average, 1 where no trial has any."""
        spent = accounting.used(self._recorded.engine.state, self._recorded.engine.state.clock.now)
        gpus, trials = sum(amount for name, amount in spent.items() if is_gpu(name)), spent.get(accounting.TRIAL, 0.0)
        return round(gpus / trials, 4) if gpus and trials else 1.0

    def _budget(self, view: ExperimentView, *, idle: bool) -> list[Json]:
        state, settings, now = self._recorded.engine.state, self._recorded.settings, self._clock()
        now = max(state.clock.now, now) if view.state == RUNNING and not idle else state.clock.now
        ended = sum(trial.ended for trial in state.trials.values())
        found: list[Json] = [
            {"name": "trials", "used": ended, "limit": view.total, "unit": "trials"},
            {"name": "time", "used": view.elapsed_s, "limit": settings.time_budget_s, "unit": "s"},
            {
                "name": "trial hours",
                "used": accounting.hours_used(state, "trial", now),
                "limit": settings.max_trial_hours,
                "unit": "h",
            },
        ]
        if settings.max_gpu_hours is not None or self._has_gpus():
            used = accounting.hours_used(state, "GPU", now)
            found.append({"name": "GPU hours", "used": used, "limit": settings.max_gpu_hours, "unit": "h"})
        return found

    def _sentence(self, view: ExperimentView, state: str, in_cluster: Json) -> str:
        from trialpod_operator.display.progress import standing, trials

        if self._problem is not None:
            return str(self._problem["message"])
        if in_cluster.get("sentence"):
            return str(in_cluster["sentence"])
        if state == INTERRUPTED:
            return "no process runs it, and it has work left; run it again to continue"
        parts = [trials(view), *(words for _, words in standing(view))]
        waiting = view.counts.get("PENDING", 0)
        if state == RUNNING and waiting:
            parts.append(f"{waiting:,} waiting")
        parts += [view.budget] if view.budget else []
        text = ", ".join(parts)
        return f"{view.message}; {text}" if view.message else text

    def _algorithm(self, kind: str) -> str | None:
        manifest, definition = self._stored.get("manifest"), self._stored.get("definition")
        if isinstance(manifest, dict):
            spec = manifest.get("spec") or {}
            if isinstance(spec.get("algorithm"), str):
                return str(spec["algorithm"])
            found = spec.get("scheduler" if kind == "scheduler" else "searchAlgorithm") or {}
            return str(found.get("name") or "") or None if isinstance(found, dict) else None
        if isinstance(definition, dict):
            text = definition.get("algorithm") or definition.get("scheduler" if kind == "scheduler" else "search_alg")
            return None if text is None else str(text).partition("(")[0]
        return None

    def _log_tail(self, key: str) -> str | None:
        storage = self.location.storage
        try:
            folder, _, _ = key.rpartition("/")
            size = storage.sizes(folder).get(key)
            if size is None:
                return None
            data = storage.read_range(key, max(0, size - LOG_TAIL_BYTES), LOG_TAIL_BYTES)
        except TrialpodError:
            return None
        lines = data.decode(errors="replace").splitlines()
        return "\n".join((lines if size <= LOG_TAIL_BYTES else lines[1:])[-LOG_TAIL_LINES:])

    def _described(self, error: TrialpodError) -> Json:
        """Return what `trialpod fsck` would say."""
        command = f"trialpod fsck {self.location.uri}"
        messages = [str(error)]
        if isinstance(error, (JournalError, InvalidInputError)):
            from trialpod_operator.experiment.fsck.examine import examine

            try:
                found = examine(self.location.storage)
                errors = [each for each in found.findings if each.severity == "error"]
                messages = list(dict.fromkeys(each.what for each in errors)) or messages
            except TrialpodError as another:
                messages = [str(another)]
        return {"cause": str(error), "message": "; ".join(messages[:5]), "remedy": f"{command} examines all of it"}
