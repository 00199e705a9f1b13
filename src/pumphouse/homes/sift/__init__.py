"""Stage one, `sift`: readings in, activities out."""
