"""Lets a search algorithm take its time: all calls to it happen in a thread of its own, one after the other.

The engine asks for a suggestion and continues; the answer is an event (`SuggestionReady`). What the algorithm
receives meanwhile waits for the suggestion, so that it sees the same calls in the same order whenever the answer
comes.

Invariants:

* The order of calls is that in which the engine makes them; a replay repeats it. So a suggestion that was computed
  and whose event did not come into the journal is computed again, to the same result.
* During a replay nothing is computed: `on_answer` has the algorithm adopt what is recorded, and calls after an open
  request are held until then. What is held when the replay ends is done in the thread.
* Before `release` nothing of an event reaches the thread; `release` is called when the event is in the journal.
* The state of the algorithm is read only while no suggestion is being computed (`quiesce`).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from trialpod.protocol.values import params_encoder
from trialpod.tune.search.search_algorithm import SearchAlgorithm, Suggestion
from trialpod_operator.engine.algorithms import adopt
from trialpod_operator.engine.choices import Created
from trialpod_operator.engine.events import SuggestionReady

MAX_QUEUED_CALLS = 100_000
"""Maximum number of calls that wait for the thread; beyond them a report waits too, so that memory stays bounded."""

_Call = tuple[str, tuple[Any, ...]]
_SUGGEST: _Call = ("next_suggestion", ())


def is_slow(search: SearchAlgorithm) -> bool:
    """Return whether the suggestions of a search algorithm may take long; those with ``instant = True`` never do."""
    return not getattr(search, "instant", False)


def _copied(result: dict[str, Any] | None) -> dict[str, Any] | None:
    return None if result is None else dict(result)


class BackgroundSearcher(SearchAlgorithm):
    """A search algorithm whose suggestions come as events.

    Args:
        search: the one that makes them.
        deliver: takes `SuggestionReady`, to be applied soon; called in the thread.
        threaded: False has `work` called by its owner instead of a thread.
        opens_values: the algorithm sees the user's objects themselves; see `Engine`.
        encode_params: encodes configs.
    """

    defers = True
    transparent = True

    def __init__(
        self,
        search: SearchAlgorithm,
        deliver: Callable[[SuggestionReady], None],
        threaded: bool = True,
        *,
        opens_values: bool = False,
        encode_params: Callable[[Any], bytes] = params_encoder.encode,
    ) -> None:
        self.search = search
        self._opens_values = opens_values
        self._encode_params = encode_params
        self._deliver = deliver
        self._threaded = threaded
        has_hook = type(search).on_trial_result is not SearchAlgorithm.on_trial_result
        self.listens = has_hook and bool(getattr(search, "_listens", True))
        """The algorithm learns from results before the last."""
        self._live = False
        self._unreleased: deque[_Call] = deque()  # not released yet; the engine's thread only
        self._request_open = False  # a request is in `_unreleased` or with the thread; the engine's thread only
        self._computing = False  # with the thread; the engine's thread only
        self._condition = threading.Condition()  # guards the rest
        self._queue: deque[_Call] = deque()
        self._working = False
        self._failed = False
        self._closed = False
        self._thread: threading.Thread | None = None
        self.on_error: Callable[[BaseException], object] = lambda _error: None
        """Called with each error of the algorithm, for a log."""
        self.describe: Callable[[BaseException], str] = lambda error: f"{type(error).__name__}: {error}"
        """Returns the text of an error for the experiment's message."""
        self.calls = 0
        """How many calls were begun: in the thread, or in a replay by the engine's."""

    @property
    def active_thread(self) -> threading.Thread | None:
        """The thread while it makes a call."""
        return self._thread if self._working else None

    # -- what the engine calls --

    @property
    def total(self) -> int | None:
        """The number of trials in all, as the algorithm knows it now."""
        return self.search.total

    @property
    def finished(self) -> bool:
        """True when no further suggestion will come, as the algorithm knows it now."""
        return self.search.finished

    def request(self) -> None:
        """A suggestion is wanted, made of what it received before."""
        self._request_open = True
        self._unreleased.append(_SUGGEST)

    def on_answer(self, created: Created | None, error: str) -> None:
        """The engine has the suggestion that was asked for."""
        self._request_open = self._computing = False
        if self._live:
            return
        if _SUGGEST in self._unreleased:
            self._unreleased.remove(_SUGGEST)
        self.calls += 1
        if created is not None:
            adopt(self.search, created, opens_values=self._opens_values)
        elif not error:
            self.search.next_suggestion()
        while self._unreleased:
            self._replay(self._unreleased.popleft())

    def next_suggestion(self) -> Suggestion | None:
        """Not to be called: suggestions come as events."""
        raise NotImplementedError("use request()")

    def adopt(self, suggestion: Suggestion) -> None:
        """Pass on; only in a replay."""
        self._call("adopt", suggestion)

    def set_num_samples(self, num_samples: int) -> None:
        """Pass on."""
        self._call("set_num_samples", num_samples)

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Pass on a result."""
        if self.listens:
            self._call("on_trial_result", trial_id, dict(result))  # others continue using it

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Pass on the end of a trial."""
        self._call("on_trial_complete", trial_id, _copied(result), error)

    def on_trial_stopped(self, trial_id: str, result: dict[str, Any] | None = None) -> None:
        """Pass on that a trial was given up."""
        self._call("on_trial_stopped", trial_id, _copied(result))

    def on_pause(self, trial_id: str) -> None:
        """Pass on that a trial was paused."""
        self._call("on_pause", trial_id)

    def on_unpause(self, trial_id: str) -> None:
        """Pass on that a paused trial continues."""
        self._call("on_unpause", trial_id)

    def on_trial_rung(self, trial_id: str, rung: float, result: dict[str, Any]) -> None:
        """Pass on that a trial reached a rung."""
        self._call("on_trial_rung", trial_id, rung, dict(result))

    def get_state(self) -> dict[str, Any]:
        """Return the algorithm's state; only when `quiesce` has just returned True."""
        return self.search.get_state()

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the algorithm; before anything else."""
        self.search.set_state(state)

    # -- what the owner calls --

    def release(self) -> None:
        """Give the thread what was called so far: it is in the journal. From the first time on, all is live."""
        self._live = True
        if not self._unreleased:
            return
        self._computing = self._request_open
        with self._condition:
            self._queue.extend(self._unreleased)
            self._unreleased.clear()
            if self._threaded and self._thread is None:
                self._thread = threading.Thread(target=self._run, name="trialpod-search", daemon=True)
                self._thread.start()
            self._condition.notify_all()
            while self._threaded and len(self._queue) > MAX_QUEUED_CALLS and not self._closed:
                self._condition.wait()

    @property
    def is_idle(self) -> bool:
        """Whether the state may be read now, without a call before: at most a suggestion waits for `release`."""
        with self._condition:
            if self._computing or self._queue or self._working:
                return False
        return all(call is _SUGGEST for call in self._unreleased)

    def quiesce(self, timeout_s: float | None = None) -> bool:
        """Have everything done that was called before an open request; return whether the state may be read now.

        That is so when no suggestion is being computed and nothing waits for one.

        Args:
            timeout_s: maximum time to wait for other calls; None waits until they are done.
        """
        if self._computing:
            return False
        with self._condition:
            self._condition.wait_for(
                lambda: self._closed or not (self._queue or self._working) or not self._threaded, timeout_s
            )
            if self._queue or self._working:
                return False
            failed = self._failed
        while self._unreleased and self._unreleased[0] is not _SUGGEST and self._live:
            call = self._unreleased.popleft()
            if not failed:
                self._call_search(call)
        return len(self._unreleased) == int(self._request_open)

    def work(self) -> bool:
        """Make the next call; return False when there is none. Called by the thread, or in place of it."""
        with self._condition:
            if not self._queue:
                return False
            call = self._queue.popleft()
            self._working = True
            self.calls += 1
            failed = self._failed
        try:
            if not failed:
                self._call_search(call)
        finally:
            with self._condition:
                self._working = False
                self._condition.notify_all()
        return True

    def close(self) -> None:
        """Make no further calls; a suggestion that is being computed is dropped."""
        with self._condition:
            self._closed = True
            self._queue.clear()
            self._condition.notify_all()

    # -- inside --

    def _call(self, name: str, *args: Any) -> None:
        if self._live or self._request_open:
            self._unreleased.append((name, args))
        else:
            self._replay((name, args))

    def _replay(self, call: _Call) -> None:
        self.calls += 1
        self._do(call)

    def _do(self, call: _Call) -> Any:
        return getattr(self.search, call[0])(*call[1])

    def _call_search(self, call: _Call) -> None:
        try:
            answer = self._do(call)
            if call is _SUGGEST:
                self._tell(self._event(answer))
        except BaseException as error:  # noqa: BLE001 - it ends the experiment with its message
            self.on_error(error)
            with self._condition:
                self._failed = True
            name = type(self.search).__name__
            self._tell(SuggestionReady(error=f"{name}.{call[0]} raised {self.describe(error)}"))

    def _event(self, suggestion: Suggestion | None) -> SuggestionReady:
        if suggestion is None:
            return SuggestionReady(finished=self.search.finished)
        params = self._encode_params(suggestion.config)
        return SuggestionReady(created=Created(suggestion.trial_id, suggestion.tag, params))

    def _tell(self, event: SuggestionReady) -> None:
        if not self._closed:
            self._deliver(event)

    def _run(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._queue or self._closed)
                if self._closed:
                    return
            self.work()
