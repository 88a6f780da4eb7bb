"""A run as a page: what its files say, in curves, bars and tables.

Pure: lines and texts in, HTML out. A page needs nothing but itself: no script, no file beside it,
no network.
"""
