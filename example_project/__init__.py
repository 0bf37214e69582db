"""The package at work, to be read: ``python -m example_project.demo``."""
