"""Damage to every kind of file of a checkpoint is found and named: the real runtime, without Spark."""

from __future__ import annotations

import random
import shlex
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import timely_spark as ts
from tests.support import engine
from tests.support.engine import Killed, Process, World, files
from tests.support.feeds import FolderFeed
from timely_spark.__main__ import main
from timely_spark.errors import LogDamaged
from timely_spark.runtime.handle.input_handle import InputHandle
from timely_spark.runtime.handle.log_view import LogView
from timely_spark.runtime.query import streaming as query
from timely_spark.runtime.sources.account import Account
from timely_spark.runtime.storage.blobs import Blobs, files_of
from timely_spark.runtime.storage.checksums import sealed
from timely_spark.runtime.storage.deliveries import Deliveries
from timely_spark.runtime.storage.entries import read_entry
from timely_spark.runtime.storage.files import Files
from timely_spark.runtime.storage.log import RoundLog
from timely_spark.runtime.storage.states import StateRefs
from timely_spark.state.arrangement import Arrangement
from timely_spark.state.codec import Codec, as_text, pack_parts, unpack_parts
from timely_spark.times import PRODUCT
from timely_spark.worker import round as round_

FLIPS = 200
#: Spark's versions of the operator's state, of the template.
VERSIONS: dict[int, dict[int, Any]] = {}


def flow() -> ts.Dataflow:
    """Keyed state, messages between workers, outputs that wait for their epoch."""
    made = ts.Dataflow("damaged")
    numbers = made.input("x", "n long, word string", epochs="manual")
    numbers.distinct(name="once").group_by("word").count(name="counts").capture("out")
    numbers.exchange("n").capture("all")
    return made


def entry_of(rows: int, start: int = 0) -> tuple[str, Any]:
    return "send", ([(n, f"word {n % 50}") for n in range(start, start + rows)],)


def world(folder: Path, *, sends: list[Any], workers: int = 2) -> World:
    there = World(flow(), str(folder), {"x": sends}, rounds=1, workers=workers, keep=50)
    there.clocked = False
    there.versions |= VERSIONS
    return there


