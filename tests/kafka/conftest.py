"""One broker for all tests; and programs that the tests start, which are no tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.broker import Broker

collect_ignore = ["killed.py", "killed_source.py"]


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker
