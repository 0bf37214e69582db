"""What runs beside a task: keeping its leases, and locks for a user's own code."""
