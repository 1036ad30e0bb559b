"""`cachewatch generate`: the guarded generation through the Prefect flow, with attempts and artifacts."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import click

from prefect_cachewatch.cli.api_address import api_url
from prefect_cachewatch.cli.api_patience import NOT_TOLD, ApiWatchdog, logging_filtered, prepare_api
from prefect_cachewatch.cli.copied_output import CopiedOutput
from prefect_cachewatch.cli.options.fields import DURATION, Fields, build_model, split_command
from prefect_cachewatch.cli.options.guard import (
    COMMAND,
    guard_sections,
    job_from,
    metrics_from,
    outputs_from,
    poll_note,
    stall_from,
    stop_from,
)
from prefect_cachewatch.cli.options.profile_choice import profile_from
from prefect_cachewatch.cli.options.publish import PUBLISH_SECTION, policy_from
from prefect_cachewatch.cli.options.ready import with_ready
from prefect_cachewatch.cli.options.sections import Section, SectionedCommand, option, verbose_option
from prefect_cachewatch.cli.progress import Mode, ProgressLine, print_report
from prefect_cachewatch.cli.saying import say
from prefect_cachewatch.cli.signals import relayed_to_flow
from prefect_cachewatch.config import (
    CacheJob,
    Outputs,
    RetryPolicy,
    StallPolicy,
    StopPolicy,
    Storage,
)
from prefect_cachewatch.engine.client import EngineClient
from prefect_cachewatch.engine.events import Bye, Refused
from prefect_cachewatch.engine.spec import make_spec
from prefect_cachewatch.engine.view import View
from prefect_cachewatch.errors import CommandError, GuardError, InputError
from prefect_cachewatch.metrics.settings import Metrics
from prefect_cachewatch.report.report import report_data
from prefect_cachewatch.run.exposure import check_exposure, require_utf8
from prefect_cachewatch.store.policy import PublishPolicy
from prefect_cachewatch.supervise.caller_signals import inherited_signals
from prefect_cachewatch.watching.outcomes import OWN_FAILURE

_NAME = option("--name", help="Name of the job; default the cache directory's.")
_STORAGE = option("--storage", metavar="NAME", help="Wait for a slot of the concurrency limit of this storage.")
_RETRY = Fields(
    RetryPolicy,
    "attempts N, backoff_s, on_retry, before_retry COMMAND",
    before_retry={"multiple": False},
)
_ATTEMPTS = Section("Attempts", "--attempts --on-retry", _RETRY.options())
_VERBOSE = verbose_option("Show Prefect's log from DEBUG on.")
_PREFECT = [
    option(
        "--api-patience",
        type=DURATION,
        default="5m",
        show_default=True,
        help="How long an API that does not answer is told how the run ended.",
    ),
]


@click.command(
    "generate",
    cls=SectionedCommand,
    params=[COMMAND],
    sections=guard_sections([_NAME, _STORAGE], [_VERBOSE, *_PREFECT], [_ATTEMPTS, PUBLISH_SECTION]),
    needed={"--cache-dir": "required, or --profile", "--name": "required with --store"},
    examples=[
        "cachewatch generate --cache-dir /mnt/cache -- python3 gen.py",
        "cachewatch generate --store /mnt/caches --name llama -- ./gen.py {cache_dir}",
    ],
    options_metavar="--cache-dir DIR [OPTIONS] --",
    context_settings={"allow_interspersed_args": False},
)
def command(
    name: str | None,
    api_patience: float,
    **options: Any,
) -> int:
    """Generate through the Prefect flow; options, exit status and report of exec.

    With --store it is verified, published and activated: exit 1 if refused.
    """
    publish, profile = policy_from(options), profile_from(options)
    if publish is not None and profile is not None:
        publish = publish.with_key(profile.key)
    if publish is not None and name is None:
        raise InputError("--store needs --name NAME: the name of the cache in the store")
    job = with_ready(job_from(name, options, publish is not None), options)
    stall, stop = stall_from(options), stop_from(options)
    if (note := poll_note(stall)) is not None and not options["quiet"]:
        say(note)
    retry = _retry_from(options) if profile is None else profile.under(_retry_from(options))
    outputs, metrics = outputs_from(options), metrics_from(options)
    require_utf8({"job": job, "publish": publish, "outputs": outputs})
    if (warning := check_exposure({"job": job, "publish": publish})) is not None:
        say(warning)
    if options["storage"] == "":
        raise InputError("--storage is empty: name the storage, as its concurrency limit is named")
    storage = build_model(Storage, name=options["storage"]) if options["storage"] else None
    _check(job, stall, stop, retry, publish, outputs, metrics)
    return run_flow(
        job, stall, stop, retry, publish, outputs, storage, metrics,
        quiet=options["quiet"], progress=options["shown"], api_patience_s=api_patience,
        as_json=options["as_json"],
        verbose=options["verbose"],
    )  # fmt: skip


def _check(
    job: CacheJob,
    stall: StallPolicy,
    stop: StopPolicy,
    retry: RetryPolicy,
    publish: PublishPolicy | None,
    outputs: Outputs,
    metrics: Metrics | None,
) -> None:
    """Refuse bad input without a server; the flow's engine checks again, and keeps the locks. Raises CommandError."""
    spec = make_spec(
        checks_only=True, job=job, stall=stall, stop=stop, retry=retry, publish=publish, outputs=outputs,
        metrics=metrics.to if metrics is not None else None, signals=inherited_signals(),
    )  # fmt: skip
    with contextlib.closing(EngineClient(spec, job.name)) as engine:
        for event, _ in engine.events():
            match event:
                case Refused(message=message, status=status):
                    raise CommandError(message, exit_code=status)
                case Bye():
                    return
    raise GuardError("the process that checks the job has died")


