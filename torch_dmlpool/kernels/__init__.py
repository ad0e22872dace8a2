"""The kernels of a checkout, which lie in the folder kernels/ at its top. A wheel has them here.

Where a wheel is installed as well, a checkout that has no compiled libraries uses those. Relative
folders of ``sys.path`` are not searched: whoever can write into the working directory could leave a
library there.
"""

import sys
from pathlib import Path

_HERE = Path(__file__).resolve().parent
_FOLDERS = [Path(entry) for entry in sys.path if Path(entry).is_absolute()]
_INSTALLED = [folder.resolve().joinpath(*__name__.split(".")) for folder in _FOLDERS]
__path__ = [
    str(_HERE.parents[1] / "kernels"),
    *(str(folder) for folder in _INSTALLED if folder != _HERE and folder.is_dir()),
]
