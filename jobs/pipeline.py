"""Keep the views of a folder, in SQL and in Python, in Delta tables.

python jobs/pipeline.py FOLDER --checkpoint DIR [--set NAME=VALUE] [--follow] [--explain] [--workers N]
"""

from __future__ import annotations

import sys

from timely_spark.__main__ import main

if __name__ == "__main__":
    sys.exit(main(["run", *sys.argv[1:]]))
