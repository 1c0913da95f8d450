"""A hook that runs as a command: sends its standard input to the address it is given, and answers nothing."""

import sys
import urllib.request

headers = {"Content-Type": "application/json"}
urllib.request.urlopen(urllib.request.Request(sys.argv[1], sys.stdin.buffer.read(), headers)).read()
