"""A value of each option, for the sentence about one that is missing."""

from __future__ import annotations

import click

# By an option's name, the placeholder for its value, or its kind.
_EXAMPLES = {
    "--against": "20261120T151010123Z-7cff96ab", "--build": "20261120T151010123Z-7cff96ab", "--bundle-dir": "/srv/bundles",
    "--check": "'python3 check.py {cache_dir}'", "--config": "cachewatch.toml", "--container": "my-server",
    "--cwd": "/opt/generator", "--env": "TT_CACHE_PATH=/mnt/cache", "--gpus": "all", "--grace": "30s",
    "--html": "plan.html", "--key": "revision=a1b2c3", "--log": "run.log",
    "--metrics": ":9464", "--missing-limit": "create:4", "--name": "llama", "--network": "host",
    "--output": "nfs-a.yaml", "--pid": "4711", "--poll": "15s", "--profile": "openvino,cache_dir=/mnt/ov",
    "--ready": "tcp=8000", "--ready-body": "'\"status\": *\"ok\"'", "--ready-every": "5s", "--record": "run.csv",
    "--report": "report.json", "--state-dir": "/var/lib/cachewatch/runs",
    "--storage": "nfs-a", "--store": "/mnt/caches", "--ulimit": "memlock=-1",
    "--volume": "caches:/cache", "--warmup-begins": "'log=weights loaded'",
    "--workdir": "/opt", "COMMAND": "'tt-smi -r'", "DEV[:DST]": "/dev/tenstorrent", "DIR": "/mnt/cache",
    "FLOW/NAME": "generate-cache/nightly-cache", "GLOB": "'*.tmp'", "IMAGE": "ghcr.io/org/generator:1.2",
    "KEY=VALUE": "cache_dir=/mnt/ov", "N": "3", "NAME": "CACHE_DIR", "NAME=VALUE": "team=ml",
    "PATTERN": "'shard (?P<done>\\d+)/(?P<total>\\d+)'", "PROGRAM": "python3", "RUN.csv": "run.csv", "SHARE": "10%",
    "SIGNAL:SIGNAL": "TERM:INT", "STATUS": "200", "TYPE/NAME": "slack-webhook/ops", "UID[:GID]": "1000:1000",
    "URL": "unix:///run/podman/podman.sock", "[ADDR:]HOST:PORT": "8000:8000", "directory": "/mnt/cache",
    "duration": "10m", "file": "report.json", "float": "1.5", "integer": "3", "integer range": "3",
    "path": "/mnt/scratch", "share": "10%", "size": "1MiB", "text": "CACHE_DIR",
}  # fmt: skip


def example_of(option: click.Parameter) -> str:
    """Return a value of an option, as it is written in a shell.

    Args:
        option: the option.

    Example:
        >>> example_of(click.Option(["--env"], metavar="NAME=VALUE"))
        'TT_CACHE_PATH=/mnt/cache'
    """
    kind = option.type
    if isinstance(kind, click.Choice):
        return str(kind.choices[0])
    if isinstance(kind, click.IntRange) and (kind.min or 0) > 3:
        return str(kind.min)
    names = [*option.opts, option.metavar or "", kind.name]
    return next((_EXAMPLES[name] for name in names if name in _EXAMPLES), option.metavar or kind.name.upper())
