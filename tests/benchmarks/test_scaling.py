"""Scaling: what is measured again says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import harness, scaling


def test_each_part_that_is_measured_again_says_when(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    last = json.loads((harness.RESULTS / "scaling.json").read_text(encoding="utf-8"))
    last |= {"notes": ["Not predicted: some."], "date": "2026-01-02T03:04:05+00:00", "commit": "abc"}
    monkeypatch.setattr(harness, "RESULTS", tmp_path)
    monkeypatch.setattr(scaling, "_written", lambda report, **_: report)
    monkeypatch.setattr(scaling, "commit", lambda: "def")
    for names in (["spread"], ["words", "pagerank"]):
        (tmp_path / "scaling.json").write_text(json.dumps(last))
        report = scaling.again(names, [])
        last |= {"notes": report.notes, "rows": report.rows, "date": "2026-02-02T03:04:05+00:00"}

    left_out, first, spread, others = report.notes
    assert (left_out, first) == (
        "Not predicted: some.",
        "Measured on 2026-01-02T03:04 at abc, but for what was measured again.",
    )
    assert spread.startswith("Measured again on 20")
    assert spread.endswith(" at def: spread ().")
    assert others.endswith(" at def: words, pagerank ().")
