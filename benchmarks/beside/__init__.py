"""What ours costs beside what people use instead: ``python -m benchmarks.beside``.

All in one run and on the same servers, in turns, as ratios to the same floor: the barest code that does
the work. What each of them promises is another matter: see ``docs/compared.md``. Their versions are
pinned in the extra ``neighbours``.
"""
