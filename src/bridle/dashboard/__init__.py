"""Pages about what was captured: read from the files a run leaves, written as files that need nothing."""
