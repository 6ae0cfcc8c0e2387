"""The process shell: experiments on one machine, behind `trialpod run` and `Tuner.fit`."""
