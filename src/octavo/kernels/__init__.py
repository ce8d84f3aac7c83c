"""Attention and its kin as pure functions of tensors. Nothing here knows storage, layers or models."""
