"""The documents' Python runs as a reader would run it: block after block, in one program, elsewhere."""

from __future__ import annotations

import ast
import io
import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.support.package import blocks

ROOT = Path(__file__).parents[2]
DOCUMENTS = [str(path.relative_to(ROOT)) for path in (*ROOT.glob("*.md"), *sorted(ROOT.glob("docs/**/*.md")))]
FENCE = re.compile(r"^ {0,3}```")


def _program(markdown: str) -> str:
    r"""The Python blocks on their own lines, all else blank, so that errors name the document's lines.

    >>> _program("text\n```python\nx = 1\n```\nmore")
    '\n\nx = 1\n\n'
    """
    lines: list[str] = []
    block = ""  # the line that opened the block we are in; empty outside of blocks
    for line in markdown.splitlines():
        fence = FENCE.match(line)
        lines.append(line if block == "```python" and not fence else "")
        if fence:
            block = "" if block else line.strip()
    program = "\n".join(lines)
    for text in files(markdown).values():
        program = program.replace(text.rstrip("\n"), "\n" * text.rstrip("\n").count("\n"))
    return program


def files(markdown: str) -> dict[str, str]:
    r"""The blocks that are files, by their names.

    >>> files("text\n```python\n# job.py\nx = 1\n```\nmore")
    {'job.py': '# job.py\nx = 1\n'}
    """
    return {name[1]: block for block in blocks(markdown) if (name := FILE.match(block))}


