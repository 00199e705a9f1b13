"""`python -m pumphouse`: the command line without its script on the PATH."""

from pumphouse.cli import main
from pumphouse.cli.demo.processes import end_with_parent

if __name__ == "__main__":
    end_with_parent()
    main()
