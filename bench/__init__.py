"""Benchmarks: each a module that measures one promise and prints its figures."""
