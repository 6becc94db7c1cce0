"""The hello of timely dataflow: send a number, advance, look at what comes out; ten times.

python jobs/hello.py [--workers N]
"""

from __future__ import annotations

import cli

import timely_spark as ts


def main() -> None:
    """Run it."""
    parser = cli.described(__doc__)
    parser.add_argument("--workers", type=cli.positive, default=2, help="default: %(default)s")
    cli.progress(parser)
    args = parser.parse_args()

    flow = ts.Dataflow("hello")
    numbers = flow.input("numbers", "number long", epochs="manual")
    probe = numbers.exchange("number").inspect("hello").probe("seen")

    spark = cli.session("hello", delta=False, verbose=args.verbose)
    with flow.start(spark, workers=args.workers) as query:
        cli.watch_meanwhile(query, args)
        for epoch in range(10):
            numbers.send([(epoch,)])
            numbers.advance_to(epoch + 1)
            query.wait_for(probe, epoch=epoch)
        numbers.close()
        query.process_all_available()
    spark.stop()


if __name__ == "__main__":
    cli.run(main)
