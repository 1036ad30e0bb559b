"""A file system in memory that can stop answering, run as a script by root: `fuse_daemon.py DIR [MODE [PIDFILE]]` mounts and serves it.

SIGUSR1 swallows every request, SIGUSR2 answers them all: PIDFILE.waits is there as long as one waits. SIGHUP gives every file another
inode number, as sshfs and rclone do when the kernel has forgotten it. SIGURG makes files look empty until they are opened, as a
client of NFS shows what it remembers. SIGALRM uses up a quota: from then on nothing is written or made.
In mode `links` it has symbolic links, and none in any other. In a MODE but these two there is a `file` of 1 MiB that no cache holds: `hang-read` and `hang-ioctl` answer all
but that, `quota` writes nothing. It ends with the process $SCENARIO_PID, if that is set.

The raw FUSE protocol (kernel 7.31) over /dev/fuse, since no library lets requests hang. Standard library only.
"""

import contextlib
import ctypes
import os
import select
import signal
import struct
import sys
import time

LOOKUP, FORGET, GETATTR, SETATTR, READLINK, SYMLINK, MKDIR, UNLINK, RMDIR, RENAME, OPEN, READ, WRITE, STATFS = (
    1, 2, 3, 4, 5, 6, 9, 10, 11, 12, 14, 15, 16, 17,
)  # fmt: skip
RELEASE, FSYNC, FLUSH, INIT, OPENDIR, READDIR, RELEASEDIR, FSYNCDIR, ACCESS, CREATE, INTERRUPT, DESTROY, IOCTL, BATCH_FORGET = (
    18, 20, 25, 26, 27, 28, 29, 30, 34, 35, 36, 38, 39, 42,
)  # fmt: skip
ENOENT, ENOTTY, ENOSYS, EDQUOT = 2, 25, 38, 122
SILENT = {FORGET, BATCH_FORGET, INTERRUPT}
# Never answered in this mode.
MUTE = {"hang-read": {READ}, "hang-ioctl": {IOCTL}}
FILE_BYTES = 1 << 20


class Node:
    shift = 0
    """By how much the inode numbers of files are off by now."""

    def __init__(self, number: int, mode: int, uid: int, gid: int) -> None:
        self.number, self.mode, self.uid, self.gid = number, mode, uid, gid
        self.size = 0
        self.is_fresh = True
        """Whether its size is told as it is."""
        self.content = bytearray()
        self.changed_ns = time.time_ns()
        self.names: dict[bytes, Node] = {}

    def attributes(self) -> bytes:
        seconds, rest = divmod(self.changed_ns, 10**9)
        blocks = (self.size + 511) // 512
        times = (seconds,) * 3 + (rest,) * 3
        return struct.pack(
            "<6Q10I",
            self.number + (Node.shift if self.mode & 0o100000 else 0),
            self.size if self.is_fresh else 0,
            blocks,
            *times,
            self.mode,
            1,
            self.uid,
            self.gid,
            0,
            4096,
            0,
        )


