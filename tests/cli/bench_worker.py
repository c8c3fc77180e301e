"""A worker of `bench` that measures nothing: it answers as `Worker` does, without torch."""

import json
import os
import sys

way = ""
for line in sys.stdin:
    request = json.loads(line)
    what = request["do"]
    if what == "prepare":
        way = request["way"]
        if request["target"] == "dies" and way == "inductor":
            sys.stderr.write("terminate called\nF0000 00:00:00.000000 1 file.cc:1] out of cake\n")
            sys.stderr.flush()
            os.abort()
    if what == "account":
        answer = {"call": 0.02, "device": 0.015, "host": 0.004, "bytes_copied": 0, "advice": ["x"]}
    elif what == "prepare" and request["target"] == "refused":
        answer = {"failed": "OptionError: no such function"}
    else:
        answer = {
            "prepare": {"seconds": 2.0},
            "time": {"seconds": 0.04 if way == "eager" else 0.02, "first_token": 0.01},
            "programs": {"programs": 3},
            "save": {},
            "compare": {"difference": 1e-6 if way == "pjrt" else 0.5},
        }[what]
        if what == "save":
            open(request["path"], "w").close()
    print(json.dumps(answer), flush=True)
