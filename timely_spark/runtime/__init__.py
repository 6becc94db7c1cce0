"""The runtime: a compiled flow as one streaming query, with its driver, log, sources, sinks and handle.

May import every pure folder, and is imported by none of them; `dataflow.start` imports it when it is called.
Importing this package does not import PySpark; the functions that need PySpark import it.
"""

from __future__ import annotations
