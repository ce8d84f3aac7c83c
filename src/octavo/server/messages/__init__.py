"""Anthropic's Messages API over the chat generation: its routes, its answers and the shape of its errors."""
