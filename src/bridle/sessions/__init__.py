"""What the gateway knows of one rollout: the turn tree, how requests match it, and the log that survives a crash."""
