"""Losses, one a file. Each gives a value a token; `aggregate` makes one number of them."""
