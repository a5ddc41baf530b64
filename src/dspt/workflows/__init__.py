"""What a command does, from a source to a finished result."""
