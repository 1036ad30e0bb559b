"""Every option that names a file to write, against everything that a path can be; /dev is one of the test's own."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.harness import NOBODY, Sandbox, in_namespace
from tests.support import unavailable

# Run in a mount namespace with an empty /dev: what replaces a node harms nobody.
DEV = """
import os, stat, sys
for name, minor in (("null", 3), ("zero", 5), ("full", 7), ("random", 8), ("urandom", 9)):
    os.mknod(f"/dev/{name}", stat.S_IFCHR | 0o666, os.makedev(1, minor))
    os.chmod(f"/dev/{name}", 0o666)
os.symlink("/proc/self/fd", "/dev/fd")
for number, name in enumerate(("stdin", "stdout", "stderr")):
    os.symlink(f"/proc/self/fd/{number}", f"/dev/{name}")
os.mkdir("/dev/shm"); os.chmod("/dev/shm", 0o1777)
import subprocess
done = subprocess.run(sys.argv[1:]).returncode
print("EXIT", done, sorted(n for n in os.listdir("/dev") if n != "shm"),
      stat.S_ISCHR(os.lstat("/dev/null").st_mode), stat.S_ISCHR(os.lstat("/dev/full").st_mode),
      os.readlink("/dev/stdout"), os.readlink("/dev/fd"), os.listdir("/dev/shm"), file=sys.stderr)
