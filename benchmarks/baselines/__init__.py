"""What timely_spark is compared with where a comparison takes a program of its own."""
