"""Puts what was measured into the documentation: ``python -m benchmarks.report``.

Tables stand in the pages between two comments, and are made from ``docs/benchmarks/*.json`` alone;
plots carry the digest of what they show. So a test can tell whether they are of what was measured last.
"""
