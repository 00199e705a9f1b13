"""The command line as a file, which is what spark-submit wants.

    spark-submit --master spark://head:7077 \\
        "$(python -c 'import pumphouse.cli.submit as it; print(it.__file__)')" homes run --data ...
"""

from __future__ import annotations

from pumphouse.cli import main

if __name__ == "__main__":
    main()
