"""Errors, atomic files, seeds, devices, progress: used by every room, known to nobody outside."""
