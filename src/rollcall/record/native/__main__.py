import sys

from rollcall.record.native.build import main

sys.exit(main())
