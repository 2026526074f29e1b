"""Small trained models to fold, with their weights taken from pinned PyPI packages."""
