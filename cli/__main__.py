"""`python -m foldfx.cli`."""

import sys

from . import main

sys.exit(main())
