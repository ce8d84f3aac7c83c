"""`python -m octavo`, the same as the `octavo` command."""

from octavo.cli.entry import run

if __name__ == "__main__":
    run()
