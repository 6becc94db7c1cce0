"""`python -m tests.support.outside SYSTEM FOLDER [PATTERN ...]`."""

from __future__ import annotations

import argparse
import random
import sys
import warnings
from pathlib import Path

from tests.support import outside
from tests.support.outside.cases import Tally
from tests.support.outside.duck import logic, tpcds
from tests.support.outside.spark import spark

SYSTEMS = {"spark": spark, "logic": logic, "tpcds": tpcds}


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=outside.__doc__)
    parser.add_argument("system", choices=[*SYSTEMS])
    parser.add_argument("place", type=Path)
    parser.add_argument("pattern", nargs="*")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000))
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    print(f"seed {given.seed}")
    tally = Tally()
    SYSTEMS[given.system](given.place, given.pattern, given.seed, tally)
    for why, n in tally.reasons.most_common():
        print(f"{n:5} {why}")
    print(*tally.lines(), dict(tally.total), sep="\n")
    sys.exit(any(tally.total[one] for one in ("DIFFERS", "CRASHED")))


if __name__ == "__main__":
    main()
