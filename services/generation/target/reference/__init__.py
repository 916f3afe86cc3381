"""`docs/numerics.md` in plain numpy, slow and written from that page alone. The compiled pass is compared with it.

Nothing here is used to serve. Elements that do not depend on each other are computed side by side; sums are loops. Of
numpy only operations on elements are used, which are exact or rounded once: no reductions, products of matrices or
functions of a mathematical library.
"""
