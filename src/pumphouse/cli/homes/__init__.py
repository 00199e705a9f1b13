"""`pumphouse homes`: simulated homes and the pipeline that processes their readings."""
