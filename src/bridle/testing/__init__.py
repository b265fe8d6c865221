"""Fakes for the outside edges and drivers for tests. Nothing in Bridle imports this."""
