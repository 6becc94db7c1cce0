"""Fetch Delta's and Kafka's jars, archive the classes that Spark loads, and make a SPARK_HOME of links.

Later sessions need no network.

No class of a jar is loaded before the jar has a checksum of `conf/jars.sha256`. After a change of versions
the message has the lines to add, once somebody has looked where the jars come from.

Archive and SPARK_HOME are those of `python -m timely_spark prepare --delta --kafka`
(`timely_spark/runtime/prepare.py`).
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable
from pathlib import Path

from timely_spark.errors import TimelyError
from timely_spark.runtime.prepare import prepare

#: As `sha256sum` writes them.
CHECKSUMS = Path(__file__).with_name("jars.sha256")


def verify(jars: Iterable[Path]) -> None:
    """Check that each jar has a checksum of the list.

    Raises:
        RuntimeError: one has another; such jars are deleted.
    """
    listed = {line.split()[0] for line in CHECKSUMS.read_text(encoding="utf-8").splitlines()}
    checksums = {jar: hashlib.sha256(jar.read_bytes()).hexdigest() for jar in jars}
    if other := [jar for jar, checksum in checksums.items() if checksum not in listed]:
        for jar in other:
            jar.unlink()
        lines = [f"{checksums[jar]}  {jar.name}" for jar in other]
        message = "these jars are not those of conf/jars.sha256, and were deleted:\n" + "\n".join(lines)
        raise RuntimeError(message)


def main(classes: str, home: str) -> int:
    """Fetch and verify the jars, and run a flow on a Spark that has them.

    Args:
        classes: the file of the archive.
        home: the folder of the SPARK_HOME.

    Returns:
        The exit code: 0 when the jars and the archive are there.
    """
    print(
        "fetching Delta's and Kafka's jars, and archiving Spark's classes (once)",
        flush=True,
    )
    try:
        prepare(Path(home), Path(classes), ["delta", "kafka"], verify)
    except (TimelyError, RuntimeError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
