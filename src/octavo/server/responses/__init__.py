"""OpenAI's Responses API over the chat generation: its routes, its answers, and the responses that are kept."""
