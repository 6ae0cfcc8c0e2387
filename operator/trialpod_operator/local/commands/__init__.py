"""The sub-commands of `trialpod` that need the engine, one module each."""
