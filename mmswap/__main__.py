"""`python -m mmswap` is `mmswap`."""

from mmswap.cli import main

main()
