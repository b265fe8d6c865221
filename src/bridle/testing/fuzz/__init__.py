"""Damaged requests against every protocol and route: `python -m bridle.testing.fuzz`."""
