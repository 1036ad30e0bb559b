"""Shared by every package: text and units, cachewatch's own files and directories, and errors about user input.

`files` and `directories` write cachewatch's own files. `aside` keeps file access safe while a generator
runs. `removal` removes files, `mounts` reads the mount table, and `tuples` makes named tuples.
"""
