"""Runs a model step by step for many requests at once: loading, memory, the step loop, sampling, output."""
