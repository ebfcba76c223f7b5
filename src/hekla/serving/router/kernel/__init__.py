"""The decision in machine code: from a prompt's bytes to the engine that is asked, without a Python object per block or engine.

`layout.py` says where each number stands, `compiled.py` is the code, `object_code.py` sees that it needs nothing else,
`functions.py` calls it, `loading.py` compiles it in a child process, `keeping.py` keeps what came of it for the user,
`upgrading.py` says when. What decides without it is `policies/soonest.py` over `prefix/index.py`, and a property test holds both to
the same choices.
"""
