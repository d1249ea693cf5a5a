"""What a host achieves: MatMul speed and TCP throughput. Runs on the hosts, as a program of its own.

    python probe.py matmul             then, on standard input, seconds to measure, as often as wanted
    python probe.py stream MY PEER     listens at address MY, sends to PEER when told the seconds

Each answer is one line of JSON on standard output; end of input ends the program.
"""

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

# The shape of one rank's share in a BERT-Large layer; 0.54 GFLOP.
ROWS, INNER, COLUMNS = 256, 1024, 1024
PORT = 5201
# Slow start and the bucket's burst are over by then.
WARM_UP_S = 0.3


def matmul() -> None:
    """Answer each number of seconds with what every product took: [[wall seconds, CPU seconds], …]."""
    multiply = product()
    multiply()
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        stop = time.perf_counter() + float(line)
        products = []
        while (begin := time.perf_counter()) < stop:
            cpu = time.process_time()
            multiply()
            products.append([time.perf_counter() - begin, time.process_time() - cpu])
        print(json.dumps(products), flush=True)


def product() -> Callable[[], object]:
    """Return the product, by the kernels that layers are computed with: onnxruntime's where there is one.

    numpy's can be far from them. On a core with AVX-512 onnxruntime did 243 GFLOP/s, and numpy 93, whose OpenBLAS was
    told to take it for a Haswell: boards of 24.6 GFLOP/s by numpy did 43 in layers, for which links of 940 Mbps were
    what 520 are to boards of 24.6.
    """
    import numpy as np

    left, right = np.ones((ROWS, INNER), np.float32), np.ones((INNER, COLUMNS), np.float32)
    try:
        import onnxruntime
        from onnx import TensorProto, helper, numpy_helper
    except ImportError:
        return partial(np.matmul, left, right, out=np.empty((ROWS, COLUMNS), np.float32))
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["left", "right"], ["out"])],
        "product",
        [helper.make_tensor_value_info("left", TensorProto.FLOAT, left.shape)],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, (ROWS, COLUMNS))],
        [numpy_helper.from_array(right, "right")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = int(os.environ["OMP_NUM_THREADS"])  # as the lab has set it for this host
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # it would eat the quota
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return partial(session.run, None, {"left": left})


def stream(mine: str, peer: str) -> None:
    """Answer each number of seconds with the bytes per second received in them, while sending as fast as it goes."""
    listener = socket.create_server((mine, PORT))
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        sender = threading.Thread(target=send, args=(peer, float(line)))
        sender.start()
        connection, _ = listener.accept()
        print(json.dumps(receive(connection)), flush=True)
        sender.join()


def send(peer: str, seconds: float) -> None:
    """Send zeros for so long."""
    block = bytes(2**20)
    stop = time.monotonic() + seconds
    # A peer that has been ended has no answer to give, which who asks sees: this thread has nothing to add.
    with suppress(ConnectionError), socket.create_connection((peer, PORT), timeout=10) as connection:
        while time.monotonic() < stop:
            connection.sendall(block)


def receive(connection: socket.socket) -> float:
    """Return the bytes per second that arrive after the warm-up and until the sender closes."""
    block = bytearray(2**20)
    begin = first = last = time.monotonic()
    received = 0
    connection.settimeout(10)
    while count := connection.recv_into(block):
        last = time.monotonic()
        if last - begin < WARM_UP_S:
            first = last
        else:
            received += count
    connection.close()
    return received / (last - first) if last > first else 0.0


if __name__ == "__main__":
    if sys.argv[1] == "matmul":
        matmul()
    else:
        stream(*sys.argv[2:])