def printed(markdown: str) -> list[list[str]]:
    r"""The lines of each block without a language behind a block of Python that prints at its end.

    >>> printed("```python\nprint(1)\n```\nprints\n```\n1\n```\n```\n$ ls\n```")
    [['1']]
    """
    found, prints = list[list[str]](), False
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```$", markdown, flags=re.MULTILINE | re.DOTALL):
        if language == "python":
            last = (ast.parse(block).body or [None])[-1]  # none: comments only
            last = last.body[-1] if isinstance(last, ast.For | ast.With) else last
            prints = isinstance(last, ast.Expr) and ast.unparse(last).startswith(("print(", "flow.explain("))
        elif prints:
            found.append(block.splitlines())
            prints = False
    return found


def check_printed(document: str, output: str) -> None:
    """Check that a document's program prints what the document shows; "..." is what it leaves out."""
    of_line = re.compile(r"\([\w./-]+\.py:\d+\)")  # which file and line depends on the reader's
    lines = of_line.sub("(LINE)", output).splitlines()
    for block in printed((ROOT / document).read_text(encoding="utf-8")):
        for line in block:
            if line.strip() != "...":
                wanted = of_line.sub("(LINE)", line)
                assert wanted in lines, f"{document} shows {wanted!r}; its program prints\n{output}"
                del lines[: lines.index(wanted) + 1]


#: A block that begins with the name of a file is that file.
FILE = re.compile(r"^# (\w+\.py)\n")
#: The documents that need a broker of Kafka.
KAFKA = {"docs/kafka.md", "docs/story.md"}
SHOWN = {document: _program((ROOT / document).read_text(encoding="utf-8")) for document in DOCUMENTS}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, which is the working directory."""
    folder = tmp_path / "empty"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def shared(spark: SparkSession, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The session that all tests share, in the folder; a document stops nothing but its queries."""
    kept = spark.conf.getAll
    files: Any = spark._jvm.org.apache.hadoop.fs
    local = files.FileSystem.get(spark._jsc.hadoopConfiguration())
    place = local.getWorkingDirectory()
    local.setWorkingDirectory(files.Path(str(folder)))
    monkeypatch.setattr(SparkSession, "stop", lambda _: None)
    yield
    for query in spark.streams.active:
        query.stop()
    local.setWorkingDirectory(place)
    for key, value in spark.conf.getAll.items():
        if value != kept.get(key) and spark.conf.isModifiable(key):
            spark.conf.set(key, kept[key]) if key in kept else spark.conf.unset(key)


#: Those whose programs ask for a session.
RUN = {document: program for document, program in SHOWN.items() if program.strip()}
ON_SPARK = {document for document, program in RUN.items() if "getOrCreate()" in program}
#: Of these, those that always run; all run in the campaign.
FIRST = {"README.md", "docs/from-foreachbatch.md"}


@pytest.mark.slow
@pytest.mark.parametrize("document", sorted(RUN.keys() - ON_SPARK))
def test_the_blocks_of_a_document_run(document: str, folder: Path) -> None:
    check_printed(document, _run(RUN[document], f"{Path(document).name}.py", folder))


@pytest.mark.timeout(480)
@pytest.mark.usefixtures("shared")
@pytest.mark.parametrize(
    "document",
    [pytest.param(one, marks=[pytest.mark.campaign] * (one not in FIRST)) for one in sorted(ON_SPARK)],
)
def test_the_blocks_of_a_document_run_on_spark(
    document: str,
    spark: SparkSession,
    folder: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if document in KAFKA:
        monkeypatch.setenv("KAFKA", request.getfixturevalue("broker").servers)
    with ExitStack() as stack:
        for name, text in files((ROOT / document).read_text(encoding="utf-8")).items():
            (folder / name).write_text(text, encoding="utf-8")
            monkeypatch.syspath_prepend(folder)
            spark.sparkContext.addPyFile(str(folder / name))  # Spark's processes import them, too
            stack.callback(sys.modules.pop, Path(name).stem, None)
        check_printed(document, _run(RUN[document], f"{Path(document).name}.py", folder))


def _run(program: str, name: str, folder: Path) -> str:
    """What a program prints whose working directory is the folder, in which it is not itself."""
    script = folder.parent / name
    script.write_text(program, encoding="utf-8")
    names: dict[str, Any] = {"__name__": "__main__"}  # so what is pickled is pickled by value
    with redirect_stdout(io.StringIO()) as output:
        exec(compile(program, str(script), "exec"), names)
    return output.getvalue()


COMMANDS = re.compile(r"\$ |make |mkdir |printf |pip |python -m |\.venv/bin/python |spark-submit |\(cd ")
#: Of an output that a page only tells of, as of a run over hours: its first line, and a test of such a text.
TOLD = {
    "epoch 3 is held back by": ("tests/spark/test_durable.py", "is held back by"),
    "views read each other: large (bank/tables.sql:3), which reads groups (bank/groups.py:5), which reads "
    "large (bank/tables.sql:3)": ("tests/test_pipeline.py", "read each other: "),
    "step 'candidates.select' (people.py:25) failed, in bands (people.py:16), "
    "with {'id': 4, 'name': 'M. Olsen', 'phone': '311'}, {'id': 6, 'name': None, 'phone': '311'}:": (
        "tests/operators/test_sql.py",
        ".*AttributeError",
    ),
    "(record=4) is in 'members' at epoch 1, because of": (
        "tests/runtime/test_console.py",
        "is in 'near' at epoch 0, because of",
    ),
    "reach: continues with 3 workers instead of 2": ("tests/spark/test_restore.py", "continues with"),
    "hops.min at epoch 3, iterations 9985 to 10000: the same every 2": (
        "tests/runtime/test_changing.py",
        "the same every",
    ),
}


def test_an_output_is_compared_or_told_of_another_run() -> None:
    told = set[str]()
    for document in DOCUMENTS:
        text = (ROOT / document).read_text(encoding="utf-8")
        plain = re.sub(r"^```(?!text)\w+\n.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
        for block in blocks(plain, r"\w*"):
            if block.splitlines() not in printed(text) and not COMMANDS.match(block):
                told.add(block.partition("\n")[0])
    assert told == {*TOLD}
    assert [
        line for line, (test, words) in TOLD.items() if words not in (ROOT / test).read_text("utf-8")
    ] == []


def test_documents_show_what_programs_print() -> None:
    shown = {one for one in DOCUMENTS if printed((ROOT / one).read_text(encoding="utf-8"))}

    assert {"docs/why.md", "docs/thinking.md"} <= shown
    with pytest.raises(AssertionError, match=r"docs/why\.md shows .*node=3"):
        check_printed("docs/why.md", "(node=4) is in 'near'")


