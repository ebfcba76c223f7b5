"""Data-parallel training of a small network by several workers: real gradients over real sockets.

Each worker has its own share of the points of two spirals and its own copy of the network. At every step the workers
average their gradients around a ring: each sends to the next and hears from the one before, twice once around, so that the
traffic per worker does not grow with their number. With PyTorch installed, its gloo backend does the averaging instead.

The job's plug-ins say who is there: VC_WORKER_HOSTS (svc) and VC_TASK_INDEX (env).
"""

import os
import socket
import struct
import sys
import time
from datetime import timedelta

import numpy as np

HOSTS = os.environ["VC_WORKER_HOSTS"].split(",")
RANK = int(os.environ["VC_TASK_INDEX"])
SIZE = len(HOSTS)
PORT = int(os.environ.get("PORT", "29500"))
STEPS = int(os.environ.get("STEPS", "180"))
STEP_S = float(os.environ.get("STEP_SECONDS", "0.05"))  # a larger network would take longer: so does this one
MEETING_S = 60.0


class Ring:
    """Averages vectors with the neighbours on both sides."""

    def __init__(self) -> None:
        listener = self._listen()
        self.next = self._reach(HOSTS[(RANK + 1) % SIZE])
        listener.settimeout(MEETING_S)
        self.before, _ = listener.accept()
        self.before.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def average(self, vector: np.ndarray) -> np.ndarray:
        """The mean of all workers' vectors: sum each part around the ring, then hand each sum around."""
        parts = np.array_split(vector.copy(), SIZE)
        for step in range(SIZE - 1):
            heard = self._swap(parts[(RANK - step) % SIZE])
            parts[(RANK - step - 1) % SIZE] += heard
        for step in range(SIZE - 1):
            heard = self._swap(parts[(RANK - step + 1) % SIZE])
            parts[(RANK - step) % SIZE] = heard
        return np.concatenate(parts) / SIZE

    def _swap(self, mine: np.ndarray) -> np.ndarray:
        # Messages are a few kilobytes, which the sockets' buffers hold: all may send before they read.
        self.next.sendall(struct.pack("!I", mine.nbytes) + mine.tobytes())
        (length,) = struct.unpack("!I", self._read(4))
        return np.frombuffer(self._read(length))

    def _read(self, count: int) -> bytes:
        pieces = b""
        while len(pieces) < count:
            piece = self.before.recv(count - len(pieces))
            if not piece:
                raise ConnectionError("the worker before me is gone")
            pieces += piece
        return pieces

    def _listen(self) -> socket.socket:
        """At my own name's address, because other workers of this machine listen on the same port."""
        return _patiently(
            lambda: socket.create_server((socket.gethostbyname(HOSTS[RANK]), PORT), backlog=4), HOSTS[RANK]
        )

    def _reach(self, host: str) -> socket.socket:
        connection = _patiently(lambda: socket.create_connection((host, PORT), timeout=5), host)
        connection.settimeout(30)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection


class Gloo:
    """The same with PyTorch."""

    def __init__(self) -> None:
        import torch.distributed

        self.torch = torch
        torch.set_num_threads(1)  # workers that share a machine do not share its processors well
        torch.distributed.init_process_group(
            "gloo",
            init_method=f"tcp://{HOSTS[0]}:{PORT}",
            rank=RANK,
            world_size=SIZE,
            timeout=timedelta(seconds=MEETING_S),
        )

    def average(self, vector: np.ndarray) -> np.ndarray:
        """The mean of all workers' vectors."""
        tensor = self.torch.from_numpy(vector.copy())
        self.torch.distributed.all_reduce(tensor)
        return tensor.numpy() / SIZE


def _patiently(attempt, what):
    """Names resolve and neighbours listen when they are ready: try until they do."""
    end = time.monotonic() + MEETING_S
    while True:
        try:
            return attempt()
        except OSError as error:
            if time.monotonic() > end:
                sys.exit(f"worker {RANK} waited {MEETING_S:.0f} s in vain for {what}: {error}")
            time.sleep(0.1)


