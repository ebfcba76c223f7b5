"""The small program that starts and holds containers for the agent: standard library only, so that forking stays cheap.

`spawner.py` is its main loop, `init.py` the first process of a container, `confinement.py` what is locked before the
command runs. The agent's end is `hekla.node.runtimes.spawner_link`.
"""
