"""A plugin in a Python file that a user names."""

from __future__ import annotations

import os
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from qconvert.errors import FileAccessError, OptionError, QConvertError
from qconvert.plugins.host import register


def register_file(path: Path) -> None:
    """Runs a Python file and registers it as a plugin by the name of the file, or of the package whose __init__.py it is. It is code that
    the user trusts.

    Raises:
        FileAccessError: there is no such file.
        OptionError: it is no Python file, fails, or is no plugin; see register().
    """
    if not os.path.isfile(path):
        raise FileAccessError("the plugin does not exist", file=str(path), rule="file-not-found")
    package = Path(os.path.abspath(path)).parent if path.name == "__init__.py" else None
    name = package.name if package is not None else path.stem
    spec = spec_from_file_location(name, path, submodule_search_locations=None if package is None else [str(package)])
    if spec is None or spec.loader is None or name in sys.modules:
        reason = f"has the name of the module {name}" if name in sys.modules else "is not a Python file"
        raise OptionError(
            reason,
            file=str(path),
            remedy="Give it a name of its own, with the suffix .py.",
            rule="not-a-plugin",
        )
    module = module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look for it there
    try:
        spec.loader.exec_module(module)
        register(module, name)
    except QConvertError as error:
        del sys.modules[name]
        error.file = error.file or str(path)
        raise
    except (Exception, SystemExit) as error:  # whatever the file does
        del sys.modules[name]
        raise OptionError(f"fails: {type(error).__name__}: {error}", file=str(path), rule="plugin-fails") from error
