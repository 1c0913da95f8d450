"""The Python modules of an agent's folder, imported again on each load so that a reload sees changes."""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import sys
import threading
import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import FileFinder, ModuleSpec, SourceFileLoader
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from queenright.instrumentation.errors import QueenrightError
from queenright.instrumentation.redaction import redact
from queenright.runtime.agents.agent_spec import AgentLoadError, describe_validation_errors

# While an agent loads, its plain module names are visible to the whole process.
_import_lock: Final = threading.RLock()
_load_numbers: Final = itertools.count(1)


class AgentModules:
    """
    The modules of one load of an agent.

    Each has a unique name (``queenright_agent_7.tools``). While one is loading, its siblings can be imported
    by plain name (``import tools``) or with ``from . import tools``. ``sys.path`` is not touched, byte code
    is neither written nor read, and the plain names are restored afterwards.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._package = f"queenright_agent_{next(_load_numbers)}"

    def load(self, name: str) -> types.ModuleType | None:
        """
        Return the module ``{name}.py``, loaded once, or None if there is no such file.

        Raises:
            AgentLoadError: The module cannot be loaded; names the file and line in the agent's folder.
        """
        path = self.folder / f"{name}.py"
        if not path.is_file():
            return None
        with _import_lock, self._allow_plain_imports():
            try:
                return importlib.import_module(f"{self._package}.{name}")
            except BaseException as error:
                is_main = threading.current_thread() is threading.main_thread()
                if is_main and not isinstance(error, Exception | SystemExit):
                    raise  # KeyboardInterrupt: the user pressed Ctrl-C
                raise self._to_load_error(path, error) from error

    def unload(self) -> None:
        """Remove the modules from ``sys.modules``."""
        for name in [module for module in sys.modules if _is_in_package(module, self._package)]:
            del sys.modules[name]

    @contextmanager
    def _allow_plain_imports(self) -> Iterator[None]:
        if self._package not in sys.modules:
            package = types.ModuleType(self._package, "An agent's folder.")
            package.__path__ = [str(self.folder)]
            sys.modules[self._package] = package
        finder = _FolderFinder(self._package, self.folder)
        shadowed_modules = {name: module for name, module in sys.modules.items() if finder.is_sibling(name)}
        for name in shadowed_modules:
            del sys.modules[name]
        sys.meta_path.insert(0, finder)
        try:
            yield
        finally:
            sys.meta_path.remove(finder)
            for name in [module for module in sys.modules if finder.is_sibling(module)]:
                del sys.modules[name]
            sys.modules.update(shadowed_modules)

    def _to_load_error(self, path: Path, error: BaseException) -> AgentLoadError:
        """Describe an import error and locate it in the agent's own files."""
        if isinstance(error, SyntaxError) and error.filename:
            return AgentLoadError(Path(error.filename), f"{error.msg}", line=error.lineno)
        line, trace = None, error.__traceback__
        while trace is not None:
            file = Path(trace.tb_frame.f_code.co_filename)
            if file.is_relative_to(self.folder):
                path, line = file, trace.tb_lineno
            trace = trace.tb_next
        if isinstance(error, ValidationError):
            return AgentLoadError(path, describe_validation_errors(error), line=line)
        if isinstance(error, QueenrightError):
            return AgentLoadError(path, redact(str(error)), line=line)
        return AgentLoadError(path, f"{type(error).__name__}: {redact(str(error))}", line=line)


class _UncachedLoader(SourceFileLoader):
    """
    Compiles a file on each load, because cached byte code is compared by whole seconds and misses quick
    edits.
    """

    def path_stats(self, path: str) -> Any:
        raise OSError("byte code is disabled for agent modules")


class _FolderFinder(MetaPathFinder):
    """Finds the modules of one folder: by full name and, in the loading thread, by plain name."""

    def __init__(self, package: str, folder: Path) -> None:
        self._package = package
        self._thread = threading.get_ident()
        self._siblings = {
            entry.stem
            for entry in folder.iterdir()
            if entry.suffix == ".py" or (entry / "__init__.py").is_file()
            # A file named like a standard library module would break imports of that module.
        } - set(sys.stdlib_module_names)

    def is_sibling(self, name: str) -> bool:
        """Return whether ``name`` is the plain name of a module in the folder."""
        return name.partition(".")[0] in self._siblings

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        if _is_in_package(fullname, self._package) and path:
            return FileFinder(path[0], (_UncachedLoader, [".py"])).find_spec(fullname)
        if self.is_sibling(fullname) and threading.get_ident() == self._thread:
            return ModuleSpec(fullname, _AliasLoader(f"{self._package}.{fullname}"), is_package=True)
        return None


class _AliasLoader(Loader):
    """Loads a module that is already loaded under another name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        module = importlib.import_module(self._name)
        self._original = (module.__spec__, module.__loader__)
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        # The import system has overwritten both with those of the plain name.
        module.__spec__, module.__loader__ = self._original


def _is_in_package(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")
