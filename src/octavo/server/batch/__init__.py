"""Offline batches: a file of requests answered by the server's own application, without a server."""
