"""How values are shown: in every form that they offer, and by the names that `IPython.display` has.

Where IPython is not installed, `import IPython` finds a stand-in with what cells use of it; where it is, its `display` shows in the cell as
ours does. Pictures of matplotlib come with E2B's chart data (`charts.py`), tables of pandas with their columns.
"""

from __future__ import annotations

import base64
import contextlib
import html
import importlib.abc
import importlib.machinery
import importlib.util
import io
import json
import os
import sys
import types
from typing import TYPE_CHECKING, Any, Final

from hekla.sandbox.daemon.charts import chart_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Show = Callable[[dict[str, Any]], None]

LONGEST_TEXT = 1024 * 1024
"""Of one representation; what is longer is cut and marked."""
CUT = "... [cut by the sandbox]"
METHODS = {
    "_repr_html_": "text/html", "_repr_markdown_": "text/markdown", "_repr_svg_": "image/svg+xml", "_repr_png_": "image/png",
    "_repr_jpeg_": "image/jpeg", "_repr_pdf_": "application/pdf", "_repr_latex_": "text/latex", "_repr_json_": "application/json",
    "_repr_javascript_": "application/javascript",
}  # fmt: skip
DATA, CHART = "e2b/data", "e2b/chart"
MOST_DATA = 100_000
"""Values of a table that are told as data, too; its text and its HTML show a part of larger ones, as pandas does."""
_VERSION: Final = (8, 0, 0)


def pictures(value: object) -> dict[str, Any]:
    """A value in every form that it offers; text always."""
    found: dict[str, Any] = {}
    if not isinstance(value, type) and not answers_everything(value):
        bundle = _asked(value, "_repr_mimebundle_")
        if isinstance(bundle, tuple):
            bundle = bundle[0]
        if isinstance(bundle, dict):
            found.update(bundle)
        for method, mime in METHODS.items():
            if mime not in found and (content := _asked(value, method)) is not None:
                found[mime] = content[0] if isinstance(content, tuple) else content
        found.update(_of_known(value))
    try:
        found.setdefault("text/plain", repr(value))
    except Exception as error:  # noqa: BLE001 - a broken __repr__ is the user's, and is shown
        found["text/plain"] = f"<{type(value).__name__}, whose repr raised {type(error).__name__}>"
    return {mime: sendable(content) for mime, content in found.items()}


def answers_everything(value: object) -> bool:
    """Whether it has any attribute that one asks for, as mocks and proxies do: then having one says nothing."""
    try:
        return getattr(value, "_ipython_canary_method_should_not_exist_", None) is not None
    except Exception:  # noqa: BLE001 - nor does an object whose attributes raise
        return True


def _asked(value: object, method: str) -> Any:
    try:
        asked = getattr(value, method, None)
        return asked() if callable(asked) else None
    except Exception:  # noqa: BLE001 - a form that cannot be made is left out, the others are shown
        return None


def _of_known(value: object) -> dict[str, Any]:
    """What notebooks know of libraries that know nothing of notebooks."""
    kind = type(value)
    try:
        if kind.__module__.partition(".")[0] == "matplotlib" and hasattr(value, "savefig"):
            return _figure(value)
        if kind.__module__.partition(".")[0] == "pandas" and kind.__name__ == "DataFrame":
            return _table(value)
    except Exception:  # noqa: BLE001 - as above
        return {}
    return {}


def _figure(figure: Any) -> dict[str, Any]:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", bbox_inches="tight")
    found: dict[str, Any] = {"image/png": buffer.getvalue()}
    with contextlib.suppress(Exception):  # a figure of a kind that has no such data
        found[CHART] = chart_of(figure)
    return found


def _table(table: Any) -> dict[str, Any]:
    if table.size > MOST_DATA:
        return {}
    columns = table.to_dict(orient="list")
    return {DATA: {str(name): [_plain(one) for one in column] for name, column in columns.items()}}


def _plain(value: Any) -> Any:
    if isinstance(value, float) and value != value:  # JSON has no NaN
        return None
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def sendable(content: Any) -> Any:
    """A representation as JSON takes it."""
    if isinstance(content, bytes):
        return base64.b64encode(content).decode()
    if isinstance(content, str):
        return content if len(content) <= LONGEST_TEXT else content[:LONGEST_TEXT] + CUT
    try:
        json.dumps(content)
    except (TypeError, ValueError):
        return repr(content)[:LONGEST_TEXT]
    return content


