"""Stage two, `watch`: activities in, alerts out."""
