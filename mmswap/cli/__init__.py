"""The command line: `chat`, `serve`, `caption`, `plan`, `profile`, `bench`, `doctor`.

A mistake is one sentence, exit code 2.
"""

from __future__ import annotations

import errno
import logging
import os
import sys
import warnings
from typing import Annotated

import typer

from mmswap import __version__
from mmswap.cli.bench import bench
from mmswap.cli.caption import caption
from mmswap.cli.chat import chat
from mmswap.cli.doctor import doctor
from mmswap.cli.plan import plan
from mmswap.cli.profile import profile
from mmswap.cli.serve import serve
from mmswap.errors import MmswapError, UserError

CANNOT_WRITE = (errno.ENOSPC, errno.EIO, errno.EDQUOT if hasattr(errno, "EDQUOT") else errno.ENOSPC)

app = typer.Typer(
    name="mmswap",
    help="Vision-language models on one card, where an image never makes the process spill.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for command in (chat, serve, caption, plan, profile, bench, doctor):
    app.command()(command)


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    if version:
        typer.echo(f"mmswap {__version__}")
        raise typer.Exit


def main() -> None:
    """Entry point of `mmswap`: turns the errors of errors.py into one sentence and an exit code."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a console that lacks a character must not end the program
            stream.reconfigure(errors="backslashreplace")
    logging.basicConfig(format="mmswap: %(message)s", level=logging.WARNING)
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # it speaks to developers, as does
    warnings.filterwarnings("ignore", category=FutureWarning)
    try:
        app()
    except UserError as error:
        _fail(error, 2)
    except MmswapError as error:
        _fail(error, 1)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(141)
    except OSError as error:
        if error.errno not in CANNOT_WRITE:
            raise
        _fail(MmswapError(f"The output cannot be written: {error.strerror}."), 1)


def _fail(error: MmswapError, code: int) -> None:
    print(f"mmswap: {error}", file=sys.stderr)
    sys.exit(code)