class Display:
    """`display` and its companions, for one interpreter."""

    def __init__(self, show: Show) -> None:
        """`show` tells of one value by its forms."""
        self._show = show

    def display(self, *values: object, raw: bool = False, display_id: Any = None, **_options: object) -> Any:
        """Show values as results of the cell. What was shown stays as it is: an update is shown anew."""
        for value in values:
            if raw and isinstance(value, dict):
                self._show({mime: sendable(content) for mime, content in value.items()})
            elif not self.shows_itself(value):
                self._show(pictures(value))
        return DisplayHandle(self, display_id) if display_id else None

    def shows_itself(self, value: object) -> bool:
        """Whether it has done so."""
        if isinstance(value, type) or answers_everything(value):
            return False
        try:
            show = getattr(value, "_ipython_display_", None)
            if not callable(show):
                return False
            show()
        except Exception:  # noqa: BLE001 - then in the forms that it offers
            return False
        return True

    def update_display(self, value: object, *, display_id: object = None, **_options: object) -> None:
        """Show another value for one that was shown before."""
        self.display(value)

    def clear_output(self, wait: bool = False) -> None:
        """Nothing: what a client was told is with it."""

    def publish(self, data: dict[str, Any], *_more: object, **_options: object) -> None:
        """Show representations by MIME type."""
        self._show({mime: sendable(content) for mime, content in data.items()})


class DisplayHandle:
    """What `display(..., display_id=...)` hands back."""

    def __init__(self, display: Display, display_id: object) -> None:
        self._display = display
        self.display_id = display_id if isinstance(display_id, str) else hex(id(self))

    def display(self, value: object, **options: Any) -> None:
        """Show a value."""
        self._display.display(value, **options)

    update = display


class DisplayObject:
    """Something with one representation."""

    _mime = "text/plain"

    def __init__(
        self, data: Any = None, url: str | None = None, filename: str | None = None, **_options: object
    ) -> None:
        if filename is None and isinstance(data, (str, os.PathLike)) and self._is_path(os.fspath(data)):
            filename = os.fspath(data)
        if url is not None:
            raise ValueError(f"{type(self).__name__} shows what it is given: fetch {url} first")
        self.filename = filename
        self.data = self._read(filename) if filename is not None else data

    @staticmethod
    def _is_path(data: str) -> bool:
        return False

    def _read(self, filename: str) -> Any:
        with open(os.path.expanduser(filename), encoding="utf-8") as file:
            return file.read()

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        return {self._mime: self.data}

    def __repr__(self) -> str:
        return f"<IPython.core.display.{type(self).__name__} object>"


class Pretty(DisplayObject):
    """A text as it is."""

    def __repr__(self) -> str:
        return str(self.data)


class HTML(DisplayObject):
    """A page, or a part of one."""

    _mime = "text/html"

    def _repr_html_(self) -> Any:
        return self.data


class Markdown(DisplayObject):
    """Markdown."""

    _mime = "text/markdown"


class Latex(DisplayObject):
    """LaTeX."""

    _mime = "text/latex"


class Math(Latex):
    """A formula."""

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        return {self._mime: f"$\\displaystyle {str(self.data).strip('$')}$"}


class SVG(DisplayObject):
    """A drawing."""

    _mime = "image/svg+xml"

    @staticmethod
    def _is_path(data: str) -> bool:
        return data.endswith(".svg") and "<" not in data


class JSON(DisplayObject):
    """Data."""

    _mime = "application/json"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        return {self._mime: json.loads(self.data) if isinstance(self.data, (str, bytes)) else self.data}


class Javascript(DisplayObject):
    """A script, for clients that run one."""

    _mime = "application/javascript"


class Image(DisplayObject):
    """A picture: bytes, or a file."""

    def __init__(
        self, data: Any = None, url: str | None = None, filename: str | None = None, **options: object
    ) -> None:
        if url is None and filename is None and isinstance(data, str) and data.startswith(("http://", "https://")):
            data, url = None, data
        self.url = url
        if data is None and filename is None and url is not None:
            self.data, self.filename = None, None
            return
        super().__init__(data, None, filename, **options)

    @staticmethod
    def _is_path(data: str) -> bool:
        return True

    def _read(self, filename: str) -> bytes:
        with open(os.path.expanduser(filename), "rb") as file:
            return file.read()

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        if self.data is None:
            return {"text/html": f'<img src="{html.escape(str(self.url))}"/>'}
        if self.data[:3] == b"\xff\xd8\xff":
            return {"image/jpeg": self.data}
        if self.data[:3] == b"GIF":
            return {"image/gif": self.data}
        return {"image/png": self.data}


