"""A real graph: which class names which, in the jars that come with PySpark.

A node is a class that a class file is or names; an edge goes from a class to each other class in its constant
pool (The Java Virtual Machine Specification, section 4.4). Array types count as what they are arrays of. A
class that several jars have is the first one's. Read once, a minute or two, and kept in the folder for
temporary files.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from zipfile import ZipFile

import numpy as np

#: Of each kind of constant its bytes after the tag; strings, whose length comes first, apart.
_UTF8, _CLASS, _WIDE = 1, 7, (5, 6)
_BYTES = (
    dict.fromkeys((3, 4, 9, 10, 11, 12, 17, 18), 4)
    | dict.fromkeys((7, 8, 16, 19, 20), 2)
    | {5: 8, 6: 8, 15: 3}
)


def ends() -> np.ndarray:
    """Both ends of each edge; nodes are numbered as their names sort."""
    import pyspark

    saved = Path(tempfile.gettempdir()) / f"timely-bench-classes-{pyspark.__version__}.npy"
    if not saved.exists():
        references: dict[bytes, set[bytes]] = {}
        for jar in sorted((Path(pyspark.__file__).parent / "jars").glob("*.jar")):
            with ZipFile(jar) as files:
                for name in files.namelist():
                    if name.endswith(".class") and not name.endswith("module-info.class"):
                        this, named = classes(files.read(name))
                        references.setdefault(this, named)
        pairs = [(this, other) for this, named in references.items() for other in named if other != this]
        _, numbers = np.unique(np.array(pairs), return_inverse=True)
        partial = saved.with_suffix(".partial.npy")
        np.save(partial, numbers.reshape(-1, 2))
        partial.rename(saved)
    return np.load(saved)


def classes(file: bytes) -> tuple[bytes, set[bytes]]:
    """The class that a class file is, and all that it names."""
    count, at, texts, named = int.from_bytes(file[8:10], "big"), 10, {}, {}
    number = 1
    while number < count:
        tag = file[at]
        if tag == _UTF8:
            texts[number] = (at + 3, end := at + 3 + int.from_bytes(file[at + 1 : at + 3], "big"))
            at = end
        else:
            if tag == _CLASS:
                named[number] = int.from_bytes(file[at + 1 : at + 3], "big")
            at += 1 + _BYTES[tag]
        number += 2 if tag in _WIDE else 1
    this = int.from_bytes(file[at + 2 : at + 4], "big")
    names = {which: _element(file[slice(*texts[text])]) for which, text in named.items()}
    return names[this], {name for name in names.values() if name}


def _element(name: bytes) -> bytes:
    """What an array type is an array of, nothing for numbers; other types as they are."""
    if not name.startswith(b"["):
        return name
    element = name.lstrip(b"[")
    return element[1:-1] if element.startswith(b"L") else b""
