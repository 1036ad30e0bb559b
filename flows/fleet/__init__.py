"""The flow of a fleet (`flow`), its turns (`loop`), and who runs its jobs: processes of this host or workers (`crew`)."""

__all__ = ["crew", "flow", "loop", "member", "processes", "workers"]
