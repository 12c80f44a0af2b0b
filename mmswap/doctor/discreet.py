"""Takes what is personal out of a text: the home folder, user and host names, addresses of servers.

    Discreet.of_this_machine().text(r"cannot open C:\\Users\\Jan\\x")     # 'cannot open ~\\x'

A name that tells nothing about a person (root, user, amd, ...) stays, since taking it out would spoil the page.
"""

from __future__ import annotations

import json
import os
import platform
import re
import unicodedata
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from mmswap.doctor.check import Check

_IMPERSONAL = (
    "root user users admin administrator guest public default nobody runner ubuntu debian fedora arch localhost host "
    "vm local home windows linux python torch triton cuda hip rocm amd nvidia intel radeon geforce card cpu gpu "
    "mmswap memory free"
)
IMPERSONAL = frozenset(_IMPERSONAL.split())
_URL = re.compile(r"\b(?:https?|ftp|ssh|git)(?:\+\w+)?://[^\s\"'<>)\]]+", re.IGNORECASE)
_ANY_HOME = re.compile(
    r"(?:[A-Za-z]:[\\/]+(?:Users|Documents and Settings)|(?:/mnt/[a-z])?/(?:var/)?(?:home|Users))[\\/]+"
    r"(?:[^\\/:\"'\r\n<>|*?]+(?=[\\/])|[^\\/:\"'\s<>|*?,;()]+)",
    re.IGNORECASE,
)


class Discreet:
    """Replaces homes by `~`, users by `<user>`, hosts by `<host>` and addresses by `<url>`."""

    def __init__(self, homes: Iterable[str], users: Iterable[str], hosts: Iterable[str]) -> None:
        self._rules: list[tuple[re.Pattern[str], str]] = [(_URL, "<url>")]
        whole = {home.rstrip("\\/") for home in homes}
        for home in sorted(whole, key=len, reverse=True):
            if _parts(home):
                self._rules.append((_home_pattern(home), "~"))
        self._rules.append((_ANY_HOME, "~"))
        for mark, names in (("<user>", users), ("<host>", hosts)):
            for name in sorted({name.strip() for name in names}, key=len, reverse=True):
                if len(name) > 1 and name.lower() not in IMPERSONAL and not name.isdigit():
                    self._rules.append((_word_pattern(name), mark))

    @classmethod
    def of_this_machine(cls, environ: Mapping[str, str] = os.environ) -> Discreet:
        """With everything that the system and `environ` call the user, the home and the host."""
        homes = {environ.get("HOME", ""), environ.get("USERPROFILE", ""), os.path.expanduser("~")}
        users = {environ.get(name, "") for name in ("USER", "USERNAME", "LOGNAME", "SUDO_USER")}
        hosts = {environ.get(name, "") for name in ("HOSTNAME", "COMPUTERNAME", "USERDOMAIN")} | {platform.node()}
        try:
            import pwd  # not on Windows

            entry = pwd.getpwuid(os.getuid())
            homes.add(entry.pw_dir)
            users.add(entry.pw_name)
        except (ImportError, KeyError, AttributeError):
            pass
        homes |= {_resolved(home) for home in homes if home}
        for home in homes:  # /home/jan: jan is a user, whatever USER says; /tmp/x/cache names nobody
            parts = _parts(home)
            if len(parts) >= 2 and parts[-2].lower() in ("users", "home"):
                users.add(parts[-1])
        hosts |= {host.partition(".")[0] for host in hosts}
        return cls(homes, users, hosts)

    def text(self, text: str) -> str:
        """`text` without what is personal."""
        for pattern, mark in self._rules:
            text = pattern.sub(mark, text)
        return text

    def check(self, check: Check) -> Check:
        """The same for all of a check but its name."""
        return Check.of_json(check.name, self.tree(check.to_json()))

    def tree(self, value: Any) -> Any:
        """The same for everything inside an object that is to become JSON; keys are left alone."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {key: self.tree(inner) for key, inner in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.tree(inner) for inner in value]
        return value


def _parts(home: str) -> list[str]:
    """The folders of a path, without root and drive."""
    return [part for part in re.split(r"[\\/]+", home) if part and not re.fullmatch(r"[A-Za-z]:", part)]


def _resolved(home: str) -> str:
    try:
        return str(Path(home).resolve())
    except (OSError, RuntimeError):
        return home


def _home_pattern(home: str) -> re.Pattern[str]:
    """Either slash, single or doubled, each folder in any of its spellings; ends where the folder's name ends."""
    drive = re.match(r"[A-Za-z]:", home)
    head = re.escape(drive[0]) if drive else ""
    body = r"[\\/]+".join(_spellings(part) for part in _parts(home))
    start = r"[\\/]+" if home[:1] in "\\/" or drive else ""
    if not drive and len(_parts(home)) == 1:  # /root, and not /opt/root
        start = r"(?<![\w.-])" + start
    return re.compile(head + start + body + r"(?![\w-])", re.IGNORECASE if drive else 0)


def _word_pattern(name: str) -> re.Pattern[str]:
    """The name as a word of its own; `_` and `-` end a word, letters and digits do not."""
    return re.compile(rf"(?<![^\W_]){_spellings(name)}(?![^\W_])", re.IGNORECASE)


def _spellings(part: str) -> str:
    """A name as it stands, composed or decomposed, as it stands in an address, and as Python and JSON escape it, once
    and inside an escaped text."""
    forms = {part, unicodedata.normalize("NFC", part), unicodedata.normalize("NFD", part)}
    escaped = {spell(form)[1:-1] for form in forms for spell in (ascii, json.dumps)}
    escaped |= {form.replace("\\", "\\\\") for form in escaped}
    forms |= escaped | {quote(form) for form in forms}
    return "(?:" + "|".join(re.escape(form) for form in sorted(forms, key=len, reverse=True)) + ")"
