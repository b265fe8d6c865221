"""The server agents talk to: their protocol in, token ids to the engine, every draw recorded, their protocol out."""
