"""The package at work, to be read: a small shop (`app`), and its worst half minute (`demo`)."""
