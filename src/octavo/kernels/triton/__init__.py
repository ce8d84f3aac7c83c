"""Kernels in Triton. Importing a module here imports `triton`; nothing outside does so before a GPU is in use."""
