"""One experiment with its durable side: the engine, its journal and the files of its trials."""
