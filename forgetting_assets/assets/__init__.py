"""The six assets of the pass, one module each, in the order a memory meets them.

A module is short: partition in, one store or judging verb after another, metadata out.
"""
