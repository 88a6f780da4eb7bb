"""The file that is started on every rank, by its path.

Python puts this file's folder first on the module path, where data.py or model.py would shadow the
user's own modules. So the folder is dropped and the package is loaded from where this file lies,
whatever else is named `trainer` on the path.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def load_package() -> None:
    """Put the package of this file into sys.modules under its name."""
    sys.path[:] = [entry for entry in sys.path if not entry or Path(entry).resolve() != HERE]
    spec = importlib.util.spec_from_file_location(
        "trainer", HERE / "__init__.py", submodule_search_locations=[str(HERE)]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot load the trainer's package from {HERE}")
    package = importlib.util.module_from_spec(spec)
    sys.modules["trainer"] = package
    spec.loader.exec_module(package)


if __name__ == "__main__":
    load_package()
    from trainer.main import main

    code = main(sys.argv[1:])
    if code:
        # After an error torch's threads are left as they were, and taking them down can deadlock.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
