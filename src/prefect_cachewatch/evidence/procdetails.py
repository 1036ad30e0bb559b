"""What a process holds: sockets, locks it waits for, limits of its control group.

Reads /proc and /sys/fs/cgroup only. Kinds and sizes of open files need their file systems,
which may hang: `filesystem` asks them in threads, and `collector` joins the two.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from prefect_cachewatch.common.mounts import read_mounts
from prefect_cachewatch.common.proc_locks import lock_waits
from prefect_cachewatch.common.secrets import redact_argv
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.common.units import format_moment
from prefect_cachewatch.common.users import user_name
from prefect_cachewatch.evidence.model import CgroupFacts, LockWait, ProcessFacts, SocketFacts
from prefect_cachewatch.supervise.open_files import OpenFile
from prefect_cachewatch.supervise.proc import namespace_of, read_proc, read_stat, read_status
from prefect_cachewatch.supervise.reading import argv_within

# By their numbers in the kernel, from 1 on.
_TCP_STATES = (
    "ESTABLISHED", "SYN_SENT", "SYN_RECV", "FIN_WAIT1", "FIN_WAIT2", "TIME_WAIT", "CLOSE", "CLOSE_WAIT", "LAST_ACK",
    "LISTEN", "CLOSING", "NEW_SYN_RECV",
)  # fmt: skip
_UNIX_STATES = ("UNCONNECTED", "CONNECTING", "CONNECTED", "DISCONNECTING")
_NO_LIMIT = 1 << 60
_ARGV_S = 0.3


def list_sockets(
    pid: int, files: Iterable[OpenFile], tables: dict[str, Mapping[int, SocketFacts]]
) -> list[SocketFacts]:
    """Match a process's sockets with the tables of its network namespace.

    Args:
        pid: the process.
        files: its open files.
        tables: cache of the tables already read, by namespace; filled as needed.

    Returns:
        One entry for each socket that the tables know.
    """
    wanted = [(f.fd, f.inode) for f in files if f.kind == "socket" and f.inode is not None]
    namespace = namespace_of(pid, "net") if wanted else ""
    if namespace and namespace not in tables:
        tables[namespace] = _read_socket_tables(pid)
    found = ((fd, tables[namespace].get(inode)) for fd, inode in wanted if namespace)
    return [replace(facts, fd=fd) for fd, facts in found if facts]


def read_locks(text: str, processes: Mapping[int, ProcessFacts], secrets: Sequence[str] = ()) -> tuple[LockWait, ...]:
    """Find the file locks that processes of the tree wait for.

    Args:
        text: /proc/locks, read before the tree was frozen: a stopped process waits for no lock.
        processes: the tree; a holder outside of it is looked up.
        secrets: values that must not appear in the holder's command line.

    Returns:
        One entry a waiting process and lock.
    """
    paths = {f.inode: f.target for process in processes.values() for f in process.files if f.inode is not None}
    found = [(wait, lock.pid if lock is not None else 0) for wait, lock in lock_waits(text) if wait.pid in processes]
    return tuple(
        LockWait(wait.pid, holder, wait.kind, paths.get(wait.inode, ""), **_describe_holder(holder, processes, secrets))
        for wait, holder in found
    )


def _describe_holder(pid: int, tree: Mapping[int, ProcessFacts], secrets: Sequence[str]) -> dict[str, Any]:
    """Name, start, user and command line of a lock's holder; a pid alone means nothing an hour later."""
    status, stat = read_status(f"/proc/{pid}/status"), read_stat(pid) if pid > 0 else None
    if stat is None or not status:
        return {
            "holder": f"pid {pid}" if pid > 0 else "a process that is not visible from here (another container or host)"
        }
    running_s = time.clock_gettime(time.CLOCK_BOOTTIME) - stat.start_ticks / os.sysconf("SC_CLK_TCK")
    since = format_moment(time.time() - running_s)[:16].replace("T", " ") if stat.start_ticks >= 0 else ""
    name = tree[pid].name if pid in tree else os.fsdecode(status[b"Name"])
    argv, user = redact_argv(argv_within(pid, _ARGV_S), secrets), user_name(int(status[b"Uid"].split()[0]))
    return {
        "holder": f"pid {pid} ({for_terminal(name, 40)}{since and f', since {since} UTC'})",
        "holder_command": f"of {user}: {for_terminal(' '.join(argv), 200)}",
        "holder_in_tree": pid in tree,
    }


def find_cgroup(pid: int) -> str:
    """Find the directory below /sys/fs/cgroup that limits the memory of a process; empty if none is seen."""
    mounts = read_mounts()
    unified = next((mount.mount_point for mount in mounts if mount.type == "cgroup2"), "")
    memory = (mount.mount_point for mount in mounts if mount.type == "cgroup" and "memory" in mount.options)
    tops = {"memory": next(memory, ""), "": unified}
    found = dict.fromkeys(tops, "")
    for line in os.fsdecode(read_proc(f"/proc/{pid}/cgroup")).splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            if tops.get(controller):
                found[controller] = tops[controller] + path.rstrip("/")
    return found["memory"] or found[""]


def read_cgroup(directory: str) -> CgroupFacts:
    """Read limit, use and OOM kills of a control group, version 2 or 1; what is missing is None."""
    names = ("memory.max", "memory.current", "memory.events")
    if os.path.exists(f"{directory}/memory.limit_in_bytes"):
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.oom_control")
    limit, current, events = (read_proc(f"{directory}/{name}").split() for name in names)
    kills = dict(zip(events[::2], events[1::2], strict=False)).get(b"oom_kill")
    most, used = (int(words[0]) if words and words[0].isdigit() else None for words in (limit, current))
    known = most if most is not None and most < _NO_LIMIT else None
    return CgroupFacts(directory, known, used, int(kills) if kills else None)


def _read_socket_tables(pid: int) -> dict[int, SocketFacts]:
    table: dict[int, SocketFacts] = {}
    for family in ("tcp", "tcp6", "udp", "udp6"):
        for line in read_proc(f"/proc/{pid}/net/{family}", 4 << 20).splitlines()[1:]:
            words = line.decode().split()
            if len(words) >= 10:
                sent, received = (int(part, 16) for part in words[4].split(":"))
                state = _state_of(words[3], _TCP_STATES) if family.startswith("tcp") else "UDP"
                ends = _address(words[1]), _address(words[2])
                table[int(words[9])] = SocketFacts(-1, family, *ends, state, received, sent)
    for line in read_proc(f"/proc/{pid}/net/unix", 4 << 20).splitlines()[1:]:
        parts = os.fsdecode(line).split(None, 7)
        if len(parts) >= 7:
            path = parts[7] if len(parts) > 7 else ""
            table[int(parts[6])] = SocketFacts(-1, "unix", path, "", _state_of(parts[5], _UNIX_STATES))
    return table


def _state_of(number: str, names: Sequence[str]) -> str:
    return names[int(number, 16) - 1] if 0 < int(number, 16) <= len(names) else number


def _address(text: str) -> str:
    # Four-byte words in host order (net/ipv4/tcp_ipv4.c, get_tcp4_sock).
    raw, port = text.split(":")
    packed = b"".join(struct.pack("=I", int(raw[at : at + 8], 16)) for at in range(0, len(raw), 8))
    if len(packed) == 4:
        return f"{socket.inet_ntop(socket.AF_INET, packed)}:{int(port, 16)}"
    return f"[{socket.inet_ntop(socket.AF_INET6, packed)}]:{int(port, 16)}"
