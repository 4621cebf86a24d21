"""What plain TCP carries from host to host in a ring, all at once: under bench/hosts. Prints bit/s of rank 0's link."""
import os
import socket
import threading
import time

TOTAL = 256 << 20
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
listener = socket.create_server((f"10.99.0.{rank + 1}", 23456))


def receive():
    connection, _ = listener.accept()
    buffer, got, start = bytearray(1 << 20), 0, time.perf_counter()
    while got < TOTAL:
        got += connection.recv_into(buffer)
    print(f"plain TCP: {TOTAL * 8 / (time.perf_counter() - start) / 1e9:.4f} Gbit/s", flush=True)


receiver = threading.Thread(target=receive)
receiver.start()
until = time.monotonic() + 20
while True:
    try:
        stream = socket.create_connection((f"10.99.0.{(rank + 1) % size + 1}", 23456), timeout=20)
        break
    except OSError:
        if time.monotonic() > until:
            raise
        time.sleep(0.05)
block = bytes(1 << 20)
for _ in range(TOTAL // len(block)):
    stream.sendall(block)
receiver.join()
