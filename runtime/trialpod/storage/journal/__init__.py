"""The experiment's journal: records, segments and snapshots."""
