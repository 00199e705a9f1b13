"""`python -m pumphouse`: the command line, also where its script is not on the path."""

from pumphouse.cli import main
from pumphouse.cli.demo.processes import tether

if __name__ == "__main__":
    tether()
    main()
