"""What a helper process runs first, so that signals to every process of a job do not end it. Standard library only."""

from __future__ import annotations

# A batch system signals every process of a job (Slurm's --signal=USR1@60), and a helper that died of that would end the
# run. Signals that a crash raises keep their default. The caller's signal mask is cleared, and SIGCHLD is set to its
# default, since the helper waits for its children. Only `_signal` is imported, since `signal` imports enum.
DEAF = (
    "import _signal as s;[s.signal(n,s.SIG_IGN)for n in s.valid_signals()-{4,5,6,7,8,9,11,17,18,19,31}];"
    "s.signal(17,s.SIG_DFL);s.pthread_sigmask(s.SIG_SETMASK,());"
)
