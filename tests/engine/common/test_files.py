"""Files of ours: regular ones whole or not at all, others straight, nothing that somebody else planted."""

from __future__ import annotations

import errno
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from prefect_cachewatch.common.directories import FileRefused, make_own_directory, open_own_directory
from prefect_cachewatch.common.files import PUBLIC, create_file, open_for_writing, write_entry, write_file

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="makes files of another user")


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def sticky(tmp_path):
    """A directory as /tmp, root's, in which others have made things."""
    path = tmp_path / "sticky"
    path.mkdir()
    path.chmod(0o1777)
    return path


def test_what_is_no_secret_gets_the_mode_of_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        write_file(tmp_path / "plan.html", b"x", mode=PUBLIC)
    finally:
        os.umask(before)
    assert mode_of(tmp_path / "plan.html") == 0o640


@as_root
def test_root_leaves_a_users_file_the_users(tmp_path):
    path = tmp_path / "r.json"
    path.write_text("old")
    os.chown(path, NOBODY, NOBODY)
    path.chmod(0o640)
    write_file(path, b"new")
    status = path.stat()
    assert (status.st_uid, status.st_gid, mode_of(path)) == (NOBODY, NOBODY, 0o640)


@as_root
@pytest.mark.parametrize("kind", ["link to a file", "dangling link", "link on the way", "file", "fifo"])
def test_what_another_user_planted_in_a_sticky_directory_is_refused(tmp_path, sticky, kind):
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "passwd").write_text("root")
    path = sticky / "r.json"
    if kind == "link to a file":
        path.symlink_to(victim / "passwd")
    elif kind == "dangling link":
        path.symlink_to(victim / "new")
    elif kind == "link on the way":
        path.symlink_to(victim)
    elif kind == "file":
        path.write_text("his")
    else:
        os.mkfifo(path)
    os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
    named = path / "passwd" if kind == "link on the way" else path
    for write in (lambda: write_file(named, b"x"), lambda: os.close(open_for_writing(named))):
        with pytest.raises(FileRefused, match=f"belongs to uid {NOBODY}"):
            write()
    assert (victim / "passwd").read_text() == "root"
    assert os.listdir(victim) == ["passwd"]
    assert os.listdir(sticky) == ["r.json"]


@as_root
def test_the_same_link_is_followed_where_its_maker_owns_the_directory(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    (home / "r.json").symlink_to(tmp_path / "file")
    for path in (home, home / "r.json"):
        os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
    write_file(home / "r.json", b"x")
    assert (tmp_path / "file").read_bytes() == b"x"


def test_a_temporary_name_cannot_be_guessed_and_no_link_of_that_name_is_followed(tmp_path, monkeypatch):
    here = os.open(tmp_path, os.O_RDONLY)
    monkeypatch.setattr(os, "urandom", bytes)  # the worst case: it was guessed
    (tmp_path / ("n-" + "00" * 12)).symlink_to(tmp_path / "victim")
    with pytest.raises(FileExistsError):
        write_entry(here, "file", b"x", prefix="n-")
    os.close(here)
    assert not (tmp_path / "victim").exists()
    assert not (tmp_path / "file").exists()
    assert (tmp_path / ("n-" + "00" * 12)).is_symlink()


def test_a_reader_that_does_not_read_holds_nobody(tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(TimeoutError, match="its reader did not take it"):
        write_file(fifo, b"x" * 300_000, timeout_s=0.2)
    os.close(reader)


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM])
def test_a_socket_is_written_and_stays(tmp_path, kind):
    path = tmp_path / ("s" * 80)  # the whole is longer than an address
    here = os.open(tmp_path, os.O_RDONLY)
    server = socket.socket(socket.AF_UNIX, kind)
    server.bind(f"/proc/self/fd/{here}/{path.name}")
    if kind == socket.SOCK_STREAM:
        server.listen()
    write_file(path, b"report")
    taker = server.accept()[0] if kind == socket.SOCK_STREAM else server
    assert taker.recv(100) == b"report"
    taker.close()
    server.close()
    os.close(here)
    assert stat.S_ISSOCK(path.stat().st_mode)
    with pytest.raises(ConnectionRefusedError):
        write_file(path, b"x")


