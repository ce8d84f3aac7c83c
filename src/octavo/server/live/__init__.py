"""The live page and the stream of what it shows."""
