"""Training of the small sequence models that the package carries."""
