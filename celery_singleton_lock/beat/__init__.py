"""Beat: every replica is active, no slot is lost, and none is published twice."""
