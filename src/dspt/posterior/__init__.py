"""What the labels themselves say: how many of them are wrong."""
