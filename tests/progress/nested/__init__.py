"""Progress scope by scope: a scope is an operator of the scope around it.

The protocol is that of timely's `Scope` trait. The runtime tracks a flow with one flat
`Tracker`; this is its reference, which computes the same frontiers another way (timely's ``progress/operate``
and ``progress/subgraph``).
"""

from __future__ import annotations

from tests.progress.nested.operate import Operate, Operator, Progress
from tests.progress.nested.scopes import Route, Scopes
from tests.progress.nested.subgraph import OUTSIDE, Connection, Subgraph

__all__ = ("OUTSIDE", "Connection", "Operate", "Operator", "Progress", "Route", "Scopes", "Subgraph")
