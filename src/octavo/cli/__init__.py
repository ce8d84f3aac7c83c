"""The `octavo` command: one module per command, and nothing that another layer imports."""
