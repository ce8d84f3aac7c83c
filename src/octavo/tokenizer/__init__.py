"""Text to token ids and back, chat templates, and streaming detokenisation. It knows nothing of models or devices."""

from octavo.tokenizer.detokenizer import IncrementalDetokenizer
from octavo.tokenizer.tokenizer import Tokenizer

__all__ = ["IncrementalDetokenizer", "Tokenizer"]
