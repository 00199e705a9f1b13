"""The lag of consumer groups, from hub and store, for `pumphouse lag-exporter` and the scaler."""
