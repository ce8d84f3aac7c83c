"""The HTTP server: OpenAI-compatible requests in, engine requests out; streams, errors, metrics. Runs no model."""
