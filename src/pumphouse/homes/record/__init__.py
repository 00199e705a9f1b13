"""Stage three, `record`: activities and alerts into Parquet files and a database."""
