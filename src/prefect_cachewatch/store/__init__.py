"""The cache store: only whole caches are used.

    ROOT/NAME/builds/ID/          a build: its files, and nothing of ours; this path never changes
    ROOT/NAME/builds/ID.begun     key, writer, and when the files last grew: written before the generator starts
    ROOT/NAME/builds/ID.json      the manifest, written last and in one step: with it the build is whole; readers lock it
    ROOT/NAME/builds/ID.bad       one reason against the build: refused, damaged, unhealthy or rolled back
    ROOT/NAME/current             link to builds/ID, switched by one rename
    ROOT/NAME/.lock               held by the one writer of the cache
    ROOT/NAME/.switch             held for the moment of a change: of `current`, of a record, of what is removed

The records lie beside a build, where no generator copies them along. A writer on another host may hold a lock that is
not seen from here, or be gone with its host while its lock stays: so each writer touches its `.begun` all the time, a beat,
and its age is read on the clock of the file server.
"""
