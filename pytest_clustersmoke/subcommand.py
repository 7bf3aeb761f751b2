"""How a subcommand of `clustersmoke` shows in the help."""

from __future__ import annotations

import argparse


def add(
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    help: str,
    description: str,
    examples: str,
) -> argparse.ArgumentParser:
    """Its parser; the line breaks of `description` and `examples` are kept."""
    return subparsers.add_parser(
        name,
        help=help,
        description=description,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
