"""The pages: readers of the database with a few buttons. Mounted beside the API in one server."""

from studio.ui.build import build_pages, mount

__all__ = ["build_pages", "mount"]
