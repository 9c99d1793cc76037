"""`kernel-gateway doctor`."""

import argparse

NAME = "doctor"
HELP = "say what is missing on this machine, and how to mend it"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """x."""


def main(arguments: argparse.Namespace) -> int:
    """x."""
    return 0
