"""The page names no person, no host and no server."""

from __future__ import annotations

import json
import os
import sys
import unicodedata
from pathlib import Path
from urllib.parse import quote

import pytest

from mmswap.doctor.check import Check
from mmswap.doctor.discreet import Discreet

ODD = "Žluťoučký 用户"


@pytest.fixture
def linux() -> Discreet:
    return Discreet({"/home/jana"}, {"jana"}, {"janas-tower", "janas-tower.example.org"})


@pytest.fixture
def windows() -> Discreet:
    return Discreet({rf"C:\Users\{ODD}"}, {ODD}, {"TOWER-77"})


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("/home/jana/.cache/x", "~/.cache/x"),
        ("/home/jana", "~"),
        ("'/home/jana/a b'", "'~/a b'"),
        ("cannot open /home/jana.", "cannot open ~."),
        ("/tmp/jana_build/x", "/tmp/<user>_build/x"),
        ("jana-cache", "<user>-cache"),
        ("Jana", "<user>"),
        ("janacek", "janacek"),
        ("on janas-tower.example.org at", "on <host> at"),
        ("/home/piet/x and /Users/piet/y", "~/x and ~/y"),
        ("/mnt/c/Users/Piet de Vries/x", "~/x"),
        ("from https://key@host.example/simple/torch failed", "from <url> failed"),
        ("/opt/rocm/bin/hipcc", "/opt/rocm/bin/hipcc"),
    ],
)
def test_linux(linux: Discreet, text: str, want: str) -> None:
    assert linux.text(text) == want


@pytest.mark.parametrize(
    "path",
    [
        rf"C:\Users\{ODD}\AppData\x",
        rf"c:\users\{ODD}\AppData\x",
        f"C:/Users/{ODD}/AppData/x",
        rf"C:\\Users\\{ODD}\\AppData\\x",
        ascii(rf"C:\Users\{ODD}\AppData\x"),
        json.dumps(rf"C:\Users\{ODD}\AppData\x"),
        json.dumps(json.dumps(rf"C:\Users\{ODD}\AppData\x")),
        str(OSError(2, "No such file", rf"C:\Users\{ODD}\AppData\x")),
        "file:///C:/Users/%C5%BDlu%C5%A5ou%C4%8Dk%C3%BD%20%E7%94%A8%E6%88%B7/AppData/x",
        r"C:\Users\ZLUTOU~1\AppData\x",
    ],
)
def test_a_home_beyond_ascii_in_every_spelling(windows: Discreet, path: str) -> None:
    said = windows.text(f"cannot open {path} today")
    assert "~" in said
    assert "AppData" in said
    for trace in ("lu", "u017d", "u7528", "%C5", "用", "Users", "users"):
        assert trace not in said


def test_a_home_in_an_unusual_place_is_found_in_an_address_and_in_escapes() -> None:
    discreet = Discreet({f"/data/{ODD}"}, (), ())
    for spelling in (ODD, quote(ODD), ascii(ODD)[1:-1], json.dumps(ODD)[1:-1], unicodedata.normalize("NFD", ODD)):
        assert discreet.text(f"at /data/{spelling}/x") == "at ~/x"


def test_a_name_that_tells_nothing_stays_where_it_spoils_the_page() -> None:
    discreet = Discreet({"/root", "/"}, {"root", "amd", "x", "1000"}, {"localhost", ""})
    text = "the root of ROCm: /opt/root/x; AMD Radeon; x86_64; 1000 MiB; localhost"
    assert discreet.text(text) == text
    assert discreet.text("/root/.cache and /root") == "~/.cache and ~"


@pytest.mark.skipif(sys.platform == "win32", reason="a link needs a privilege there")
def test_this_machine_is_read_from_the_variables_and_the_system(tmp_path: Path) -> None:
    home = tmp_path / ODD
    home.mkdir()
    link = tmp_path / "link"
    link.symlink_to(home, target_is_directory=True)
    discreet = Discreet.of_this_machine({"HOME": str(link), "USER": "wilhelmine", "COMPUTERNAME": "SCHREIBTISCH"})
    said = discreet.text(f"{link}/a {home}/b {os.path.expanduser('~')}/c wilhelmine@schreibtisch")
    assert said == "~/a ~/b ~/c <user>@<host>"


def test_a_home_that_is_no_users_folder_names_nobody() -> None:
    assert Discreet.of_this_machine({"HOME": "/data/cache"}).text("the cache is full: /data/cache/x") == (
        "the cache is full: ~/x"
    )
    assert "<user>" in Discreet.of_this_machine({"HOME": "/home/wilhelmine"}).text("wilhelmine's cache")


def test_all_of_a_check_but_its_name() -> None:
    discreet = Discreet({"/home/jana"}, {"jana"}, ())
    check = Check(
        "jana", "note", "/home/jana/a", "of jana", "ask jana", {"path": ["/home/jana"], "bytes": 7, "no": None}
    )
    assert discreet.check(check) == Check(
        "jana", "note", "~/a", "of <user>", "ask <user>", {"path": ["~"], "bytes": 7, "no": None}
    )
