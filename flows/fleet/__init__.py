"""The flow of a fleet (`flow`), its `loop`, and the runners of its jobs (`executor`): processes of this host or workers."""
