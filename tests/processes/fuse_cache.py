"""A FUSE file system with one empty directory, `cache`, that stops answering once a flag file exists.

`fuse_cache.py MOUNTPOINT FLAG` mounts it and serves in the background until its process is killed; needs root
and a mount namespace of its own. Standard library only.
"""

import ctypes
import errno
import os
import struct
import sys

mount_point, flag = sys.argv[1], sys.argv[2]
libc = ctypes.CDLL(None, use_errno=True)
device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
if libc.mount(b"hangs", os.fsencode(mount_point), b"fuse", 0, options):
    sys.exit(f"mount: {os.strerror(ctypes.get_errno())}")
if os.fork():
    os._exit(0)
for fd in (0, 1, 2):
    os.dup2(os.open(os.devnull, os.O_RDWR), fd)


def attributes(node: int) -> bytes:
    return struct.pack("<QQQQQQIIIIIIIIII", node, 4096, 8, 0, 0, 0, 0, 0, 0, 0o40777, 2, 0, 0, 0, 4096, 0)


def answer(unique: int, payload: bytes = b"", error: int = 0) -> None:
    os.write(device, struct.pack("<IiQ", 16 + len(payload), -error, unique) + payload)


def serve(code: int, unique: int, node: int, rest: bytes) -> None:
    if code == 26:  # INIT
        answer(unique, struct.pack("<IIIIHHIIHHI7I", 7, 31, 65536, 0, 16, 12, 65536, 1, 0, 0, 0, *([0] * 7)))
    elif code == 1:  # LOOKUP; nothing is remembered by the kernel, so that each look comes here
        if node == 1 and rest.rstrip(b"\0") == b"cache":
            answer(unique, struct.pack("<QQQQII", 2, 0, 0, 0, 0, 0) + attributes(2))
        else:
            answer(unique, error=errno.ENOENT)
    elif code in (3, 4):  # GETATTR, SETATTR
        answer(unique, struct.pack("<QII", 0, 0, 0) + attributes(node))
    elif code == 27:  # OPENDIR
        answer(unique, struct.pack("<QII", 1, 0, 0))
    elif code == 28:  # READDIR: empty
        answer(unique)
    elif code == 17:  # STATFS
        answer(unique, struct.pack("<QQQQQIIII6I", 1 << 20, 1 << 19, 1 << 19, 1000, 500, 4096, 255, 4096, 0, *[0] * 6))
    elif code in (18, 25, 29, 34):  # RELEASE, FLUSH, RELEASEDIR, ACCESS
        answer(unique)
    elif code in (2, 36, 42):  # FORGET, INTERRUPT, BATCH_FORGET want no answer
        return
    else:
        answer(unique, error=errno.ENOSYS)


while True:
    try:
        request = os.read(device, 1 << 18)
    except OSError:
        break
    if os.path.exists(flag):
        continue
    _, code, unique, node = struct.unpack("<IIQQ", request[:24])
    serve(code, unique, node, request[40:])
