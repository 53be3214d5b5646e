"""Benchmarks: what the heavy steps cost, beside a peer and a limit measured in the same run.

Never a test: machines differ and are shared, so a figure says something beside its neighbours only.
"""
