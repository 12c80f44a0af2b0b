"""The conversation on the terminal: commands, history, and a Ctrl-C that stops the answer and not the program."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from mmswap.cli import report
from mmswap.config import SamplingConfig
from mmswap.errors import MmswapError

if TYPE_CHECKING:
    from mmswap.chat import Conversation
    from mmswap.runtime import Runtime

HELP = """\
/image FILE...   add pictures to the next question
/plan            what the window would do for the pictures that wait, and why
/reset           forget the conversation
/help            this text
/exit            leave (as does Ctrl-D); Ctrl-C stops an answer"""


class Repl:
    """One conversation; `run` returns when the input ends."""

    def __init__(
        self,
        runtime: Runtime,
        conversation: Conversation,
        sampling: SamplingConfig,
        *,
        explain: bool = False,
        pending: list[str] | None = None,
    ) -> None:
        self.runtime = runtime
        self.conversation = conversation
        self.system = [message for message in conversation.messages if message["role"] == "system"]
        self.sampling = sampling
        self.explain = explain
        self.pending: list[str] = []
        self._first = True
        if pending:
            self._add_images(pending)

    def run(self) -> None:
        with _history():
            while (text := self._read()) is not None:
                if not text.strip():
                    continue
                if text.startswith("/"):
                    if not self._command(text):
                        return
                else:
                    self._ask(text)

    def _read(self) -> str | None:
        prompt = "> " if sys.stdin.isatty() else ""
        while True:
            try:
                return input(prompt)
            except EOFError:
                return None
            except KeyboardInterrupt:
                print("\n(Ctrl-D or /exit leaves)", file=sys.stderr)

    def _command(self, text: str) -> bool:
        """Carry a command out; False ends the conversation."""
        name, _, rest = text.partition(" ")
        if name in ("/exit", "/quit"):
            return False
        if name == "/image":
            self._add_images(_words(rest))
        elif name == "/plan":
            self._plan()
        elif name == "/reset":
            self.conversation.messages[:] = list(self.system)
            self.pending.clear()
            self.runtime.forget()
            print("The conversation is forgotten.")
        elif name == "/help":
            print(HELP)
        else:
            print(f"There is no command {name}; /help lists them.", file=sys.stderr)
        return True

    def _add_images(self, names: list[str]) -> None:
        from mmswap.vision.images import open_image

        if not names:
            print("Waiting: " + (", ".join(self.pending) or "no pictures"))
        bad: list[MmswapError] = []
        for name in names:
            try:
                picture = open_image(name, limit=self.conversation.config.decode_limit)
            except MmswapError as error:
                bad.append(error)
                continue
            self.pending.append(name)
            print(f"{name}: {picture.width}x{picture.height}, goes with the next question")
        more = " /image takes files only: write the question on a line of its own." if len(bad) > 1 else ""
        for first in bad[:1]:
            print(f"mmswap: {first}{more}", file=sys.stderr)

    def _plan(self) -> None:
        if not self.pending:
            print("No pictures wait, so there is nothing to make room for.")
            return
        try:
            self.conversation.ask("Describe the picture.", self.pending)
        except MmswapError as error:
            print(f"mmswap: {error}", file=sys.stderr)
            return
        try:
            for decision in self.runtime.plan(self.conversation.messages):
                print(f"· {decision}")
        except MmswapError as error:
            print(f"mmswap: {error}", file=sys.stderr)
        finally:
            self.conversation.drop()

    def _ask(self, text: str) -> None:
        said: list[str] = []
        try:
            self.conversation.ask(text, self.pending)
        except MmswapError as error:
            print(f"mmswap: {error}", file=sys.stderr)
            return
        stream = self.runtime.stream(
            self.conversation.messages,
            sampling=self.sampling,
            reuse=True,
            on_decision=report.explain if self.explain else None,
        )
        try:
            for piece in stream:
                said.append(piece)
                report.write(piece)
        except MmswapError as error:
            self.conversation.drop()
            print(f"mmswap: {error}", file=sys.stderr)
            return
        except KeyboardInterrupt:
            stream.close()
            report.write(" [stopped]\n")
        else:
            report.write("\n")
            report.line(stream.answer, first=self._first)
            self._first = False
        self.pending.clear()
        self.conversation.reply("".join(said))


def _words(text: str) -> list[str]:
    """File names as a shell would split them; one bare name with spaces is taken as it stands."""
    if Path(text.strip()).exists() and text.strip():
        return [text.strip()]
    try:
        return shlex.split(text, posix=sys.platform != "win32")
    except ValueError:
        return [text.strip()]


@contextlib.contextmanager
def _history() -> Iterator[None]:
    """Line editing and history where the platform has readline; kept in the user's state folder."""
    try:
        import readline
    except ImportError:
        yield
        return
    from platformdirs import user_state_path

    path = user_state_path("mmswap", appauthor=False) / "history"
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            readline.read_history_file(path)
    readline.set_history_length(1000)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            readline.write_history_file(path)
