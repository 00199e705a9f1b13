"""An external scaler for KEDA: the number of hosts follows the lag. `pumphouse scaler` runs it."""
