"""For tests: the conformance kit of lease stores, and real servers to run it on."""