def _retry_from(options: dict[str, Any]) -> RetryPolicy:
    given = _RETRY.given(options)
    if "before_retry" in given:
        given["before_retry"] = split_command("--before-retry", given["before_retry"], "tt-smi -r")
    return build_model(RetryPolicy, **given)


def run_flow(
    job: CacheJob,
    stall: StallPolicy,
    stop: StopPolicy,
    retry: RetryPolicy,
    publish: PublishPolicy | None = None,
    outputs: Outputs = Outputs(),  # noqa: B008 - frozen
    storage: Storage | None = None,
    metrics: Metrics | None = None,
    *,
    quiet: bool = False,
    progress: Mode | None = None,
    api_patience_s: float = 300.0,
    as_json: bool = False,
    verbose: bool = False,
) -> int:
    """Run `generate_cache` in this process and return its exit status.

    Args:
        job: the job to run.
        stall: when silence is a stall.
        stop: how the tree is stopped.
        retry: the attempts.
        publish: how the finished cache is published.
        outputs: files to write beside the cache, by absolute paths.
        storage: storage whose concurrency limit admits the attempts.
        metrics: destination of the Prometheus metrics.
        quiet: whether Prefect's log lines are left out.
        progress: how the growth is shown; default live in a terminal, else by Prefect's log lines.
        api_patience_s: how long the command tries to tell a Prefect API that does not answer how the run ended.
        as_json: print the report as the last line of standard output.
        verbose: whether Prefect's log lines of level DEBUG are shown too.

    Returns:
        The status of `cachewatch exec`; 1 if the checks refuse the build.

    Raises:
        InputError: the Prefect API cannot be reached.
    """
    if quiet or verbose:
        os.environ.setdefault("PREFECT_LOGGING_LEVEL", "CRITICAL" if quiet else "DEBUG")
    prepare_api(api_patience_s)
    from prefect_cachewatch.flows.attempts import live_view, output_streams  # noqa: PLC0415 - a second of imports
    from prefect_cachewatch.flows.generation import generate_cache  # noqa: PLC0415
    from prefect_cachewatch.flows.telling import Telling, whom_to_tell  # noqa: PLC0415

    view = ProgressLine(progress, quiet, verbose)

    def clear(record: logging.LogRecord) -> bool:
        view.clear()
        return True

    with relayed_to_flow() as received, logging_filtered(clear):
        output = CopiedOutput(view)
        token = output_streams.set(output.streams)
        shows = progress is not None or view.mode == "live"
        view_token = live_view.set(view if shows else View())
        told = Telling()
        telling_token = whom_to_tell.set(told)
        watchdog = ApiWatchdog(told, api_patience_s)
        watchdog.start()
        try:
            hooks: list[Any] = [*generate_cache.on_crashed_hooks, _cancelled_if(received)]
            state: Any = generate_cache.with_options(on_crashed=hooks)(
                job,
                stall=stall,
                stop=stop,
                retry=retry,
                publish=publish,
                outputs=outputs,
                storage=storage,
                metrics=metrics,
                return_state=True,
            )
        except InputError:
            raise
        except Exception as error:
            if not _is_of_the_api(error):
                raise
            if told.report is None:
                raise InputError(
                    f"the Prefect API at {api_url()} answered what no Prefect API answers ({type(error).__name__}): check "
                    "PREFECT_API_URL, and that the server's version fits; nothing is running"
                ) from error
            print(f"{told.report.message} {NOT_TOLD}", file=sys.stderr, flush=True)
            if as_json:
                print_report(report_data(told.report))
            return watchdog.exit_status(told.report)
        finally:
            watchdog.close()
            whom_to_tell.reset(telling_token)
            output_streams.reset(token)
            live_view.reset(view_token)
            output.finish()
            view.close()
    sys.stdout.flush()
    if not state.is_completed() or not quiet or (told.report is not None and told.report.would_be_stops):
        print(state.message, file=sys.stderr, flush=True)
    if as_json and told.report is not None:
        print_report(report_data(told.report))
    if state.is_cancelled():
        return 128 + (received or [signal.SIGTERM])[0]
    if state.is_completed():
        return 0
    # The report is of success and the run failed: cachewatch itself has failed after the report.
    return (told.report.exit_status() if told.report is not None else 0) or OWN_FAILURE


def _cancelled_if(received: list[int]) -> Callable[[Any, Any, Any], None]:
    """Make a hook that records a cancellation if a signal hit Prefect's own code, which records it as Crashed."""

    def tell(flow: Any, run: Any, state: Any) -> None:
        if not received:
            return
        from prefect.client.orchestration import get_client  # noqa: PLC0415 - a second of imports
        from prefect.states import Cancelled  # noqa: PLC0415

        with get_client(sync_client=True) as client:
            ended: Any = Cancelled(message="Cancelled while no generator was running.")
            client.set_flow_run_state(run.id, ended, force=True)

    return tell


def _is_of_the_api(error: BaseException | None) -> bool:
    """Say whether an error comes from an API that did not answer as it should, rather than from a defect."""
    while error is not None:
        if type(error).__module__.partition(".")[0] in (
            "httpx",
            "httpcore",
            "prefect",
            "json",
            "pydantic_core",
            "websockets",
            "ssl",
        ):
            return True
        error = error.__cause__ or error.__context__
    return False
