"""Profiles of what compiles and caches the output: torch.compile, OpenVINO, vLLM, SGLang, TensorRT-LLM."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from pydantic import Field

from prefect_cachewatch.common.mounts import is_in
from prefect_cachewatch.config.profiles.base import (
    AbsolutePath,
    Host,
    Port,
    Profile,
    ProfileSettings,
    named_after,
    ready_by_health,
)
from prefect_cachewatch.config.profiles.commandline import CommandLine
from prefect_cachewatch.config.profiles.progress_lines import SGLANG, TRTLLM_BUILD, VLLM


class TorchCompile(Profile):
    """torch.compile (inductor), and AOTInductor, which compiles in the same cache before it writes its package.

    Example:
        >>> TorchCompile(cache_dir="/mnt/inductor").resolve().env["TRITON_CACHE_DIR"]
        '/mnt/inductor/triton'
    """

    profile_name: ClassVar[str] = "torch-compile"
    summary: ClassVar[str] = "torch.compile or AOTInductor: inductor's and Triton's caches in one directory."

    cache_dir: AbsolutePath = Field(description="TORCHINDUCTOR_CACHE_DIR; Triton's cache is put into triton below it.")
    package_dir: AbsolutePath | None = Field(
        default=None, description="Directory that an AOTInductor package (.pt2) is written to, if one is."
    )

    def resolve(self) -> ProfileSettings:
        """Return the job settings that follow from the parameters."""
        further = (self.package_dir,) if self.package_dir is not None else ()
        return ProfileSettings(
            name=self.cache_dir.name or "torch-compile",
            cache_dirs=(self.cache_dir, *further),
            env={
                "TORCHINDUCTOR_CACHE_DIR": str(self.cache_dir),
                "TRITON_CACHE_DIR": str(self.cache_dir / "triton"),
                "TORCHINDUCTOR_FX_GRAPH_CACHE": "1",
            },
            # Measured on a CPU: the first byte after 8 s, pauses of 18 s while g++ links; autotuning pauses for
            # minutes.
            stall={"first_write_within_s": 600.0, "stall_after_s": 300.0, "poll_s": 5.0},
        )


class OpenVino(Profile):
    """OpenVINO's model cache: one blob a model, written when it is compiled.

    Example:
        >>> OpenVino(cache_dir="/mnt/ov").resolve().cache_dirs
        (PosixPath('/mnt/ov'),)
    """

    profile_name: ClassVar[str] = "openvino"
    summary: ClassVar[str] = "OpenVINO's model cache (CACHE_DIR): a blob for each compiled model."

    cache_dir: AbsolutePath = Field(description="The property CACHE_DIR that the program sets.")

    def resolve(self) -> ProfileSettings:
        """Return the job settings that follow from the parameters."""
        return ProfileSettings(
            name=self.cache_dir.name or "openvino",
            cache_dirs=(self.cache_dir,),
            # A blob appears only when its model has been compiled.
            stall={"first_write_within_s": 1800.0, "stall_after_s": 600.0, "poll_s": 5.0},
            hints=(
                "OpenVINO reads CACHE_DIR from no environment variable: the program must set the property, as in "
                "core.set_property({'CACHE_DIR': ...})",
            ),
        )


class VllmCompileCache(Profile):
    """vLLM's cache of compiled graphs, which `vllm serve` fills before it answers.

    Example:
        >>> str(VllmCompileCache(cache_root="/mnt/vllm").resolve().cache_dirs[0])
        '/mnt/vllm/torch_compile_cache'
    """

    profile_name: ClassVar[str] = "vllm-compile-cache"
    summary: ClassVar[str] = "vLLM's torch.compile cache (VLLM_CACHE_ROOT), ready by /health."

    cache_root: AbsolutePath = Field(
        description="VLLM_CACHE_ROOT; compiled graphs are in torch_compile_cache below it."
    )
    host: Host = "127.0.0.1"
    port: Port = 8000

    def resolve(self) -> ProfileSettings:
        """Return the job settings that follow from the parameters."""
        return ProfileSettings(
            name=self.cache_root.name or "vllm",
            cache_dirs=(self.cache_root / "torch_compile_cache",),
            env={"VLLM_CACHE_ROOT": str(self.cache_root)},
            stall={"first_write_within_s": 1800.0, "stall_after_s": 600.0, "warmup_within_s": 1800.0},
            ready=ready_by_health(self.host, self.port),
            progress_log=VLLM,
        )

    @classmethod
    def recognize(cls, line: CommandLine) -> ProfileSettings | None:
        """Know `vllm serve` and `python -m vllm.entrypoints.openai.api_server`."""
        serves = line.program in ("vllm", "vllm.entrypoints.cli.main") and line.operand(0) == "serve"
        if not serves and line.program != "vllm.entrypoints.openai.api_server":
            return None
        root = line.place(line.env.get("VLLM_CACHE_ROOT")) or line.cache_home("vllm")
        model = (line.operand(1) if serves else None) or line.option("--model")
        settings = cls(cache_root=Path(root), **line.address(8000)).resolve()
        return named_after(model, _asked(settings, line, "--uds", "--headless"))


class SGLang(Profile):
    """SGLang's caches of compiled kernels and graphs, which its server fills before it answers.

    Example:
        >>> SGLang(cache_root="/mnt/sglang").resolve().env["SGLANG_DG_CACHE_DIR"]
        '/mnt/sglang/deep_gemm'
    """

    profile_name: ClassVar[str] = "sglang"
    summary: ClassVar[str] = "SGLang's kernel caches (SGLANG_CACHE_DIR, DeepGEMM, inductor, Triton), ready by /health."

    cache_root: AbsolutePath = Field(description="Directory of all its caches; each gets one of its own below it.")
    host: Host = "127.0.0.1"
    port: Port = 30000

    def resolve(self) -> ProfileSettings:
        """Return the job settings that follow from the parameters."""
        return ProfileSettings(
            name=self.cache_root.name or "sglang",
            cache_dirs=(self.cache_root,),
            env={
                "SGLANG_CACHE_DIR": str(self.cache_root / "sglang"),
                "SGLANG_DG_CACHE_DIR": str(self.cache_root / "deep_gemm"),
                "TORCHINDUCTOR_CACHE_DIR": str(self.cache_root / "inductor"),
                "TRITON_CACHE_DIR": str(self.cache_root / "triton"),
                "FLASHINFER_WORKSPACE_BASE": str(self.cache_root),
            },
            stall={"first_write_within_s": 1800.0, "stall_after_s": 600.0, "warmup_within_s": 1800.0},
            ready=ready_by_health(self.host, self.port),
            progress_log=SGLANG,
        )

    @classmethod
    def recognize(cls, line: CommandLine) -> ProfileSettings | None:
        """Know `sglang serve` and `python -m sglang.launch_server`: its caches are where it puts them by itself."""
        if line.program != "sglang.launch_server" and not (line.program == "sglang" and line.operand(0) == "serve"):
            return None
        cache = line.place(line.env.get("SGLANG_CACHE_DIR")) or line.cache_home("sglang")
        kernels = line.place(line.env.get("SGLANG_DG_CACHE_DIR")) or line.cache_home("deep_gemm")
        settings = cls(cache_root=Path(cache), **line.address(30000)).resolve()
        dirs = (cache,) if is_in(kernels, cache) else (cache, kernels)
        model = line.option("--model-path", "--model")
        return named_after(model, _asked(replace(settings, cache_dirs=tuple(map(Path, dirs))), line))


class TensorRTLLM(Profile):
    """trtllm-build: a checkpoint into TensorRT engines, one a rank, each written when it is built.

    Example:
        >>> TensorRTLLM(checkpoint_dir="/mnt/ckpt", output_dir="/mnt/engine").resolve().command[:3]
        ('trtllm-build', '--checkpoint_dir', '/mnt/ckpt')
    """

    profile_name: ClassVar[str] = "trtllm-build"
    summary: ClassVar[str] = "trtllm-build: a TensorRT-LLM checkpoint into engines."

    checkpoint_dir: AbsolutePath = Field(description="Directory of the TensorRT-LLM checkpoint.")
    output_dir: AbsolutePath = Field(description="Directory that gets the engines and config.json.")
    workers: int = Field(default=1, ge=1, le=1024, description="Engines that are built side by side.")
    timing_cache: AbsolutePath | None = Field(
        default=None, description="File of the timing cache, read and written: makes the next build faster."
    )

    def resolve(self) -> ProfileSettings:
        """Return the job settings that follow from the parameters."""
        cache = str(self.timing_cache) if self.timing_cache is not None else None
        timing = ("--input_timing_cache", cache, "--output_timing_cache", cache) if cache is not None else ()
        return ProfileSettings(
            name=self.output_dir.name or "engine",
            cache_dirs=(self.output_dir,),
            # An engine is optimized in memory and written at the end: silence before that is normal.
            stall={"first_write_within_s": 7200.0, "stall_after_s": 3600.0},
            command=(
                "trtllm-build", "--checkpoint_dir", str(self.checkpoint_dir), "--output_dir", str(self.output_dir),
                "--workers", str(self.workers), *timing,
            ),
            key={"model": str(self.checkpoint_dir)},
            progress_log=TRTLLM_BUILD,
        )  # fmt: skip

    @classmethod
    def recognize(cls, line: CommandLine) -> ProfileSettings | None:
        """Know `trtllm-build`."""
        if line.program not in ("trtllm-build", "tensorrt_llm.commands.build"):
            return None
        output = line.place(line.option("--output_dir") or "engine_outputs")
        return cls(checkpoint_dir=Path(line.cwd), output_dir=Path(str(output))).resolve()


def _asked(settings: ProfileSettings, line: CommandLine, *nowhere: str) -> ProfileSettings:
    return settings if settings.ready is None else replace(settings, ready=line.readiness(settings.ready, *nowhere))
