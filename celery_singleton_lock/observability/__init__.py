"""What people and machines see of runs: nothing here is needed for a promise."""
