"""Lines that the generators really print, against the patterns of their profiles: which are progress, and which are not."""

from __future__ import annotations

import pytest

from prefect_cachewatch.config.job import CacheJob
from prefect_cachewatch.config.profiles import find_profile, make_profile
from prefect_cachewatch.watching.log_progress import News
from prefect_cachewatch.watching.matcher import PatternMatcher

# Each line, and whether it is progress after those before it.
LINES = {
    "vllm-compile-cache": [
        ("(EngineCore_DP0 pid=164) INFO 01-23 15:48:47 [gpu_model_runner.py:2602] Starting to load model /m", False),
        ("Loading safetensors checkpoint shards:   0% Completed | 0/2 [00:00<?, ?it/s]", True),
        ("Loading safetensors checkpoint shards:  50% Completed | 1/2 [00:19<00:19, 19.47s/it]", True),
        ("Loading safetensors checkpoint shards:  50% Completed | 1/2 [00:24<00:24, 24.47s/it]", False),
        ("Loading safetensors checkpoint shards: 100% Completed | 2/2 [00:39<00:00, 19.47s/it]", True),
        ("INFO 01-23 15:49:07 [default_loader.py:267] Loading weights took 19.62 seconds", True),
        ("INFO 01-23 15:49:08 [gpu_model_runner.py:2653] Model loading took 3.8844 GiB and 20.442057 seconds", True),
        ("INFO 05-01 19:16:14 [backends.py:1128] Dynamo bytecode transform time: 7.29 s", True),
        ("INFO 05-01 19:17:14 [backends.py:350] Compiling a graph for compile range (1, 8192) takes 26.15 s", True),
        ("INFO 05-01 19:17:44 [backends.py:350] Compiling a graph for dynamic shape takes 30.20 s", True),
        ("DeepGEMM warmup:   1%|▏         | 12/1024 [00:02<02:22,  2.51s/it]", True),
        ("DeepGemm(fp8_gemm_nt) warmup (W=torch.Size([512, 7168])) [relaxed]:  3%|3 | 1/30 [00:00<?, ?it/s]", True),
        ("Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):  10%|█▎  | 7/67 [00:12<00:00,  5.43it/s]", True),
        ("Capturing CUDA graphs (decode, FULL):  20%|█▎  | 7/35 [00:05<00:00,  6.23it/s]", True),
        ("Capturing CUDA graph shapes: 100%|██████████| 35/35 [00:06<00:00,  5.00it/s]", True),
        ("INFO 10-06 12:00:40 [gpu_model_runner.py:3480] Graph capturing finished in 8 secs, took 0.31 GiB", True),
        ('INFO: 127.0.0.1:1 - "GET /health HTTP/1.1" 503 Service Unavailable', False),
        ("INFO 10-06 12:00:40 [loggers.py:118] Engine 000: Avg prompt throughput: 0.0 tokens/s", False),
    ],
    "sglang": [
        ("Multi-thread loading shards:  25% Completed | 1/4 [00:00<00:02,  1.29it/s]", True),
        ("Multi-thread loading shards:  25% Completed | 1/4 [00:01<00:04,  1.31s/it]", False),
        ("[2026-05-18 03:43:36] Try DeepGEMM JIT Compiling for <GEMM_NT_F8F8BF16> N=2048, K=2048, num_groups=1 with", True),
        ("[2026-05-18 03:44:36] Try DeepGEMM JIT Compiling for <GEMM_NT_F8F8BF16> N=2048, K=2048, num_groups=1 with", False),
        ("DeepGEMM warmup:   3%|▎         | 983/32768 [00:20<10:22, 51.1it/s]", True),
        ("Compiling num tokens (num_tokens=7680):   2%|▏         | 1/58 [00:02<02:22,  2.51s/it]", True),
        ("Capturing batches (bs=120 avail_mem=74.65 GB):   5%|▌         | 1/20 [00:01<00:33,  1.75s/it]", True),
        ("Capturing batches (bs=112 avail_mem=74.60 GB):   5%|▌         | 1/20 [00:01<00:33,  1.75s/it]", False),
        ("[2026-03-04 03:06:22] Ignore import error when loading sglang.srt.models.glm_ocr", False),
    ],
    "tt-inference-server": [
        ("Loading checkpoint shards:  50%|█████     | 15/30 [01:10<01:10,  4.70s/it]", True),
        ("2026-07-18 05:13:18.574 | INFO | generator:warmup_model_prefill:192 - Warming up prefill for sequence length: 2048", True),
        ("2026-07-18 05:14:18.574 | INFO | generator:warmup_model_prefill:192 - Warming up prefill for sequence length: 2048", False),
        ("2026-07-18 05:15:18.574 | INFO | generator:warmup_model_prefill:192 - Warming up prefill for sequence length: 4096", True),
        ("2026-07-18 05:16:18.574 | INFO | generator - Done Capturing Decode Trace", True),
        ("Device 0: Model warmup completed", True),
        ("Cache generation in progress. Waited 30s", False),
        ("Service not ready after 60.0s", False),
    ],
    "tt-serve": [
        ('{"event":"step","key":"bundle","state":"start","label":"resolving the bundle"}', True),
        ('{"event":"step","key":"bundle","state":"done","label":"bundle resolved","detail":"qwen3-coder-30b-a3b @ p300x2"}', True),
        ('{"event": "progress", "done": 3221225472, "total": 16000000000, "unit": "bytes"}', True),
        ('{"event":"progress","done":3221225472,"total":16000000000,"unit":"bytes"}', False),
        ('{"event":"progress","done":3321225472,"total":16000000000,"unit":"bytes"}', True),
        ('{"event":"step","key":"image","state":"fail","detail":"manifest unknown"}', False),
        ('{"event":"container","id":"tt-model-qwen3","endpoint":"http://127.0.0.1:20000/v1"}', True),
        ('{"event":"error","cause":"no device"}', False),
    ],
    "trtllm-build": [
        ("[03/12/2024-10:20:08] [TRT-LLM] [I] Total time to initialize the weights in network Unnamed Network 0: 00:00:02", True),
        ("[03/12/2024-10:21:08] [TRT] [I] Engine generation completed in 35.9738 seconds.", True),
        ("[03/12/2024-10:21:09] [TRT-LLM] [I] Total time of building Unnamed Network 0: 00:00:36", True),
        ("[03/12/2024-10:21:09] [TRT-LLM] [I] Serializing engine to gpt2/trt_engines/fp16/1-gpu/rank0.engine...", True),
        ("[03/12/2024-10:21:11] [TRT-LLM] [I] Engine serialized. Total time: 00:00:02", True),
        ("[03/12/2024-10:22:11] [TRT-LLM] [I] Engine serialized. Total time: 00:00:02", False),
    ],
}  # fmt: skip
PARAMETERS = {
    "vllm-compile-cache": {"cache_root": "/c"},
    "sglang": {"cache_root": "/c"},
    "tt-inference-server": {"model": "m", "device": "n300", "cache_root": "/c"},
    "tt-serve": {"model": "m", "home": "/h"},
    "trtllm-build": {"checkpoint_dir": "/a", "output_dir": "/b"},
}


@pytest.mark.parametrize("profile", LINES)
def test_a_profile_knows_the_lines_of_progress_of_its_generator(profile):
    matcher, news = PatternMatcher(*find_profile(profile).progress_log), News()
    for at_s, (line, is_progress) in enumerate(LINES[profile]):
        taken = [news.take(match, at_s) for match in matcher.find(line.encode())]
        assert any(taken) == is_progress, line
    assert matcher.problem is None


@pytest.mark.parametrize("profile", LINES)
def test_the_lines_are_in_the_job_of_the_profile_unless_it_has_its_own(profile):
    settings, patterns = make_profile(profile, PARAMETERS[profile]).settings, find_profile(profile).progress_log
    assert settings.under_job(CacheJob(name="x", command=["x"])).progress_log == patterns
    assert settings.under_job(CacheJob(name="x", command=["x"], progress_log=[])).progress_log == []
