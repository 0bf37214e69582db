"""What becomes of beats and locks when something dies: ours, and those that people use instead.

::

    python -m benchmarks.neighbours

Every subject runs in the same way, on servers of its own, with the defaults of its authors unless it
says otherwise. Counts and outcomes, not speeds: they do not depend on how busy this machine is.
"""