class Server:
    """Answers requests from memory."""

    def __init__(self, fd: int, pid_file: str, mode: str) -> None:
        self.fd, self.hung, self.used_up = fd, False, mode == "quota"
        self.mark, self.mute = pid_file + ".waits", MUTE.get(mode, set())
        self.waiting: list[bytes] = []
        self.nodes = {1: Node(1, 0o40777, 0, 0)}
        # With direct I/O each read and write comes here.
        self.opened = struct.pack("<QII", 0, int(mode not in ("memory", "links")), 0)
        self.has_links = mode == "links"
        if mode not in ("memory", "links"):
            self.nodes[2] = self.nodes[1].names[b"file"] = file = Node(2, 0o100666, 0, 0)
            file.size, file.content = FILE_BYTES, bytearray(FILE_BYTES)

    def serve(self) -> None:
        signal.signal(signal.SIGUSR1, lambda *_: setattr(self, "hung", True))
        signal.signal(signal.SIGUSR2, lambda *_: self.wake())
        signal.signal(signal.SIGALRM, lambda *_: setattr(self, "used_up", True))
        signal.signal(signal.SIGURG, lambda *_: self.age())
        signal.signal(signal.SIGHUP, lambda *_: setattr(Node, "shift", Node.shift + 1000))
        poll = select.poll()
        poll.register(self.fd, select.POLLIN)
        if scenario := os.environ.get("SCENARIO_PID"):
            poll.register(os.pidfd_open(int(scenario)), select.POLLIN)
        while True:
            if any(fd != self.fd for fd, _ in poll.poll()):
                return
            try:
                request = os.read(self.fd, 1 << 18)
            except OSError:  # unmounted
                return
            if self.hung:
                self.waiting.append(request)
                os.close(os.open(self.mark, os.O_CREAT | os.O_WRONLY))
            elif request[4] not in self.mute:
                self.answer(request)

    def age(self) -> None:
        for node in self.nodes.values():
            node.is_fresh = not node.mode & 0o100000
        os.close(os.open(self.mark, os.O_CREAT | os.O_WRONLY))

    def wake(self) -> None:
        with contextlib.suppress(OSError):
            os.unlink(self.mark)
        self.hung, waiting, self.waiting = False, self.waiting, []
        for request in waiting:
            self.answer(request)

    def answer(self, request: bytes) -> None:
        _, operation, unique, number, uid, gid, _, _ = struct.unpack("<IIQQIIII", request[:40])
        if operation in SILENT:
            return
        result = self.operate(operation, self.nodes.get(number), request[40:], uid, gid)
        error, data = (result, b"") if isinstance(result, int) else (0, result)
        try:
            os.write(self.fd, struct.pack("<IiQ", 16 + len(data), -error, unique) + data)
        except OSError:  # its caller was killed, or the mount has gone
            return

    def operate(self, operation: int, node: Node | None, body: bytes, uid: int, gid: int) -> bytes | int:
        if operation == INIT:
            return struct.pack("<IIIIHHIIHHI7I", 7, 31, 65536, 0, 16, 12, 65536, 1, 0, 0, 0, *([0] * 7))
        if operation in (RELEASE, RELEASEDIR, FLUSH, FSYNC, FSYNCDIR, ACCESS, DESTROY):
            return b""
        if operation == STATFS:
            return struct.pack("<5Q4I6I", 1 << 20, 1 << 20, 1 << 20, 1 << 20, 1 << 20, 4096, 255, 4096, 0, *([0] * 6))
        if operation == IOCTL:
            return ENOTTY
        if node is None:
            return ENOENT
        if self.used_up and operation in (MKDIR, CREATE, WRITE):
            return EDQUOT
        if operation in (GETATTR, SETATTR):
            valid = struct.unpack_from("<I", body)[0] if operation == SETATTR else 0
            if valid & 1:
                node.mode = node.mode & ~0o7777 | struct.unpack_from("<I", body, 68)[0] & 0o7777
            if valid & 8:
                node.size = struct.unpack_from("<Q", body, 16)[0]
                del node.content[node.size :]
                node.content.extend(bytes(node.size - len(node.content)))
                node.changed_ns = time.time_ns()
            if valid & 32 and not valid & 256:  # a modification time that is not now
                seconds, rest = struct.unpack_from("<Q", body, 40)[0], struct.unpack_from("<I", body, 60)[0]
                node.changed_ns = seconds * 10**9 + rest
            return struct.pack("<QII", 0, 0, 0) + node.attributes()
        if operation == LOOKUP:
            found = node.names.get(body.rstrip(b"\0"))
            return self.entry(found) if found else ENOENT
        if operation in (OPEN, OPENDIR):
            node.is_fresh = True
            return self.opened
        if operation in (MKDIR, CREATE):
            skip, kind = (8, 0o40000) if operation == MKDIR else (16, 0o100000)
            mode, umask = struct.unpack_from("<II", body, 0 if operation == MKDIR else 4)
            kind |= mode & 0o7777 & ~umask
            made = Node(len(self.nodes) + 1, kind, uid, gid)
            self.nodes[made.number] = node.names[body[skip:].rstrip(b"\0")] = made
            return self.entry(made) + (self.opened if operation == CREATE else b"")
        if operation == SYMLINK and self.has_links:
            name, target = body.rstrip(b"\0").split(b"\0")
            made = Node(len(self.nodes) + 1, 0o120777, uid, gid)
            made.content, made.size = bytearray(target), len(target)
            self.nodes[made.number] = node.names[name] = made
            return self.entry(made)
        if operation == READLINK:
            return bytes(node.content)
        if operation == RENAME:
            old, new = body[8:].rstrip(b"\0").split(b"\0")
            into = self.nodes[struct.unpack_from("<Q", body)[0]]
            if old not in node.names:
                return ENOENT
            into.names[new] = node.names.pop(old)
            return b""
        if operation == READ:
            _, offset, size = struct.unpack_from("<QQI", body)
            return bytes(node.content[offset : offset + size])
        if operation in (UNLINK, RMDIR):
            return b"" if node.names.pop(body.rstrip(b"\0"), None) else ENOENT
        if operation == WRITE:
            _, offset, size = struct.unpack_from("<QQI", body)
            node.content.extend(bytes(max(0, offset - len(node.content))))
            node.content[offset : offset + size] = body[40 : 40 + size]
            node.size, node.changed_ns = len(node.content), time.time_ns()
            return struct.pack("<II", size, 0)
        if operation == READDIR:
            _, offset, size = struct.unpack_from("<QQI", body)
            return self.list(node, offset, size)
        return ENOSYS

    def entry(self, node: Node) -> bytes:
        return struct.pack("<QQQQII", node.number, 0, 0, 0, 0, 0) + node.attributes()

    def list(self, node: Node, offset: int, size: int) -> bytes:
        data = b""
        for position, (name, child) in enumerate(list(node.names.items())[offset:], offset + 1):
            record = struct.pack("<QQII", child.number, position, len(name), child.mode >> 12) + name
            record += b"\0" * (-len(record) % 8)
            if len(data) + len(record) > size:
                break
            data += record
        return data


def mount(directory: str, mode: str = "memory", pid_file: str = "", kind: str = "fuse") -> None:
    """Mount it and serve it in a process of its own; returns when it is there."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={fd},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    if libc.mount(b"hanging", os.fsencode(directory), kind.encode(), 0, options):
        sys.exit(f"mount: {os.strerror(ctypes.get_errno())}")
    if os.fork():
        os.close(fd)
        while pid_file and not os.path.exists(pid_file):
            time.sleep(0.005)
        return
    os.setsid()
    for target in (0, 1, 2):
        os.dup2(os.open("/dev/null", os.O_RDWR), target)
    if pid_file:
        with open(pid_file + ".new", "w") as file:
            file.write(str(os.getpid()))
        os.rename(pid_file + ".new", pid_file)
    Server(fd, pid_file, mode).serve()
    os._exit(0)


if __name__ == "__main__":
    mount(*sys.argv[1:])