@pytest.mark.campaign  # in every run the page's job writes files, and those of tests/spark Delta tables
@pytest.mark.timeout(480)
@pytest.mark.usefixtures("shared")
def test_the_first_job_writes_a_delta_table_as_its_page_says(folder: Path) -> None:
    page = (ROOT / "docs/start.md").read_text(encoding="utf-8")
    assert (
        'To write a Delta table instead, use `.to_delta("out/found", name="found")` '
        "and `ts.configure(..., delta=True)`."
    ) in page
    program = SHOWN["docs/start.md"]
    for before, after in {
        '.to_files("out/found", name="found")': '.to_delta("out/found", name="found")',
        '.appName("reach"))': '.appName("reach"), delta=True)',
    }.items():
        assert program.count(before) == 1
        program = program.replace(before, after)
    _run(program, "reach.py", folder)

    assert (folder / "out/found/_delta_log").is_dir()


def test_what_the_pages_install_can_be_had() -> None:
    """The package is not on PyPI: only extras of a package that is installed already go by its name."""
    texts = [(ROOT / name).read_text(encoding="utf-8") for name in DOCUMENTS if name != "CHANGELOG.md"]
    commands = [command for text in texts for command in re.findall(r"pip install [^`\n]*", text)]

    assert len(commands) >= 4
    assert [
        one for one in commands if re.search(r"timely-spark(?!\[(kafka|metrics|notebook|sql)\])", one)
    ] == []


def test_the_readme_shows_python() -> None:
    assert SHOWN["README.md"].strip()


def other_blocks(markdown: str) -> list[tuple[int, str]]:
    r"""The blocks that do not run, with the line of their fence: commands, output, files of other languages.

    >>> other_blocks("```\nout\n```\n```python\nx = 1\n```\n  ~~~py\n  y\n  ~~~")
    [(1, 'out\n'), (7, '  y\n')]
    """
    found: list[tuple[int, str]] = []
    opened = ""
    for number, line in enumerate(markdown.splitlines(), 1):
        fence = re.match(r"[ \t]*(```+|~~~+)", line)
        if fence and not opened:
            opened = line.strip()
            found.append((number, ""))
        elif fence and line.strip() == fence[1] and opened.startswith(fence[1]):
            if opened == "```python":
                found.pop()
            opened = ""
        elif opened:
            found[-1] = (found[-1][0], f"{found[-1][1]}{line}\n")
    return found


def statements(text: str) -> list[str]:
    r"""The lines that are statements of Python, or open one: calls, assigned or alone, imports, definitions.

    >>> statements("rings: idle\nmake run  # a\n$ ls\nfrom a import b\nx = f(1)  # y\n>>> f\nq = f(\n")
    ['from a import b', 'x = f(1)  # y', '>>> f', 'q = f(']
    """
    return [line for line in text.splitlines() if line.startswith(">>> ") or _is_python(line.strip())]


def _is_python(line: str) -> bool:
    if re.match(r"(\w+ = )?[\w.]+\($|(with|for|def|class|if|while) .*:( *#.*)?$|@\w", line):
        return True
    if re.match(r"[\w.]+ +\(", line):  # columns of output
        return False
    try:
        parsed = ast.parse(line)
    except SyntaxError:
        return False
    kinds = (ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign, ast.Call, ast.Assert)
    nodes = (node for node in ast.walk(parsed) if isinstance(node, kinds))
    return any(getattr(node, "value", True) for node in nodes)  # "name: word" has none


def test_python_is_in_blocks_that_run() -> None:
    wrong = {
        f"{name}:{line}": found
        for name in DOCUMENTS
        for line, text in other_blocks((ROOT / name).read_text(encoding="utf-8"))
        if (found := statements(text))
    }

    assert wrong == {}, (
        "write it as a ```python block that runs after those before it, or show its output only"
    )


def test_no_python_block_is_exempt() -> None:
    opened = re.compile(r"^[ \t]*(```+[ \t]*(?:python|py)\b.*)$", flags=re.MULTILINE | re.IGNORECASE)
    found = {name: opened.findall((ROOT / name).read_text(encoding="utf-8")) for name in DOCUMENTS}

    assert [name for name, fences in found.items() if {one.rstrip() for one in fences} - {"```python"}] == []
