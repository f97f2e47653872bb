"""`python -m rollcall.functions MODULE,MODULE SOCKET` is a fork server; without arguments, the process of
`rollcall warm`."""

import sys

if sys.argv[1:]:
    from rollcall.functions import worker

    worker.main(*sys.argv[1:])
else:
    from rollcall.functions import warm_server

    warm_server.main()
