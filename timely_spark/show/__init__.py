"""A flow as text (`explain`) and as drawings, and tables to look at. Does not import `runtime`."""

from __future__ import annotations

from timely_spark.show.drawing import to_html, to_svg
from timely_spark.show.explain import explain
from timely_spark.show.mermaid import to_mermaid
from timely_spark.show.sketch import Expand

__all__ = ["Expand", "explain", "to_html", "to_mermaid", "to_svg"]
