"""A run as a page: what its files say, in curves, bars and tables.

Pure: lines and texts in, HTML out. The pages need
nothing but themselves: no script, no file beside them, no network.
"""
