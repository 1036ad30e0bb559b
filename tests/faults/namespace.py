"""Runs a command in a private mount namespace, run as a script by root:

    python namespace.py [--uid N] [--readable PATH]... [--tmpfs DIR OPTIONS]... [--bind DIR]... -- COMMAND...

--readable makes a path below a private directory (the interpreter below /root) reachable for any user; --tmpfs mounts
a small file system; --overlay DIR OPTIONS mounts overlayfs over two file systems in memory, a directory `cache` with 40 files
in the lower one; --bind mounts a directory on itself, so that it can be remounted; --fuse DIR PIDFILE mounts a file
system that can hang (see fuse_daemon.py), and --sshfs one that says it is sshfs. Nothing of it is seen outside.
"""

import ctypes
import os
import sys

CLONE_NEWNS, MS_REC, MS_PRIVATE, MS_BIND = 0x20000, 0x4000, 1 << 18, 0x1000
libc = ctypes.CDLL(None, use_errno=True)


def mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    if libc.mount(source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), data.encode()):
        number = ctypes.get_errno()
        raise SystemExit(f"mount {kind} on {target}: {os.strerror(number)}")


def make_readable(paths: list[str]) -> None:
    """Put an empty, traversable file system over the topmost private ancestor, and the paths back into it."""
    hidden: dict[str, list[str]] = {}
    for path in paths:
        ancestor = ""
        for part in path.strip("/").split("/")[:-1]:
            ancestor += "/" + part
            if not os.stat(ancestor).st_mode & 0o001:
                hidden.setdefault(ancestor, []).append(path)
                break
    for ancestor, below in hidden.items():
        held = [(os.open(path, os.O_PATH), path) for path in below]
        mount("tmpfs", ancestor, "tmpfs", 0, "mode=755")
        for fd, path in held:
            os.makedirs(path, exist_ok=True)
            mount(f"/proc/self/fd/{fd}", path, "", MS_BIND | MS_REC)
            os.close(fd)


def mount_overlay(directory: str, options: str) -> None:
    """Mount two file systems in memory, which number their files alike, and overlayfs over both."""
    lower, upper = directory + ".lower", directory + ".upper"
    for layer in (lower, upper):
        os.makedirs(layer, exist_ok=True)
        mount("tmpfs", layer, "tmpfs", 0, "mode=777")
    for path in (f"{lower}/cache", f"{upper}/up", f"{upper}/work"):
        os.mkdir(path)
        os.chmod(path, 0o777)
    for n in range(40):
        with open(f"{lower}/cache/old{n}", "wb") as file:
            file.write(b"x" * 50_000)
        os.chmod(file.name, 0o666)
    mount("overlay", directory, "overlay", 0, f"lowerdir={lower},upperdir={upper}/up,workdir={upper}/work,{options}")


def main(words: list[str]) -> None:
    if libc.unshare(CLONE_NEWNS):
        raise SystemExit(f"unshare: {os.strerror(ctypes.get_errno())}")
    mount("none", "/", "", MS_REC | MS_PRIVATE)
    uid, readable, rest = None, [], words
    mounts, fuse, overlays = [], [], []
    while rest[0] != "--":
        if rest[0] == "--uid":
            uid, rest = int(rest[1]), rest[2:]
        elif rest[0] == "--readable":
            readable.append(rest[1])
            rest = rest[2:]
        elif rest[0] == "--tmpfs":
            mounts.append((rest[1], rest[2]))
            rest = rest[3:]
        elif rest[0] in ("--fuse", "--sshfs"):
            fuse.append((rest[1], rest[2], "fuse" if rest[0] == "--fuse" else "fuse.sshfs"))
            rest = rest[3:]
        elif rest[0] == "--overlay":
            overlays.append((rest[1], rest[2]))
            rest = rest[3:]
        elif rest[0] == "--bind":
            mounts.append((rest[1], ""))
            rest = rest[2:]
        else:
            raise SystemExit(f"unknown word {rest[0]}")
    make_readable(sorted(set(readable)))
    for directory, options in mounts:
        if options:
            mount("tmpfs", directory, "tmpfs", 0, options)
        else:
            mount(directory, directory, "", MS_BIND)
    for directory, options in overlays:
        mount_overlay(directory, options)
    for directory, pid_file, kind in fuse:
        sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "contract"))
        import fuse_daemon

        fuse_daemon.mount(directory, "memory", pid_file, kind)
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    os.execvp(rest[1], rest[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
