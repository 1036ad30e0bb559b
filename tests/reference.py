"""The generated part of docs/reference.md: commands, settings, report and names, each by its own description.

`GOLDEN=write pytest tests/engine/test_docs_index.py` writes it anew.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
import typing
from collections.abc import Iterable, Iterator
from typing import Any

import click
from pydantic import BaseModel
from pydantic.fields import FieldInfo

import prefect_cachewatch
from prefect_cachewatch import Report, capacity, flows
from prefect_cachewatch.capacity import inputs
from prefect_cachewatch.cli.main import COMMANDS
from prefect_cachewatch.cli.options import fields
from prefect_cachewatch.fleet.jobs import FleetJob, FleetPolicy
from prefect_cachewatch.watching.sections import Publication

MARK = "<!-- Made by tests/reference.py: below this line nothing is written by hand. -->\n"
MODELS = """
    CacheJob ContainerSpec ContainerMount ReadyOnHttp ReadyOnTcp ReadyOnFile ReadyOnLog MarkerFiles StallPolicy StopPolicy
    RetryPolicy PublishPolicy HealthCheck Outputs Storage Metrics CacheGeneration GenerationSummary
"""
OPTION_MODULES = [
    *(f"prefect_cachewatch.cli.options.{name}" for name in ("container", "publish", "guard", "ready")),
    *(f"prefect_cachewatch.cli.{name}" for name in ("watching", "fleet", "probe", "generate")),
]


def commands() -> dict[str, click.Command]:
    """Every command, and those of the group `store`, by what is typed."""
    found: dict[str, click.Command] = {}
    for name, (place, _) in COMMANDS.items():
        module, _, attribute = place.partition(":")
        command = getattr(importlib.import_module(module), attribute)
        below = command.commands if isinstance(command, click.Group) else {"": command}
        found |= {f"{name} {sub}".strip(): each for sub, each in below.items()}
    return found


def options(command: click.Command) -> dict[str, click.Option]:
    found = {"/".join(each.opts): each for each in command.params if isinstance(each, click.Option) and not each.hidden}
    return {name: each for name, each in found.items() if each.opts[-1] not in ("--help", "--help-all", "--config")}


def of_fields() -> dict[str, click.Option]:
    """The options that stand for a field, by model and field."""
    found: dict[str, click.Option] = {}
    for module in map(importlib.import_module, OPTION_MODULES):
        for each in vars(module).values():
            if isinstance(each, fields.Fields):
                found |= {f"{each._model.__name__}.{field}": option for field, option in each._by_field.items()}
    return found


def long_name(option: click.Option) -> str:
    return next((name for name in option.opts if name.startswith("--")), option.opts[0])


def sentence(text: str | None) -> str:
    """The text on one line, safe in Markdown."""
    return (
        " ".join((text or "").split("  [default")[0].split())
        .replace("<", "\\<")
        .replace("|", "\\|")
        .replace("*", "\\*")
    )


def command_lines() -> Iterator[str]:
    """Each command with the options that are its own; what stands for a field, or was told before, is only named."""
    by_fields, told = [*of_fields().values()], dict[str, str]()
    of_exec = set(options(commands()["exec"]))
    for name, command in commands().items():
        context = click.Context(command)
        arguments = [each.make_metavar(context) for each in command.params if isinstance(each, click.Argument)]
        first = sentence((command.help or "").partition("\n\n")[0])
        yield f"### `{' '.join(['cachewatch', name, *arguments])}`\n\n{first}\n\n"
        mine, known = options(command), []
        for names, option in mine.items():
            text, long = sentence(option.help), long_name(option)
            if option not in by_fields and told.get(long) != text:
                told.setdefault(long, text)
                shown = ", ".join(option.opts) + ("" if option.is_flag else f" {option.make_metavar(context)}")
                yield f"- `{shown}`: {text}\n"
            else:
                known.append(names)
        if name != "exec" and len(of_exec & set(mine)) > 20:
            known = ["every option of exec", *(each for each in known if each not in of_exec)]
        also = ", ".join(each if " " in each else f"`{long_name(mine[each])}`" for each in known)
        yield f"\nAlso {also}.\n\n" if known else "\n"


def default(info: FieldInfo, asked: bool) -> str:
    value = info.default
    if info.is_required() or value is None or value == "" or not isinstance(value, str | int | float | bool):
        return "required" if info.is_required() and asked else ""
    return f"default {fields._default(info)[12:-1] if not isinstance(value, bool) else str(value).lower()}"


def model_lines(model: type[BaseModel], told: dict[str, str], without: Iterable[str] = ()) -> Iterator[str]:
    """A model with its fields; one that another model has had with the same words is only named."""
    by_fields, known = of_fields(), []
    yield f"### `{model.__name__}`\n\n{sentence((model.__doc__ or '').partition(chr(10) * 2)[0])}\n\n"
    for field, info in model.model_fields.items():
        if field in without:
            continue
        assert info.description, f"{model.__name__}.{field}"
        if told.get(field) == info.description:
            known.append(f"`{field}`")
            continue
        told.setdefault(field, info.description or "")
        option = by_fields.get(f"{model.__name__}.{field}")
        more = ", ".join(
            filter(
                None,
                [
                    f"`{long_name(option)}`" if option else "",
                    default(info, model is not prefect_cachewatch.GenerationSummary),
                ],
            )
        )
        yield f"- `{field}`{f' ({more})' if more else ''}: {sentence(info.description)}\n"
    yield f"\nAnd {', '.join(known)} as above.\n\n" if known else "\n"


def comments(kind: type) -> dict[str, str]:
    """What the comments `#:` over the fields of a dataclass say."""
    said: dict[str, str] = {}
    waiting: list[str] = []
    for line in inspect.getsource(kind).splitlines():
        if found := re.match(r"    #: ?(.*)", line):
            waiting.append(found[1])
        elif found := re.match(r"    (\w+): ", line):
            said[found[1]], waiting = " ".join(waiting), []
    return said


def report_lines(kind: type, path: str, words: str, seen: set[type]) -> Iterator[str]:
    """A dataclass of the report: its own line with the fields that say what they are, then a line for each other one."""
    seen.add(kind)
    said, hints = comments(kind), typing.get_type_hints(kind, localns={"Publication": Publication})
    plain, lines = list[str](), list[str]()
    for field in dataclasses.fields(kind):
        hint = hints[field.name]
        inner = [each for each in (hint, *typing.get_args(hint)) if dataclasses.is_dataclass(each)]
        name = f"{path}{'.' if path else ''}{field.name}{'[]' if typing.get_origin(hint) is list else ''}"
        about = sentence(said.get(field.name) or (inner and (inner[0].__doc__ or "").partition("\n")[0]) or "")
        if inner and inner[0] not in seen:
            lines += report_lines(typing.cast("type", inner[0]), name, about, seen)
        elif about:
            lines.append(f"- `{name}`: {about}\n")
        else:
            plain.append(f"`{field.name}`")
    yield (
        f"- {f'`{path}`: {words}' if path else 'The report:'} {'Has ' * bool(path)}{', '.join(plain)}.\n"
        if plain
        else f"- `{path}`: {words}\n"
    )
    yield from lines


def name_lines(without: Iterable[str]) -> Iterator[str]:
    for package in (prefect_cachewatch, flows, capacity):
        for name in package.__all__:
            thing: Any = getattr(package, name)
            of_the_package = package is not prefect_cachewatch and name in prefect_cachewatch.__all__
            if name not in without and not of_the_package and not isinstance(thing, str):
                yield f"- `{package.__name__}.{name}`: {sentence((thing.__doc__ or '').partition(chr(10))[0])}\n"


def generated() -> str:
    """Everything below the mark."""
    models = [getattr(prefect_cachewatch, name) for name in MODELS.split()]
    models += [FleetPolicy, FleetJob]
    models += [each for each in vars(inputs).values() if inspect.isclass(each) and each.__module__ == inputs.__name__]
    told: dict[str, str] = {}
    parts = [
        MARK,
        "\n## Commands\n\nAn option that stands for a field of a model is only named here; [settings](#settings) has its words.\n\n",
        *command_lines(),
        "## Settings\n\nThe fields that flow, form, jobs file and Python take; in brackets the option of the command, and the default.\n\n",
        *(line for model in models if issubclass(model, BaseModel) for line in model_lines(model, told, own(model))),
        "## Report\n\nTimes in seconds, `at_s` since the start of the attempt; sizes in bytes; null where nothing is known.\n\n",
        *report_lines(Report, "", "", set()),
        "\n## Names for Python\n\nThe settings above are names of `prefect_cachewatch` too.\n\n",
        *name_lines({"Report", *(model.__name__ for model in models)}),
    ]
    return re.sub(r"\n{3,}", "\n\n", "".join(parts)).rstrip() + "\n"


def own(model: type) -> Iterable[str]:
    """The fields of a model that stand for what another one has, and are left out."""
    return prefect_cachewatch.CacheJob.model_fields if model is FleetJob else ()
