"""Lines of progress that known generators print, as patterns for `progress_log`.

Read in the sources and logs that docs/profiles.md names. A line that only says how long somebody has waited ("Cache
generation in progress. Waited 30s") is no progress, and is in none of them.
"""

from __future__ import annotations

# tqdm writes "what:  50%|####  | 2/4 [...", the loaders of vLLM and SGLang "what:  50% Completed | 2/4 [...".
_COUNT = r":.*?\| *(?P<done>\d+)/(?P<total>\d+) \["
_SHARDS = rf"(?P<what>Loading (?:\w+ )?checkpoint shards|Multi-thread loading shards){_COUNT}"
_DEEP_GEMM = r"(?P<what>Deep(?:GEMM|Gemm)[^|\n]{0,120} ?warmup[^|\n]{0,120}?)" + _COUNT
_LOADED = r"(?:Loading weights|Model loading) took [\d.]+"

VLLM = (
    _SHARDS,
    rf"(?P<what>Capturing CUDA graph[^:\n]{{0,60}}){_COUNT}",
    _DEEP_GEMM,
    r"Compiling a graph for [^\n]{1,80}? takes [\d.]+ s",
    rf"{_LOADED}|Dynamo bytecode transform time: [\d.]+|Graph capturing finished in \d+ secs",
)
SGLANG = (
    _SHARDS,
    rf"(?P<what>Capturing batches|Compiling num tokens)(?: \([^)\n]*\))?{_COUNT}",
    _DEEP_GEMM,
    r"DeepGEMM JIT Compiling for <\w+> N=\d+, K=\d+, num_groups=\d+",
)
TENSTORRENT = (
    _SHARDS,
    r"Warming up prefill for sequence length: \d+(?: for batch size: \d+)?",
    r"Done Capturing \w+ Trace",
    rf"{_LOADED}|Device \d+: Model warmup completed",
)
TRTLLM_BUILD = (
    r"Total time (?:of building|to initialize the weights in network) [^:\n]{1,80}: [\d:]+",
    r"Engine generation completed in [\d.]+ seconds",
    r"Serializing engine to [^\n]{1,200}\.engine|Engine serialized\. Total time: [\d:]+",
)
