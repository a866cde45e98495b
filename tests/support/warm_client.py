"""A command of a shell, run by the warm process of warm.py: its streams are this process's, and so is its end.

``python -IS warm_client.py PROGRAM [WORD ...]``; what the warm process refuses is executed in this process's place. The
variable ``WARM_PYTHON`` is the handle of the socket.
"""

import _socket
import array
import json
import os
import signal
import sys

words = sys.argv[1:]
environment = dict(os.environ)
handle = int(environment.pop("WARM_PYTHON"))
folder = os.getcwd()
request = {"words": words, "environment": environment, "folder": folder, "session": False, "process_group": -1}
request |= {"ignored": [], "blocked": [], "handles": [0, 1, 2]}
reader, writer = os.pipe()
rights = array.array("i", [writer, 0, 1, 2]).tobytes()
end = _socket.socket(fileno=handle)
end.sendmsg([json.dumps(request).encode()], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)])
end.detach()
os.close(writer)
with os.fdopen(reader, buffering=1) as answers:
    pid = int(answers.readline() or 0)
    if not pid:
        os.execv(words[0], words)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1):
        signal.signal(number, lambda number, _: os.kill(pid, number))
    status = int(answers.readline() or os.EX_SOFTWARE << 8)
code = os.waitstatus_to_exitcode(status)
if code < 0:
    signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
os._exit(code)
