"""A command line as a profile reads it to know its generator: the program, its options and its environment. Pure."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.config.ready import ReadyOnHttp, ReadyOnTcp, ReadyWhen
from prefect_cachewatch.errors import InputError

# Programs that run the rest of their command line: their options with a value in the next word, and their operands.
_WRAPPERS: Mapping[str, tuple[str, int]] = {
    "env": ("-u --unset -C --chdir", 0),
    "nohup": ("", 0),
    "nice": ("-n --adjustment", 0),
    "time": ("-f --format -o --output", 0),
    "exec": ("-a", 0),
    "setsid": ("", 0),
    "stdbuf": ("-i --input -o --output -e --error", 0),
    "ionice": ("-c --class -n --classdata", 0),
    "chrt": ("-T -P -D", 1),
    "taskset": ("", 1),
    "timeout": ("-s --signal -k --kill-after", 1),
    "numactl": ("-N --cpunodebind -m --membind -C --physcpubind -i --interleave -p --preferred", 0),
}
_RUNNERS = ("uv", "poetry", "pipenv", "pdm", "hatch")
_RUNNER_VALUES = (
    "-p --python --project --directory --with --with-editable --with-requirements --extra --group --package --env-file -i "
    "--index --index-url --extra-index-url -e --env"
)
_EVERYWHERE = ("0.0.0.0", "::", "[::]", "*", "")  # noqa: S104


@dataclass(frozen=True)
class CommandLine:
    """A command line taken apart.

    Attributes:
        program: name of the program without its directory; of `python -m MODULE` the module; of `python SCRIPT` the script.
        path: the program or script as written.
        words: what follows it.
        env: its environment.
        cwd: its working directory, absolute.
    """

    program: str
    path: str
    words: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str

    def option(self, *names: str) -> str | None:
        """Return the value of an option, as `--name VALUE` or `--name=VALUE`; of several uses the last, as argparse takes it.

        `_` and `-` are the same.

        Example:
            >>> read_command(["vllm", "serve", "m", "--port", "8000", "--port=9000"], {}, "/").option("--port")
            '9000'
        """
        wanted = {name.replace("_", "-") for name in names}
        found: str | None = None
        for at, word in enumerate(self.words):
            if word == "--":
                break
            name, equals, value = word.partition("=")
            if name.replace("_", "-") in wanted and (equals or at + 1 < len(self.words)):
                found = value if equals else self.words[at + 1]
        return found

    def has(self, *names: str) -> bool:
        """Say whether one of some options is given."""
        wanted = {name.replace("_", "-") for name in names}
        return any(word.partition("=")[0].replace("_", "-") in wanted for word in self.words)

    def begins(self, words: Sequence[str]) -> bool:
        """Say whether the program has a name and is followed by words."""
        return [self.program, *self.words[: len(words) - 1]] == list(words)

    def value(self, source: str, words: Sequence[str]) -> str | None:
        """Return what a source names, as `Recognition` says; None for nothing.

        Args:
            source: an option, a variable with or without a path after it, OPERAND, or a text.
            words: the program and its first words.

        Example:
            >>> line = read_command(["vllm", "serve", "m"], {"A": "/a"}, "/")
            >>> line.value("$A/b", []), line.value("$B/b", []), line.value("OPERAND", ["vllm", "serve"])
            ('/a/b', None, 'm')
        """
        if source.startswith("--"):
            return self.option(source)
        if source == "OPERAND":
            word = next(iter(self.words[len(words) - 1 :]), "-")
            return None if word.startswith("-") else word
        name, slash, below = source.removeprefix("$").partition("/")
        if not source.startswith("$"):
            return source
        return f"{value}{slash}{below}" if (value := self.env.get(name)) else None

    def place(self, path: str | None) -> str | None:
        """Make a path absolute as the generator would; None for none, and for one with a NUL."""
        if not path or "\0" in path:
            return None
        home = self.env.get("HOME") or "/"
        expanded = home + path[1:] if path == "~" or path.startswith("~/") else path
        return os.path.normpath(os.path.join(self.cwd, expanded))

    def address(self, defaults: Mapping[str, Any]) -> dict[str, Any]:
        """Return `host` and `port` of a server, from `--host` and `--port`; every address is asked for on loopback."""
        host, written = self.option("--host") or "", self.option("--port")
        found = int(written) if written is not None and written.isdecimal() and 0 < int(written) < 65536 else None
        host = f"[{host}]" if ":" in host and not host.startswith("[") else host
        return {
            "host": "127.0.0.1" if host.strip("[]") in _EVERYWHERE else host,
            "port": defaults.get("port") if found is None else found,
        }

    def readiness(self, ready: ReadyWhen, *nowhere: str) -> ReadyWhen:
        """Return a server's readiness as its options have it: with TLS its port is asked, not its page.

        Args:
            ready: without these options.
            nowhere: options with which it answers on no port.

        Raises:
            InputError: nothing says when it is ready, so that it would be stopped when it is.
        """
        if (option := next(filter(self.has, nowhere), None)) is not None:
            raise InputError(
                f"with {option}, {for_terminal(self.program)} has no port that says when it is ready: add --ready, such as "
                "--ready log=PATTERN with a line that it prints then"
            )
        if not self.has("--ssl-certfile", "--ssl-keyfile") or not isinstance(ready, ReadyOnHttp):
            return ready
        at = urlsplit(ready.url)
        return ReadyOnTcp(host=at.hostname or "127.0.0.1", port=at.port or 443)


def read_command(command: Sequence[str], env: Mapping[str, str], cwd: str) -> CommandLine:
    """Take a command line apart.

    Args:
        command: argv.
        env: the generator's environment.
        cwd: its working directory.

    Example:
        >>> read_command(["env", "A=b", "/usr/bin/python3", "-u", "-m", "vllm.entrypoints.openai.api_server"], {}, "/").program
        'vllm.entrypoints.openai.api_server'
        >>> read_command(["python3", "/opt/tt/run.py", "--model", "m"], {}, "/").program
        'run.py'
    """
    words, given = _unwrapped(list(command), dict(env))
    if not words:
        return CommandLine("", "", (), given, cwd)
    path, rest = words[0], words[1:]
    name = os.path.basename(path)
    if name.startswith("python"):
        while rest and rest[0].startswith("-") and rest[0] != "-m":
            del rest[: 2 if rest[0] in ("-W", "-X") else 1]
        if rest[:1] == ["-m"]:
            rest = rest[1:]
            name = rest[0] if rest else ""
        elif rest:
            name = os.path.basename(rest[0])
        path, rest = (rest[0], rest[1:]) if rest else (path, [])
    return CommandLine(name, path, tuple(rest), given, cwd)


def _unwrapped(words: list[str], given: dict[str, str]) -> tuple[list[str], dict[str, str]]:
    """Leave out the programs before the generator; returns its words, and the environment with what `env` sets."""
    while words:
        name = os.path.basename(words[0])
        if name in _RUNNERS and words[1:2] == ["run"]:
            words, valued, operands = words[2:], _RUNNER_VALUES.split(), 0
        elif name in _WRAPPERS:
            text, operands = _WRAPPERS[name]
            words, valued = words[1:], text.split()
        else:
            break
        while words and (words[0].startswith("-") or (name == "env" and "=" in words[0])):
            word = words.pop(0)
            if word == "--":
                break
            if word in valued:
                del words[:1]
            elif not word.startswith("-"):
                key, _, value = word.partition("=")
                given[key] = value
        del words[:operands]
    return words, given
