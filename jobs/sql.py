"""Keep the views of a file of SQL, or of a folder of views, in Delta tables.

python jobs/sql.py PATH --checkpoint DIR [--set NAME=VALUE] [--follow] [--explain] [--workers N]
"""

from __future__ import annotations

import sys

from timely_spark.__main__ import main

if __name__ == "__main__":
    sys.exit(main(["sql", *sys.argv[1:]]))
