"""Results for people: as HTML in a notebook, and as figures."""
