"""Ray Tune's older generations and the parts of Ray that scripts reach into: `tune.run`, loggers, `TrialRunner`.

All of it stands on the Tuner; nothing of today's API needs it. `trialpod.tune` exports its public names.
"""
