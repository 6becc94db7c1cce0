"""Python imports this first in every process of a run that is to be killed; nothing happens in any other."""

from __future__ import annotations

import os

if "TIMELY_CHAOS" in os.environ:
    from tests.support import points

    points.install()
