"""One file per revision, named by date."""
