"""Draw a caught stall as it looked in a terminal: the README's picture, from a real run (`make picture`).

`cachewatch exec` runs examples/generate.py in a terminal of its own. The live view is taken as it last stood before
it was wiped away, and below it stands what the terminal kept. Its temporary directory is shown as /tmp and ~; no other word is changed.
"""

from __future__ import annotations

import io
import os
import pty
import re
import shlex
import subprocess
import sys
import tempfile
import termios
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

ROOT = Path(__file__).parents[1]
COLUMNS = 100
SHOWN = (
    "cachewatch exec --cache-dir {cache} --stall-after 10s --poll 2s -- "
    "python3 examples/generate.py {cache} --freeze-at 3"
)
_BEGIN = b"\x1b[?25l"  # the cursor is hidden while there is a live view
_WIPED = re.compile(rb"\r(?:\x1b\[2K|\x1b\[1A)+")  # what wipes a view away before the next one
_OTHER_THAN_COLOUR = re.compile(rb"\x1b\[[?\d;]*[A-Za-ln-z]|\r")
# Rich loads its font from another server; the page that shows the picture is to load nothing.
_FONT_FACES = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


def run_in_a_terminal(command: str, home: Path) -> tuple[bytes, int]:
    """Run a command in a pseudo-terminal; what it wrote, and its exit status."""
    leader, follower = pty.openpty()
    termios.tcsetwinsize(follower, (40, COLUMNS))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = os.environ | {"TERM": "xterm-256color", "PATH": path, "HOME": str(home)}
    for name in ("NO_COLOR", "CI", "COLUMNS", "XDG_STATE_HOME", "CACHEWATCH_STATE"):
        env.pop(name, None)
    child = subprocess.Popen(shlex.split(command), stdin=follower, stdout=follower, stderr=follower, cwd=ROOT, env=env)
    os.close(follower)
    written = b""
    while True:
        try:
            piece = os.read(leader, 65536)
        except OSError:  # EIO: the last writer has gone
            break
        written += piece
    os.close(leader)
    return written, child.wait()


def what_stood_there(written: bytes) -> str:
    """The lines before the live view, the view as it last stood, and the lines after it, with their colours."""
    before, _, rest = written.partition(_BEGIN)
    *_, view, after = _WIPED.split(rest)
    parts = (_OTHER_THAN_COLOUR.sub(b"", part).decode().strip() for part in (before, view, after))
    return "\n".join(parts)


def draw(command: str, output: str, status: int) -> str:
    """Lay out a terminal session as SVG."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    for line in (f"\x1b[1m$ {command}\x1b[0m", *output.strip().splitlines(), "\x1b[1m$ echo $?\x1b[0m", str(status)):
        console.print(Text.from_ansi(line), overflow="fold", soft_wrap=False)
    svg = console.export_svg(title="A stalled generator, caught", theme=MONOKAI, unique_id="cachewatch-stall")
    return _FONT_FACES.sub("", svg).replace("Fira Code", "ui-monospace, Menlo, Consolas")


def main() -> None:
    """Write the picture to the file that is named."""
    target = Path(sys.argv[1])
    with tempfile.TemporaryDirectory(prefix="cachewatch-picture-") as base:
        home, cache = Path(base, "home"), Path(base, "caches/llama")
        home.mkdir()
        written, status = run_in_a_terminal(SHOWN.format(cache=cache), home)
        output = what_stood_there(written).replace(str(home), "~").replace(base, "/tmp")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(draw(SHOWN.format(cache="/tmp/caches/llama"), output, status))
    print(f"{target}: exit status {status}")


if __name__ == "__main__":
    main()
