"""Keep the exposure curves of hashtags: how many acquaintances it takes to adopt one (Naiad section 6.3).

    python jobs/k_exposure.py --posts DIR --follows DIR --output DIR --checkpoint DIR [--current DIR]
                              [--files-per-epoch N] [--workers N] [--follow]

Input: files of JSON lines: posts with user string, text string, at long; and who follows whom, from when on,
with user, followed string, at long. Both may have diff long: -1 withdraws a line. A user's exposure to a
hashtag at some time is the number of distinct users followed at earlier times who used it at earlier times.
Output: a Delta table with epoch long, tag string, k, exposed, adopted long, diff int; for each tag k from 1
to the greatest exposure. exposed: users whose exposure was k at least, at some time (and, if they used the
tag, before their first use). adopted: those who then used it, at an exposure of exactly k. The tag's curve is
adopted / exposed (Romero et al., Differences in the mechanics of information diffusion, WWW 2011). diff is +1
for new rows and -1 for old ones. --current: a Delta table of the present curves.
"""

from __future__ import annotations

import cli
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from edges import current, dataflow, deliver, run
from posts import collection, named, read

import timely_spark as ts

POSTS = {"user": "string", "text": "string", "at": "long"}
FOLLOWS = {"user": "string", "followed": "string", "at": "long"}


def k_exposure(posts: ts.Stream, follows: ts.Stream) -> ts.Collection:
    """The exposure curve of each hashtag. Columns: in as the job's input; out tag, k, exposed, adopted.

    Joins and counts without a loop. An epoch costs the exposures that its posts and edges change: a use, as
    many as the user has followers.
    """
    uses = named(posts, "#").select("user", "at", tag="name").min("at", keys=["user", "tag"], name="uses")
    edges = collection(follows).min("at", keys=["user", "followed"], name="edges")
    of_followed = uses.select("tag", followed="user", used="at")
    seen = edges.select("user", "followed", edge="at").join(of_followed, on="followed", name="seen")
    seen = seen.select("user", "tag", since=pc.max_element_wise(pc.field("edge"), pc.field("used")))
    seen = seen.join(uses, on=["user", "tag"], how="left", name="adopted")
    adopts = pc.is_valid(pc.field("at"))
    before = seen.where(~adopts | (pc.field("since") < pc.field("at"))).select("user", "tag", adopts=adopts)
    exposures = before.count("k", keys=["user", "tag", "adopts"], name="exposures")
    users = exposures.count("users", keys=["tag", "k", "adopts"], name="users")
    return users.reduce_batches(curves, "k long, exposed long, adopted long", keys="tag", name="curves")


def curves(rows: pa.Table) -> pa.Table:
    """The curves of tags. Columns: in tag, k, adopts, users: how many users have k as last exposure."""
    tag = rows["tag"].combine_chunks().dictionary_encode()
    of, k, users = (one.to_numpy() for one in (tag.indices, rows["k"], rows["users"]))
    ends = np.zeros(len(tag.dictionary), np.int64)
    np.maximum.at(ends, of, k)
    starts = np.cumsum(ends) - ends
    adopted, reached = np.zeros((2, ends.sum()), np.int64)
    np.add.at(reached, starts[of] + k - 1, users)
    np.add.at(adopted, starts[of] + k - 1, users * rows["adopts"].to_numpy())
    from_here = np.append(np.cumsum(reached[::-1])[::-1], 0)  # of this tag and later ones
    which = np.repeat(np.arange(len(ends)), ends)
    return pa.table(
        {
            "tag": tag.dictionary.take(pa.array(which)),
            "k": np.arange(len(which)) - starts[which] + 1,
            "exposed": from_here[:-1] - from_here[(starts + ends)[which]],
            "adopted": adopted,
        }
    )


def main() -> None:
    """Run the job."""
    parser = cli.arguments(__doc__ or "", "posts")
    what = "directory of files of who follows whom"
    parser.add_argument("--follows", required=True, type=cli.directory, metavar="DIR", help=what)
    current(parser)
    args = parser.parse_args()
    flow = dataflow("k_exposure", args)
    posts = read(flow, "posts", args.posts, args.files_per_epoch, POSTS)
    follows = read(flow, "follows", args.follows, args.files_per_epoch, FOLLOWS)
    deliver(k_exposure(posts, follows), args, keys=["tag", "k"])
    run(flow, args)


if __name__ == "__main__":
    cli.run(main)
