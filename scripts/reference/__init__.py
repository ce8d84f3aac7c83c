"""The pages of docs/reference and docs/drawings that are written by a program, from the code that they describe."""
