"""Profiles of compilers that cache their output: torch.compile and AOTInductor, OpenVINO, vLLM, TensorRT-LLM."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from prefect_cachewatch.config.profiles.base import AbsolutePath, Profile, ProfileSettings
from prefect_cachewatch.config.ready import ReadyOnHttp

__all__ = ["OpenVino", "TensorRTLLM", "TorchCompile", "VllmCompileCache"]


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
    host: str = Field(default="127.0.0.1", pattern=r"^[^\s/]+$", description="Where the server answers.")
    port: int = Field(default=8000, ge=1, le=65535, description="The server's port.")

    def resolve(self) -> ProfileSettings:
        """Return the job settings that follow from the parameters."""
        return ProfileSettings(
            name=self.cache_root.name or "vllm",
            cache_dirs=(self.cache_root / "torch_compile_cache",),
            env={"VLLM_CACHE_ROOT": str(self.cache_root)},
            stall={"first_write_within_s": 1800.0, "stall_after_s": 600.0, "warmup_within_s": 1800.0},
            ready=ReadyOnHttp(url=f"http://{self.host}:{self.port}/health", check_every_s=5),
        )


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
        )  # fmt: skip
