"""The user's handles of a running flow: the query, input handles, and a checkpoint's status."""

from __future__ import annotations
