"""One module a page: its components and the events between them."""
