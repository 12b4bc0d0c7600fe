"""`atelier version`."""

from importlib.metadata import version as version_of

from studio.cli.console import say


def version() -> None:
    """Print the version."""
    say(f"atelier {version_of('atelier')}")
