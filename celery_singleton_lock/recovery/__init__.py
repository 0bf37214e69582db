"""What happens to a run that failed: it is kept for people, and can be sent again."""
