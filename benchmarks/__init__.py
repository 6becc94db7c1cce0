"""What timely_spark costs and gains, each figure beside a baseline's; `make bench` runs all."""