def spirals(dice: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Points of two spirals, and which of the two they are on."""
    label = dice.integers(0, 2, count)
    angle = np.sqrt(dice.random(count)) * 2.5 * np.pi
    points = np.stack([np.cos(angle + np.pi * label), np.sin(angle + np.pi * label)], 1) * angle[:, None] / 4
    return points + dice.normal(0, 0.05, points.shape), label.astype(float)


SHAPES = [(2, 32), (32,), (32, 32), (32,), (32, 1), (1,)]


def unpack(vector: np.ndarray) -> list[np.ndarray]:
    """The network's matrices in one long vector."""
    ends = np.cumsum([int(np.prod(shape)) for shape in SHAPES])
    return [part.reshape(shape) for part, shape in zip(np.split(vector, ends[:-1]), SHAPES, strict=True)]


def loss_and_gradient(weights: np.ndarray, points: np.ndarray, labels: np.ndarray) -> tuple[float, np.ndarray]:
    """How wrong the network is about these points, and which way is down."""
    w1, b1, w2, b2, w3, b3 = unpack(weights)
    h1 = np.tanh(points @ w1 + b1)
    h2 = np.tanh(h1 @ w2 + b2)
    guess = 1 / (1 + np.exp(-(h2 @ w3 + b3)[:, 0]))
    loss = -np.mean(labels * np.log(guess + 1e-9) + (1 - labels) * np.log(1 - guess + 1e-9))
    d3 = ((guess - labels) / len(labels))[:, None]
    d2 = (d3 @ w3.T) * (1 - h2**2)
    d1 = (d2 @ w2.T) * (1 - h1**2)
    gradient = [points.T @ d1, d1.sum(0), h1.T @ d2, d2.sum(0), h2.T @ d3, d3.sum(0)]
    return float(loss), np.concatenate([part.ravel() for part in gradient])


def meet():
    """Gloo where PyTorch is installed, else the ring."""
    try:
        import torch.distributed  # noqa: F401
    except ImportError:
        return Ring()
    return Gloo()


def main() -> None:
    """Train, telling the loss as it falls."""
    neighbours = meet()
    print(f"worker {RANK} of {SIZE} has met the others ({type(neighbours).__name__.lower()})", flush=True)
    points, labels = spirals(np.random.default_rng(1000 + RANK), 2000)
    weights = np.concatenate([np.random.default_rng(7).normal(0, 0.5, shape).ravel() for shape in SHAPES])
    dice, momentum, scale = np.random.default_rng(RANK), np.zeros_like(weights), np.zeros_like(weights)
    for step in range(1, STEPS + 1):
        began = time.monotonic()
        batch = dice.integers(0, len(points), 256)
        loss, gradient = loss_and_gradient(weights, points[batch], labels[batch])
        mean = neighbours.average(np.append(gradient, loss))
        gradient, loss = mean[:-1], mean[-1]
        momentum, scale = 0.9 * momentum + 0.1 * gradient, 0.99 * scale + 0.01 * gradient**2
        weights -= 0.02 * (momentum / (1 - 0.9**step)) / (np.sqrt(scale / (1 - 0.99**step)) + 1e-8)
        if step % 10 == 0 and RANK == 0:
            print(f"step {step} loss {loss:.2f}", flush=True)
        time.sleep(max(0.0, STEP_S - (time.monotonic() - began)))
    drift = np.abs(neighbours.average(weights) - weights).max()
    if drift > 1e-9:
        sys.exit(f"worker {RANK} has drifted from the others by {drift}")
    print(f"worker {RANK} is done: all {SIZE} hold the same network", flush=True)


if __name__ == "__main__":
    try:
        main()
    except (ConnectionError, TimeoutError, RuntimeError) as error:  # RuntimeError is how gloo says it
        sys.exit(f"worker {RANK} stops: {error}")
