"""The worst minute of a shop: beats and workers are killed and stopped, and Redis goes away.

::

    python -m example_project.demo

It brings its own server. The shop is what you would write yourself; here it is started, hurt and
watched. At the end `tale` counts, from what its processes recorded.
"""
