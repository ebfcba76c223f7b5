"""The daemon inside a sandbox: commands, files and interpreters, for every client's dialect.

It runs in any image that has Python 3.9 or newer, so it needs the standard library only and nothing of Hekla; `tools/build_daemon.py`
makes one file of it. One process, one thread, one event loop: it forks, and threads and forks do not mix.
"""
