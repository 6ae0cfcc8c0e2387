from __future__ import annotations

import numpy as np

from trialpod_operator.engine.choices import Choices
from trialpod_operator.engine.events import TimerFired
from trialpod_operator.experiment.records import Record, decode_record, encode


class TestEvidence:
    def test_may_hold_values_as_they_were_reported(self) -> None:
        """A plug-in of a script decides by what its trials reported, and says so."""
        evidence = {"value": np.float64(0.5), "series": np.ones(2), "count": np.int32(3)}
        choices = Choices(stop_all=evidence)
        (found,) = [decode_record(encode(Record(now=1.0, event=TimerFired(), choices=choices))).choices]
        assert found is not None
        assert found.stop_all is not None
        assert (found.stop_all["value"], found.stop_all["count"]) == (0.5, 3)
