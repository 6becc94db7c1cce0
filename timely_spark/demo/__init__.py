"""`python -m timely_spark demo`: loops over a real graph, the imports of the Python packages of this machine.

May import the whole package; imported by the command line only.
"""

from __future__ import annotations
