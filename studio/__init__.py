"""The studio: runs, datasets and models in a database, and the pages, API and commands over them. No torch."""
