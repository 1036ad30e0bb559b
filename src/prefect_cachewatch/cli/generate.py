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

from prefect_cachewatch.cli.api import api_url, prepare_api
from prefect_cachewatch.cli.api_patience import NOT_TOLD, PatientView, logging_filtered
from prefect_cachewatch.cli.copied_output import CopiedOutput
from prefect_cachewatch.cli.options.fields import DURATION, Fields, build_model, split_command
from prefect_cachewatch.cli.options.guard import COMMAND, guard_sections, poll_note, run_from
from prefect_cachewatch.cli.options.profile_choice import profile_from
from prefect_cachewatch.cli.options.publish import PUBLISH_SECTION, policy_from
from prefect_cachewatch.cli.options.sections import Section, SectionedCommand, option, verbose_option
from prefect_cachewatch.cli.progress import ProgressLine, print_report
from prefect_cachewatch.cli.saying import say
from prefect_cachewatch.cli.signals import relayed_to_flow
from prefect_cachewatch.config import RetryPolicy, Storage
from prefect_cachewatch.engine.client import EngineClient
from prefect_cachewatch.engine.events import Bye, Refused
from prefect_cachewatch.engine.spec import make_spec
from prefect_cachewatch.engine.view import View
from prefect_cachewatch.errors import CommandError, GuardError, InputError
from prefect_cachewatch.run.exposure import check_exposure, require_utf8
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
    if options["storage"] == "":
        raise InputError("--storage is empty: name the storage, as its concurrency limit is named")
    retry = _retry_from(options)
    run = run_from(options, name, publish is not None) | {
        "retry": retry if profile is None else profile.under(retry),
        "publish": publish,
        "storage": build_model(Storage, name=options["storage"]) if options["storage"] else None,
    }
    if (note := poll_note(run["stall"])) is not None and not options["quiet"]:
        say(note)
    require_utf8({name: run[name] for name in ("job", "publish", "outputs")})
    if (warning := check_exposure({"job": run["job"], "publish": publish})) is not None:
        say(warning)
    _check(run)
    return run_flow(run, options, api_patience)


def _check(run: dict[str, Any]) -> None:
    """Refuse bad input without a server; the flow's engine checks again, and keeps the locks. Raises CommandError."""
    asked = {name: each for name, each in run.items() if name != "storage"}
    asked["metrics"] = run["metrics"].to if run["metrics"] is not None else None
    with contextlib.closing(
        EngineClient(make_spec(checks_only=True, signals=inherited_signals(), **asked), run["job"].name)
    ) as engine:
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


def run_flow(run: dict[str, Any], options: dict[str, Any], patience_s: float) -> int:
    """Run `generate_cache` in this process and return its exit status.

    Args:
        run: the flow's parameters.
        options: as parsed; how the run is shown.
        patience_s: how long the command tries to tell a Prefect API that does not answer how the run ended.

    Returns:
        The status of `cachewatch exec`; 1 if the checks refuse the build.

    Raises:
        InputError: the Prefect API cannot be reached, or is none.
    """
    quiet: bool = options["quiet"]
    if quiet or options["verbose"]:
        os.environ.setdefault("PREFECT_LOGGING_LEVEL", "CRITICAL" if quiet else "DEBUG")
    prepare_api(patience_s)
    from prefect_cachewatch.flows.context import live_view, output_streams  # noqa: PLC0415 - a second of imports
    from prefect_cachewatch.flows.generation import generate_cache  # noqa: PLC0415

    line = ProgressLine(options["shown"], quiet, options["verbose"])

    def clear(record: logging.LogRecord) -> bool:
        line.clear()
        return True

    shows = options["shown"] is not None or line.mode == "live"  # else by Prefect's log lines
    with relayed_to_flow() as relay, logging_filtered(clear):
        output = CopiedOutput(line)
        token = output_streams.set(output.streams)
        view = PatientView(line if shows else View(), patience_s, relay.arrived)
        view_token = live_view.set(view)
        hooks: list[Any] = [*generate_cache.on_crashed_hooks, _cancelled_if(relay.received)]
        state: Any = None
        try:
            with view:
                state = generate_cache.with_options(on_crashed=hooks)(**run, return_state=True)
        except InputError:
            raise
        except Exception as error:
            if not _is_of_the_api(error):
                raise
            if view.bye is None:
                raise InputError(
                    f"the Prefect API at {api_url()} answered what no Prefect API answers ({type(error).__name__}): check "
                    "PREFECT_API_URL, and that the server's version fits; nothing is running"
                ) from error
        finally:
            output_streams.reset(token)
            live_view.reset(view_token)
            output.finish()
            line.close()
    sys.stdout.flush()
    if state is None:
        assert view.bye is not None, "without an end it was refused above"
        print(f"{view.bye.message} {NOT_TOLD}", file=sys.stderr, flush=True)
    elif not state.is_completed() or not quiet or (view.report is not None and view.report["would_be_stops"]):
        print(state.message, file=sys.stderr, flush=True)
    if options["as_json"] and view.report is not None:
        print_report(view.report)
    if state is None:
        return view.exit_status
    if state.is_cancelled():
        return 128 + (relay.received or [signal.SIGTERM])[0]
    # Where the run ended well and its flow did not, cachewatch itself has failed after it.
    return 0 if state.is_completed() else view.exit_status or OWN_FAILURE


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
