"""The sub-commands that ask a cluster: `trialpod why`, `trialpod status`."""
