"""The runtime: a compiled flow as one streaming query, with its driver, log, sources, sinks and handle.

Knows a flow by its plan, so `inputs` and `dataflow` stand above it; they import it inside functions only.
Importing this package does not import PySpark; the functions that need PySpark import it.
"""

from __future__ import annotations
