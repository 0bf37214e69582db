"""Messages to people, when something happened that they should know of. Loaded if asked for."""
