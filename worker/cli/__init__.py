"""The command line: `h3farm`."""

from h3farm.worker.cli.entry import build_parser, main

__all__ = ["build_parser", "main"]
