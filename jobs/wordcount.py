r"""Count words in text files, incrementally: for each epoch the new total of each word that changed.

    python jobs/wordcount.py --input DIR --output DIR --checkpoint DIR
                             [--files-per-epoch N] [--workers N] [--follow]

Output: a Delta table with epoch long, word string, count long. A word is a maximal run of letters, digits and
underscores (what Python's `re` calls \w, Unicode), in lower case.
"""

from __future__ import annotations

import re

import cli
import pyarrow as pa

import timely_spark as ts

WORD = re.compile(r"\w+")


def count_words(lines: pa.Table) -> pa.Table:
    """How often each word is in a batch of lines."""
    words = pa.array(
        WORD.findall("\n".join(lines["value"].drop_null().to_pylist())), pa.string()
    ).dictionary_encode()
    lower = pa.array([word.lower() for word in words.dictionary.to_pylist()], pa.string())
    counted = (
        pa.table({"word": lower.take(words.indices)})
        .group_by("word", use_threads=False)
        .aggregate([([], "count_all")])
    )
    return counted.rename_columns(["word", "count"])


def word_count(lines: ts.Stream) -> ts.Stream:
    """The flow: words of each batch where the files are read, totals where the word lives."""
    return (
        lines.map_batches(count_words, "word string, count long", name="words")
        .group_by("word")
        .aggregate(count=("sum", "count"), name="totals")
    )


def main() -> None:
    """Run the job."""
    args = cli.arguments(__doc__, "input").parse_args()
    spark = cli.session("wordcount", verbose=args.verbose)
    reader = spark.readStream.format("text")
    if args.files_per_epoch:
        reader = reader.option("maxFilesPerTrigger", args.files_per_epoch)

    flow = ts.Dataflow("wordcount")
    word_count(flow.source("lines", reader.load(args.input))).to_delta(args.output, name="counts")
    trigger = None if args.follow else "available_now"
    query = flow.start(spark, checkpoint=args.checkpoint, workers=args.workers, trigger=trigger)
    cli.report(query, args)


if __name__ == "__main__":
    cli.run(main)
