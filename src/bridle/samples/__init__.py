"""From a session's turn tree to training rows: the sample, built, credited, recorded and checked from outside."""
