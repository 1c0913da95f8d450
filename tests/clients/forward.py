"""A command hook that sends its standard input to the URL in its argument, and prints nothing."""

import sys
import urllib.request

headers = {"Content-Type": "application/json"}
urllib.request.urlopen(urllib.request.Request(sys.argv[1], sys.stdin.buffer.read(), headers)).read()