class IFrame(DisplayObject):
    """A page from elsewhere."""

    def __init__(self, src: str, width: object = "100%", height: object = 400, **_options: object) -> None:
        self.data = f'<iframe width="{width}" height="{height}" src="{src}" frameborder="0"></iframe>'

    def _repr_html_(self) -> str:
        return str(self.data)

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        return {"text/html": self.data}


_OBJECTS: Final = (
    DisplayObject,
    HTML,
    Markdown,
    Latex,
    Math,
    SVG,
    JSON,
    Javascript,
    Image,
    IFrame,
    Pretty,
    DisplayHandle,
)


class Finder(importlib.abc.MetaPathFinder):
    """Hears which modules a cell imports: makes some of them show in the cell, and stands in for IPython where there is none."""

    def __init__(self, display: Display, get_ipython: Callable[[], Any], show_figures: Callable[..., None]) -> None:
        self._display, self._get_ipython = display, get_ipython
        self._show_figures = show_figures
        self._looking = ""
        self._after = {
            "IPython": self._join_ipython,
            "IPython.core.display_functions": self._join_display, "IPython.display": self._join_display,
            "matplotlib.pyplot": self._join_plots,
        }  # fmt: skip

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """As import asks."""
        if name == self._looking or not name.startswith(("IPython", "matplotlib.pyplot")):
            return None
        self._looking, before = name, self._looking
        try:
            spec = importlib.util.find_spec(name)
        except (ImportError, ValueError):
            spec = None
        finally:
            self._looking = before
        if spec is None:
            return self._stand_in(name)
        after, loader = self._after.get(name), spec.loader
        if after is not None and loader is not None:
            run = loader.exec_module

            def run_and_join(module: types.ModuleType) -> None:
                run(module)
                after(module)

            with contextlib.suppress(AttributeError):
                loader.exec_module = run_and_join  # type: ignore[method-assign]  # of this one module's loader
        return spec

    def _join_ipython(self, module: Any) -> None:
        module.get_ipython = self._get_ipython

    def _join_display(self, module: Any) -> None:
        module.display, module.clear_output = self._display.display, self._display.clear_output
        module.update_display, module.publish_display_data = self._display.update_display, self._display.publish

    def _join_plots(self, module: Any) -> None:
        def show(*_given: object, **_options: object) -> None:  # a plain function: pyplot writes a signature on it
            self._show_figures()

        module.show = module.Figure.show = show

    def _stand_in(self, name: str) -> importlib.machinery.ModuleSpec | None:
        places = ("IPython", "IPython.display", "IPython.core", "IPython.core.display", "IPython.core.getipython")
        if name not in places:
            if name.startswith("IPython."):
                raise ModuleNotFoundError(
                    f"{name} is not here: IPython is not installed, and of it cells have get_ipython, the usual magics and "
                    "IPython.display; install ipython into the image for more",
                    name=name,
                )
            return None
        return importlib.machinery.ModuleSpec(name, _StandIn(self), is_package=name in ("IPython", "IPython.core"))

    def fill(self, module: Any) -> None:
        """Give a stand-in what it has."""
        module.get_ipython = self._get_ipython
        module.display = self._display.display
        if module.__name__ == "IPython":
            module.version_info, module.__version__ = _VERSION, ".".join(map(str, _VERSION))
        if module.__name__ in ("IPython.display", "IPython.core.display"):
            self._join_display(module)
            for one in _OBJECTS:
                setattr(module, one.__name__, one)
            module.__getattr__ = _not_here


def _not_here(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    known = ", ".join(one.__name__ for one in _OBJECTS[1:-1])
    raise AttributeError(
        f"IPython.display has no {name} here: IPython is not installed, and of it there are display, {known}; "
        "install ipython into the image for more"
    )


class _StandIn(importlib.abc.Loader):
    def __init__(self, finder: Finder) -> None:
        self._finder = finder

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType | None:
        return None

    def exec_module(self, module: types.ModuleType) -> None:
        self._finder.fill(module)


def let_hear(finder: Finder) -> None:
    """From now on."""
    sys.meta_path.insert(0, finder)
