"""Where an experiment's files are: storages, checkpoints, the journal, the experiment's lock, the trials' logs."""
