"""A small shop, as its author would write it (`app`, `models`, `orders`, `tasks`), and its worst minute
(`demo`)."""
