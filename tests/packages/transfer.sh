# A transfer with an installed Python package, to be sourced.

# python_transfer PYTHON: two processes; the receiver prints what arrived. After tests/tap.sh.
python_transfer()
{
    (cd / && timeout "$(limit 60)" "$1" -c '
import subprocess, sys, tcpx
listener = tcpx.listen("127.0.0.1", 0)
sender = subprocess.Popen([sys.executable, "-c", """
import sys, tcpx
with tcpx.connect("127.0.0.1", int(sys.argv[1])) as session:
    session.send(b"hello").wait()
""", str(listener.port)])
buffer = bytearray(5)
listener.accept(timeout=600).receive(buffer).wait(timeout=600)
print("received:", buffer.decode())
sys.exit(sender.wait())')
}
