"""OpenTelemetry traces of calls. Only `spans` imports OpenTelemetry, and only a server that is to trace imports it."""
