"""What jobs of the tests are made of: programs for a cluster, which are no tests and are not imported here."""

from __future__ import annotations

collect_ignore = ["shipped.py", "speculated.py", "vertices.py"]
