"""Structured output: from a `GrammarSpec` to masks of the tokens that may come next. Imports no torch.

`compiler` makes grammars, `matcher` follows them, `mask_workers` fills the masks of a batch.
"""
