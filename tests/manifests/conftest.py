"""`manifests` and `e2e` are folders of the checkout, not installed packages."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
