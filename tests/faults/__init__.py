"""Real faults, injected into real trees, file systems, servers: `make test-faults`."""
