"""Search spaces on their way to a search algorithm: flattened, drawn from, or in a library's own form."""
