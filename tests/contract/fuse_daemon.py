"""A FUSE file system in one file, for faults: `fuse_daemon.py MOUNTPOINT MODE` mounts, serves, ends with $SCENARIO_PID.

It has one file, `file`, of 1 MiB. Modes: `hang-read` answers all but READ; `hang-ioctl` all but
IOCTL; `quota` refuses WRITE with EDQUOT; any other answers everything.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import struct
import sys

mount_point, mode = sys.argv[1], sys.argv[2]
libc = ctypes.CDLL(None, use_errno=True)
device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
if libc.mount(b"testfs", os.fsencode(mount_point), b"fuse", 0, options):
    sys.exit(f"mount: {os.strerror(ctypes.get_errno())}")
if os.fork():  # the shell that set this up goes on once the mount is there
    os._exit(0)
os.setsid()
for fd in (0, 1, 2):
    os.dup2(os.open(os.devnull, os.O_RDWR), fd)

SIZE = 1 << 20


def attr(node: int) -> bytes:
    kind, size, links = (0o40755, 4096, 2) if node == 1 else (0o100666, SIZE, 1)
    return struct.pack("<QQQQQQIIIIIIIIII", node, size, 8, 0, 0, 0, 0, 0, 0, kind, links, 0, 0, 0, 4096, 0)


def answer(unique: int, payload: bytes = b"", error: int = 0) -> None:
    os.write(device, struct.pack("<IiQ", 16 + len(payload), -error, unique) + payload)


# It ends with the scenario that it was mounted for, however that ends.
scenario = os.environ.get("SCENARIO_PID")
poll = select.poll()
poll.register(device, select.POLLIN)
if scenario:
    poll.register(os.pidfd_open(int(scenario)), select.POLLIN)

while True:
    if any(fd != device for fd, _ in poll.poll()):
        break
    try:
        request = os.read(device, 1 << 18)
    except OSError:
        break
    _, code, unique, node = struct.unpack("<IIQQ", request[:24])
    if code == 26:  # INIT
        answer(unique, struct.pack("<IIIIHHIIHHI7I", 7, 31, 65536, 0, 16, 12, 65536, 1, 0, 0, 0, *([0] * 7)))
        continue
    if code == 1:  # LOOKUP
        if request[40:].rstrip(b"\0") == b"file":
            answer(unique, struct.pack("<QQQQII", 2, 0, 60, 60, 0, 0) + attr(2))
        else:
            answer(unique, error=errno.ENOENT)
    elif code in (3, 4):  # GETATTR, SETATTR
        answer(unique, struct.pack("<QII", 60, 0, 0) + attr(node))
    elif code in (14, 27):  # OPEN, OPENDIR; direct_io, so that each read and write comes here
        answer(unique, struct.pack("<QII", 1, 1, 0))
    elif code == 15:  # READ
        if mode != "hang-read":
            answer(unique, bytes(struct.unpack("<I", request[56:60])[0]))
    elif code == 16:  # WRITE
        size = struct.unpack("<I", request[56:60])[0]
        answer(unique, error=errno.EDQUOT) if mode == "quota" else answer(unique, struct.pack("<II", size, 0))
    elif code == 17:  # STATFS
        answer(
            unique, struct.pack("<QQQQQIIII6I", 1 << 20, 1 << 19, 1 << 19, 1000, 500, 4096, 255, 4096, 0, *([0] * 6))
        )
    elif code == 39:  # IOCTL
        if mode != "hang-ioctl":
            answer(unique, error=errno.ENOTTY)
    elif code in (18, 25, 29, 35, 20, 30):  # RELEASE, FLUSH, RELEASEDIR, ACCESS, FSYNC
        answer(unique)
    elif code in (2, 36, 42):  # FORGET, INTERRUPT, BATCH_FORGET want no answer
        pass
    else:
        answer(unique, error=errno.ENOSYS)
