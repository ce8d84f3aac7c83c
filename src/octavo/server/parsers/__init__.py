"""From the text of an answer to what it means: reasoning, content and tool calls. No engine, no HTTP."""
