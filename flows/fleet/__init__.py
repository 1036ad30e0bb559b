"""The flow of a fleet (`flow`), its `loop`, and the runners of its jobs (`crew`): processes of this host or workers."""

__all__ = ["crew", "flow", "loop", "member", "processes", "workers"]
