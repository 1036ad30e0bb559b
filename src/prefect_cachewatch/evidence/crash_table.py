"""What a generator's last output says of its end: one row for each kind of line that names a cause. Pure.

A fact that the examination of a stall names too has the same category here. The patterns are linear: every repetition
is bounded, and a line is cut before it is searched (`last_words`).
"""

from __future__ import annotations

from dataclasses import dataclass

# Directories that compilers of kernels and graphs fill as they need them, often several at once.
_KERNEL_CACHES = (
    r"/(?:tt-metal-cache|\.triton|triton_cache|torchinductor_\w{1,40}|torch_extensions|torch_compile_cache|flashinfer|tvm-ffi|"
    r"deep_gemm|\.deep_ep|neuron-compile-cache)/"
)
_NOT_THERE = r"[Nn]o such file or directory|FileNotFoundError|Cannot read file|does not exist"
NO_SPACE = r"[Nn]o space left on device|ENOSPC|[Ee]rrno[ =:]*28\b|os error 28\b|StorageFull"
QUOTA = r"[Qq]uota (?:has been )?exceeded|EDQUOT|[Ee]rrno[ =:]*122\b|os error 122\b"
READ_ONLY = r"[Rr]ead-only file ?system|EROFS|[Ee]rrno[ =:]*30\b|os error 30\b"
DENIED = r"[Pp]ermission denied|EACCES|[Oo]peration not permitted|EPERM|[Ee]rrno[ =:]*(?:13|1)\b|os error (?:13|1)\b"


@dataclass(frozen=True)
class CrashRule:
    """A kind of line; of several kinds in one log the one of the greatest weight is the cause.

    `weight`: 30 names the cause itself, 29 what a full disk or a stale handle ends as well, 25 what other causes bring about
    as well, 20 any exception, 10 a consequence.
    """

    category: str
    what: str
    pattern: str
    weight: int = 30


