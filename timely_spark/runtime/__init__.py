"""Where things act: a compiled flow as one streaming query, with its driver, log, sources, sinks and handle.

May import every pure folder, and is imported by none of them; `dataflow.start` imports it when it is called.
Modules that need PySpark import it when they are used, so that importing this package does not.
"""

from __future__ import annotations
