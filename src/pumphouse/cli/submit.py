"""The command line as a script file for spark-submit.

    spark-submit --master spark://head:7077 \\
        "$(python -c 'import pumphouse.cli.submit as s; print(s.__file__)')" homes run --data ...
"""

from __future__ import annotations

from pumphouse.cli import main

if __name__ == "__main__":
    main()
