"""What is attempted. `base` holds the values, each other file reads one format of task files."""
