"""Every row of the table of fault cases that a monitor of cache directories has to get right."""

from __future__ import annotations

import sys

import pytest

from tests.faults.conftest import Fault
from tests.faults.harness import Sandbox

SECTION = "6 The generators' fault cases"
HEAD = "import os,sys,time\nd=sys.argv[1]\n"
GROW = "for i in range(25):\n open(f'{d}/f{i}','wb').write(b'x'*9000); time.sleep(.1)\n"
HANG = "time.sleep(60)\n"
TEMPORARY = "i=0\nwhile 1:\n i+=1; p=f'{d}/tmp{i}'; open(p,'wb').write(b'x'*50000); time.sleep(.05); os.remove(p)\n"
LINKS = "os.symlink('.',d+'/loop'); os.symlink('..',d+'/up')\n"

# case -> (what the generator does, exit, kind, what must stand in the message)
CASES: dict[str, tuple[str, int, str | None, str]] = {
    "grows": (GROW, 0, None, "completed"),
    "one write, then hang": ("open(d+'/f','wb').write(b'x'*9000)\n" + HANG, 124, "no_growth", "no disk write activity"),
    "hang before the first write": (HANG, 124, "never_started", "no byte written within"),
    "hang while temporary files come and go": (TEMPORARY, 124, "churning", "nothing is kept"),
    "hang while a log file grows": (
        "open(d+'/f','wb').write(b'x'*9000)\nwhile 1: open(d+'/run.log','ab').write(b'x'*9000); time.sleep(.05)\n",
        124, "no_growth", "no disk write activity",
    ),
    "temporary files deleted while it progresses": (
        "for i in range(40):\n p=f'{d}/tmp{i}'; open(p,'wb').write(b'x'*50000); open(f'{d}/f{i}','wb').write(b'x'*9000); "
        "time.sleep(.15); os.remove(p)\n",
        0, None, "completed",
    ),
    "directory removed": (
        GROW + "import shutil; shutil.rmtree(d)\n" + HANG, 124, "cache_directory_missing", "cache directory missing",
    ),
    "symlink loop, growing": (LINKS + GROW, 0, None, "225 KB"),
    "symlink loop, hung": (LINKS + "open(d+'/f','wb').write(b'x'*9000)\n" + HANG, 124, "no_growth", "in 1 file"),
    "sparse file being filled": (
        "f=open(d+'/f','wb'); f.truncate(1<<30)\nfor i in range(25):\n f.seek(i<<20); f.write(b'x'*9000); f.flush(); "
        "time.sleep(.15)\n",
        0, None, "completed",
    ),
    "preallocated file being filled, progress=bytes": (
        "f=open(d+'/f','wb'); os.posix_fallocate(f.fileno(),0,1<<20)\nwhile 1:\n f.seek(0); f.write(b'x'*9000); "
        "f.flush(); time.sleep(.1)\n",
        124, "no_growth", "consider progress=any",
    ),
    "preallocated file being filled, progress=any": (
        "f=open(d+'/f','wb'); os.posix_fallocate(f.fileno(),0,1<<20)\nfor i in range(40):\n f.seek(0); "
        "f.write(b'x'*9000); f.flush(); time.sleep(.1)\n",
        0, None, "completed",
    ),
    "resume, then hang": ("open(d+'/old','ab').write(b'x'*9000)\n" + HANG, 124, "no_growth", "no disk write activity"),
    "resume of a whole cache that is only read": ("open(d+'/old','rb').read()\n", 0, None, "nothing new was written"),
    "COMPLETED marker, then hang": (
        "open(d+'/f','wb').write(b'x'*9000); open(d+'/COMPLETED','w').close()\n" + HANG, 124, "no_growth", "no disk write",
    ),
    "scans that fail now and then, hung": (
        "os.mkdir(d+'/s'); open(d+'/s/f','wb').write(b'x'*9000)\nwhile 1:\n os.rename(d,d+'.away'); time.sleep(.15); "
        "os.rename(d+'.away',d); time.sleep(.5)\n",
        124, "no_growth", "no disk write activity",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_case_gets_its_right_answer(case: str, sandbox: Sandbox, who: str, fault: Fault) -> None:
    code, status, kind, words = CASES[case]
    promised = f"`{kind}`" if kind else "nothing: exit 0"
    row = fault(SECTION, case, "a real generator that does so, window 1.5 s (first byte 3 s)", promised)
    sandbox.cache_name = "out/cache"  # a parent that the generator's user may write to
    if "resume" in case:
        sandbox.cache.mkdir(mode=0o777)
        sandbox.cache.chmod(0o777)
        (sandbox.cache / "old").write_bytes(b"x" * 100_000)
        (sandbox.cache / "old").chmod(0o666)
        if sandbox.uid is not None:
            import os

            os.chown(sandbox.cache, sandbox.uid, sandbox.uid)
    options = ["--first-write-within", "3s"]
    if case.endswith("any"):
        options += ["--progress-by", "any"]
    command = [sys.executable, "-I", "-S", "-c", HEAD + code, str(sandbox.cache)]
    process = sandbox.guarded(command, *options, window="1500ms")
    assert process.wait(90) == status, sandbox.stderr()
    report = sandbox.report()
    assert report["stall"]["kind"] == kind
    if words == "225 KB":
        assert report["growth"]["bytes_present"] == 25 * 9000, "counted through a link"
    else:
        assert words in report["message"]
    row.measured.append((who, f"right after {report['duration_s']:.1f} s"))
