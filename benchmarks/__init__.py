"""What the package costs, as ratios to what others do: ``python -m benchmarks``."""