SCRIPT = """
import sys
sys.path.insert(0, sys.argv[1])
from prefect_cachewatch.common.files import write_file, open_for_writing
import os
os.write(1, b"before ")
write_file(sys.argv[2], b"report")
if sys.argv[2] != "/dev/stderr":
    fd = open_for_writing(sys.argv[2]); os.write(fd, b" stream"); os.close(fd)
os.write(1, b" after")
"""
SOURCES = str(Path(__file__).parents[3] / "src")


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", "/proc/thread-self/fd/1", "a link"])
@pytest.mark.parametrize("where", ["file", "pipe", "socket"])
def test_our_own_descriptor_is_written_where_it_stands(tmp_path, name, where):
    # -S -I: as a helper process starts.
    if name == "a link":
        name = str(tmp_path / "link")
        os.symlink("/dev/stdout", name)
    out = tmp_path / "out"
    words = [sys.executable, "-I", "-S", "-c", SCRIPT, SOURCES, name]
    if where == "file":
        with out.open("wb") as file:
            subprocess.run(words, stdout=file, check=True, timeout=30)
        assert out.read_bytes() == b"before report stream after"
        assert sorted(os.listdir(tmp_path)) == (["link", "out"] if "link" in name else ["out"])
    elif where == "pipe":
        done = subprocess.run(words, stdout=subprocess.PIPE, check=True, timeout=30)
        assert done.stdout == b"before report stream after"
    else:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            subprocess.run(words, stdout=theirs, check=True, timeout=30)
            assert ours.recv(100) == b"before report stream after"
    assert os.readlink("/dev/stdout") in ("/proc/self/fd/1", "fd/1")


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "r"
    path.write_text("old")

    def full(fd: int, data: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space"):
        write_file(path, b"new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["r"]


def test_a_file_to_be_made_must_not_be_there_nor_a_link(tmp_path):
    os.close(create_file(tmp_path / "new"))
    assert mode_of(tmp_path / "new") == 0o600
    (tmp_path / "link").symlink_to(tmp_path / "other")
    for name in ("new", "link"):
        with pytest.raises(FileExistsError):
            create_file(tmp_path / name)
    assert not (tmp_path / "other").exists()


def test_a_stream_empties_the_file_and_keeps_it(tmp_path):
    path = tmp_path / "log"
    path.write_text("old and long")
    path.chmod(0o640)
    inode = path.stat().st_ino
    fd = open_for_writing(path)
    os.write(fd, b"new")
    os.close(fd)
    assert (path.read_text(), path.stat().st_ino, mode_of(path)) == ("new", inode, 0o640)
    os.close(open_for_writing(tmp_path / "fresh"))
    assert mode_of(tmp_path / "fresh") == 0o600


def test_an_own_directory_is_made_for_us_alone(tmp_path):
    os.close(make_own_directory(tmp_path / "state" / "runs"))
    assert mode_of(tmp_path / "state") == 0o700
    assert mode_of(tmp_path / "state" / "runs") == 0o700
    os.close(make_own_directory(tmp_path / "state" / "runs"))
    os.close(open_own_directory(tmp_path / "state" / "runs"))
    with pytest.raises(FileNotFoundError):
        open_own_directory(tmp_path / "other")


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o777, 0o1777])
def test_a_directory_into_which_others_may_write_is_not_ours(tmp_path, mode):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs").chmod(mode)
    with pytest.raises(FileRefused, match="others may write into it"):
        make_own_directory(tmp_path / "runs")


def test_a_link_or_a_file_is_no_directory_of_ours(tmp_path):
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "file").touch()
    for name, why in (("link", "it is a symbolic link"), ("file", "it is not a directory")):
        with pytest.raises(OSError) as caught:
            make_own_directory(tmp_path / name)
        if name == "link":
            assert str(caught.value) == why
    os.close(make_own_directory(tmp_path / "link" / "runs"))  # a link on the way is the user's own
    assert (tmp_path / "real" / "runs").is_dir()


@as_root
def test_a_directory_that_another_user_put_there_is_not_ours(tmp_path, sticky):
    (sticky / "cachewatch-0").mkdir()
    os.chown(sticky / "cachewatch-0", NOBODY, NOBODY)
    with pytest.raises(FileRefused, match=f"belongs to uid {NOBODY}"):
        make_own_directory(sticky / "cachewatch-0")
    with pytest.raises(FileRefused, match=f"which uid {NOBODY} made where everybody may write"):
        make_own_directory(sticky / "cachewatch-0" / "bundles")
    assert os.listdir(sticky / "cachewatch-0") == []
    (sticky / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").mkdir()
    os.chown(sticky / "link", NOBODY, NOBODY, follow_symlinks=False)
    with pytest.raises(FileRefused, match=f"belongs to uid {NOBODY}"):
        make_own_directory(sticky / "link" / "bundles")
    # A home of somebody else's is no such place: sudo keeps the caller's HOME.
    (tmp_path / "home").mkdir()
    os.chown(tmp_path / "home", NOBODY, NOBODY)
    os.close(make_own_directory(tmp_path / "home" / "state" / "runs"))
