"""Sinks of outputs: Delta tables, folders, captures, views and subscribers."""

from __future__ import annotations
