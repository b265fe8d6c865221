"""Attempts at tasks: one pipeline from an empty sandbox to graded samples, and the schedule that runs many of them."""
