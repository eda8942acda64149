"""How long the public import takes in a fresh interpreter. Imports nothing before the clock runs but the
clock.
"""

import sys
import time

name = "sqlite3" if '"raw"' in sys.argv[1] else "hermes_state"
loaded = len(sys.modules)
start = time.perf_counter()
__import__(name)
seconds = time.perf_counter() - start
print('{"ms": %f, "modules": %d}' % (seconds * 1e3, len(sys.modules) - loaded))  # noqa: UP031 - json would be an import
