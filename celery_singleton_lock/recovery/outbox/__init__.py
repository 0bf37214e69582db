"""Messages that are written in the user's own transaction, and published once it is committed."""
