"""What a known generator's cache depends on, read from its command line and its environment. Pure.

A profile lists its sources. What the files of a model or an installation say is read elsewhere (`run.filled_key`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from prefect_cachewatch.common.secrets import redact
from prefect_cachewatch.config.profiles.commandline import CommandLine

_LONGEST = 1000


@dataclass(frozen=True)
class KeySource:
    """Where one part of a key is found; the first that is there counts.

    Attributes:
        name: of the part.
        options: options of the command with the value.
        env: variables with the value.
        after: first word of the command, such as serve, after which the value stands.
        valued: options with a value that may come before that word; then the words behind it are looked for, too.
        rest: whether all words behind the one after `after` are the value.
        config: path of the value in the model's `config.json`, with dots; several are tried in turn.
        default: what the generator takes where nothing says otherwise.
        needed: whether it is said if nothing gives it.
        count: whether only the number of values counts, such as that of devices.
        every: whether all uses of an option count, since the tool joins them, or is not known. Else the last one counts, as
            argparse and click take it.
    """

    name: str
    options: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    after: str | None = None
    config: tuple[str, ...] = ()
    default: str | None = None
    needed: bool = False
    count: bool = False
    valued: tuple[str, ...] = ()
    rest: bool = False
    every: bool = False

    def read(self, line: CommandLine) -> str | None:
        """Return the value that command and environment give; None if they give none.

        Where it is not certain which of several the tool takes (two names, a word and an option), they all are the value.
        """
        used = [*(("", word) for word in self._words(line)), *line.uses(*self.options, parts=self.every)]
        if not (self.every or self.rest):
            used = list(dict(used).items())
        values = [(name, value) for name, value in used if value]
        apart = self.rest or len({value for _, value in values}) > 1 or any("." in name for name, _ in values)
        if values and not apart and not values[0][1].startswith("["):
            given: str | None = values[0][1]
        elif values:
            return json.dumps([f"{name}={value}" if name else value for name, value in values])
        else:
            given = next((line.env[name] for name in self.env if line.env.get(name)), None)
        return str(len(given.split(","))) if given and self.count else given

    def _words(self, line: CommandLine) -> list[str]:
        if self.after is None:
            return []
        words = line.operands(self.valued) if self.valued else [word for at in (0, 1) if (word := line.operand(at))]
        if words[:1] != [self.after]:
            return []
        return words[2:] if self.rest else words[1:2]


@dataclass(frozen=True)
class FoundKey:
    """The parts of a key that are known, and where the others may be found."""

    values: Mapping[str, str]
    #: Parts to be looked for in `config.json`, by name: the paths of the values; and the generator's default, if any.
    in_config: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    defaults: Mapping[str, str] = field(default_factory=dict)
    #: Parts that nothing gives.
    unknown: tuple[str, ...] = ()
    #: Directory or hub name of the model.
    model: str | None = None
    #: Python packages whose versions count.
    packages: tuple[str, ...] = ()


#: A program of torch: of its own options those that most such programs have.
_OF_TORCH = (
    KeySource("model", ("--model", "--model-path", "--model-name")),
    KeySource("revision", ("--revision",)),
    KeySource("architecture", ("--arch",), ("TORCH_CUDA_ARCH_LIST",), needed=True),
    KeySource("mesh", ("--mesh", "--tp", "--tensor-parallel-size"), ("WORLD_SIZE",)),
    KeySource("sub-device", ("--device",)),
    KeySource("dtype", ("--dtype", "--torch-dtype", "--precision"), config=("torch_dtype", "dtype")),
    KeySource("build variant", env=("TORCHINDUCTOR_MAX_AUTOTUNE", "TORCHINDUCTOR_FREEZING")),
)
# Which use of an option an unknown program takes is not known.
OF_TORCH = tuple(replace(source, every=True) for source in _OF_TORCH)
OF_VLLM = (
    KeySource("model", ("--model", "--model-tag"), after="serve", needed=True),
    KeySource("revision", ("--revision",), needed=True),
    KeySource("architecture", ("--device",), ("VLLM_TARGET_DEVICE", "TORCH_CUDA_ARCH_LIST"), needed=True),
    KeySource("mesh", ("--tensor-parallel-size", "-tp"), default="1"),
    KeySource("pipeline", ("--pipeline-parallel-size", "-pp"), default="1"),
    KeySource("dtype", ("--dtype",), config=("torch_dtype", "dtype"), default="auto"),
    KeySource("quantization", ("--quantization", "-q"), config=("quantization_config.quant_method",), default="none"),
    KeySource("cache dtype", ("--kv-cache-dtype",), default="auto"),
    KeySource("layout", env=("VLLM_KV_CACHE_LAYOUT",)),
    KeySource("length", ("--max-model-len",)),
    KeySource("build variant", ("--compilation-config", "-O", "-cc"), every=True),
)
OF_SGLANG = (
    KeySource("model", ("--model-path", "--model"), needed=True),
    KeySource("revision", ("--revision",), needed=True),
    KeySource("architecture", ("--device",), ("TORCH_CUDA_ARCH_LIST",), needed=True),
    KeySource("mesh", ("--tensor-parallel-size", "--tp-size", "--tp"), default="1"),
    KeySource("pipeline", ("--pipeline-parallel-size", "--pp-size", "--pp"), default="1"),
    KeySource("dtype", ("--dtype",), config=("torch_dtype", "dtype"), default="auto"),
    KeySource("quantization", ("--quantization",), config=("quantization_config.quant_method",), default="none"),
    KeySource("cache dtype", ("--kv-cache-dtype",), default="auto"),
    KeySource("build variant", ("--attention-backend",)),
)
OF_TRTLLM = (
    KeySource("model", ("--checkpoint_dir",), needed=True),
    KeySource("architecture", env=("TORCH_CUDA_ARCH_LIST",), needed=True),
    KeySource("mesh", config=("mapping.tp_size",)),
    KeySource("pipeline", config=("mapping.pp_size",)),
    KeySource("dtype", config=("dtype",)),
    KeySource("quantization", config=("quantization.quant_algo",), default="none"),
    KeySource("batch", ("--max_batch_size",)),
    KeySource("length", ("--max_seq_len",)),
    KeySource("build variant", ("--gemm_plugin",)),
)
_OF_HF_WITH_VALUE = (
    "--repo-type", "--revision", "--include", "--exclude", "--cache-dir", "--local-dir", "--token", "--max-workers",
    "--local-dir-use-symlinks", "--type",
)  # fmt: skip
OF_HF = (
    KeySource("model", after="download", valued=_OF_HF_WITH_VALUE, needed=True),
    KeySource("files", after="download", valued=_OF_HF_WITH_VALUE, rest=True),
    KeySource("revision", ("--revision",), default="main"),
    KeySource("kind", ("--repo-type", "--type"), default="model"),
    KeySource("layout", ("--include",), every=True),
    KeySource("left out", ("--exclude",), every=True),
)
OF_TENSTORRENT = (
    KeySource("model", ("--model",), ("HF_MODEL",), needed=True),
    KeySource("architecture", env=("ARCH_NAME",), needed=True),
    KeySource("mesh", ("--tt-device", "--device"), ("MESH_DEVICE",), needed=True),
    KeySource("sub-device", ("--device-id",), ("TT_VISIBLE_DEVICES",), count=True),
    KeySource("dtype", ("--override-tt-config",), needed=True),
    KeySource("implementation", ("--impl",)),
    KeySource("dispatch", env=("WH_ARCH_YAML", "TT_METAL_SLOW_DISPATCH_MODE")),
)


def key_of(sources: Iterable[KeySource], line: CommandLine, packages: tuple[str, ...] = ()) -> FoundKey:
    """Read what a command line and its environment say of the cache.

    Args:
        sources: the profile's.
        line: the command.
        packages: Python packages whose versions count.

    Example:
        >>> from prefect_cachewatch.config.profiles.commandline import read_command
        >>> found = key_of(OF_TENSTORRENT, read_command(["run.py", "--model=m"], {"MESH_DEVICE": "N300"}, "/"))
        >>> dict(found.values), found.unknown
        ({'model': 'm', 'mesh': 'N300'}, ('architecture', 'dtype'))
    """
    values: dict[str, str] = {}
    in_config: dict[str, tuple[str, ...]] = {}
    defaults: dict[str, str] = {}
    unknown: list[str] = []
    for source in sources:
        value = source.read(line)
        if value is not None and not (value == "auto" and source.config):
            values[source.name] = _shortened(redact(value))
            continue
        if source.config:
            in_config[source.name] = source.config
        if (stands := value or source.default) is not None:
            defaults[source.name] = stands
        elif source.needed and not source.config:
            unknown.append(source.name)
    known = {name: value for name, value in defaults.items() if name not in in_config}
    left = {name: value for name, value in defaults.items() if name in in_config}
    return FoundKey({**values, **known}, in_config, left, tuple(unknown), values.get("model"), packages)


def _shortened(value: str) -> str:
    """Cut a long value, with a digest for the rest: two that begin alike stay two."""
    if len(value) <= _LONGEST:
        return value
    return f"{value[:_LONGEST]}... sha256:{hashlib.sha256(value.encode('utf-8', 'surrogatepass')).hexdigest()}"


def describe_source(source: KeySource) -> str:
    """Say where a part of the key comes from.

    Example:
        >>> describe_source(KeySource("dtype", ("--dtype",), ("DTYPE",), config=("torch_dtype",), default="auto"))
        '--dtype, DTYPE, torch_dtype of config.json, else auto'
    """
    words = "further words" if source.rest else "the word"
    operand = [f"{words} after {source.after}"] if source.after is not None else []
    config = [f"{' or '.join(source.config)} of config.json"] if source.config else []
    default = [f"else {source.default}"] if source.default is not None else []
    every = ["each use counts"] if source.every and source.options else []
    return ", ".join([*source.options, *every, *operand, *source.env, *config, *default])