# Of the rules that fit one line the first counts.
CRASH_RULES: tuple[CrashRule, ...] = (
    CrashRule("oom_killed", "the kernel killed a process because memory ran out",
        r"Out of memory: Kill|oom[-_]kill|OOM[- ]?Killed|task \d{1,6}: Out Of Memory|[Mm]emory cgroup out of memory"),
    CrashRule("gpu_out_of_memory", "the device had not enough memory",
        r"(?:CUDA|HIP|XPU|NPU|GPU) out of memory|OutOfMemoryError|(?:CUDA|cuda|HIP|hip)\w{0,40}\b.{0,200}\bout of memory|"
        r"(?:CUBLAS|CUDNN)_STATUS_ALLOC_FAILED|RESOURCE_EXHAUSTED|Not enough space to allocate .{1,60} buffer across|beyond max L1 size|"
        r"[Rr]an out of memory in memory space|unlikely to have enough memory|mem[-_]fraction[-_]static"),
    CrashRule("disk_full", "there was no space left", rf"{NO_SPACE}|[Nn]ot enough (?:free )?(?:disk )?space"),
    CrashRule("quota_exceeded", "the disk quota was used up", QUOTA),
    CrashRule("read_only_filesystem", "a file system was read-only", READ_ONLY),
    CrashRule("stale_handle", "a file on a network file system was replaced or its mount went away",
        r"Stale (?:NFS )?file handle|ESTALE|[Ee]rrno[ =:]*(?:116|107)\b|os error (?:116|107)\b|Transport endpoint is not connected"),
    CrashRule("io_error", "a read or write failed in the storage",
        r"Input/output error|\bEIO\b|[Ee]rrno[ =:]*5\b|os error 5\b"),
    CrashRule("access_denied_hub", "the Hugging Face hub refused access to the model",
        r"GatedRepoError|gated repo|RepositoryNotFoundError|\b40[13] (?:Client Error|Unauthorized|Forbidden)|"
        r"Repository Not Found for url|not in the authorized list|is restricted\. You must"),
    CrashRule("download_error", "a download failed or was cut short",
        r"CAS service error|CasObjectError|LocalEntryNotFoundError|We couldn't connect to|Max retries exceeded|Read timed out|urlopen error|"
        r"\b(?:429|50[0234]) (?:Client|Server) Error|Too Many Requests|status (?:client|server) error|Temporary failure in name resolution|SSLError"),
    CrashRule("port_in_use", "the port to listen on is taken",
        r"[Aa]ddress already in use|EADDRINUSE|server socket has failed to listen|[Ee]rrno[ =:]*98\b|os error 98\b"),
    CrashRule("wrong_architecture", "a program was built for another kind of device or processor",
        r"no kernel image is available|[Uu]nsupported (?:gpu |GPU |device |SM )?arch|[Mm]in(?:imum)? capability|[Ss]ignal:? 4\b|"
        r"not supported (?:for|on|by) .{0,40}(?:current|this|your) (?:GPU|device)|[Ii]llegal instruction|SIGILL|[Ee]xec format error"),
    CrashRule("cache_race", "a file of a cache that several may fill at once was not there",
        rf"{_KERNEL_CACHES}.{{0,300}}(?:{_NOT_THERE})|(?:{_NOT_THERE}).{{0,300}}{_KERNEL_CACHES}|\.tmp\.pid_\d|"
        r"ninja: error: opening (?:build|deps) log: No such file"),
    CrashRule("compile_error", "a compiler or linker failed", weight=29, pattern=
        r"ninja: build stopped|nvcc fatal|[Ee]rror (?:building|compiling objects for) extension|errors? detected in the compilation|"
        r"compilation terminated|collect2: error|\bld returned \d|(?:^|[\s/])ld(?:\.\w{1,8})?: |(?:compile|link) failure|\bcompilation failed with \d|"
        r":\d{1,6}(?::\d{1,5})?: (?:fatal |internal compiler )?error: |^(?:\s{0,8})FAILED: \S{1,500}\.(?:o|so|obj)\b|"
        r"\b(?:[nt]?risc\w{0,3}|\w{0,6}erisc|kernel|firmware) build failed|Failed to generate binaries|"
        r"CalledProcessError: Command .{0,60}(?:gcc|g\+\+|/cc|clang|nvcc|ninja|cmake|hipcc|make)\b|^make(?:\[\d+\])?: \*\*\*|"
        r"BackendCompilerFailed|InductorError|CppCompileError|\b(?:gcc|g\+\+|cc1(?:plus)?|clang(?:\+\+)?|nvcc|hipcc)(?:-\d{1,2})?: (?:fatal )?error"),
    CrashRule("permission_denied", "access was refused", rf"{DENIED}|PermissionError"),
    CrashRule("missing_module", "a module or library is missing or does not fit",
        r"ModuleNotFoundError|No module named|ImportError|error while loading shared libraries|cannot open shared object file|"
        r"undefined symbol|`GLIBC"),
    CrashRule("host_out_of_memory", "memory ran out",
        r"MemoryError|bad_alloc|[Cc]annot allocate memory|[Ee]rrno[ =:]*12\b|[Uu]nable to allocate .{1,60}(?:array|memory)|"
        r"(?i:\bout of memory\b)|DefaultCPUAllocator|out of shared memory|insufficient shared memory"),
    CrashRule("killed", "a process was killed by SIGKILL", weight=28, pattern=
        r"(?:^|[\s\]:])Killed(?:\s.{0,200})?$|SIGKILL|[Ss]ignal:? 9\b|(?:[Cc]ode|status)\s{0,4}[=:]?\s{0,4}(?:-9|137)\b|"
        r"connection error code 2\. End of file"),
    CrashRule("segmentation_fault", "a process crashed in native code", weight=27, pattern=
        r"[Ss]egmentation fault|SIGSEGV|[Bb]us error|SIGBUS|(?<!Aborted )\(core dumped\)|[Ff]atal Python error|"
        r"(?:[Cc]ode|status)\s{0,4}[=:]?\s{0,4}(?:-11|139|-7|135)\b"),
    CrashRule("device_fault", "the device failed or was not to be had", weight=29, pattern=
        r"illegal memory access|uncorrectable|device-side assert|Memory access fault by GPU|NVIDIA driver on your system is too old|"
        r"No CUDA GPUs|no NVIDIA driver|driver version is insufficient|ARC to respond|0xffffffff from|failed to initialize FW|"
        r"[Rr]ead 0xffffffff|PROTECTION_FAULT"),
    CrashRule("missing_file", "a file or program is not there",
        r"[Nn]o such file or directory|FileNotFoundError|executable file not found|can't open file|[Ee]rrno[ =:]*2\b|os error 2\b|"
        r"command not found|[Cc](?:ould not|annot|an't) (?:load|open|find|read|locate) .{0,40}/\S|HFValidationError|EntryNotFoundError|"
        r"Can't load (?:tokenizer|the model|the configuration|config|image processor|feature extractor)|weight \S{1,200} does not exist|"
        r"does not appear to have a file named|[Nn]o file named|(?:path|file|directory|checkpoint) .{0,300}(?:does not exist|doesn't exist|not found)"),
    CrashRule("bad_argument", "the command line or configuration is wrong",
        r"(?i)^usage:|unrecognized arguments|invalid choice|unknown option|no such option|\berror: argument |"
        r"no value for the required argument|validation errors? for \w{0,60}(?:config|args)"),
    CrashRule("collective_timeout", "its ranks did not reach one another, or waited in vain", weight=26, pattern=
        r"[Ww]atchdog caught collective|collective operation timeout|Timed out waiting \d{1,12}ms for|[Ss]ocket [Tt]imeout|"
        r"connect\(\) timed out|client socket has timed out|NCCL.{0,200}(?:timeout|timed out)|NCCL error|DistBackendError|"
        r"remote process exited or there was a network error"),
    CrashRule("device_fault", "the device failed or refused an operation", weight=25, pattern=
        r"TT_(?:FATAL|THROW|ASSERT)|(?:CUDA|HIP) error|(?:CUDA|cuda) runtime error|cudaError|CUBLAS_STATUS"),
    CrashRule("assertion", "an assertion failed", weight=24, pattern=r"AssertionError|[Aa]ssertion error\b|[Aa]ssertion .{0,500}[Ff]ailed"),
    CrashRule("segmentation_fault", "a process aborted itself", weight=15, pattern=r"\bAborted\b|SIGABRT"),
    CrashRule("python_error", "another process had failed before, or it was interrupted", weight=10, pattern=
        r"EngineDeadError|Engine core initialization failed|[Ss]ee root cause|ChildFailedError|CalledProcessError|BrokenPipeError|"
        r"ConnectionResetError|[Cc]onnection reset by peer|SystemExit|KeyboardInterrupt|Process(?:Exited|Raised)Exception|"
        r"RayActorError|ActorDiedError|EOFError|CancelledError|BrokenProcessPool"),
    CrashRule("python_error", "an exception ended it", weight=20, pattern=
        r"^(?:[A-Za-z_][\w.]{0,200}\.)?[A-Z]\w{0,100}(?:Error|Exception|Failure|Exit|Interrupt|NotFound|Iteration|Timeout)(?::|\(|$)|"
        r"terminate called after|terminating (?:due to|with) uncaught exception|thread '.{0,80}' panicked"),
)  # fmt: skip
