"""Bridle turns any coding agent, unmodified, into an RL environment."""

__version__ = "0.1.0"
