"""How cost grows: ``python -m benchmarks.growth``.

With entries, with replicas, with leases in a call, and with the distance of the store. Each is a plot:
some curves over the same values, measured in turns.
"""