def live(there: World) -> Process:
    with engine._points(there):
        process = Process(there)
        there.processes = [process]
        while not process.ended:
            process.go_on()
    if process.error is not None:
        raise process.error
    return process


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint that has all kinds of files: epochs released, others open, entries not taken yet."""
    folder = tmp_path_factory.mktemp("template") / "checkpoint"
    sends = [
        entry_of(300),
        ("advance_to", (1,)),
        entry_of(300, 200),
        ("advance_to", (2,)),
        entry_of(300, 400),
    ]
    there = world(folder, sends=sends)
    process = live(there)
    VERSIONS.update(there.versions)
    log = RoundLog(str(folder))
    log.files.write_json("failures/0.json", {"kind": "X", "text": "x", "vertex": None, "rank": 0})
    handle = InputHandle("x", "n long, word string", epochs="manual")
    handle.open(log, 2)
    handle.send([(-1, "more")])
    handle.advance_to(3)
    assert process.ended == "done"
    return folder


@pytest.fixture
def checkpoint(template: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(template, tmp_path / "checkpoint"))


def needed(checkpoint: Path) -> list[str]:
    """The blobs that the newest manifest refers to."""
    log = RoundLog(str(checkpoint))
    _, rows = log.manifest_and_rows(log.newest())
    states = [state.files for state in StateRefs.of(rows).by_worker.values()]
    assert any(states)
    return sorted(files_of(rows).union(*states))


def of_kind(kind: str, checkpoint: Path) -> list[str]:
    """The files of a kind that a restart needs, the one to be damaged last."""
    log = RoundLog(str(checkpoint))
    if kind == "blobs":
        return needed(checkpoint)
    if kind == "rounds":
        return [f"rounds/0/{batch}.arrow" for batch in log.files.numbers("rounds/0")]
    if kind == "inputs":
        return [f"inputs/x/{number}.arrow" for number in log.files.numbers("inputs/x")[:-1]]
    if kind == "captured":
        return [f"captured/all/{number}.arrow" for number in log.files.numbers("captured/all")]
    if kind == "outputs":
        manifest = log.read(log.newest())
        return sorted({name for names in manifest.unreleased["all"].values() for name in names})
    return [kind] if kind == "flow.json" else log.files.names(kind)


def go_on(checkpoint: Path) -> None:
    """All that a restart, with another number of workers, and a look at its outputs read."""
    sends = [entry_of(1)] * 7  # all of which are there already
    process = live(world(checkpoint, sends=sends, workers=3))
    LogView(process.context).captured("all")
    LogView(process.context).captured("out")


def look(kind: str, checkpoint: Path, name: str) -> object:
    """What reads a file of a kind, alone."""
    log = RoundLog(str(checkpoint))
    number = int(Path(name).stem) if Path(name).stem.lstrip("-").isdigit() else -1
    readers: dict[str, Callable[[], object]] = {
        "flow.json": log.identity,
        "terms": log.owner,
        "flows": lambda: log.files.existing(name, log.files.json(name)),
        "failures": lambda: log.files.json(name),
        "rounds": lambda: (log.read(number), log.manifest_and_rows(number)),
        "outputs": lambda: log.outputs(name),
        "inputs": lambda: read_entry(log, "x", number),
        "captured": lambda: list(Deliveries(str(checkpoint), "all").read()),
        "blobs": lambda: Blobs(log.files).get(b"blobfile" + name.encode()),
    }
    return readers[kind]()


KINDS = ["flow.json", "terms", "flows", "failures", "rounds", "outputs", "inputs", "captured", "blobs"]


@pytest.mark.slow
def test_a_checkpoint_that_nothing_happened_to_goes_on(checkpoint: Path) -> None:
    for kind in KINDS:
        look(kind, checkpoint, of_kind(kind, checkpoint)[-1])
    go_on(checkpoint)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_each_bit_that_flips_is_found(kind: str, checkpoint: Path) -> None:
    (name,) = of_kind(kind, checkpoint)[-1:]
    path = checkpoint / "timely" / name
    content = path.read_bytes()
    look(kind, checkpoint, name)  # a file that this process has seen before is not trusted for ever
    draw, found = random.Random(1), 0
    for _ in range(FLIPS):
        bit = draw.randrange(8 * len(content))
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        with pytest.raises(LogDamaged, match="Hint") as caught:
            look(kind, checkpoint, name)
        found += name in str(caught.value)
    assert found == FLIPS
    path.write_bytes(content)
    look(kind, checkpoint, name)


def cut_short(path: Path, _: list[Path]) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def cut_at_the_end(path: Path, _: list[Path]) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def longer(path: Path, _: list[Path]) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def emptied(path: Path, _: list[Path]) -> None:
    path.write_bytes(b"")


def flipped(path: Path, _: list[Path]) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def swapped(path: Path, others: list[Path]) -> None:
    path.write_bytes(others[0].read_bytes())


def deleted(path: Path, _: list[Path]) -> None:
    path.unlink()


def not_a_file(path: Path, _: list[Path]) -> None:
    path.unlink()
    path.mkdir()


HARMS = [cut_short, cut_at_the_end, longer, emptied, flipped, swapped, deleted, not_a_file]


@pytest.mark.slow
@pytest.mark.share(4)
@pytest.mark.parametrize("harm", HARMS, ids=lambda harm: harm.__name__)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "failures"])
def test_a_restart_names_the_file_that_is_damaged(
    kind: str, harm: Callable[..., None], checkpoint: Path, tmp_path: Path
) -> None:
    *others, name = of_kind(kind, checkpoint)
    if harm is swapped and not others:
        other = shutil.copytree(checkpoint, tmp_path / "other")
        stand_in = _stand_in(kind, other, name)
    else:
        stand_in = [checkpoint / "timely" / each for each in others]
    harm(checkpoint / "timely" / name, stand_in)
    with pytest.raises(LogDamaged, match="Hint") as caught:
        go_on(checkpoint)
    shown = name.replace("rounds/0", "rounds/*") if "rounds/*" in str(caught.value) else name
    assert shown in str(caught.value)


def _stand_in(kind: str, other: Path, name: str) -> list[Path]:
    """A file of the same kind with another content, as another checkpoint might have it."""
    files = Files(str(other)).below("timely")
    if kind == "flow.json":
        files.write_json(name, {**files.json(name), "id": "00000000-0000-4000-8000-000000000000"})
        return [other / "timely" / name]
    if name.endswith(".json"):
        files.write_json(f"{kind}/other.json", files.json(name))
        return [other / "timely" / kind / "other.json"]
    files.write_table(f"{kind}/other.arrow", files.table(name))
    return [other / "timely" / kind / "other.arrow"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["rounds", "inputs", "captured"])
def test_what_is_missing_in_the_middle_is_missed(kind: str, checkpoint: Path) -> None:
    names = of_kind(kind, checkpoint)
    middle = names[len(names) // 2 - (kind == "captured")]
    (checkpoint / "timely" / middle).unlink()
    with pytest.raises(LogDamaged, match="Hint") as caught:
        go_on(checkpoint)
    assert middle.replace("rounds/0", "rounds/*") in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("harm", [emptied, flipped, deleted], ids=lambda harm: harm.__name__)
def test_a_flow_goes_on_without_an_entry_by_the_command_that_its_error_names(
    harm: Callable[..., None], checkpoint: Path
) -> None:
    name = of_kind("inputs", checkpoint)[-1]
    harm(checkpoint / "timely" / name, [])
    with pytest.raises(LogDamaged, match=name) as caught:
        go_on(checkpoint)
    command = shlex.split(str(caught.value.hint).partition("timely_spark ")[2])
    assert command == ["skip", str(checkpoint), "--entry", Path(name).stem, "--input", "x"]
    assert main(command) == 0
    go_on(checkpoint)
    log = RoundLog(str(checkpoint))
    manifest = log.read(log.newest())
    assert manifest is not None
    sent = Account.of(log, manifest, [["x", "", "handle"]])["x"]
    assert (sent.skipped, sent.listed - sent.entered) == (1, 1)


@pytest.mark.slow
def test_the_terms_and_the_identity_are_missed_while_there_is_anything_else(checkpoint: Path) -> None:
    shutil.rmtree(checkpoint / "timely" / "terms")
    with pytest.raises(LogDamaged, match=r"does not hold terms/0\.json"):
        go_on(checkpoint)


@pytest.mark.parametrize("identity", ["x' OR '1'='1", "", "1234", "{0}", "A" * 36])
def test_an_id_that_is_none_goes_nowhere(checkpoint: Path, identity: str) -> None:
    there = Files(str(checkpoint)).below("timely")
    there.write_json("flow.json", {**there.json("flow.json"), "id": identity})
    with pytest.raises(LogDamaged, match=r"(?s)flow.json cannot be read: its id .* is not a UUID.*Hint"):
        go_on(checkpoint)


def test_a_file_that_the_system_refuses_to_read_is_named(checkpoint: Path) -> None:
    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    log = RoundLog(str(checkpoint))
    for reader, name in ((pa.OSFile, "flow.json"), (pa.memory_map, needed(checkpoint)[0])):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(pa, reader.__name__, fail)
            patch.setattr(pa, "OSFile", fail)
            with pytest.raises(LogDamaged, match=rf"(?s){name}.*Input/output error.*Hint"):
                look("flow.json" if name == "flow.json" else "blobs", checkpoint, name)
    assert log.identity() is not None


# -- a resident batch that has begun -------------------------------------------------------------------------


class Dies(Process):
    """Is killed when a resident batch has written where it reads its inputs to."""

    def point(self, what: str) -> None:
        if what == "after write epochs/3.json":
            raise Killed
        super().point(what)


def killed(there: World) -> World:
    with engine._points(there):
        process = Dies(there)
        there.processes = [process]
        while not process.ended:
            process.go_on()
    assert process.ended == "Killed"
    return there


def resident(folder: Path, leaves: float = 0.0) -> World:
    made = ts.Dataflow("resident")
    made.input("x", "n long").group_by("n").count(name="counts").capture("out")
    calls = [("send", ([(n % 3,)],)) for n in range(12)]
    there = World(made, str(folder), {"x": calls}, workers=2, resident=True, points=5_000, keep=50)
    there.leaves = leaves
    return there


@pytest.fixture
def begun(tmp_path: Path) -> World:
    """A checkpoint in which a resident batch has begun, and nothing of it is written."""
    return killed(resident(tmp_path / "checkpoint"))


@pytest.mark.slow
def test_a_batch_that_has_begun_is_run_again_with_its_record(begun: World) -> None:
    begun.live()
    assert engine.difference(begun) is None


@pytest.mark.slow
@pytest.mark.parametrize("stays", [0.0, 1.0])
def test_files_of_a_batch_that_has_begun_are_read_once_whether_the_next_run_stays(
    tmp_path: Path, stays: float
) -> None:
    feed = FolderFeed(tmp_path / "in", random.Random(1), ("k", "v"))
    feed.left = [[(n, n)] for n in range(8)]
    made = ts.Dataflow("files")
    made.files("folder", tmp_path / "in", schema="k long, v long").capture("out")
    there = World(
        made, str(tmp_path / "checkpoint"), {}, feeds={"folder": feed}, resident=True, points=5_000, keep=50
    )
    there.leaves = 0.0
    killed(there)

    there.resident = bool(stays)
    there.live()

    assert engine.difference(there) is None
    assert sum(len(files["folder"]) for files in there.read.values()) == 8


@pytest.mark.slow
@pytest.mark.parametrize("harm", [one for one in HARMS if one is not deleted], ids=lambda harm: harm.__name__)
def test_a_damaged_record_of_a_batch_that_has_begun_is_named(begun: World, harm: Any) -> None:
    folder = Path(begun.checkpoint) / "timely" / "epochs"
    harm(folder / "3.json", [folder / "2.json"])
    with pytest.raises(LogDamaged, match=r"(?s)epochs/3\.json.*Hint"):
        begun.live()


@pytest.mark.slow
@pytest.mark.parametrize("entries", [{"x": -1}, {"x": 0}, {}])
def test_a_record_that_goes_back_is_not_followed(begun: World, entries: dict[str, int]) -> None:
    """As one of a backup, or of another checkpoint: what was read would be read again."""
    there = Files(begun.checkpoint).below("timely")
    record = there.json("epochs/3.json")
    assert record["ends"]["entries"]["x"] > 0
    there.write_json("epochs/3.json", {**record, "ends": {"entries": entries, "sources": {}}})
    with pytest.raises(LogDamaged, match=r"(?s)epochs/3\.json.*before what was read of 'x'.*Hint"):
        begun.live()


@pytest.mark.slow
def test_a_resident_flow_that_is_rolled_back_reads_each_entry_once(tmp_path: Path) -> None:
    """Its later batches begin anew: the records of those that there were say where others end."""
    there = resident(tmp_path / "checkpoint", leaves=0.4)
    there.live()
    last = there.last_batches()
    first, *others = sorted(last.keys() & {*there.files.numbers("commits")})
    assert others
    assert there.files.numbers("timely/epochs")[-1] > last[first] + 1

    there.roll_back(first)
    there.leaves = 0.0
    for stays in (0.0, 1.0):  # the first batch reads what several did
        there.resident = bool(stays)
        there.sends["x"] += [("send", ([(n,)],)) for n in range(6)]
        there.live()

        assert engine.difference(there) is None


# -- what a checksum does not tell ---------------------------------------------------------------------------
def test_an_offset_that_was_made_up_reads_no_foreign_memory(checkpoint: Path) -> None:
    """The file is written as ours are, checksum and all; its strings end somewhere else."""
    files = Files(str(checkpoint)).below("timely")
    name = of_kind("inputs", checkpoint)[0]
    table = files.table(name)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table.slice(0, 3).combine_chunks())
    content, offsets = sink.getvalue().to_pybytes(), np.arange(0, 4 * 6 + 1, 6, np.int32)[:4].tobytes()
    assert content.count(offsets) == 1
    content = content.replace(offsets, np.array([0, 6, 12, 1 << 30], np.int32).tobytes())
    files.write(name, sealed(name, content))
    with pytest.raises(LogDamaged, match=name):
        files.table(name)


def test_live_files_alone_are_looked_at(checkpoint: Path) -> None:
    log = RoundLog(str(checkpoint))
    live_, _, there = files(log)
    assert live_ <= there
    assert replace(log.read(log.newest()), batch=0).batch == 0


@pytest.fixture(autouse=True)
def small() -> Iterator[None]:
    """The sizes with which the template was made."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine.blobs, "EMBEDDED", 64)
        yield


