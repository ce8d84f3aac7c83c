"""What clients send and get, as pydantic models: shapes and bounds. No engine, no routes."""
