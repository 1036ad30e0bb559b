"""Profiles of known generators: where they write, which environment they need, and how long they are silent.

`TTInferenceServer(...)` and the others make a job (`.job(...)`) and a stall policy (`.stall()`); `make_profile` makes
one by name. docs/profiles.md tells how to add one.
"""

from __future__ import annotations

from prefect_cachewatch.config.profiles.base import Profile, ProfileSettings
from prefect_cachewatch.config.profiles.compilers import OpenVino, SGLang, TensorRTLLM, TorchCompile, VllmCompileCache
from prefect_cachewatch.config.profiles.huggingface import HuggingFaceDownload
from prefect_cachewatch.config.profiles.registry import (
    complete_job,
    expand_profile,
    find_profile,
    known_profiles,
    make_profile,
    profile_key,
    recognize_profile,
)
from prefect_cachewatch.config.profiles.tt_inference_server import TTInferenceServer

__all__ = [
    "HuggingFaceDownload",
    "OpenVino",
    "Profile",
    "ProfileSettings",
    "SGLang",
    "TTInferenceServer",
    "TensorRTLLM",
    "TorchCompile",
    "VllmCompileCache",
    "complete_job",
    "expand_profile",
    "find_profile",
    "known_profiles",
    "make_profile",
    "profile_key",
    "recognize_profile",
]
