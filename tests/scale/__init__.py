"""The scale test: many guarded generations on real workers and a real server, parts of which are killed or restarted."""
