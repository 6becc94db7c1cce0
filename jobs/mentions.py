"""Answer, while posts stream in, what the people around a user write about (Naiad section 6.4).

    python jobs/mentions.py --posts DIR [--questions FILE] [--checkpoint DIR] [--files-per-epoch N]
                            [--workers N]

Input: files of JSON lines, each a post with user string, text string, and optionally diff long: -1 withdraws
a post. A mention is @name in a text, a hashtag #tag; both, and users, are compared in lower case. Users who
mention one another, directly or not, are a component; its top hashtag is the one that occurs most often in
posts of its users, of several the first in alphabetical order.
Questions: one user a line, from a file or from the standard input. Each is answered at once, as of the newest
complete epoch ("stale"); and when all are asked, again as of all posts that are there by then ("fresh"). New
files are read until then. Each answer names its epoch, and all of it holds at that epoch.
"""

from __future__ import annotations

import sys
from pathlib import Path

import cli
import pyarrow.compute as pc
from posts import collection, named, read

import timely_spark as ts

COLUMNS = {"user": "string", "text": "string"}
LOWER = pc.utf8_lower(pc.field("user"))


def mentions(posts: ts.Stream) -> tuple[ts.Collection, ts.Collection]:
    """The component of each user, and the top hashtag of each component.

    Columns: in user, text string, and diff long or not; out user, component string; component, tag string,
    occurrences long.
    """
    posts = posts.select("text", *(name for name in posts.schema.names if name not in COLUMNS), user=LOWER)
    mentioned = named(posts, "@").select("user", other="name")
    alone = collection(posts).select("user", other="user")
    parts = ts.graphs.connected_components(mentioned.concat(alone), src="user", dst="other", name="parts")
    component = parts.select("component", user="node")
    tags = named(posts, "#").select("user", tag="name").join(component, on="user", name="tags")
    counts = tags.count("occurrences", keys=["component", "tag"], name="counts")
    top = counts.top_k(1, "occurrences", keys="component", name="top_tags")
    return component, top


def answer(query: ts.Query, users: list[str], says: str) -> None:
    """Print what is known of users now."""
    if not users:
        return
    answer = query.ask(["component", "top"], {"user": [user.lower() for user in users]})
    epoch = "no epoch yet" if answer.epoch is None else f"epoch {answer.epoch}"
    for row in answer.table.to_pylist():
        if row["component"] is None:
            of = "unknown"
        elif row["tag"] is None:
            of = f"component of {row['component']}, without hashtags"
        else:
            of = f"component of {row['component']}, #{row['tag']} {row['occurrences']} times"
        print(f"{row['user']}: {of} ({says}, {epoch})", flush=True)


def main() -> None:
    """Run the job."""
    parser = cli.described(__doc__)
    parser.add_argument("--posts", required=True, type=cli.directory, metavar="DIR", help="files of posts")
    questions = "users to ask about, one a line (default: the standard input)"
    parser.add_argument("--questions", type=Path, metavar="FILE", help=questions)
    parser.add_argument("--checkpoint", metavar="DIR", help="where the job continues after a stop")
    parser.add_argument("--files-per-epoch", type=cli.positive, metavar="N", help="at most so many new files")
    parser.add_argument("--workers", type=cli.positive, default=2, help="workers (default: %(default)s)")
    cli.progress(parser)
    args = parser.parse_args()
    if args.questions is not None and (not args.questions.exists() or args.questions.is_dir()):
        parser.error(f"argument --questions: {str(args.questions)!r} is not a file")
    flow = ts.Dataflow("mentions")
    component, top = mentions(read(flow, "posts", args.posts, args.files_per_epoch, COLUMNS))
    component.capture("component")
    top.capture("top")
    lines = sys.stdin if args.questions is None else args.questions.open(encoding="utf-8")
    asked: list[str] = []
    spark = cli.session("mentions", delta=False, verbose=args.verbose)
    with lines, flow.start(spark, checkpoint=args.checkpoint, workers=args.workers) as query:
        cli.watch_meanwhile(query, args)
        if lines.isatty():
            cli.say("ask about a user a line; Ctrl-D ends the job")
        for line in lines:
            if user := line.strip().removeprefix("@"):
                answer(query, [user], "stale")
                asked.append(user)
        query.process_all_available()
        answer(query, asked, "fresh")


if __name__ == "__main__":
    cli.run(main)