@pytest.mark.slow
@pytest.mark.parametrize(
    "made_up",
    [
        b"",
        b"no parts at all",
        pack_parts([b"no json"]),
        pack_parts([b"{}"]),
        pack_parts([b'{"format": %d, "vertices": {"once": [9, {}, []]}}' % round_.FORMAT]),
        pack_parts(
            [
                b'{"format": %d, "vertices": {}, "queue": [["once", 0, [0]]], "batches": [0], "pending": []}'
                % round_.FORMAT,
                b"no Arrow",
            ]
        ),
    ],
    ids=["empty", "no parts", "no json", "no head", "no vertex", "no Arrow"],
)
def test_a_state_that_somebody_made_up_is_named(checkpoint: Path, made_up: bytes) -> None:
    context = live(world(checkpoint, sends=[entry_of(1)] * 7)).context
    reference = b"blobfile" + context.blobs._write("0-9", made_up + b" " * 64).encode()
    with pytest.raises(LogDamaged, match=r"blobs/\d+-0-9-\d+-\w+ cannot be read"):
        query.restored_worker(context, 0, reference)


def test_a_batch_of_state_that_somebody_made_up_is_named(tmp_path: Path) -> None:
    blobs = Blobs(Files(str(tmp_path)), 0)
    state = Arrangement(("n",), [pa.table({"n": np.arange(1 << 16)})])
    codec = Codec(PRODUCT, blobs)
    written = codec.write(state)
    (reference,) = codec.blob_sizes
    other = blobs.put("other", b"no Arrow" * 10_000)
    head = bytes(unpack_parts(written)[0])
    head = head.replace(as_text([reference])[0].encode(), as_text([other])[0].encode())
    with pytest.raises(LogDamaged, match="blobs/0-other"):
        Codec(PRODUCT, blobs).read(pack_parts([head]))
