"""Text to token ids and back: encoding, chat templates, incremental detokenising."""
