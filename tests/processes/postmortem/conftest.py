from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest
from tests.support import unavailable

HERE = Path(__file__).parent


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"postmortem_{name}", HERE / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


scenario = _load("scenario")


@pytest.fixture
def hang():
    """Run a command that hangs; give back the diagnosis as a dictionary."""
    return scenario.run_scenario


@pytest.fixture
def hang_with_mounts():
    """The same in a mount namespace of its own."""
    if os.geteuid() != 0:
        unavailable("mounting needs root")
    return scenario.run_in_mount_namespace


@pytest.fixture
def python():
    """Make the command line of a small Python program that prints `ready` when it has set the scene."""
    head = "import sys,os,time,threading,socket,subprocess,fcntl,mmap,signal\ndef ready(): print('ready', flush=True)\n"
    return lambda code: [sys.executable, "-c", head + code]


@pytest.fixture
def fuse():
    """The shell command that mounts a FUSE file system which misbehaves in a given way."""
    if not os.path.exists("/dev/fuse"):
        unavailable("needs /dev/fuse")
    return lambda where, mode: f"mkdir -p {where}; {sys.executable} {HERE / 'fuse_daemon.py'} {where} {mode}"
