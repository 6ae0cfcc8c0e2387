"""The `trialpod` command."""
