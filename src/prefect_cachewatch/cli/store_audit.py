"""`cachewatch store audit`: generates a cache again, apart, and compares it with the published build."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import click

from prefect_cachewatch.cli.option_reader import ExecSettings
from prefect_cachewatch.cli.options.fields import DURATION, build_model, split_pairs
from prefect_cachewatch.cli.options.sections import json_option
from prefect_cachewatch.cli.saying import say
from prefect_cachewatch.common.secrets import HIDDEN
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.config import CacheJob, Outputs, StallPolicy, StopPolicy
from prefect_cachewatch.errors import CachewatchError, InputError, StoreError
from prefect_cachewatch.publish.audit import SCRATCH_PREFIX
from prefect_cachewatch.publish.durable import refusing
from prefect_cachewatch.publish.names import PLACEHOLDER, expand_placeholder
from prefect_cachewatch.publish.store import CacheStore
from prefect_cachewatch.watching.outcomes import OWN_FAILURE

_DIFFERENT = 1
_SIGNALLED = 128


class _GenerationFailed(CachewatchError):
    """The generation of an audit did not complete."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the generation ended with exit status {status}: the build could not be audited")
        # 1 would say that the build is different.
        self.exit_status = status if status > _SIGNALLED else OWN_FAILURE


@click.command("audit", context_settings={"allow_interspersed_args": True})
@click.argument("root", type=click.Path(file_okay=True))
@click.argument("name")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.option("--build", "build_id", help="Which build; default: the active one.")
@click.option("--sample", type=click.IntRange(min=1), help="Compare the contents of so many files; default: all.")
@click.option("--scratch", type=click.Path(), help="Directory with room for one generation; default: ROOT.")
@click.option("--cache-dir-env", "variable", help="Variable that tells the generator where to write.")
@click.option("--env", multiple=True, metavar="NAME=VALUE", help="Variable of the generator. Repeatable.")
@click.option("--stall-after", type=DURATION, help="Stop it after so long without growth; default as for exec.")
@json_option("Print JSON.")
def audit_command(
    root: str,
    name: str,
    command: tuple[str, ...],
    build_id: str | None,
    sample: int | None,
    scratch: str | None,
    variable: str | None,
    env: tuple[str, ...],
    stall_after: float | None,
    as_json: bool,
) -> int:
    """Generate the cache again, apart and under guard, and compare it with the published build.

    After -- the COMMAND, with {cache_dir} for the directory; default: that of the build's manifest. A file that two
    generations write differently is not judged. A build that differs is noted as doubtful. Exit 0 if it is equal, 1 if
    not, 125 if the generation fails.
    """
    store = CacheStore(root)
    build_id = build_id or store.active_id(name)  # another may become current meanwhile
    argv = _choose_command(command, store, name, build_id, variable)
    variables = split_pairs("--env", env)
    with refusing("look into", scratch or root):
        there = os.listdir(scratch or root)
    for each in sorted(entry for entry in there if entry.startswith(SCRATCH_PREFIX)):
        where = for_terminal(os.path.join(scratch or root, each), 1000)
        say(f"{where} is of an audit that runs, or was killed: remove it if none runs")

    def generate(path: str) -> None:
        told = variables | ({variable: path} if variable else {})
        with _output_to_stderr():
            status = _run(expand_placeholder(argv, path), path, told, stall_after)
        if status:
            raise _GenerationFailed(status)

    try:
        found = store.audit(name, build_id, generate=generate, scratch=scratch, sample=sample)
    except _GenerationFailed as error:
        say(error.message)
        return error.exit_status
    for problem in (*(f"the result is not recorded: {each}" for each in found.problems), *found.left):
        say(problem)
    print(json.dumps(asdict(found), indent=1) if as_json else found.summary())
    return _DIFFERENT if found.verdict == "different" else 0


def _choose_command(
    given: Sequence[str], store: CacheStore, name: str, build_id: str, variable: str | None
) -> list[str]:
    argv = list(given or _own_command(store, name, build_id))
    if not given and any(HIDDEN in word for word in argv):
        raise InputError("the manifest's command has a secret that was hidden: give the command after --")
    if not argv:
        raise InputError("the manifest has no command: give the command after --")
    if variable is None and not any(PLACEHOLDER in word for word in argv):
        raise InputError(
            f"nothing tells the generator where to write: put {PLACEHOLDER} into the command after --, or name the "
            "variable that it reads with --cache-dir-env"
        )
    return argv


def _own_command(store: CacheStore, name: str, build_id: str) -> Sequence[str]:
    """Read the command that a build was made with; another user's is not run with this user's rights."""
    try:
        return store.manifest(name, build_id, owners=(0, os.geteuid())).argv
    except StoreError as error:
        if (owner := error.data.get("owner")) is None:
            raise
        said = for_terminal(shlex.join(store.manifest(name, build_id).argv), 1000)
        raise InputError(
            f"the build's manifest was written by another user (uid {owner}), and its command is not run with your rights: "
            f"if it is well, give it after --: {said}"
        ) from None


def _run(argv: Sequence[str], path: str, env: Mapping[str, str], stall_after: float | None) -> int:
    from prefect_cachewatch.cli.exec import run_exec  # noqa: PLC0415 - the other store commands run nothing

    settings = ExecSettings(
        job=build_model(CacheJob, name="audit", command=list(argv), cache_dirs=[Path(path)], env=dict(env)),
        stall=build_model(StallPolicy, **({} if stall_after is None else {"stall_after_s": stall_after})),
        stop=StopPolicy(),
        outputs=Outputs(),
        create=False,
        quiet=False,
        progress=None,
        foreground=False,
        verbose=0,
        rewrite={},
        metrics=None,
        note=None,
    )
    return run_exec(settings)


@contextlib.contextmanager
def _output_to_stderr() -> Iterator[None]:
    """Keep standard output for the result: the generator's own goes to standard error."""
    sys.stdout.flush()
    kept = os.dup(1)
    try:
        os.dup2(2, 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
