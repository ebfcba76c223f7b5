"""Lets Python programs resolve pods' names where they cannot have an /etc/hosts of their own (the lowest rung).

Python imports this at start because its directory leads PYTHONPATH; a `sitecustomize` that would have been found
without us is imported too. The names come from the file that HEKLA_HOSTS names, read anew when it changes.
"""

import importlib
import os
import socket
import sys
from typing import Any

_real = {name: getattr(socket, name) for name in ("getaddrinfo", "gethostbyname", "gethostbyname_ex")}
_known: dict[str, Any] = {"changed": -1, "names": {}}


def _address(host: Any) -> Any:
    path = os.environ.get("HEKLA_HOSTS", "")
    if not isinstance(host, str) or not path:
        return host
    try:
        changed = os.stat(path).st_mtime_ns
        if changed != _known["changed"]:
            names: dict[str, str] = {}
            with open(path, encoding="ascii", errors="replace") as file:
                for line in file:
                    address, *hosts = line.partition("#")[0].split() or [""]
                    for name in hosts:
                        names.setdefault(name.lower(), address)
            _known.update(changed=changed, names=names)
    except OSError:
        return host
    return _known["names"].get(host.rstrip(".").lower(), host)


def _through(name: str) -> Any:
    def resolve(host: Any, *args: Any, **kwargs: Any) -> Any:
        return _real[name](_address(host), *args, **kwargs)

    return resolve


for _name in _real:
    setattr(socket, _name, _through(_name))

_here = os.path.dirname(os.path.abspath(__file__))
_path, _self = sys.path, sys.modules.pop("sitecustomize", None)
try:
    sys.path = [each for each in _path if os.path.abspath(each) != _here]
    importlib.import_module("sitecustomize")  # the one that we stand in front of
except ImportError:
    pass
finally:
    sys.path = _path
    if _self is not None:
        sys.modules["sitecustomize"] = _self
