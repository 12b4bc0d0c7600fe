"""What the pages show, as markup made from rows of the database; no events and no components here."""
