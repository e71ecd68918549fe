"""`python -m mansard`: the same as the `mansard` command."""

from mansard.cli import main

main()
