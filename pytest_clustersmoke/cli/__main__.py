"""`python -m pytest_clustersmoke.cli`, for environments without the script on PATH."""

import sys

from . import main

sys.exit(main())
