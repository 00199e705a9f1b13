"""How far consumer groups are behind, observed from outside: what `pumphouse lag-exporter` runs."""
