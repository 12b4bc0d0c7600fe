"""`python -m engine.parity`: every layout trains every family of models to the numbers of one process."""
