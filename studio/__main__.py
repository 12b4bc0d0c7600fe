"""`python -m studio`: the command line, for processes that are started with a Python and not with a script."""

from studio.cli import main

main()
