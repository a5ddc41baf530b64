"""Engines do many runs. They know runs and nothing about tables."""
