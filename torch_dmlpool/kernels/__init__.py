"""The kernels of a checkout, which lie in the folder kernels/ at its top. A wheel has them here.

Where a wheel is installed as well, a checkout that has no compiled libraries uses those.
"""

import sys
from pathlib import Path

_HERE = Path(__file__).resolve().parent
_INSTALLED = [Path(entry).resolve().joinpath(*__name__.split(".")) for entry in sys.path]
__path__ = [
    str(_HERE.parents[1] / "kernels"),
    *(str(folder) for folder in _INSTALLED if folder != _HERE and folder.is_dir()),
]
