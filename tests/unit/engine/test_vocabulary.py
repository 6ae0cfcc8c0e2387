from __future__ import annotations

from trialpod_operator.engine.vocabulary import MANIFEST, SCRIPT


class TestRemedies:
    def test_a_manifest_is_changed_by_its_fields(self) -> None:
        assert MANIFEST.resource("gpu", 0) == "--set spec.resources.gpu=0"
        assert MANIFEST.field("maxTrialHours") == "spec.maxTrialHours"

    def test_a_script_is_changed_in_python(self) -> None:
        assert SCRIPT.resource("gpu", 0) == "tune.with_resources(trainable, {'gpu': 0})"
        assert SCRIPT.field("maxTrialHours") == "max_trial_hours"
        assert SCRIPT.metric("loss").startswith("pass it: TuneConfig(metric='loss', mode='max')")
