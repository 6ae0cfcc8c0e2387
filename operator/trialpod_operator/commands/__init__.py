"""The sub-commands of `trialpod` that need the engine or a cluster, one file each."""
