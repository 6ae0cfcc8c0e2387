"""The checks behind `trialpod fsck`: a whole experiment against what must hold of its history and files."""