"""
DEV_WHOLE = "['fd', 'full', 'null', 'random', 'stderr', 'stdin', 'stdout', 'urandom', 'zero'] True True /proc/self/fd/1 /proc/self/fd []"
PLAN = """
storage: {name: s, write: {one_bytes_per_s: 1.0e9, all_bytes_per_s: 2.0e9}}
workloads: [{name: a, burst_bytes: 1GB, think_s: 10s}]
"""
GROW = "import sys;open(sys.argv[1]+'/f','wb').write(b'x'*9000);print('said')"


class Case:
    """One option of one command: its argv, and what is in the file when all went well."""

    def __init__(
        self, name: str, argv: Callable[[Sandbox, str], list[str]], content: Callable[[bytes], object]
    ) -> None:
        self.name, self.argv, self.content = name, argv, content


def execute(*options: str) -> Callable[[Sandbox, str], list[str]]:
    def argv(box: Sandbox, path: str) -> list[str]:
        generator = [sys.executable, "-I", "-S", "-c", GROW, str(box.cache)]
        return box.cachewatch("exec", "--quiet", "--cache-dir", str(box.cache), *options, path, "--", *generator)

    return argv


def plan(box: Sandbox, path: str) -> list[str]:
    (box.root / "out" / "plan.yaml").write_text(PLAN)
    return box.cachewatch("plan", str(box.root / "out" / "plan.yaml"), "--picture", path)


def report_is_whole(data: bytes) -> bool:
    return b'"schema_version"' in data and b'"outcome": "completed"' in data


CASES = [
    Case("exec --report", execute("--report"), report_is_whole),
    Case("exec --log", execute("--log"), lambda data: b"said\n" in data),
    Case("plan --picture", plan, lambda data: b"</svg>" in data),
]


def run(box: Sandbox, case: Case, path: str, private_dev: bool = False, **options: object) -> tuple[int, str, str]:
    argv = case.argv(box, path)
    words = list(box.mounts)
    if private_dev:
        argv = [*in_namespace(None, "--tmpfs", "/dev", "mode=755"), sys.executable, "-I", "-S", "-c", DEV, *argv]
    elif box.uid is not None or words:
        argv = [*in_namespace(box.uid, *words), *argv]
    done = subprocess.run(
        argv, env=box.env(), cwd=box.root, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
    )
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(params=CASES, ids=lambda case: case.name)
def case(request: pytest.FixtureRequest) -> Case:
    return request.param


@pytest.mark.parametrize(
    "name", ["/dev/null", "/dev/stdout", "/dev/stderr", "/dev/fd/1", "/dev/full", "link", "link to stdout"]
)
def test_a_device_is_written_and_never_replaced(own_sandbox: Sandbox, case: Case, name: str) -> None:
    if os.geteuid() != 0:
        unavailable("needs root to have a /dev of its own")
    path = name
    if name.startswith("link"):
        path = str(own_sandbox.root / "out" / "link")
        os.symlink("/dev/null" if name == "link" else "/dev/stdout", path)
    _, out, err = run(own_sandbox, case, path, private_dev=True)
    assert DEV_WHOLE in err, err
    assert "Traceback" not in err
    assert "EXIT 0" in err or name == "/dev/full", err
    if name in ("/dev/stdout", "/dev/fd/1", "link to stdout"):
        assert case.content(out.encode()), out
    if name == "/dev/stderr":
        assert case.content(err.encode())
    if name.startswith("link"):
        assert os.path.islink(path)
        assert os.listdir(own_sandbox.root / "out").count("link") == 1


def test_a_pipe_is_written_where_somebody_reads_it_and_said_where_nobody_does(sandbox: Sandbox, case: Case) -> None:
    fifo = sandbox.mkdir("fifos") / "fifo"
    os.mkfifo(fifo)
    os.chmod(fifo, 0o666)
    # Held open for reading until the command ends: a reader that comes and goes would be luck.
    end = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    got = bytearray()
    done = threading.Event()

    def drain() -> None:
        while not done.is_set() or got_more():
            got_more()
            done.wait(0.01)

    def got_more() -> bool:
        try:
            piece = os.read(end, 1 << 16)
        except BlockingIOError:
            return False
        got.extend(piece)
        return bool(piece)

    reader = threading.Thread(target=drain)
    reader.start()
    status, _, err = run(sandbox, case, str(fifo))
    done.set()
    reader.join(10)
    os.close(end)
    assert status == 0, err
    assert case.content(bytes(got)), (bytes(got)[:200], err)
    assert stat.S_ISFIFO(fifo.lstat().st_mode)
    status, _, err = run(sandbox, case, str(fifo))
    assert "a pipe that nobody reads" in err
    assert "Traceback" not in err
    assert os.listdir(fifo.parent) == ["fifo"]


def test_a_link_is_written_through_and_stays(sandbox: Sandbox, case: Case) -> None:
    home = sandbox.mkdir("mine")
    for name in ("there", "new"):
        target = sandbox.mkdir(f"disk-{name}") / "file"
        if name == "there":
            target.write_bytes(b"")
            target.chmod(0o640)
            if sandbox.uid is not None:
                os.chown(target, sandbox.uid, sandbox.uid)
        link = home / name
        link.symlink_to(target)
        status, _, err = run(sandbox, case, str(link))
        assert status == 0, err
        assert link.is_symlink()
        assert case.content(target.read_bytes())
        if name == "there":
            assert stat.S_IMODE(target.stat().st_mode) == 0o640
        elif "exec" in case.name:
            assert stat.S_IMODE(target.stat().st_mode) == 0o600
        assert os.listdir(target.parent) == ["file"]


@pytest.mark.parametrize("name", ["n" * 255, "new\nline", "-dash", "with space", "umlaut-\udcfc"])
def test_odd_names_are_names(own_sandbox: Sandbox, case: Case, name: str) -> None:
    directory = own_sandbox.mkdir("odd")
    status, _, err = run(own_sandbox, case, f"{directory}/{name}")
    assert status == 0, err
    assert os.listdir(directory) == [name]
    assert case.content((directory / name).read_bytes())


@pytest.mark.parametrize("kind", ["directory", "no directory", "name too long", "read-only", "full"])
def test_what_cannot_be_written_is_said_in_one_sentence(own_sandbox: Sandbox, case: Case, kind: str) -> None:
    place = own_sandbox.mkdir("place")
    path = {"no directory": "place/none/file", "name too long": f"place/{'n' * 256}", "directory": "place"}.get(
        kind, "place/file"
    )
    if kind in ("read-only", "full"):
        if os.geteuid() != 0:
            unavailable("needs root to mount a small file system")
        options = "size=64k,ro,mode=777" if kind == "read-only" else "nr_inodes=1,mode=777"
        own_sandbox.mounts += ["--tmpfs", str(place), options]
    _, _, err = run(own_sandbox, case, str(own_sandbox.root / path))
    assert "Traceback" not in err
    assert err.startswith(("cachewatch: ", "Error: ", "Usage:")), err
    said = [line for line in err.splitlines() if path.rsplit("/", 1)[-1][:40] in line]
    assert len(said) == 1, err
    assert os.listdir(place) == []


@pytest.mark.parametrize("kind", ["link to a file of root's", "file", "fifo"])
def test_what_another_user_planted_is_not_written(own_sandbox: Sandbox, case: Case, kind: str) -> None:
    if os.geteuid() != 0:
        unavailable("needs root to be a second user")
    sticky = own_sandbox.mkdir("sticky")
    sticky.chmod(0o1777)
    victim = own_sandbox.root / "out" / "victim"
    victim.write_text("roots\n")
    path = sticky / "file"
    if kind.startswith("link"):
        path.symlink_to(victim)
    elif kind == "file":
        path.write_text("his\n")
    else:
        os.mkfifo(path)
    os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
    before = path.lstat()
    _, _, err = run(own_sandbox, case, str(path))
    assert f"belongs to uid {NOBODY}" in err
    assert "Traceback" not in err
    after = path.lstat()
    assert (after.st_ino, after.st_uid, after.st_size) == (before.st_ino, before.st_uid, before.st_size)
    assert victim.read_text() == "roots\n"
    assert os.listdir(sticky) == ["file"]


def test_a_state_directory_of_somebody_elses_is_refused(own_sandbox: Sandbox) -> None:
    if os.geteuid() != 0:
        unavailable("needs root to be a second user")
    sticky = own_sandbox.mkdir("sticky")
    sticky.chmod(0o1777)
    his = sticky / "state"
    his.mkdir(mode=0o777)
    his.chmod(0o777)
    os.chown(his, NOBODY, NOBODY)
    argv = execute("--report")(own_sandbox, str(own_sandbox.report_path))
    env = own_sandbox.env(CACHEWATCH_STATE=str(his))
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60)
    assert os.listdir(his) == []
    assert "Traceback" not in done.stderr
    report = json.loads(own_sandbox.report_path.read_text())
    assert f"uid {NOBODY}" in done.stderr + " ".join(report["notes"])


def test_a_store_folder_that_another_user_made_is_not_published_into(tmp_path: Path) -> None:
    from prefect_cachewatch.errors import StoreError
    from prefect_cachewatch.store.key import BuildRecipe
    from prefect_cachewatch.store.store import CacheStore

    if os.geteuid() != 0:
        unavailable("needs root to be a second user")
    tmp_path.chmod(0o1777)
    (tmp_path / "llama").mkdir()
    os.chown(tmp_path / "llama", NOBODY, NOBODY)
    with pytest.raises(StoreError, match=f"belongs to uid {NOBODY} and lies in a directory where everybody may write"):
        CacheStore(tmp_path).begin("llama", BuildRecipe(cache_key={"a": 1}, argv=["x"]))
    assert os.listdir(tmp_path / "llama") == []
